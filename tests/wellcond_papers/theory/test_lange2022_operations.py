"""lange2022, Proposition 6 and what follows it: the floating point operations of a step of BNP and of BN."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from references import assert_same
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from zoo import normal

import wellcond as wc

SIZES = [(3072, 100, 16), (100, 100, 256), (64, 10, 60)]
"""Inputs and outputs of the layer, examples."""


class Operations(TorchDispatchMode):
    """Operations of formulas that are written out: one for each element, and n − 1 for a sum or a maximum of n."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        match func.overloadpacket.__name__:
            case "sum" | "amax":
                self.count += args[0].numel() - result.numel()
            case "add" | "sub" | "mul" | "div":
                self.count += result.numel()
            case "detach" | "expand":
                pass
            case name:
                raise AssertionError(f"{name} is not counted")
        return result


A_COLUMN = {
    "batch_norm_update_stats": 4,
    "lerp_": 3,
    "add": 2,
    "addcmul": 2,
    "reciprocal_": 1,
    "addcmul_": 2,
    "mul_": 1,
}
FREE = {"detach", "view", "cat", "index_select", "transpose", "zero_"}


class FusedOperations(TorchDispatchMode):
    """Operations of the library's step, counted by what each kernel computes for each element."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name == "addmm_":
            self.count += result.numel() * (2 * args[1].shape[-1] + 2)
        elif name == "amax":
            self.count += args[0].numel()
        elif name not in FREE:
            self.count += A_COLUMN[name] * args[0].numel()
        return result


def of_bnp(n_in: int, n_out: int, examples: int) -> int:
    """As Proposition 6 prints it."""
    return 4 * n_in * examples + 6 * n_in * n_out + 2 * n_out + 8 * n_in


def statistics(h: Tensor) -> tuple[Tensor, Tensor]:
    mean = h.sum(0) / len(h)
    centered = h - mean
    return mean, (centered * centered).sum(0) / len(h)


def average(running: Tensor, value: Tensor, rho: float = 0.99) -> Tensor:
    return rho * running + (1 - rho) * value


@pytest.mark.parametrize(("n_in", "n_out", "examples"), SIZES)
def test_proposition_6_counts_the_operations(n_in: int, n_out: int, examples: int) -> None:
    """Algorithm 2 line by line; the sum of line 5 takes n_out fewer than printed, and ε₁ max σ² + ε₂ one more."""
    h, weight, bias = normal(examples, n_in), normal(n_out, n_in, seed=1), normal(n_out, 1, seed=2)
    mean, variance, q2 = normal(n_in, seed=3), normal(n_in, seed=4).square(), max(n_in / examples, 1)
    with Operations() as counted:
        batch_mean, batch_variance = statistics(h)
        mean, variance = average(mean, batch_mean), average(variance, batch_variance)
        variance = variance + (0.01 * variance.amax(0) + 1e-4)
        weight = 1 / q2 * ((weight - mean * bias) / variance)
        bias = 1 / q2 * bias - (weight * mean).sum(1, keepdim=True)
    assert counted.count == of_bnp(n_in, n_out, examples) - n_out + 1


@pytest.mark.parametrize(("n_in", "n_out", "examples"), SIZES)
def test_proposition_6_holds_for_the_step_of_the_library(n_in: int, n_out: int, examples: int) -> None:
    """It takes one operation less a weight and seven more a column."""
    layer = nn.Linear(n_in, n_out)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.05)
    bnp = wc.BNP(layer, optimizer, fused=False)
    x = torch.randn(examples, n_in)
    layer(x).square().mean().backward()
    bnp.precondition()  # the vectors that stay the same from step to step are made
    with FusedOperations() as observed:
        torch.ops.aten.batch_norm_update_stats(x, None, None, 0.0)
    layer(x).square().mean().backward()
    with FusedOperations() as step:
        bnp.precondition()
    counted = observed.count + step.count
    assert counted <= of_bnp(n_in, n_out, examples) + 7 * n_in
    assert counted >= 4 * n_in * examples + 5 * n_in * n_out


class BatchNorm:
    """A training step of BN, written out: running statistics, output, and gradients by input, gain and shift.

    Roots and reciprocals of a column are not counted: the source's 32nN + 4n has no room for them.
    """

    def __init__(self, x: Tensor, gain: Tensor, shift: Tensor, gradient: Tensor) -> None:
        self.x, self.gain, self.shift, self.gradient, self.examples = x, gain, shift, gradient, len(x)
        self.running = normal(x.shape[1], seed=8), normal(x.shape[1], seed=9).square()

    def forward(self) -> None:
        with Operations() as counted:
            self.mean, variance = statistics(self.x)
            average(self.running[0], self.mean)
            average(self.running[1], variance)
            variance = variance + 1e-5
        self.forward_count = counted.count
        self.scale, self.power = variance.rsqrt(), variance.pow(-1.5)
        with Operations() as counted:
            self.normalized = (self.x - self.mean) * self.scale
            self.output = self.gain * self.normalized + self.shift
        self.forward_count += counted.count

    def formula_by_formula(self) -> tuple[Tensor, Tensor, Tensor]:
        """The chain rule of Ioffe and Szegedy (2015), every factor on every element, x − μ and x̂ formed anew."""
        x, mean, scale, n = self.x, self.mean, self.scale, self.examples
        by_normalized = self.gradient * self.gain
        by_variance = (by_normalized * (x - mean) * -0.5 * self.power).sum(0)
        by_mean = by_variance * ((-2 / n) * (x - mean)).sum(0) - (by_normalized * scale).sum(0)
        by_x = by_normalized * scale + by_variance * (2 * (x - mean) / n) + by_mean.expand_as(x) / n
        by_gain = (self.gradient * ((x - mean) * scale)).sum(0)
        return by_x, by_gain, self.gradient.sum(0)

    def shared(self) -> tuple[Tensor, Tensor, Tensor]:
        """The same gradients with x̂ of the forward pass and each sum taken once."""
        by_gain, by_shift = (self.gradient * self.normalized).sum(0), self.gradient.sum(0)
        rest = self.gradient - by_shift / self.examples - self.normalized * (by_gain / self.examples)
        return rest * (self.gain * self.scale), by_gain, by_shift


def of_bn(n: int, examples: int, backward: str) -> int:
    """Counted, of a BN layer on n units whose gradients are those of autograd."""
    x, gain, shift = 3 * normal(examples, n) + 1, normal(n, seed=1), normal(n, seed=2)
    step = BatchNorm(x, gain, shift, gradient=normal(examples, n, seed=3))
    step.forward()
    with Operations() as counted:
        gradients = getattr(step, backward)()
    leaves = [tensor.clone().requires_grad_() for tensor in (x, gain, shift)]
    output = nn.functional.batch_norm(leaves[0], None, None, leaves[1], leaves[2], training=True, eps=1e-5)
    assert_same(step.output, output.detach(), 1e-12)
    for computed, expected in zip(gradients, torch.autograd.grad(output, leaves, step.gradient), strict=True):
        assert_same(computed, expected, 1e-10)
    return step.forward_count + counted.count


@pytest.mark.parametrize(("n", "examples"), [(5, 7), (100, 60)])
def test_after_proposition_6_bn_takes_32_n_examples_formula_by_formula(n: int, examples: int) -> None:
    """32nN + 4n is exact for the chain rule as it is printed; 15nN + 8n give the same gradients."""
    assert of_bn(n, examples, "formula_by_formula") == 32 * n * examples + 4 * n
    assert of_bn(n, examples, "shared") == 15 * n * examples + 8 * n


@pytest.mark.parametrize(
    ("examples", "n_out"), [(16, 60), (16, 90), (60, 100), (60, 250), (60, 310), (128, 512), (128, 1024)]
)
def test_after_proposition_6_bn_is_cheaper_if_28_examples_are_fewer_than_6_outputs(examples: int, n_out: int) -> None:
    """Up to terms of first order; where BN's sums are shared, already if 11N < 6n."""
    n, bnp = 400, of_bnp(400, n_out, examples)
    assert (of_bn(n, examples, "formula_by_formula") < bnp) == (28 * examples < 6 * n_out)
    assert (of_bn(n, examples, "shared") < bnp) == (11 * examples < 6 * n_out)
