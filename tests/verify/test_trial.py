"""A trial against training loops written out here, and what it does with runs that fail."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_nothing_changed import FAIL, Boom, assert_unchanged, build, snapshot
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from zoo import ARCHITECTURES, Case, integers, normal, seeded, split

import wellcond as wc
from wellcond.errors import InvalidProblem, NonFinite
from wellcond.verify.trial import METHODS, trial
from wellcond.verify.trial_result import Run, Trial
from wellcond.nn.replace import InvalidSurgery

CLASSES = 3
BATCHES = split((normal(14, 4), integers(CLASSES, 14)), [5, 5, 4])
ULP = 1e-300
"""A learning rate so small that no weight changes: the losses tell the batches and the random numbers alone."""


def network() -> nn.Module:
    """A chain of layers, with BatchNorm."""
    return seeded(
        lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, CLASSES, bias=False))
    )


def problem(model: nn.Module | None = None, batches: Any = BATCHES, loss: Any = None) -> wc.Problem:
    return wc.Problem(model or network(), loss or nn.CrossEntropyLoss(), batches)


def quadratic() -> wc.Problem:
    """The loss is w², from w = 1: a step takes w to (1 − 2 lr) w."""
    layer = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.ones_(layer.weight)
    return wc.Problem(layer, nn.MSELoss(), (torch.ones(2, 1).double(), torch.zeros(2, 1).double()))


def losses(given: wc.Problem, method: str, lr: float, steps: int, **options: Any) -> list[float]:
    (run,) = trial(given, [method], [lr], steps, **options).runs
    assert (run.method, run.lr, run.refused) == (method, lr, None)
    return run.losses


def by_hand(
    loss_of: Callable[[Tensor, Tensor], Tensor],
    direction: Callable[[dict[str, Tensor], Tensor], dict[str, Tensor]],
    params: dict[str, Tensor],
    lr: float,
    steps: int,
    momentum: float = 0.0,
) -> list[float]:
    """Gradient descent with v ← μv + d, p ← p − lr·v on the batches in turn."""
    velocity = {name: torch.zeros_like(p) for name, p in params.items()}
    found = []
    for step in range(steps):
        x, y = BATCHES[step % len(BATCHES)]
        loss = loss_of(x, y)
        found.append(float(loss.detach()))
        gradients = dict(zip(params, torch.autograd.grad(loss, list(params.values())), strict=True))
        for name, d in direction(gradients, x).items():
            velocity[name] = momentum * velocity[name] + d
            params[name].data -= lr * velocity[name]
    return found


def trained(model: nn.Module, direction: Any = lambda gradients, x: gradients, **options: Any) -> list[float]:
    """A copy of the model in training mode, by hand."""
    model = copy.deepcopy(model).train()
    return by_hand(lambda x, y: F.cross_entropy(model(x), y), direction, dict(model.named_parameters()), **options)


def assert_close(found: list[float], expected: list[float]) -> None:
    assert len(found) == len(expected)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-12, atol=1e-12)


# the methods, against loops written out


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_is_gradient_descent_in_training_mode_on_the_batches_in_turn(momentum: float) -> None:
    model = network().eval()
    expected = trained(model, lr=0.3, steps=10, momentum=momentum)
    assert_close(losses(problem(model), "sgd", 0.3, 10, momentum=momentum), expected)


def test_running_statistics_move_as_in_training_where_the_loss_depends_on_them() -> None:
    """Batch renorm corrects by them from the second step on."""
    model = network()
    model[1] = wc.nn.BatchRenorm1d(5, r_ramp=(0, 1), d_ramp=(0, 1), dtype=torch.float64)
    expected = trained(model, lr=0.3, steps=10)
    assert_close(losses(problem(model), "sgd", 0.3, 10), expected)
    assert int(model[1].num_batches_tracked) == 0


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_bnp_is_descent_along_p_p_transposed_times_the_gradient(momentum: float) -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, CLASSES)))
    own = copy.deepcopy(model)
    moments = {name: (torch.zeros(n).double(), torch.ones(n).double()) for name, n in (("0", 4), ("2", 5))}

    def preconditioned(gradients: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
        new = {}
        for name, received in (("0", x), ("2", own[:2](x).detach())):
            mean, variance = moments[name]
            mean = 0.99 * mean + 0.01 * received.mean(0)
            variance = 0.99 * variance + 0.01 * received.var(0, unbiased=False)
            moments[name] = mean, variance
            damped = variance + 1e-2 * variance.max() + 1e-4
            n = received.shape[1]
            U = torch.eye(n + 1).double()
            U[0, 1:] = -mean
            P = U @ torch.diag(torch.cat([torch.ones(1).double(), damped**-0.5]))
            both = torch.cat([gradients[f"{name}.bias"][None], gradients[f"{name}.weight"].T])  # (1 + n, outputs)
            both = P @ P.T @ both / max(n / len(x), 1.0)
            new[f"{name}.bias"], new[f"{name}.weight"] = both[0], both[1:].T
        return new

    expected = by_hand(
        lambda x, y: F.cross_entropy(own(x), y),
        preconditioned, dict(own.named_parameters()), lr=0.5, steps=10, momentum=momentum,
    )  # fmt: skip
    assert_close(losses(problem(model), "bnp", 0.5, 10, momentum=momentum), expected)


def test_last_bn_is_gradient_descent_with_a_batchnorm_before_the_last_layer() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, CLASSES)))
    first, _, last = copy.deepcopy(model)
    gain, shift = torch.ones(5).double().requires_grad_(), torch.zeros(5).double().requires_grad_()
    params = {**dict(first.named_parameters("a")), **dict(last.named_parameters("b")), "gain": gain, "shift": shift}

    def loss(x: Tensor, y: Tensor) -> Tensor:
        h = first(x).tanh()
        h = (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-5).sqrt()
        return F.cross_entropy(last(gain * h + shift), y)

    expected = by_hand(loss, lambda gradients, x: gradients, params, lr=0.2, steps=10)
    assert_close(losses(problem(model), "last-bn", 0.2, 10), expected)


def test_scale_amended_is_descent_along_the_gradient_over_m_and_m_w() -> None:
    model = seeded(
        lambda: nn.Sequential(
            nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5, affine=False), nn.ReLU(), nn.Linear(5, CLASSES, bias=False)
        )
    )
    own = copy.deepcopy(model).train()
    params = dict(own.named_parameters())

    def amended(gradients: dict[str, Tensor], x: Tensor) -> dict[str, Tensor]:
        m = {"0.weight": CLASSES / 5, "3.weight": 1.0}  # outputs of the network over elements leaving the block
        m_w = {name: 1 / float((p.detach() ** 2).sum(1).mean()) for name, p in params.items()}
        return {name: g / (m[name] * m_w[name]) for name, g in gradients.items()}

    expected = by_hand(lambda x, y: F.cross_entropy(own(x), y), amended, params, lr=0.1, steps=10)
    assert_close(losses(problem(model), "scale-amended", 0.1, 10), expected)


def test_one_batch_is_full_batch_descent() -> None:
    # w → (1 − 2·0.1) w, and the loss is w²
    assert_close(losses(quadratic(), "sgd", 0.1, 6), [0.64**k for k in range(6)])


@pytest.mark.parametrize("case", ARCHITECTURES.values(), ids=ARCHITECTURES)
@pytest.mark.filterwarnings("ignore:no normalization follows")
def test_every_architecture_can_be_tried(case: Callable[[], Case]) -> None:
    result = trial(case().problem(), learning_rates=[0.01], steps=3)
    assert {run.method for run in result.runs if run.final is not None} >= {"sgd", "bnp", "last-bn"}
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
    assert_close(found, trained(seeded(network), lr=0.3, steps=6))
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
def test_all_methods_see_the_same_batches_and_the_same_dropout(batches: Any) -> None:
    runs = trial(problem(dropping(), batches), ["sgd", "bnp", "scale-amended"], [ULP, 2 * ULP], steps=9).runs
    assert len(runs) == 6
    assert all(run.losses == runs[0].losses for run in runs)
    assert len(set(runs[0].losses)) == 9  # a batch that comes again meets other masks


def test_a_loader_that_shuffles_does_so_every_epoch() -> None:
    data = TensorDataset(normal(12, 4), integers(CLASSES, 12))
    still = seeded(lambda: nn.Sequential(nn.Linear(4, CLASSES)))
    found = losses(problem(still, DataLoader(data, batch_size=4, shuffle=True)), "sgd", ULP, 6)
    assert found[:3] != found[3:]
    # every epoch shows all the data
    assert math.isclose(sum(found[:3]), sum(found[3:]), rel_tol=1e-12)


def test_a_seed_decides_the_random_numbers_and_nothing_else_does() -> None:
    given = problem(dropping(), shuffled())
    first = losses(given, "sgd", 0.1, 5, seed=1)
    torch.manual_seed(123)
    assert losses(given, "sgd", 0.1, 5, seed=1) == first
    assert losses(given, "sgd", 0.1, 5, seed=2) != first


def test_rates_and_methods_that_are_named_twice_are_tried_once() -> None:
    runs = trial(quadratic(), ["bnp", "sgd", "bnp"], [0.2, 0.1, 0.2], steps=1).runs
    assert [(run.method, run.lr) for run in runs] == [("bnp", 0.1), ("sgd", 0.1), ("bnp", 0.2), ("sgd", 0.2)]


def test_it_trains_whatever_mode_of_gradients_the_caller_is_in() -> None:
    expected = losses(problem(), "last-bn", 0.1, 4)
    with torch.inference_mode():
        assert losses(problem(), "last-bn", 0.1, 4) == expected
    with torch.no_grad():
        assert losses(problem(), "last-bn", 0.1, 4) == expected


# nothing changed


def test_a_trial_changes_nothing() -> None:
    model, loader = build()
    before = snapshot(model, loader)
    result = trial(wc.Problem(model, nn.CrossEntropyLoss(), loader), learning_rates=[0.01, 1e300], steps=5)
    assert_unchanged(before, snapshot(model, loader))
    assert [run.method for run in result.runs if run.final is not None] == ["sgd", "bnp", "last-bn"]
    assert [run.method for run in result.runs if run.diverged_at is not None] == ["sgd", "bnp", "last-bn"]
    assert result.refused.keys() == {"scale-amended"}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("error", [Boom, KeyboardInterrupt])
def test_a_loss_that_raises_half_way_leaves_nothing_changed(method: str, error: type[BaseException]) -> None:
    model, loader = build()
    steps_seen: list[str] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if len(steps_seen) > 2:
            raise error
        return F.cross_entropy(outputs, targets)

    if method == "scale-amended":  # which refuses the model of the others
        model = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(8, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)))
    before = snapshot(model, loader)
    with pytest.raises(error) as held:
        trial(wc.Problem(model, loss, loader), [method], [0.1], 9, progress=lambda what, _: steps_seen.append(what))
    assert held.tb is not None
    assert_unchanged(before, snapshot(model, loader))


def test_a_model_that_raises_leaves_nothing_changed() -> None:
    model, loader = build()
    loader.dataset.tensors[0][2:].fill_(FAIL)
    before = snapshot(model, loader)
    with pytest.raises(Boom) as held:
        trial(wc.Problem(model, nn.CrossEntropyLoss(), loader))
    assert held.tb is not None
    assert_unchanged(before, snapshot(model, loader))


def test_gradients_of_the_loss_s_own_parameters_and_of_inputs_are_as_before() -> None:
    temperature = torch.ones((), dtype=torch.float64, requires_grad=True)
    inputs = normal(5, 4).requires_grad_()
    inputs.grad = before = normal(5, 4, seed=1)
    version = before._version
    given = problem(None, (inputs, integers(CLASSES, 5)), lambda h, y: F.cross_entropy(h / temperature, y))
    assert all(run.final is not None for run in trial(given, steps=2).runs)
    assert temperature.grad is None
    assert inputs.grad is before
    assert before._version == version


# runs that fail


def test_a_run_that_diverges_says_when_and_has_no_final_loss() -> None:
    # the loss of step k + 1 is (1 − 2e60)²ᵏ: 1, 4e120, 1.6e241, and then more than float64 holds
    (run,) = trial(quadratic(), ["sgd"], [1e60], steps=10).runs
    assert (run.diverged_at, run.final, str(run)) == (4, None, "diverged @ 4")
    assert_close([math.log(loss) for loss in run.losses], [k * 2 * math.log(2e60) for k in range(3)])
    quantities = [row.quantity for row in Trial([run]).rows()]
    assert quantities == 3 * ["training_loss(sgd, lr=1e+60)"] + ["diverged_at(sgd, lr=1e+60)"]


def test_the_other_runs_go_on_after_one_that_diverged() -> None:
    runs = trial(quadratic(), ["sgd"], [1e200, 0.5], steps=3).runs
    assert [(run.lr, run.diverged_at) for run in runs] == [(0.5, None), (1e200, 2)]


class Skip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.head(h + self.second(h).relu())


def test_a_method_that_the_network_does_not_allow_is_refused_with_its_reason() -> None:
    result = trial(problem(seeded(Skip)), learning_rates=[0.1, 0.2], steps=2)
    assert result.refused.keys() == {"scale-amended"}
    assert "'first'" in result.refused["scale-amended"]
    assert "'second'" in result.refused["scale-amended"]
    assert [run.final is None for run in result.runs] == 2 * [False, False, False, True]


def test_a_batch_that_only_a_remedy_cannot_take_is_that_remedys_refusal() -> None:
    batches = split((normal(5, 4), integers(CLASSES, 5)), [4, 1])
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, CLASSES)))
    result = trial(problem(model, batches), ["sgd", "last-bn"], [0.1], steps=4)
    assert [run.final is None for run in result.runs] == [False, True]
    assert "Expected more than 1 value per channel" in result.refused["last-bn"]


def test_bad_data_are_no_divergence() -> None:
    x, y = normal(4, 4), integers(CLASSES, 4)
    bad = x.clone()
    bad[0, 0] = math.nan
    with pytest.raises(NonFinite, match="the inputs of batch 1 hold NaN"):
        trial(problem(batches=[(x, y), (bad, y)]), steps=5)
    # but a batch that is not used is not looked at
    assert len(losses(problem(batches=[(x, y), (bad, y)]), "sgd", 0.1, 1)) == 1


def test_a_batch_that_the_plain_network_cannot_take_is_an_error() -> None:
    with pytest.raises(InvalidProblem, match="batch 1 does not go through layer '1'"):
        trial(problem(batches=[BATCHES[0], (normal(1, 4), integers(CLASSES, 1))]), ["last-bn"], steps=5)


def test_a_loss_that_reads_the_model_itself_is_refused() -> None:
    model = network()
    with pytest.raises(InvalidProblem, match="the loss reads the weights of the model itself"):
        trial(problem(model, loss=lambda h, y: F.cross_entropy(h, y) + model[0].weight.square().mean()), ["sgd"])


def test_a_model_that_cannot_be_copied_is_an_error() -> None:
    model = network()
    model.kept = model[0].weight * 2
    with pytest.raises(InvalidSurgery, match="cannot be copied"):
        trial(problem(model), ["sgd"])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"methods": ["sgd", "adam"]}, "a method must be one of sgd, bnp, last-bn, scale-amended, not 'adam'"),
        ({"learning_rates": [0.1, -1.0]}, "a learning rate must be > 0 and finite, not -1"),
        ({"learning_rates": [math.nan]}, "a learning rate must be > 0 and finite, not nan"),
        ({"learning_rates": []}, "at least one method and one learning rate"),
        ({"steps": 0}, "steps must be ≥ 1, not 0"),
        ({"momentum": 1.0}, "momentum must be ≥ 0 and < 1, not 1"),
    ],
)
def test_settings_that_make_no_training_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        trial(quadratic(), **settings)


# what is reported on the way


def test_progress_rises_from_nothing_to_all_and_names_the_run() -> None:
    heard: list[tuple[str, float]] = []
    trial(quadratic(), ["sgd", "bnp"], [0.1, 1e200], steps=4, progress=lambda what, share: heard.append((what, share)))
    shares = [share for _, share in heard]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert {what for what, _ in heard} == {f"{m} at lr {lr}" for m in ("sgd", "bnp") for lr in ("0.1", "1e+200")}
    assert [share for what, share in heard if what == "bnp at lr 0.1"][-1] == 0.5


def test_every_run_is_handed_over_as_it_ends() -> None:
    handed: list[Run] = []

    def take(run: Run) -> None:
        handed.append(run)
        if len(handed) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trial(quadratic(), ["sgd", "bnp"], [0.1, 0.2], steps=2, on_run=take)
    assert [(run.method, run.lr) for run in handed] == [("sgd", 0.1), ("bnp", 0.1), ("sgd", 0.2)]


# results made by hand


def run(method: str, lr: float, *levels: float, steps: int = 20) -> Run:
    """A run whose loss goes down in stairs of equal length."""
    return Run(method, lr, [level for level in levels for _ in range(steps // len(levels))])


DIVERGED = Run("sgd", 1.0, [2.0, 9.0], diverged_at=3)
REFUSED = Run("bnp", 0.1, [], refused="no")


def test_the_final_loss_is_the_mean_of_the_last_tenth() -> None:
    assert Run("sgd", 0.1, [float(k) for k in range(30)]).final == 28.0  # of 27, 28 and 29
    assert Run("sgd", 0.1, [3.0, 1.0]).final == 1.0
    assert DIVERGED.final is None
    assert REFUSED.final is None


def test_the_steps_to_a_loss_are_counted_when_the_mean_of_a_tenth_is_there() -> None:
    stairs = run("sgd", 0.1, 4.0, 2.0)  # 10 steps each, and a tenth is 2
    assert [stairs.steps_to(loss) for loss in (5.0, 4.0, 3.0, 2.9, 2.0, 1.9)] == [2, 2, 11, 12, 12, None]


def test_rows_hold_every_loss_and_how_each_run_ended() -> None:
    rows = Trial([Run("bnp", 0.5, [3.0, 1.0]), DIVERGED, REFUSED]).rows()
    assert [tuple(row) for row in rows] == [
        (1, "", "training_loss(bnp, lr=0.5)", 3.0, ""),
        (2, "", "training_loss(bnp, lr=0.5)", 1.0, ""),
        (None, "", "trained_loss(bnp, lr=0.5)", 1.0, ""),
        (1, "", "training_loss(sgd, lr=1)", 2.0, ""),
        (2, "", "training_loss(sgd, lr=1)", 9.0, ""),
        (None, "", "diverged_at(sgd, lr=1)", 3.0, "steps"),
    ]


SGD = [run("sgd", 0.01, 2.0), run("sgd", 0.1, 0.41), DIVERGED]


def cases() -> Iterator[tuple[str, list[Run], str]]:
    yield (
        "a remedy helps",
        [*SGD, run("bnp", 0.1, 0.5), run("bnp", 0.3, 1.0, 0.4, 0.2, 0.125), run("last-bn", 0.1, 0.3)],
        "bnp at lr 0.3 got lowest, 0.125: it reached plain SGD's best loss 0.41 (lr 0.1, 20 steps) after 7 steps.",
    )
    yield (
        "none helps",
        [*SGD, run("bnp", 0.1, 0.5), run("last-bn", 0.3, 0.6)],
        "No remedy helps: plain SGD's best loss is 0.41 (lr 0.1, 20 steps), that of bnp 0.5 (lr 0.1, 20 steps).",
    )
    yield (
        "less than a hundredth is no help",
        [*SGD, run("bnp", 0.1, 0.4069)],
        "No remedy helps: plain SGD's best loss is 0.41 (lr 0.1, 20 steps), that of bnp 0.407 (lr 0.1, 20 steps).",
    )
    yield (
        "losses may be negative",
        [run("sgd", 0.1, -1.0), run("bnp", 0.1, -2.0)],
        "bnp at lr 0.1 got lowest, -2: it reached plain SGD's best loss -1 (lr 0.1, 20 steps) after 2 steps.",
    )
    yield (
        "the loser wants other rates",
        [run("sgd", 0.1, 3.0), run("sgd", 1.0, 2.0), run("bnp", 0.1, 1.0)],
        "bnp at lr 0.1 got lowest, 1: it reached plain SGD's best loss 2 (lr 1, 20 steps) after 2 steps. "
        "sgd did best at the largest rate tried: try larger ones too.",
    )
    yield (
        "the loser is a remedy and wants other rates",
        [run("sgd", 0.1, 1.0), run("sgd", 1.0, 2.0), run("bnp", 0.1, 3.0)],
        "No remedy helps: plain SGD's best loss is 1 (lr 0.1, 20 steps), that of bnp 3 (lr 0.1, 20 steps). "
        "bnp did best at the smallest rate tried: try smaller ones too.",
    )
    yield (
        "plain SGD diverges",
        [DIVERGED, run("bnp", 0.1, 0.5)],
        "bnp got lowest, 0.5 (lr 0.1, 20 steps); plain SGD diverged at every rate.",
    )
    yield "no SGD", [run("bnp", 0.1, 0.5)], "bnp got lowest, 0.5 (lr 0.1, 20 steps); plain SGD was not tried."
    yield "SGD alone", [*SGD, REFUSED], "Plain SGD's best loss is 0.41 (lr 0.1, 20 steps); no remedy finished."
    yield "all diverged", [DIVERGED, REFUSED], "No run finished; try lower learning rates."
    yield "all refused", [REFUSED], "No run finished."


@pytest.mark.parametrize(("runs", "said"), [case[1:] for case in cases()], ids=[case[0] for case in cases()])
def test_the_verdict(runs: list[Run], said: str) -> None:
    assert Trial(runs).verdict() == said


def test_a_trial_prints_as_a_table_with_its_verdict() -> None:
    printed = str(Trial([run("sgd", 0.1, 0.41), DIVERGED, REFUSED])).splitlines()
    assert [line.split() for line in printed[:3]] == [
        ["lr", "0.1", "1"],
        ["sgd", "0.41", "diverged", "@", "3"],
        ["bnp", "–"],
    ]
    assert printed[3:] == ["bnp refused: no", Trial([*SGD[1:], REFUSED]).verdict()]
