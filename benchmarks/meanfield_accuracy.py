"""Predicted against measured λ_max of random networks (about 5 minutes on a GPU).

python -m benchmarks.meanfield_accuracy --device cuda
python -m benchmarks.meanfield_accuracy --device cpu --quick     # narrow networks

Measured is the largest eigenvalue of E ∇f∇fᵀ over the weights, for one output and Gaussian inputs, with BatchNorm's
statistics treated as the prediction says: constant ("detached") or differentiated ("batch").
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import wellcond as wc
from benchmarks.timing import environment
from wellcond.meanfield import Architecture, predict

EXAMPLES = 400
GAMMAS = (0.1, 0.3, 1.0, 2.0, 3.0)
WIDTHS = (125, 250, 500, 1000, 2000)
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "leaky_relu(0.2)": lambda z: F.leaky_relu(z, 0.2),
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "silu": F.silu,
    "softplus": F.softplus,
}


class Norm(nn.Module):
    """γ(z − mean)/deviation; over the batch (and positions), differentiated or not, or over the example."""

    def __init__(self, norm: str, gamma: float, detached: bool) -> None:
        super().__init__()
        self.norm, self.gamma, self.detached = norm, gamma, detached

    def forward(self, z: Tensor) -> Tensor:
        if self.norm == "none":
            return z
        dims = tuple(range(1, z.dim())) if self.norm == "layer" else (0, *range(2, z.dim()))
        source = z.detach() if self.detached and self.norm == "batch" else z
        variance, mean = torch.var_mean(source, dims, correction=0, keepdim=True)
        return self.gamma * (z - mean) / variance.sqrt()


class Network(nn.Module):
    """A random network of an architecture, with one output."""

    def __init__(self, architecture: Architecture, detached: bool, seed: int) -> None:
        super().__init__()
        a = self.architecture = architecture
        widths = [a.input[0], *(int(n) for n in a.hidden)]
        pairs = zip(widths[:-1], widths[1:], strict=True)
        if a.is_convolutional:
            layers = [nn.Conv2d(n, m, a.kernel, a.stride, a.padding) for n, m in pairs]
        else:
            layers = [nn.Linear(n, m) for n, m in pairs]
        features = widths[-1] * (math.prod(a.sizes[-1]) if a.head == "flatten" else 1)
        self.layers = nn.ModuleList([*layers, nn.Linear(features, 1)])
        self.norm = Norm(a.norm, float(a.gamma), detached)
        self.activation = ACTIVATIONS[str(a.activation)]
        generator = torch.Generator().manual_seed(seed)
        for layer in self.layers:
            fan_in = layer.weight[0].numel()
            layer.weight.data = torch.randn(layer.weight.shape, generator=generator) * math.sqrt(a.sigma_w2 / fan_in)
            layer.bias.data = torch.randn(layer.bias.shape, generator=generator) * math.sqrt(a.sigma_b2)

    def forward(self, x: Tensor) -> Tensor:
        *layers, head = self.layers
        z = layers[0](x)
        for layer in layers[1:]:
            branch = layer(self.activation(self.norm(z)))
            z = z + branch if self.architecture.residual else branch
        h = self.activation(self.norm(z))
        if self.architecture.is_convolutional:
            h = h.flatten(1) if self.architecture.head == "flatten" else h.mean((2, 3))
        return head(h)


@dataclass(frozen=True)
class Measured:
    """λ_max, and ‖mean_x ∇f‖² of every layer's weights: the term that all pairs of examples have on average."""

    lambda_max: float
    terms: list[float]


def measured(
    architecture: Architecture, variant: str, seed: int, device: str = "cpu", examples: int = EXAMPLES
) -> Measured:
    network = Network(architecture, variant == "detached", seed).to(device)
    generator = torch.Generator().manual_seed(1000 + seed)
    x = torch.randn(examples, *architecture.input, generator=generator).to(device)
    weights = {name: p for name, p in network.named_parameters() if name.endswith("weight")}
    mean_gradients = torch.autograd.grad(network(x).mean(), list(weights.values()))
    problem = wc.Problem(network, nn.MSELoss(), (x, torch.zeros(examples, 1, device=device)))
    # MSELoss has twice the curvature of ½(f − y)²
    largest = wc.eigenvalues(wc.GGN(problem, params=list(weights)), k=1, tol=1e-4).values[-1] / 2
    return Measured(float(largest), [float(g.square().sum()) for g in mean_gradients])


if __name__ == "__main__":
    import sys
    for line in sys.argv[2:]:
        for variant in ("detached", "batch"):
            a = Architecture.parse(line)
            p = predict(a, variant=variant, examples=int(sys.argv[1]))
            q = predict(a, variant=variant)
            m = [measured(a, variant, s, examples=int(sys.argv[1])) for s in range(6)]
            lam = np.mean([x.lambda_max for x in m])
            print(line, variant, f"measured {lam:.4g} ± {np.std([x.lambda_max for x in m])/6**.5:.2g} predicted {q.lambda_max:.4g} with N {p.lambda_max:.4g} ({100*(p.lambda_max/lam-1):+.1f} %)", flush=True)
            print("    ", *(f"{np.mean([x.terms[k] for x in m]):.3g}/{l.term:.3g}" for k, l in enumerate(p.layers)))
