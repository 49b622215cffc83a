"""Trial steps against torch's SGD on copies of the model, closed forms of quadratics, and what goes wrong."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from references import assert_same, in_state
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader, TensorDataset
from zoo import ARCHITECTURES, Case, normal, split

import wellcond as wc
from wellcond.errors import NonFinite, NotDeterministic
from wellcond.stability.max_lr import max_lr
from wellcond.verify.trial_steps import trial_steps


def trained_by_torch(case: Case, batches: list[Any], rate: float, momentum: float, steps: int) -> Tensor:
    """The losses before and after every step of `torch.optim.SGD` on a copy, over all batches at once."""
    model = in_state(case.model, case.batchnorm)
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum)
    count = sum(y.numel() for _, y in batches)
    losses = []
    with sdpa_kernel(SDPBackend.MATH):
        for _ in range(steps + 1):
            loss = sum(case.loss(model(x), y) * y.numel() for x, y in batches) / count
            losses.append(loss.detach())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return torch.stack(losses)


@pytest.mark.parametrize("name", ["mlp_tanh", "cnn_batch", "cnn_running", "transformer"])
@pytest.mark.parametrize("several", [False, True], ids=["one_batch", "uneven_batches"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_trial_steps_are_those_of_torchs_sgd(name: str, several: bool, momentum: float) -> None:
    case = ARCHITECTURES[name]()
    batches = split(case.batch, [len(case.batch[1]) - 2, 2]) if several else [case.batch]
    trial = trial_steps(case.problem(batches=batches), [0.05, 0.3], momentum, steps=6)
    expected = [trained_by_torch(case, batches, rate, momentum, 6) for rate in (0.05, 0.3)]
    assert_same(trial.losses, torch.stack(expected), 1e-10)
    assert_same(trial.final, torch.stack(expected)[:, -1], 1e-10)
    assert trial.loss == pytest.approx(float(expected[0][0]), rel=1e-12)
    assert (trial.steps, trial.momentum, trial.batchnorm) == (6, momentum, case.batchnorm)


# closed forms


def line(curvature: float = 1.0, dtype: torch.dtype = torch.float64) -> wc.Problem:
    """½ h w² from w = 2."""
    model = nn.Linear(1, 1, bias=False).to(dtype)
    model.weight.data = torch.full((1, 1), 2.0, dtype=dtype)
    batch = (torch.ones(1, 1, dtype=dtype), torch.zeros(1, 1, dtype=dtype))
    return wc.Problem(model, lambda f, y: 0.5 * curvature * (f - y).square().mean(), batch)


def test_on_a_quadratic_every_step_multiplies_the_weight_by_one_minus_rate_times_curvature() -> None:
    rates = torch.tensor([0.1, 0.6, 0.7], dtype=torch.float64)
    trial = trial_steps(line(3.0), rates, steps=5)
    powers = torch.arange(6, dtype=torch.float64)
    assert_same(trial.losses, 6 * (1 - 3 * rates)[:, None] ** (2 * powers), 1e-12)
    assert torch.equal(trial.rates, rates)
    assert trial.diverged.tolist() == [False, False, True]
    assert trial.best == 0.1


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_rates_around_the_measured_limit_lie_on_their_sides_of_it(momentum: float) -> None:
    limit = max_lr(line(3.0), momentum).value
    trial = trial_steps(line(3.0), [0.95 * limit, 1.05 * limit], momentum, steps=60)
    assert trial.diverged.tolist() == [False, True]
    assert trial.final[0] < trial.loss < trial.final[1]


def test_one_step_needs_one_gradient_for_all_rates() -> None:
    trial = trial_steps(line(), [0.5, 2.5], steps=1)
    assert_same(trial.losses, torch.tensor([[2.0, 0.5], [2.0, 4.5]], dtype=torch.float64), 1e-12)
    assert trial.cost == pytest.approx(1 + 2 / 3)


# divergence


def test_a_loss_that_overflows_is_nan_from_there_on_and_its_layer_is_named() -> None:
    problem = line(dtype=torch.float32)
    trial = trial_steps(problem, [1e12, 0.5, 1e15], steps=4)
    # w = 2(1−η)ᵗ: (1e12)² squared passes 3e38 after the second step, (1e15)² after the second too
    assert torch.isfinite(trial.losses[0]).tolist() == [True, True, False, False, False]
    assert bool(torch.isfinite(trial.losses[1]).all())
    assert trial.diverged.tolist() == [True, False, True]
    assert trial.best == 0.5
    assert len(trial.notes) == 1
    assert "first at lr 1e+12" in trial.notes[0]
    assert "not finite after step 2" in str(trial)
    # the start; rates 0 and 2: one whole pass, then a forward pass that fails and is searched; rate 1: three and a last
    assert trial.cost == pytest.approx(1 + (1 + 2 / 3) + (3 + 1 / 3) + (1 + 2 / 3))


def test_if_every_rate_diverges_none_is_best() -> None:
    trial = trial_steps(line(), [3.0, 4.0], steps=3)
    assert math.isnan(trial.best)
    assert trial.diverged.all()
    assert "diverged" in str(trial)


def test_a_problem_that_is_not_finite_where_it_stands_raises() -> None:
    problem = line()
    problem.model.weight.data.fill_(math.nan)
    with pytest.raises(NonFinite):
        trial_steps(problem, [0.1])


def test_batches_that_change_from_pass_to_pass_are_refused() -> None:
    data = TensorDataset(normal(6, 1), normal(6, 1, seed=1))
    loader = DataLoader(data, batch_size=2, shuffle=True)
    with pytest.raises(NotDeterministic, match="shuffle"):
        trial_steps(wc.Problem(nn.Linear(1, 1).double(), nn.MSELoss(), loader), [0.1])


# cost, and that nothing changes


def test_passes_are_counted_as_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = line()
    forwards, backwards = [], []
    differentiate = torch.autograd.grad

    def grad(outputs: Tensor, inputs: Any, *rest: Any, **options: Any) -> Any:
        if isinstance(inputs, list) and inputs[0] is problem.model.weight:  # not what tells the loss's kind
            backwards.append(1)
        return differentiate(outputs, inputs, *rest, **options)

    problem.model.register_forward_hook(lambda *_: forwards.append(1))
    monkeypatch.setattr(torch.autograd, "grad", grad)
    trial = trial_steps(problem, [0.1, 0.2, 0.3], steps=4)
    assert trial.cost == pytest.approx((len(forwards) + 2 * len(backwards)) / 3)
    assert (len(forwards), len(backwards)) == (1 + 3 * 4, 1 + 3 * 3)


class Interrupted(Exception):
    """The user's own."""


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_as_before_also_after_a_failure(fails: bool) -> None:
    case = ARCHITECTURES["cnn_batch"]()
    case.model.train()
    for i, p in enumerate(case.model.parameters()):
        p.grad = torch.full_like(p, float(i))
    problem = case.problem()
    tensors = [*case.model.parameters(), *case.model.buffers()]
    before = [(t.data_ptr(), t._version, t.detach().clone()) for t in tensors]
    gradients = [(id(p.grad), p.grad.clone()) for p in case.model.parameters()]
    rng = torch.get_rng_state()

    def progress(_what: str, share: float) -> None:
        if fails and share > 0:
            raise Interrupted

    try:
        trial_steps(problem, [0.1, 1e6], 0.9, steps=4, progress=progress)
        assert not fails
    except Interrupted:
        assert fails
    for t, (address, version, values) in zip(tensors, before, strict=True):
        assert (t.data_ptr(), t._version) == (address, version)
        assert torch.equal(t, values)
    for p, (identity, values) in zip(case.model.parameters(), gradients, strict=True):
        assert id(p.grad) == identity
        assert torch.equal(p.grad, values)
    assert case.model.training
    assert torch.equal(torch.get_rng_state(), rng)


def test_trials_do_not_depend_on_those_before_them() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    together = trial_steps(case.problem(), [0.5, 50.0, 0.1], 0.9, steps=5)
    alone = trial_steps(copy.deepcopy(case.problem()), [0.1], 0.9, steps=5)
    assert torch.equal(together.losses[2], alone.losses[0])


# what is told


def test_rows_and_text_tell_everything() -> None:
    trial = trial_steps(line(), [0.5, 3.0], steps=2)
    rows = {row.quantity: row for row in trial.rows(step=3)}
    assert {row.step for row in rows.values()} == {3}
    assert {name: row.value for name, row in rows.items()} == {
        "loss": 2.0,
        "best_lr": 0.5,
        "trial_lr[0]": 0.5,
        "trial_loss[0]": 0.125,
        "trial_lr[1]": 3.0,
        "trial_loss[1]": 32.0,
        "cost": pytest.approx(1 + 2 + 2 / 3),
    }
    text = str(trial)
    assert "loss after 2 steps" in text
    assert "best lr 0.5" in text
    assert "cost 3.67 u" in text
    assert text.splitlines()[2].endswith("diverged")
    assert "diverged" not in text.splitlines()[1]


def test_progress_is_told_at_every_rate() -> None:
    told: list[tuple[str, float]] = []
    trial_steps(line(), [0.1, 0.2, 0.3, 0.4], steps=2, progress=lambda *a: told.append(a))
    assert told == [("trial steps", 0.0), ("trial steps", 0.25), ("trial steps", 0.5), ("trial steps", 0.75)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rates": []}, "rates is"),
        ({"rates": [0.1, -1.0]}, "rates is"),
        ({"rates": [math.inf]}, "rates is"),
        ({"rates": [0.1], "momentum": 1.0}, "momentum is 1.0"),
        ({"rates": [0.1], "momentum": -0.1}, "momentum is -0.1"),
        ({"rates": [0.1], "steps": 0}, "steps is 0"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trial_steps(line(), **arguments)
