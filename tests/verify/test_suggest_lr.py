"""`suggest_lr` against torch's optimizers on copies of the model, closed forms of quadratics, and what goes wrong."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_every_measurement import Boom, assert_unchanged, build, snapshot
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import SGD, Adam, Optimizer
from torch.utils.data import DataLoader, TensorDataset
from zoo import ARCHITECTURES, Case, integers, normal, seeded, split

import wellcond as wc
from wellcond.errors import InvalidProblem, NonFinite, NotDeterministic, OutputError
from wellcond.results import Cost
from wellcond.results.quantities import COST, MAX_LR, PREDICTED_MAX_LR, SUGGESTED_LR, SUGGESTED_LR_HIGH
from wellcond.training.run import Run
from wellcond.verify.copies import Copies
from wellcond.verify.suggest_lr import SHARES, suggest_lr
from wellcond.verify.suggested_rate import RateTrial, SuggestedRate


def quadratic(curvature: float = 1.0, dtype: torch.dtype = torch.float64) -> wc.Problem:
    """½ h w² from w = 2."""
    model = nn.Linear(1, 1, bias=False).to(dtype)
    model.weight.data = torch.full((1, 1), 2.0, dtype=dtype)
    batch = (torch.ones(1, 1, dtype=dtype), torch.zeros(1, 1, dtype=dtype))
    return wc.Problem(model, lambda f, y: 0.5 * curvature * (f - y).square().mean(), batch)


def mlp_problem(optimizer: Callable[..., Optimizer] | None = None, **settings: Any) -> tuple[wc.Problem, Any]:
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)))
    batches = split((normal(14, 4), integers(3, 14)), [5, 5, 4])
    problem = wc.Problem(model, nn.CrossEntropyLoss(), batches)
    return problem, None if optimizer is None else optimizer(model.parameters(), **settings)


# the trial


def by_torch(case: Case, batches: list[Any], make: Callable[[Any], Optimizer], steps: int) -> list[float]:
    """The loss of every step of a torch optimizer on a copy in training mode, on the batches in turn."""
    model = copy.deepcopy(case.model).train()
    optimizer = make(model.parameters())
    losses = []
    with sdpa_kernel(SDPBackend.MATH):
        for step in range(steps):
            x, y = batches[step % len(batches)]
            loss = case.loss(model(x), y)
            losses.append(float(loss.detach()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return losses


@pytest.mark.parametrize("name", ["mlp_tanh", "cnn_batch", "transformer"])
@pytest.mark.parametrize("several", [False, True], ids=["one_batch", "uneven_batches"])
@pytest.mark.parametrize("kind", ["sgd", "adam", "default"])
def test_runs_are_those_of_the_optimizer_on_the_batches_in_turn(name: str, several: bool, kind: str) -> None:
    case = ARCHITECTURES[name]()
    batches = split(case.batch, [len(case.batch[1]) - 2, 2]) if several else [case.batch]
    settings: dict[str, Any] = {
        "sgd": {"momentum": 0.5, "weight_decay": 0.01},
        "adam": {},
        "default": {"momentum": 0.9},
    }
    make = Adam if kind == "adam" else SGD
    optimizer = None if kind == "default" else make(case.model.parameters(), lr=0.1, **settings[kind])
    trial = suggest_lr(case.problem(batches=batches), optimizer, 4).trial
    assert trial is not None
    for rate in list(trial.runs)[3:9:5]:
        expected = by_torch(case, batches, lambda p, rate=rate: make(p, lr=rate, **settings[kind]), 4)
        assert trial.runs[rate].losses == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_rates_around_the_measured_limit_lie_on_their_sides_of_it(momentum: float) -> None:
    found = suggest_lr(quadratic(3.0), steps=60, momentum=momentum)
    assert found.limit.value == pytest.approx(2 * (1 + momentum) / 3, rel=1e-6)
    assert found.trial is not None
    shares = found.trial.rates / found.limit.value
    assert shares.tolist() == pytest.approx(SHARES)
    assert torch.equal(found.trial.diverged, shares > 1)
    assert found.trial.loss == pytest.approx(6)


def test_runs_do_not_depend_on_those_before_them() -> None:
    problem, optimizer = mlp_problem(SGD, lr=0.1, momentum=0.9)
    first, again = (suggest_lr(problem, optimizer, 5).trial for _ in range(2))
    assert first == again


def test_whether_the_loss_rose_is_told_on_the_same_batches() -> None:
    """A batch that is harder than the others is no divergence."""
    x = torch.ones(4, 1).double()
    y = torch.tensor([[0.0], [0.1], [0.2], [5.0]]).double()
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    trial = suggest_lr(wc.Problem(model, nn.MSELoss(), split((x, y), [1] * 4)), steps=4, momentum=0.0).trial
    assert trial is not None
    assert trial.loss == pytest.approx(25.0)
    assert not trial.diverged[:8].any()


def test_a_rate_that_diverges_with_another_seed_has_diverged(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, _ = mlp_problem()
    usual = suggest_lr(problem, steps=5).trial
    assert usual is not None
    train = Copies.run

    def run(copies: Copies, model: Any, optimizer: Any, seed: int, progress: Any) -> Run:
        is_best = optimizer.param_groups[0]["lr"] == usual.best
        return Run([], diverged_at=1) if seed == 2 and is_best else train(copies, model, optimizer, seed, progress)

    monkeypatch.setattr(Copies, "run", run)
    other = suggest_lr(problem, steps=5).trial
    assert other is not None
    assert other.runs[usual.best].diverged_at == 1
    assert other.best != usual.best
    assert len(other.repeats) == 2


def test_the_length_is_one_pass_within_limits() -> None:
    x, y = normal(30, 1), normal(30, 1, seed=1)
    lengths = {}
    for size in (30, 1):
        problem = wc.Problem(nn.Linear(1, 1).double(), nn.MSELoss(), split((x, y), [size] * (30 // size)))
        trial = suggest_lr(problem).trial
        lengths[size] = trial.steps if trial else None
    assert lengths == {30: 20, 1: 30}


# what follows from a trial


def trial_of(finals: dict[float, float | None], repeats: tuple[float, ...] = (), loss: float = 10.0) -> RateTrial:
    runs = {lr: Run([0.0], diverged_at=2) if final is None else Run([final]) for lr, final in finals.items()}
    return RateTrial(runs, tuple(Run([final]) for final in repeats), loss, 1)


def suggested(trial: RateTrial | None, curvature: float = 1.0) -> SuggestedRate:
    """Beside a measured limit of 2/h."""
    return SuggestedRate(wc.max_lr(quadratic(curvature), 0.0), None, trial)


def test_the_best_rate_is_that_of_the_lowest_loss_that_is_not_above_the_start() -> None:
    trial = trial_of({0.1: 9.0, 1.0: 4.0, 3.0: 11.0, 9.0: None})
    assert trial.best == 1.0
    assert trial.diverged.tolist() == [False, False, True, True]
    assert math.isnan(trial_of({0.1: 11.0, 1.0: None}).best)


def test_rates_are_as_good_within_the_range_over_seeds_and_next_to_the_best() -> None:
    finals = {0.1: 4.3, 0.2: 5.0, 0.5: 4.4, 1.0: 4.0, 2.0: 4.5, 4.0: 4.6, 8.0: None}
    noisy = trial_of(finals, repeats=(3.9, 4.4))
    assert noisy.noise == pytest.approx(0.5)
    assert (noisy.low, noisy.high) == (0.5, 2.0)
    assert [line.split()[2:] for line in str(noisy).splitlines()[1:8]] == [
        [], [], ["as", "good"], ["lowest"], ["as", "good"], [], ["not", "finite", "at", "step", "2"],
    ]  # fmt: skip
    exact = trial_of(finals)
    assert exact.noise == pytest.approx(0.06)  # a hundredth of the decrease
    assert (exact.low, exact.high) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("finals", "lr", "said"),
    [
        (
            {0.5: 4.0, 1.0: 4.0, 2.0: 5.0},
            1.0,
            "Start with lr = 1: half of 2, above which the sharpest direction of the loss diverges. "
            "From 0.5 to 1 it does as well.",
        ),
        (
            {0.1: 5.0, 0.2: 4.0, 0.5: 5.0},
            0.2,
            "Start with lr = 0.2: after 1 steps the loss is lowest with it; half of what the curvature allows would "
            "be 1.",
        ),
        (
            {1.0: 5.0, 4.0: 4.0, 8.0: 4.0},
            4.0,
            "Start with lr = 4: after 1 steps the loss is lowest with it; half of what the curvature allows would be "
            "1. From 4 to 8 it does as well.",
        ),
        (
            {1.0: 5.0, 4.0: 4.01, 8.0: 4.0},
            4.0,
            "Start with lr = 4: the smallest rate with a loss as low as any after 1 steps; half of what the curvature "
            "allows would be 1. From 4 to 8 it does as well.",
        ),
        (
            {0.5: 11.0, 1.0: None},
            1.0,
            "No rate to start with: every rate tried, from 0.5 up, sends the loss up within 1 steps.",
        ),
    ],
    ids=["half of the limit", "lower than that", "higher", "the lower end", "none"],
)
def test_the_rate_and_its_reason(finals: dict[float, float | None], lr: float, said: str) -> None:
    found = suggested(trial_of(finals))
    assert found.lr == pytest.approx(lr)
    assert found.verdict() == said


def test_without_a_trial_it_is_half_of_the_limit() -> None:
    found = suggested(None)
    assert found.lr == pytest.approx(1.0)
    assert math.isnan(found.low)
    assert found.verdict().startswith("Start with lr = 1: half of 2")
    assert "sets no limit" in suggested(None, curvature=-1.0).verdict()
    with pytest.raises(OutputError, match="no trial"):
        found.figure()


def test_without_a_limit_the_best_rate_tried_is_taken() -> None:
    found = suggest_lr(quadratic(-1.0), steps=3, momentum=0.0)
    assert math.isinf(found.limit.value)
    assert found.lr == max(SHARES)


# prediction, notes, cost


def test_theory_predicts_where_it_applies_and_a_note_says_where_it_does_not() -> None:
    problem, sgd = mlp_problem(SGD, lr=0.1, momentum=0.9)
    found = suggest_lr(problem, sgd, 2)
    assert found.predicted is not None
    assert found.predicted.momentum == 0.9
    assert found.notes == ()
    for kind, settings in ((Adam, {}), (SGD, {"weight_decay": 0.1}), (SGD, {"momentum": 0.5, "nesterov": True})):
        problem, other = mlp_problem(kind, lr=0.1, **settings)
        found = suggest_lr(problem, other, 2)
        assert found.predicted is None
        assert f"not this {kind.__name__}" in found.notes[0]
        assert found.trial is not None


def test_a_model_that_cannot_be_copied_still_has_its_limit() -> None:
    problem, _ = mlp_problem()
    problem.model.kept = problem.model[0].weight * 2
    found = suggest_lr(problem, steps=2)
    assert found.trial is None
    assert "no trial" in found.notes[-1]
    assert found.lr == 0.5 * found.limit.value


def test_a_loss_that_overflows_says_at_which_layer() -> None:
    trial = suggest_lr(quadratic(1e30, dtype=torch.float32), steps=20, momentum=0.0).trial
    assert trial is not None
    last = trial.runs[max(trial.runs)]
    assert last.final is None
    assert last.cause
    assert f"not finite at step {last.diverged_at}" in str(trial)


def test_a_problem_that_is_not_finite_where_it_stands_raises() -> None:
    problem = quadratic()
    problem.model.weight.data.fill_(math.nan)
    with pytest.raises(NonFinite):
        suggest_lr(problem)


def test_batches_that_change_from_pass_to_pass_are_refused() -> None:
    data = TensorDataset(normal(6, 1), normal(6, 1, seed=1))
    loader = DataLoader(data, batch_size=2, shuffle=True)
    with pytest.raises(NotDeterministic, match="shuffle"):
        suggest_lr(wc.Problem(nn.Linear(1, 1).double(), nn.MSELoss(), loader))


def test_an_optimizer_of_another_model_is_refused() -> None:
    with pytest.raises(InvalidProblem, match="holds none of the model's trainable parameters"):
        suggest_lr(quadratic(), mlp_problem(SGD, lr=0.1)[1])


def test_passes_are_counted_as_they_are_made() -> None:
    problem, _ = mlp_problem()
    cost = suggest_lr(problem, steps=6).cost
    limit = wc.max_lr(mlp_problem()[0]).cost
    # beside those of the limit and of the prediction: a look at 3 batches, 13 rates and two repeats of two passes each
    trial = Cost(1 + 15 * 2, 15 * 2)
    assert cost.backwards == pytest.approx(limit.backwards + trial.backwards)
    assert limit.forwards + trial.forwards <= cost.forwards <= limit.forwards + trial.forwards + 1
    assert cost.matvecs == limit.matvecs


def test_rows_text_and_files_hold_the_rate_and_what_it_comes_from(tmp_path: Path) -> None:
    problem, _ = mlp_problem()
    found = suggest_lr(problem, steps=5)
    rows = {row.quantity: row.value for row in found.rows(step=3)}
    assert {row.step for row in found.rows(step=3)} == {3}
    assert len(rows) == len(found.rows())
    assert rows[SUGGESTED_LR] == found.lr
    assert rows[SUGGESTED_LR_HIGH] == found.high
    assert rows[MAX_LR] == found.limit.value
    assert rows[PREDICTED_MAX_LR] == found.predicted.max_lr
    assert rows[COST] == found.cost.u
    text = str(found)
    for part in (found.limit, found.predicted, found.trial, found.verdict()):
        assert str(part) in text
    assert "loss after 5 steps" in text
    saved = json.loads(found.save(tmp_path / "rate.json").read_text())
    assert len(saved["values"]["trial"]["runs"]) == 13
    assert found.save(tmp_path / "rate.png").read_bytes().startswith(b"\x89PNG")


# nothing changes


def test_a_failure_in_the_trial_leaves_nothing_changed() -> None:
    model, loader = build()
    optimizer = Adam(model.parameters(), lr=0.1)
    before = snapshot(model, loader)

    def progress(what: str, share: float) -> None:
        if what.startswith("trying") and share > 0.5:
            raise Boom

    with pytest.raises(Boom) as held:
        suggest_lr(wc.Problem(model, nn.CrossEntropyLoss(), loader), optimizer, 3, progress=progress)
    assert held.tb is not None
    assert_unchanged(before, snapshot(model, loader))
    assert optimizer.state_dict() == Adam(model.parameters(), lr=0.1).state_dict()


def test_progress_goes_from_the_limit_to_the_last_run() -> None:
    heard: list[tuple[str, float]] = []
    suggest_lr(mlp_problem()[0], steps=2, progress=lambda *said: heard.append(said))
    assert heard[0][1] < 0.2
    assert heard[-1][1] == pytest.approx(1)
    assert sum(what.startswith("trying lr") for what, _ in heard) == 15 * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"momentum": 1.0}, "momentum is 1.0"),
        ({"momentum": -0.1}, "momentum is -0.1"),
        ({"steps": 0}, "steps is 0"),
        ({"optimizer": SGD, "momentum": 0.9}, "momentum"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, Any], message: str) -> None:
    problem = quadratic()
    if "optimizer" in arguments:
        arguments = arguments | {"optimizer": arguments["optimizer"](problem.model.parameters(), lr=0.1)}
    with pytest.raises(ValueError, match=message):
        suggest_lr(problem, **arguments)
