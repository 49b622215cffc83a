"""Predicted against measured λ_max of random networks (about 5 minutes on a GPU).

python -m benchmarks.meanfield_accuracy --device cuda
python -m benchmarks.meanfield_accuracy --device cpu --quick     # narrow networks
python -m benchmarks.meanfield_accuracy --device cuda --data DIR # with MNIST and CIFAR-10 images as inputs too

Measured is the largest eigenvalue of E ∇f∇fᵀ over the weights, for one output and Gaussian inputs, with BatchNorm's
statistics treated as the prediction says: constant ("detached") or differentiated ("batch").
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import wellcond as wc
from benchmarks.timing import environment
from wellcond.learning_rate.meanfield import Architecture, predict
from wellcond.learning_rate.meanfield.stages import Variant
from wellcond_papers.data import cifar10, mnist

EXAMPLES = 400
GAMMAS = (0.1, 0.3, 1.0, 2.0, 3.0)
VARIANTS: tuple[Variant, ...] = ("detached", "batch")
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
        pairs = pairwise(widths)
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


def measured(
    architecture: Architecture,
    variant: str,
    seed: int,
    device: str = "cpu",
    examples: int = EXAMPLES,
    inputs: Tensor | None = None,
) -> tuple[float, list[float]]:
    """λ_max, and ‖mean_x ∇f‖² of every layer's weights: the term that all pairs of examples have on average."""
    network = Network(architecture, variant == "detached", seed).to(device)
    if inputs is None:
        generator = torch.Generator().manual_seed(1000 + seed)
        inputs = torch.randn(examples, *architecture.input, generator=generator)
    x, examples = inputs.to(device), len(inputs)
    weights = {name: p for name, p in network.named_parameters() if name.endswith("weight")}
    mean_gradients = torch.autograd.grad(network(x).mean(), list(weights.values()))
    problem = wc.Problem(network, nn.MSELoss(), (x, torch.zeros(examples, 1, device=device)))
    # MSELoss has twice the curvature of ½(f − y)²
    largest = wc.eigenvalues(wc.GGN(problem, layers=list(weights)), k=1, tol=1e-3).values[-1] / 2
    return float(largest), [float(g.square().sum()) for g in mean_gradients]


@dataclass(frozen=True)
class Case:
    """A network, and how far a prediction may be from the mean over several seeds."""

    line: str
    variant: Variant
    target: float


def cases(width: int, channels: Sequence[str], gammas: Sequence[float]) -> Iterator[Case]:
    dense = f"fc 784-{width}-{width}-{width}-1"
    yield Case(f"{dense} vanilla", "batch", 0.06)
    for variant in VARIANTS:
        yield from (Case(f"{dense} gamma={gamma}", variant, 0.05) for gamma in gammas)
        yield from (Case(f"{dense} {word}", variant, 0.1) for word in ("gelu", "silu", "leaky_relu(0.2)", "residual"))
        for line, target in zip(channels, (0.12, 0.08), strict=True):
            for words in ("", "pool", "p1", "p1 pool"):
                yield Case(f"conv 1x28x28 {line} k3 s2 1 {words}".strip(), variant, target)
    yield from (Case(f"{dense} vanilla {word}", "batch", 0.1) for word in ("tanh", "erf", "gelu", "residual"))
    yield Case(f"{dense} ln", "batch", 0.1)


def compared(case: Case, seeds: int, examples: int, device: str) -> dict[str, Any]:
    """Means over random networks, and the predictions for the same number of examples and for very many."""
    architecture = Architecture.parse(case.line)
    networks = [measured(architecture, case.variant, seed, device, examples) for seed in range(seeds)]
    results = [lambda_max for lambda_max, _ in networks]
    mean = statistics.mean(results)
    prediction = predict(architecture, variant=case.variant, examples=examples)
    terms = {
        layer.name: {"measured": statistics.mean(terms[k] for _, terms in networks), "predicted": layer.term}
        for k, layer in enumerate(prediction.layers)
    }
    result = {
        "network": case.line,
        "variant": case.variant,
        "measured": mean,
        "standard_error": statistics.stdev(results) / math.sqrt(seeds) if seeds > 1 else None,
        "predicted": prediction.lambda_max,
        "predicted_very_many_examples": predict(architecture, variant=case.variant).lambda_max,
        "error": prediction.lambda_max / mean - 1,
        "target": case.target,
        # relative to λ_max: a negligible term may be wrong by its whole size
        "worst_term_error": max(abs(t["predicted"] - t["measured"]) for t in terms.values()) / mean,
        "terms": terms,
    }
    mark = "" if abs(result["error"]) <= case.target else "  beyond its target"
    print(
        f"  {case.line:44s} {case.variant:9s} {mean:9.4g} {prediction.lambda_max:9.4g} "
        f"{100 * result['error']:+6.1f} %  ({100 * case.target:.0f} %){mark}",
        flush=True,
    )
    return result


def against_width(widths: Sequence[int], seeds: int, examples: int, device: str) -> list[dict[str, Any]]:
    """The error at each width, and its exponent: −1 if it falls like 1/width."""
    tables = []
    for variant in VARIANTS:
        results = []
        for width in widths:
            case = Case(f"fc 784-{width}-{width}-{width}-1", variant, 0.15)
            results.append(compared(case, seeds, examples, device))
        errors = [abs(result["error"]) for result in results]
        slope = float(np.polyfit(np.log(widths), np.log(errors), 1)[0])
        print(f"  {variant}: the error falls like width^{slope:.2f}")
        tables.append({"variant": variant, "widths": list(widths), "errors": errors, "slope": slope})
    return tables


def real_inputs(data: str, width: int, seeds: int, examples: int, device: str) -> list[dict[str, Any]]:
    """Images, whose products are not those of independent inputs: the prediction follows the matrix of them."""
    results = []
    for name, read in {"MNIST": mnist, "CIFAR-10": cifar10}.items():
        pixels = read(data, train=False).images[:examples].flatten(1).float() / 255
        for scale, x in {"in [0, 1]": pixels, "standardized": (pixels - pixels.mean()) / pixels.std()}.items():
            for words, variant in (("vanilla", "batch"), ("bn", "detached"), ("bn", "batch")):
                architecture = Architecture.parse(f"fc {x.shape[1]}-{width}-{width}-{width}-1 {words}")
                mean = statistics.mean(measured(architecture, variant, s, device, inputs=x)[0] for s in range(seeds))
                predicted = predict(architecture, variant=variant, inputs=x.double()).lambda_max
                result = {"inputs": f"{name}, {scale}", "norm": words, "variant": variant, "measured": mean}
                result |= {"predicted": predicted, "error": predicted / mean - 1, "target": 0.15}
                error = f"{100 * result['error']:+.1f} %"
                print(f"  {name}, {scale}, {words}, {variant}: {mean:.4g} {predicted:.4g} {error}", flush=True)
                results.append(result)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", help="folder that holds MNIST and CIFAR-10, for real inputs")
    parser.add_argument("--quick", action="store_true", help="narrow networks, few examples, few γ")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    begin = time.perf_counter()
    if options.quick:
        examples, width, widths = 100, 200, (100, 200, 400)
        chosen = cases(width, ("20-30-40", "30-60-90"), (0.3, 1.0))
    else:
        examples, width, widths = EXAMPLES, 1000, WIDTHS
        chosen = cases(width, ("30-60-90", "200-300-400"), GAMMAS)
    print(f"  {'network':44s} {'variant':9s} {'measured':>9s} {'predicted':>9s}    error  (target)")
    results = [compared(case, options.seeds, examples, options.device) for case in chosen]
    by_width = against_width(widths, options.seeds, examples, options.device)
    real = real_inputs(options.data, width, options.seeds, examples, options.device) if options.data else []
    met = sum(abs(result["error"]) <= result["target"] for result in results + real)
    print(f"  {met} of {len(results) + len(real)} within their target, {time.perf_counter() - begin:.0f} s")
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"meanfield_accuracy_{options.device}{'_quick' if options.quick else ''}.json"
    record = {
        "environment": environment(options.device),
        "examples": examples,
        "seeds": options.seeds,
        "results": results,
        "real_inputs": real,
        "against_width": by_width,
    }
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
