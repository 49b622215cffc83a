"""`treat` against a plain torch loop, what is the same for all runs, and what it does with those that fail."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_problems import BATCHES, losses_by_torch, network, problem, quadratic
from test_every_measurement import Boom, build
from torch import Tensor, nn
from torch.optim import SGD, Adam
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from unchanged import assert_unchanged, snapshot
from zoo import ARCHITECTURES, CLASSES, Case, integers, normal, seeded, split

import wellcond as wc
from wellcond.errors import InvalidProblem, NonFinite, Unsupported
from wellcond.training.run import Run
from wellcond.verify.treat import REMEDIES, treat
from wellcond.verify.treatment import Treatment

ULP = 1e-300
"""A learning rate so small that no weight changes: the losses tell the batches and the random numbers alone."""


def short(given: wc.Problem, remedies: Any = (), rates: Any = (0.1,), steps: int = 3, **options: Any) -> Treatment:
    """With one seed, unless others are asked for."""
    return treat(given, steps=steps, learning_rates=rates, remedies=remedies, **{"seeds": [0]} | options)


def runs_of(treatment: Treatment) -> list[tuple[str, float, int, Run]]:
    return [
        (arm.name, lr, seed, run)
        for arm in treatment.arms.values()
        for lr, seeds in arm.runs.items()
        for seed, run in seeds.items()
    ]


def losses(given: wc.Problem, arm: str, lr: float, steps: int, seed: int = 0, **options: Any) -> list[float]:
    remedies = [arm] if arm in REMEDIES else []
    treatment = short(given, remedies, [lr], steps, seeds=[seed], **options)
    assert treatment.refused == {}
    return list(treatment.arms[arm].runs[lr][seed].losses)


def assert_close(found: list[float], expected: list[float]) -> None:
    assert len(found) == len(expected)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-12, atol=1e-12)


# the arms, against a plain loop


def arm_by_torch(arm: str, model: nn.Module, lr: float, **settings: Any) -> tuple[nn.Module, Any]:
    own = copy.deepcopy(model)
    if arm == "last-bn":
        own = wc.nn.with_last_batchnorm(model, BATCHES[0][0])
    if arm == "scale-amended":
        return own, wc.ScaleAmendedSGD(own, lr, **settings, inputs=BATCHES[0][0])
    optimizer = SGD(own.parameters(), lr, **settings)
    if arm == "bnp":
        wc.BNP(own, optimizer)
    return own, optimizer


@pytest.mark.parametrize("arm", ["sgd", *REMEDIES])
@pytest.mark.parametrize(
    ("settings", "is_given"),
    [({}, False), ({"momentum": 0.9}, False), ({"momentum": 0.9, "weight_decay": 0.1, "nesterov": True}, True)],
    ids=["plain", "momentum", "an SGD of one's own"],
)
def test_an_arm_is_its_remedy_on_the_batches_in_turn(arm: str, settings: dict[str, Any], is_given: bool) -> None:
    model = network().eval()
    options = {"optimizer": SGD(model.parameters(), 0.5, **settings)} if is_given else settings
    expected = losses_by_torch(*arm_by_torch(arm, model, 0.3, **settings), 10)
    assert_close(losses(problem(model), arm, 0.3, 10, **options), expected)


def test_running_statistics_move_as_in_training_where_the_loss_depends_on_them() -> None:
    """Batch renorm corrects by them from the second step on."""
    model = network()
    model[1] = wc.nn.BatchRenorm1d(5, r_ramp=(0, 1), d_ramp=(0, 1), dtype=torch.float64)
    expected = losses_by_torch(*arm_by_torch("sgd", model, 0.3), 10)
    assert_close(losses(problem(model), "sgd", 0.3, 10), expected)
    assert int(model[1].num_batches_tracked) == 0


def test_another_optimizer_is_copied_with_its_state_and_the_proportions_of_its_groups() -> None:
    model = network().train()
    groups = [{"params": model[0].parameters(), "lr": 0.01}, {"params": model[3].parameters()}]
    optimizer = Adam(groups, lr=0.1)
    losses_by_torch(model, optimizer, 4)  # so that it has a state
    result = short(problem(model), REMEDIES, [0.2], optimizer=optimizer)
    assert list(result.arms) == ["adam", *REMEDIES]
    own = copy.deepcopy(model)
    twin = Adam([{"params": own[0].parameters(), "lr": 0.02}, {"params": own[3].parameters(), "lr": 0.2}])
    twin.load_state_dict({"state": optimizer.state_dict()["state"], "param_groups": twin.state_dict()["param_groups"]})
    assert_close(list(result.untreated.runs[0.2][0].losses), losses_by_torch(own, twin, 3))
    assert result.arms["bnp"].best_lr == 0.2
    # without rates of one's own they are multiples of the largest
    rates = treat(problem(model), optimizer, steps=1, seeds=[0], remedies=[]).learning_rates
    assert rates == pytest.approx((0.01, 0.03, 0.1, 0.3, 1.0))


@pytest.mark.parametrize("case", ARCHITECTURES.values(), ids=ARCHITECTURES)
@pytest.mark.filterwarnings("ignore:no normalization follows")
def test_every_architecture_can_be_tried(case: Callable[[], Case]) -> None:
    result = short(case().problem(), REMEDIES, [0.01])
    assert {name for name, arm in result.arms.items() if arm.best_lr == 0.01} >= {"sgd", "bnp", "last-bn"}
    assert result.refused.keys() <= {"scale-amended"}


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_network_learns_as_the_plain_one(reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = network()

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inside, x.clone().requires_grad_(), use_reentrant=reentrant)

    found = losses(problem(seeded(Checkpointed)), "sgd", 0.3, 6)
    assert_close(found, losses_by_torch(*arm_by_torch("sgd", seeded(network), 0.3), 6))
    assert found[-1] < found[0]


# the same for all


def dropping() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, CLASSES)))


class Noisy(TensorDataset):
    def __getitem__(self, index: Any) -> Any:
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.randn(4).double(), y


def shuffled(generator: torch.Generator | None = None) -> DataLoader[Any]:
    return DataLoader(Noisy(normal(14, 4), integers(CLASSES, 14)), batch_size=4, shuffle=True, generator=generator)


@pytest.mark.parametrize("batches", [BATCHES, shuffled(), shuffled(torch.Generator())], ids=["list", "loader", "own"])
@pytest.mark.filterwarnings("ignore:no normalization follows")
def test_all_arms_see_the_same_batches_and_the_same_dropout(batches: Any) -> None:
    result = short(problem(dropping(), batches), ["bnp", "scale-amended"], [ULP, 2 * ULP], steps=9)
    found = [run.losses for *_, run in runs_of(result)]
    assert len(found) == 6
    assert all(each == found[0] for each in found)
    assert len(set(found[0])) == 9  # a batch that comes again meets other masks


def test_a_seed_decides_the_random_numbers_and_every_epoch_has_others() -> None:
    given = problem(dropping(), shuffled())
    first = losses(given, "sgd", 0.1, 5, seed=1)
    torch.manual_seed(123)
    assert losses(given, "sgd", 0.1, 5, seed=1) == first
    assert losses(given, "sgd", 0.1, 5, seed=2) != first
    data = TensorDataset(normal(12, 4), integers(CLASSES, 12))
    still = seeded(lambda: nn.Sequential(nn.Linear(4, CLASSES)))
    found = losses(problem(still, DataLoader(data, batch_size=4, shuffle=True)), "sgd", ULP, 6)
    assert found[:3] != found[3:]
    assert math.isclose(sum(found[:3]), sum(found[3:]), rel_tol=1e-12)  # every epoch shows all the data


def test_seeds_begin_with_different_batches_where_nothing_is_random() -> None:
    result = short(problem(), rates=[ULP], steps=3, seeds=[0, 1, 2, 5])
    found = [run.losses for *_, run in runs_of(result)]
    first = found[0]
    assert found[1] == [*first[1:], first[0]]
    assert found[2] == found[3] == [first[2], *first[:2]]  # 5 is 2 modulo 3 batches
    assert result.notes == ()


def test_of_one_batch_without_anything_random_one_seed_says_it_all() -> None:
    result = short(quadratic(), ["bnp"], seeds=[4, 5, 6])
    assert result.seeds == (4,)
    assert result.planned == result.finished == 2
    assert "every seed gives the same run" in result.notes[0]
    # but not if there is dropout
    assert short(problem(dropping(), BATCHES[0]), seeds=[4, 5, 6]).seeds == (4, 5, 6)


def test_names_rates_and_seeds_that_are_given_twice_are_tried_once() -> None:
    result = short(problem(), ["bnp", "bnp"], [0.2, 0.1, 0.2], 1, seeds=[0, 1, 0])
    assert [each[:3] for each in runs_of(result)] == [
        (name, lr, seed) for name in ("sgd", "bnp") for lr in (0.1, 0.2) for seed in (0, 1)
    ]


def test_it_trains_whatever_mode_of_gradients_the_caller_is_in() -> None:
    expected = losses(problem(), "last-bn", 0.1, 4)
    given = problem()
    with torch.inference_mode():
        assert losses(given, "last-bn", 0.1, 4) == expected
    with torch.no_grad():
        assert losses(given, "last-bn", 0.1, 4) == expected


# nothing changed


def test_a_treatment_changes_nothing() -> None:
    model, loader = build()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    before, settings = snapshot(model, loader.generator), copy.deepcopy(optimizer.state_dict())
    given = wc.Problem(model, nn.CrossEntropyLoss(), loader)
    result = short(given, REMEDIES, [0.01, 1e300], 5, optimizer=optimizer)
    assert_unchanged(before, snapshot(model, loader.generator))
    assert optimizer.state_dict() == settings
    for has_diverged in (False, True):
        names = [name for name, *_, run in runs_of(result) if (run.final is None) == has_diverged]
        assert names == ["sgd", "bnp", "last-bn"]
    assert result.refused.keys() == {"scale-amended"}


@pytest.mark.parametrize("arm", ["sgd", *REMEDIES])
@pytest.mark.parametrize("error", [Boom, KeyboardInterrupt])
def test_a_loss_that_raises_half_way_leaves_nothing_changed(arm: str, error: type[BaseException]) -> None:
    model, loader = build()
    steps_seen: list[str] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if sum(what.startswith(arm) for what in steps_seen) > 2:
            raise error
        return F.cross_entropy(outputs, targets)

    if arm == "scale-amended":  # which refuses the model of the others
        model = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(8, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)))
    before = snapshot(model, loader.generator)
    with pytest.raises(error) as held:
        short(wc.Problem(model, loss, loader), REMEDIES, steps=9, progress=lambda what, _: steps_seen.append(what))
    assert held.tb is not None
    assert_unchanged(before, snapshot(model, loader.generator))


def test_gradients_of_the_loss_s_own_parameters_and_of_inputs_are_as_before() -> None:
    temperature = torch.ones((), dtype=torch.float64, requires_grad=True)
    inputs = normal(5, 4).requires_grad_()
    inputs.grad = before = normal(5, 4, seed=1)
    version = before._version
    given = problem(None, (inputs, integers(CLASSES, 5)), lambda h, y: F.cross_entropy(h / temperature, y))
    assert all(run.final is not None for *_, run in runs_of(short(given, REMEDIES)))
    assert temperature.grad is None
    assert inputs.grad is before
    assert before._version == version


# runs that fail


class Skip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.head(h + self.second(h).relu())


def test_a_remedy_that_the_network_does_not_allow_is_refused_with_its_reason() -> None:
    result = short(problem(seeded(Skip)), REMEDIES, [0.1, 0.2])
    assert result.refused.keys() == {"scale-amended"}
    assert "'first'" in result.refused["scale-amended"]
    assert "'second'" in result.refused["scale-amended"]
    assert [len(arm.runs) for arm in result.arms.values()] == [2, 2, 2, 0]
    alone = split((normal(5, 4), integers(CLASSES, 5)), [4, 1])
    result = short(problem(seeded(Skip), alone), ["last-bn"], steps=4)
    assert result.untreated.best_lr == 0.1
    assert "Expected more than 1 value per channel" in result.refused["last-bn"]


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda model: SGD(model.parameters(), 0.1, maximize=True), "SGD with maximize"),
        (lambda model: Adam([{"params": [p]} for p in model.parameters()]), "Adam with 5 groups"),
        (lambda model: Adam(model.parameters()), "Adam;"),
    ],
)
def test_an_optimizer_other_than_a_plain_sgd_leaves_bnp_alone(make: Any, found: str) -> None:
    model = network()
    result = short(problem(model), REMEDIES, optimizer=make(model))
    assert result.refused.keys() == {"last-bn", "scale-amended"}
    assert all(f"the optimizer is {found}" in reason for reason in result.refused.values())


def test_bad_data_are_no_divergence() -> None:
    x, y = normal(4, 4), integers(CLASSES, 4)
    bad = x.clone()
    bad[0, 0] = math.nan
    with pytest.raises(NonFinite, match="the inputs of batch 1 hold NaN"):
        short(problem(batches=[(x, y), (bad, y)]), steps=5)
    with pytest.raises(NonFinite, match="the inputs of batch 1 hold NaN"):
        short(problem(batches=[(x, y), (bad, y)]), steps=1, seeds=[0, 1])  # the second seed begins with it
    # but a batch that is not used is not looked at
    assert len(losses(problem(batches=[(x, y), (bad, y)]), "sgd", 0.1, 1)) == 1


class Shrinking(list[Any]):
    """Batches that are cut to one example once they have been looked at."""

    def __iter__(self) -> Iterator[Any]:
        found = [(x.clone(), y.clone()) for x, y in super().__iter__()]
        self[:] = [(x[:1], y[:1]) for x, y in found]
        return iter(found)


def test_a_network_that_cannot_be_trained_untreated_is_an_error() -> None:
    model = network()
    optimizer = SGD(model.parameters(), 0.1)
    with pytest.raises(InvalidProblem, match="batch 1 does not go through layer '1'"):
        short(problem(model, [BATCHES[0], (normal(1, 4), integers(CLASSES, 1))]), ["last-bn"])
    with pytest.raises(InvalidProblem, match="does not go through layer '1'"):
        short(problem(model, Shrinking(BATCHES)))
    with pytest.raises(InvalidProblem, match="the loss reads the weights of the model itself"):
        short(problem(model, loss=lambda h, y: F.cross_entropy(h, y) + model[0].weight.square().mean()))
    with pytest.raises(InvalidProblem, match="holds none of the model's trainable parameters"):
        short(problem(), optimizer=optimizer)
    wc.BNP(model, optimizer)
    with pytest.raises(Unsupported, match="SGD has hooks on its step"):
        short(problem(model), optimizer=optimizer)
    model.kept = model[0].weight * 2
    with pytest.raises(Unsupported, match="cannot be copied"):
        short(problem(model))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"remedies": ["bnp", "adam"]}, "a remedy must be one of bnp, last-bn, scale-amended, not 'adam'"),
        ({"learning_rates": [0.1, -1.0]}, "a learning rate must be > 0 and finite, not -1"),
        ({"learning_rates": [math.nan]}, "a learning rate must be > 0 and finite, not nan"),
        ({"learning_rates": []}, "at least one learning rate and one seed"),
        ({"seeds": []}, "at least one learning rate and one seed"),
        ({"seeds": [1, -2]}, "a seed must be ≥ 0, not -2"),
        ({"steps": 0}, "steps must be ≥ 1, not 0"),
        ({"momentum": 1.0}, "momentum must be ≥ 0 and < 1, not 1"),
        ({"momentum": 0.9, "optimizer": SGD([torch.zeros(1)], 0.1)}, "the optimizer has its own"),
    ],
)
def test_settings_that_make_no_training_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        treat(quadratic(), **settings)


# what is reported on the way


def test_progress_names_the_run() -> None:
    heard: list[tuple[str, float]] = []
    short(problem(), ["bnp"], [0.1, 1e200], 4, seeds=[0, 1], progress=lambda *said: heard.append(said))
    names = [f"{m} at lr {lr}, seed {seed}" for seed in (0, 1) for lr in ("0.1", "1e+200") for m in ("sgd", "bnp")]
    assert list(dict.fromkeys(what for what, _ in heard)) == names
    assert [share for what, share in heard if what == "bnp at lr 0.1, seed 1"][-1] == 0.75


def test_the_treatment_so_far_is_handed_over_after_every_run() -> None:
    handed: list[Treatment] = []

    def take(treatment: Treatment) -> None:
        handed.append(treatment)
        if len(handed) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        short(problem(), ["bnp"], [0.1, 0.2], 2, seeds=[0, 1], on_run=take)
    assert [each[:3] for each in runs_of(handed[-1])] == [("sgd", 0.1, 0), ("sgd", 0.2, 0), ("bnp", 0.1, 0)]
    assert (handed[-1].finished, handed[-1].planned) == (3, 8)


def test_passes_are_counted_as_they_are_made() -> None:
    given = problem()
    forwards: list[int] = []
    given.model.register_forward_hook(lambda *_: forwards.append(1))
    cost = short(given, rates=[0.1, 0.2], steps=6, seeds=[0, 1]).cost
    # 3 batches: one pass to look at them, and 4 runs of 2 passes
    assert (cost.forwards, cost.backwards) == (1 + 4 * 2, 4 * 2)
    assert len(forwards) == 3 * cost.forwards
