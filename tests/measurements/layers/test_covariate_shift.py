"""Internal covariate shift against definition 2.1 of santurkar2018, done by hand on deep copies."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from shift_by_hand import (
    OPTIMIZERS,
    ORDERS,
    after_step,
    assert_by_hand,
    assert_shift,
    case_of,
    counted,
    data_of,
    gradients,
    take_step,
    trained,
)
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset
from zoo import CLASSES, Written, integers, normal, seeded, split

import wellcond as wc
from wellcond.errors import UnknownLayer
from wellcond.measurements.layers.covariate_shift import covariate_shift

BATCH = (normal(6, 4), integers(CLASSES, 6))


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("architecture", ORDERS)
def test_it_is_the_definition_done_by_hand(architecture: str, optimizer: str) -> None:
    case = case_of(architecture)
    stepping = trained(case, OPTIMIZERS[optimizer])
    updated = after_step(case.model, stepping, *data_of(case))
    shifts = covariate_shift(case.problem(), stepping)
    assert_by_hand(shifts, case.model, updated, ORDERS[architecture], data_of(case))
    first = shifts[ORDERS[architecture][0]]
    assert (first.difference, first.cosine) == (0.0, 1.0)  # exactly: nothing moves before it


def test_two_uneven_batches_count_by_their_terms() -> None:
    case = case_of("mlp_tanh")
    batches = split(case.batch, [5, 1])
    optimizer = trained(case, OPTIMIZERS["adam"])
    updated = after_step(case.model, optimizer, *data_of(case, batches))
    shifts = covariate_shift(case.problem(batches=batches), optimizer)
    assert_by_hand(shifts, case.model, updated, ["0", "2"], data_of(case, batches))


# closed forms and edges


def chain(*weights: float) -> wc.Problem:
    """L = ∏ w_i on one example."""
    model = nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in weights)).double()
    for layer, w in zip(model, weights, strict=True):
        nn.init.constant_(layer.weight, w)
    return wc.Problem(model, lambda outputs, _: outputs.mean(), (torch.ones(1, 1).double(), torch.zeros(1)))


def test_three_numbers_in_a_row_have_a_closed_form() -> None:
    """G_i = ∏_{j≠i} w_j; w_1 → 1 − 6·lr = 0.4, w_2 → 2 − 3·lr = 1.7 with lr = 0.1."""
    shifts = covariate_shift(problem := chain(1.0, 2.0, 3.0), SGD(problem.model.parameters(), lr=0.1))
    assert [shift.gradient_norm for shift in shifts.values()] == pytest.approx([6.0, 3.0, 2.0], rel=1e-15)
    assert [shift.updated_norm for shift in shifts.values()] == pytest.approx([6.0, 0.4 * 3.0, 0.4 * 1.7], rel=1e-14)
    assert [shift.difference for shift in shifts.values()] == pytest.approx([0.0, 1.8, 2 - 0.68], rel=1e-14)
    assert [shift.cosine for shift in shifts.values()] == pytest.approx([1.0, 1.0, 1.0], rel=1e-15)


EDGES = {
    "turned": ((1.0, 2.0), 1.0, "1", (2.0, -1.0, 1.0, 1.0), ""),
    "zero": ((0.0, 0.0, 1.0), 0.1, "0", (0.0, math.nan, 0.0, 0.0), "its gradient is zero"),
    "vanished": ((1.0, 1.0), 1.0, "1", (1.0, math.nan, 1.0, 0.0), "zero once the layers before it have moved"),
    "infinite": ((1.0, 2.0), math.inf, "1", (math.nan, math.nan, 1.0, math.nan), "no finite gradient once the layers"),
}
"""Weights, lr, and what is expected of a layer."""


@pytest.mark.parametrize(("weights", "lr", "layer", "numbers", "note"), EDGES.values(), ids=EDGES)
def test_gradients_that_turn_vanish_or_explode_are_said(
    weights: tuple[float, ...], lr: float, layer: str, numbers: tuple[float, ...], note: str
) -> None:
    shifts = covariate_shift(problem := chain(*weights), SGD(problem.model.parameters(), lr=lr))
    shift = shifts[layer]
    assert (shift.difference, shift.cosine, shift.gradient_norm, shift.updated_norm) == pytest.approx(
        numbers, rel=1e-15, nan_ok=True
    )
    assert note in shift.note
    assert bool(shift.note) == bool(note)
    assert shift.note in str(shifts)
    assert layer == "0" or not shifts["0"].note


def test_one_layer_has_no_shift_and_needs_one_pass() -> None:
    problem = wc.Problem(model := seeded(lambda: nn.Linear(4, CLASSES)), nn.CrossEntropyLoss(), BATCH)
    shifts = covariate_shift(problem, SGD(model.parameters(), lr=0.1))
    assert (shifts[""].difference, shifts[""].cosine, shifts.cost.u) == (0.0, 1.0, 1)
    assert shifts["weight"].difference == 0.0
    assert "(model)" in str(shifts)


# layers


class Positions(nn.Module):
    """A container that owns a parameter, a list of parameters that is never called, a head that is tied, one unused."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(2, 2)
        self.head = nn.Linear(4, 5)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.mixer = weight_norm(nn.Linear(4, 4))
        self.gains = nn.ParameterList([nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))])
        self.embed = nn.Embedding(5, 4)
        self.position = nn.Parameter(torch.randn(3, 4))
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens) + self.position
        return self.head(torch.tanh(self.frozen(self.mixer(h) * self.gains[0] + self.gains[1])).mean(1))


OWNED = {
    "": ["position", "gains.0", "gains.1"],
    "embed": ["head.weight"],
    "mixer": ["mixer.bias", "mixer.parametrizations.weight.original0", "mixer.parametrizations.weight.original1"],
    "head": ["head.bias"],
    "unused": ["unused.weight", "unused.bias"],
}


def test_containers_lists_tied_parametrized_frozen_and_unused_layers() -> None:
    model = seeded(Positions)
    data = nn.CrossEntropyLoss(), [(integers(5, 4, 3), integers(5, 4, seed=1))], "batch"
    optimizer = SGD(model.parameters(), lr=0.5, weight_decay=0.1)
    shifts = covariate_shift(wc.Problem(model, *data), optimizer)
    assert list(shifts) == list(OWNED)

    updated = copy.deepcopy(model)
    take_step(updated, SGD(updated.parameters(), lr=0.5, weight_decay=0.1), *data)
    new, g = dict(updated.named_parameters()), gradients(copy.deepcopy(model), *data)
    moved: list[str] = []
    for layer in list(OWNED)[:-1]:
        mixed = copy.deepcopy(model)
        with torch.no_grad():
            for name in moved:
                dict(mixed.named_parameters())[name].copy_(new[name])
        g_new = gradients(mixed, *data)
        assert_shift(shifts[layer], [g[n] for n in OWNED[layer]], [g_new[n] for n in OWNED[layer]])
        moved += OWNED[layer]
    assert shifts["embed.weight"] is shifts["head.weight"]
    assert "head.weight is also" in shifts["embed"].note or "embed.weight" in shifts["embed"].note
    assert shifts["unused"].gradient_norm == shifts["unused"].difference == 0.0
    assert "never called" in shifts["unused"].note
    with pytest.raises(UnknownLayer, match="mixer"):
        shifts["frozen"]


def test_attention_that_is_never_called_is_one_layer_too() -> None:
    model = seeded(
        lambda: Written(lambda m, x: m.head(x), idle=nn.MultiheadAttention(4, 2), head=nn.Linear(4, CLASSES))
    )
    problem = wc.Problem(model, nn.CrossEntropyLoss(), BATCH)
    shifts = covariate_shift(problem, SGD(model.parameters(), lr=0.1))
    assert list(shifts) == ["head", "idle"]
    assert shifts["idle.out_proj.weight"].difference == 0.0


def test_a_layer_without_gradient_does_not_move_despite_weight_decay() -> None:
    """Its gradient is None, as in training, and not zero, of which an optimizer would make a step."""
    forward = lambda m, x: m.second(m.first(x).detach())  # noqa: E731
    model = seeded(lambda: Written(forward, first=nn.Linear(4, 4), second=nn.Linear(4, CLASSES)))
    problem = wc.Problem(model, nn.CrossEntropyLoss(), BATCH)
    shifts = covariate_shift(problem, SGD(model.parameters(), lr=0.1, weight_decay=1.0))
    assert shifts["first"].note == "no gradient reaches it; its gradient is zero"
    assert (shifts["second"].difference, shifts["second"].cosine, shifts.cost.u) == (0.0, 1.0, 1)


def test_layers_restrict_the_passes_but_not_the_numbers() -> None:
    case = case_of("encoder_layer")
    optimizer = trained(case, OPTIMIZERS["adam"])
    everything = covariate_shift(case.problem(), optimizer)
    some = covariate_shift(case.problem(), optimizer, layers=["0.linear2", "2.weight"])
    assert list(some) == ["0.linear2", "2"]
    assert list(covariate_shift(case.problem(), optimizer, layers="0.linear2")) == ["0.linear2"]
    assert [some[name] for name in some] == [everything[name] for name in some]
    assert (some.cost.forwards, some.cost.backwards) == (3, 3)
    with pytest.raises(UnknownLayer, match="nothing"):
        covariate_shift(case.problem(), optimizer, layers=["nothing"])
    with pytest.raises(UnknownLayer, match=r"'0\.norm1'"):
        some["0.norm1"]


def test_parameters_the_optimizer_does_not_hold_do_not_move() -> None:
    case = case_of("mlp_relu")
    shifts = covariate_shift(case.problem(), SGD([case.model[2].weight], lr=0.1))
    updated = copy.deepcopy(case.model)
    take_step(updated, SGD([updated[2].weight], lr=0.1), *data_of(case))
    assert_by_hand(shifts, case.model, updated, ["0", "2", "4"], data_of(case))
    assert shifts["2"].difference == 0.0
    assert (shifts.cost.forwards, shifts.cost.backwards) == (2, 2)  # nothing moves before "2"


# cost


@pytest.mark.parametrize("sizes", [[6], [4, 2]], ids=["one_batch", "two_batches"])
@pytest.mark.parametrize("build", ["adam", "lbfgs"])
def test_passes_are_counted(sizes: list[int], build: str) -> None:
    model = counted()
    problem = wc.Problem(model, nn.CrossEntropyLoss(), split(BATCH, sizes))
    shifts = covariate_shift(problem, OPTIMIZERS[build](model.parameters()))
    assert model[-1].forwards == shifts.cost.forwards
    assert model[-1].backwards == shifts.cost.backwards
    assert str(shifts.cost) in str(shifts)
    if build == "adam":
        assert shifts.cost.forwards == shifts.cost.backwards == 4 * len(sizes)
        loader = DataLoader(TensorDataset(*BATCH), batch_size=6)  # no pass more than a list
        problem = wc.Problem(model, nn.CrossEntropyLoss(), loader)
        assert covariate_shift(problem, SGD(model.parameters(), lr=0.1)).cost.forwards == 4


def test_passes_that_look_for_the_culprit_are_counted() -> None:
    """w₁ = 1 − 6e200 and w₂ = 2 − 3e200 are finite and their product is not: a second pass looks for the layer."""
    problem, calls = chain(1.0, 2.0, 3.0), []
    problem.model.register_forward_hook(lambda *_: calls.append(None))
    shifts = covariate_shift(problem, SGD(problem.model.parameters(), lr=1e200))
    assert len(calls) == shifts.cost.forwards == 4
    assert shifts.cost.backwards == 2
    assert "no finite gradient" in shifts["2"].note


def test_small_shifts_can_be_told_from_none() -> None:
    case = case_of("mlp_relu")
    text = str(covariate_shift(case.problem(), SGD(case.model.parameters(), lr=1e-4)))
    ends = [line.split("  ")[-1].strip() for line in text.splitlines()[1:4]]
    assert ends[0] == "1"
    assert all(end.startswith("1 − ") and 0 < float(end[4:]) < 1e-3 for end in ends[1:])


def test_parameters_that_share_memory_are_noted() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, CLASSES)))
    model[1].weight.data = model[0].weight.data
    problem = wc.Problem(model, nn.CrossEntropyLoss(), BATCH)
    shifts = covariate_shift(problem, SGD(model.parameters(), lr=0.1))
    assert "'0.weight' and '1.weight' share their memory" in shifts["1"].note
    assert not shifts["0"].note


def test_rows_carry_the_training_step() -> None:
    shifts = covariate_shift(problem := chain(1.0, 2.0), SGD(problem.model.parameters(), lr=0.1))
    rows = shifts.rows(step=7)
    assert {row.step for row in rows} == {7}
    assert [(row.layer, row.quantity, row.value) for row in rows[4:]] == [
        ("1", "shift_difference", pytest.approx(0.2)),
        ("1", "shift_cosine", 1.0),
        ("1", "gradient_norm", 1.0),
        ("1", "shifted_gradient_norm", pytest.approx(0.8)),
    ]
    assert shifts.rows()[0].step is None


def test_single_precision_is_measured_too() -> None:
    case = case_of("mlp_relu")
    optimizer = SGD(case.model.parameters(), lr=0.1)
    double = covariate_shift(case.problem(), optimizer)
    case.model.float()
    inputs, targets = case.batch
    single = covariate_shift(case.problem(batches=[(inputs.float(), targets)]), optimizer)
    for name in double:
        assert single[name].difference == pytest.approx(double[name].difference, rel=1e-4)
