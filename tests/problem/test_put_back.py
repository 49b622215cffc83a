"""What modules and losses hold is the same object with the same contents after a measurement."""

from __future__ import annotations

import collections
import copy
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellcond as wc
from wellcond.errors import InvalidProblem, NotDeterministic

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])


@dataclass
class Notes:
    count: int = 0
    seen: list[Any] = field(default_factory=list)


class Slotted:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


Pair = collections.namedtuple("Pair", "first second")


class Busy(nn.Module):
    """It changes everything that it holds on every pass."""

    of_the_class: list[int] = []  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.calls, self.temperature, self.name = 0, 1.0, "idle"
        self.outputs: list[Any] = []
        self.cache: dict[str, Any] = {"nested": {"mean": torch.zeros(3)}}
        self.recent: collections.deque[Tensor] = collections.deque(maxlen=2)
        self.members = {1}
        self.pair = Pair(torch.zeros(3), [torch.zeros(3)])
        self.array = np.zeros(3)
        self.notes, self.slotted = Notes(), Slotted()
        self.counter, self.generator = itertools.count(), random.Random(0)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("start", self.mean[:3])
        self.anything: Any = {"itself": None}
        self.anything["itself"] = self.anything

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(x)
        self.calls += 1
        self.temperature *= 0.5
        self.name += "!"
        self.outputs.append(out)
        self.cache["last"] = out
        self.cache["nested"]["mean"].add_(1)
        self.recent.append(out.detach())
        self.members.add(self.calls + 1)
        self.pair.first.add_(1)
        self.pair.second[0].add_(1)
        self.pair.second.append(out)
        self.array += 1
        self.notes.count += 1
        self.notes.seen.append(out)
        self.slotted.count += 1
        next(self.counter)
        self.generator.random()
        self.of_the_class.append(1)
        self.mean.add_(1)
        assert bool((self.start == self.mean[:3]).all()), "views of one storage are lent as such"
        self.register_buffer("new", out.detach())
        self.later = 1
        return out


def everything(module: Busy) -> list[Any]:
    """Objects for their identity, then their contents."""
    own = {key: value for key, value in vars(module).items() if key not in ("_parameters", "_modules")}
    plain = {key: value for key, value in own.items() if key not in ("notes", "slotted", "generator", "anything")}
    contents = [plain, module.notes.__dict__, module.slotted.count, module.generator.getstate(), Busy.of_the_class]
    return [{key: id(value) for key, value in own.items()}, copy.deepcopy(contents)]


def is_same(first: Any, second: Any) -> bool:
    if isinstance(first, (Tensor, np.ndarray)):
        return bool((first == second).all())
    if isinstance(first, dict):
        return list(first) == list(second) and all(is_same(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple, collections.deque)):
        return len(first) == len(second) and all(map(is_same, first, second))
    return repr(first) == repr(second)


MEASUREMENTS: list[Callable[[wc.Problem], Any]] = [
    wc.conditioning,
    lambda problem: wc.Hessian(problem) @ torch.ones(problem.size),
    wc.activations,
]


@pytest.mark.parametrize("measure", MEASUREMENTS)
def test_what_a_module_holds_is_put_back(measure: Callable[[wc.Problem], Any]) -> None:
    model = Busy()
    before = everything(model)
    storage = model.mean.data_ptr(), model.pair.first.data_ptr()
    measure(wc.Problem(nn.Sequential(model, nn.Tanh()), nn.CrossEntropyLoss(), (X, Y)))
    assert is_same(before, everything(model))
    assert (model.mean.data_ptr(), model.pair.first.data_ptr()) == storage
    assert model.start.data_ptr() == model.mean.data_ptr()


def test_it_is_put_back_after_an_exception() -> None:
    class Failing(Busy):
        def forward(self, x: Tensor) -> Tensor:
            super().forward(x)
            raise KeyError("in the user's own code")

    model = Failing()
    before = everything(model)
    with pytest.raises(KeyError):
        wc.conditioning(wc.Problem(model, nn.CrossEntropyLoss(), (X, Y)))
    assert is_same(before, everything(model))


class Centered(nn.Module):
    """A loss with a running center, a BatchNorm and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(3))
        self.norm = nn.BatchNorm1d(3)
        self.calls: list[int] = []

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls.append(1)
        self.center.mul_(0.9).add_(0.1 * outputs.detach().mean(0))
        return F.cross_entropy(self.norm(outputs) - self.center, targets)

    def method(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self(outputs, targets)  # type: ignore[no-any-return]


@pytest.mark.parametrize("wrapped", [lambda own: own, lambda own: own.method, lambda own: lambda o, t: own(o, t)])
def test_what_a_loss_holds_is_put_back_and_every_call_begins_there(wrapped: Callable[[Centered], Any]) -> None:
    loss, model = Centered().double(), nn.Linear(4, 3).double()
    before = copy.deepcopy(loss.state_dict())
    problem = wc.Problem(model, wrapped(loss), (X.double(), Y))
    measured = wc.Hessian(problem).dense()
    wc.GGN(problem).dense()
    assert all(torch.equal(value, loss.state_dict()[key]) for key, value in before.items())
    assert loss.calls == []

    def by_hand(weight: Tensor, bias: Tensor) -> Tensor:
        outputs = F.linear(X.double(), weight, bias)
        normed = (outputs - outputs.mean(0)) / (outputs.var(0, correction=0) + 1e-5).sqrt()
        return F.cross_entropy(normed - 0.1 * outputs.detach().mean(0), Y)

    hessian: Any = torch.autograd.functional.hessian(by_hand, (model.weight.detach(), model.bias.detach()))
    rows = [torch.cat([block.reshape(n, -1) for block in row], 1) for row, n in zip(hessian, (12, 3), strict=True)]
    torch.testing.assert_close(measured, torch.cat(rows))


class SystemRandom:
    """A loss with chance that no seed fixes."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets) * random.SystemRandom().random()


@pytest.mark.parametrize("batches", [[(X, Y)], [(X, Y), (X, Y)]])
def test_a_loss_that_no_seed_fixes_is_refused_by_name(batches: list[Any]) -> None:
    with pytest.raises(NotDeterministic, match="the loss is random"):
        wc.Hessian(wc.Problem(nn.Linear(4, 3), SystemRandom(), batches))


def test_a_model_that_depends_on_its_own_count_is_refused() -> None:
    class Cooling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.temperature = nn.Linear(4, 3), 1.0

        def forward(self, x: Tensor) -> Tensor:
            self.temperature *= 0.5
            return self.fc(x) * self.temperature  # type: ignore[no-any-return]

    with pytest.raises(NotDeterministic, match="attribute that it changes"):
        wc.landscape(wc.Problem(Cooling(), nn.CrossEntropyLoss(), (X, Y)), steps=2)


@pytest.mark.parametrize("compiled", [torch.jit.script, lambda m: torch.jit.trace(m, X)])
def test_torchscript_is_refused_with_a_cure(compiled: Callable[[nn.Module], nn.Module]) -> None:
    with pytest.raises(InvalidProblem, match="the model is TorchScript"):
        wc.Problem(compiled(nn.Linear(4, 3)), nn.CrossEntropyLoss(), (X, Y))
    with pytest.raises(InvalidProblem, match=r"layer '0' is TorchScript.*torch.jit.script"):
        wc.Problem(nn.Sequential(compiled(nn.Linear(4, 3))), nn.CrossEntropyLoss(), (X, Y))


def test_a_scripted_loss_is_measured() -> None:
    model = nn.Linear(4, 3)
    problem = wc.Problem(model, torch.jit.script(nn.CrossEntropyLoss()), (X, Y))
    expected = wc.Hessian(wc.Problem(model, nn.CrossEntropyLoss(), (X, Y))).dense()
    torch.testing.assert_close(wc.Hessian(problem).dense(), expected)


# the data


class Masks(nn.Linear):
    """It writes into its inputs, as `masked_fill_` and an in-place normalization do."""

    def forward(self, x: Tensor) -> Tensor:
        x[:, 0] = -torch.inf
        x.masked_fill_(x.isinf(), 0.0).mul_(3.0)
        return super().forward(x)


def ignoring(outputs: Tensor, targets: Tensor) -> Tensor:
    targets[targets == 2] = 0
    return F.cross_entropy(outputs, targets)


MEASUREMENTS: dict[str, Callable[[wc.Problem], Any]] = {
    "diagnose": wc.diagnose,
    "hessian": lambda problem: wc.Hessian(problem).dense(),
    "conditioning": wc.conditioning,
    "suggest_lr": lambda problem: wc.suggest_lr(problem, max_steps=20),
    "treat": lambda problem: wc.treat(problem, steps=3, seeds=[0], remedies=["clip", "scale-inputs"]),
    "landscape": lambda problem: wc.landscape(problem, steps=2),
}


@pytest.mark.parametrize("form", [list, tuple, dict])
@pytest.mark.parametrize("name", MEASUREMENTS)
def test_a_model_and_a_loss_may_write_into_the_data(name: str, form: type) -> None:
    x, y = X.clone(), Y.clone()
    batch = {"input": x, "labels": y} if form is dict else (x, y)
    batches = [batch, batch] if form is list else batch
    MEASUREMENTS[name](wc.Problem(Masks(4, 3), ignoring, batches))
    assert torch.equal(x, X)
    assert torch.equal(y, Y)


def test_a_step_may_write_into_its_batch() -> None:
    x, y = X.clone(), Y.clone()
    step: Callable[[Any, Any], Tensor] = lambda model, batch: ignoring(model(batch[0]), batch[1])  # noqa: E731
    wc.diagnose(wc.Problem.from_step(Masks(4, 3), step, [(x, y)]))
    assert torch.equal(x, X)
    assert torch.equal(y, Y)


def test_every_pass_sees_the_data_as_they_are() -> None:
    """A model that halves its inputs in place halves them once, on every pass."""

    class Halves(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.mul_(0.5))

    model = Halves(4, 3)
    twice = wc.Problem(model, nn.CrossEntropyLoss(), [(X.clone(), Y)])
    with twice.measuring():
        first, second = twice.mean_loss(), twice.mean_loss()
    assert float(first) == float(second) == pytest.approx(float(F.cross_entropy(model(X.clone()), Y)), rel=1e-6)
