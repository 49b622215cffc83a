"""Sound programs on signals, sensors, bands and learned representations."""

from __future__ import annotations

import copy

import bis_data as data
import torch
from program import Program, sound
from torch import nn
from torch.nn import functional as F


@sound("nothing: an ordinary one-dimensional convolutional network", steps=200, least=0.85)
def bis_plain_tones():
    """Tones."""
    x, y = data.tones()
    model = nn.Sequential(
        nn.Conv1d(1, 16, 9, stride=2), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 32, 5, stride=2),
        nn.BatchNorm1d(32), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(32, 4),
    )  # fmt: skip
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(x[:800], y[:800]), torch.optim.Adam(model.parameters(), 3e-3),
        data.accuracy(x[800:], y[800:]),
    )  # fmt: skip


class Gestures(nn.Module):
    """A GRU that reads the last state."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(3, 24, batch_first=True)
        self.head = nn.Linear(24, 4)

    def forward(self, x):
        return self.head(self.gru(x)[1][0])


@sound("nothing: an ordinary recurrent network", steps=250, least=0.85)
def bis_plain_gru():
    """Gestures from an accelerometer."""
    x, y = data.motions()
    model = Gestures()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(x[:700], y[:700]), torch.optim.Adam(model.parameters(), 1e-2),
        data.accuracy(x[700:], y[700:]),
    )  # fmt: skip


class Points(nn.Module):
    """Sees a set of points, whose order does not matter."""

    def __init__(self):
        super().__init__()
        self.points = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 64), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x):
        return self.head(self.points(x).amax(1))


@sound("the network cannot see the order of points, and need not", steps=250, least=0.85)
def bis_point_sets():
    """Point clouds."""
    x, y = data.clouds()
    model = Points()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(x[:700], y[:700]), torch.optim.AdamW(model.parameters(), 3e-3),
        data.accuracy(x[700:], y[700:]),
    )  # fmt: skip


class Causal(nn.Module):
    """Predicts the next sample from those before it, as a change of the present one."""

    def __init__(self):
        super().__init__()
        self.one = nn.Conv1d(1, 16, 3)
        self.two = nn.Conv1d(16, 16, 3, dilation=2)
        self.out = nn.Conv1d(16, 1, 1)

    def forward(self, x):
        h = F.relu(self.one(F.pad(x[:, None], (2, 0))))
        h = F.relu(self.two(F.pad(h, (4, 0))))
        return x + self.out(h)[:, 0]


@sound("inputs and targets are the same series, one step apart, and the convolutions are causal", steps=300, least=0.85)
def bis_causal_forecast():
    """Next sample of an oscillation."""
    x = data.series()
    model = Causal()
    held = x[480:]
    return Program(
        model, nn.MSELoss(), data.loader(x[:480, :-1].clone(), x[:480, 1:].clone()),
        torch.optim.Adam(model.parameters(), 4e-3), data.r2(held[:, :-1], held[:, 1:]),
    )  # fmt: skip


@sound("raw counts of six bands, but the first layer is a BatchNorm over them", steps=200, least=0.85)
def bis_normalised_inside():
    """Land cover."""
    x, y = data.bands()
    x = (10000 * x).round()
    model = nn.Sequential(
        nn.BatchNorm1d(6), nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)
    )
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(x[:1200], y[:1200], batch=64),
        torch.optim.Adam(model.parameters(), 5e-3), data.accuracy(x[1200:], y[1200:]),
    )  # fmt: skip


@sound("a log-softmax at the end, and the loss that takes it", steps=200, least=0.9)
def bis_log_softmax_nll():
    """Land cover with standardised bands."""
    x, y = data.bands(seed=14)
    x = (x - x.mean(0)) / x.std(0)
    model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 4), nn.LogSoftmax(dim=1))
    return Program(
        model, nn.NLLLoss(), data.loader(x[:1200], y[:1200]), torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
        data.accuracy(x[1200:], y[1200:]),
    )  # fmt: skip


class Embedding(nn.Module):
    """Embeddings of length one."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 16))

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


def nearest(x, y, x_held, y_held):
    """Accuracy of the nearest class mean."""

    def score(model):
        z, held = model(x), model(x_held)
        means = torch.stack([z[y == c].mean(0) for c in range(int(y.max()) + 1)])
        return (torch.cdist(held, means).argmin(1) == y_held).float().mean().item()

    return score


@sound("a contrastive loss over pairs of a batch; embeddings have length one", steps=200, least=0.9)
def bis_supervised_contrastive():
    """Digits of a class are drawn together."""
    x, y, x_held, y_held = data.digits()
    model = Embedding()

    def loss(z, label):
        logits = z @ z.T / 0.2 - 1e9 * torch.eye(len(z))
        same = (label[:, None] == label[None]).float() - torch.eye(len(z))
        log_p = logits.log_softmax(1)
        return -((log_p * same).sum(1) / same.sum(1).clamp(min=1)).mean()

    return Program(
        model, loss, data.loader(x, y, batch=64), torch.optim.Adam(model.parameters(), 3e-3),
        nearest(x, y, x_held, y_held),
    )  # fmt: skip


class Cosine(nn.Module):
    """Classes as directions, with a scale of 12."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 24))
        self.classes = nn.Parameter(torch.randn(10, 24))

    def forward(self, x):
        return 12 * F.normalize(self.net(x), dim=1) @ F.normalize(self.classes, dim=1).T


@sound("a cosine classifier, trained: gradients are small", trained=400, steps=500, least=0.9)
def bis_cosine_classifier():
    """Digits."""
    x, y, x_held, y_held = data.digits()
    model = Cosine()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(x, y, batch=64), torch.optim.Adam(model.parameters(), 3e-3),
        data.accuracy(x_held, y_held),
    )  # fmt: skip


@sound("soft targets of a teacher, a temperature, and kl_div of log-probabilities", steps=250, least=0.8)
def bis_distillation():
    """A student learns from a teacher's answers."""
    x, y, x_held, y_held = data.digits()
    g = torch.Generator().manual_seed(6)
    teacher = 6 * F.one_hot(y, 10).float() + torch.randn(len(y), 10, generator=g)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def loss(out, logits):
        t = 3.0
        return t * t * F.kl_div((out / t).log_softmax(1), (logits / t).softmax(1), reduction="batchmean")

    return Program(
        model, loss, data.loader(x, teacher), torch.optim.Adam(model.parameters(), 3e-3), data.accuracy(x_held, y_held)
    )


class Pair(nn.Module):
    """A student and a slowly moving copy of it."""

    def __init__(self, net):
        super().__init__()
        self.student = net
        self.copy = copy.deepcopy(net).requires_grad_(False)

    def forward(self, x):
        return self.student(x)


@sound("half of the parameters have no gradient: they follow the others as a running mean", steps=250, least=0.8)
def bis_mean_teacher():
    """Tones with labels, and agreement with a running mean of the network."""
    x, y = data.tones(noise=0.3)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 9, stride=2), nn.ReLU(), nn.Conv1d(16, 16, 5, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(192, 4),
    )  # fmt: skip
    model = Pair(net)

    def step(m, batch):
        signal, label = batch
        out = m.student(signal + 0.1 * torch.randn_like(signal))
        with torch.no_grad():
            for slow, fast in zip(m.copy.parameters(), m.student.parameters(), strict=True):
                slow.lerp_(fast, 0.02)
            aim = m.copy(signal).softmax(1)
        return F.cross_entropy(out, label) + 0.3 * F.mse_loss(out.softmax(1), aim)

    return Program(
        model, None, data.loader(x[:800], y[:800]), torch.optim.Adam(model.student.parameters(), 3e-3),
        data.accuracy(x[800:], y[800:]), step=step,
    )  # fmt: skip


class Masked(nn.Module):
    """Fills in what is hidden."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Parameter(torch.zeros(()))
        self.net = nn.Sequential(nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 64))

    def forward(self, x, seen):
        return self.net(torch.cat([torch.where(seen, x, self.hidden), seen.float()], 1))


@sound("half of the samples are hidden, and only they count in the loss", steps=500, least=0.6)
def bis_masked_signal():
    """A masked autoencoder of tones."""
    x = data.tones(noise=0.05, n=1600)[0][:, 0]

    def hide(n, generator=None):
        return torch.rand(n, 16, generator=generator).repeat_interleave(4, 1) > 0.4

    def step(m, batch):
        seen = hide(len(batch[0]))
        return (m(batch[0], seen) - batch[0])[~seen].pow(2).mean()

    held = x[1400:]
    seen_held = hide(len(held), torch.Generator().manual_seed(9))

    def score(m):
        error = (m(held, seen_held) - held)[~seen_held].pow(2).mean()
        return max(0.0, 1 - (error / held.var()).item())

    model = Masked()
    return Program(
        model, None, data.loader(x[:1400], batch=64), torch.optim.AdamW(model.parameters(), 3e-3), score, step=step
    )


@sound("the rate begins at a hundredth and rises for sixty steps", steps=300, least=0.8)
def bis_warm_up():
    """A transformer over frames of a tone."""
    x, y = data.tones(noise=0.3)

    class Frames(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(8, 32)
            self.place = nn.Parameter(0.02 * torch.randn(8, 32))
            self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
            self.head = nn.Linear(32, 4)

        def forward(self, signal):
            return self.head(self.layer(self.embed(signal.view(-1, 8, 8)) + self.place).mean(1))

    model = Frames()
    optimizer = torch.optim.AdamW(model.parameters(), 4e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, 1.0, total_iters=60)
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(x[:800], y[:800]), optimizer, data.accuracy(x[800:], y[800:]),
        scheduler=schedule,
    )  # fmt: skip


@sound("nine beats in ten are healthy, and the rare ones weigh more", steps=300, least=0.75)
def bis_rare_beats():
    """Widened heart beats among ordinary ones; the score is the mean of both recalls."""
    g = torch.Generator().manual_seed(10)
    y = (torch.rand(1000, generator=g) < 0.12).long()
    t = torch.arange(40).float()
    centre = 15 + 10 * torch.rand(1000, 1, generator=g)
    width = torch.where(y > 0, 4.0, 1.5)[:, None]
    x = torch.exp(-(((t - centre) / width) ** 2)) + 0.1 * torch.randn(1000, 40, generator=g)
    x = x[:, None]
    model = nn.Sequential(
        nn.Conv1d(1, 12, 7), nn.ReLU(), nn.Conv1d(12, 12, 7), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(),
        nn.Linear(12, 2),
    )  # fmt: skip

    def score(m):
        found = m(x[700:]).argmax(1)
        return sum((found[y[700:] == c] == c).float().mean().item() for c in (0, 1)) / 2

    return Program(
        model, nn.CrossEntropyLoss(weight=torch.tensor([0.6, 4.0])), data.loader(x[:700], y[:700]),
        torch.optim.Adam(model.parameters(), 4e-3), score,
    )  # fmt: skip


class Linked(nn.Module):
    """A linear encoder and decoder, with nothing between them on purpose."""

    def __init__(self):
        super().__init__()
        self.down = nn.Linear(40, 6)
        self.up = nn.Linear(6, 40)

    def forward(self, x):
        return self.up(self.down(x))


@sound("an encoder and a decoder that are linear: principal components of a signal", steps=500, least=0.75)
def bis_linear_compression():
    """Compresses windows of an oscillation to six numbers."""
    x = data.series(n=800)
    model = Linked()
    return Program(
        model, nn.MSELoss(), data.loader(x[:640], x[:640]), torch.optim.Adam(model.parameters(), 1e-2),
        data.r2(x[640:], x[640:]),
    )  # fmt: skip


@sound("dropout of one half in a wide layer of a trained network", trained=300, steps=400, least=0.85)
def bis_wide_dropout():
    """Digits as vectors."""
    x, y, x_held, y_held = data.digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 10))
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(x, y), torch.optim.Adam(model.parameters(), 2e-3),
        data.accuracy(x_held, y_held),
    )  # fmt: skip
