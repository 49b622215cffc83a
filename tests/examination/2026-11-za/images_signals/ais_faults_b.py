"""Mistakes in programs on sound and sensor signals."""

import torch
import torch.nn.functional as F
from ais_data import Dicts, accuracy, beats, clips, digits, loader, motion, r2, tones, waves
from program import Program, fault
from torch import nn


def conv1d(classes=4, width=12, act=nn.ReLU):
    return nn.Sequential(
        nn.Conv1d(1, width, 9, padding=4), act(), nn.Conv1d(width, width, 7, 2, padding=3), act(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(width, classes),
    )


@fault(
    "The activations between the convolutions were forgotten, so that tones of any phase cannot be told apart",
    rules=["no-nonlinearity"],
    fails=True,
    steps=400,
)
def ais_tones_without_activation(is_faulty):
    x, y = tones(1200, 0)
    xt, yt = tones(300, 1)
    model = conv1d(act=nn.Identity if is_faulty else nn.ReLU)
    opt = torch.optim.Adam(model.parameters(), 5e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(xt, yt))


@fault(
    "The LSTM gets recordings of (batch, time, channel) without batch_first and runs over the batch",
    rules=["mixed-examples"],
    layers=["rnn"],
    fails=False,
    steps=300,
)
def ais_motion_batch_first(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(6, 24, batch_first=not is_faulty)
            self.fc = nn.Linear(24, 4)

        def forward(self, x):
            out, _ = self.rnn(x)
            return self.fc(out[:, -1])

    x, y = motion(1200, 0)
    xt, yt = motion(300, 1)
    model = Net()
    opt = torch.optim.Adam(model.parameters(), 1e-2)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(xt, yt))


@fault(
    "The recordings lie in the order of their classes and the loader does not shuffle",
    rules=["sorted-batches"],
    fails=True,
    steps=304,
)
def ais_unshuffled_recordings(is_faulty):
    x, y = beats(1200, 0)
    xt, yt = beats(300, 1)
    order = y.argsort(stable=True)
    x, y = x[order], y[order]
    model = nn.Sequential(
        nn.Conv1d(1, 8, 7, 2, 3), nn.ReLU(), nn.Conv1d(8, 12, 5, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(240, 4)
    )
    opt = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, size=32, shuffle=not is_faulty), opt, accuracy(xt, yt))


@fault(
    "The share to keep, 0.95, is given to dropout as the share to drop",
    rules=["dropout-too-strong"],
    layers=["3", "6"],
    fails=False,
    steps=300,
)
def ais_keep_probability(is_faulty):
    x, y = beats(1200, 0)
    xt, yt = beats(300, 1)
    p = 0.95 if is_faulty else 0.05
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(80, 48), nn.ReLU(), nn.Dropout(p), nn.Linear(48, 48), nn.ReLU(), nn.Dropout(p),
        nn.Linear(48, 4),
    )
    opt = torch.optim.Adam(model.parameters(), 2e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(xt, yt))


@fault(
    "F.dropout is called without telling it the mode, so that it also acts in evaluation",
    rules=["dropout-in-eval"],
    fails=False,
    steps=400,
)
def ais_functional_dropout(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2, self.fc3 = nn.Linear(64, 40), nn.Linear(40, 40), nn.Linear(40, 10)

        def drop(self, x):
            return F.dropout(x, 0.5) if is_faulty else F.dropout(x, 0.5, training=self.training)

        def forward(self, x):
            x = self.drop(F.relu(self.fc1(x.flatten(1))))
            x = self.drop(F.relu(self.fc2(x)))
            return self.fc3(x)

    x, y, xt, yt = digits()
    model = Net()
    opt = torch.optim.Adam(model.parameters(), 2e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(xt, yt))


@fault(
    "The rate is multiplied by 0.9 after every batch, where once an epoch was meant",
    rules=["learning-rate-too-low"],
    fails=False,
    steps=400,
)
def ais_decay_each_batch(is_faulty):
    x, y = tones(1200, 0)
    xt, yt = tones(300, 1)
    batches = loader(x, y)
    model = conv1d()
    opt = torch.optim.Adam(model.parameters(), 5e-3)
    if is_faulty:
        plan = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
    else:
        plan = torch.optim.lr_scheduler.StepLR(opt, len(batches), 0.9)
    return Program(model, nn.CrossEntropyLoss(), batches, opt, accuracy(xt, yt), scheduler=plan)


@fault(
    "Adam runs at a rate of 0.3, which was one for SGD",
    rules=["learning-rate-too-high", "dying-neurons", "diverging"],
    fails=True,
    steps=300,
)
def ais_adam_with_sgd_rate(is_faulty):
    x, y = motion(1200, 0)
    xt, yt = motion(300, 1)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
        nn.Linear(64, 4),
    )
    opt = torch.optim.Adam(model.parameters(), 0.3 if is_faulty else 1e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(xt, yt))


@fault(
    "A weight decay of 0.5 is added to the gradients of SGD",
    rules=["weight-decay-dominates"],
    fails=True,
    steps=300,
)
def ais_heavy_decay(is_faulty):
    x, y = beats(1200, 0)
    xt, yt = beats(300, 1)
    model = nn.Sequential(
        nn.Conv1d(1, 8, 7, 2, 3), nn.ReLU(), nn.Conv1d(8, 12, 5, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(240, 4)
    )
    opt = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=0.5 if is_faulty else 5e-4)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(xt, yt))


@fault(
    "Five layers of sigmoids let hardly any gradient through to the first ones",
    rules=["vanishing-gradient", "bad-initialisation", "rank-collapse", "saturated-activation"],
    fails=True,
    steps=400,
)
def ais_deep_sigmoids(is_faulty):
    x, y = beats(1200, 0)
    xt, yt = beats(300, 1)
    act = nn.Sigmoid if is_faulty else nn.ReLU
    widths = [80, 48, 48, 48, 48, 48]
    layers = [nn.Flatten()]
    for a, b in zip(widths, widths[1:]):
        layers += [nn.Linear(a, b), act()]
    model = nn.Sequential(*layers, nn.Linear(48, 4))
    opt = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(xt, yt))


@fault(
    "The key padding mask is the wrong way round: it hides the frames that are real",
    rules=["wrong-mask"],
    fails=True,
    steps=400,
)
def ais_inverted_mask(is_faulty):
    class Clip(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(8, 24)
            self.query = nn.Parameter(0.1 * torch.randn(1, 1, 24))
            self.attend = nn.MultiheadAttention(24, 2, batch_first=True)
            self.head = nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 4))

        def forward(self, frames, real):
            x = self.embed(frames)
            hidden = real.clone() if is_faulty else ~real
            hidden[:, -1] &= ~hidden.all(1)
            out, _ = self.attend(self.query.expand(len(x), -1, -1), x, x, key_padding_mask=hidden)
            return self.head(out[:, 0])

    x, real, y = clips(1200, 0)
    xt, realt, yt = clips(300, 1)
    model = Clip()
    opt = torch.optim.Adam(model.parameters(), 5e-3)

    def score(m):
        return (m(frames=xt, real=realt).argmax(1) == yt).float().mean().item()

    return Program(model, nn.CrossEntropyLoss(), Dicts({"frames": x, "real": real}, y), opt, score)


@fault(
    "The weights of an attentive pooling are a softmax over their last dimension, of size one, instead of over time",
    rules=["wrong-softmax-dimension", "no-gradient"],
    layers=["pool", "pool.scores"],
    fails=False,
    steps=400,
)
def ais_pooling_softmax(is_faulty):
    class Pool(nn.Module):
        def __init__(self):
            super().__init__()
            self.scores = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

        def forward(self, x):
            weight = torch.softmax(self.scores(x), dim=-1 if is_faulty else 1)
            return (weight * x).sum(1)

    class Clip(nn.Module):
        def __init__(self):
            super().__init__()
            self.pool = Pool()
            self.head = nn.Linear(8, 4)

        def forward(self, x):
            return self.head(self.pool(x))

    x, _, y = clips(1200, 0)
    xt, _, yt = clips(300, 1)
    model = Clip()
    opt = torch.optim.Adam(model.parameters(), 1e-2)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(xt, yt))


@fault(
    "The convolutions of a forecaster are padded on both sides and see the samples they are asked for",
    rules=["future-seen"],
    fails=True,
    steps=500,
)
def ais_forecast_same_padding(is_faulty):
    class Conv(nn.Module):
        def __init__(self, a, b):
            super().__init__()
            self.conv = nn.Conv1d(a, b, 5)

        def forward(self, x):
            return self.conv(F.pad(x, (2, 2) if is_faulty else (4, 0)))

    series, seriest = waves(800, 0), waves(300, 1)
    model = nn.Sequential(Conv(1, 16), nn.ReLU(), Conv(16, 16), nn.ReLU(), Conv(16, 1))
    opt = torch.optim.Adam(model.parameters(), 3e-3)

    def inner(out, target):
        return F.mse_loss(out[..., 4:-4], target[..., 4:-4])  # the edges see zeros

    def score(m):
        error = ((m(seriest[:, None, :-1])[:, 0, -1] - seriest[:, -1]) ** 2).mean()
        return max(0.0, 1 - (error / seriest[:, -1].var()).item())

    return Program(model, inner, loader(series[:, None, :-1], series[:, None, 1:]), opt, score)


@fault(
    "The distance to be read from an echo is in millimetres, thousands, at a network that returns about one",
    rules=["unscaled-target"],
    fails=True,
    steps=400,
)
def ais_echo_millimetres(is_faulty):
    def data(n, seed):
        g = torch.Generator().manual_seed(seed)
        where = 1 + 4 * torch.rand(n, 1, generator=g)
        t = torch.linspace(0, 6, 64)
        x = torch.exp(-(((t - where) / 0.25) ** 2)) + 0.1 * torch.randn(n, 64, generator=g)
        return x, where * 1000 if is_faulty else (where - 3)

    x, y = data(1200, 0)
    xt, yt = data(300, 1)
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 1))
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    return Program(model, nn.SmoothL1Loss(), loader(x, y), opt, r2(xt, yt))


@fault(
    "The loss is a sum over the batch and all samples of the signal, at a rate that was chosen for a mean",
    rules=["summed-loss", "learning-rate-too-high", "diverging", "non-finite"],
    fails=True,
    steps=400,
)
def ais_denoiser_sum(is_faulty):
    def data(n, seed):
        clean = waves(n, seed)[:, None]
        return clean + 0.8 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(seed + 9)), clean

    x, y = data(800, 0)
    xt, yt = data(300, 1)
    model = nn.Sequential(
        nn.Conv1d(1, 16, 9, padding=4), nn.ReLU(), nn.Conv1d(16, 16, 9, padding=4), nn.ReLU(),
        nn.Conv1d(16, 1, 9, padding=4),
    )
    opt = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    return Program(model, nn.MSELoss(reduction="sum" if is_faulty else "mean"), loader(x, y), opt, r2(xt, yt))


@fault(
    "BatchNorm normalises over batches of two recordings",
    rules=["small-batch-batchnorm", "batchnorm-mode-gap"],
    layers=["2", "5"],
    fails=True,
    steps=500,
)
def ais_batches_of_two(is_faulty):
    x, y = motion(1200, 0)
    xt, yt = motion(300, 1)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(192, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 48), nn.BatchNorm1d(48),
        nn.ReLU(), nn.Linear(48, 4),
    )
    opt = torch.optim.Adam(model.parameters(), 2e-3)
    return Program(
        model, nn.CrossEntropyLoss(), loader(x, y, size=2 if is_faulty else 32, drop_last=True), opt, accuracy(xt, yt)
    )


@fault(
    "The epsilon of Adam is 1, as for a network of another framework, so that steps are as small as the gradients",
    rules=["optimizer-setting", "learning-rate-too-low"],
    fails=True,
    steps=400,
)
def ais_adam_epsilon(is_faulty):
    x, y = tones(1200, 0)
    xt, yt = tones(300, 1)
    model = conv1d()
    opt = torch.optim.Adam(model.parameters(), 5e-3, eps=1.0 if is_faulty else 1e-8)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(xt, yt))
