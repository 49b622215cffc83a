"""Faults in programs on signals, sensors, bands and learned representations."""

from __future__ import annotations

import bis_data as data
import torch
from program import Program, fault
from torch import nn
from torch.nn import functional as F


@fault(
    "a network of linear layers with dropout between them and no activation",
    rules=["no-nonlinearity"], fails=True, steps=400,
)  # fmt: skip
def bis_tones_no_activation(is_faulty):
    """Which of four tones, whatever its phase."""
    x, y = data.tones()
    middle = nn.Identity if is_faulty else nn.ReLU
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 96), middle(), nn.Dropout(0.1), nn.Linear(96, 48), middle(), nn.Linear(48, 4)
    )
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(x[:800], y[:800]), torch.optim.Adam(model.parameters(), 3e-3),
        data.accuracy(x[800:], y[800:]),
    )  # fmt: skip


class BeatNet(nn.Module):
    """A convolutional regressor for one number."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(1, 12, 9, stride=2, padding=4), nn.ReLU(), nn.Conv1d(12, 24, 9, stride=2, padding=4), nn.ReLU()
        )
        self.fc = nn.Sequential(nn.Flatten(), nn.Linear(24 * 20, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, x):
        return self.fc(self.body(x))


@fault(
    "outputs of shape (B, 1) against targets of shape (B,), which the squared error spreads to all pairs",
    rules=["output-loss-mismatch"], fails=True, steps=400,
)  # fmt: skip
def bis_heart_rate_broadcast(is_faulty):
    """The time between heart beats from a stretch of signal."""
    x, gap = data.beats()
    y = (gap - 22) / 6
    model = BeatNet()

    def loss(out, target):
        return ((out if is_faulty else out.squeeze(1)) - target).pow(2).mean()

    return Program(
        model, loss, data.loader(x[:700], y[:700]), torch.optim.Adam(model.parameters(), 2e-3),
        data.r2(x[700:], y[700:]),
    )  # fmt: skip


class GestureLSTM(nn.Module):
    """Reads gestures from the last state."""

    def __init__(self, batch_first):
        super().__init__()
        self.lstm = nn.LSTM(3, 24, batch_first=batch_first)
        self.head = nn.Linear(24, 4)

    def forward(self, x):
        out, _ = self.lstm(x)
        return self.head(out[:, -1])


@fault(
    "batch_first is missing, so that the LSTM runs over the examples of a batch",
    rules=["mixed-examples", "order-lost", "labels-unrelated"], layers=["lstm"], fails=True, steps=300,
)  # fmt: skip
def bis_lstm_over_batch(is_faulty):
    """Gestures from an accelerometer."""
    x, y = data.motions()
    model = GestureLSTM(not is_faulty)
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(x[:700], y[:700]), torch.optim.Adam(model.parameters(), 1e-2),
        data.accuracy(x[700:], y[700:]),
    )  # fmt: skip


@fault(
    "channels that are nearly copies of one another: the common brightness hides the differences that matter",
    rules=["ill-conditioned-input"], fails=True, steps=500,
)  # fmt: skip
def bis_copies_of_one_channel(is_faulty):
    """A chemical's concentration from eight neighbouring channels; repaired by whitening."""
    g = torch.Generator().manual_seed(31)
    n = 1200
    bright = torch.randn(n, 1, generator=g)
    fine = torch.randn(n, 8, generator=g)
    x = bright + 0.03 * fine
    y = torch.tanh(fine[:, :4].sum(1, keepdim=True) - fine[:, 4:].sum(1, keepdim=True))
    x = (x - x.mean(0)) / x.std(0)
    if not is_faulty:
        values, vectors = torch.linalg.eigh(x.T @ x / n)
        x = x @ vectors / values.sqrt()
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    return Program(
        model, nn.MSELoss(), data.loader(x[:1000], y[:1000]), torch.optim.SGD(model.parameters(), 0.1),
        data.r2(x[1000:], y[1000:]),
    )  # fmt: skip


@fault(
    "windows and their labels are shuffled, each with an order of its own",
    rules=["labels-unrelated"], fails=True, steps=250,
)  # fmt: skip
def bis_shuffled_apart(is_faulty):
    """Tones, shuffled before the split."""
    x, y = data.tones(noise=0.2)
    g = torch.Generator().manual_seed(4)
    order = torch.randperm(800, generator=g)
    again = torch.randperm(800, generator=g) if is_faulty else order
    model = nn.Sequential(
        nn.Conv1d(1, 16, 9, stride=2), nn.ReLU(), nn.Conv1d(16, 16, 5), nn.ReLU(), nn.AdaptiveAvgPool1d(1),
        nn.Flatten(), nn.Linear(16, 4),
    )  # fmt: skip

    def score(m):
        return m(x[800:]).softmax(1).gather(1, y[800:, None]).mean().item()

    return Program(
        model, nn.CrossEntropyLoss(), data.loader(x[:800][order], y[:800][again]),
        torch.optim.Adam(model.parameters(), 5e-3), score,
    )  # fmt: skip


class Forecaster(nn.Module):
    """Predicts the next sample at each place."""

    def __init__(self, causal):
        super().__init__()
        self.causal = causal
        self.one = nn.Conv1d(1, 16, 5)
        self.two = nn.Conv1d(16, 16, 5)
        self.out = nn.Conv1d(16, 1, 1)

    def forward(self, x):
        pad = (4, 0) if self.causal else (2, 2)
        x = F.relu(self.one(F.pad(x[:, None], pad)))
        x = F.relu(self.two(F.pad(x, pad)))
        return self.out(x)[:, 0]


@fault(
    "convolutions pad on both sides, so that the sample to predict is among their inputs",
    rules=["future-seen"], fails=False, steps=400,
)  # fmt: skip
def bis_forecast_same_padding(is_faulty):
    """Next sample of an oscillation; what counts is the sample after the end."""
    x = data.series(length=80)
    model = Forecaster(not is_faulty)

    def score(m):
        held = x[480:]
        error = torch.stack([m(held[:, :k])[:, -1] - held[:, k] for k in range(40, 79, 2)])
        return max(0.0, 1 - (error.pow(2).mean() / held.var()).item())

    return Program(
        model, nn.MSELoss(), data.loader(x[:480, :-1].clone(), x[:480, 1:].clone()),
        torch.optim.Adam(model.parameters(), 4e-3), score,
    )  # fmt: skip


class EventTransformer(nn.Module):
    """A transformer over events of a sensor, padded to the longest."""

    def __init__(self, inverted):
        super().__init__()
        self.inverted = inverted
        self.embed = nn.Linear(4, 24)
        self.position = nn.Parameter(0.1 * torch.randn(1, 16, 24))
        self.layer = nn.TransformerEncoderLayer(24, 4, 48, dropout=0.0, batch_first=True)
        self.head = nn.Linear(24, 1)

    def forward(self, x, length):
        real = torch.arange(16) < length[:, None]
        mask = real if self.inverted else ~real
        out = self.layer(self.embed(x) + self.position, src_key_padding_mask=mask)
        return self.head(out[:, 0])[:, 0]


@fault(
    "the padding mask holds True for what is real, and the transformer hides what is True",
    rules=["wrong-mask", "labels-unrelated"], fails=True, steps=400,
)  # fmt: skip
def bis_inverted_padding_mask(is_faulty):
    """Mean strength of the events; the padding is zeros."""
    g = torch.Generator().manual_seed(8)
    length = torch.randint(4, 14, (900,), generator=g)
    real = (torch.arange(16) < length[:, None]).float()
    level = torch.randn(900, 1, 1, generator=g)
    x = (level + torch.randn(900, 16, 4, generator=g)) * real[:, :, None]
    x[:, 0] = 0.0  # the first event opens the recording
    y = level[:, 0, 0]
    model = EventTransformer(is_faulty)
    batches = [({"x": x[i : i + 35], "length": length[i : i + 35]}, y[i : i + 35]) for i in range(0, 700, 35)]

    def score(m):
        error = m(x[700:], length[700:]) - y[700:]
        return max(0.0, 1 - (error.pow(2).mean() / y[700:].var()).item())

    return Program(model, nn.MSELoss(), batches, torch.optim.Adam(model.parameters(), 2e-3), score)


@fault(
    "weights in bfloat16 with Adam at a small rate: steps round to nothing",
    rules=["lost-updates", "rounding-error"], fails=False, steps=600,
)  # fmt: skip
def bis_bfloat16_weights(is_faulty):
    """Tones on a device that is said to like bfloat16."""
    x, y = data.tones(noise=0.2)
    kind = torch.bfloat16 if is_faulty else torch.float32
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4)).to(kind)
    x = x.to(kind)
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(x[:800], y[:800], batch=64),
        torch.optim.Adam(model.parameters(), 5e-5), data.accuracy(x[800:], y[800:]),
    )  # fmt: skip


class Quantised(nn.Module):
    """An autoencoder with a code book."""

    def __init__(self, straight):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(144, 48), nn.ReLU(), nn.Linear(48, 32))
        self.book = nn.Parameter(torch.randn(16, 4) * 0.3)
        self.decoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 144))
        self.straight = straight

    def forward(self, x):
        z = self.encoder(x).view(-1, 8, 4)
        code = self.book[torch.cdist(z, self.book[None].expand(len(z), -1, -1)).argmin(2)]
        passed = z + (code - z).detach() if self.straight else code
        return self.decoder(passed.flatten(1)), z, code


@fault(
    "codes are looked up without passing the gradient straight through, so that the encoder learns nothing",
    rules=["no-gradient"], layers=["encoder"], fails=False, steps=600,
)  # fmt: skip
def bis_codes_without_straight_through(is_faulty):
    """Discrete codes of textures."""
    x = data.textures(n=1200, seed=23)
    model = Quantised(not is_faulty)

    def loss(out, y):
        flat, z, code = out
        pull = F.mse_loss(code, z.detach())
        if not is_faulty:
            pull = pull + 0.25 * F.mse_loss(z, code.detach())
        return F.mse_loss(flat, y.flatten(1)) + pull

    return Program(
        model, loss, data.loader(x[:1000], x[:1000], batch=64), torch.optim.Adam(model.parameters(), 3e-3),
        data.r2(x[1000:], x[1000:].flatten(1), read=lambda out: out[0]),
    )  # fmt: skip


class TwoPlaces(nn.Module):
    """A fusion network with one normalisation for two streams."""

    def __init__(self, shared):
        super().__init__()
        self.sound = nn.Linear(64, 32)
        self.motion = nn.Linear(64, 32)
        self.norm_sound = nn.BatchNorm1d(32)
        self.norm_motion = self.norm_sound if shared else nn.BatchNorm1d(32)
        self.head = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x):
        a = F.relu(self.norm_sound(self.sound(x[:, 0])))
        b = F.relu(self.norm_motion(self.motion(x[:, 1])))
        return self.head(torch.cat([a, b], 1))


@fault(
    "one BatchNorm for two streams of quite different scales: its running statistics fit neither",
    rules=["shared-weight", "batchnorm-mode-gap"], layers=["norm_sound", "norm_motion"], fails=False, steps=300,
)  # fmt: skip
def bis_one_norm_two_streams(is_faulty):
    """Of two tones one is heard by a microphone, and of two more one is felt by a sensor with a stronger signal."""
    g = torch.Generator().manual_seed(3)
    heard, a = data.tones(noise=0.2, classes=2)
    felt, b = data.tones(noise=0.2, classes=2, seed=27)
    y = 2 * a + b
    x = torch.cat([0.3 * heard, 20 * felt + 6 + torch.randn(felt.shape, generator=g)], 1)
    model = TwoPlaces(is_faulty)
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(x[:800], y[:800], batch=64),
        torch.optim.Adam(model.parameters(), 3e-3), data.accuracy(x[800:], y[800:]),
    )  # fmt: skip


class PointNet(nn.Module):
    """Features of points, their maximum, and a head."""

    def __init__(self):
        super().__init__()
        self.points = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 48), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 4))

    def forward(self, x):
        return self.head(self.points(x).amax(1))


@fault(
    "L2 weight decay of 0.5, taken from a table for another kind of optimizer",
    rules=["weight-decay-dominates"], fails=True, steps=300,
)  # fmt: skip
def bis_heavy_decay(is_faulty):
    """Point clouds with a network that pools over points."""
    x, y = data.clouds()
    model = PointNet()
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(x[:700], y[:700]),
        torch.optim.Adam(model.parameters(), 2e-3, weight_decay=0.5 if is_faulty else 1e-5),
        data.accuracy(x[700:], y[700:]),
    )  # fmt: skip


@fault(
    "plain SGD at 1e-5, a rate that was copied from fine-tuning",
    rules=["learning-rate-too-low"], fails=True, steps=400,
)  # fmt: skip
def bis_finetune_rate_from_scratch(is_faulty):
    """Heart rate from scratch."""
    x, gap = data.beats()
    y = ((gap - 22) / 6)[:, None]
    model = BeatNet()
    return Program(
        model, nn.MSELoss(), data.loader(x[:700], y[:700]),
        torch.optim.SGD(model.parameters(), 1e-5 if is_faulty else 0.01, momentum=0.9), data.r2(x[700:], y[700:]),
    )  # fmt: skip


@fault(
    "the two betas of Adam are swapped",
    rules=["optimizer-setting"], fails=False, steps=300,
)  # fmt: skip
def bis_swapped_betas(is_faulty):
    """Denoises radar echoes."""
    g = torch.Generator().manual_seed(12)
    clean = data.series(n=800)
    noisy = clean + 0.7 * torch.randn(clean.shape, generator=g)
    model = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 40))
    betas = (0.999, 0.9) if is_faulty else (0.9, 0.999)
    return Program(
        model, nn.MSELoss(), data.loader(noisy[:640], clean[:640]),
        torch.optim.Adam(model.parameters(), 3e-3, betas=betas), data.r2(noisy[640:], clean[640:]),
    )  # fmt: skip
