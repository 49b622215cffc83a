"""`treat`: what all runs have in common, which arms there are, and what it does with those that fail."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from suites import assert_progress_rises
from test_every_measurement import Boom, build
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader, TensorDataset
from unchanged import assert_unchanged, snapshot
from zoo import CLASSES, integers, normal, seeded, split

import wellcond as wc
from wellcond.diagnosis.finding import Finding
from wellcond.errors import InvalidProblem, NonFinite, Unsupported
from wellcond.remedies.remedy import REMEDIES, remedy
from wellcond.remedies.setup import Setup
from wellcond.results.run import Run
from wellcond.treatment.arm import Arm
from wellcond.treatment.arm_job import ArmJob
from wellcond.treatment.comparison import Comparison
from wellcond.treatment.conditions import conditions_of
from wellcond.treatment.launching.processes import Processes, _Worker
from wellcond.treatment.treat import treat
from wellcond.treatment.treatment import TOGETHER, Treatment

BATCHES = split((normal(14, 4), integers(CLASSES, 14)), [5, 5, 4])


def network() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, CLASSES)))


def classification(model: nn.Module | None = None, batches: Any = BATCHES, loss: Any = None) -> wc.Problem:
    return wc.Problem(model or network(), loss or nn.CrossEntropyLoss(), batches)


def short(problem: wc.Problem, *remedies: str, steps: int = 3, **options: Any) -> Treatment:
    """With one seed, unless others are asked for."""
    return treat(problem, steps=steps, remedies=remedies, **{"seeds": [0]} | options)


def runs_of(treatment: Treatment, name: str = "untreated") -> dict[int, Run]:
    (runs,) = treatment.arms[name].runs.values()
    return runs


# the untreated network


def test_the_untreated_network_is_the_users_optimizer_as_it_is() -> None:
    model = network().train()
    optimizer = Adam(model.parameters(), lr=0.02)
    for x, y in BATCHES:  # so that it has a state
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    runs = runs_of(short(classification(model), optimizer=optimizer, steps=5))
    pairs = dict(zip(map(id, model.parameters()), (own := copy.deepcopy(model)).parameters(), strict=True))
    twin = copy.deepcopy(optimizer, pairs)
    expected = []
    for step in range(5):
        x, y = BATCHES[step % 3]
        loss = F.cross_entropy(own(x), y)
        expected.append(float(loss.detach()))
        twin.zero_grad()
        loss.backward()
        twin.step()
    torch.testing.assert_close(torch.tensor(runs[0].losses), torch.tensor(expected), rtol=1e-12, atol=0.0)


def test_without_an_optimizer_it_is_sgd_at_the_rate_of_a_race() -> None:
    result = short(classification(), steps=10)
    assert result.untreated.best_lr is not None
    assert (
        result.code
        == f"optimizer = torch.optim.SGD(model.parameters(), lr={result.untreated.best_lr:.3g}, momentum=0.9)"
    )
    assert "rate" not in result.arms


# the same for all


def dropping() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, CLASSES)))


@pytest.mark.slow
def test_arms_see_the_same_batches_and_the_same_dropout() -> None:
    loader = DataLoader(TensorDataset(normal(14, 4), integers(CLASSES, 14)), batch_size=4, shuffle=True)
    model = dropping()
    options = {"optimizer": SGD(model.parameters(), 1e-300), "steps": 9, "seeds": [0, 1]}
    result = short(classification(model, loader), "adam", "bnp", **options)
    by_seed = [runs_of(result)[seed].losses for seed in (0, 1)]
    assert by_seed[0] != by_seed[1]
    assert len(set(by_seed[0])) == 9  # a batch that comes again meets other masks
    assert [runs_of(short(classification(model, loader), **options))[seed].losses for seed in (0, 1)] == by_seed
    for name in ("adam", "bnp"):  # before their first steps the networks are the same
        assert [runs_of(result, name)[seed].losses[0] for seed in (0, 1)] == [losses[0] for losses in by_seed]


@pytest.mark.slow
def test_all_arms_have_the_same_number_of_steps_and_cost_is_what_was_made() -> None:
    model = network()
    forwards: list[int] = []
    model.register_forward_hook(lambda *_: forwards.append(1))
    result = short(classification(model), "rate", "adam", optimizer=SGD(model.parameters(), 0.1), steps=6, seeds=[0, 1])
    for name in ("untreated", "rate", "adam"):
        assert {len(run.losses) for run in runs_of(result, name).values()} == {6}
    assert result.cost.backwards <= len(forwards)
    assert result.cost.backwards >= 3 * 2 * 6


def test_of_one_batch_without_anything_random_one_seed_says_it_all() -> None:
    result = short(classification(seeded(lambda: nn.Sequential(nn.Linear(4, CLASSES))), BATCHES[0]), seeds=[4, 5, 6])
    assert result.seeds == (4,)
    assert "every seed gives the same run" in result.notes[0]


# which arms


def sigmoid_before_cross_entropy() -> tuple[wc.Problem, Any]:
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, CLASSES), nn.Softmax(-1)))
    x = normal(60, 4)
    batches = split((x, x[:, :CLASSES].argmax(1)), [20, 20, 20])
    return classification(model, batches), Adam(model.parameters(), lr=1e-3)


@pytest.fixture(scope="module")
def screened() -> Treatment:
    problem, optimizer = sigmoid_before_cross_entropy()
    finding = Finding(
        rule="output-loss-mismatch",
        layer="3",
        severity="severe",
        summary="",
        evidence={},
        reason="",
        remedy="",
    )
    reports: list[tuple[str, float]] = []
    result = treat(
        problem, optimizer, steps=40, seeds=[0, 1], findings=[finding], progress=lambda *s: reports.append(s)
    )
    assert_progress_rises(reports)
    assert any(what.startswith("logits: race") for what, _ in reports)
    assert reports[0][0].startswith(f"at most {result.planned:,.0f} training steps, about ")
    return result


@pytest.mark.slow
def test_it_takes_no_more_than_it_planned(screened: Treatment) -> None:
    assert screened.cost.u <= screened.planned


@pytest.mark.slow
def test_the_right_remedy_wins_and_says_who_proposed_it(screened: Treatment) -> None:
    assert screened.best is not None
    assert "logits" in screened.best.name.split(TOGETHER)
    assert "output-loss-mismatch" in screened.best.found_by
    assert 'model.set_submodule("3", nn.Identity())' in screened.code
    assert screened.helps(screened.best)


@pytest.mark.slow
def test_a_random_remedy_is_among_the_arms_and_the_rate_alone_too(screened: Treatment) -> None:
    assert screened.random is not None
    assert screened.random.runs
    assert screened.random.found_by == ()
    assert screened.arms["rate"].runs
    trained = [arm for arm in screened.arms.values() if arm.runs]
    assert 4 <= len(trained) <= 7
    assert all(sorted(seeds) == [0, 1] for arm in trained for seeds in [arm.runs[arm.best_lr]] if arm.best_lr)
    assert trained[0] is screened.untreated
    assert len(screened.figure().axes[0].lines) >= len(trained) - 1


@pytest.mark.slow
def test_what_went_no_further_has_its_screening(screened: Treatment) -> None:
    others = [arm for arm in screened.arms.values() if not arm.runs and arm.refused is None]
    assert {"he-init", "bnp"} & {arm.name for arm in others}
    assert all(arm.screened is not None and arm.screened > 0 for arm in others)
    assert any(TOGETHER in name for name in screened.arms)


@pytest.mark.slow
def test_without_findings_the_network_is_diagnosed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(Comparison, "screen", lambda _self, findings: seen.append(findings))
    monkeypatch.setattr(Comparison, "train_finalists", lambda _self: None)
    problem, optimizer = sigmoid_before_cross_entropy()
    result = treat(problem, optimizer, steps=3, seeds=[0])
    assert "output-loss-mismatch" in {finding.rule for finding in seen[0]}
    assert result.cost.u > 3


@pytest.mark.slow
def test_where_nothing_helps_it_says_so() -> None:
    """A least-squares fit that is at its minimum."""
    model = nn.Linear(4, 1).double()
    x = normal(40, 4)
    y = x.sum(1, keepdim=True) + normal(40, 1, seed=1)
    whole = torch.cat([x, torch.ones(40, 1, dtype=torch.float64)], 1)
    solution = torch.linalg.lstsq(whole, y).solution
    model.weight.data, model.bias.data = solution[:4].T.contiguous(), solution[4]
    problem = wc.Problem(model, nn.MSELoss(), (x, y))
    result = short(problem, "rate", "adam", "bnp", optimizer=SGD(model.parameters(), 1e-3), steps=20)
    assert result.best is result.untreated
    assert result.verdict().startswith("None of these helps")
    assert result.code == ""  # the rate stays what it was


def test_targets_of_several_tensors_are_not_scaled_and_it_says_why() -> None:
    model = seeded(lambda: nn.Linear(4, 2)).double()
    x = normal(40, 4)
    y = {"price": 300 + 50 * x.sum(1), "area": x[:, 0]}

    def losses(h: Tensor, t: dict[str, Tensor]) -> Tensor:
        return F.mse_loss(h[:, 0], t["price"]) + F.mse_loss(h[:, 1], t["area"])

    result = short(wc.Problem(model, losses, [(x, y)]), "scale-targets", optimizer=SGD(model.parameters(), 0.1))
    assert result.refused["scale-targets"].startswith("the targets are several tensors")


def test_two_remedies_can_be_named_together() -> None:
    model = dropping()
    result = short(classification(model), "adam + batchnorm", optimizer=SGD(model.parameters(), 0.1))
    assert "model = wc.nn.with_norms" in result.arms["adam + batchnorm"].code
    assert "torch.optim.Adam" in result.arms["adam + batchnorm"].code


class LoudAttention(nn.Module):
    """Queries and keys that are far too large; and a ReLU in the forward pass, so that leaky-relu wraps the model."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.out = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, CLASSES)
        with torch.no_grad():
            self.attention.in_proj_weight[:16] *= 12

    def forward(self, x: Tensor) -> Tensor:
        x = x.unflatten(1, (2, 8))
        return self.out(torch.relu(self.attention(x, x, x)[0]).mean(1))


def test_attention_is_drawn_again_also_in_a_model_that_another_remedy_wraps() -> None:
    model, both = seeded(LoudAttention), "softer-attention + leaky-relu"
    batches = split((normal(60, 16), integers(CLASSES, 60)), [20, 20, 20])
    result = short(classification(model, batches), both, optimizer=SGD(model.parameters(), 0.1))
    assert result.arms[both].refused is None
    assert result.arms[both].best_lr is not None


def test_an_arm_that_no_rate_trained_in_the_screening_is_raced_again() -> None:
    problem, optimizer = sigmoid_before_cross_entropy()
    conditions = conditions_of(problem, optimizer, 0.9, 3, [0])
    ended = ArmJob(conditions, Arm("rate"), "begin", 0, math.nan).run(lambda _what, _share: None)
    assert ended.arm is not None
    assert ended.arm.best_lr is not None


# held-out data


def random_labels() -> tuple[wc.Problem, Any]:
    """Nothing can be learned, only learned by heart; and the rate is too low for that."""
    model = seeded(lambda: nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, CLASSES)))
    batches = split((normal(60, 16), integers(CLASSES, 60)), [20, 20, 20])
    return classification(model, batches), SGD(model.parameters(), lr=1e-4)


@pytest.mark.slow
def test_what_is_only_learned_by_heart_does_not_help() -> None:
    problem, optimizer = random_labels()
    result = short(problem, "rate", "adam", optimizer=optimizer, steps=60, seeds=[0, 1, 2])
    adam, untreated = result.arms["adam"].training, result.untreated.training
    assert adam is not None
    assert untreated is not None
    assert adam.median < 0.5 * untreated.median
    assert result.best is result.untreated
    assert result.verdict().startswith("None of these helps")


@pytest.mark.slow
def test_validation_is_what_arms_are_judged_by() -> None:
    problem, optimizer = random_labels()
    result = short(problem, "adam", optimizer=optimizer, steps=60, seeds=[0, 1], validation=problem.batches)
    assert result.best is result.arms["adam"]  # judged by what it was trained on
    assert "60 held-out examples (passed as validation)" in result.title


def test_a_training_step_is_judged_by_held_out_batches() -> None:
    model = seeded(lambda: nn.Linear(4, 4))
    problem = wc.Problem.from_step(model, lambda m, x: (m(x) - x).square().mean(), list(normal(200, 4).split(4)))
    result = short(problem, "rate", optimizer=SGD(model.parameters(), 0.1), steps=5)
    assert "held-out examples (10 batches, one in 5)" in result.title
    assert all(run.checks for run in runs_of(result, "rate").values())


def test_held_out_batches_meet_running_statistics_as_they_are_by_then() -> None:
    model = seeded(lambda: nn.Sequential(nn.BatchNorm1d(4, momentum=1.0), nn.Linear(4, CLASSES)))
    batches = [(100 + normal(40, 4), integers(CLASSES, 40))]
    (run,) = runs_of(short(classification(model, batches), optimizer=SGD(model.parameters(), 1e-300))).values()
    assert run.judged[0] < 5.0  # with the statistics at initialization, the inputs would be near 100


@pytest.mark.slow
def test_what_is_only_faster_does_not_help_for_long() -> None:
    """A linear fit that is slow, but ends where every other rate ends."""
    model = seeded(lambda: nn.Linear(4, 1))
    x = normal(200, 4)
    batches = [(x, x.sum(1, keepdim=True) + 0.5 * normal(200, 1, seed=1))]
    problem = wc.Problem(model, nn.MSELoss(), batches)
    result = short(problem, "rate", optimizer=SGD(model.parameters(), 0.01), steps=40)
    assert result.helps(result.arms["rate"])
    assert result.best is result.untreated
    assert result.verdict().startswith("None of these helps for long")
    assert [len(run.losses) for run in result.untreated.longer.values()] == [400]
    assert result.cost.u <= result.planned


def test_a_graph_cannot_be_cut_and_the_table_says_so() -> None:
    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(4, CLASSES)

        def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
            return self.out(adjacency @ x)

    model = seeded(Graph)
    batches = [((normal(20, 4), normal(20, 20)), integers(CLASSES, 20))]
    result = short(classification(model, batches), "adam", optimizer=SGD(model.parameters(), 0.1))
    assert "Loss of training: a part of a batch does not go through the model" in result.title
    assert result.arms["adam"].runs


# threads and processes


def wide() -> tuple[wc.Problem, Any]:
    """Wide enough for torch to use several threads."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, CLASSES))
    x = torch.randn(600, 256)
    batches = list(zip(x.split(200), x[:, :CLASSES].argmax(1).split(200), strict=True))
    return wc.Problem(model, nn.CrossEntropyLoss(), batches), SGD(model.parameters(), lr=0.1)


def losses_of(treatment: Treatment) -> dict[str, Any]:
    return {
        name: {lr: {seed: (run.losses, run.judged) for seed, run in runs.items()} for lr, runs in arm.runs.items()}
        for name, arm in treatment.arms.items()
    }


@pytest.mark.slow
def test_the_number_of_threads_changes_nothing() -> None:
    results, before = [], torch.get_num_threads()
    for threads in (1, 8):
        torch.set_num_threads(threads)
        try:
            problem, optimizer = wide()
            results.append(losses_of(short(problem, "rate", "adam", optimizer=optimizer, steps=4)))
            assert torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(before)
    assert results[0] == results[1]


@pytest.mark.slow
def test_other_processes_give_the_same_and_the_users_tensors_stay_where_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started, start = [], _Worker.start
    monkeypatch.setattr(_Worker, "start", lambda threads: started.append(start(threads)) or started[-1])
    problem, optimizer = wide()
    here = short(problem, "rate", "scale-amended", "less-dropout", optimizer=optimizer, seeds=[0, 1])
    there = short(
        problem, "rate", "scale-amended", "less-dropout", optimizer=optimizer, seeds=[0, 1],
        launcher=Processes(workers=2),
    )  # fmt: skip
    assert losses_of(there) == losses_of(here)
    assert there.refused == here.refused
    assert there.cost.u == here.cost.u
    assert not any(p.is_shared() for p in problem.model.parameters())
    assert len(started) == 2  # which all runs share
    assert not any(worker.process.is_alive() for worker in started)


@pytest.mark.slow
def test_what_other_processes_cannot_get_is_said() -> None:
    model = network()
    problem = wc.Problem(model, lambda h, y: F.cross_entropy(h, y), BATCHES)
    with pytest.raises(Unsupported, match="cannot be sent to another process"):
        short(problem, "rate", optimizer=SGD(model.parameters(), 0.1), launcher="processes")


# what fails


def test_weights_of_nan_are_past_treatment() -> None:
    model = nn.Linear(2, 1)
    nn.init.constant_(model.bias, math.nan)
    problem = wc.Problem(model, nn.MSELoss(), (torch.ones(4, 2), torch.ones(4, 1)))
    with pytest.raises(NonFinite, match=r"'bias' holds NaN .* checkpoint"):
        treat(problem, steps=1)


@pytest.mark.slow
def test_a_network_whose_loss_is_not_finite_is_treated_all_the_same() -> None:
    def log_loss(p: Tensor, y: Tensor) -> Tensor:
        return -p.log().gather(1, y[:, None]).mean()

    model = seeded(lambda: nn.Sequential(nn.Linear(4, CLASSES), nn.Softmax(-1)))
    model[0].weight.data *= 1e4
    result = short(
        classification(model, loss=log_loss), "cross-entropy", optimizer=Adam(model.parameters(), 0.1), steps=20
    )
    assert result.untreated.best_lr is None
    assert result.best is not None
    assert result.best.name == "cross-entropy"
    assert "where the untreated network diverged @ 1" in result.verdict()


class Skip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.head(h + self.second(h).relu())


def test_a_remedy_that_does_not_apply_is_refused_with_its_reason() -> None:
    model = seeded(Skip)
    result = short(
        classification(model), "scale-amended", "less-dropout", "bnp", optimizer=SGD(model.parameters(), 0.1)
    )
    assert result.refused.keys() == {"scale-amended", "less-dropout"}
    assert "'first'" in result.refused["scale-amended"]
    assert "there is nothing to treat" in result.refused["less-dropout"]
    assert result.arms["bnp"].runs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (torch.OutOfMemoryError("no room"), "it does not fit into memory: no room"),
        (MemoryError("no room"), "it does not fit into memory: no room"),
        (RuntimeError("no sparse gradients"), "no sparse gradients"),
    ],
)
def test_an_arm_that_fails_is_refused_and_the_others_go_on(error: Exception, message: str) -> None:
    @remedy("huge", "nothing")
    def huge(setup: Setup) -> Setup | None:
        """Needs more memory than there is."""

        def prepare(*_: Any) -> None:
            raise error

        return setup.prepared(prepare)

    model, loader = build()
    before = snapshot(model, loader.generator)
    optimizer = SGD(model.parameters(), 0.01)
    try:
        result = short(wc.Problem(model, nn.CrossEntropyLoss(), loader), "huge", "rate", optimizer=optimizer)
    finally:
        del REMEDIES["huge"]
    assert result.refused == {"huge": message}
    assert result.arms["rate"].runs
    assert_unchanged(before, snapshot(model, loader.generator))


def test_a_network_that_cannot_be_trained_untreated_is_an_error() -> None:
    model = network()
    with pytest.raises(InvalidProblem, match="does not go through layer '1'"):
        short(classification(model, [(normal(1, 4), integers(CLASSES, 1))]))
    with pytest.raises(InvalidProblem, match="the loss reads the weights of the model itself"):
        short(classification(model, loss=lambda h, y: F.cross_entropy(h, y) + model[0].weight.square().mean()))
    optimizer = SGD(model.parameters(), 0.1)
    optimizer.register_step_post_hook(lambda *_: None)
    with pytest.raises(Unsupported, match="SGD has hooks on its step"):
        short(classification(model), optimizer=optimizer)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"remedies": ["bnp", "prayer"]}, "a remedy must be one of .*, not 'prayer'"),
        ({"seeds": []}, "at least one seed"),
        ({"seeds": [1, -2]}, "a seed must be ≥ 0, not -2"),
        ({"steps": 0}, "steps must be ≥ 1, not 0"),
        ({"momentum": 1.0}, "momentum must be ≥ 0 and < 1, not 1"),
        ({"momentum": 0.9, "optimizer": SGD([torch.zeros(1)], 0.1)}, "the optimizer has its own"),
    ],
)
def test_settings_that_make_no_training_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        treat(classification(), **settings)


# nothing changed


@pytest.mark.slow
@pytest.mark.parametrize("error", [None, Boom, KeyboardInterrupt])
@pytest.mark.filterwarnings("ignore:no normalization follows")
def test_nothing_of_the_users_changes_whatever_happens(error: type[BaseException] | None) -> None:
    model, loader = build()
    optimizer = SGD(model.parameters(), lr=0.01, momentum=0.9)
    before, settings = snapshot(model, loader.generator), copy.deepcopy(optimizer.state_dict())
    reports: list[str] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if error is not None and len(reports) > 12:
            raise error
        return F.cross_entropy(outputs, targets)

    problem = wc.Problem(model, loss, loader)

    def run() -> Treatment:
        return treat(problem, optimizer, steps=3, seeds=[0], findings=(), progress=lambda what, _: reports.append(what))

    if error is None:
        result = run()
        assert result.is_complete
        assert sum(arm.refused is None for arm in result.arms.values()) > 10
    else:
        with pytest.raises(error):
            run()
    assert_unchanged(before, snapshot(model, loader.generator))
    assert optimizer.state_dict() == settings


@pytest.mark.slow
def test_an_interrupt_gives_what_there_is() -> None:
    model = network()

    def stop(what: str, _share: float) -> None:
        if what.startswith("adam: at lr"):
            raise KeyboardInterrupt

    with pytest.raises(wc.Interrupted) as held:
        short(classification(model), "rate", "adam", optimizer=SGD(model.parameters(), 0.1), progress=stop)
    result = held.value.result
    assert not result.is_complete
    assert result.status == "interrupted after 2 runs"
    assert result.untreated.best_lr == 0.1
    assert result.arms["rate"].runs
    assert not result.arms["adam"].runs
    assert math.isfinite(result.cost.u)


def test_an_optimizer_under_bnp_stays_under_it_and_the_model_is_left_alone() -> None:
    model = network()
    optimizer = SGD(model.parameters(), 0.1, weight_decay=0.01)
    wc.BNP(model, optimizer)
    hooks = [len(module._forward_hooks) for module in model.modules()]
    result = short(classification(model), "less-weight-decay", optimizer=optimizer)
    assert result.arms["less-weight-decay"].runs
    assert [len(module._forward_hooks) for module in model.modules()] == hooks


def test_a_remedy_that_nobody_asked_for_gives_no_warning() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, CLASSES)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        treat(classification(model), SGD(model.parameters(), lr=0.1), steps=3, seeds=[0], remedies=["scale-amended"])
