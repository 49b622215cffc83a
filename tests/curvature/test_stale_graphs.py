"""A kept graph is built again when anything changes that it depends on, and not otherwise."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellcond as wc

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(12) % 3
W = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
GLOBAL = {"scale": 1.0}
FACTOR = 1.0


class Model(nn.Module):
    of_the_class = 1.0

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.f = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
        self.scale, self.numbers, self.nested = 1.0, [1.0], {"a": {"b": 1.0}}
        self.options = types.SimpleNamespace(k=1.0)
        self.pair = (torch.ones(3, dtype=torch.float64), 1)
        self.array = np.ones(3)
        self.act = torch.tanh

    def forward(self, x: Tensor) -> Tensor:
        factor = self.scale * self.numbers[0] * self.nested["a"]["b"] * self.options.k * self.of_the_class * FACTOR
        return self.act(self.f(x)) * factor * self.pair[0] * torch.from_numpy(self.array)


def weighted() -> nn.Module:
    return nn.CrossEntropyLoss(weight=torch.ones(3, dtype=torch.float64))


class Scaled:
    def __init__(self) -> None:
        self.scale, self.weight = 1.0, torch.ones(3, dtype=torch.float64)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs * self.scale, targets, weight=self.weight)


def closed_over() -> Any:
    weight = torch.ones(3, dtype=torch.float64)
    return lambda outputs, targets: F.cross_entropy(outputs * GLOBAL["scale"], targets, weight=weight)


def cell(problem: wc.Problem) -> Any:
    return problem.loss.__closure__[0].cell_contents  # type: ignore[attr-defined]


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "an attribute": (weighted, lambda p: setattr(p.model, "scale", 3.0)),
    "a list": (weighted, lambda p: p.model.numbers.__setitem__(0, 3.0)),
    "a nested dict": (weighted, lambda p: p.model.nested["a"].update(b=3.0)),
    "a simple object": (weighted, lambda p: setattr(p.model.options, "k", 3.0)),
    "a tensor in a tuple": (weighted, lambda p: p.model.pair[0].data.mul_(3)),
    "an array": (weighted, lambda p: p.model.array.__imul__(3)),
    "a function": (weighted, lambda p: setattr(p.model, "act", torch.sigmoid)),
    "a module without parameters": (weighted, lambda p: p.model.f.__setitem__(1, nn.ReLU())),
    "a module more": (weighted, lambda p: p.model.f.append(nn.Tanh())),
    "a forward hook": (weighted, lambda p: p.model.f.register_forward_hook(lambda m, i, o: 2 * o)),
    "a forward pre-hook": (weighted, lambda p: p.model.f.register_forward_pre_hook(lambda m, i: 2 * i[0])),
    "forward itself": (weighted, lambda p: setattr(p.model.f[1], "forward", lambda x: 2 * x)),
    "the class": (weighted, lambda p: setattr(Model, "of_the_class", 3.0)),
    "a global": (weighted, lambda p: globals().update(FACTOR=3.0)),
    "a class weight": (weighted, lambda p: setattr(p.loss, "weight", W)),
    "a class weight in place": (weighted, lambda p: p.loss.weight.mul_(W)),
    "label smoothing": (weighted, lambda p: setattr(p.loss, "label_smoothing", 0.3)),
    "a partial": (
        lambda: functools.partial(F.cross_entropy, label_smoothing=0.0),
        lambda p: p.loss.keywords.update(label_smoothing=0.4),
    ),
    "a callable's number": (Scaled, lambda p: setattr(p.loss, "scale", 3.0)),
    "a callable's tensor": (Scaled, lambda p: p.loss.weight.mul_(W)),
    "a bound method": (lambda: Scaled().__call__, lambda p: setattr(p.loss.__self__, "scale", 3.0)),
    "a closure": (closed_over, lambda p: cell(p).mul_(W)),
    "a global dict of a lambda": (closed_over, lambda p: GLOBAL.update(scale=3.0)),
    "the loss": (weighted, lambda p: setattr(p, "loss", nn.CrossEntropyLoss(label_smoothing=0.3))),
    "a batch": (weighted, lambda p: p.batches.__setitem__(0, (2 * X, Y))),
    "a batch in place": (weighted, lambda p: p.batches[0][0].mul_(2)),
    "the batches": (weighted, lambda p: setattr(p, "batches", [(2 * X, Y)])),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_seen(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, "of_the_class", 1.0)
    monkeypatch.setitem(globals(), "FACTOR", 1.0)
    monkeypatch.setitem(GLOBAL, "scale", 1.0)
    loss, change = CHANGES[what]
    problem = wc.Problem(Model(), loss(), [(X.clone(), Y)])
    operator = wc.Hessian(problem)
    v = torch.linspace(-1, 1, problem.size, dtype=torch.float64)
    before = operator @ v
    change(problem)
    after = operator @ v
    reference = wc.Hessian(wc.Problem(problem.model, problem.loss, problem.batches)) @ v
    torch.testing.assert_close(after, reference)
    assert not torch.allclose(before, after)


@pytest.mark.parametrize(("name", "value"), [("batchnorm", "running"), ("dropout", 3)])
def test_changed_options_are_seen(name: str, value: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(), nn.Linear(5, 3)).double()
    problem = wc.Problem(model, nn.CrossEntropyLoss(), [(X, Y)])
    operator = wc.Hessian(problem)
    before = operator.dense()
    setattr(problem, name, value)
    reference = wc.Hessian(wc.Problem(model, problem.loss, [(X, Y)], **{name: value})).dense()
    torch.testing.assert_close(operator.dense(), reference)
    assert not torch.allclose(before, reference)


def test_a_model_and_a_loss_that_count_their_calls_keep_their_graph() -> None:
    calls: list[str] = []

    class Counting(Model):
        def forward(self, x: Tensor) -> Tensor:
            calls.append("model")
            self.numbers.append(2.0)
            return super().forward(x)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        calls.append("loss")
        return F.cross_entropy(outputs, targets)

    operator = wc.Hessian(wc.Problem(Counting(), loss, [(X, Y)]))
    v = torch.ones(operator.shape[0], dtype=torch.float64)
    operator @ v
    built = len(calls)
    operator @ v
    assert len(calls) == built > 0


def test_the_likelihood_is_found_again() -> None:
    problem = wc.Problem(Model(), weighted(), [(X, Y)])
    plain = wc.Fisher(problem).dense()
    problem.loss.weight = W  # type: ignore[attr-defined]
    with pytest.raises(wc.errors.InvalidProblem, match="not recognized"):
        wc.Fisher(problem).dense()
    problem.loss.weight = None  # type: ignore[attr-defined]
    torch.testing.assert_close(wc.Fisher(problem).dense(), plain)


@pytest.mark.slow
def test_products_over_several_batches_begin_with_the_same_buffers() -> None:
    """With dropout on, spectral norm is in training mode, in which every pass moves its vectors."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 6)), nn.Tanh(), nn.Linear(6, 3)).double()
    x, y = torch.randn(12, 4, dtype=torch.float64), torch.arange(12) % 3
    problem = wc.Problem(model, nn.CrossEntropyLoss(), [(x[:5], y[:5]), (x[5:], y[5:])], dropout=0)
    hessian = wc.Hessian(problem)
    true = torch.linalg.eigvalsh(hessian.dense())
    top = wc.eigenvalues(hessian, k=3, tol=1e-9)
    assert top.converged
    assert torch.allclose(top.values, true[-3:], rtol=1e-9)
