"""Faults in audio, medical signals, video and bags of instances."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from torch.optim.lr_scheduler import StepLR
from xis_data import accuracy, beats, loader, r2, shapes, tones


def deep_1d(depth, c, act):
    layers, a = [], 1
    for i in range(depth):
        layers += [nn.Conv1d(a, c, 5, padding=2), act()]
        a = c
        if i in (1, 3):
            layers.append(nn.AvgPool1d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(c, 3))


@fault(
    "nine convolutions with sigmoids between them",
    rules=("vanishing-gradient", "rank-collapse", "activation-drift"),
    fails=True,
    steps=300,
)
def xis_ecg_sigmoid(is_faulty):
    x, y, _ = beats(900)
    net = deep_1d(9, 16, nn.Sigmoid if is_faulty else nn.LeakyReLU)
    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(x[:700], y[:700]),
        torch.optim.Adam(net.parameters(), lr=2e-3),
        lambda m: accuracy(m(x[700:]), y[700:]),
    )


class KeywordNet(nn.Module):
    def __init__(self, gated):
        super().__init__()
        self.conv = nn.Conv1d(1, 24, 9, stride=2)
        self.hidden = nn.Linear(24, 32)
        self.out = nn.Linear(32, 6)
        self.gated = gated

    def drop(self, x):
        return F.dropout(x, 0.6, training=self.training) if self.gated else F.dropout(x, 0.6)

    def forward(self, wave):
        h = self.drop(F.relu(self.conv(wave)).mean(-1))
        return self.out(self.drop(F.relu(self.hidden(h))))


@fault(
    "F.dropout without training=self.training",
    rules=("dropout-in-eval",),
    fails=False,
    steps=500,
)
def xis_keywords(is_faulty):
    x, y = tones(1200, classes=6, noise=0.4)
    net = KeywordNet(gated=not is_faulty)
    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(x[:1000], y[:1000]),
        torch.optim.Adam(net.parameters(), lr=5e-3),
        lambda m: accuracy(m(x[1000:]), y[1000:]),
    )


@fault(
    "samples as 16-bit integers hold them, in tens of thousands",
    rules=("unscaled-input", "learning-rate-too-high", "non-finite", "diverging"),
    fails=True,
    steps=300,
)
def xis_pcm(is_faulty):
    x, y = tones(900, noise=0.3)
    pcm = (x * 9000).clamp(-32768, 32767).to(torch.int16)
    wave = pcm.float() if is_faulty else pcm.float() / 9000
    net = nn.Sequential(
        nn.Conv1d(1, 24, 11, padding=5),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Conv1d(24, 24, 5, padding=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(24, 4),
    )
    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(wave[:700], y[:700]),
        torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
        lambda m: accuracy(m(wave[700:]), y[700:]),
    )


class ClipNet(nn.Module):
    """Features per frame, averaged over the frames of a clip."""

    def __init__(self, wrong):
        super().__init__()
        self.frame = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        self.wrong = wrong

    def forward(self, clip):
        b, t = clip.shape[:2]
        h = self.frame(clip.reshape(b * t, *clip.shape[2:]))
        h = h.view(t, b, -1).mean(0) if self.wrong else h.view(b, t, -1).mean(1)
        return self.head(h)


@fault(
    "frames (B*T) are viewed as (T, B), which mixes those of different clips",
    rules=("mixed-examples",),
    fails=True,
    steps=300,
)
def xis_clips(is_faulty):
    n, t = 700, 4
    kinds = torch.randint(4, (n,))
    clip = torch.zeros(n, t, 1, 9, 9)
    stock, which = shapes(4000, size=9, noise=0.2)
    for k in range(4):
        mine = stock[which == k]
        rows = (kinds == k).nonzero()[:, 0]
        clip[rows] = mine[torch.randint(len(mine), (len(rows), t))]
    net = ClipNet(is_faulty)
    return Program(
        net,
        F.cross_entropy,
        loader(clip[:500], kinds[:500], batch=24),
        torch.optim.Adam(net.parameters(), lr=5e-3),
        lambda m: accuracy(m(clip[500:]), kinds[500:]),
    )


class FilterBank(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv1d(1, 16, 9, padding=4), nn.Conv1d(16, 32, 9, padding=4), nn.Conv1d(32, 32, 5)])
        self.classify = nn.Linear(32, 4)
        self.activation = activation

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            if self.activation:
                x = F.elu(x)
        return self.classify(x.mean(2))


@fault(
    "convolutions with no activation between them, on tones of any phase",
    rules=("no-nonlinearity",),
    fails=True,
    steps=300,
)
def xis_linear_filters(is_faulty):
    x, y = tones(900)
    net = FilterBank(not is_faulty)
    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(x[:700], y[:700]),
        torch.optim.Adam(net.parameters(), lr=2e-3),
        lambda m: accuracy(m(x[700:]), y[700:]),
    )


@fault(
    "StepLR with a step of three epochs, stepped after every batch",
    rules=("learning-rate-too-low",),
    fails=True,
    steps=400,
)
def xis_decay_per_batch(is_faulty):
    x, y, period = beats(800, noise=0.1)
    x, rate = x[:, :, :64], ((24 - period) / 4.6)[:, None]
    net = nn.Sequential(
        nn.Conv1d(1, 16, 7, stride=2, padding=3),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Conv1d(16, 24, 7, stride=2, padding=3),
        nn.BatchNorm1d(24),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24 * 16, 48),
        nn.ReLU(),
        nn.Linear(48, 1),
    )
    data = loader(x[:640], rate[:640])
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    return Program(
        net,
        nn.SmoothL1Loss(),
        data,
        opt,
        lambda m: r2(m(x[640:]), rate[640:]),
        scheduler=StepLR(opt, step_size=3 if is_faulty else 10 * len(data), gamma=0.2),
    )


class Gabor(nn.Module):
    """Learned quadrature filters, and the magnitude of what they return."""

    def __init__(self, eps):
        super().__init__()
        self.real = nn.Conv1d(1, 12, 15, stride=4, bias=False)
        self.imag = nn.Conv1d(1, 12, 15, stride=4, bias=False)
        self.classify = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 4))
        self.eps = eps

    def forward(self, wave):
        magnitude = torch.sqrt(self.real(wave) ** 2 + self.imag(wave) ** 2 + self.eps)
        return self.classify(magnitude.mean(-1))


@fault(
    "the square root of a power that is exactly 0 in silence, whose gradient is infinite",
    rules=("non-finite",),
    layers=("real", "imag"),
    fails=True,
    steps=300,
)
def xis_magnitude(is_faulty):
    x, y = tones(900, length=64, noise=0.2)
    x = F.pad(x, (0, 32))  # clips end in silence
    net = Gabor(0.0 if is_faulty else 1e-6)
    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(x[:700], y[:700]),
        torch.optim.Adam(net.parameters(), lr=5e-3),
        lambda m: accuracy(m(x[700:]), y[700:]),
    )


class AttentiveReader(nn.Module):
    """One query looks at the frames of a recording."""

    def __init__(self, invert, features=8, dim=32, classes=4):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(features, dim), nn.GELU(), nn.Linear(dim, dim))
        self.query = nn.Parameter(torch.randn(dim))
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.head = nn.Linear(dim, classes)
        self.invert = invert

    def forward(self, frames, mask):
        h = self.embed(frames)
        scores = self.key(h) @ self.query / h.shape[-1] ** 0.5
        hidden = mask if self.invert else ~mask
        weights = scores.masked_fill(hidden, -1e9).softmax(-1)
        return self.head((weights.unsqueeze(-1) * self.value(h)).sum(1))


@fault(
    "a mask that is true where frames are real is used as if it were true where they are padding",
    rules=("wrong-mask",),
    fails=True,
    steps=250,
)
def xis_frames_mask(is_faulty):
    n, most = 900, 12
    y = torch.randint(4, (n,))
    centres = 0.8 * torch.randn(4, 8)
    frames = centres[y][:, None] + torch.randn(n, most, 8)
    mask = torch.arange(most)[None] < torch.randint(4, most, (n,))[:, None]
    frames = frames * mask[..., None]
    net = AttentiveReader(is_faulty)
    rows = [({"frames": frames[i], "mask": mask[i]}, y[i]) for i in range(700)]
    return Program(
        net,
        nn.CrossEntropyLoss(),
        torch.utils.data.DataLoader(rows, batch_size=32, shuffle=True),
        torch.optim.AdamW(net.parameters(), lr=2e-3),
        lambda m: accuracy(m(frames[700:], mask[700:]), y[700:]),
    )


class Bags(nn.Module):
    """Attention over the patches of a slide."""

    def __init__(self, dim):
        super().__init__()
        self.instance = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
        self.attention = nn.Sequential(nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 1))
        self.decide = nn.Linear(32, 3)
        self.dim = dim

    def forward(self, bag):
        h = self.instance(bag)
        a = F.softmax(self.attention(h), dim=self.dim)
        return self.decide((a * h).sum(1))


@fault(
    "the attention over the patches of a slide is normalised over the batch",
    rules=("wrong-softmax-dimension", "mixed-examples"),
    layers=("attention",),
    fails=False,
    steps=400,
)
def xis_slides(is_faulty):
    n, size = 1200, 24
    y = torch.randint(3, (n,))
    bag = torch.randn(n, size, 16)
    marks = 4 * F.normalize(torch.randn(3, 16), dim=1)
    at = torch.randint(size, (n,))
    bag[torch.arange(n), at] += marks[y]
    net = Bags(0 if is_faulty else 1)
    return Program(
        net,
        F.cross_entropy,
        loader(bag[:1000], y[:1000], batch=64),
        torch.optim.Adam(net.parameters(), lr=3e-3),
        lambda m: accuracy(m(bag[1000:]), y[1000:]),
    )


@fault(
    "a network of bfloat16 weights and Adam at 2e-4: most steps are below the precision of the weights",
    rules=("lost-updates",),
    fails=False,
    steps=600,
)
def xis_bfloat(is_faulty):
    kind = torch.bfloat16 if is_faulty else torch.float32
    x = torch.randn(2000, 16)  # frames of two microphones, and a filtered source
    mix = torch.randn(16, 2) / 4
    y = torch.tanh(1.5 * x @ mix)
    net = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 2)).to(kind)
    a, b = x.to(kind), y.to(kind)
    return Program(
        net,
        nn.MSELoss(),
        loader(a[:1600], b[:1600], batch=64),
        torch.optim.Adam(net.parameters(), lr=2e-4),
        lambda m: r2(m(a[1600:]), y[1600:]),
    )
