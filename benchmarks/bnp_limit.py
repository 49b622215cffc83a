"""Is BNP's printed rate at its limit? The limit 2/λ of the preconditioned Hessian along runs of lange2022's CNN.

python -m benchmarks.bnp_limit --data DATA --at 0 100 200 300 --out bnp_limit.json    # minutes on one core
python -m benchmarks.bnp_limit --data DATA --device cuda --seeds 0 1 2 3 --at 0 …      # seconds a run on a GPU
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.timing import environment
from wellcond.optim.bnp import BNP
from wellcond_papers.data.batches import Batches
from wellcond_papers.data.dataset import Dataset
from wellcond_papers.data.load import load
from wellcond_papers.experiments import catalog
from wellcond_papers.papers.lange2022.networks import network
from wellcond_papers.papers.lange2022.training import optimizer_of

Move = Callable[[Tensor], list[Tensor]]
MoveBack = Callable[[Sequence[Tensor]], Tensor]
EPS1, EPS2 = 1e-2, 1e-4
"""BNP's defaults."""
GUESSING = 0.1
"""A loss within this of log 10 is that of guessing."""
BEGAN = time.perf_counter()


def halves(bnp: BNP, positions: dict[str, int], batch: int) -> tuple[list[nn.Parameter], Move, MoveBack]:
    """The parameters, and v → Pv/q and g → Pᵀg/q of all layers: BNP's step is (1/q²) P Pᵀ of the gradient.

    Pᵀ maps (G_w, G_b) to ((G_w − G_b μᵀ)/σ̃, G_b), and P maps (u, v) to (u/σ̃, v − (u/σ̃) μ).
    """
    layers = []
    for name, layer in bnp.layers.items():
        variance = layer.variance.flatten()
        scale = (variance + EPS1 * variance.max() + EPS2).sqrt().repeat_interleave(layer.repeats)
        q2 = max(layer.fan_in / batch, math.sqrt(positions[name]))
        layers.append((layer.weight, layer.biases[0], layer.mean.flatten().repeat_interleave(layer.repeats), scale, q2))
    parameters = [parameter for weight, bias, *_ in layers for parameter in (weight, bias)]

    def p(vector: Tensor) -> list[Tensor]:
        parts = iter(vector.split([parameter.numel() for parameter in parameters]))
        moved = []
        for weight, _, mean, scale, q2 in layers:
            u = next(parts).view(len(weight), -1) / scale / math.sqrt(q2)
            moved += [u.view_as(weight), next(parts) / math.sqrt(q2) - u @ mean]
        return moved

    def p_transposed(gradients: Sequence[Tensor]) -> Tensor:
        pairs = zip(layers, gradients[::2], gradients[1::2], strict=True)
        moved = [
            part.flatten() / math.sqrt(q2)
            for (weight, _, mean, scale, q2), g_w, g_b in pairs
            for part in ((g_w.reshape(len(weight), -1) - g_b[:, None] * mean) / scale, g_b)
        ]
        return torch.cat(moved)

    return parameters, p, p_transposed


def lambda_max(apply: Callable[[Tensor], Tensor], start: Tensor, products: int) -> float:
    """The largest eigenvalue of a symmetric operator, by Lanczos with full orthogonalization."""
    basis = [functional.normalize(start, dim=0)]
    tridiagonal = torch.zeros(products, products, dtype=torch.float64)
    for k in range(products):
        vector = apply(basis[-1])
        tridiagonal[k, k] = float(vector @ basis[-1])
        for _ in range(2):
            for other in basis:
                vector = vector - (vector @ other) * other
        if k + 1 < products:
            tridiagonal[k, k + 1] = tridiagonal[k + 1, k] = float(vector.norm())
        basis.append(functional.normalize(vector, dim=0))
    return float(torch.linalg.eigvalsh(tridiagonal)[-1])


def preconditioned_lambda(loss: Tensor, bnp: BNP, positions: dict[str, int], batch: int, products: int) -> float:
    """λ_max of (1/q²) Pᵀ H P, with H the Hessian of the loss."""
    parameters, p, p_transposed = halves(bnp, positions, batch)
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)

    def apply(v: Tensor) -> Tensor:
        return p_transposed(torch.autograd.grad(gradients, parameters, p(v), retain_graph=True))

    size = sum(parameter.numel() for parameter in parameters)
    start = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.float32).to(loss)
    return lambda_max(apply, start, products)


@dataclass
class Look:
    """A step of a run.

    Attributes:
        step: How many were taken before it.
        loss: On the images that the limit is measured on.
        lr_over_limit: The rate over 2/λ of the preconditioned Hessian.
    """

    step: int
    loss: float
    lr_over_limit: float


def watched_run(seed: int, at: Sequence[int], images: Dataset, count: int, products: int, device: torch.device) -> Run:
    """Train the CNN in mini-batches of 128 and measure the limit on `count` training images before some steps."""
    cells = catalog.experiment("lange2022-fig5").cells("paper")
    settings = next(cell.settings for cell in cells if cell.settings["arm"] == "batch 128: BNP") | {"seed": seed}
    is_standardized = settings.get("standardize", False)  # as in the runs of the figure
    batches = Batches(images, settings["batch"], seed=seed, device=device, standardize=is_standardized)
    x, y = (tensor.to(device) for tensor in images.tensors(count=count, standardize=is_standardized))
    model = network(settings, (x.shape[1], x.shape[2], x.shape[3]), len(images.classes)).to(device)
    optimizer, bnp = optimizer_of(settings, model)
    assert bnp is not None
    positions = positions_of(model, x[:1])
    looks = []
    for step in range(max(at) + 1):
        if step in at:
            model.eval()  # the same function, and BNP does not count this pass
            loss = functional.cross_entropy(model(x), y)
            curvature = preconditioned_lambda(loss, bnp, positions, settings["batch"], products)
            looks.append(Look(step, float(loss.detach()), settings["lr"] * curvature / 2))
            model.train()
        inputs, labels = batches(step)
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return Run(seed, looks)


@dataclass
class Run:
    """A training.

    Attributes:
        seed: Of the network and of the order of the images.
        looks: Where the limit was measured.
    """

    seed: int
    looks: list[Look]

    @property
    def collapse(self) -> int | None:
        """The first look at which it guesses worse than at random, or not at all, after it had learned something."""
        losses = [look.loss for look in self.looks]
        learned = next((k for k, loss in enumerate(losses) if loss < math.log(10) - GUESSING), len(losses))
        return next((k for k in range(learned, len(losses)) if not losses[k] < math.log(10) + GUESSING), None)

    @property
    def has_collapsed(self) -> bool:
        """Whether there is such a look."""
        return self.collapse is not None

    def __str__(self) -> str:
        looks = "  ".join(f"{look.step}: {look.loss:.3f} at {look.lr_over_limit:.2f}" for look in self.looks)
        return f"seed {self.seed}{' (collapsed)' if self.has_collapsed else ''}, loss at lr/limit: {looks}"


def main() -> None:
    """Train with some seeds, and write the runs."""
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("--data", type=Path, help="the folder with the data sets")
    command.add_argument("--seeds", type=int, nargs="+", default=[3])
    command.add_argument("--at", type=int, nargs="+", default=[0, 100, 200, 300], help="steps")
    command.add_argument("--images", type=int, default=512)
    command.add_argument("--products", type=int, default=12)
    command.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    command.add_argument("--seconds", type=float, default=math.inf, help="after which no further run is begun")
    command.add_argument("--out", type=Path, required=True)
    options = command.parse_args()
    images = load("cifar10", options.data, train=True)
    runs: list[Run] = []
    for seed in options.seeds:
        if time.perf_counter() - BEGAN > options.seconds:
            break
        runs.append(watched_run(seed, options.at, images, options.images, options.products, options.device))
        print(runs[-1], flush=True)
        content = written(runs, options.device, images=options.images, products=options.products)
        options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def written(runs: Sequence[Run], device: torch.device, *, images: int, products: int) -> dict[str, Any]:
    """The runs as JSON, with the machine and how the limit was measured.

    Args:
        runs: The runs.
        device: Where they were made.
        images: On how many training images.
        products: With how many products of Lanczos, whose λ is at most the true one.
    """
    return {
        "environment": environment(device.type),
        "images": images,
        "products": products,
        "runs": [
            {
                "seed": run.seed,
                "has_collapsed": run.has_collapsed,
                "step": [look.step for look in run.looks],
                "loss": [round(look.loss, 4) for look in run.looks],
                "lr_over_limit": [round(look.lr_over_limit, 4) for look in run.looks],
            }
            for run in runs
        ],
    }


def read(path: Path) -> list[Run]:
    """The runs of a file."""
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
    series = ("step", "loss", "lr_over_limit")
    return [
        Run(run["seed"], [Look(*look) for look in zip(*(run[name] for name in series), strict=True)]) for run in runs
    ]


def positions_of(model: nn.Module, x: Tensor) -> dict[str, int]:
    """The number of output positions of every layer; 1 of a dense one."""
    positions: dict[str, int] = {}
    hooks = [
        module.register_forward_hook(
            lambda _, __, output, name=name: positions.update({name: math.prod(output.shape[2:])})
        )
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
    ]
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    return positions


if __name__ == "__main__":
    main()
