"""What a diagnosis may take, in which order it is measured, and what Ctrl-C leaves of it."""

from __future__ import annotations

import copy
import functools
import math
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from unchanged import assert_unchanged, snapshot
from zoo import ARCHITECTURES, integers, normal, seeded

import wellcond as wc
from wellcond.curvature.hessian import Hessian
from wellcond.diagnosis import budget as budget_module
from wellcond.diagnosis import diagnose as diagnose_module
from wellcond.diagnosis.budget import FAST_PRODUCTS, FAST_SECONDS, FAST_U, Budget
from wellcond.diagnosis.diagnosis import Diagnosis
from wellcond.diagnosis.on_gpu import OnGpu
from wellcond.diagnosis.parts import Part
from wellcond.errors import UnknownLayer
from wellcond.report.table import Pivot
from wellcond.results import Cost, number
from wellcond.results import quantities as q

LAYER_PARTS = ["inspection", "behavior", "layers", "trial"]
PARTS = [*LAYER_PARTS, "Hessian eigenvalues", "largest stable lr", "Hessian trace"]
LEFT_OUT = ["smallest Hessian eigenvalue", "Hessian trace"]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 3)
    )


def problem(model: nn.Module | None = None) -> wc.Problem:
    return wc.Problem(model or seeded(perceptron).double(), nn.CrossEntropyLoss(), (normal(32, 4), integers(3, 32)))


def recurrent() -> wc.Problem:
    return wc.Problem(seeded(Recurrent).double(), nn.CrossEntropyLoss(), (normal(8, 6, 4), integers(3, 8)))


def in_batches() -> wc.Problem:
    batches = [(normal(9, 4, seed=i), integers(3, 9, seed=i)) for i in range(4)]
    return wc.Problem(seeded(perceptron).double(), nn.CrossEntropyLoss(), batches)


ZOO: dict[str, Callable[[], wc.Problem]] = {
    "perceptron": problem,
    "recurrent": recurrent,
    "in_batches": in_batches,
    **{name: lambda build=build: build().problem() for name, build in ARCHITECTURES.items()},
}
OPTIMIZERS: dict[str, Any] = {
    "none": None,
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}


def optimizer_of(name: str, of: wc.Problem) -> Any:
    return None if name == "none" else OPTIMIZERS[name](list(of.params.values()))


def names(diagnosis: Diagnosis, outcome: str = "measured") -> list[str]:
    return [part.name for part in diagnosis.parts if part.outcome == outcome]


# the price


def slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every network pass for one whose steps are slow; the step that is counted is taken all the same."""
    counted = diagnose_module.nominal_step_seconds
    monkeypatch.setattr(diagnose_module, "nominal_step_seconds", lambda of: counted(of) + math.inf)


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [*((name, "none") for name in ZOO),
     *((name, kind) for name in ("perceptron", "in_batches", "cnn_batch", "lstm") for kind in ("sgd", "adam"))],
)  # fmt: skip
def test_a_fast_diagnosis_takes_at_most_a_hundred_steps(
    name: str, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_steps(monkeypatch)
    of = ZOO[name]()
    before = of.cost
    diagnosis = wc.diagnose(of, optimizer_of(optimizer, of))
    assert not diagnosis.failed
    spent = of.cost - before
    assert spent.u == pytest.approx(diagnosis.cost.u)
    assert diagnosis.cost.u == pytest.approx(sum(part.cost.u for part in diagnosis.parts))
    assert diagnosis.cost.u <= FAST_U
    assert sum(part.estimate for part in diagnosis.parts) <= FAST_U
    # products are counted as 2 u per batch; at what they can really take, the price holds too
    price = 6.0 if any(isinstance(m, nn.RNNBase) for m in of.model.modules()) else 3.5
    assert spent.u + (price - 2) * spent.matvecs <= FAST_U


# the clock of a GPU


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch, step_seconds: float) -> None:
    """Let a GPU's training step take this long, and its passes in full precision the same."""
    measured = OnGpu(step_seconds, 1.0, 1e9, 10**6, 10**6, 10**6)
    monkeypatch.setattr(diagnose_module, "on_gpu", lambda of: measured)


@pytest.mark.parametrize(("step_seconds", "seconds"), [(1e-3, 5.0), (0.05, 5.0), (0.2, 20.0)])
def test_on_a_gpu_a_fast_diagnosis_has_the_seconds_of_a_hundred_steps_or_five(
    step_seconds: float, seconds: float
) -> None:
    budget = Budget("fast", problem(), None, 8, Cost())
    assert budget.seconds == math.inf
    assert budget.seconds_left() is None
    budget.limit_on_gpu(OnGpu(step_seconds, 1.0, 1e9, 8, 8, 10))
    assert budget.promised == seconds
    planned = budget_module.SHARE_OF_CLOCK * seconds
    assert budget.seconds == planned < seconds
    assert 0.9 * planned < (budget.seconds_left() or 0.0) <= planned
    assert 0.7 * planned < (budget.seconds_of_trial() or 0.0) <= 0.75 * planned
    assert not budget.is_spent


def test_on_a_gpu_what_the_clock_leaves_no_time_for_is_left_out_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_module, "GPU_SECONDS", 1e-6)
    as_on_a_gpu(monkeypatch, 1e-9)
    diagnosis = wc.diagnose(problem(), None)
    assert names(diagnosis) == ["inspection", "behavior"]
    assert set(names(diagnosis, "left out")) >= {"layers", "trial", "Hessian eigenvalues"}
    assert {"layers", "trial"} <= set(diagnosis.left_out)


@pytest.mark.slow
def test_on_a_gpu_with_time_nothing_is_left_out_and_only_small_matrices_have_all_eigenvalues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(budget_module, "EXACT_ON_GPU", 3)
    on_cpu = wc.diagnose(problem(), None)
    as_on_a_gpu(monkeypatch, 1.0)
    diagnosis = wc.diagnose(problem(), None)
    assert names(diagnosis) == names(on_cpu)
    lowered = [
        (own.x, whole.x)
        for own, whole in zip(diagnosis.conditioning.values(), on_cpu.conditioning.values(), strict=True)  # type: ignore[union-attr]
        if whole.x.dimension > 3
    ]
    assert lowered
    for own, whole in lowered:
        assert own.rank is None
        assert "by Lanczos on all rows" in own.note
        assert own.lambda_max == pytest.approx(whole.lambda_max, rel=1e-3)
        assert own.trace == pytest.approx(whole.trace, rel=1e-6)


TROUBLE: dict[str, Callable[[], tuple[wc.Problem, Any]]] = {
    "rate too high": lambda: in_trouble(perceptron, lr=1e4),
    "rate too low": lambda: in_trouble(perceptron, lr=1e-9),
    "decay and dropout": lambda: in_trouble(
        lambda: nn.Sequential(nn.Linear(4, 30), nn.Dropout(0.9), nn.ReLU(), nn.Linear(30, 3)),
        lr=1e-3,
        weight_decay=50.0,
    ),
    "zeros": lambda: in_trouble(zeros, lr=0.1),
}


def zeros() -> nn.Module:
    model = perceptron()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def in_trouble(make: Callable[[], nn.Module], **settings: float) -> tuple[wc.Problem, Any]:
    batches = [(normal(16, 4, seed=i), integers(3, 16, seed=i)) for i in range(40)]
    of = wc.Problem(seeded(make).double(), nn.CrossEntropyLoss(), batches)
    return of, torch.optim.SGD(of.model.parameters(), **settings)


@pytest.mark.slow
@pytest.mark.parametrize("case", TROUBLE)
@pytest.mark.parametrize("is_slow", [True, False], ids=["slow", "quick"])
def test_a_network_in_trouble_takes_no_more(case: str, is_slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    of, optimizer = TROUBLE[case]()
    wc.diagnose(of, optimizer)  # what is done once per process is done
    if is_slow:
        slow_steps(monkeypatch)
    began = time.process_time()
    diagnosis = wc.diagnose(of, optimizer)
    seconds = time.process_time() - began
    assert diagnosis.cost.u <= FAST_U or (not is_slow and seconds <= FAST_SECONDS)
    assert not diagnosis.failed
    planned = sum(part.estimate for part in diagnosis.parts)
    assert diagnosis.cost.u <= planned
    assert not is_slow or planned == FAST_U
    together = sum(part.cost.u for part in diagnosis.parts)
    assert together == pytest.approx(diagnosis.cost.u)
    assert f"{number(together)} u of at most {number(planned)} u estimated" in " ".join(str(diagnosis).split())
    for name in ("layers", "largest stable lr"):
        part = next(part for part in diagnosis.parts if part.name == name)
        assert part.outcome == "left out" or part.note.endswith("of 40 batches")


class Logits(nn.Module):
    """A network of transformers, which returns logits of (N, classes)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.network(inputs).logits
        return logits.flatten(0, -2)


RESNET50 = {"hidden_sizes": [64, 128, 256, 512], "embedding_size": 16, "num_labels": 10}  # a quarter of its width
GPT2 = {"n_layer": 4, "n_embd": 128, "n_head": 4, "vocab_size": 500, "n_positions": 64}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "count"), [("resnet-50", 20), ("gpt-2", 1), ("gpt-2", 20), ("lstm", 1), ("lstm", 20)]
)
def test_the_price_holds_as_it_is_on_ordinary_networks(network: str, count: int, transformers: Any) -> None:
    torch.manual_seed(0)
    model: nn.Module
    if network == "resnet-50":
        model = Logits(transformers.ResNetForImageClassification(transformers.ResNetConfig(**RESNET50)))
        batches = [(torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,))) for _ in range(count)]
    elif network == "gpt-2":
        model = Logits(transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2)))
        tokens = [torch.randint(0, 500, (4, 33)) for _ in range(count)]
        batches = [(t[:, :-1], t[:, 1:].flatten()) for t in tokens]
    else:
        model = Recurrent()
        batches = [(normal(32, 50, 4, seed=i).float(), integers(3, 32, seed=i)) for i in range(count)]
    of = wc.Problem(model, nn.CrossEntropyLoss(), batches)
    seen: list[Diagnosis] = []
    began = time.process_time()
    diagnosis = wc.diagnose(of, torch.optim.AdamW(of.model.parameters(), lr=1e-3), on_part=seen.append)
    seconds = time.process_time() - began
    assert seen[0].cost.u <= 4
    assert diagnosis.cost.u <= FAST_U or seconds <= FAST_SECONDS
    assert not diagnosis.failed


@pytest.mark.slow
def test_a_seed_fixes_the_numbers_of_a_fast_diagnosis() -> None:
    assert wc.diagnose(in_batches()).rows() == wc.diagnose(in_batches()).rows()


@pytest.fixture(scope="module")
def largest() -> float:
    return float(torch.linalg.eigvalsh(wc.Hessian(problem()).dense())[-1])


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["fast", "full", 60.0])
def test_the_eigenvalue_and_the_rate_are_those_of_the_dense_hessian(budget: Any, largest: float) -> None:
    diagnosis = wc.diagnose(problem(), budget=budget)
    assert diagnosis.hessian is not None
    assert diagnosis.max_lr is not None
    assert diagnosis.hessian.values[-1] == pytest.approx(largest, rel=1e-2)
    assert diagnosis.max_lr.value == pytest.approx(2 * 1.9 / largest, rel=1e-2)


@pytest.mark.slow
def test_what_fast_leaves_out_is_said_with_the_line_that_gets_it() -> None:
    fast, full = (wc.diagnose(problem(), budget=budget) for budget in ("fast", "full"))
    assert names(fast) == PARTS[:-1]
    assert list(fast.left_out) == LEFT_OUT
    assert not fast.failed
    assert 'smallest Hessian eigenvalue, Hessian trace: budget="full" measures it' in " ".join(str(fast).split())
    assert q.HESSIAN.lambda_min not in Pivot.of(fast.rows()).network
    assert names(full) == PARTS
    assert not full.left_out
    assert {q.HESSIAN.lambda_min, q.HESSIAN.trace} <= set(Pivot.of(full.rows()).network)
    assert full.hessian is not None
    assert full.hessian.converged


@pytest.mark.slow
def test_the_price_of_every_part_is_a_row_and_in_the_text_and_on_the_page() -> None:
    diagnosis = wc.diagnose(problem())
    numbers = Pivot.of(diagnosis.rows()).network
    for part in diagnosis.parts:
        if part.outcome == "measured":
            assert numbers[q.PART_COST[part.name]] == part.cost.u
            assert numbers[q.PART_ESTIMATE[part.name]] == part.estimate
            assert part.seconds > 0
    planned = sum(part.estimate for part in diagnosis.parts)
    assert f"of at most {planned:.3g} u estimated" in " ".join(str(diagnosis).split())
    page = diagnosis.page()
    assert "What it took" in page
    assert "Left out" in page


@pytest.mark.slow
def test_adam_has_its_rate_first_and_the_hessian_what_is_left() -> None:
    of = problem()
    optimizer = optimizer_of("adam", of)
    diagnosis = wc.diagnose(of, optimizer)
    rate, ends = diagnosis.parts[4:6]
    assert (rate.name, ends.name) == ("largest stable lr", "Hessian eigenvalues")
    assert ends.outcome == ("measured" if FAST_PRODUCTS - rate.cost.matvecs - 1 >= 3 else "left out")
    assert rate.cost.matvecs + ends.cost.matvecs <= FAST_PRODUCTS
    full = wc.diagnose(of, optimizer, budget="full")
    assert names(full) == [*LAYER_PARTS, "largest stable lr", "Hessian eigenvalues", "Hessian trace"]


def test_a_rate_that_needs_few_products_leaves_them_to_the_hessian() -> None:
    of = wc.Problem(nn.Linear(1, 1, bias=False).double(), nn.MSELoss(), (normal(8, 1), normal(8, 1, seed=1)))
    diagnosis = wc.diagnose(of, torch.optim.Adam(of.params.values()))
    assert names(diagnosis) == [*LAYER_PARTS, "largest stable lr", "Hessian eigenvalues"]
    assert diagnosis.hessian is not None
    assert diagnosis.hessian.values[-1] == pytest.approx(float(wc.Hessian(of).dense()), rel=1e-6)


@pytest.mark.parametrize(
    "groups",
    [{"lr": 0.1}, {"momentum": 0.5}, {"weight_decay": 0.1}, {}],
    ids=["lr", "momentum", "weight_decay", "alike"],
)
def test_sgd_whose_groups_step_alike_needs_no_spectrum_of_its_own(groups: dict[str, float]) -> None:
    of = problem()
    first, *others = of.params.values()
    diagnosis = wc.diagnose(of, torch.optim.SGD([{"params": [first], **groups}, {"params": others}], lr=0.2))
    assert diagnosis.max_lr is not None
    assert (diagnosis.max_lr.cost.matvecs == 0) == (not groups)


@pytest.mark.parametrize("budget", ["slow", 0, -1.0, float("nan"), None, True])
def test_what_is_no_budget_is_refused_before_the_work(budget: Any) -> None:
    of = problem()
    with pytest.raises(ValueError, match='write "fast", "full" or a number of seconds'):
        wc.diagnose(of, budget=budget)
    assert of.cost.u == 0


# seconds


def slow_down(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let every pass with Hessian products take so long."""
    products = Hessian._products_of

    def slow(self: Hessian, jobs: Any) -> Any:
        time.sleep(seconds)
        return products(self, jobs)

    monkeypatch.setattr(Hessian, "_products_of", slow)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["none", "adam"])
def test_seconds_are_kept_to_within_a_product(monkeypatch: pytest.MonkeyPatch, optimizer: str) -> None:
    of = problem()
    optimizer_used = optimizer_of(optimizer, of)
    wc.diagnose(of, optimizer_used)  # what is done once per process is done
    slow_down(monkeypatch, 0.1)
    began = time.perf_counter()
    diagnosis = wc.diagnose(of, optimizer_used, budget=2.0)
    assert time.perf_counter() - began < 2.0 + 0.1 + 0.5  # a product, and a machine that has other work
    assert not diagnosis.failed
    assert diagnosis.hessian is not None
    assert diagnosis.hessian.matvecs >= 2


def test_seconds_that_are_spent_leave_the_rest_out() -> None:
    diagnosis = wc.diagnose(problem(), budget=1e-6)
    assert names(diagnosis) == PARTS[:1]  # a look is always taken
    assert list(diagnosis.left_out) == PARTS[1:]
    assert "of the budget were spent" in diagnosis.left_out["Hessian trace"]
    assert str(diagnosis)
    assert diagnosis.page()


# some layers


@pytest.mark.slow
def test_only_chosen_layers_are_listed_and_the_rate_is_of_the_whole() -> None:
    whole, some = wc.diagnose(problem()), wc.diagnose(problem(), layers=["3", "0"])
    assert whole.max_lr is not None
    assert some.max_lr is not None
    assert some.max_lr.value == whole.max_lr.value
    pivot, all_layers = Pivot.of(some.rows()), Pivot.of(whole.rows())
    listed = ("0", "3", "0.weight", "0.bias", "3.weight", "3.bias")
    assert pivot.layers == {name: all_layers.layers[name] for name in listed}
    assert "1" in all_layers.layers  # the BatchNorm has weights, too
    nested = problem(nn.Sequential(nn.Sequential(nn.Linear(4, 5), nn.ReLU()), nn.Linear(5, 3)).double())
    assert set(Pivot.of(wc.diagnose(nested, layers="0").rows()).layers) == {"0.0", "0.0.weight", "0.0.bias"}


def test_an_unknown_layer_is_refused_early_with_similar_names() -> None:
    of = problem()
    with pytest.raises(UnknownLayer, match="33"):
        wc.diagnose(of, layers="33")
    assert of.cost.u == 0


@pytest.mark.slow
def test_where_the_spectrum_of_a_layer_came_from_is_said() -> None:
    wide = problem(nn.Sequential(nn.Linear(4, 50), nn.ReLU(), nn.Linear(50, 3)).double())
    from_rows = "from the products of rows, which are fewer than features"
    assert wc.diagnose(wide).notes == {"Σ∇h of 0": from_rows, "Σx of 2": from_rows}
    assert f"Σ∇h of 0, Σx of 2: {from_rows}" in " ".join(str(wc.diagnose(wide)).split())
    assert not wc.diagnose(problem()).notes


# as it goes


@pytest.mark.slow
def test_findings_are_there_after_a_look_of_at_most_four_passes() -> None:
    seen: list[Diagnosis] = []
    model = nn.Sequential(seeded(perceptron), nn.Softmax(1)).double()
    diagnosis = wc.diagnose(problem(model), on_part=seen.append)
    assert [part.name for part in seen[0].parts] == ["inspection"]
    assert seen[0].cost.u <= 4
    assert seen[0].findings[0].rule == diagnosis.findings[0].rule == "output-loss-mismatch"


def test_seconds_bound_the_trial_too() -> None:
    of = in_batches()
    diagnosis = wc.diagnose(of, optimizer_of("sgd", of), budget=1e-2)
    assert diagnosis.trial is None or not diagnosis.trial.others


@pytest.mark.slow
def test_every_part_is_handed_over_as_soon_as_it_is_there() -> None:
    seen: list[Diagnosis] = []
    final = wc.diagnose(problem(), budget="full", on_part=seen.append)
    assert [each.parts[-1].name for each in seen] == PARTS
    assert [len(each.parts) for each in seen] == list(range(1, 1 + len(PARTS)))
    assert [each.gradients is not None for each in seen] == [False] * 2 + [True] * 5
    assert [each.conditioning is not None for each in seen] == [False] * 2 + [True] * 5
    assert [each.trial is not None for each in seen] == [False] * 3 + [True] * 4
    assert [each.max_lr is not None for each in seen] == [False] * 5 + [True] * 2
    counts = [len(each.rows()) for each in seen]
    assert counts == sorted(counts)
    assert seen[-1].rows() == final.rows()
    assert all(str(each) for each in seen)


# Ctrl-C


def interrupted_at(monkeypatch: pytest.MonkeyPatch, product: int) -> None:
    count = iter(range(1, 1000))
    multiply = Hessian._multiply

    def interrupted(self: Hessian, columns: torch.Tensor) -> torch.Tensor:
        if next(count) == product:
            raise KeyboardInterrupt
        return multiply(self, columns)

    monkeypatch.setattr(Hessian, "_multiply", interrupted)


@functools.cache
def whole_diagnosis(optimizer: str) -> Diagnosis:
    of = problem()
    return wc.diagnose(of, optimizer_of(optimizer, of), budget="full")


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("optimizer", ["none", "adam"])
def test_an_interrupted_part_leaves_all_that_was_measured_before(part: str, optimizer: str) -> None:
    whole, of = whole_diagnosis(optimizer), problem()
    before = snapshot(of.model)
    state = copy.deepcopy(of.model.state_dict())

    def progress(what: str, share: float) -> None:
        if what == part:
            raise KeyboardInterrupt

    diagnosis = wc.diagnose(of, optimizer_of(optimizer, of), budget="full", progress=progress)
    order = names(whole)
    assert diagnosis.is_interrupted
    assert names(diagnosis) == order[: order.index(part)]
    assert diagnosis.failed == dict.fromkeys(order[order.index(part) :], "interrupted")
    measured = {row for row in diagnosis.rows() if row.unit != "u"}
    assert measured <= {row for row in whole.rows() if row.unit != "u"}
    assert str(diagnosis)
    assert diagnosis.page()
    assert_unchanged(before, snapshot(of.model))
    assert all(torch.equal(value, state[name]) for name, value in of.model.state_dict().items())


@pytest.mark.parametrize("product", range(1, 7))
def test_an_interrupted_spectrum_is_kept_with_the_rate_from_it(monkeypatch: pytest.MonkeyPatch, product: int) -> None:
    of = problem()
    before = snapshot(of.model)
    interrupted_at(monkeypatch, product)
    diagnosis = wc.diagnose(of, budget="full")
    assert diagnosis.is_interrupted
    assert_unchanged(before, snapshot(of.model))
    if diagnosis.hessian is None:
        assert product <= 3
        assert list(diagnosis.failed) == PARTS[4:]
    else:
        assert diagnosis.hessian.matvecs == product - 1
        assert names(diagnosis, "cut short") == ["Hessian eigenvalues"]
        assert f"interrupted after {product - 1} products" in diagnosis.parts[4].note
        assert diagnosis.max_lr is not None
        assert list(diagnosis.failed) == ["Hessian trace"]


@pytest.mark.slow
def test_a_second_ctrl_c_is_heeded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted_at(monkeypatch, 6)

    def progress(what: str, share: float) -> None:
        if what == "largest stable lr":
            raise KeyboardInterrupt

    diagnosis = wc.diagnose(problem(), budget="full", progress=progress)
    assert diagnosis.hessian is not None
    assert diagnosis.failed == {"largest stable lr": "interrupted", "Hessian trace": "interrupted"}


def test_ctrl_c_while_a_part_is_handed_over_ends_the_work() -> None:
    def hand_over(diagnosis: Diagnosis) -> None:
        if diagnosis.parts[-1].name == "layers":
            raise KeyboardInterrupt

    diagnosis = wc.diagnose(problem(), on_part=hand_over)
    assert names(diagnosis) == LAYER_PARTS[:3]
    assert list(diagnosis.failed) == ["trial", "Hessian eigenvalues", "largest stable lr"]


@pytest.mark.slow
def test_parts_are_values() -> None:
    part = wc.diagnose(problem()).parts[2]
    assert isinstance(part, Part)
    assert (part.name, part.outcome, part.note) == ("layers", "measured", "")
