"""Layers that do more than their type says, calls under no_grad, hooks, and layers of no size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from references import assert_same
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from zoo import integers, normal, seeded

import wellcond as wc


class Lora(nn.Linear):
    """W x + B A x: the weight's own gradient is g xᵀ."""

    def __init__(self, i: int, o: int) -> None:
        super().__init__(i, o)
        self.a, self.b = nn.Parameter(torch.ones(1, i)), nn.Parameter(torch.ones(o, 1))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x @ self.a.T @ self.b.T


class Same(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class ScaledWeight(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, 3 * self.weight, self.bias)


class ScaledOutput(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * super().forward(x)


class ScaledInput(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x / 2)


class Standardized(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        w = self.weight - self.weight.mean(1, keepdim=True)
        return F.linear(x, w / w.std(1, keepdim=True), self.bias)


class Masked(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * torch.tensor([1.0, 0, 1, 1]).to(x), self.bias)


class Rounded(nn.Linear):
    """Weights on a grid, with the gradient passed straight through: that of the plain rule."""

    def forward(self, x: Tensor) -> Tensor:
        w = self.weight + ((8 * self.weight).round() / 8 - self.weight).detach()
        return F.linear(x, w, self.bias)


class Widened(nn.Linear):
    """Its output is longer than its type's."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([super().forward(x)] * 2, -1)


class OwnConv(nn.Conv1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (1, 1)))


class ScaledConv(nn.Conv1d):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class PlainConv(nn.Conv1d):
    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight, self.bias)


class ScaledEmbedding(nn.Embedding):
    def forward(self, x: Tensor) -> Tensor:
        return 4 * super().forward(x)


class PlainEmbedding(nn.Embedding):
    def forward(self, x: Tensor) -> Tensor:
        return F.embedding(x, self.weight)


def problem_of(layer: nn.Module, x: Tensor, **options: Any) -> wc.Problem:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = layer, nn.Linear(seeded(lambda: layer)(x).flatten(1).shape[1], 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.layer(x).flatten(1).tanh())

    model = Around().double()
    return wc.Problem(model, nn.CrossEntropyLoss(), (x, integers(3, len(x))), **options)


LINEAR = normal(7, 4)
SEQUENCES = normal(7, 2, 5)
TOKENS = integers(6, 7 * 3).reshape(7, 3)


@pytest.mark.parametrize("labels", ["data", "model"])
@pytest.mark.parametrize(
    ("build", "x"),
    [
        (lambda: Lora(4, 5), LINEAR), (lambda: Same(4, 5), LINEAR), (lambda: Rounded(4, 5), LINEAR),
        (lambda: PlainConv(2, 3, 2), SEQUENCES), (lambda: PlainEmbedding(6, 2), TOKENS),
    ],
)  # fmt: skip
def test_a_layer_whose_weight_gradient_is_the_rules_is_read(build: Any, x: Tensor, labels: Any) -> None:
    problem = problem_of(seeded(build), x)
    table = wc.conditioning(problem, labels=labels)
    assert list(table) == ["layer", "head"]
    assert table.not_covered == {}


@pytest.mark.parametrize("labels", ["data", "model"])
@pytest.mark.parametrize(
    ("build", "x"),
    [
        (lambda: ScaledWeight(4, 5), LINEAR), (lambda: ScaledOutput(4, 5), LINEAR), (lambda: ScaledInput(4, 5), LINEAR),
        (lambda: Standardized(4, 5), LINEAR), (lambda: Masked(4, 5), LINEAR), (lambda: Widened(4, 5), LINEAR),
        (lambda: OwnConv(2, 3, 2), SEQUENCES), (lambda: ScaledConv(2, 3, 2), SEQUENCES),
        (lambda: ScaledEmbedding(6, 2), TOKENS),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_other_is_listed_by_name(build: Any, x: Tensor, labels: Any, dtype: torch.dtype) -> None:
    layer = seeded(build)
    problem = problem_of(layer, x)
    problem.model.to(dtype)
    batch = problem.batches[0]
    data = (batch[0].to(dtype) if batch[0].is_floating_point() else batch[0], batch[1])
    table = wc.conditioning(wc.Problem(problem.model, nn.CrossEntropyLoss(), data), labels=labels)
    assert list(table) == ["head"]
    assert f"{type(layer).__name__} has a forward of its own" in table.not_covered["layer"]


def test_a_forward_of_the_instance_is_checked_too() -> None:
    layer: Any = seeded(lambda: nn.Linear(4, 5))
    layer.forward = lambda x: 2 * nn.Linear.forward(layer, x)
    assert list(wc.conditioning(problem_of(layer, LINEAR))) == ["head"]
    layer.forward = lambda x: nn.Linear.forward(layer, x)
    assert list(wc.conditioning(problem_of(layer, LINEAR))) == ["layer", "head"]


def test_what_cannot_be_checked_is_listed() -> None:
    layer = seeded(lambda: Lora(4, 5))
    layer.weight.requires_grad_(False)
    table = wc.conditioning(problem_of(layer, LINEAR))
    assert list(table) == ["head"]
    assert "frozen" in table.not_covered["layer"]


def test_a_checked_layer_that_is_called_twice_is_read() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.head = Same(4, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.fc(self.fc(x).tanh()))

    model = seeded(Twice)
    factors = wc.kronecker_factors(wc.Problem(model, nn.CrossEntropyLoss(), (LINEAR, integers(3, 7))))["fc"]
    rows = torch.cat([LINEAR, model.fc(LINEAR).tanh()]).detach()
    assert_same(factors.x.mean[0], rows.T @ rows / 14)


def test_a_parametrized_layer_is_read() -> None:
    table = wc.conditioning(problem_of(weight_norm(seeded(lambda: nn.Linear(4, 5))), LINEAR))
    assert "layer" in table


def test_hooks_do_not_come_between_a_weight_and_what_it_meets() -> None:
    """A pre-hook's input is what the weight meets; a hook's output is not what it produced."""
    hooked: Any = seeded(lambda: nn.Linear(4, 5))
    hooked.register_forward_pre_hook(lambda _m, args: (2 * args[0],))
    hooked.register_forward_hook(lambda _m, _args, output: 3 * output)
    written: Any = seeded(lambda: nn.Linear(4, 5))

    class Head(nn.Module):
        def __init__(self, layer: nn.Module, before: float, after: float) -> None:
            super().__init__()
            self.layer, self.head = layer, seeded(lambda: nn.Linear(5, 3))
            self.before, self.after = before, after

        def forward(self, x: Tensor) -> Tensor:
            return self.head((self.after * self.layer(self.before * x)).tanh())

    batch = (LINEAR, integers(3, 7))
    models = [Head(hooked, 1.0, 1.0), Head(written, 2.0, 3.0)]
    result, expected = (wc.kronecker_factors(wc.Problem(m, nn.CrossEntropyLoss(), batch))["layer"] for m in models)
    assert_same(result.x.mean, expected.x.mean)
    assert_same(result.g.mean, expected.g.mean)


class Teacher(nn.Module):
    """A target computed by the student itself, and by a frozen teacher, under no_grad."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
        self.teacher = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            target = self.student(x + 100) + self.teacher(x)
        return self.student(x) + 0.1 * target.softmax(-1)


def test_calls_under_no_grad_do_not_count() -> None:
    model = seeded(Teacher)
    batch = (LINEAR, integers(3, 7))
    problem = wc.Problem(model, nn.CrossEntropyLoss(), batch)
    table = wc.conditioning(problem)
    assert list(table) == ["student.0", "student.2"]
    assert_same(table["student.0"].x.values, torch.linalg.eigvalsh(LINEAR.T @ LINEAR / 7))
    assert "only under no_grad" in table.not_covered["teacher.0"]

    alone = wc.Problem(model.student, nn.CrossEntropyLoss(), batch)
    units, expected = wc.activations(problem), wc.activations(alone)
    assert_same(units["student.0"].mean, expected["0"].mean)
    assert_same(units["student.0"].variance, expected["0"].variance)
    assert "only under no_grad" in units.not_covered["teacher.0"]
    relus, few = wc.neurons(problem), wc.neurons(alone)
    assert list(relus) == ["student.0"]
    assert torch.equal(relus["student.0"].is_dying, few["0"].is_dying)
    assert torch.equal(relus["student.0"].is_full, few["0"].is_full)
    assert all(p.requires_grad for p in model.student.parameters())
    assert not any(p.requires_grad for p in model.teacher.parameters())


def test_the_order_of_the_layers_is_that_of_the_calls_with_gradients() -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                target = self.second(x)
            return self.second(self.first(x).tanh()) + target.tanh()

    model = seeded(Backwards)
    problem = wc.Problem(model, nn.CrossEntropyLoss(), (LINEAR, integers(3, 7)))
    shift = wc.covariate_shift(problem, torch.optim.SGD(model.parameters(), lr=0.1))
    assert list(shift) == ["first", "second"]


class Sizes(nn.Module):
    """A layer without outputs, one without inputs, one that gets no rows, and one that gets them in a later batch."""

    def __init__(self) -> None:
        super().__init__()
        self.none_out, self.none_in = nn.Linear(4, 0), nn.Linear(0, 3)
        self.no_rows, self.some_rows, self.head = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        nothing = self.none_out(x).sum() + self.no_rows(x[:0]).sum() + self.some_rows(x[x[:, 0] > 50]).sum()
        return self.head(x) + self.none_in(x[:, :0]) + nothing


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
def test_layers_of_no_size_are_listed() -> None:
    model = seeded(Sizes)
    batches = [(LINEAR, integers(3, 7)), (LINEAR + torch.tensor([100.0, 0, 0, 0]).double(), integers(3, 7))]
    problem = wc.Problem(model, nn.CrossEntropyLoss(), batches[:1])
    table = wc.conditioning(problem, fisher_up_to=20)
    assert table["head"].x.rank == 4
    assert table.not_covered.keys() == {"none_out", "none_in", "no_rows", "some_rows"}
    assert "no outputs" in table.not_covered["none_out"]
    assert table["none_out"].x.rank == 4
    assert "no inputs" in table.not_covered["none_in"]
    assert "no rows" in table.not_covered["no_rows"]
    assert "no_rows" in str(table)
    assert len(wc.kronecker_factors(problem).rows()) > 0
    assert str(wc.kronecker_factors(problem))
    both = wc.conditioning(wc.Problem(model, nn.CrossEntropyLoss(), batches))
    assert "some_rows" not in both.not_covered
    assert_same(both["some_rows"].x.values, torch.linalg.eigvalsh(batches[1][0].T @ batches[1][0] / 7))
    assert wc.neurons(problem) is not None
    assert wc.activations(problem)["head"].units == 3
