"""Random small networks of every kind, 10 to 200 parameters, each from a seed."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

Draw = random.Random


@dataclass(frozen=True)
class Network:
    """A model and what a problem around it needs to know.

    Attributes:
        model: In float64.
        inputs: Number of examples ↦ inputs.
        classes: The model's outputs per example or token.
        outputs: Whether they are (N, C) or (N, T, C).
        examples: How many there must be, if their number is not free.
        couples: Whether an example's output depends on the others of its batch.
        unread: Layers whose numbers may not be those of the plain rule without a word.
    """

    model: nn.Module
    inputs: Callable[[int], Any]
    classes: int
    outputs: Literal["examples", "tokens"] = "examples"
    examples: int | None = None
    couples: bool = False
    unread: tuple[str, ...] = field(default=())


# norms that are written by hand. `acts_as_batchnorm` tells the reference that batchnorm= is about them


class FunctionalBatchNorm(nn.Module):
    acts_as_batchnorm = True

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("mean", torch.randn(channels) * 0.3)
        self.register_buffer("variance", torch.rand(channels) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.mean, self.variance, self.weight, self.bias, self.training)


class BranchingBatchNorm(FunctionalBatchNorm):
    def forward(self, x: Tensor) -> Tensor:
        mean, variance = self.mean, self.variance
        if self.training:
            mean, variance = x.mean(0), x.var(0, correction=0)
            with torch.no_grad():
                self.mean.lerp_(mean.detach(), 0.1)
                self.variance.lerp_(variance.detach(), 0.1)
        return (x - mean) / (variance + 1e-5).sqrt() * self.weight + self.bias


class Standardized(nn.Module):
    """Couples examples in every mode, and owns nothing."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(0)) / (x.var(0, correction=0) + 1e-3).sqrt()


class LaterRows(nn.Module):
    """The first example is by itself, the others are not."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x[:1], x[1:] - x[1:].mean(0)])


class PreviousRow(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - 0.5 * torch.cat([torch.zeros_like(x[:1]), x[:-1]])


ACTIVATIONS: list[Callable[[], nn.Module]] = [
    nn.Tanh, nn.ReLU, nn.Sigmoid, nn.GELU, nn.SiLU, nn.Softplus, nn.ELU, nn.LeakyReLU, nn.Identity, nn.Softsign,
]  # fmt: skip


def vector_norm(draw: Draw, width: int) -> nn.Module | None:
    norms: list[Callable[[], nn.Module | None]] = [
        lambda: None,
        lambda: None,
        lambda: None,
        lambda: nn.BatchNorm1d(width),
        lambda: nn.BatchNorm1d(width, affine=draw.random() < 0.5, track_running_stats=draw.random() < 0.5),
        lambda: nn.LayerNorm(width),
        lambda: nn.GroupNorm(1, width),
        lambda: FunctionalBatchNorm(width),
        lambda: BranchingBatchNorm(width),
    ]
    return draw.choice(norms)()


def image_norm(draw: Draw, channels: int) -> nn.Module | None:
    norms: list[Callable[[], nn.Module | None]] = [
        lambda: None,
        lambda: nn.BatchNorm2d(channels),
        lambda: FunctionalBatchNorm(channels),
        lambda: nn.GroupNorm(channels, channels),
        lambda: nn.InstanceNorm2d(channels, affine=True),
        lambda: nn.InstanceNorm2d(channels, affine=True, track_running_stats=True),
    ]
    return draw.choice(norms)()


def is_batchnorm(module: nn.Module) -> bool:
    """Whether batchnorm= decides which statistics it uses."""
    is_torchs = isinstance(module, (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm))
    return is_torchs or hasattr(module, "acts_as_batchnorm")


def couples(model: nn.Module) -> bool:
    couple = (nn.modules.batchnorm._BatchNorm, FunctionalBatchNorm, Standardized, LaterRows, PreviousRow)
    return any(isinstance(m, couple) for m in model.modules())


def vectors(width: int, scale: float = 1.0, shift: float = 0.0) -> Callable[[int], Tensor]:
    return lambda n: scale * torch.randn(n, width) + shift


# families


def mlp(draw: Draw) -> Network:
    widths = [draw.randint(1, 6) for _ in range(draw.randint(1, 4))]
    classes, bias = draw.randint(2, 4), draw.random() < 0.8
    layers: list[nn.Module] = []
    for i, o in itertools.pairwise(widths):
        norm = vector_norm(draw, o)
        layers += [nn.Linear(i, o, bias=bias), *([norm] if norm is not None else []), draw.choice(ACTIVATIONS)()]
        layers += [nn.Dropout(0.5)] if draw.random() < 0.2 else []
    model = nn.Sequential(*layers, nn.Linear(widths[-1], classes, bias=bias))
    return Network(model, vectors(widths[0], draw.choice([0.3, 1, 3]), draw.choice([0, 2])), classes)


def convolution(draw: Draw) -> Network:
    groups = draw.choice([1, 1, 2])
    channels, hidden, classes = 2, draw.choice([2, 4]), draw.randint(2, 3)
    norm = image_norm(draw, hidden)
    first = nn.Conv2d(
        channels, hidden, draw.choice([1, 2, 3]), stride=draw.randint(1, 2), padding=draw.randint(0, 1), groups=groups,
        bias=draw.random() < 0.7, padding_mode=draw.choice(["zeros", "circular", "replicate"]),
    )  # fmt: skip
    head = [nn.AdaptiveAvgPool2d(draw.randint(1, 2)), nn.Flatten()]
    middle = [*([norm] if norm is not None else []), draw.choice(ACTIVATIONS)()]
    model = nn.Sequential(first, *middle, *head)
    features = model.double()(torch.zeros(2, channels, 5, 5, dtype=torch.float64)).shape[1]
    return Network(model.append(nn.Linear(features, classes)), lambda n: torch.randn(n, channels, 5, 5) + 1, classes)


def transposed(draw: Draw) -> Network:
    model = nn.Sequential(
        nn.ConvTranspose1d(2, 3, 2, stride=draw.randint(1, 2)), draw.choice(ACTIVATIONS)(), nn.Conv1d(3, 2, 2),
        nn.AdaptiveAvgPool1d(2), nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip
    return Network(model, lambda n: torch.randn(n, 2, 4), 3)


class Tokens(nn.Module):
    """Embedding, an optional mixer over tokens, and a head for each token or for the last."""

    def __init__(self, mixer: nn.Module | None, width: int, classes: int, each: bool, embeds: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, width) if embeds else nn.Linear(width, width)
        self.mixer, self.each = mixer, each
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x)
        if isinstance(self.mixer, nn.MultiheadAttention):
            h = h + self.mixer(h, h, h, need_weights=False)[0]
        elif isinstance(self.mixer, nn.RNNBase):
            h = self.mixer(h)[0]
        elif self.mixer is not None:
            h = self.mixer(h)
        return self.head(h if self.each else h[:, -1])


def tokens(draw: Draw) -> Network:
    width, classes, each, embeds = draw.choice([2, 2, 4]), draw.randint(2, 3), draw.random() < 0.7, draw.random() < 0.6
    mixers: list[Callable[[], nn.Module | None]] = [
        lambda: None,
        lambda: nn.RNN(width, width, batch_first=True),
        lambda: nn.GRU(width, width, batch_first=True),
        lambda: nn.LSTM(width, width, batch_first=True),
        lambda: nn.MultiheadAttention(width, draw.choice([1, 2]), batch_first=True),
        lambda: nn.TransformerEncoderLayer(width, 1, 3, dropout=0.3, batch_first=True, norm_first=draw.random() < 0.5),
        lambda: nn.Sequential(nn.Linear(width, 3), nn.Tanh(), nn.Linear(3, width)),
    ]
    model = Tokens(draw.choice(mixers)(), width, classes, each, embeds)
    t = draw.randint(2, 4)
    inputs = (lambda n: torch.randint(0, 7, (n, t))) if embeds else (lambda n: torch.randn(n, t, width))
    return Network(model, inputs, classes, "tokens" if each else "examples")


class Shared(nn.Module):
    """One layer called twice, and one weight used by two layers."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.twice, self.a, self.b = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.b.weight = self.a.weight
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.twice(torch.tanh(self.twice(x))))
        return self.head(torch.tanh(self.b(torch.tanh(self.a(h)))))


def shared(draw: Draw) -> Network:
    width = draw.randint(2, 4)
    return Network(Shared(width, 3), vectors(width), 3)


class Softplus(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return F.softplus(weight) - 0.7


def parametrized(draw: Draw) -> Network:
    layer = nn.Linear(3, 4)
    kind = draw.choice(["own", "weight_norm", "spectral_norm", "orthogonal"])
    if kind == "own":
        parametrize.register_parametrization(layer, "weight", Softplus())
    elif kind == "weight_norm":
        parametrizations.weight_norm(layer)
    elif kind == "spectral_norm":
        parametrizations.spectral_norm(layer)
    else:
        parametrizations.orthogonal(layer, orthogonal_map="cayley")
    return Network(nn.Sequential(layer, nn.Tanh(), nn.Linear(4, 2)), vectors(3), 2)


class Graph(nn.Module):
    def __init__(self, adjacency: Tensor, classes: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, classes)
        self.register_buffer("adjacency", adjacency)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.adjacency @ torch.tanh(self.a(self.adjacency @ x)))


def graph(draw: Draw) -> Network:
    """Node classification; some nodes are isolated, often the first or the last."""
    n = draw.randint(5, 9)
    edges = (torch.rand(n, n) < 0.3).double()
    edges = ((edges + edges.T) > 0).double()
    for node in {draw.choice([0, n - 1]), draw.randrange(n)}:
        edges[node], edges[:, node] = 0.0, 0.0
    edges.fill_diagonal_(1)
    return Network(Graph(edges / edges.sum(1, keepdim=True), 3), vectors(3), 3, examples=n, couples=True)


def coupled(draw: Draw) -> Network:
    coupling = draw.choice([Standardized, LaterRows, PreviousRow])()
    model = nn.Sequential(nn.Linear(3, 4), coupling, nn.Tanh(), nn.Linear(4, 3))
    return Network(model, vectors(3), 3, couples=True)


class AlsoWithoutGradient(nn.Module):
    """A layer that is called once more under no_grad, as teachers and targets are."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            teacher = self.layer(3 * x + 1)
        return self.head(torch.tanh(self.layer(x)) + 0.1 * teacher)


class ScaledLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(2 * x, self.weight, self.bias)


class TwiceLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.tanh(super().forward(x)))


def without_gradient(draw: Draw) -> Network:
    return Network(AlsoWithoutGradient(), vectors(3), 3)


def subclassed(draw: Draw) -> Network:
    layer = draw.choice([lambda: ScaledLinear(3, 3), lambda: TwiceLinear(3, 3)])()
    return Network(nn.Sequential(layer, nn.Tanh(), nn.Linear(3, 3)), vectors(3), 3, unread=("0",))


class OddState(nn.Module):
    """Counters, containers and tensors outside the buffers, which the forward pass writes to and does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.calls, self.temperature, self.seen, self.last = 0, 1.0, [], {}
        self.averages = {"mean": torch.zeros(3)}
        self.recent: collections.deque[int] = collections.deque(maxlen=3)
        self.steps, self.pair = {0}, (torch.zeros(3), [torch.zeros(1)])
        self.register_buffer("moving", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.temperature *= 0.5
        o = self.layer(x)
        mean = o.detach().mean(0)
        self.seen.append(mean)
        self.last["output"] = mean
        self.averages["mean"] += mean.to(self.averages["mean"])
        self.recent.append(self.calls)
        self.steps.add(self.calls)
        self.pair[0].add_(1)
        self.pair[1][0].add_(1)
        self.moving += mean
        return o


def odd_state(draw: Draw) -> Network:
    return Network(nn.Sequential(OddState(), nn.Tanh(), nn.Linear(3, 2)), vectors(3), 2)


def deep(draw: Draw) -> Network:
    """A deep narrow network whose signal and gradient vanish."""
    width, depth = draw.randint(2, 3), draw.randint(6, 12)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width, bias=False), draw.choice([nn.Identity, nn.Tanh])()]
        layers[-2].weight.data *= draw.choice([0.03, 0.1, 0.3])
    return Network(nn.Sequential(*layers, nn.Linear(width, 2)), vectors(width), 2)


def scaled(draw: Draw) -> Network:
    """A linear network, or one of ReLUs, whose inputs or weights are far from order one."""
    size = 10.0 ** draw.uniform(-15, 15)
    model = nn.Sequential(
        nn.Linear(3, 3, bias=False), draw.choice([nn.Identity, nn.ReLU])(), nn.Linear(3, 2, bias=False)
    )
    if draw.random() < 0.5:
        return Network(model, vectors(3, size), 2)
    model[draw.choice([0, 2])].weight.data *= size
    return Network(model, vectors(3), 2)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(2, 3), nn.Bilinear(3, 2, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.right(torch.tanh(self.left(a)), b)


def two_inputs(draw: Draw) -> Network:
    if draw.random() < 0.5:
        return Network(TwoInputs(), lambda n: (torch.randn(n, 2), torch.randn(n, 2)), 3)
    return Network(TwoInputs(), lambda n: {"a": torch.randn(n, 2), "b": torch.randn(n, 2)}, 3)


class Flat(nn.Module):
    """No layer at all: slices of one parameter, and a scalar one."""

    def __init__(self) -> None:
        super().__init__()
        self.all, self.gain = nn.Parameter(torch.randn(15)), nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x @ self.all[:12].view(4, 3) + self.all[12:]) * self.gain.exp()


def flat(draw: Draw) -> Network:
    return Network(Flat(), vectors(4), 3)


def frozen(draw: Draw) -> Network:
    network = mlp(draw)
    network.model[0].requires_grad_(False)
    if not any(p.requires_grad for p in network.model.parameters()):
        network.model.requires_grad_(True)
    return network


# what models return


class Pair(NamedTuple):
    logits: Tensor
    auxiliary: Tensor


@dataclasses.dataclass
class Output:
    logits: Tensor
    auxiliary: Tensor | None = None


@dataclasses.dataclass(frozen=True)
class FrozenOutput:
    logits: Tensor


RETURNED: dict[str, Callable[[Tensor], Any]] = {
    "tuple": lambda o: (o, o.mean()),
    "named tuple": lambda o: Pair(o, o.mean()),
    "dataclass": lambda o: Output(o, o.mean()),
    "frozen dataclass": FrozenOutput,
}


class Returning(nn.Module):
    """The same network with its outputs in a container."""

    def __init__(self, model: nn.Module, form: str) -> None:
        super().__init__()
        self.model, self.form = model, form

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return RETURNED[self.form](self.model(*args, **kwargs))


def logits_of(outputs: Any) -> Tensor:
    if isinstance(outputs, Tensor):
        return outputs
    return outputs.logits if hasattr(outputs, "logits") else outputs[0]


FAMILIES: dict[str, Callable[[Draw], Network]] = {
    "mlp": mlp, "convolution": convolution, "transposed": transposed, "tokens": tokens, "shared": shared,
    "parametrized": parametrized, "graph": graph, "coupled": coupled, "without_gradient": without_gradient,
    "subclassed": subclassed, "odd_state": odd_state, "deep": deep, "scaled": scaled, "two_inputs": two_inputs,
    "flat": flat, "frozen": frozen,
}  # fmt: skip
COMMON = ("mlp", "mlp", "mlp", "convolution", "tokens", "tokens", "scaled", "deep")
"""Families that are drawn more often."""


def random_network(draw: Draw) -> tuple[str, Network]:
    """A network in float64, with its family's name; torch's generator is expected to be seeded."""
    family = draw.choice([*FAMILIES, *COMMON])
    network = FAMILIES[family](draw)
    model = network.model.double()
    if draw.random() < 0.15:
        form = draw.choice(list(RETURNED))
        unread = tuple(f"model.{name}" for name in network.unread)
        network = dataclasses.replace(network, model=Returning(model, form), unread=unread)
    return family, dataclasses.replace(network, couples=network.couples or couples(model))
