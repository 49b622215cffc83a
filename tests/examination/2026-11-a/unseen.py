"""A blind examination: training programs with one known fault each, and sound ones.

Every case builds one program in two forms, faulty and repaired, that differ only in the fault.
Nothing here was tuned to any diagnosis tool; ``verify.py`` trains all of it and records that each
fault hurts and that each healthy set-up learns.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn import datasets
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

Loss = Callable[..., Tensor]
Score = Callable[[nn.Module], float]


@dataclass(frozen=True)
class Program:
    """Everything that a training loop needs, and a score (higher is better) for what comes out."""

    model: nn.Module
    loss: Loss
    loader: DataLoader
    optimizer: Optimizer
    score: Score
    steps: int


@dataclass(frozen=True)
class Case:
    """One fault: ``build(True, seed)`` has it, ``build(False, seed)`` is the repaired program.

    A name in ``layers`` also covers the modules and parameters below it; "" is the model itself.
    """

    name: str
    what: str
    build: Callable[[bool, int], Program]
    rules: tuple[str, ...]
    layers: tuple[str, ...]


CASES: dict[str, Case] = {}
HEALTHY: dict[str, Callable[[int], Program]] = {}


def case(
    what: str, rules: Iterable[str], layers: Iterable[str] = ()
) -> Callable[[Callable[[bool, int], Program]], Callable[[bool, int], Program]]:
    """Register the decorated builder as a case under its own name."""

    def register(build: Callable[[bool, int], Program]) -> Callable[[bool, int], Program]:
        def seeded(faulty: bool, seed: int) -> Program:
            torch.manual_seed(seed)
            return build(faulty, seed)

        name = build.__name__
        CASES[name] = Case(name, what, seeded, tuple(rules), tuple(layers))
        return build

    return register


def healthy(build: Callable[[int], Program]) -> Callable[[int], Program]:
    """Register the decorated builder as a sound set-up under its own name."""

    def seeded(seed: int) -> Program:
        torch.manual_seed(seed)
        return build(seed)

    HEALTHY[build.__name__] = seeded
    return build


# --------------------------------------------------------------------------- data and scores


@dataclass(frozen=True)
class Data:
    """Training and held-out examples."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor

    def loader(self, seed: int, batch: int = 32, shuffle: bool = True) -> DataLoader:
        order = torch.Generator().manual_seed(seed)
        return DataLoader(
            TensorDataset(self.x, self.y), batch_size=batch, shuffle=shuffle, generator=order
        )

    def map(
        self,
        x: Callable[[Tensor], Tensor] | None = None,
        y: Callable[[Tensor], Tensor] | None = None,
    ) -> Data:
        """The same data with all inputs and/or all targets transformed."""
        f, g = x or (lambda t: t), y or (lambda t: t)
        return Data(f(self.x), g(self.y), f(self.x_test), g(self.y_test))


def split(x: Tensor, y: Tensor, seed: int, train: int | None = None) -> Data:
    """Shuffle and cut; the training part is a multiple of 32 examples."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed + 100))
    cut = train or len(x) * 3 // 4 // 32 * 32
    a, b = order[:cut], order[cut:]
    return Data(x[a], y[a], x[b], y[b])


def _evaluate(model: nn.Module, x: Tensor) -> Tensor:
    mode = model.training
    model.eval()
    try:
        with torch.no_grad():
            return model(x)
    finally:
        model.train(mode)


def accuracy(data: Data, dim: int = -1) -> Score:
    """Share of held-out labels that the largest output names."""

    def score(model: nn.Module) -> float:
        out = _evaluate(model, data.x_test)
        return (out.argmax(dim) == data.y_test).float().mean().item()

    return score


def binary_accuracy(data: Data, threshold: float = 0.0) -> Score:
    """Share of held-out 0/1 labels on the right side of ``threshold``."""

    def score(model: nn.Module) -> float:
        out = _evaluate(model, data.x_test).reshape(data.y_test.shape)
        return ((out > threshold) == (data.y_test > 0.5)).float().mean().item()

    return score


def r_squared(data: Data, pick: Callable[[Tensor], Tensor] = lambda out: out) -> Score:
    """Explained share of the variance on held-out data, at least -1 (also for NaN)."""

    def score(model: nn.Module) -> float:
        out = pick(_evaluate(model, data.x_test)).reshape(data.y_test.shape)
        spread = (data.y_test - data.y_test.mean(0)).square().mean()
        value = (1 - (out - data.y_test).square().mean() / spread).item()
        return max(value, -1.0) if math.isfinite(value) else -1.0

    return score


def foreground_iou(data: Data) -> Score:
    """Intersection over union of class 1 in (N, 2, H, W) outputs."""

    def score(model: nn.Module) -> float:
        found = _evaluate(model, data.x_test).argmax(1) == 1
        wanted = data.y_test == 1
        return ((found & wanted).sum() / (found | wanted).sum().clamp(min=1)).item()

    return score


def standardise(data: Data, eps: float = 1e-6) -> Data:
    mean, std = data.x.mean(0), data.x.std(0)
    return data.map(lambda x: (x - mean) / (std + eps))


def digits_raw(seed: int, image: bool = False) -> Data:
    """Handwritten digits, 8 x 8, values 0 to 16."""
    bunch = datasets.load_digits()
    x = torch.tensor(bunch.data, dtype=torch.float32)
    return split(x.view(-1, 1, 8, 8) if image else x, torch.tensor(bunch.target), seed)


def digits(seed: int, image: bool = False) -> Data:
    """Handwritten digits with one mean and one scale for all pixels."""
    return digits_raw(seed, image).map(lambda x: (x - 4.9) / 6.0)


def table_raw(name: str, seed: int) -> Data:
    """A scikit-learn classification table, untouched."""
    bunch = getattr(datasets, f"load_{name}")()
    return split(torch.tensor(bunch.data, dtype=torch.float32), torch.tensor(bunch.target), seed)


def table(name: str, seed: int) -> Data:
    return standardise(table_raw(name, seed))


def diabetes(seed: int) -> Data:
    """Diabetes regression, inputs and targets standardised, targets of shape (N, 1)."""
    bunch = datasets.load_diabetes()
    x, y = torch.tensor(bunch.data).float(), torch.tensor(bunch.target).float()[:, None]
    data = standardise(split(x, y, seed))
    mean, std = data.y.mean(), data.y.std()
    return data.map(y=lambda t: (t - mean) / std)


def circles(seed: int, n: int = 1024) -> Data:
    x, y = datasets.make_circles(n, noise=0.08, factor=0.4, random_state=seed)
    return split(torch.tensor(x).float() * 1.4, torch.tensor(y), seed)


def surface(seed: int, n: int = 1024, features: int = 6) -> Data:
    """Smooth nonlinear regression on standard normal inputs, targets of shape (N, 1)."""
    g = torch.Generator().manual_seed(seed + 7)
    x = torch.randn(n, features, generator=g)
    y = torch.sin(1.5 * x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + 0.4 * x[:, 3]
    y = (y - y.mean()) / y.std() + 0.05 * torch.randn(n, generator=g)
    return split(x, y[:, None], seed)


def waves(seed: int, n: int = 1024, length: int = 24) -> Data:
    """Noisy two-channel waves (N, T, 2) of three kinds of frequency."""
    g = torch.Generator().manual_seed(seed + 11)
    y = torch.randint(3, (n,), generator=g)
    t = torch.arange(length) / length * 2 * math.pi
    phase = torch.rand(n, 1, generator=g) * 2 * math.pi
    angle = (1.0 + 1.5 * y[:, None]) * t + phase
    x = torch.stack([angle.sin(), angle.cos()], -1)
    return split(x + 0.25 * torch.randn(x.shape, generator=g), y, seed)


def first_sign(seed: int, n: int = 1024, length: int = 30) -> Data:
    """The label is the sign of the first of ``length`` noisy scalars, (N, T, 1)."""
    g = torch.Generator().manual_seed(seed + 13)
    y = torch.randint(2, (n,), generator=g)
    x = 0.05 * torch.randn(n, length, 1, generator=g)
    x[:, 0, 0] += 2.0 * y - 1.0
    return split(x, y, seed)


def sentences(seed: int, n: int = 1024, length: int = 16, vocab: int = 40) -> Data:
    """Token sequences: words 1-6 speak for class 1, words 7-12 for class 0, the rest is filler."""
    g = torch.Generator().manual_seed(seed + 17)
    y = torch.randint(2, (n,), generator=g)
    x = torch.randint(13, vocab, (n, length), generator=g)
    for place in (torch.zeros(n).long(), *torch.randint(length, (2, n), generator=g)):
        x[torch.arange(n), place] = torch.randint(1, 7, (n,), generator=g) + 6 * (1 - y)
    return split(x, y, seed)


def marked_value(seed: int, n: int = 1536, length: int = 10, kinds: int = 4) -> Data:
    """(N, T, 1 + kinds): name the symbol at the one marked position."""
    g = torch.Generator().manual_seed(seed + 19)
    symbols = torch.randint(kinds, (n, length), generator=g)
    place = torch.randint(length, (n,), generator=g)
    mark = F.one_hot(place, length).float()[..., None] * 2
    x = torch.cat([mark, F.one_hot(symbols, kinds).float()], -1)
    x = x + 0.1 * torch.randn(x.shape, generator=g)
    return split(x, symbols[torch.arange(n), place], seed)


def majority(seed: int, n: int = 1536, length: int = 12, kinds: int = 4) -> Data:
    """(N, T, 1 + kinds): name the symbol that a sequence prefers; the first column is noise."""
    g = torch.Generator().manual_seed(seed + 21)
    y = torch.randint(kinds, (n,), generator=g)
    stray = torch.rand(n, length, generator=g) < 0.55
    symbols = torch.where(stray, torch.randint(kinds, (n, length), generator=g), y[:, None])
    x = torch.cat(
        [torch.randn(n, length, 1, generator=g), F.one_hot(symbols, kinds).float() * 2 - 0.5], -1
    )
    return split(x + 0.1 * torch.randn(x.shape, generator=g), y, seed)


def shapes(seed: int, n: int = 320, size: int = 16) -> Data:
    """Noisy images (N, 1, S, S) with one bright rectangle, to be segmented: (N, S, S) of 0/1."""
    rng = np.random.default_rng(seed + 23)
    y = np.zeros((n, size, size), dtype=np.int64)
    for k in range(n):
        top, left = rng.integers(0, size - 7, 2)
        high, wide = rng.integers(4, 8, 2)
        y[k, top : top + high, left : left + wide] = 1
    x = 1.6 * y + rng.normal(size=y.shape) * 0.8 - 0.2
    return split(torch.tensor(x).float()[:, None], torch.tensor(y), seed)


def graphs(seed: int, n: int = 768, nodes: int = 24, features: int = 4) -> Data:
    """Node features (N, nodes, F) on one fixed graph; is the graph's mean activity high?"""
    g = torch.Generator().manual_seed(seed + 29)
    x = torch.randn(n, nodes, features, generator=g) + 0.5 * torch.randn(
        n, 1, features, generator=g
    )
    level = x[..., 0].mean(1) - x[..., 1].mean(1)
    return split(x, (level > 0).long(), seed)


def adjacency(nodes: int = 24, density: float = 0.5) -> Tensor:
    """A fixed undirected random graph with self-loops."""
    upper = torch.rand(nodes, nodes, generator=torch.Generator().manual_seed(3)).triu(1)
    linked = (upper > 1 - density).float()
    return linked + linked.T + torch.eye(nodes)


def chains(seed: int, n: int = 768, length: int = 16, vocab: int = 12) -> Data:
    """Language modelling on a Markov chain: inputs (N, T), the next tokens (N, T) as targets."""
    g = torch.Generator().manual_seed(seed + 31)
    jump = torch.tensor([3, 7, 1, 10, 5, 0, 11, 2, 9, 4, 6, 8])
    seq = torch.randint(vocab, (n, length + 1), generator=g)
    for t in range(length):
        stay = torch.rand(n, generator=g) < 0.85
        seq[:, t + 1] = torch.where(stay, jump[seq[:, t]], seq[:, t + 1])
    return split(seq[:, :-1], seq[:, 1:], seed)


def token_loss(out: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy over (N, T, C) outputs and (N, T) targets."""
    return F.cross_entropy(out.flatten(0, 1), target.flatten())


def mlp(*sizes: int, act: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in zip(sizes[:-1], sizes[1:], strict=True):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])


def adam(model: nn.Module, lr: float = 1e-3, **options: Any) -> Optimizer:
    return torch.optim.Adam(model.parameters(), lr=lr, **options)


def sgd(model: nn.Module, lr: float, momentum: float = 0.9, **options: Any) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, **options)


# --------------------------------------------------------------------------- faults: data


@case(
    "Images are divided by 255 and stored as uint8 before use: all pixels become zero.",
    ["constant-feature"],
)
def digits_cast_to_uint8(faulty: bool, seed: int) -> Program:
    data = digits_raw(seed)
    if faulty:
        data = data.map(lambda x: (x / 255).to(torch.uint8).float())
    else:
        data = data.map(lambda x: x / 8 - 0.6)
    model = mlp(64, 64, 10)
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 3e-3), accuracy(data), 120
    )


@case(
    "Outlier clipping to [0, 1] is done before the columns are standardised, so that most columns "
    "of the wine table hold one value.",
    ["constant-feature"],
)
def wine_clipped_before_scaling(faulty: bool, seed: int) -> Program:
    data = table_raw("wine", seed)
    if faulty:
        data = data.map(lambda x: x.clamp(0, 1))
    data = standardise(data)
    model = mlp(13, 32, 3)
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed, 16), adam(model, 3e-3), accuracy(data), 120
    )


@case(
    "Columns are standardised by hand without an epsilon: border pixels have no spread, 0/0.",
    ["non-finite", "constant-feature"],
)
def zero_spread_division(faulty: bool, seed: int) -> Program:
    data = standardise(digits_raw(seed), eps=0.0 if faulty else 1.0)
    model = mlp(64, 64, 10)
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 3e-3), accuracy(data), 120
    )


@case(
    "Raw wine columns (0.1 to 1700) go straight into an MLP with plain SGD.",
    ["unscaled-input", "ill-conditioned-input"],
)
def wine_raw_columns(faulty: bool, seed: int) -> Program:
    data = table_raw("wine", seed) if faulty else table("wine", seed)
    model = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 3))
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed, 16), sgd(model, 0.02), accuracy(data), 150
    )


class SmallConvNet(nn.Module):
    """Two convolutions and a linear head for 8 x 8 images."""

    def __init__(self, classes: int = 10, width: int = 16, norm: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(width) if norm else nn.Identity()
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(2 * width) if norm else nn.Identity()
        self.fc = nn.Linear(2 * width * 4, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        return self.fc(x.flatten(1))


@case(
    "Grey values from 0 to 255 are fed to a convolutional net unscaled.",
    ["unscaled-input"],
)
def grey_values_to_255(faulty: bool, seed: int) -> Program:
    data = digits_raw(seed, image=True).map(lambda x: x / 16 * 255)
    if not faulty:
        data = data.map(lambda x: (x - 78) / 96)
    model = SmallConvNet()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), sgd(model, 0.05), accuracy(data), 120
    )


@case(
    "Linear trend fit on raw powers t, t^2, ..., t^7 of a time in [0, 2].",
    ["ill-conditioned-input", "unscaled-input"],
)
def raw_powers(faulty: bool, seed: int) -> Program:
    t = torch.rand(1024, 1, generator=torch.Generator().manual_seed(seed)) * 2
    if faulty:
        x = torch.cat([t**k for k in range(1, 8)], 1)
    else:
        x = torch.cat([torch.cos(k * math.pi * t / 2) * 1.4 for k in range(1, 8)], 1)
    y = torch.cos(math.pi * t) + 0.6 * torch.cos(2.0 * math.pi * t)
    data = split(x, y, seed)
    model = nn.Linear(7, 1)
    return Program(model, nn.MSELoss(), data.loader(seed), adam(model, 0.03), r_squared(data), 200)


@case(
    "Eight sensors measure nearly the same temperature, and the target is in their small "
    "differences: the columns are almost collinear.",
    ["ill-conditioned-input", "rank-collapse"],
)
def nearly_equal_sensors(faulty: bool, seed: int) -> Program:
    g = torch.Generator().manual_seed(seed)
    common = torch.randn(1024, 1, generator=g)
    own = torch.randn(1024, 8, generator=g)
    x = common + 0.02 * own
    y = torch.tanh(own[:, :1] - own[:, 1:2]) + 0.5 * own[:, 2:3]
    data = split(x, y, seed)
    if not faulty:
        mean = data.x.mean(0)
        values, vectors = torch.linalg.eigh((data.x - mean).T.cov())
        whiten = vectors / values.sqrt()
        data = data.map(lambda v: (v - mean) @ whiten)
    model = mlp(8, 32, 1, act=nn.Tanh)
    return Program(model, nn.MSELoss(), data.loader(seed), adam(model, 5e-3), r_squared(data), 200)


@case(
    "Images and labels are shuffled with two different permutations.",
    ["labels-unrelated"],
)
def shuffled_apart(faulty: bool, seed: int) -> Program:
    data = digits(seed, image=True)
    if faulty:
        order = torch.randperm(len(data.x))
        data = Data(data.x[order], data.y, data.x_test, data.y_test)
    model = SmallConvNet()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 3e-3), accuracy(data), 120
    )


@case(
    "The feature table was sorted by a column after the targets had been taken out of it.",
    ["labels-unrelated"],
)
def table_sorted_after_targets(faulty: bool, seed: int) -> Program:
    data = surface(seed)
    if faulty:
        data = Data(data.x[data.x[:, 5].argsort()], data.y, data.x_test, data.y_test)
    model = mlp(6, 48, 48, 1)
    return Program(model, nn.MSELoss(), data.loader(seed), adam(model, 5e-3), r_squared(data), 200)


@case(
    "Digits are stored class by class and the loader does not shuffle.",
    ["sorted-batches"],
)
def digits_class_by_class(faulty: bool, seed: int) -> Program:
    data = digits(seed)
    order = data.y.argsort()
    data = Data(data.x[order], data.y[order], data.x_test, data.y_test)
    model = mlp(64, 64, 10)
    loader = data.loader(seed, 32, shuffle=not faulty)
    return Program(model, nn.CrossEntropyLoss(), loader, sgd(model, 0.1), accuracy(data), 126)


def _discriminator_data(seed: int) -> Data:
    """Real: points on a noisy spiral band; fake: a blurry generator's points."""
    g = torch.Generator().manual_seed(seed + 37)
    angle = torch.rand(768, generator=g) * 2 * math.pi
    real = torch.stack([angle.cos(), angle.sin(), (2 * angle).sin()], 1)
    real = real + 0.1 * torch.randn(768, 3, generator=g)
    fake = torch.randn(768, 3, generator=g) * 1.1
    x = torch.cat([real, fake]) * 1.2
    y = torch.cat([torch.ones(768, 1), torch.zeros(768, 1)])
    return split(x, y, seed)


@case(
    "A discriminator is fed from a file with all real samples first, then all fakes, unshuffled.",
    ["sorted-batches"],
)
def real_then_fake(faulty: bool, seed: int) -> Program:
    data = _discriminator_data(seed)
    order = data.y[:, 0].argsort(descending=True)
    data = Data(data.x[order], data.y[order], data.x_test, data.y_test)
    model = nn.Sequential(
        nn.Linear(3, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)
    )
    loader = data.loader(seed, 32, shuffle=not faulty)
    return Program(
        model, nn.BCEWithLogitsLoss(), loader, sgd(model, 0.1), binary_accuracy(data), 144
    )


# --------------------------------------------------------------------------- faults: targets, loss


@case(
    "House prices in dollars as regression targets, with an ordinary Adam rate.",
    ["unscaled-target"],
)
def prices_in_dollars(faulty: bool, seed: int) -> Program:
    data = surface(seed)
    if faulty:
        data = data.map(y=lambda t: 350_000 + 120_000 * t)
    model = mlp(6, 64, 64, 1)
    return Program(model, nn.MSELoss(), data.loader(seed), adam(model, 3e-3), r_squared(data), 200)


@case(
    "A GRU forecasts a pressure of about 101 325 Pa in raw units with a Huber loss.",
    ["unscaled-target"],
)
def pressure_in_pascal(faulty: bool, seed: int) -> Program:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(768, 12, 3, generator=g)
    y = torch.tanh(x[:, -4:, 0].sum(1, keepdim=True)) + 0.5 * x[:, -1, 1:2]
    data = split(x, y, seed)
    if faulty:
        data = data.map(y=lambda t: 101_325 + 900 * t)

    class Forecaster(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(3, 32, batch_first=True)
            self.out = nn.Linear(32, 1)

        def forward(self, x: Tensor) -> Tensor:
            states, _ = self.gru(x)
            return self.out(states[:, -1])

    model = Forecaster()
    return Program(
        model, nn.HuberLoss(), data.loader(seed), adam(model, 1e-2), r_squared(data), 150
    )


@case(
    "The regression loss is summed over the batch, with a rate chosen for a mean.",
    ["summed-loss", "learning-rate-too-high"],
)
def squared_error_summed(faulty: bool, seed: int) -> Program:
    data = diabetes(seed)
    model = mlp(10, 32, 1)
    loss = nn.MSELoss(reduction="sum" if faulty else "mean")
    return Program(model, loss, data.loader(seed, 64), sgd(model, 0.05), r_squared(data), 120)


@case(
    "A segmentation loss is summed over all pixels and images.",
    ["summed-loss", "learning-rate-too-high"],
)
def pixels_summed(faulty: bool, seed: int) -> Program:
    data = shapes(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 2, 1),
    )

    def loss(out: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(out, target, reduction="sum" if faulty else "mean")

    return Program(model, loss, data.loader(seed, 16), sgd(model, 0.1), foreground_iou(data), 90)


@case(
    "Softmax inside the model and cross-entropy (which applies it again) outside.",
    ["output-loss-mismatch"],
    ["head", "softmax"],
)
def softmax_twice(faulty: bool, seed: int) -> Program:
    data = digits(seed)

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
            self.head = nn.Linear(48, 10)
            self.softmax = nn.Softmax(dim=1) if faulty else nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return self.softmax(self.head(self.body(x)))

    model = Classifier()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), sgd(model, 0.01), accuracy(data), 120
    )


@case(
    "NLLLoss on raw scores: the log-softmax was forgotten.",
    ["output-loss-mismatch", "diverging"],
    ["fc"],
)
def raw_scores_to_nll(faulty: bool, seed: int) -> Program:
    data = digits(seed, image=True)

    class Net(SmallConvNet):
        def forward(self, x: Tensor) -> Tensor:
            scores = super().forward(x)
            return scores if faulty else F.log_softmax(scores, dim=1)

    model = Net()
    return Program(model, nn.NLLLoss(), data.loader(seed), adam(model, 3e-3), accuracy(data), 100)


@case(
    "Outputs of shape (N, 1) against targets of shape (N,): the error broadcasts to (N, N).",
    ["output-loss-mismatch"],
)
def broadcast_targets(faulty: bool, seed: int) -> Program:
    data = surface(seed)
    if faulty:
        data = data.map(y=lambda t: t.squeeze(1))

    def loss(out: Tensor, target: Tensor) -> Tensor:
        return ((out - target) ** 2).mean()

    model = mlp(6, 64, 64, 1)
    return Program(model, loss, data.loader(seed), adam(model, 5e-3), r_squared(data), 200)


@case(
    "A ReLU after the output layer of a regression with negative targets.",
    ["output-loss-mismatch", "dying-neurons"],
    ["4", "5"],
)
def relu_on_the_output(faulty: bool, seed: int) -> Program:
    data = surface(seed)
    model = mlp(6, 64, 64, 1)
    if faulty:
        model.append(nn.ReLU())
    return Program(model, nn.MSELoss(), data.loader(seed), adam(model, 5e-3), r_squared(data), 200)


@case(
    "An autoencoder ends in a sigmoid while the pixels to be rebuilt run from 0 to 16.",
    ["saturated-output", "output-loss-mismatch", "unscaled-target"],
    ["decoder", "decoder.2", "decoder.3"],
)
def sigmoid_for_wide_pixels(faulty: bool, seed: int) -> Program:
    raw = digits_raw(seed)
    data = Data(raw.x, raw.x, raw.x_test, raw.x_test)
    if not faulty:
        data = data.map(lambda x: x / 16, lambda x: x / 16)

    class AutoEncoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 12))
            self.decoder = nn.Sequential(
                nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 64), nn.Sigmoid()
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.decoder(self.encoder(x))

    model = AutoEncoder()
    return Program(model, nn.MSELoss(), data.loader(seed), adam(model, 5e-3), r_squared(data), 200)


@case(
    "A discriminator's logit is multiplied by a 'temperature' of 200 before the sigmoid.",
    ["saturated-output", "saturated-activation"],
    ["", "net", "net.4", "sigmoid"],
)
def hot_discriminator(faulty: bool, seed: int) -> Program:
    data = _discriminator_data(seed)

    class Discriminator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(3, 64, 64, 1, act=lambda: nn.LeakyReLU(0.2))
            self.temperature = 200.0 if faulty else 1.0
            self.sigmoid = nn.Sigmoid()

        def forward(self, x: Tensor) -> Tensor:
            return self.sigmoid(self.net(x) * self.temperature)

    model = Discriminator()
    score = binary_accuracy(data, 0.5)
    return Program(model, nn.BCELoss(), data.loader(seed), sgd(model, 0.05), score, 150)


# --------------------------------------------------------------------------- faults: wiring


@case(
    "An encoder's code is detached before the decoder, so that the encoder never learns.",
    ["no-gradient"],
    ["encoder", "encoder.0", "encoder.2", "encoder.0.weight", "encoder.2.weight"],
)
def detached_code(faulty: bool, seed: int) -> Program:
    raw = digits(seed)
    data = Data(raw.x, raw.x, raw.x_test, raw.x_test)

    class AutoEncoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 6))
            self.decoder = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 64))

        def forward(self, x: Tensor) -> Tensor:
            code = self.encoder(x)
            if faulty:
                code = code.detach()
            return self.decoder(code)

    model = AutoEncoder()
    return Program(model, nn.MSELoss(), data.loader(seed), adam(model, 5e-3), r_squared(data), 250)


@case(
    "Two tasks, but the loss reads the first output column only.",
    ["no-gradient", "output-loss-mismatch"],
    ["second", "second.weight", "second.bias"],
)
def second_task_forgotten(faulty: bool, seed: int) -> Program:
    data = surface(seed)
    data = Data(
        data.x,
        torch.cat([data.y, data.x[:, 4:5] ** 2 - 1], 1),
        data.x_test,
        torch.cat([data.y_test, data.x_test[:, 4:5] ** 2 - 1], 1),
    )

    class TwoTasks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
            self.first = nn.Linear(64, 1)
            self.second = nn.Linear(64, 1)

        def forward(self, x: Tensor) -> Tensor:
            h = self.trunk(x)
            return torch.cat([self.first(h), self.second(h)], dim=1)

    def loss(out: Tensor, target: Tensor) -> Tensor:
        first = F.mse_loss(out[:, 0], target[:, 0])
        return first if faulty else first + F.mse_loss(out[:, 1], target[:, 1])

    model = TwoTasks()
    return Program(model, loss, data.loader(seed), adam(model, 5e-3), r_squared(data), 200)


@case(
    "Codes are rounded with torch.round, whose gradient is zero, not straight through.",
    ["no-gradient", "vanishing-gradient"],
    ["encode", "encode.0", "encode.2", "encode.0.weight", "encode.2.weight"],
)
def rounded_code(faulty: bool, seed: int) -> Program:
    data = digits(seed)

    class Quantised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 5))
            self.decode = nn.Linear(5, 10)

        def forward(self, x: Tensor) -> Tensor:
            code = 3 * self.encode(x)
            rounded = torch.round(code)
            if not faulty:
                rounded = code + (rounded - code).detach()
            return self.decode(rounded)

    model = Quantised()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 5e-3), accuracy(data), 200
    )


@case(
    "The hidden layers are kept in a Python list: they are no parameters of the model and stay "
    "as they were initialised.",
    ["no-gradient", "loss-not-decreasing", "optimizer-setting"],
)
def layers_in_a_python_list(faulty: bool, seed: int) -> Program:
    data = surface(seed)

    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [nn.Linear(a, b) for a, b in ((6, 32), (32, 32), (32, 32))]
            self.layers = layers if faulty else nn.ModuleList(layers)
            self.out = nn.Linear(32, 1)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = F.relu(layer(x))
            return self.out(x)

    model = Stack()
    return Program(model, nn.MSELoss(), data.loader(seed), adam(model, 5e-3), r_squared(data), 200)


@case(
    "The optimizer was made for the model before it was deep-copied; the copy is trained.",
    ["loss-not-decreasing", "optimizer-setting", "learning-rate-too-low"],
)
def optimizer_of_another_model(faulty: bool, seed: int) -> Program:
    data = table("breast_cancer", seed)
    model = nn.Sequential(nn.Linear(30, 32), nn.GELU(), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    if faulty:
        model = copy.deepcopy(model)
    return Program(model, nn.CrossEntropyLoss(), data.loader(seed), optimizer, accuracy(data), 80)


@case(
    "A frozen feature extractor, and an optimizer made before the head was replaced.",
    ["loss-not-decreasing", "no-gradient", "optimizer-setting", "learning-rate-too-low"],
    ["head", "head.weight", "head.bias"],
)
def head_replaced_too_late(faulty: bool, seed: int) -> Program:
    data = digits(seed)

    class Transfer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(nn.Linear(64, 128), nn.ReLU())
            self.head = nn.Linear(128, 1000)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.features(x))

    model = Transfer()
    model.features.requires_grad_(False)
    if faulty:
        optimizer = adam(model.head, 5e-3)
        model.head = nn.Linear(128, 10)
    else:
        model.head = nn.Linear(128, 10)
        optimizer = adam(model.head, 5e-3)
    return Program(model, nn.CrossEntropyLoss(), data.loader(seed), optimizer, accuracy(data), 120)


@case(
    "Four output heads are made with [nn.Linear(...)] * 4: they are one and the same layer.",
    ["shared-weight"],
    ["heads", "heads.0", "heads.1", "heads.2", "heads.3", "heads.0.weight", "heads.0.bias"],
)
def heads_multiplied(faulty: bool, seed: int) -> Program:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(1024, 8, generator=g)
    y = torch.stack([x[:, 0] * x[:, 1], x[:, 2].sin(), x[:, 3].abs() - 0.8, x[:, 4]], 1)
    data = split(x, y, seed)

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
            heads = [nn.Linear(64, 1)] * 4 if faulty else [nn.Linear(64, 1) for _ in range(4)]
            self.heads = nn.ModuleList(heads)

        def forward(self, x: Tensor) -> Tensor:
            h = self.trunk(x)
            return torch.cat([head(h) for head in self.heads], 1)

    model = Heads()
    return Program(model, nn.MSELoss(), data.loader(seed), adam(model, 5e-3), r_squared(data), 200)


@case(
    "One embedding object serves all categorical columns, whose embeddings are summed.",
    ["shared-weight"],
    ["columns", *(f"columns.{k}" for k in range(4)), "columns.0.weight"],
)
def embeddings_multiplied(faulty: bool, seed: int) -> Program:
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(6, (1536, 4), generator=g)
    y = ((x[:, 0] - x[:, 1]) + 2 * (x[:, 2] - x[:, 3]) > 0).long()
    data = split(x, y, seed)

    class Categories(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            columns = (
                [nn.Embedding(6, 16)] * 4 if faulty else [nn.Embedding(6, 16) for _ in range(4)]
            )
            self.columns = nn.ModuleList(columns)
            self.mlp = mlp(16, 32, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.mlp(sum(table(x[:, k]) for k, table in enumerate(self.columns)))

    model = Categories()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 5e-3), accuracy(data), 150
    )


@case(
    "A stack of linear layers without activations, on data that no plane separates.",
    ["no-nonlinearity"],
)
def activations_forgotten(faulty: bool, seed: int) -> Program:
    data = circles(seed)
    if faulty:
        model = nn.Sequential(nn.Linear(2, 32), nn.Linear(32, 32), nn.Linear(32, 2))
    else:
        model = mlp(2, 32, 32, 2)
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 5e-3), accuracy(data), 120
    )


@case(
    "The result of F.relu is thrown away in forward (relu is not in place), with average pooling.",
    ["no-nonlinearity"],
)
def relu_result_dropped(faulty: bool, seed: int) -> Program:
    g = torch.Generator().manual_seed(seed)
    n = 768
    y = torch.randint(2, (n,), generator=g)
    stripes = torch.sign(torch.randn(n, 1, 1, 1, generator=g)) * (torch.arange(8) % 2 * 2.0 - 1)
    x = torch.where(
        y.view(-1, 1, 1, 1) == 1, stripes.expand(n, 1, 8, 8), stripes.expand(n, 1, 8, 8).mT
    )
    data = split(x + 0.8 * torch.randn(n, 1, 8, 8, generator=g), y, seed)

    class Texture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(1, 12, 3, padding=1)
            self.conv2 = nn.Conv2d(12, 12, 3, padding=1)
            self.fc = nn.Linear(12, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv1(x)
            if faulty:
                F.relu(x)
            else:
                x = F.relu(x)
            x = self.conv2(x)
            if faulty:
                F.relu(x)
            else:
                x = F.relu(x)
            return self.fc(x.mean((2, 3)))

    model = Texture()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 1e-2), accuracy(data), 120
    )


@case(
    "The linear layer after the convolutions expects the size of an unpooled image.",
    ["model-fails"],
    ["", "classifier", "classifier.0", "classifier.1"],
)
def flatten_size_wrong(faulty: bool, seed: int) -> Program:
    data = digits(seed, image=True)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
            self.classifier = nn.Sequential(
                nn.Flatten(), nn.Linear(8 * 8 * 8 if faulty else 8 * 4 * 4, 10)
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.classifier(self.features(x))

    model = Net()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 5e-3), accuracy(data), 80
    )


class BagOfWords(nn.Module):
    def __init__(self, vocab: int, width: int = 24, classes: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.fc = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.fc(self.embedding(tokens).mean(1))


@case(
    "The embedding table is one row short: the highest token number is out of range.",
    ["model-fails"],
    ["", "embedding", "embedding.weight"],
)
def vocabulary_one_short(faulty: bool, seed: int) -> Program:
    data = sentences(seed, vocab=40)
    model = BagOfWords(39 if faulty else 40)
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 1e-2), accuracy(data), 100
    )


# --------------------------------------------------------------------------- faults: dimensions


@case(
    "An LSTM without batch_first is given (batch, time, features): it runs along the batch.",
    ["mixed-examples"],
    ["", "lstm"],
)
def lstm_batch_not_first(faulty: bool, seed: int) -> Program:
    data = waves(seed)

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(2, 24, batch_first=not faulty)
            self.fc = nn.Linear(24, 3)

        def forward(self, x: Tensor) -> Tensor:
            out, _ = self.lstm(x)
            return self.fc(out[:, -1])

    model = Tagger()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 1e-2), accuracy(data), 200
    )


@case(
    "nn.MultiheadAttention is left at batch_first=False for (batch, time, width) inputs.",
    ["mixed-examples"],
    ["", "attend"],
)
def attention_across_batch(faulty: bool, seed: int) -> Program:
    data = marked_value(seed)

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(5, 32)
            self.attend = nn.MultiheadAttention(32, 4, batch_first=not faulty)
            self.norm = nn.LayerNorm(32)
            self.out = nn.Linear(32, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = self.embed(x)
            a, _ = self.attend(h, h, h, need_weights=False)
            return self.out(self.norm(h[:, 0] + a[:, 0]))

    model = Reader()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 1e-2), accuracy(data), 200
    )


@case(
    "Feature maps are flattened with reshape(features, -1).T: values of different images mix.",
    ["mixed-examples"],
    ["", "fc", "conv"],
)
def reshape_for_transpose(faulty: bool, seed: int) -> Program:
    data = digits(seed, image=True)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 8, 3, padding=1)
            self.fc = nn.Linear(8 * 16, 10)

        def forward(self, x: Tensor) -> Tensor:
            h = F.max_pool2d(F.relu(self.conv(x)), 2)
            h = h.reshape(8 * 16, -1).T if faulty else h.flatten(1)
            return self.fc(h)

    model = Net()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 5e-3), accuracy(data), 120
    )


@case(
    "log_softmax over dim=0 (the batch) before NLLLoss.",
    ["wrong-softmax-dimension", "mixed-examples"],
)
def log_softmax_over_batch(faulty: bool, seed: int) -> Program:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(1536, 13, generator=g)
    churn = x[:, 0] + 0.5 * x[:, 1] * x[:, 2] + 1.5 * torch.randn(1536, generator=g) > 2.0
    data = split(x, churn.long(), seed)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = nn.Linear(13, 24)
            self.out = nn.Linear(24, 2)

        def forward(self, x: Tensor) -> Tensor:
            return F.log_softmax(self.out(F.relu(self.hidden(x))), dim=0 if faulty else 1)

    model = Net()
    return Program(model, nn.NLLLoss(), data.loader(seed), adam(model, 5e-3), accuracy(data), 150)


class EinsumAttention(nn.Module):
    """Single-head self-attention, written out."""

    def __init__(self, width: int, scale: float, softmax_dim: int = -1) -> None:
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        for layer in (self.query, self.key, self.value):
            nn.init.xavier_uniform_(layer.weight)
        self.scale = scale
        self.softmax_dim = softmax_dim

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.einsum("bqd,bkd->bqk", self.query(x), self.key(x)) * self.scale
        weights = scores.softmax(self.softmax_dim)
        return torch.einsum("bqk,bkd->bqd", weights, self.value(x))


class EinsumReader(nn.Module):
    """Embeds, attends twice with skips, and reads the first position."""

    def __init__(self, width: int, scale: float, softmax_dim: int = -1) -> None:
        super().__init__()
        self.embed = nn.Linear(5, width)
        self.norm1 = nn.LayerNorm(width)
        self.attend1 = EinsumAttention(width, scale, softmax_dim)
        self.norm2 = nn.LayerNorm(width)
        self.attend2 = EinsumAttention(width, scale, softmax_dim)
        self.out = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        h = h + self.attend1(self.norm1(h))
        h = h + self.attend2(self.norm2(h))
        return self.out(h[:, 0])


@case(
    "Attention weights are normalised over the batch (softmax dim 0), not the keys.",
    ["wrong-softmax-dimension", "mixed-examples"],
    ["", "attend1", "attend2"],
)
def attention_softmax_over_batch(faulty: bool, seed: int) -> Program:
    data = marked_value(seed)
    model = EinsumReader(32, 32**-0.5, softmax_dim=0 if faulty else -1)
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 5e-3), accuracy(data), 200
    )


@case(
    "A segmentation net ends in log_softmax over the image width instead of the channels.",
    ["wrong-softmax-dimension", "output-loss-mismatch"],
)
def segmentation_softmax_over_width(faulty: bool, seed: int) -> Program:
    data = shapes(seed)

    class Segmenter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(1, 12, 5, padding=2)
            self.conv2 = nn.Conv2d(12, 12, 3, padding=1)
            self.out = nn.Conv2d(12, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.conv2(F.relu(self.conv1(x))))
            return F.log_softmax(self.out(x), dim=-1 if faulty else 1)

    model = Segmenter()
    return Program(
        model, nn.NLLLoss(), data.loader(seed, 16), adam(model, 5e-3), foreground_iou(data), 90
    )


@case(
    "Attention scores are multiplied by sqrt(d) where they should be divided by it.",
    ["attention-saturation"],
    ["attend1", "attend2", *(f"attend{i}.{part}" for i in (1, 2) for part in ("query", "key"))],
)
def attention_scaled_up(faulty: bool, seed: int) -> Program:
    data = majority(seed)
    model = EinsumReader(64, 8.0 if faulty else 1 / 8)
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 1e-3), accuracy(data), 100
    )


@case(
    "The padding mask is used the wrong way round (-inf where there is a word): sentences without "
    "padding have nothing left to attend to, and the softmax gives NaN.",
    ["non-finite"],
    ["", "relevance", "out"],
)
def padding_mask_inverted(faulty: bool, seed: int) -> Program:
    data = sentences(seed)
    for x in (data.x, data.x_test):
        length = torch.randint(6, 21, (len(x), 1))
        x[torch.arange(16) >= length] = 0

    class Pooling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(40, 24, padding_idx=0)
            self.relevance = nn.Linear(24, 1)
            self.out = nn.Linear(24, 2)

        def forward(self, tokens: Tensor) -> Tensor:
            h = self.embedding(tokens)
            mask = tokens != 0 if faulty else tokens == 0
            scores = self.relevance(h).squeeze(-1).masked_fill(mask, float("-inf"))
            return self.out(torch.einsum("bt,btd->bd", scores.softmax(1), h))

    model = Pooling()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 1e-2), accuracy(data), 120
    )


@case(
    "A hand-written Euclidean distance takes sqrt(0) for identical pairs: its gradient is NaN.",
    ["non-finite"],
)
def distance_of_equal_pairs(faulty: bool, seed: int) -> Program:
    g = torch.Generator().manual_seed(seed)
    a = torch.randn(768, 8, generator=g)
    same = torch.randint(2, (768, 1), generator=g).float()
    b = torch.where(
        same == 1, a + 0.2 * torch.randn(768, 8, generator=g), torch.randn(768, 8, generator=g)
    )
    b[::10] = torch.where(same[::10] == 1, a[::10], b[::10])
    data = split(torch.cat([a, b], 1), same, seed)

    class Siamese(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode = mlp(8, 32, 16)
            self.scale = nn.Parameter(torch.ones(1))
            self.shift = nn.Parameter(torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            a, b = self.encode(x[:, :8]), self.encode(x[:, 8:])
            distance = ((a - b) ** 2).sum(1, keepdim=True).add(0.0 if faulty else 1e-6).sqrt()
            return self.shift - self.scale * distance

    model = Siamese()
    return Program(
        model,
        nn.BCEWithLogitsLoss(),
        data.loader(seed),
        adam(model, 1e-2),
        binary_accuracy(data),
        120,
    )


# --------------------------------------------------------------------------- faults: initialisation


class RandnLinear(nn.Module):
    """An own linear layer."""

    def __init__(self, inputs: int, outputs: int, scaled: bool) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(inputs, outputs) * (inputs**-0.5 if scaled else 1.0))
        self.b = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w + self.b


@case(
    "Own linear layers hold torch.randn weights without any scaling.",
    ["bad-initialisation", "activation-drift", "exploding-gradient", "weight-domination"],
    [*(f"{k}" for k in (0, 2, 4)), *(f"{k}.w" for k in (0, 2, 4))],
)
def randn_weights(faulty: bool, seed: int) -> Program:
    data = digits(seed)
    sizes = [(64, 96), (96, 96), (96, 10)]
    a, b, c = (RandnLinear(i, o, scaled=not faulty) for i, o in sizes)
    model = nn.Sequential(a, nn.ReLU(), b, nn.ReLU(), c)
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), sgd(model, 0.02), accuracy(data), 120
    )


@case(
    "All convolutions are initialised with normal_(std=0.001) in a net with six of them.",
    ["bad-initialisation", "vanishing-gradient", "activation-drift"],
    [f"convs.{k}" + end for k in range(6) for end in ("", ".weight")] + ["fc", "fc.weight"],
)
def tiny_convolutions(faulty: bool, seed: int) -> Program:
    data = digits(seed, image=True)

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = [1, 12, 12, 12, 12, 12, 12]
            self.convs = nn.ModuleList(
                nn.Conv2d(a, b, 3, padding=1) for a, b in zip(widths[:-1], widths[1:], strict=True)
            )
            self.fc = nn.Linear(12 * 4, 10)
            for conv in self.convs:
                if faulty:
                    nn.init.normal_(conv.weight, std=0.001)
                else:
                    nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
                nn.init.zeros_(conv.bias)

        def forward(self, x: Tensor) -> Tensor:
            for k, conv in enumerate(self.convs):
                x = F.relu(conv(x))
                if k in (1, 3):
                    x = F.max_pool2d(x, 2)
            return self.fc(x.flatten(1))

    model = Deep()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), sgd(model, 0.02), accuracy(data), 120
    )


@case(
    "Every weight is filled with the constant 0.05: the hidden units stay copies of one another.",
    ["symmetric-initialisation", "bad-initialisation"],
    [f"{k}" + end for k in (0, 2, 4) for end in ("", ".weight")],
)
def constant_weights(faulty: bool, seed: int) -> Program:
    data = digits(seed)
    model = mlp(64, 48, 48, 10, act=nn.Tanh)
    if faulty:
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.05)
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 3e-3), accuracy(data), 120
    )


@case(
    "A graph network's own weight matrices are torch.zeros.",
    ["symmetric-initialisation", "no-gradient", "vanishing-gradient", "bad-initialisation"],
    ["w1", "w2", "w3", ""],
)
def zero_matrices(faulty: bool, seed: int) -> Program:
    data = graphs(seed)

    class GraphNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            links = adjacency()
            self.register_buffer("links", links / links.sum(1, keepdim=True))

            def make(a: int, b: int) -> nn.Parameter:
                return nn.Parameter(torch.zeros(a, b) if faulty else torch.randn(a, b) / a**0.5)

            self.w1, self.w2, self.w3 = make(4, 24), make(24, 24), make(24, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(torch.einsum("ij,bjf,fg->big", self.links, x, self.w1))
            h = torch.relu(torch.einsum("ij,bjf,fg->big", self.links, h, self.w2))
            return h.mean(1) @ self.w3

    model = GraphNet()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 1e-2), accuracy(data), 100
    )


@case(
    "The focal-loss trick of a bias of -4.6 for the last layer is applied to every convolution.",
    ["dying-neurons", "bad-initialisation"],
    [*(f"{k}" for k in range(5)), "0.bias", "2.bias"],
)
def prior_bias_everywhere(faulty: bool, seed: int) -> Program:
    data = shapes(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, 12, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, 2, 1),
    )
    if faulty:
        for layer in model:
            if isinstance(layer, nn.Conv2d):
                nn.init.constant_(layer.bias, -math.log((1 - 0.01) / 0.01))
    return Program(
        model,
        nn.CrossEntropyLoss(),
        data.loader(seed, 16),
        adam(model, 3e-3),
        foreground_iou(data),
        90,
    )


@case(
    "Spectrogram levels in dB (-80 to 0) meet nonnegative initial weights: no ReLU ever fires.",
    ["dying-neurons", "bad-initialisation", "unscaled-input"],
    ["conv1", "conv2", "conv1.weight", "relu1", "relu2", "fc"],
)
def decibels_below_zero(faulty: bool, seed: int) -> Program:
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (640,), generator=g)
    bands = F.one_hot(y * 4 + torch.randint(4, (640,), generator=g), 16).float()
    levels = -60 + 45 * bands[:, :, None] + 6 * torch.randn(640, 16, 12, generator=g)
    data = split(levels.clamp(-80, 0), y, seed)
    if not faulty:
        data = data.map(lambda x: (x + 57) / 13)

    class Sound(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv1d(16, 24, 3, padding=1)
            self.relu1 = nn.ReLU()
            self.conv2 = nn.Conv1d(24, 24, 3, padding=1)
            self.relu2 = nn.ReLU()
            self.fc = nn.Linear(24, 4)
            if faulty:
                nn.init.uniform_(self.conv1.weight)

        def forward(self, x: Tensor) -> Tensor:
            x = self.relu1(self.conv1(x))
            x = self.relu2(self.conv2(x))
            return self.fc(x.mean(-1))

    model = Sound()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 3e-3), accuracy(data), 100
    )


@case(
    "Biases start at +6, 'to keep the ReLUs alive': all of them always pass, the net is linear.",
    ["full-neurons", "no-nonlinearity", "bad-initialisation"],
    [f"{k}" + end for k in range(4) for end in ("", ".bias")],
)
def biases_far_up(faulty: bool, seed: int) -> Program:
    data = circles(seed)
    model = mlp(2, 48, 48, 2)
    if faulty:
        nn.init.constant_(model[0].bias, 6.0)
        nn.init.constant_(model[2].bias, 6.0)
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 2e-3), accuracy(data), 150
    )


@case(
    "Positive inputs with weights from nn.init.uniform_ (0 to 1): every ReLU is always open.",
    ["full-neurons", "bad-initialisation", "no-nonlinearity", "activation-drift"],
    [*(f"fc{k}" for k in (1, 2, 3)), *(f"fc{k}.weight" for k in (1, 2, 3))],
)
def weights_all_positive(faulty: bool, seed: int) -> Program:
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(1024, 2, generator=g)
    data = split(x, ((x[:, 0] > 0.5) ^ (x[:, 1] > 0.5)).long(), seed)
    if not faulty:
        data = data.map(lambda v: (v - 0.5) * 3.4)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2, self.fc3 = nn.Linear(2, 24), nn.Linear(24, 24), nn.Linear(24, 2)
            if faulty:
                for layer in (self.fc1, self.fc2, self.fc3):
                    nn.init.uniform_(layer.weight)
                    nn.init.uniform_(layer.bias)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))

    model = Net()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 5e-3), accuracy(data), 150
    )


@case(
    "Tanh layers initialised with normal_(std=2) sit at -1 and 1 from the start.",
    ["saturated-activation", "bad-initialisation", "exploding-gradient"],
    [f"{k}" + end for k in range(7) for end in ("", ".weight")],
)
def tanh_with_wide_weights(faulty: bool, seed: int) -> Program:
    data = surface(seed)
    model = mlp(6, 48, 48, 48, 1, act=nn.Tanh)
    if faulty:
        for layer in model:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=2.0)
    return Program(model, nn.MSELoss(), data.loader(seed), adam(model, 3e-3), r_squared(data), 200)


@case(
    "Raw sensor readings around 800 drive all gates of an LSTM into saturation.",
    ["saturated-activation", "unscaled-input"],
    ["", "lstm", "lstm.weight_ih_l0"],
)
def lstm_on_raw_readings(faulty: bool, seed: int) -> Program:
    data = waves(seed)
    if faulty:
        data = data.map(lambda x: 800 + 150 * x)

    class Monitor(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(2, 32, batch_first=True)
            self.fc = nn.Linear(32, 3)

        def forward(self, x: Tensor) -> Tensor:
            _, (h, _) = self.lstm(x)
            return self.fc(h[-1])

    model = Monitor()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 1e-2), accuracy(data), 150
    )


@case(
    "One row of a loaded embedding table (the unknown word) holds values in the thousands.",
    ["weight-domination", "bad-initialisation", "activation-drift"],
    ["embedding", "embedding.weight"],
)
def one_row_of_thousands(faulty: bool, seed: int) -> Program:
    data = sentences(seed)
    unknown = torch.rand(data.x.shape) < 0.08
    data.x[unknown] = 39
    data.x_test[torch.rand(data.x_test.shape) < 0.08] = 39
    model = BagOfWords(40)
    if faulty:
        with torch.no_grad():
            model.embedding.weight[39] *= 5000
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 1e-2), accuracy(data), 150
    )


# --------------------------------------------------------------------------- faults: depth


@case(
    "Twelve sigmoid layers with the default initialisation.",
    ["vanishing-gradient", "rank-collapse", "activation-drift"],
    [f"{k}" + end for k in range(26) for end in ("", ".weight")],
)
def twelve_sigmoids(faulty: bool, seed: int) -> Program:
    data = digits(seed)
    model = mlp(64, *[48] * 12, 10, act=nn.Sigmoid if faulty else nn.ReLU)
    if not faulty:
        for layer in model:
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 1e-3), accuracy(data), 200
    )


@case(
    "A plain tanh RNN has to carry the sign of the first step through fifty steps.",
    ["vanishing-gradient", "rank-collapse"],
    ["", "rnn", "rnn.weight_hh_l0", "rnn.weight_ih_l0"],
)
def rnn_forgets(faulty: bool, seed: int) -> Program:
    data = first_sign(seed, length=50)

    class Memory(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.RNN(1, 32, batch_first=True)
            self.out = nn.Linear(32, 2)
            if not faulty:
                nn.init.orthogonal_(self.rnn.weight_hh_l0)

        def forward(self, x: Tensor) -> Tensor:
            _, h = self.rnn(x)
            return self.out(h[0])

    model = Memory()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), sgd(model, 0.03), accuracy(data), 150
    )


@case(
    "An own recurrent layer with ReLU and unscaled recurrent weights (spectral radius above 2).",
    ["exploding-gradient", "activation-drift", "bad-initialisation", "diverging"],
    ["", "w_h", "w_x", "out"],
)
def recurrent_weights_too_wide(faulty: bool, seed: int) -> Program:
    data = waves(seed)

    class OwnRNN(nn.Module):
        def __init__(self, hidden: int = 32) -> None:
            super().__init__()
            self.w_x = nn.Parameter(torch.randn(2, hidden) * 0.5)
            self.w_h = nn.Parameter(
                torch.randn(hidden, hidden) * 0.5 if faulty else torch.eye(hidden) * 0.9
            )
            self.out = nn.Linear(hidden, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = x.new_zeros(x.shape[0], self.w_h.shape[0])
            for step in x.unbind(1):
                h = F.relu(step @ self.w_x + h @ self.w_h)
            return self.out(h)

    model = OwnRNN()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 3e-3), accuracy(data), 150
    )


@case(
    "Ten leaky layers initialised with xavier_normal_(gain=4).",
    ["exploding-gradient", "bad-initialisation", "activation-drift"],
    [f"{k}" + end for k in range(22) for end in ("", ".weight")],
)
def gain_of_four(faulty: bool, seed: int) -> Program:
    data = surface(seed)
    model = mlp(6, *[32] * 10, 1, act=lambda: nn.LeakyReLU(0.1))
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_normal_(layer.weight, gain=4.0 if faulty else 1.3)
    return Program(model, nn.MSELoss(), data.loader(seed), adam(model, 2e-3), r_squared(data), 200)


@case(
    "Sixteen residual blocks add to the stream without any normalisation or scaling.",
    ["activation-drift", "exploding-gradient", "bad-initialisation"],
    ["blocks", *(f"blocks.{k}" for k in range(16)), "head"],
)
def residual_stream_grows(faulty: bool, seed: int) -> Program:
    data = digits(seed)

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm = nn.Identity() if faulty else nn.LayerNorm(width)
            self.up = nn.Linear(width, width)
            self.down = nn.Linear(width, width)
            for layer in (self.up, self.down):
                nn.init.kaiming_normal_(layer.weight)

        def forward(self, x: Tensor) -> Tensor:
            branch = self.down(F.relu(self.up(self.norm(x))))
            return x + (branch if faulty else branch / 4)

    class Stream(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Linear(64, 32)
            self.blocks = nn.Sequential(*(Block(32) for _ in range(16)))
            self.norm = nn.Identity() if faulty else nn.LayerNorm(32)
            self.head = nn.Linear(32, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.norm(self.blocks(self.stem(x))))

    model = Stream()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 1e-3), accuracy(data), 100
    )


class MessagePassing(nn.Module):
    """Rounds of message passing on a fixed graph, then a mean over nodes."""

    def __init__(self, links: Tensor, rounds: int, skip: bool = False, outputs: int = 2) -> None:
        super().__init__()
        self.register_buffer("links", links)
        self.embed = nn.Linear(4, 24)
        self.rounds = nn.ModuleList(nn.Linear(24, 24) for _ in range(rounds))
        self.out = nn.Linear(24, outputs)
        self.skip = skip

    def nodes(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for layer in self.rounds:
            new = F.relu(layer(self.links @ h))
            h = h + new if self.skip else new
        return h

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.nodes(x).mean(1))


@case(
    "Messages are summed over about a dozen neighbours without a division, five rounds.",
    ["activation-drift", "exploding-gradient", "diverging"],
    ["rounds", *(f"rounds.{k}" for k in range(5)), "out", ""],
)
def messages_summed(faulty: bool, seed: int) -> Program:
    data = graphs(seed)
    level = [(x[..., 0].mean(1) - x[..., 1].mean(1))[:, None] * 1.4 for x in (data.x, data.x_test)]
    data = Data(data.x, level[0], data.x_test, level[1])
    links = adjacency()
    if not faulty:
        links = links / links.sum(1, keepdim=True)
    model = MessagePassing(links, 5, outputs=1)
    return Program(model, nn.MSELoss(), data.loader(seed), adam(model, 3e-3), r_squared(data), 120)


class NodeClassifier(MessagePassing):
    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.nodes(x))


@case(
    "Sixteen rounds of averaging make all nodes alike where each node's own label is wanted.",
    ["rank-collapse", "vanishing-gradient", "activation-drift"],
    ["rounds", *(f"rounds.{k}" for k in range(16)), "out", ""],
)
def oversmoothed_nodes(faulty: bool, seed: int) -> Program:
    links = adjacency(density=0.15)
    links = links / links.sum(1, keepdim=True)
    x = torch.randn(512, 24, 4, generator=torch.Generator().manual_seed(seed))
    y = (x[..., 0] + 0.7 * (links @ x)[..., 1] > 0).long()
    data = split(x, y, seed)
    model = NodeClassifier(links, 16 if faulty else 2, skip=not faulty)
    return Program(model, token_loss, data.loader(seed), adam(model, 3e-3), accuracy(data), 100)


@case(
    "Six attention layers stacked without skip connections: all positions end up the same.",
    ["rank-collapse", "vanishing-gradient", "activation-drift"],
    ["layers", *(f"layers.{k}" for k in range(6)), "out", ""],
)
def attention_without_skips(faulty: bool, seed: int) -> Program:
    data = chains(seed)

    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(12, 32)
            self.layers = nn.ModuleList(EinsumAttention(32, 32**-0.5) for _ in range(6))
            self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in self.layers)
            self.out = nn.Linear(32, 12)

        def forward(self, tokens: Tensor) -> Tensor:
            h = self.embed(tokens)
            for layer, norm in zip(self.layers, self.norms, strict=True):
                h = layer(h) if faulty else h + layer(norm(h))
            return self.out(h)

    model = Stack()
    return Program(model, token_loss, data.loader(seed), adam(model, 3e-3), accuracy(data), 100)


# --------------------------------------------------------------------------- faults: norm, dropout


@case(
    "A batch norm standardises the raw table as the first layer, with momentum=0.001 (another "
    "framework's sense of the word): its running statistics lag far behind at evaluation.",
    ["batchnorm-mode-gap"],
    ["0"],
)
def batchnorm_too_slow(faulty: bool, seed: int) -> Program:
    data = table_raw("wine", seed)
    model = nn.Sequential(
        nn.BatchNorm1d(13, momentum=0.001 if faulty else 0.1),
        nn.Linear(13, 32),
        nn.ReLU(),
        nn.Linear(32, 3),
    )
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 5e-3), accuracy(data), 100
    )


@case(
    "Fine-tuning with frozen batch norms whose stored statistics come from 0-255 images.",
    ["batchnorm-mode-gap", "vanishing-gradient", "rank-collapse", "activation-drift"],
    ["bn1", "bn2"],
)
def frozen_statistics_of_other_data(faulty: bool, seed: int) -> Program:
    data = digits(seed, image=True)

    class Tuned(SmallConvNet):
        def __init__(self) -> None:
            super().__init__(norm=True)
            for bn in (self.bn1, self.bn2):
                if faulty:
                    bn.running_mean.normal_(110.0, 30.0)
                    bn.running_var.fill_(60.0**2)

        def train(self, mode: bool = True) -> nn.Module:
            super().train(mode)
            if faulty:
                self.bn1.eval()
                self.bn2.eval()
            return self

    model = Tuned().train()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 2e-3), accuracy(data), 80
    )


@case(
    "Batch norm with batches of two examples.",
    ["small-batch-batchnorm", "batchnorm-mode-gap"],
    ["bn1", "bn2"],
)
def batches_of_two(faulty: bool, seed: int) -> Program:
    data = digits(seed)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.bn1 = nn.Linear(64, 64), nn.BatchNorm1d(64)
            self.fc2, self.bn2 = nn.Linear(64, 64), nn.BatchNorm1d(64)
            self.fc3 = nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.bn1(self.fc1(x)))
            x = F.relu(self.bn2(self.fc2(x)))
            return self.fc3(x)

    model = Net()
    loader = data.loader(seed, 2 if faulty else 32)
    return Program(model, nn.CrossEntropyLoss(), loader, adam(model, 3e-3), accuracy(data), 200)


@case(
    "nn.Dropout is given the share to keep (0.95) as in TensorFlow 1.",
    ["dropout-too-strong"],
    ["drop1", "drop2"],
)
def dropout_keeps_five_percent(faulty: bool, seed: int) -> Program:
    data = digits(seed, image=True)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            rate = 0.95 if faulty else 0.05
            self.conv = nn.Conv2d(1, 16, 3, padding=1)
            self.drop1 = nn.Dropout(rate)
            self.fc1 = nn.Linear(16 * 16, 64)
            self.drop2 = nn.Dropout(rate)
            self.fc2 = nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = F.max_pool2d(F.relu(self.conv(x)), 2).flatten(1)
            return self.fc2(self.drop2(F.relu(self.fc1(self.drop1(x)))))

    model = Net()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 2e-3), accuracy(data), 120
    )


@case(
    "Functional dropout of 0.97 on the word vectors of a GRU.",
    ["dropout-too-strong"],
    ["", "embedding", "gru"],
)
def words_dropped(faulty: bool, seed: int) -> Program:
    data = sentences(seed)

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(40, 24)
            self.gru = nn.GRU(24, 24, batch_first=True)
            self.out = nn.Linear(24, 2)

        def forward(self, tokens: Tensor) -> Tensor:
            h = F.dropout(self.embedding(tokens), 0.97 if faulty else 0.1, self.training)
            states, _ = self.gru(h)
            return self.out(states.mean(1))

    model = Reader()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 5e-3), accuracy(data), 120
    )


# --------------------------------------------------------------------------- faults: optimisation


def tiny_transformer(length: int, data_width: int, classes: int, width: int = 32) -> nn.Module:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(data_width, width)
            self.position = nn.Parameter(0.1 * torch.randn(length, width))
            layer = nn.TransformerEncoderLayer(
                width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True
            )
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.norm = nn.LayerNorm(width)
            self.out = nn.Linear(width, classes)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.norm(self.encoder(self.embed(x) + self.position).mean(1)))

    return Encoder()


@case(
    "A transformer is trained with Adam at a rate of 0.3.",
    ["learning-rate-too-high", "diverging", "last-layer-drift"],
)
def transformer_rate_too_high(faulty: bool, seed: int) -> Program:
    data = digits(seed).map(lambda x: x.view(-1, 8, 8))
    model = tiny_transformer(8, 8, 10)
    rate = 0.3 if faulty else 3e-3
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, rate), accuracy(data), 150
    )


@case(
    "A convolutional net with momentum SGD at a rate of 2.",
    ["learning-rate-too-high", "diverging"],
)
def convnet_rate_too_high(faulty: bool, seed: int) -> Program:
    data = digits(seed, image=True)
    model = SmallConvNet()
    rate = 2.0 if faulty else 0.05
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), sgd(model, rate), accuracy(data), 100
    )


@case(
    "Adam with a rate of 1e-7, a slip in the exponent.",
    ["learning-rate-too-low", "loss-not-decreasing"],
)
def exponent_slip(faulty: bool, seed: int) -> Program:
    data = table("breast_cancer", seed)
    model = mlp(30, 32, 16, 2)
    rate = 1e-7 if faulty else 3e-3
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, rate), accuracy(data), 100
    )


@case(
    "A GRU classifier with plain SGD at 1e-4, as one would use with Adam.",
    ["learning-rate-too-low", "loss-not-decreasing"],
)
def sgd_at_adams_rate(faulty: bool, seed: int) -> Program:
    data = waves(seed)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(2, 24, batch_first=True)
            self.fc = nn.Linear(24, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.rnn(x)[0].mean(1))

    model = Net()
    optimizer = sgd(model, 1e-4, 0.0) if faulty else adam(model, 1e-2)
    return Program(model, nn.CrossEntropyLoss(), data.loader(seed), optimizer, accuracy(data), 130)


@case(
    "maximize=True was left in the optimizer from a reinforcement-learning script.",
    ["optimizer-setting", "diverging", "loss-not-decreasing"],
)
def maximises(faulty: bool, seed: int) -> Program:
    data = table("iris", seed)
    model = mlp(4, 24, 3, act=nn.SiLU)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, maximize=faulty)
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed, 16), optimizer, accuracy(data), 100
    )


@case(
    "Adam's betas are swapped: (0.999, 0.9).",
    ["optimizer-setting"],
)
def betas_swapped(faulty: bool, seed: int) -> Program:
    data = surface(seed)
    model = mlp(6, 64, 64, 1)
    betas = (0.999, 0.9) if faulty else (0.9, 0.999)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, betas=betas)
    return Program(model, nn.MSELoss(), data.loader(seed), optimizer, r_squared(data), 200)


@case(
    "Adam with eps=10, meant to be 1e-10.",
    ["optimizer-setting", "learning-rate-too-low"],
)
def epsilon_of_ten(faulty: bool, seed: int) -> Program:
    data = digits(seed).map(lambda x: x.view(-1, 8, 8))
    model = tiny_transformer(8, 8, 10)
    optimizer = adam(model, 3e-3, eps=10.0 if faulty else 1e-8)
    return Program(model, nn.CrossEntropyLoss(), data.loader(seed), optimizer, accuracy(data), 100)


@case(
    "SGD with momentum 0.999 at an ordinary rate: the steps pile up and the loss climbs.",
    ["diverging", "optimizer-setting", "learning-rate-too-high"],
)
def momentum_piles_up(faulty: bool, seed: int) -> Program:
    data = diabetes(seed)
    model = nn.Linear(10, 1)
    optimizer = sgd(model, 0.05, 0.999 if faulty else 0.5)
    return Program(model, nn.MSELoss(), data.loader(seed), optimizer, r_squared(data), 100)


@case(
    "The head's parameter group has a hundred times the rate of the body's.",
    ["last-layer-drift", "learning-rate-too-high", "optimizer-setting", "diverging"],
    ["head", "head.weight", "head.bias"],
)
def head_rate_times_hundred(faulty: bool, seed: int) -> Program:
    data = digits(seed)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 16), nn.ReLU())
            self.head = nn.Linear(16, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x))

    model = Net()
    groups = [
        {"params": model.body.parameters(), "lr": 0.05},
        {"params": model.head.parameters(), "lr": 5.0 if faulty else 0.05},
    ]
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    return Program(model, nn.CrossEntropyLoss(), data.loader(seed), optimizer, accuracy(data), 120)


@case(
    "Adam with weight_decay=1: the decay term swamps the gradient.",
    ["weight-decay-dominates", "optimizer-setting"],
)
def adam_decay_of_one(faulty: bool, seed: int) -> Program:
    data = digits(seed)
    model = mlp(64, 64, 32, 10)
    optimizer = adam(model, 3e-3, weight_decay=1.0 if faulty else 1e-5)
    return Program(model, nn.CrossEntropyLoss(), data.loader(seed), optimizer, accuracy(data), 150)


@case(
    "SGD with weight decay 0.5 on a convolutional net, a slip for 0.0005.",
    ["weight-decay-dominates", "optimizer-setting"],
)
def sgd_decay_of_half(faulty: bool, seed: int) -> Program:
    data = digits(seed, image=True)
    model = SmallConvNet()
    optimizer = sgd(model, 0.03, weight_decay=0.5 if faulty else 0.0005)
    return Program(model, nn.CrossEntropyLoss(), data.loader(seed), optimizer, accuracy(data), 120)


# --------------------------------------------------------------------------- sound set-ups


@healthy
def logistic_regression(seed: int) -> Program:
    data = table("breast_cancer", seed)
    model = nn.Linear(30, 2)
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), sgd(model, 0.05), accuracy(data), 80
    )


@healthy
def linear_regression(seed: int) -> Program:
    data = diabetes(seed)
    model = nn.Linear(10, 1)
    return Program(
        model, nn.MSELoss(), data.loader(seed), sgd(model, 0.02, 0.0), r_squared(data), 120
    )


@healthy
def plain_mlp_with_sgd(seed: int) -> Program:
    data = digits(seed)
    model = mlp(64, 64, 64, 10)
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), sgd(model, 0.05), accuracy(data), 120
    )


@healthy
def tanh_mlp_on_iris(seed: int) -> Program:
    data = table("iris", seed)
    model = mlp(4, 24, 24, 3, act=nn.Tanh)
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed, 16), adam(model, 5e-3), accuracy(data), 100
    )


@healthy
def one_sigmoid_layer(seed: int) -> Program:
    data = circles(seed)
    model = nn.Sequential(nn.Linear(2, 32), nn.Sigmoid(), nn.Linear(32, 2))
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 3e-2), accuracy(data), 150
    )


@healthy
def selu_with_lecun_init(seed: int) -> Program:
    data = digits(seed)
    model = mlp(64, *[48] * 5, 10, act=nn.SELU)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")
            nn.init.zeros_(layer.bias)
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 1e-3), accuracy(data), 120
    )


@healthy
def dropout_of_half(seed: int) -> Program:
    data = digits(seed)
    model = nn.Sequential(
        nn.Linear(64, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(64, 10),
    )
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 3e-3), accuracy(data), 150
    )


@healthy
def convnet_with_batchnorm(seed: int) -> Program:
    data = digits(seed, image=True)
    model = SmallConvNet(norm=True)
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), sgd(model, 0.05), accuracy(data), 80
    )


@healthy
def groupnorm_in_batches_of_sixteen(seed: int) -> Program:
    data = digits(seed, image=True)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.GroupNorm(4, 16),
        nn.SiLU(),
        nn.Conv2d(16, 16, 3, stride=2, padding=1, bias=False),
        nn.GroupNorm(4, 16),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
    return Program(
        model,
        nn.CrossEntropyLoss(label_smoothing=0.1),
        data.loader(seed, 16),
        optimizer,
        accuracy(data),
        120,
    )


class ResidualConvBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        nn.init.zeros_(self.bn2.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


@healthy
def small_resnet_with_zero_gamma(seed: int) -> Program:
    """The last batch norm of each branch starts at zero, as is usual for residual nets."""
    data = digits(seed, image=True)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.ReLU(),
        ResidualConvBlock(12),
        nn.MaxPool2d(2),
        ResidualConvBlock(12),
        nn.Flatten(),
        nn.Linear(12 * 16, 10),
    )
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 3e-3), accuracy(data), 80
    )


@healthy
def depthwise_separable(seed: int) -> Program:
    data = digits(seed, image=True)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU6(),
        nn.Conv2d(16, 16, 3, padding=1, groups=16),
        nn.Conv2d(16, 32, 1),
        nn.BatchNorm2d(32),
        nn.ReLU6(),
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed, 64), optimizer, accuracy(data), 80
    )


class UNet(nn.Module):
    """One level down, one level up, with a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 8, 3, padding=1)
        self.middle = nn.Conv2d(8, 16, 3, padding=1)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.merge = nn.Conv2d(16, 8, 3, padding=1)
        self.out = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.down(x))
        b = F.relu(self.middle(F.max_pool2d(a, 2)))
        c = F.relu(self.merge(torch.cat([a, self.up(b)], 1)))
        return self.out(c)


@healthy
def unet_segmentation(seed: int) -> Program:
    data = shapes(seed)
    model = UNet()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        data.loader(seed, 16),
        adam(model, 5e-3),
        foreground_iou(data),
        80,
    )


@healthy
def dice_loss_segmentation(seed: int) -> Program:
    data = shapes(seed)
    model = nn.Sequential(nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 2, 3, padding=1))

    def dice(out: Tensor, target: Tensor) -> Tensor:
        found = out.softmax(1)[:, 1].flatten(1)
        wanted = target.flatten(1).float()
        overlap = (found * wanted).sum(1)
        return (1 - (2 * overlap + 1) / (found.sum(1) + wanted.sum(1) + 1)).mean()

    return Program(model, dice, data.loader(seed, 16), adam(model, 1e-2), foreground_iou(data), 80)


class LastState(nn.Module):
    """A recurrent net that reads out a mean or the last state."""

    def __init__(self, rnn: nn.Module, width: int, classes: int, last: bool) -> None:
        super().__init__()
        self.rnn = rnn
        self.out = nn.Linear(width, classes)
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        states = self.rnn(x)[0]
        return self.out(states[:, -1] if self.last else states.mean(1))


@healthy
def lstm_on_waves(seed: int) -> Program:
    data = waves(seed)
    model = LastState(nn.LSTM(2, 32, batch_first=True), 32, 3, last=True)
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 1e-2), accuracy(data), 200
    )


@healthy
def bidirectional_gru(seed: int) -> Program:
    data = waves(seed)
    model = LastState(nn.GRU(2, 16, batch_first=True, bidirectional=True), 32, 3, last=False)
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 1e-2), accuracy(data), 130
    )


@healthy
def time_first_lstm(seed: int) -> Program:
    """No batch_first, but the model transposes first."""
    data = waves(seed)

    class TimeFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(2, 24)
            self.out = nn.Linear(24, 3)

        def forward(self, x: Tensor) -> Tensor:
            states, _ = self.lstm(x.transpose(0, 1))
            return self.out(states.mean(0))

    model = TimeFirst()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 1e-2), accuracy(data), 130
    )


@healthy
def dilated_convolutions(seed: int) -> Program:
    data = waves(seed).map(lambda x: x.transpose(1, 2))
    model = nn.Sequential(
        *(
            part
            for a, b, d in ((2, 16, 1), (16, 16, 2), (16, 16, 4))
            for part in (nn.Conv1d(a, b, 3, padding=d, dilation=d), nn.ReLU())
        ),
        nn.AdaptiveMaxPool1d(1),
        nn.Flatten(),
        nn.Linear(16, 3),
    )
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 5e-3), accuracy(data), 120
    )


@healthy
def transformer_encoder(seed: int) -> Program:
    data = digits(seed).map(lambda x: x.view(-1, 8, 8))
    model = tiny_transformer(8, 8, 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return Program(model, nn.CrossEntropyLoss(), data.loader(seed), optimizer, accuracy(data), 100)


@healthy
def causal_language_model_with_tied_weights(seed: int) -> Program:
    data = chains(seed)

    class Decoder(nn.Module):
        def __init__(self, width: int = 32) -> None:
            super().__init__()
            self.embed = nn.Embedding(12, width)
            nn.init.normal_(self.embed.weight, std=width**-0.5)
            self.norm1 = nn.LayerNorm(width)
            self.attend = nn.MultiheadAttention(width, 2, batch_first=True)
            self.norm2 = nn.LayerNorm(width)
            self.feed = mlp(width, 2 * width, width, act=nn.GELU)
            self.norm3 = nn.LayerNorm(width)
            self.out = nn.Linear(width, 12, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, tokens: Tensor) -> Tensor:
            h = self.embed(tokens)
            mask = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
            n = self.norm1(h)
            h = h + self.attend(n, n, n, attn_mask=mask, need_weights=False)[0]
            h = h + self.feed(self.norm2(h))
            return self.out(self.norm3(h))

    model = Decoder()
    return Program(model, token_loss, data.loader(seed), adam(model, 5e-3), accuracy(data), 120)


@healthy
def patch_transformer(seed: int) -> Program:
    """Sixteen 2 x 2 patches and a class token."""
    data = digits(seed, image=True)

    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch = nn.Conv2d(1, 32, 2, stride=2)
            self.token = nn.Parameter(torch.zeros(1, 1, 32))
            self.position = nn.Parameter(0.02 * torch.randn(1, 17, 32))
            layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, "gelu", batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2)
            self.head = nn.Linear(32, 10)

        def forward(self, x: Tensor) -> Tensor:
            h = self.patch(x).flatten(2).transpose(1, 2)
            h = torch.cat([self.token.expand(len(h), -1, -1), h], 1) + self.position
            return self.head(self.encoder(h)[:, 0])

    model = Patches()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 3e-3), accuracy(data), 120
    )


@healthy
def mixer(seed: int) -> Program:
    data = digits(seed).map(lambda x: x.view(-1, 8, 8))

    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
            self.rows, self.columns = mlp(8, 32, 8, act=nn.GELU), mlp(8, 32, 8, act=nn.GELU)
            self.out = nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.rows(self.norm1(x).mT).mT
            x = x + self.columns(self.norm2(x))
            return self.out(x.flatten(1))

    model = Mixer()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 5e-3), accuracy(data), 100
    )


@healthy
def autoencoder(seed: int) -> Program:
    raw = digits(seed)
    data = Data(raw.x, raw.x, raw.x_test, raw.x_test)
    model = nn.Sequential(mlp(64, 48, 12), mlp(12, 48, 64))
    return Program(model, nn.MSELoss(), data.loader(seed), adam(model, 5e-3), r_squared(data), 150)


@healthy
def denoising_autoencoder_with_sigmoid(seed: int) -> Program:
    raw = digits_raw(seed).map(lambda x: x / 16)
    data = Data(
        raw.x + 0.2 * torch.randn_like(raw.x),
        raw.x,
        raw.x_test + 0.2 * torch.randn_like(raw.x_test),
        raw.x_test,
    )
    model = nn.Sequential(nn.Linear(64, 48), nn.ELU(), nn.Linear(48, 64), nn.Sigmoid())
    return Program(model, nn.BCELoss(), data.loader(seed), adam(model, 5e-3), r_squared(data), 150)


@healthy
def variational_autoencoder(seed: int) -> Program:
    """Reconstruction, mean and log-variance come out side by side in one tensor."""
    raw = digits_raw(seed).map(lambda x: x / 16)
    data = Data(raw.x, raw.x, raw.x_test, raw.x_test)

    class VAE(nn.Module):
        def __init__(self, code: int = 6) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
            self.mean, self.log_var = nn.Linear(64, code), nn.Linear(64, code)
            self.decoder = mlp(code, 64, 64)

        def forward(self, x: Tensor) -> Tensor:
            h = self.encoder(x)
            mean, log_var = self.mean(h), self.log_var(h)
            noise = torch.randn_like(mean) if self.training else torch.zeros_like(mean)
            return torch.cat([self.decoder(mean + noise * (log_var / 2).exp()), mean, log_var], 1)

    def loss(out: Tensor, target: Tensor) -> Tensor:
        logits, mean, log_var = out.split([64, 6, 6], 1)
        rebuilt = F.binary_cross_entropy_with_logits(logits, target, reduction="none").sum(1)
        divergence = 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(1)
        return (rebuilt + 0.3 * divergence).mean()

    model = VAE()
    score = r_squared(data, lambda out: out[:, :64].sigmoid())
    return Program(model, loss, data.loader(seed), adam(model, 3e-3), score, 200)


@healthy
def discriminator(seed: int) -> Program:
    data = _discriminator_data(seed)
    model = nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(3, 64)),
        nn.LeakyReLU(0.2),
        nn.utils.parametrizations.spectral_norm(nn.Linear(64, 64)),
        nn.LeakyReLU(0.2),
        nn.Linear(64, 1),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, betas=(0.5, 0.999))
    return Program(
        model, nn.BCEWithLogitsLoss(), data.loader(seed, 64), optimizer, binary_accuracy(data), 150
    )


@healthy
def graph_convolution(seed: int) -> Program:
    links = adjacency(density=0.15)
    x = torch.randn(512, 24, 4, generator=torch.Generator().manual_seed(seed))
    links = links / links.sum(1, keepdim=True)
    data = split(x, (x[..., 0] + (links @ x)[..., 1] > 0).long(), seed)
    model = NodeClassifier(links, 2, skip=True)
    return Program(model, token_loss, data.loader(seed), adam(model, 5e-3), accuracy(data), 80)


@healthy
def deep_sets(seed: int) -> Program:
    data = graphs(seed)

    class DeepSets(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.each = mlp(4, 32, 32)
            self.all = mlp(32, 32, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.all(self.each(x).mean(1))

    model = DeepSets()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 5e-3), accuracy(data), 100
    )


@healthy
def siamese_with_shared_encoder(seed: int) -> Program:
    g = torch.Generator().manual_seed(seed)
    a = torch.randn(1024, 8, generator=g)
    same = torch.randint(2, (1024, 1), generator=g).float()
    b = torch.where(same == 1, a, torch.randn(1024, 8, generator=g)) + 0.2 * torch.randn(
        1024, 8, generator=g
    )
    data = split(torch.cat([a, b], 1), same, seed)

    class Siamese(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode = mlp(8, 32, 16)
            self.judge = nn.Linear(16, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.judge((self.encode(x[:, :8]) - self.encode(x[:, 8:])).abs())

    model = Siamese()
    return Program(
        model,
        nn.BCEWithLogitsLoss(),
        data.loader(seed),
        adam(model, 1e-2),
        binary_accuracy(data),
        120,
    )


@healthy
def bag_of_words(seed: int) -> Program:
    data = sentences(seed)
    model = nn.Sequential(nn.EmbeddingBag(40, 24, mode="mean"), nn.Linear(24, 2))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    return Program(model, nn.CrossEntropyLoss(), data.loader(seed), optimizer, accuracy(data), 120)


@healthy
def matrix_factorisation(seed: int) -> Program:
    """Ratings from (user, item) pairs: embeddings only, no activation."""
    g = torch.Generator().manual_seed(seed)
    users, items = torch.randn(40, 3, generator=g), torch.randn(30, 3, generator=g)
    pairs = torch.cartesian_prod(torch.arange(40), torch.arange(30))
    ratings = (users[pairs[:, 0]] * items[pairs[:, 1]]).sum(1) / 3**0.5
    data = split(pairs, ratings, seed)

    class Factors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users, self.items = nn.Embedding(40, 8), nn.Embedding(30, 8)
            nn.init.normal_(self.users.weight, std=0.3)
            nn.init.normal_(self.items.weight, std=0.3)

        def forward(self, pairs: Tensor) -> Tensor:
            return (self.users(pairs[:, 0]) * self.items(pairs[:, 1])).sum(1)

    model = Factors()
    return Program(model, nn.MSELoss(), data.loader(seed), adam(model, 2e-2), r_squared(data), 200)


@healthy
def multi_label(seed: int) -> Program:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(1024, 10, generator=g)
    y = torch.stack(
        [x[:, 0] > 0, x[:, 1] * x[:, 2] > 0, x[:, 3] > 0.5, x[:, 4:6].norm(dim=1) > 1.2], 1
    )
    data = split(x, y.float(), seed)
    model = nn.Sequential(nn.Linear(10, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 4))
    return Program(
        model,
        nn.BCEWithLogitsLoss(),
        data.loader(seed),
        adam(model, 1e-2),
        binary_accuracy(data),
        150,
    )


@healthy
def multi_task_heads(seed: int) -> Program:
    """A regression and a classification from one trunk; the loss takes the columns apart."""
    data = surface(seed)
    kind = [(x[:, 4] + x[:, 5] > 0).float()[:, None] for x in (data.x, data.x_test)]
    data = Data(
        data.x, torch.cat([data.y, kind[0]], 1), data.x_test, torch.cat([data.y_test, kind[1]], 1)
    )

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
            self.value = nn.Linear(64, 1)
            self.kind = nn.Linear(64, 1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = self.trunk(x)
            return self.value(h), self.kind(h)

    def loss(out: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
        value, kind = out
        return F.mse_loss(value, target[:, :1]) + F.binary_cross_entropy_with_logits(
            kind, target[:, 1:]
        )

    def score(model: nn.Module) -> float:
        return (
            ((_evaluate(model, data.x_test)[1] > 0) == (data.y_test[:, 1:] > 0))
            .float()
            .mean()
            .item()
        )

    model = Heads()
    return Program(model, loss, data.loader(seed), adam(model, 5e-3), score, 120)


@healthy
def huber_with_outliers(seed: int) -> Program:
    data = surface(seed)
    far = torch.rand(len(data.y), 1) < 0.03
    data = Data(data.x, torch.where(far, data.y + 6, data.y), data.x_test, data.y_test)
    model = mlp(6, 64, 64, 1)
    return Program(
        model, nn.SmoothL1Loss(), data.loader(seed), adam(model, 5e-3), r_squared(data), 200
    )


@healthy
def poisson_counts(seed: int) -> Program:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(1024, 5, generator=g)
    rate = (0.8 + 0.7 * x[:, 0] - 0.5 * x[:, 1]).exp()[:, None]
    data = split(x, torch.poisson(rate, generator=g), seed)
    model = mlp(5, 32, 1)
    score = r_squared(data, lambda out: out.exp())
    return Program(
        model, nn.PoissonNLLLoss(log_input=True), data.loader(seed), adam(model, 1e-2), score, 120
    )


@healthy
def quantile_regression(seed: int) -> Program:
    data = surface(seed)
    quantiles = torch.tensor([0.1, 0.5, 0.9])

    def pinball(out: Tensor, target: Tensor) -> Tensor:
        error = target - out
        return torch.maximum(quantiles * error, (quantiles - 1) * error).sum(1).mean()

    model = mlp(6, 64, 64, 3, act=nn.SiLU)
    score = r_squared(data, lambda out: out[:, 1:2])
    return Program(model, pinball, data.loader(seed), adam(model, 5e-3), score, 200)


@healthy
def gaussian_likelihood(seed: int) -> Program:
    data = surface(seed)

    def likelihood(out: Tensor, target: Tensor) -> Tensor:
        mean, log_var = out[:, :1], out[:, 1:].clamp(-6, 6)
        return 0.5 * (log_var + (target - mean) ** 2 / log_var.exp()).mean()

    model = mlp(6, 64, 64, 2)
    score = r_squared(data, lambda out: out[:, :1])
    return Program(model, likelihood, data.loader(seed), adam(model, 5e-3), score, 200)


@healthy
def fourier_features(seed: int) -> Program:
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(1024, 1, generator=g) * 2 - 1
    data = split(x, torch.sin(9 * x) + 0.5 * torch.cos(20 * x), seed)

    class Fourier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("frequencies", torch.arange(1, 13) * 2.0)
            self.net = mlp(24, 32, 1, act=nn.Tanh)

        def forward(self, x: Tensor) -> Tensor:
            angle = x * self.frequencies
            return self.net(torch.cat([angle.sin(), angle.cos()], 1))

    model = Fourier()
    return Program(model, nn.MSELoss(), data.loader(seed), adam(model, 5e-3), r_squared(data), 150)


@healthy
def frozen_random_features(seed: int) -> Program:
    """A frozen extractor on purpose, as in transfer learning; the optimizer holds the head only."""
    data = digits(seed)

    class Transfer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(nn.Linear(64, 256), nn.ReLU()).requires_grad_(False)
            self.head = nn.Linear(256, 10)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                h = self.features(x)
            return self.head(h)

    model = Transfer()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model.head, 5e-3), accuracy(data), 120
    )


@healthy
def mixture_of_experts(seed: int) -> Program:
    data = surface(seed)

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(6, 3)
            self.experts = nn.ModuleList(mlp(6, 32, 1) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            weights = self.gate(x).softmax(-1)
            answers = torch.cat([expert(x) for expert in self.experts], -1)
            return (weights * answers).sum(-1, keepdim=True)

    model = Experts()
    return Program(model, nn.MSELoss(), data.loader(seed), adam(model, 1e-2), r_squared(data), 150)


@healthy
def log_probabilities_to_nll(seed: int) -> Program:
    data = table("wine", seed)
    model = nn.Sequential(
        nn.Linear(13, 32), nn.Hardswish(), nn.Linear(32, 3), nn.LogSoftmax(dim=-1)
    )
    return Program(
        model, nn.NLLLoss(), data.loader(seed, 16), adam(model, 1e-2), accuracy(data), 80
    )


@healthy
def margin_loss(seed: int) -> Program:
    data = table("wine", seed)
    model = nn.Sequential(nn.BatchNorm1d(13), nn.Linear(13, 24), nn.Mish(), nn.Linear(24, 3))
    return Program(
        model, nn.MultiMarginLoss(), data.loader(seed, 32), sgd(model, 0.1), accuracy(data), 80
    )


@healthy
def weighted_rare_class(seed: int) -> Program:
    """One positive in ten, with the usual pos_weight."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(2048, 6, generator=g)
    y = (x[:, 0] + x[:, 1] ** 2 - x[:, 2] > 3.0).float()[:, None]
    data = split(x, y, seed)

    def balanced(model: nn.Module) -> float:
        found = _evaluate(model, data.x_test) > 0
        yes = data.y_test > 0.5
        return 0.5 * (found[yes].float().mean() + (~found[~yes]).float().mean()).item()

    model = mlp(6, 32, 32, 1)
    loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([8.0]))
    return Program(model, loss, data.loader(seed, 64), adam(model, 5e-3), balanced, 120)


@healthy
def squeeze_and_excite(seed: int) -> Program:
    """Sigmoid gates inside a convolutional net."""
    data = digits(seed, image=True)

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
            self.gate = nn.Sequential(nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 16), nn.Sigmoid())
            self.conv2 = nn.Conv2d(16, 16, 3, padding=1)
            self.out = nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            h = F.relu(self.conv1(x))
            h = h * self.gate(h.mean((2, 3)))[:, :, None, None]
            h = F.adaptive_avg_pool2d(F.relu(self.conv2(h)), 2)
            return self.out(h.flatten(1))

    model = Gated()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(seed), adam(model, 5e-3), accuracy(data), 130
    )
