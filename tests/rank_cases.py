"""Networks that several processes train in one way or another, and what is measured of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.optim import AdamW, Optimizer
from zoo import CLASSES, Attention, cnn, flattened_cross_entropy, integers, normal, seeded

import wellcond as wc

Batches = list[tuple[Tensor, Tensor]]


class Network(NamedTuple):
    """A model with the batches of all processes together, as one process would read them."""

    model: nn.Module
    loss: Any
    batches: Batches
    batchnorm: str = "batch"

    def in_single(self) -> Network:
        """The same in float32."""
        return self._replace(model=self.model.float(), batches=[(x.float(), y) for x, y in self.batches])


class Tied(nn.Module):
    """A transformer that reads tokens with the weights that it predicts them with."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.block = Attention(4, 2)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.block(self.embed(tokens)))


def images(batchnorm: str = "batch") -> Network:
    batches = [(normal(16, 2, 4, 4, seed=i), integers(CLASSES, 16, seed=i)) for i in range(3)]
    return Network(seeded(cnn), nn.CrossEntropyLoss(), batches, batchnorm)


def perceptron() -> Network:
    """Of its first units, one is dead on all examples, and one on all but the last of the first batch."""
    model = seeded(
        lambda: nn.Sequential(
            nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, CLASSES)
        )
    )
    batches = [(normal(16, 4, seed=i), integers(CLASSES, 16, seed=i)) for i in range(4)]
    batches[0][0][-1, 0] = 6.0
    with torch.no_grad():
        model[0].weight[:2] = torch.tensor([1.0, 0.0, 0.0, 0.0])
        model[0].bias[:2] = torch.tensor([-100.0, -5.0])
    return Network(model, nn.CrossEntropyLoss(), batches)


def grouped() -> Network:
    """A convolutional network whose norms do not look at other examples."""
    model = seeded(
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES)
        )
    )
    return Network(model, nn.CrossEntropyLoss(), images().batches)


def tied() -> Network:
    batches = [(integers(5, 8, 4, seed=i), integers(5, 8, 4, seed=i + 9)) for i in range(3)]
    return Network(seeded(Tied), flattened_cross_entropy, batches)


NETWORKS: dict[str, Callable[[], Network]] = {
    "perceptron": perceptron,
    "GroupNorm": grouped,
    "BatchNorm, running": lambda: images("running"),
    "BatchNorm, batch": images,
    "tied transformer": tied,
    "single precision": lambda: perceptron().in_single(),
}


# wrapping


def in_ddp(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def in_fsdp(model: nn.Module, **policies: Any) -> nn.Module:
    """Every layer apart, as is usual; tied weights are one group with what they are tied to."""
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    if not isinstance(model, Tied):
        for layer in model.children():
            if list(layer.parameters()):
                fully_shard(layer, mesh=mesh, **policies)
    fully_shard(model, mesh=mesh, **policies)
    return model


def in_mixed_fsdp(model: nn.Module) -> nn.Module:
    return in_fsdp(model, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))


def in_offloaded_fsdp(model: nn.Module) -> nn.Module:
    return in_fsdp(model, offload_policy=CPUOffloadPolicy(pin_memory=False))


def in_tensor_parallel(model: nn.Module) -> nn.Module:
    """The first two layers of a perceptron are divided by columns and rows, the last two stay whole."""
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def in_both(model: nn.Module) -> nn.Module:
    """Tensor parallelism of two processes inside of FSDP2; the last two layers are on a part of the mesh each."""
    mesh = init_device_mesh("cpu", (distributed.get_world_size() // 2, 2), mesh_dim_names=("data", "tensor"))
    model = parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    return model


def in_hybrid(model: nn.Module) -> nn.Module:
    """FSDP2 over pairs of processes, which are replicas of each other."""
    shape = distributed.get_world_size() // 2, 2
    fully_shard(model, mesh=init_device_mesh("cpu", shape, mesh_dim_names=("replica", "shard")))
    return model


Wrap = Callable[[nn.Module], nn.Module]


# what each process reads


def part_of(batches: Batches, place: int, count: int) -> Batches:
    return [(x.chunk(count)[place], y.chunk(count)[place]) for x, y in batches]


def train(model: nn.Module, optimizer: Optimizer, loss: Any, batches: Batches) -> None:
    """Two steps with running statistics, so that the optimizer has a state."""
    model.eval()
    for x, y in batches[:2]:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    model.train()


def alone(network: Network, apart: int = 1) -> tuple[wc.Problem, Optimizer]:
    """What one process measures.

    Args:
        network: It is trained a little.
        apart: In how many parts every batch is measured.
    """
    optimizer = AdamW(network.model.parameters(), lr=0.01)
    train(network.model, optimizer, network.loss, network.batches)
    batches = [part for batch in network.batches for part in zip(*(t.chunk(apart) for t in batch), strict=True)]
    return wc.Problem(network.model, network.loss, batches, network.batchnorm), optimizer


def together(network: Network, wrap: Wrap, place: int, count: int) -> tuple[wc.Problem, Optimizer]:
    """What one of several processes measures, which reads one of `count` parts of every batch."""
    model = wrap(network.model)
    optimizer = AdamW(model.parameters(), lr=0.01)
    own = part_of(network.batches, place, count)
    train(model, optimizer, network.loss, own)
    return wc.Problem(model, network.loss, own, network.batchnorm), optimizer


# what is measured

Call = Callable[[wc.Problem, Optimizer], Any]
CALLS: dict[str, Call] = {
    "max_lr": lambda problem, optimizer: wc.max_lr(problem, optimizer, tol=1e-6, confidence=None),
    "conditioning": lambda problem, optimizer: wc.conditioning(problem),
    "neurons": lambda problem, optimizer: wc.neurons(problem),
    "diagnose": lambda problem, optimizer: wc.diagnose(problem, optimizer),
    "suggest_lr": lambda problem, optimizer: wc.suggest_lr(problem, optimizer, steps=10, max_steps=40),
    "treat": lambda problem, optimizer: wc.treat(problem, optimizer, steps=5, seeds=[0], remedies=["clip"]),
}
OF_THE_MACHINE = ("cost", "step_time", "step_memory", "seconds")
"""How the names of numbers end that are not of the network."""
ZERO = 1e-14
"""What rounding leaves of a zero: the gradient of a bias before BatchNorm, say."""


def numbers(result: Any) -> dict[str, Any]:
    """All numbers of a result, and what else it says, by name."""
    known: dict[str, Any] = {}
    for place, row in enumerate(result.rows()):
        if not row.quantity.endswith(OF_THE_MACHINE):
            known[f"{place} {row.layer} {row.quantity}"] = row.value
    for name in ("lr", "low", "high"):
        if hasattr(result, name):
            known[name] = getattr(result, name)
    if hasattr(result, "findings"):
        known["findings"] = [(finding.rule, finding.layer, finding.severity) for finding in result.findings]
    if hasattr(result, "failed"):
        known["failed"] = dict(result.failed)
    return known


def measured(problem: wc.Problem, optimizer: Optimizer, calls: Collection[str] = tuple(CALLS)) -> dict[str, Any]:
    """The numbers of every call."""
    return {call: numbers(CALLS[call](problem, optimizer)) for call in calls}


def largest_difference(first: dict[str, Any], second: dict[str, Any]) -> float:
    """Relative, of numbers with the same names; everything else must be the same."""
    assert first.keys() == second.keys()
    largest = 0.0
    for name, value in first.items():
        other = second[name]
        if not isinstance(value, float) or not isinstance(other, float) or not math.isfinite(value):
            assert repr(value) == repr(other), name
        elif max(abs(value), abs(other)) > ZERO:
            largest = max(largest, abs(value - other) / max(abs(value), abs(other)))
    return largest
