"""Autocast and loss scale of a problem: what trains uses them as a script does, and what is measured does not."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from unchanged import assert_unchanged, snapshot

import wellcond as wc
from wellcond.errors import InvalidProblem
from wellcond.network.isolation.precision import Precision, scaled_gradient
from wellcond.training.copy_trainer import CopyTrainer
from wellcond.training.optimizers import scaler_copy, take_step

HALVES = [torch.bfloat16, torch.float16]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 3))


def batches(count: int = 3) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 6, generator=draw), torch.randint(0, 3, (8,), generator=draw)) for _ in range(count)]


def problem(model: nn.Module | None = None, **options: Any) -> wc.Problem:
    return wc.Problem(model or network(), nn.CrossEntropyLoss(), batches(), **options)


# where it is known from


def test_the_precision_is_that_of_the_argument_or_of_the_autocast_around() -> None:
    assert problem().precision == Precision()
    assert problem(autocast=torch.float16).precision == Precision(torch.float16)
    with torch.autocast("cpu", torch.bfloat16):
        made_inside = problem()
        assert problem(autocast=torch.float16).precision == Precision(torch.float16)  # an argument comes first
    assert made_inside.precision == Precision(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16, enabled=False):
        assert problem().precision == Precision()


def test_a_problem_made_outside_is_trained_in_the_autocast_of_the_call() -> None:
    made_outside = problem()
    with torch.autocast("cpu", torch.bfloat16), made_outside.as_trained() as precision:
        assert precision == Precision(torch.bfloat16)
    with made_outside.as_trained() as precision:
        assert precision == Precision()


def test_a_scaler_is_copied_in_its_state_and_one_that_is_off_is_none() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0, growth_interval=7)
    precision = problem(autocast=torch.float16, scaler=scaler).precision
    assert precision.scaler == scaler.state_dict()
    scaler.load_state_dict(scaler.state_dict() | {"scale": 4.0})
    assert precision.scaler is not None
    assert precision.scaler["scale"] == 512.0
    assert problem(scaler=torch.amp.GradScaler("cpu", enabled=False)).precision.scaler is None
    assert str(precision) == "float16 autocast with a loss scale of 512"
    assert str(Precision()) == "full precision"


@pytest.mark.parametrize("autocast", [torch.float32, "bfloat16", True])
def test_what_is_no_half_precision_is_refused(autocast: Any) -> None:
    with pytest.raises(InvalidProblem, match=r"write torch\.bfloat16, torch\.float16 or None"):
        problem(autocast=autocast)


def test_what_is_no_scaler_is_refused() -> None:
    with pytest.raises(InvalidProblem, match=r"scaler is a float; pass the torch\.amp\.GradScaler"):
        problem(scaler=65536.0)


# passes


def outputs_of(of: wc.Problem) -> Tensor:
    with of.measuring():
        outputs: Tensor = of.forward(0, of.batches[0][0])
    return outputs


@pytest.mark.parametrize("dtype", HALVES)
def test_passes_are_those_of_a_script_in_autocast_as_trained_and_of_float32_otherwise(dtype: torch.dtype) -> None:
    model = network()
    of = problem(model, autocast=dtype)
    with torch.autocast("cpu", dtype):
        expected = model(of.batches[0][0])
    with of.as_trained():
        trained = outputs_of(of)
        eps = of.eps
    assert trained.dtype is dtype
    assert torch.equal(trained, expected)
    assert eps == torch.finfo(dtype).eps
    assert torch.equal(outputs_of(of), model(of.batches[0][0]))
    assert of.eps == torch.finfo(torch.float32).eps


def test_a_training_step_has_the_autocast_of_the_argument() -> None:
    seen: list[torch.dtype] = []

    def step(model: nn.Module, batch: Tensor) -> Tensor:
        outputs = model(batch)
        seen.append(outputs.dtype)
        return outputs.float().square().mean()

    of = wc.Problem.from_step(network(), step, batches()[0][0], autocast=torch.bfloat16)
    with of.measuring():
        of.loss_and_gradients()
    assert set(seen) == {torch.float32}
    seen.clear()
    with of.as_trained(), of.measuring():
        of.loss_and_gradients()
    assert set(seen) == {torch.bfloat16}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0, 9.0])),
        lambda f, y: F.cross_entropy(f, y) + 0.1 * f.abs().mean(),
        lambda f, y: (f.float() - F.one_hot(y, 3)).square().mean(),
    ],
    ids=["recognized", "weighted", "own", "squares"],
)
def test_a_loss_is_recognized_in_half_precision_and_forgotten_in_full(loss: Any, dtype: torch.dtype) -> None:
    """Batches of other sizes and labels have other weights in a mean, which depend on what the loss is."""
    data = [(x[: 8 - k], y[: 8 - k]) for k, (x, y) in enumerate(batches())]
    plain = wc.Problem(network(), loss, data)
    with plain.measuring():
        expected = plain.loss_and_gradients()
    of = wc.Problem(network(), loss, data, autocast=dtype)
    with of.as_trained(), of.measuring():
        of.loss_and_gradients()
    assert type(of.likelihood) is type(plain.likelihood)
    with of.measuring():
        value, gradients = of.loss_and_gradients()
    assert torch.equal(value, expected[0])
    assert all(torch.equal(gradients[name], expected[1][name]) for name in gradients)  # type: ignore[arg-type]


def test_a_loss_with_a_class_weight_in_half_precision_is_called_as_it_is() -> None:
    model = network().bfloat16()
    data = [(x.bfloat16(), y) for x, y in batches()]
    of = wc.Problem(model, nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0, 9.0]).bfloat16()), data)
    with of.measuring():
        assert of.loss_and_gradients()[0].isfinite()


# the scale of the loss


def test_small_gradients_survive_in_float16_by_the_scale() -> None:
    """∂ℓ/∂w is 3·10⁻¹⁰, which float16 does not have."""
    model = nn.Linear(1, 1, bias=False)

    def gradient(scaler: Any) -> float:
        of = wc.Problem(
            model,
            lambda f, y: 1e-10 * (f.float() - y).mean(),
            (torch.full((4, 1), 3.0), torch.zeros(4, 1)),
            autocast=torch.float16,
            scaler=scaler,
        )
        with of.as_trained(), of.measuring():
            return float(of.loss_and_gradients()[1]["weight"])  # type: ignore[arg-type]

    assert gradient(None) == 0.0
    assert gradient(torch.amp.GradScaler("cpu", init_scale=2.0**22)) == pytest.approx(3e-10, rel=1e-3)


def test_a_scale_is_lowered_until_the_gradient_is_finite() -> None:
    x = torch.ones(2, dtype=torch.float16, requires_grad=True)
    (gradient,), scale = scaled_gradient((x * 8.0).sum(), x, 2.0**16)  # 8 · 2¹⁶ is beyond 65,504
    assert scale == 2.0**12
    assert gradient.tolist() == [8.0, 8.0]


def test_a_gradient_that_overflows_at_every_scale_is_computed_at_one() -> None:
    x = torch.ones(2, dtype=torch.float16, requires_grad=True)
    (gradient,), scale = scaled_gradient((x.float() * 1e6).sum(), [x], 2.0**16)
    assert scale == 1.0
    assert not gradient.isfinite().any()


def test_parameters_without_a_gradient_have_none_also_with_a_scale() -> None:
    used, unused = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    gradients, _ = scaled_gradient(used.sum(), [used, unused], 8.0, allow_unused=True)
    assert gradients[0] is not None
    assert gradients[1] is None


# copies in training


def by_torch(model: nn.Module, steps: int, dtype: torch.dtype, scaler: Any) -> tuple[list[float], int]:
    """The losses of a script in mixed precision, and how many steps it took."""
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for step in range(steps):
        x, y = batches()[step % 3]
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = F.cross_entropy(model(x), y)
        losses.append(float(loss.detach()))
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    taken = max((int(state["step"]) for state in optimizer.state.values()), default=0)
    return losses, taken


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(torch.bfloat16, None), (torch.float16, None), (torch.float16, 2.0**16), (torch.float16, 2.0**40)],
)
def test_copies_are_trained_as_by_a_script_with_steps_that_a_scaler_skips(
    dtype: torch.dtype, scale: float | None
) -> None:
    model = network()
    scaler = None if scale is None else torch.amp.GradScaler("cpu", init_scale=scale)
    before, state = snapshot(model), None if scaler is None else copy.deepcopy(scaler.state_dict())
    of = problem(model, autocast=dtype, scaler=scaler)
    run = CopyTrainer(of, torch.optim.Adam(model.parameters(), 0.01)).start()
    run.run(30)
    assert_unchanged(before, snapshot(model))
    assert (None if scaler is None else scaler.state_dict()) == state
    expected, taken = by_torch(copy.deepcopy(model), 30, dtype, scaler)
    assert run.losses == expected
    assert (taken < 30) == (scale == 2.0**40)
    assert max(int(s["step"]) for s in run.optimizer.state.values()) == taken


def test_two_runs_have_a_scaler_each() -> None:
    precision = Precision(torch.float16, torch.amp.GradScaler("cpu", init_scale=64.0, growth_factor=4.0).state_dict())
    first, second = (scaler_copy(precision, "cpu") for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.state_dict() == second.state_dict() == precision.scaler
    x = nn.Parameter(torch.ones(1))
    assert take_step(torch.optim.SGD([x], 0.1), lambda: (x * 1e38).sum(), scaler=first) == pytest.approx(1e38)
    assert x.tolist() == [1.0]  # 64 · 10³⁸ is beyond float32: the step is skipped, and the scale halved
    assert (first.get_scale(), second.get_scale()) == (32.0, 64.0)
    assert scaler_copy(Precision(torch.float16), "cpu") is None


def test_a_step_with_a_scale_is_the_step_without_it() -> None:
    def stepped(scaler: Any) -> float:
        x = nn.Parameter(torch.full((1,), 3.0))
        assert take_step(torch.optim.SGD([x], 0.1), lambda: (x * x).sum(), scaler=scaler) == 9.0
        return float(x.detach())

    assert stepped(None) == stepped(torch.amp.GradScaler("cpu", init_scale=2.0**10)) == pytest.approx(3 - 0.1 * 6)


def test_lbfgs_takes_its_steps_without_a_scaler() -> None:
    x = nn.Parameter(torch.full((1,), 3.0))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    take_step(torch.optim.LBFGS([x], 1.0), lambda: (x * x).sum(), scaler=scaler)
    assert float(x.detach()) == pytest.approx(0.0, abs=1e-5)
    assert scaler.get_scale() == 2.0**10


# what results say


@pytest.mark.slow
def test_results_say_what_is_computed_in_which_precision() -> None:
    of = problem(autocast=torch.bfloat16)
    optimizer = torch.optim.SGD(of.model.parameters(), 0.1)
    diagnosis = wc.diagnose(of, optimizer)
    sentence = "runs of copies in bfloat16 autocast, as it is trained; curvature and conditioning in float32"
    assert diagnosis.about["precision"].endswith(sentence)
    assert sentence in " ".join(str(diagnosis).split())
    assert "precision" not in wc.diagnose(problem(), optimizer=None).about


SEEN: set[torch.dtype] = set()


class Seen(nn.Module):
    """Notes the precision in which it is reached, by all its copies; what a module holds would be put back."""

    def forward(self, x: Tensor) -> Tensor:
        SEEN.add(x.dtype)
        return x


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda of, o: wc.suggest_lr(of, o, max_steps=40), {torch.float32, torch.bfloat16}),  # a limit, and a race
        (lambda of, o: wc.treat(of, o, remedies=["bnp"], steps=3, seeds=[0]), {torch.bfloat16}),
        (lambda of, o: wc.max_lr(of, o), {torch.float32}),
        (lambda of, o: wc.conditioning(of), {torch.float32}),
        (lambda of, o: wc.neurons(of), {torch.float32}),
        (lambda of, o: wc.eigenvalues(wc.Hessian(of), tol=0.5), {torch.float32}),
        (lambda of, o: wc.covariate_shift(of, o), {torch.float32}),
        (lambda of, o: wc.landscape(of, lr=0.1, steps=2), {torch.float32}),
    ],
    ids=["suggest_lr", "treat", "max_lr", "conditioning", "neurons", "eigenvalues", "covariate_shift", "landscape"],
)
def test_what_trains_is_in_the_precision_of_training_and_what_measures_is_not(call: Any, expected: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), Seen(), nn.ReLU(), nn.Linear(16, 3))
    of = problem(model, autocast=torch.bfloat16)
    SEEN.clear()
    result = call(of, torch.optim.SGD(model.parameters(), 0.1))
    assert expected == SEEN
    assert (torch.bfloat16 in expected) == ("bfloat16 autocast, as it is trained" in " ".join(str(result).split()))


def test_what_derives_from_a_problem_is_trained_like_it() -> None:
    of = problem(autocast=torch.bfloat16)
    run = CopyTrainer(of, torch.optim.SGD(of.model.parameters(), 0.1)).start()
    assert run.problem.precision == of.precision
    assert {t.dtype for t in run.outputs()} == {torch.bfloat16}
