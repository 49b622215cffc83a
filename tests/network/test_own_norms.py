"""Norms that are not torch's: with batch statistics they are measured as `nn.BatchNorm1d` is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo import normal

import wellcond as wc

X = 5 * torch.randn(32, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 3
Y = torch.arange(32) % 3


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("var", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.mean, self.var, None, None, self.training)


class ByHand(Functional):
    def forward(self, x: Tensor) -> Tensor:
        mean, var = self.mean, self.var
        if self.training:
            mean, var = x.mean(0), x.var(0, correction=0)
            self.mean.data.mul_(0.9).add_(0.1 * mean.detach())
            self.var = 0.9 * self.var + 0.1 * var.detach()
        return (x - mean) / (var + 1e-5).sqrt()


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(8), requires_grad=False)
        self.var = nn.Parameter(torch.ones(8), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.mean, self.var, None, None, self.training)


class WithDropout(Functional):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(super().forward(x), 0.5, self.training)


class InDict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.held = {"mean": torch.zeros(8, dtype=torch.float64), "var": torch.ones(8, dtype=torch.float64)}

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.held["mean"], self.held["var"], None, None, self.training)


class Told(Functional):
    def forward(self, x: Tensor, training: bool) -> Tensor:  # type: ignore[override]
        return F.batch_norm(x, self.mean, self.var, None, None, training)


class Telling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = Told()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x, self.training)  # type: ignore[no-any-return]


class Own(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, None, None, self.training)


def network(norm: nn.Module) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), norm, nn.Tanh(), nn.Linear(8, 3)).double()


def products(norm: nn.Module, batchnorm: str, batches: object) -> Tensor:
    """Those of the Hessian with random directions."""
    problem = wc.Problem(network(norm), nn.CrossEntropyLoss(), batches, batchnorm)  # type: ignore[arg-type]
    return wc.Hessian(problem) @ normal(problem.size, 8)


NORMS = [Functional, ByHand, Frozen, WithDropout, InDict, Telling, lambda: Own(8, affine=False)]


@pytest.mark.slow
@pytest.mark.parametrize("batchnorm", ["batch", "running"])
@pytest.mark.parametrize("norm", NORMS)
def test_an_own_norm_is_measured_as_torchs_and_its_statistics_stay(
    norm: Callable[[], nn.Module], batchnorm: str
) -> None:
    own = norm()
    for batches in ([(X, Y)], [(X[:16], Y[:16]), (X[16:], Y[16:])]):
        expected = products(nn.BatchNorm1d(8, affine=False), batchnorm, batches)
        torch.testing.assert_close(products(own, batchnorm, batches), expected)
    statistics = [*own.buffers(), *own.parameters(), *getattr(own, "held", {}).values()]
    assert {float(t.sum()) for t in statistics} <= {0.0, 8.0}


@pytest.mark.parametrize("norm", NORMS)
def test_an_own_norm_is_named(norm: Callable[[], nn.Module]) -> None:
    problem = wc.Problem(network(norm()), nn.CrossEntropyLoss(), (X, Y))
    assert problem.norms() == (["1"], [])
    assert problem.couples_examples
    assert "statistics of each batch" in wc.diagnose(problem).about["batchnorm"]


@pytest.mark.slow
def test_instance_norm_with_running_statistics_uses_those_of_its_inputs() -> None:
    images = X[:16, :3, None, None] * torch.randn(3, 5, 5, dtype=torch.float64)

    def trace(track: bool, batchnorm: str = "batch") -> float:
        torch.manual_seed(1)
        norm = nn.InstanceNorm2d(4, affine=True, track_running_stats=track)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.Tanh(), nn.Flatten(), nn.Linear(36, 3)).double()
        problem = wc.Problem(model, nn.CrossEntropyLoss(), (images, Y[:16]), batchnorm)  # type: ignore[arg-type]
        assert not problem.couples_examples
        return float(wc.Hessian(problem).dense().trace())

    assert trace(True) == pytest.approx(trace(False), rel=1e-12)
    assert trace(True, "running") != pytest.approx(trace(False), rel=0.1)


class Encoding(nn.Module):
    """It reads its mode and holds numbers, but never writes to them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.arange(8.0))

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x + self.shift, 0.5, self.training)


class Codebook(Encoding):
    """It moves its numbers toward its inputs before it uses them."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.shift.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return x + self.shift


@pytest.mark.parametrize(("module", "left_alone"), [(Encoding, []), (Codebook, ["1"])])
def test_what_only_looks_like_a_norm_is_measured_in_evaluation_mode(
    module: Callable[[], nn.Module], left_alone: list[str]
) -> None:
    model = network(module())
    problem = wc.Problem(model, nn.CrossEntropyLoss(), (X, Y))
    measured = wc.Hessian(problem).dense()
    assert problem.norms() == ([], left_alone)
    shift = torch.arange(8.0, dtype=torch.float64)
    assert torch.equal(model[1].shift, shift)
    model[1] = nn.Identity()
    with torch.no_grad():
        model[0].bias += shift
    torch.testing.assert_close(measured, wc.Hessian(wc.Problem(model, nn.CrossEntropyLoss(), (X, Y))).dense())
    if left_alone:
        assert "1: in evaluation mode" in wc.diagnose(problem_of(module)).about["batchnorm"]


def problem_of(module: Callable[[], nn.Module]) -> wc.Problem:
    return wc.Problem(network(module()), nn.CrossEntropyLoss(), (X, Y))


def test_a_model_without_such_modules_takes_no_pass_more() -> None:
    problem = wc.Problem(network(nn.BatchNorm1d(8)), nn.CrossEntropyLoss(), (X, Y))
    wc.conditioning(problem)
    assert problem.cost.forwards == 1
