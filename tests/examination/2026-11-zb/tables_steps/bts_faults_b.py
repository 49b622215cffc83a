"""Faults in ordinary scripts on tables."""

from __future__ import annotations

import torch
from torch import nn

from bts_data import from_sklearn, hits, loader, mlp, r2, surface
from program import Program, fault


def rows(n=2000, width=8):
    """A table with a nonlinear response."""
    x = torch.randn(n, width)
    return x, surface(x)


@fault(
    "Good ratings are those above 4 stars, but the ratings had been standardised: no label is 1",
    rules=["constant-target"],
    fails=True,
    steps=400,
)
def bts_threshold_on_scaled(is_faulty):
    x, y = rows()
    truth = (y > 0.2).long()
    labels = (y > 4).long() if is_faulty else truth
    model = mlp(8, 64, 64, 2)
    return Program(
        model, nn.CrossEntropyLoss(), loader(x[:1600], labels[:1600]), torch.optim.Adam(model.parameters(), 3e-3),
        lambda m: hits(m(x[1600:]), truth[1600:]),
    )


@fault(
    "Columns scaled to at most 1 and then cast to integers: nearly everything is 0",
    rules=["constant-feature"],
    fails=True,
    steps=400,
)
def bts_integer_columns(is_faulty):
    x, _, y, _ = from_sklearn("wine", scaled=False)
    x = x / (x.max(0).values + 1e-3)
    if is_faulty:
        x = x.int().float()
    x = (x - 0.5) * 4
    model = mlp(13, 32, 3)
    return Program(
        model, nn.CrossEntropyLoss(), loader(x[:100], y[:100], size=20), torch.optim.Adam(model.parameters(), 3e-3),
        lambda m: hits(m(x[100:]), y[100:]),
    )


@fault(
    "Rows come sorted by class and the loader does not shuffle",
    rules=["sorted-batches"],
    fails=True,
    steps=300,
)
def bts_sorted_by_class(is_faulty):
    x, x_held, y, y_held = from_sklearn("digits")
    order = y.argsort()
    model = mlp(64, 64, 10)
    return Program(
        model, nn.CrossEntropyLoss(), loader(x[order], y[order], size=32, shuffle=not is_faulty),
        torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), lambda m: hits(m(x_held), y_held),
    )


@fault(
    "A decay by 0.8 that was meant for epochs and is stepped after every batch",
    rules=["learning-rate-too-low"],
    fails=True,
    steps=400,
)
def bts_decay_every_batch(is_faulty):
    x, y = rows()
    model = mlp(8, 64, 64, 1)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1 if is_faulty else 25, 0.8)
    return Program(
        model, nn.MSELoss(), loader(x[:1600], y[:1600, None]), optimizer,
        lambda m: r2(m(x[1600:]), y[1600:]), scheduler=scheduler,
    )


@fault(
    "BatchNorm on raw columns with a momentum of 0.0005, as if it were a share to keep",
    rules=["batchnorm-mode-gap"],
    layers=["0"],
    fails=True,
    steps=300,
)
def bts_norm_momentum(is_faulty):
    x, x_held, y, y_held = from_sklearn("wine", scaled=False)
    norm = nn.BatchNorm1d(13, momentum=0.0005 if is_faulty else 0.1)
    model = nn.Sequential(norm, nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 3))
    return Program(
        model, nn.CrossEntropyLoss(), loader(x, y, size=32), torch.optim.Adam(model.parameters(), 3e-3),
        lambda m: hits(m(x_held), y_held),
    )


@fault(
    "Activations were forgotten between the layers",
    rules=["no-nonlinearity"],
    fails=True,
    steps=500,
)
def bts_no_activations(is_faulty):
    x = torch.randn(2000, 6)
    y = (x[:, 0] * x[:, 1] + x[:, 2] * x[:, 3] > 0).float()
    model = mlp(6, 64, 64, 1, act=nn.Identity if is_faulty else nn.SiLU)
    if is_faulty:
        model = nn.Sequential(*[part for part in model if isinstance(part, nn.Linear)])
    return Program(
        model, nn.BCEWithLogitsLoss(), loader(x[:1600], y[:1600, None]), torch.optim.Adam(model.parameters(), 4e-3),
        lambda m: max(0.0, 2 * ((m(x[1600:])[:, 0] > 0) == (y[1600:] > 0)).float().mean().item() - 1),
    )


class Cast(nn.Module):
    """A network that takes its input in the precision of its weights."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x.to(next(self.net.parameters()).dtype)).float()


@fault(
    "Weights held in bfloat16, whose steps round away",
    rules=["lost-updates", "rounding-error"],
    fails=False,
    steps=600,
)
def bts_bfloat_weights(is_faulty):
    x = torch.randn(2000, 8)
    y = torch.tanh(x[:, 0] + x[:, 1]) + torch.cos(x[:, 2])
    y = (y - y.mean()) / y.std()
    model = Cast(mlp(8, 512, 128, 1))
    if is_faulty:
        model = model.to(torch.bfloat16)
    return Program(
        model, nn.MSELoss(), loader(x[:1600], y[:1600, None]), torch.optim.Adam(model.parameters(), 6e-5),
        lambda m: r2(m(x[1600:]), y[1600:]),
    )


class UserItem(nn.Module):
    """A tower for users and one for items, each with a normalised input."""

    def __init__(self, is_shared: bool) -> None:
        super().__init__()
        self.norm_user = nn.BatchNorm1d(6)
        self.norm_item = self.norm_user if is_shared else nn.BatchNorm1d(6)
        self.user, self.item = mlp(6, 32, 16), mlp(6, 32, 16)

    def forward(self, pair):
        u, v = self.user(self.norm_user(pair[:, 0])), self.item(self.norm_item(pair[:, 1]))
        return (u * v).sum(1) / 4


@fault(
    "Users and items pass one and the same BatchNorm, though their columns differ in scale",
    rules=["shared-weight", "batchnorm-mode-gap"],
    layers=["norm_user", "norm_item"],
    fails=True,
    steps=500,
)
def bts_one_norm_two_towers(is_faulty):
    u, v = torch.randn(2400, 6), torch.randn(2400, 6)
    y = (u[:, :3] * v[:, :3]).sum(1) / 1.7
    pairs = torch.stack([5 + u, 40 + 8 * v], 1)
    model = UserItem(is_faulty)
    return Program(
        model, nn.MSELoss(), loader(pairs[:2000], y[:2000]), torch.optim.Adam(model.parameters(), 5e-3),
        lambda m: r2(m(pairs[2000:]), y[2000:]),
    )


class Ledger(nn.Module):
    """Amounts are kept in a narrow type to save memory, and standardised."""

    def __init__(self, kept: torch.dtype, mean: torch.Tensor, std: torch.Tensor) -> None:
        super().__init__()
        self.kept = kept
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.net = mlp(6, 32, 2)

    def forward(self, amounts):
        x = amounts.to(self.kept)
        return self.net((x.float() - self.mean) / self.std)


@fault(
    "Amounts of up to some hundred thousand cents are cast to float16",
    rules=["half-overflow", "non-finite"],
    fails=True,
    steps=300,
)
def bts_amounts_in_half(is_faulty):
    x = torch.randn(1600, 6)
    y = (x[:, 0] + x[:, 1] > x[:, 2]).long()
    amounts = 40000 + 15000 * x
    model = Ledger(torch.float16 if is_faulty else torch.float32, amounts.mean(0), amounts.std(0))
    return Program(
        model, nn.CrossEntropyLoss(), loader(amounts[:1200], y[:1200]), torch.optim.Adam(model.parameters(), 3e-3),
        lambda m: hits(m(amounts[1200:]).nan_to_num(), y[1200:]),
    )


@fault(
    "Star ratings 1 to 5 are given to a loss that counts classes from 0",
    rules=["model-fails", "output-loss-mismatch"],
    fails=True,
    steps=400,
)
def bts_ratings_from_one(is_faulty):
    x, y = rows()
    stars = 1 + torch.bucketize(y, torch.tensor([-0.9, -0.25, 0.25, 0.9]))
    labels = stars if is_faulty else stars - 1
    model = mlp(8, 64, 64, 5)
    return Program(
        model, nn.CrossEntropyLoss(), loader(x[:1600], labels[:1600]), torch.optim.Adam(model.parameters(), 4e-3),
        lambda m: hits(m(x[1600:]), stars[1600:] - 1),
    )


class Visits(nn.Module):
    """A sequence of event codes, embedded, and read by a sum."""

    def __init__(self, has_places: bool) -> None:
        super().__init__()
        self.code = nn.Embedding(12, 24)
        self.place = nn.Embedding(8, 24) if has_places else None
        self.read, self.head = mlp(24, 48, 48), mlp(48, 32, 2)

    def forward(self, events):
        h = self.code(events)
        if self.place is not None:
            h = h + self.place.weight
        return self.head(torch.relu(self.read(h)).mean(1))


@fault(
    "Histories of events without an encoding of place, read by a mean: which came first is lost",
    rules=["order-lost"],
    fails=True,
    steps=600,
)
def bts_histories_without_order(is_faulty):
    events = torch.stack([torch.randperm(12)[:8] for _ in range(2400)])
    value = torch.linspace(-1, 1, 12)[torch.randperm(12)]
    slope = torch.linspace(-1, 1, 8)
    y = ((value[events] * slope).sum(1) > 0).long()
    model = Visits(not is_faulty)
    return Program(
        model, nn.CrossEntropyLoss(), loader(events[:2000], y[:2000]), torch.optim.Adam(model.parameters(), 5e-3),
        lambda m: max(0.0, 2 * hits(m(events[2000:]), y[2000:]) - 1),
    )


@fault(
    "Absorption spectra whose common baseline was not removed: channels are nearly copies of one another",
    rules=["ill-conditioned-input", "unscaled-input"],
    fails=True,
    steps=500,
)
def bts_spectra_with_baseline(is_faulty):
    n, channels = 1200, 40
    base = 3 * torch.randn(n, 1) + 2
    grid = torch.linspace(0, 1, channels)
    c = torch.randn(n, 3)
    peaks = torch.stack([torch.exp(-((grid - p) / 0.05).square()) for p in (0.25, 0.5, 0.75)])
    x = 0.6 * c @ peaks + (base if is_faulty else 0)
    y = c[:, 0] - 0.7 * c[:, 1] + 0.4 * c[:, 2] * c[:, 0]
    y = y / y.std()
    model = mlp(channels, 32, 1, act=nn.Tanh)
    return Program(
        model, nn.MSELoss(), loader(x[:1000], y[:1000, None]), torch.optim.SGD(model.parameters(), 0.05),
        lambda m: r2(m(x[1000:]), y[1000:]),
    )


@fault(
    "A ReLU after the last layer, while standardised targets are half negative",
    rules=["output-loss-mismatch", "dying-neurons"],
    fails=False,
    steps=500,
)
def bts_relu_at_the_end(is_faulty):
    x, y = rows()
    layers = list(mlp(8, 64, 64, 1))
    if is_faulty:
        layers.append(nn.ReLU())
    model = nn.Sequential(*layers)
    return Program(
        model, nn.L1Loss(), loader(x[:1600], y[:1600, None]), torch.optim.Adam(model.parameters(), 3e-3),
        lambda m: r2(m(x[1600:]), y[1600:]),
    )


@fault(
    "All weights begin at 0.05, so that the units of a layer stay alike",
    rules=["symmetric-initialisation"],
    fails=True,
    steps=500,
)
def bts_equal_weights(is_faulty):
    x, y = rows()
    model = mlp(8, 48, 48, 1, act=nn.Tanh)
    if is_faulty:
        for part in model:
            if isinstance(part, nn.Linear):
                nn.init.constant_(part.weight, 0.05)
                nn.init.zeros_(part.bias)
    return Program(
        model, nn.SmoothL1Loss(), loader(x[:1600], y[:1600, None]), torch.optim.Adam(model.parameters(), 4e-3),
        lambda m: r2(m(x[1600:]), y[1600:]),
    )
