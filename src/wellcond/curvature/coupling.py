"""Whether the examples of a batch are coupled, as by batch statistics or a graph: decided for all pairs at once.

The gradient at a layer's output for example n is g_n = Σ_m J_mnᵀ c_m, with c_m the cotangent of example m's output.
A second backward pass with s_m c_m, another s_m for each example, gives s_n g_n for every n only if nothing comes from
m ≠ n. The s_m are signed powers of two, by which floating-point numbers are multiplied exactly: without coupling both
passes agree to the last bit, however deep the network is and however much cancels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from wellcond.errors import InvalidProblem


def probes(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """A cotangent without zeros or symmetries, (*outputs.shape), and the factors s of the examples, (N,)."""
    wave = torch.arange(1, outputs.numel() + 1, dtype=torch.float32, device=outputs.device).sin()
    # an eighth of the exponents, so that small and large gradients stay within range
    largest = int(math.log2(torch.finfo(outputs.dtype).max)) // 8
    levels = 2 * (2 * largest + 1)
    generator = torch.Generator().manual_seed(0)
    rounds = -(-len(outputs) // levels)  # only in a larger batch do some examples have the same factor
    level = torch.cat([torch.randperm(levels, generator=generator, device="cpu") for _ in range(rounds)])
    scales = torch.ldexp(1 - 2 * (level % 2).double(), level // 2 - largest)[: len(outputs)]
    return wave.view_as(outputs).to(outputs), scales.to(outputs)


def scaled(cotangent: Tensor, scales: Tensor) -> Tensor:
    """Every example times its own factor."""
    return cotangent * scales.view(-1, *[1] * (cotangent.dim() - 1))


def probe_pair(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """The cotangents of the two backward passes."""
    wave, scales = probes(outputs)
    return wave, scaled(wave, scales)


def is_scaled(first: Tensor, second: Tensor, scales: Tensor) -> bool:
    """Whether `second` is `first` with every example times its own factor; both are (N, …)."""
    expected = scaled(first, scales).flatten(1)
    off, size = (second.flatten(1) - expected).abs().amax(1), expected.abs().amax(1)
    return bool((off <= _tolerance(first) * size + torch.finfo(first.dtype).tiny).all())


def is_scaled_by_entries(first: Tensor, second: Tensor) -> bool:
    """Whether `second` is `first` with entries times powers of two, whichever dimension counts examples.

    Contributions of several examples, each with a power of its own, do not add up to a power of two.
    """
    m, n = (torch.frexp(t.double().abs()).mantissa for t in (first, second))  # from 1/2 to 1
    off = torch.minimum((m - n).abs(), torch.minimum((m - 2 * n).abs(), (2 * m - n).abs()))
    size = first.double().abs()
    return bool((off * size).max() <= _tolerance(first) * size.max() + torch.finfo(first.dtype).tiny)


def shared_outputs(passes: Sequence[Mapping[str, Sequence[Tensor]]], examples: int) -> dict[str, str]:
    """Layers whose output all examples share, each with the reason, from the gradients in the passes of `probe_pair`.

    Raises:
        InvalidProblem: Something after a layer couples the examples.
    """
    first, second = passes
    shared = {}
    for name, gradients in first.items():
        pairs = zip(gradients, second[name], strict=True)
        if all(is_scaled_by_entries(g, h) for g, h in pairs if g.numel() and torch.isfinite(g).all()):
            continue
        if all(len(g) % examples for g in gradients):  # such as the positions of tokens, (1, T, d)
            shared[name] = 'all examples share its output, so Σ∇h needs labels="sample" or "data"; only Σx is available'
        else:
            raise InvalidProblem(COUPLED.format(f"something after layer {name!r} couples the examples of a batch"))
    return shared


COUPLED = (
    'labels="model" needs a backward pass for every example here, since {}. '
    'Use labels="sample", or Problem(..., batchnorm="running") if a BatchNorm does it.'
)


def _tolerance(gradient: Tensor) -> float:
    """Tolerance for kernels that add in no fixed order, as some GPU kernels do."""
    return math.pow(torch.finfo(gradient.dtype).eps, 0.75)
