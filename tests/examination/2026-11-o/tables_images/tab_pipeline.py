"""Signals, sets, samplers and optimizers."""

from __future__ import annotations

import copy
import math

import torch
from program import Program, fault
from tab_data import accuracy, blobs, friedman, r2, spirals, waves
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler


@fault(
    "convolutions of kernel size 1 and a mean over time: the order of samples is not seen",
    rules=["order-lost", "rank-collapse"],
    layers=[],
    fails=True,
    steps=400,
)
def tab_pointwise(is_faulty: bool) -> Program:
    k = 1 if is_faulty else 7

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv1d(1, 24, k, padding=k // 2)
            self.conv2 = nn.Conv1d(24, 24, k, padding=k // 2)
            self.fc = nn.Linear(24, 4)

        def forward(self, x):
            x = F.relu(self.conv1(x))
            x = F.relu(self.conv2(x))
            return self.fc(x.mean(2))

    x, y = waves(1300)
    model = Net()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x[:1000], y[:1000]), batch_size=50, shuffle=True),
        optim.Adam(model.parameters(), lr=5e-3),
        accuracy(x[1000:], y[1000:]),
    )


@fault(
    "reshape of (time, batch, features) mixes the examples",
    rules=["mixed-examples", "output-loss-mismatch"],
    layers=[],
    fails=True,
    steps=400,
)
def tab_reshape(is_faulty: bool) -> Program:
    class SensorNet(nn.Module):
        """Windows of 3 sensors, filtered along time, time first."""

        def __init__(self):
            super().__init__()
            self.lift = nn.Linear(3, 8)
            self.mlp = nn.Sequential(nn.Linear(12 * 8, 64), nn.ReLU(), nn.Linear(64, 3))

        def forward(self, x):
            h = torch.tanh(self.lift(x.transpose(0, 1)))
            t, n, f = h.shape
            if is_faulty:
                h = h.reshape(n, t * f)
            else:
                h = h.transpose(0, 1).reshape(n, t * f)
            return self.mlp(h)

    n = 1400
    x = torch.randn(n, 12, 3) * 0.6
    y = torch.randint(0, 3, (n,))
    at = torch.randint(2, 10, (n,))
    x[torch.arange(n), at, y] += 2.5
    x[torch.arange(n), at + 1, y] -= 2.5
    model = SensorNet()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x[:1000], y[:1000]), batch_size=50, shuffle=True),
        optim.Adam(model.parameters(), lr=3e-3),
        accuracy(x[1000:], y[1000:]),
    )


class TCN(nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.causal = causal
        self.convs = nn.ModuleList([nn.Conv1d(1 if d == 1 else 16, 16, 3, dilation=d) for d in (1, 2, 4)])
        self.proj = nn.Conv1d(16, 1, 1)

    def forward(self, x):
        for conv in self.convs:
            d = conv.dilation[0]
            x = F.relu(conv(F.pad(x, (2 * d, 0) if self.causal else (d, d))))
        return self.proj(x)


@fault(
    "a forecaster with padding on both sides sees the sample that it forecasts",
    rules=["future-seen"],
    layers=["convs"],
    fails=False,
    steps=400,
)
def tab_padding_same(is_faulty: bool) -> Program:
    n, length = 700, 64
    t = torch.arange(length + 1.0)[None]
    s = sum(
        torch.sin(2 * math.pi * t / (5 + 12 * torch.rand(n, 1)) + 6.28 * torch.rand(n, 1)) for _ in range(3)
    ) + 0.02 * torch.randn(n, length + 1)
    x, y = s[:, None, :-1], s[:, None, 1:]
    model = TCN(not is_faulty)

    def last(model):
        """The sample after the window: all that there is to see."""
        out, truth = model(x[500:])[:, 0, -1], y[500:, 0, -1]
        return max(0.0, 1 - ((out - truth) ** 2).mean().item() / truth.var().item())

    return Program(
        model,
        nn.MSELoss(),
        DataLoader(TensorDataset(x[:500], y[:500]), batch_size=25, shuffle=True),
        optim.Adam(model.parameters(), lr=4e-3),
        last,
    )


def point_sets(n):
    """Sets of 4 to 12 points in a collated batch: padded, with the lengths."""
    size = torch.randint(3, 21, (n,))
    mask = torch.arange(20)[None] < size[:, None]
    pts = torch.randn(n, 20, 4) + torch.randn(n, 1, 4)
    y = (pts[..., 0] * pts[..., 1] * mask).sum(1) / size + (pts[..., 2] * mask).sum(1) / size
    return pts * mask[..., None], mask, ((y - y.mean()) / y.std())[:, None]


class DeepSet(nn.Module):
    def __init__(self, invert):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 48))
        self.rho = nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))
        self.invert = invert

    def forward(self, points, padding_mask):
        keep = padding_mask if self.invert else ~padding_mask
        keep = keep[..., None].float()
        h = (self.phi(points) * keep).sum(1) / keep.sum(1).clamp(min=1)
        return self.rho(h)


@fault(
    "the mask of padding is taken for the mask of points",
    rules=["wrong-mask", "rank-collapse"],
    layers=[],
    fails=True,
    steps=500,
)
def tab_inverted(is_faulty: bool) -> Program:
    p, m, y = point_sets(1500)
    model = DeepSet(is_faulty)

    def collate(rows):
        points, mask, target = (torch.stack(part) for part in zip(*rows, strict=True))
        return {"points": points, "padding_mask": ~mask}, target

    def score(model):
        out = model(p[1200:], ~m[1200:])
        return max(0.0, 1 - ((out - y[1200:]) ** 2).mean().item() / y[1200:].var().item())

    return Program(
        model,
        nn.MSELoss(),
        DataLoader(TensorDataset(p[:1200], m[:1200], y[:1200]), batch_size=50, shuffle=True, collate_fn=collate),
        optim.Adam(model.parameters(), lr=3e-3),
        score,
    )


@fault(
    "the collate function sorts the signals by length, and not their targets",
    rules=["labels-unrelated", "output-loss-mismatch"],
    layers=[],
    fails=True,
    steps=400,
)
def tab_collate(is_faulty: bool) -> Program:
    x, y = waves(1300, noise=0.1)
    lengths = torch.randint(32, 65, (1300,))
    rows = [(x[i, :, : lengths[i]], y[i]) for i in range(1300)]

    def collate(batch):
        signals = [s for s, _ in batch]
        labels = [k for _, k in batch]
        order = sorted(range(len(batch)), key=lambda i: -signals[i].shape[1])
        signals = [signals[i] for i in order]
        if not is_faulty:
            labels = [labels[i] for i in order]
        longest = signals[0].shape[1]
        return torch.stack([F.pad(s, (0, longest - s.shape[1])) for s in signals]), torch.stack(labels)

    net = nn.Sequential(
        nn.Conv1d(1, 16, 9, stride=2, padding=4),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Conv1d(16, 32, 5, stride=2, padding=2),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.AdaptiveMaxPool1d(4),
        nn.Flatten(),
        nn.Linear(128, 4),
    )
    return Program(
        net,
        nn.CrossEntropyLoss(),
        DataLoader(rows[:1000], batch_size=40, shuffle=True, collate_fn=collate),
        optim.Adam(net.parameters(), lr=2e-3),
        accuracy(x[1000:], y[1000:]),
    )


@fault(
    "empty places for boxes count in the loss, as boxes at zero",
    rules=["padding-in-loss"],
    layers=[],
    fails=True,
    steps=400,
)
def tab_slots(is_faulty: bool) -> Program:
    n, slots = 1200, 4
    g = torch.Generator().manual_seed(3)
    mix = torch.randn(24, 16, generator=g)
    box = torch.rand(n, slots, 4) * 0.8 + 0.1
    count = torch.tensor([1, 1, 1, 1, 2, 2, 3, 4])[torch.randint(8, (n,))]
    present = torch.arange(slots)[None] < count[:, None]
    x = torch.tanh((box.reshape(n, 16) - 0.5) @ mix.T * 0.8) + 0.02 * torch.randn(n, 24)
    target = torch.where(present[..., None], box, torch.zeros(()))

    class BoxHead(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
            self.boxes = nn.Linear(64, slots * 4)

        def forward(self, x):
            return self.boxes(self.trunk(x)).view(-1, slots, 4)

    def loss(out, target):
        if is_faulty:
            return F.l1_loss(out, target)
        real = (target.sum(-1) > 0).float()[..., None]
        return ((out - target).abs() * real).sum() / (4 * real.sum())

    def score(model):
        out, real = model(x[1000:]), present[1000:]
        a, b = out[real], box[1000:][real]
        return max(0.0, 1 - ((a - b) ** 2).mean().item() / b.var().item())

    model = BoxHead()
    return Program(
        model,
        loss,
        DataLoader(TensorDataset(x[:1000], target[:1000]), batch_size=50, shuffle=True),
        optim.Adam(model.parameters(), lr=3e-3),
        score,
    )


@fault("log of a spectrum with zeros", rules=["non-finite"], layers=["front"], fails=True, steps=500)
def tab_log_power(is_faulty: bool) -> Program:
    class LogPower(nn.Module):
        def forward(self, x):
            power = torch.fft.rfft(x[:, 0], norm="ortho").abs() ** 2
            return torch.log(power) if is_faulty else torch.log(power + 1e-3)

    class Spectral(nn.Module):
        def __init__(self):
            super().__init__()
            self.front = LogPower()
            self.mlp = nn.Sequential(nn.Linear(33, 48), nn.ReLU(), nn.Linear(48, 4))

        def forward(self, x):
            return self.mlp(self.front(x))

    x, y = waves(1300)
    silent = torch.rand(1300) < 0.03
    silent[1000:] = False
    x[silent] = 0
    model = Spectral()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x[:1000], y[:1000]), batch_size=50, shuffle=True),
        optim.Adam(model.parameters(), lr=5e-3),
        accuracy(x[1000:], y[1000:]),
    )


@fault(
    "hidden tanhs with weights of standard deviation 1",
    rules=["saturated-activation", "bad-initialisation", "exploding-gradient"],
    layers=["fc0", "fc1", "fc2", "fc3", "act0", "act1", "act2"],
    fails=False,
    steps=400,
)
def tab_normal_init(is_faulty: bool) -> Program:
    net = nn.Sequential()
    sizes = [8, 100, 100, 100, 1]
    for i, (a, b) in enumerate(zip(sizes, sizes[1:], strict=False)):
        net.add_module(f"fc{i}", nn.Linear(a, b))
        if i < 3:
            net.add_module(f"act{i}", nn.Tanh())
    for p in net.parameters():
        if p.dim() == 2:
            nn.init.normal_(p, 0, 1 if is_faulty else p.shape[1] ** -0.5)
    x, y = friedman(1300)
    x, y = (x - 0.5) / 0.29, ((y - 14) / 5)[:, None]
    return Program(
        net,
        nn.MSELoss(),
        DataLoader(TensorDataset(x[:900], y[:900]), batch_size=32, shuffle=True),
        optim.SGD(net.parameters(), lr=0.01, momentum=0.9),
        r2(x[900:], y[900:]),
    )


@fault(
    "a deep stack of sigmoids",
    rules=["vanishing-gradient", "rank-collapse", "bad-initialisation"],
    layers=[],
    fails=True,
    steps=500,
)
def tab_sigmoids(is_faulty: bool) -> Program:
    act = nn.Sigmoid if is_faulty else nn.Tanh
    layers = []
    for i in range(7):
        layers += [nn.Linear(12 if i == 0 else 40, 40), act()]
    model = nn.Sequential(*layers, nn.Linear(40, 4))
    x, y = blobs(1500)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x[:1100], y[:1100]), batch_size=50, shuffle=True),
        optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        accuracy(x[1100:], y[1100:]),
    )


@fault(
    "the scheduler's step size is in epochs, and it is stepped per batch",
    rules=["learning-rate-too-low"],
    layers=[],
    fails=True,
    steps=500,
)
def tab_step_size(is_faulty: bool) -> Program:
    x, y = spirals(1600)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    opt = optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    per_epoch = 1 if is_faulty else 24
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x[:1200], y[:1200]), batch_size=50, shuffle=True),
        opt,
        accuracy(x[1200:], y[1200:]),
        scheduler=optim.lr_scheduler.StepLR(opt, step_size=8 * per_epoch, gamma=0.1),
    )


@fault(
    "the head is replaced after the optimizer was made",
    rules=["no-gradient"],
    layers=["head"],
    fails=False,
    steps=300,
)
def tab_new_head(is_faulty: bool) -> Program:
    class Net(nn.Module):
        def __init__(self, classes):
            super().__init__()
            self.features = nn.Sequential(
                nn.Conv1d(1, 16, 9, stride=2, padding=4), nn.ReLU(), nn.Conv1d(16, 24, 5, stride=2, padding=2), nn.ReLU()
            )
            self.head = nn.Linear(24, classes)

        def forward(self, x):
            return self.head(self.features(x).mean(2))

    x, y = waves(1400)
    model = Net(2)
    first = optim.Adam(model.parameters(), lr=3e-3)
    for i in range(200):  # pretraining: fast or not
        at = torch.randint(0, 1000, (50,))
        first.zero_grad()
        F.cross_entropy(model(x[at]), y[at] % 2).backward()
        first.step()
    model.zero_grad()
    for p in model.features[:2].parameters():
        p.requires_grad = False

    def make():
        return optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.003, momentum=0.9)

    if is_faulty:
        opt = make()
        model.head = nn.Linear(24, 4)
    else:
        model.head = nn.Linear(24, 4)
        opt = optim.SGD(
            [{"params": model.features[2].parameters()}, {"params": model.head.parameters(), "lr": 0.1}],
            lr=0.003,
            momentum=0.9,
        )
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x[:1000], y[:1000]), batch_size=40, shuffle=True),
        opt,
        accuracy(x[1000:], y[1000:]),
    )


@fault(
    "groups for weight decay: the decayed one is not handed over",
    rules=["no-gradient"],
    layers=["inp", "mid", "outp"],
    fails=False,
    steps=500,
)
def tab_groups(is_faulty: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp = nn.Linear(2, 20)
            self.norm = nn.LayerNorm(20)
            self.mid = nn.Linear(20, 20)
            self.norm2 = nn.LayerNorm(20)
            self.outp = nn.Linear(20, 4)

        def forward(self, x):
            x = F.gelu(self.norm(self.inp(x)))
            x = F.gelu(self.norm2(self.mid(x)))
            return self.outp(x)

    x, y = spirals(1600, arms=4)
    model = Net()
    decay, no_decay = [], []
    for name, p in model.named_parameters():
        if p.ndim <= 1 or name.endswith(".bias"):
            no_decay.append(p)
        else:
            decay.append(p)
    groups = [{"params": no_decay, "weight_decay": 0.0}]
    if not is_faulty:
        groups.append({"params": decay, "weight_decay": 0.01})
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x[:1200], y[:1200]), batch_size=64, shuffle=True),
        optim.AdamW(groups, lr=4e-3),
        accuracy(x[1200:], y[1200:]),
    )


@fault(
    "the sampler is given the weights of the classes, not of the examples: it draws the first few only",
    rules=["constant-target", "sorted-batches"],
    layers=[],
    fails=True,
    steps=300,
)
def tab_sampler(is_faulty: bool) -> Program:
    x, y = blobs(2000, classes=4, d=12)
    x, y, xt, yt = x[:1500], y[:1500], x[1500:], y[1500:]
    keep = (torch.rand(1500) < torch.tensor([1.0, 0.7, 0.5, 0.3])[y]).nonzero()[:, 0]
    keep = keep[y[keep].argsort(stable=True)]
    x, y = x[keep], y[keep]
    class_weights = 1.0 / torch.bincount(y)
    weights = class_weights if is_faulty else class_weights[y]
    sampler = WeightedRandomSampler(weights, num_samples=len(y), replacement=True)
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4))
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x, y), batch_size=32, sampler=sampler),
        optim.Adam(model.parameters(), lr=2e-3),
        accuracy(xt, yt),
    )


@fault(
    "inputs and targets are permuted each by its own permutation",
    rules=["labels-unrelated", "output-loss-mismatch"],
    layers=[],
    fails=True,
    steps=400,
)
def tab_permutations(is_faulty: bool) -> Program:
    x, y = friedman(1300)
    x, y = (x - 0.5) / 0.29, ((y - 14) / 5)[:, None]
    xt, yt, x, y = x[1000:], y[1000:], x[:1000], y[:1000]
    perm = torch.randperm(1000)
    x = x[perm]
    y = y[torch.randperm(1000)] if is_faulty else y[perm]
    model = nn.Sequential(nn.Linear(8, 40), nn.Mish(), nn.Linear(40, 40), nn.Mish(), nn.Linear(40, 1))
    batches = [(x[i : i + 50], y[i : i + 50]) for i in range(0, 1000, 50)]
    return Program(model, nn.HuberLoss(), batches, optim.NAdam(model.parameters(), lr=3e-3), r2(xt, yt))


@fault(
    "epsilon of Adam taken from a recipe for another network: 0.1",
    rules=["optimizer-setting", "learning-rate-too-low"],
    layers=[],
    fails=True,
    steps=400,
)
def tab_epsilon(is_faulty: bool) -> Program:
    x, y = spirals(1600)
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
    eps = 0.1 if is_faulty else 1e-8
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x[:1200], y[:1200]), batch_size=50, shuffle=True),
        optim.Adam(model.parameters(), lr=3e-3, eps=eps),
        accuracy(x[1200:], y[1200:]),
    )


@fault(
    "powers of one quantity as inputs, not orthogonal nor scaled, with SGD",
    rules=["ill-conditioned-input"],
    layers=[],
    fails=False,
    steps=500,
)
def tab_powers(is_faulty: bool) -> Program:
    t = 2 * torch.rand(1000)
    y = torch.sin(5 * t)[:, None] + 0.05 * torch.randn(1000, 1)
    X = torch.stack([t**k for k in range(1, 9)], 1)
    X = (X - X.mean(0)) / X.std(0)
    if not is_faulty:
        q, _ = torch.linalg.qr(X)
        X = q * 1000**0.5
    model = nn.Linear(8, 1)
    return Program(
        model,
        nn.MSELoss(),
        DataLoader(TensorDataset(X[:800], y[:800]), batch_size=40, shuffle=True),
        optim.SGD(model.parameters(), lr=0.05),
        r2(X[800:], y[800:]),
    )


@fault(
    "an equation with a large constant outweighs the measurements",
    rules=["term-dominates"],
    layers=[],
    fails=True,
    steps=400,
)
def tab_oscillator(is_faulty: bool) -> Program:
    """x'' + 2 d x' + w² x = 0, x(0) = 1, x'(0) = 0, from few measurements and the equation."""
    d, w = 1.5, 15.0
    w1 = (w**2 - d**2) ** 0.5

    def truth(t):
        return torch.exp(-d * t) * (torch.cos(w1 * t) + d / w1 * torch.sin(w1 * t))

    t = torch.linspace(0, 1, 24)[:, None]
    weight = 1.0 if is_faulty else 1.0 / w**4

    class PINN(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp = nn.Linear(1, 32)
            self.mid = nn.Linear(32, 32)
            self.out = nn.Linear(32, 1)
            nn.init.uniform_(self.inp.weight, -15, 15)

        def forward(self, t):
            return self.out(torch.tanh(self.mid(torch.sin(self.inp(t)))))

    def step(model, batch):
        tb, xb = batch
        data = F.mse_loss(model(tb), xb)
        c = torch.rand(40, 1, requires_grad=True)
        u = model(c)
        (du,) = torch.autograd.grad(u.sum(), c, create_graph=True)
        (ddu,) = torch.autograd.grad(du.sum(), c, create_graph=True)
        residual = ddu + 2 * d * du + w**2 * u
        return data + weight * (residual**2).mean()

    model = PINN()
    test = torch.rand(300, 1)
    return Program(
        model,
        None,
        [(t, truth(t))],
        optim.Adam(model.parameters(), lr=3e-3),
        r2(test, truth(test)),
        step=step,
    )


@fault(
    "distances of all pairs: the square root has no slope at zero",
    rules=["non-finite"],
    layers=[],
    fails=True,
    steps=300,
)
def tab_distances(is_faulty: bool) -> Program:
    """Which of the atoms of a cluster is charged, from positions: energy of pairs by a learned potential."""
    n = 900
    pos = torch.randn(n, 5, 3)
    dist = (pos[:, :, None] - pos[:, None]).norm(dim=-1) + 10 * torch.eye(5)
    y = (torch.exp(-dist) * (1 - torch.eye(5))).sum((1, 2))[:, None]
    y = (y - y.mean()) / y.std()

    class Potential(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(3, 6)
            self.pair = nn.Sequential(nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, 16), nn.SiLU(), nn.Linear(16, 1))

        def forward(self, pos):
            z = self.embed(pos)
            sq = (z[:, :, None] - z[:, None]).pow(2).sum(-1)
            r = torch.sqrt(sq) if is_faulty else torch.sqrt(sq + 1e-6)
            return self.pair(r[..., None]).sum((1, 2))

    model = Potential()
    return Program(
        model,
        nn.MSELoss(),
        DataLoader(TensorDataset(pos[:700], y[:700]), batch_size=35, shuffle=True),
        optim.Adam(model.parameters(), lr=4e-3),
        r2(pos[700:], y[700:]),
    )


@fault(
    "one block, four times: a copy was meant",
    rules=["shared-weight", "batchnorm-mode-gap"],
    layers=["blocks"],
    fails=True,
    steps=500,
)
def tab_same_block(is_faulty: bool) -> Program:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            block = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Tanh())
            self.stem = nn.Linear(2, 16)
            self.blocks = nn.Sequential(*[block if is_faulty else copy.deepcopy(block) for _ in range(4)])
            self.head = nn.Linear(16, 3)

        def forward(self, x):
            return self.head(self.blocks(self.stem(x)))

    x, y = spirals(1600)
    model = Net()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x[:1200], y[:1200]), batch_size=50, shuffle=True),
        optim.Adam(model.parameters(), lr=5e-3),
        accuracy(x[1200:], y[1200:]),
    )
