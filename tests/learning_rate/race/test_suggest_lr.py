"""`suggest_lr` against torch's optimizers on copies of the model, closed forms of quadratics, and what goes wrong."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch
from small_problems import problem, quadratic
from test_every_measurement import Boom, build
from torch import nn, optim
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset
from unchanged import assert_unchanged, snapshot
from zoo import normal, seeded

import wellcond as wc
from wellcond.errors import InvalidProblem, NonFinite, OutputError
from wellcond.learning_rate.race.outcome import Race
from wellcond.learning_rate.race.race import race
from wellcond.learning_rate.race.suggest_lr import planned_steps, suggest_lr
from wellcond.learning_rate.race.suggested_rate import SuggestedRate
from wellcond.results import Cost
from wellcond.results.quantities import COST, MAX_LR, PREDICTED_MAX_LR, SUGGESTED_LR, SUGGESTED_LR_HIGH
from wellcond.training.copy_run import CopyRun
from wellcond.training.copy_trainer import MEASURED_STEPS, CopyTrainer


def dense() -> wc.Problem:
    return problem(seeded(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))))


def raced(suggested: SuggestedRate) -> Race:
    assert suggested.race is not None
    return suggested.race


@pytest.mark.slow
def test_an_optimizer_under_bnp_is_raced_under_bnp() -> None:
    plain, of = dense(), dense()
    optimizer = SGD(of.model.parameters(), lr=0.1)
    wc.BNP(of.model, optimizer)
    suggested = suggest_lr(of, optimizer, steps=30)
    assert 0 < suggested.lr < math.inf
    assert raced(suggested).runs != raced(suggest_lr(plain, SGD(plain.model.parameters(), lr=0.1), steps=30)).runs


# closed forms


@pytest.mark.parametrize("curvature", [1e-4, 1.0, 1e4])
def test_on_a_quadratic_the_rate_is_about_one_over_the_curvature(curvature: float) -> None:
    """w ← (1 − ηh) w: the loss is 0 after one step with η = 1/h, and falls at all up to 2/h."""
    suggested = suggest_lr(quadratic(curvature), steps=50, momentum=0.0)
    assert 0.6 < suggested.lr * curvature < 1.6
    assert suggested.limit is not None
    assert suggested.limit.value == pytest.approx(2 / curvature, rel=1e-6)
    assert suggested.largest_trained <= 2.0001 / curvature < suggested.smallest_diverged  # 2/h itself stays where it is
    assert suggested.low <= suggested.lr <= suggested.high


def noisy(count: int = 512) -> wc.Problem:
    """½ (w − ξ)² from w = 3, one ξ of variance 1 at a time."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, 3.0)
    xi = normal(count, 1)
    loader = DataLoader(TensorDataset(torch.ones(count, 1).double(), (xi - xi.mean()) / xi.std()), 1, shuffle=True)
    return wc.Problem(model, lambda f, y: 0.5 * (f - y).square().mean(), loader)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [400, 2000])
def test_with_noise_the_rate_is_as_good_as_the_best_of_its_closed_form(steps: int) -> None:
    """E w² ← (1 − η)² E w² + η² σ², and the loss is ½ (E w² + σ²); here the mean of the last tenth."""

    def final(lr: float) -> float:
        square, losses = 9.0, []
        for _ in range(steps):
            losses.append(0.5 * (square + 1))
            square = (1 - lr) ** 2 * square + lr**2
        return sum(losses[-steps // 10 :]) / (steps // 10)

    suggested = suggest_lr(noisy(), steps=steps, momentum=0.0)
    best = min(final(10 ** (k / 20)) for k in range(-80, 5))
    assert final(suggested.lr) < 1.1 * best


@pytest.mark.slow
def test_a_longer_run_gets_a_smaller_rate() -> None:
    rates = [suggest_lr(noisy(), steps=steps, momentum=0.0).lr for steps in (150, 1000, 5000)]
    assert rates[0] >= rates[1] >= rates[2]
    assert rates[0] > rates[2]


# every optimizer, and the same again

OPTIMIZERS = {
    name: kind
    for name, kind in vars(optim).items()
    if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_of_torch_gets_a_rate_that_lowers_the_loss(name: str) -> None:
    x, y = normal(24, 4), normal(24, 2, seed=1)
    model: nn.Module = seeded(lambda: nn.Linear(4, 2, bias=False))
    if name == "SparseAdam":
        model = seeded(lambda: nn.Embedding(5, 2, sparse=True).double())
        x = torch.arange(24) % 5
    of = wc.Problem(model, nn.MSELoss(), [(x, y)])
    optimizer = OPTIMIZERS[name](model.parameters())
    before = str(optimizer.state_dict())
    suggested = suggest_lr(of, optimizer, steps=30)
    assert 0 < suggested.lr < math.inf
    assert str(optimizer.state_dict()) == before
    losses = CopyTrainer(of, optimizer).start(suggested.lr).run(30).losses
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_a_seed_fixes_the_rate_whatever_the_state_of_the_generators() -> None:
    suggested = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        data = TensorDataset(normal(40, 4), normal(40, 4)[:, :2])
        loader = DataLoader(data, 8, shuffle=True, generator=torch.Generator().manual_seed(seed))
        model = nn.Sequential(seeded(lambda: nn.Linear(4, 8).double()), nn.Dropout(0.2), nn.Linear(8, 2).double())
        for p in model.parameters():
            nn.init.constant_(p, 0.1)
        suggested.append(suggest_lr(wc.Problem(model, nn.MSELoss(), loader), SGD(model.parameters(), 0.1), steps=60))
    assert suggested[0].lr == suggested[1].lr
    assert raced(suggested[0]).runs == raced(suggested[1]).runs


@pytest.mark.slow
def test_losses_below_zero_are_raced_too() -> None:
    """The mean negative log-density of a narrow Gaussian, whose mean is learned."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, 0.5)
    x = torch.ones(4, 1).double()
    suggested = suggest_lr(wc.Problem(model, lambda f, y: 50 * (f - y).square().mean() - 3, (x, 0 * x)), momentum=0.0)
    assert 0.004 < suggested.lr < 0.02  # H = 100


# what it says


@pytest.mark.slow
def test_the_steps_of_all_runs_are_limited_and_counted_in_mini_batches() -> None:
    x, y = normal(256, 4), normal(256, 2, seed=1)
    loader = DataLoader(TensorDataset(x, y), 16, shuffle=True)
    model = seeded(lambda: nn.Linear(4, 2).double())
    suggested = suggest_lr(wc.Problem(model, nn.MSELoss(), loader), Adam(model.parameters()))
    assert raced(suggested).steps_taken == sum(len(run.losses) for run in raced(suggested).runs.values())
    assert 450 < suggested.cost.u <= planned_steps(1000) == 500
    small = suggest_lr(wc.Problem(model, nn.MSELoss(), loader), Adam(model.parameters()), max_steps=100)
    assert small.cost.u <= 110
    assert planned_steps(50_000) == 2500


@pytest.mark.slow
def test_rows_text_and_picture_hold_the_rate_and_what_it_comes_from() -> None:
    suggested = suggest_lr(dense(), steps=30)
    rows = {row.quantity: row.value for row in suggested.rows(step=3)}
    assert {row.step for row in suggested.rows(step=3)} == {3}
    assert suggested.predicted is not None
    assert suggested.limit is not None
    expected = {
        SUGGESTED_LR: suggested.lr, SUGGESTED_LR_HIGH: suggested.high, MAX_LR: suggested.limit.value,
        PREDICTED_MAX_LR: suggested.predicted.max_lr, COST: suggested.cost.u,
    }  # fmt: skip
    assert rows.items() >= expected.items()
    assert " ".join(str(suggested).split()).startswith(suggested.verdict())
    assert list(suggested.theory.values()) == [suggested.limit, suggested.predicted]
    assert f"lr = {suggested.lr:.3g}" in suggested.verdict()
    labels = [text.get_text() for text in suggested.figure().legends[0].get_texts()]
    assert any(label.startswith("limit of the curvature") for label in labels)
    untried = replace(suggested, race=None)
    assert untried.lr == 0.5 * suggested.limit.value
    assert [axes.get_title() for axes in untried.figure().axes] == [
        axes.get_title() for axes in suggested.predicted.figure().axes
    ]
    with pytest.raises(OutputError, match="nothing to draw"):
        replace(untried, predicted=None).figure()


@pytest.mark.slow
def test_progress_goes_up_to_one() -> None:
    shares: list[float] = []
    suggest_lr(dense(), steps=60, progress=lambda _what, share: shares.append(share))
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert 0.9 < shares[-1] <= 1


@pytest.mark.slow
def test_without_curvature_the_race_begins_at_the_optimizers_own_rate() -> None:
    x, y = torch.arange(40).reshape(10, 4) % 7, normal(10, 2)
    model = seeded(lambda: nn.EmbeddingBag(7, 2).double())  # it has no second derivative
    suggested = suggest_lr(wc.Problem(model, nn.MSELoss(), [(x, y)]), SGD(model.parameters(), lr=1e-3), steps=40)
    assert suggested.limit is None
    assert "no limit from the curvature" in suggested.notes[0]
    assert min(raced(suggested).runs) < 1e-3 < suggested.lr


# schedules, held-out batches, and networks that no rate trains


def classifier(batch: int = 16) -> tuple[nn.Module, DataLoader[Any]]:
    x = normal(256, 6)
    y = (x[:, 0] + 0.3 * x[:, 1] > 0).long()
    model = seeded(lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2)).double())
    return model, DataLoader(TensorDataset(x, y), batch, shuffle=True)


@pytest.mark.slow
def test_under_a_schedule_each_run_follows_it_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    model, loader = classifier()
    optimizer = SGD(model.parameters(), lr=0.02, momentum=0.9)
    rates: dict[int, list[float]] = {}
    step = CopyRun.step

    def noted(run: CopyRun, batch: Any) -> None:
        step(run, batch)
        rates.setdefault(id(run), []).append(run.optimizer.param_groups[0]["lr"])

    monkeypatch.setattr(CopyRun, "step", noted)
    of = wc.Problem(model, nn.CrossEntropyLoss(), loader)
    suggested = suggest_lr(of, optimizer, steps=300, scheduler=lambda o: OneCycleLR(o, 0.5, total_steps=300))
    assert raced(suggested).own == 0.5  # its highest rate
    assert suggested.cost.u <= 500
    for run in rates.values():
        if len(run) > 20:
            assert max(run) == pytest.approx(max(raced(suggested).runs, key=lambda lr: -abs(lr - max(run))), rel=0.02)
            assert run[0] < 0.1 * max(run)
            assert run[-1] < 0.05 * max(run)
    assert "initial_lr" not in optimizer.param_groups[0]


@pytest.mark.slow
def test_finished_runs_are_judged_on_held_out_batches() -> None:
    model, loader = classifier()
    x = normal(64, 6, seed=5)
    held_out = [(x, (x[:, 0] + 0.3 * x[:, 1] > 0).long())]
    optimizer = SGD(model.parameters(), lr=0.01)
    of = wc.Problem(model, nn.CrossEntropyLoss(), loader)
    suggested = suggest_lr(of, optimizer, steps=200, validation=held_out)
    assert raced(suggested).held_out.keys() == raced(suggested).finished.keys()
    assert "held-out loss" in str(suggested)
    lowest = min(raced(suggested).held_out, key=lambda lr: raced(suggested).held_out[lr][0])
    assert suggested.low / 3 < lowest < suggested.high * 3


@pytest.mark.slow
def test_where_no_rate_beats_a_constant_none_is_suggested() -> None:
    def deep() -> nn.Sequential:
        layers = [layer for _ in range(7) for layer in (nn.Linear(6, 6), nn.Sigmoid())]
        return nn.Sequential(*layers, nn.Linear(6, 2)).double()

    model = seeded(deep)
    nn.init.constant_(model[-1].bias[:1], 2.0)  # it begins above a constant, which its biases learn
    _, loader = classifier()
    suggested = suggest_lr(wc.Problem(model, nn.CrossEntropyLoss(), loader), SGD(model.parameters(), lr=0.1))
    assert math.isnan(suggested.lr)
    assert "the same for all inputs" in suggested.verdict()
    assert "diagnose" in suggested.verdict()


def test_outputs_that_differ_from_input_to_input_are_not_those_of_a_constant() -> None:
    model, loader = classifier()
    trainer = CopyTrainer(wc.Problem(model, nn.CrossEntropyLoss(), loader), SGD(model.parameters(), lr=0.1))
    run = trainer.start()
    constant = run.best_constant([trainer.batch])
    assert constant is not None
    assert constant.loss_if_outputs_agree() is None
    for parameter in list(run.model.parameters())[2:3]:  # weights of the last layer
        nn.init.zeros_(parameter)
    labels = trainer.batch[1].bincount().double() / len(trainer.batch[1])
    constant = run.best_constant([trainer.batch])
    assert constant is not None
    assert constant.loss_if_outputs_agree() == pytest.approx(float(-(labels * labels.log()).sum()))


@pytest.mark.slow
def test_no_rate_trains_where_all_stay_above_the_best_constant_though_outputs_differ() -> None:
    torch.manual_seed(0)
    x = torch.stack([500 + 2000 * torch.rand(512), 1e5 * torch.rand(512), 100 * torch.rand(512)], 1)
    prices = 200 * x[:, :1] - 500 * x[:, 2:] + 1e4 * torch.randn(512, 1)
    model = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    loader = DataLoader(TensorDataset(x, prices), 32, shuffle=True)
    suggested = suggest_lr(wc.Problem(model, nn.MSELoss(), loader), SGD(model.parameters(), lr=0.01))
    assert math.isnan(suggested.lr)
    assert suggested.verdict().startswith("No rate trains: of those raced")
    assert "the best constant prediction has" in suggested.verdict()
    assert "(unscaled-input)" in suggested.verdict()
    assert "(unscaled-target)" in suggested.verdict()
    assert suggested.cost.u <= planned_steps(1000)
    assert suggested.race is not None
    variance = float(prices.var(correction=0))
    assert min(run.losses[-1] for run in suggested.race.finished.values()) > 1.2 * variance
    standardized = TensorDataset((x - x.mean(0)) / x.std(0), (prices - prices.mean()) / prices.std())
    sound = wc.Problem(model, nn.MSELoss(), DataLoader(standardized, 32, shuffle=True))
    assert suggest_lr(sound, SGD(model.parameters(), lr=0.01)).lr > 1e-3


def test_the_loss_of_a_constant_needs_more_examples_than_it_has_entries() -> None:
    model, loader = classifier()
    trainer = CopyTrainer(wc.Problem(model, nn.CrossEntropyLoss(), loader), SGD(model.parameters(), lr=0.1))
    run, (x, y) = trainer.start(), trainer.batch
    labels = y.bincount().double() / len(y)
    many, few = run.best_constant([(x, y)] * 10), run.best_constant([(x[:5], y[:5])])
    assert many is not None
    assert many.loss_of_many() == pytest.approx(float(torch.special.entr(labels).sum()))
    assert few is not None
    assert few.loss_of_many() is None


def test_a_constant_is_asked_twice_and_the_batches_pass_once() -> None:
    model, loader = classifier()
    trainer = CopyTrainer(wc.Problem(model, nn.CrossEntropyLoss(), loader), SGD(model.parameters(), lr=0.1))
    run, before = trainer.start(), trainer.cost
    constant = run.best_constant([trainer.batch] * 3)
    assert constant is not None
    assert constant.loss_if_outputs_agree() is None
    assert constant.loss_of_many() is not None
    assert trainer.cost - before == Cost(forwards=3)


@pytest.mark.slow
def test_the_own_rate_is_raced_to_the_end_and_groups_keep_their_proportions() -> None:
    model, loader = classifier()
    groups = [{"params": model[0].parameters(), "lr": 0.03}, {"params": model[2].parameters(), "lr": 0.3}]  # type: ignore[index]
    suggested = suggest_lr(wc.Problem(model, nn.CrossEntropyLoss(), loader), SGD(groups, lr=0.1), steps=200)
    assert raced(suggested).own == 0.3
    assert 0.3 in raced(suggested).finished


@pytest.mark.slow
def test_rates_do_not_depend_on_the_number_of_threads_beyond_rounding() -> None:
    model, loader = classifier()
    optimizer, before, rates = Adam(model.parameters(), lr=1e-3), torch.get_num_threads(), []
    try:
        for threads in (1, 4):
            torch.set_num_threads(threads)
            rates.append(suggest_lr(wc.Problem(model, nn.CrossEntropyLoss(), loader), optimizer, steps=300).lr)
    finally:
        torch.set_num_threads(before)
    assert rates[0] == pytest.approx(rates[1], rel=1e-6)


# what goes wrong


@pytest.mark.slow
def test_a_model_that_cannot_be_copied_still_has_its_limit() -> None:
    of = dense()
    of.model.stored = of.model[0].weight * 2
    suggested = suggest_lr(of, steps=2)
    assert suggested.race is None
    assert "no race" in suggested.notes[-1]
    assert suggested.limit is not None
    assert suggested.lr == 0.5 * suggested.limit.value


def test_a_loss_not_finite_before_any_step_means_no_rate_trains() -> None:
    of = quadratic()
    of.model.weight.data.fill_(math.nan)
    with pytest.raises(NonFinite, match="no rate trains"):
        suggest_lr(of)


def test_a_loss_that_every_step_makes_infinite_says_that_no_rate_trains() -> None:
    def ends(run: CopyRun, _batch: Any) -> None:
        run.diverged_at, run.cause = 1, "the loss is inf"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CopyRun, "step", ends)
        outcome = race(CopyTrainer(quadratic()), steps=20)
    assert math.isnan(outcome.lr)
    assert outcome.smallest_diverged == min(outcome.runs)
    assert SuggestedRate(None, None, outcome).verdict().startswith("No rate trains: of those raced")
    assert "the loss is inf" in SuggestedRate(None, None, outcome).verdict()


@pytest.mark.slow
@pytest.mark.parametrize("error", [Boom, torch.OutOfMemoryError])
def test_a_failure_in_the_race_leaves_nothing_changed(error: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, loader = build()
    optimizer = Adam(model.parameters(), lr=0.1)
    before = snapshot(model, loader.generator)
    step, calls = CopyRun.step, count()

    def failing(run: CopyRun, batch: Any) -> None:
        if next(calls) > 30:
            raise error
        step(run, batch)

    monkeypatch.setattr(CopyRun, "step", failing)
    with pytest.raises(error):
        suggest_lr(wc.Problem(model, nn.CrossEntropyLoss(), loader), optimizer)
    assert_unchanged(before, snapshot(model, loader.generator))
    assert optimizer.state_dict() == Adam(model.parameters(), lr=0.1).state_dict()


@pytest.mark.parametrize("after", [3, 60, 200])
def test_an_interrupt_gives_what_is_known(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, loader = build()
    before = snapshot(model, loader.generator)
    step, calls = CopyRun.step, count()

    def interrupted(run: CopyRun, batch: Any) -> None:
        if next(calls) >= MEASURED_STEPS + after:
            raise KeyboardInterrupt
        step(run, batch)

    monkeypatch.setattr(CopyRun, "step", interrupted)
    with pytest.raises(wc.Interrupted) as interrupt:
        suggest_lr(wc.Problem(model, nn.CrossEntropyLoss(), loader), Adam(model.parameters()))
    partial = interrupt.value.result
    assert isinstance(partial, SuggestedRate)
    assert partial.status == "interrupted"
    assert 0 < partial.lr < math.inf
    assert sum(len(run.losses) for run in raced(partial).runs.values()) == after
    assert partial.verdict()
    assert_unchanged(before, snapshot(model, loader.generator))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"momentum": 1.0}, "momentum is 1.0"),
        ({"momentum": -0.1}, "momentum is -0.1"),
        ({"steps": 0}, "steps is 0"),
        ({"max_steps": 3}, "max_steps is 3"),
        ({"momentum": 0.9, "optimizer": SGD([torch.zeros(1)], 0.1)}, "momentum"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        suggest_lr(quadratic(), **arguments)


def test_an_optimizer_of_another_model_is_refused() -> None:
    with pytest.raises(InvalidProblem, match="holds none of the model's trainable parameters"):
        suggest_lr(quadratic(), SGD(dense().model.parameters(), lr=0.1))
