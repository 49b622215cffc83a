"""`suggest_lr` against torch's optimizers on copies of the model, closed forms of quadratics, and what goes wrong."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from small_problems import losses_by_torch, problem, quadratic
from test_every_measurement import Boom, build
from torch import nn
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader, TensorDataset
from unchanged import assert_unchanged, snapshot
from zoo import ARCHITECTURES, normal, seeded, split

import wellcond as wc
from wellcond.errors import InvalidProblem, NonFinite, NotDeterministic, OutputError
from wellcond.results import Cost
from wellcond.results.quantities import COST, MAX_LR, PREDICTED_MAX_LR, SUGGESTED_LR, SUGGESTED_LR_HIGH
from wellcond.training.run import Run
from wellcond.verify.copies import Copies
from wellcond.verify.suggest_lr import SHARES, suggest_lr
from wellcond.verify.suggested_rate import RateTrial, SuggestedRate


def dense() -> wc.Problem:
    return problem(seeded(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))))


# the trial


@pytest.mark.parametrize("name", ["mlp_tanh", "cnn_batch", "transformer"])
@pytest.mark.parametrize("several", [False, True], ids=["one_batch", "uneven_batches"])
@pytest.mark.parametrize(
    ("make", "settings", "is_given"),
    [(SGD, {"momentum": 0.5, "weight_decay": 0.01}, True), (Adam, {}, True), (SGD, {"momentum": 0.9}, False)],
    ids=["sgd", "adam", "default"],
)
def test_runs_are_those_of_the_optimizer_on_the_batches_in_turn(
    name: str, several: bool, make: Any, settings: Any, is_given: bool
) -> None:
    case = ARCHITECTURES[name]()
    batches = split(case.batch, [len(case.batch[1]) - 2, 2]) if several else [case.batch]
    optimizer = make(case.model.parameters(), lr=0.1, **settings) if is_given else None
    trial = suggest_lr(case.problem(batches=batches), optimizer, 4).trial
    assert trial is not None
    for rate in list(trial.runs)[3:9:5]:
        model = copy.deepcopy(case.model)
        expected = losses_by_torch(model, make(model.parameters(), lr=rate, **settings), 4, batches, case.loss)
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


def test_whether_the_loss_rose_is_told_on_the_same_batches() -> None:
    """A batch that is harder than the others is no divergence."""
    x, y = torch.ones(4, 1).double(), torch.tensor([[0.0], [0.1], [0.2], [5.0]]).double()
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    trial = suggest_lr(wc.Problem(model, nn.MSELoss(), split((x, y), [1] * 4)), steps=4, momentum=0.0).trial
    assert trial is not None
    assert trial.loss == pytest.approx(25.0)
    assert not trial.diverged[:8].any()


def test_a_rate_that_diverges_with_another_seed_has_diverged(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = suggest_lr(dense(), steps=5).trial
    assert usual is not None
    train = Copies.run

    def run(copies: Copies, model: Any, optimizer: Any, seed: int, progress: Any) -> Run:
        is_best = optimizer.param_groups[0]["lr"] == usual.best
        return Run([], diverged_at=1) if seed == 2 and is_best else train(copies, model, optimizer, seed, progress)

    monkeypatch.setattr(Copies, "run", run)
    other = suggest_lr(dense(), steps=5).trial
    assert other is not None
    assert other.runs[usual.best].diverged_at == 1
    assert other.best != usual.best
    assert len(other.repeats) == 2
    monkeypatch.setattr(Copies, "run", lambda *_: Run([], diverged_at=1))
    none = suggest_lr(dense(), steps=5).trial
    assert none is not None
    assert math.isnan(none.best)
    assert none.repeats == ()


@pytest.mark.parametrize(("count", "steps"), [(1, 20), (30, 30)])
def test_the_length_is_one_pass_within_limits(count: int, steps: int) -> None:
    batches = split((normal(30, 1), normal(30, 1, seed=1)), [30 // count] * count)
    trial = suggest_lr(wc.Problem(nn.Linear(1, 1).double(), nn.MSELoss(), batches)).trial
    assert trial is not None
    assert trial.steps == steps


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
    none = trial_of({0.1: 11.0, 1.0: None})
    assert math.isnan(none.best)
    assert math.isnan(none.low)


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


HALF = "Start with lr = 1: half of 2, above which the sharpest direction of the loss diverges."
VERDICTS: dict[str, tuple[dict[float, float | None] | None, float, str]] = {
    "half of the limit": ({0.5: 4.0, 1.0: 4.0, 2.0: 5.0}, 1.0, f"{HALF} From 0.5 to 1 it does as well."),
    "lower than that": (
        {0.1: 5.0, 0.2: 4.0, 0.5: 5.0},
        0.2,
        "Start with lr = 0.2: after 1 steps the loss is lowest with it; half of what the curvature allows would be 1.",
    ),
    "higher": (
        {1.0: 5.0, 4.0: 4.0, 8.0: 4.0},
        4.0,
        "Start with lr = 4: after 1 steps the loss is lowest with it; half of what the curvature allows would be 1. "
        "From 4 to 8 it does as well.",
    ),
    "the lower end": (
        {1.0: 5.0, 4.0: 4.01, 8.0: 4.0},
        4.0,
        "Start with lr = 4: the smallest rate with a loss as low as any after 1 steps; half of what the curvature "
        "allows would be 1. From 4 to 8 it does as well.",
    ),
    "none": (
        {0.5: 11.0, 1.0: None},
        1.0,
        "No rate to start with: every rate tried, from 0.5 up, sends the loss up within 1 steps.",
    ),
    "no trial": (None, 1.0, HALF),
}


@pytest.mark.parametrize(("finals", "lr", "said"), VERDICTS.values(), ids=VERDICTS)
def test_the_rate_and_its_reason(finals: dict[float, float | None] | None, lr: float, said: str) -> None:
    found = suggested(None if finals is None else trial_of(finals))
    assert found.lr == pytest.approx(lr)
    assert found.verdict() == said


def test_without_a_limit_the_best_rate_tried_is_taken() -> None:
    found = suggest_lr(quadratic(-1.0), steps=3, momentum=0.0)
    assert math.isinf(found.limit.value)
    assert found.lr == max(SHARES)
    untried = suggested(None, curvature=-1.0)
    assert "sets no limit" in untried.verdict()
    assert math.isnan(untried.low)
    with pytest.raises(OutputError, match="no trial"):
        untried.figure()


# prediction, notes, cost


def test_theory_predicts_where_it_applies_and_a_note_says_where_it_does_not() -> None:
    given = dense()
    found = suggest_lr(given, SGD(given.model.parameters(), lr=0.1, momentum=0.9), 2)
    assert found.predicted is not None
    assert found.predicted.momentum == 0.9
    assert found.notes == ()
    params = list(given.model.parameters())
    others = [
        Adam(params), SGD(params, 0.1, weight_decay=0.1), SGD(params, 0.1, momentum=0.5, nesterov=True),
        SGD([{"params": params[:2], "lr": 0.01}, {"params": params[2:]}], lr=0.1),
    ]  # fmt: skip
    for other in others:
        found = suggest_lr(given, other, 2)
        assert found.predicted is None
        assert f"not this {type(other).__name__}" in found.notes[0]
        assert found.trial is not None


def test_a_model_that_cannot_be_copied_still_has_its_limit() -> None:
    given = dense()
    given.model.kept = given.model[0].weight * 2
    found = suggest_lr(given, steps=2)
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


def test_progress_and_passes_are_those_of_the_limit_the_prediction_and_the_runs() -> None:
    heard: list[tuple[str, float]] = []
    cost = suggest_lr(dense(), steps=6, progress=lambda *said: heard.append(said)).cost
    limit = wc.max_lr(dense()).cost
    # beside those of the limit and of the prediction: a look at 3 batches, 13 rates and two repeats of two passes each
    trial = Cost(1 + 15 * 2, 15 * 2)
    assert cost.backwards == pytest.approx(limit.backwards + trial.backwards)
    assert limit.forwards + trial.forwards <= cost.forwards <= limit.forwards + trial.forwards + 1
    assert cost.matvecs == limit.matvecs
    assert heard[0][1] < 0.2
    assert heard[-1][1] == pytest.approx(1)
    assert sum(what.startswith("trying lr") for what, _ in heard) == 15 * 6


def test_rows_text_and_picture_hold_the_rate_and_what_it_comes_from() -> None:
    found = suggest_lr(dense(), steps=5)
    rows = {row.quantity: row.value for row in found.rows(step=3)}
    assert {row.step for row in found.rows(step=3)} == {3}
    assert len(rows) == len(found.rows())
    assert found.predicted is not None
    expected = {
        SUGGESTED_LR: found.lr, SUGGESTED_LR_HIGH: found.high, MAX_LR: found.limit.value,
        PREDICTED_MAX_LR: found.predicted.max_lr, COST: found.cost.u,
    }  # fmt: skip
    assert rows.items() >= expected.items()
    text = str(found)
    for part in (found.limit, found.predicted, found.trial, found.verdict(), "loss after 5 steps"):
        assert str(part) in text
    names = {text.get_text().partition(":")[0] for text in found.figure().legends[0].get_texts()}
    assert names >= {"largest rate, measured", "start with", "largest rate, predicted"}
    untried, predicted = replace(found, trial=None).figure(), found.predicted.figure()
    assert [axes.get_title() for axes in untried.axes] == [axes.get_title() for axes in predicted.axes]


# nothing changes, and what is refused


def test_a_failure_in_the_trial_leaves_nothing_changed() -> None:
    model, loader = build()
    optimizer = Adam(model.parameters(), lr=0.1)
    before = snapshot(model, loader.generator)

    def progress(what: str, share: float) -> None:
        if what.startswith("trying") and share > 0.5:
            raise Boom

    with pytest.raises(Boom) as held:
        suggest_lr(wc.Problem(model, nn.CrossEntropyLoss(), loader), optimizer, 3, progress=progress)
    assert held.tb is not None
    assert_unchanged(before, snapshot(model, loader.generator))
    assert optimizer.state_dict() == Adam(model.parameters(), lr=0.1).state_dict()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"momentum": 1.0}, "momentum is 1.0"),
        ({"momentum": -0.1}, "momentum is -0.1"),
        ({"steps": 0}, "steps is 0"),
        ({"momentum": 0.9, "optimizer": SGD([torch.zeros(1)], 0.1)}, "momentum"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        suggest_lr(quadratic(), **arguments)


def test_what_cannot_be_measured_is_refused() -> None:
    given = quadratic()
    with pytest.raises(InvalidProblem, match="holds none of the model's trainable parameters"):
        suggest_lr(given, SGD(dense().model.parameters(), lr=0.1))
    given.model.weight.data.fill_(math.nan)
    with pytest.raises(NonFinite):
        suggest_lr(given)
    loader = DataLoader(TensorDataset(normal(6, 1), normal(6, 1, seed=1)), batch_size=2, shuffle=True)
    with pytest.raises(NotDeterministic, match="shuffle"):
        suggest_lr(wc.Problem(nn.Linear(1, 1).double(), nn.MSELoss(), loader))
