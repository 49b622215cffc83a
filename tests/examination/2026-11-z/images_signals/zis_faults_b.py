"""Mistakes in programs that learn from sound and sensors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
import zis_data as d
from program import Program, fault
from torch import Tensor, nn


def f1(x: Tensor, y: Tensor, threshold: float = 0.5):
    """How well tags are found, for networks that return probabilities."""

    def score(model: nn.Module) -> float:
        found = (model(x) > threshold).float()
        return (2 * (found * y).sum() / (found.sum() + y.sum()).clamp(min=1)).item()

    return score


@fault(
    "any number of tags may be true, and the network shares one probability among them with a softmax",
    rules=["output-loss-mismatch"], fails=False, steps=300,
)
def zis_tags_through_softmax(is_faulty: bool) -> Program:
    x, y = d.tagged(1200, 51)
    model = nn.Sequential(nn.Conv1d(24, 24, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(),
                          nn.Linear(24, 6), nn.Softmax(dim=1) if is_faulty else nn.Sigmoid())
    return Program(model, nn.BCELoss(), d.loader(x, y), torch.optim.Adam(model.parameters(), 3e-3),
                   f1(*d.tagged(300, 52)))


class Gestures(nn.Module):
    """An LSTM over the samples of a wrist."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 24, batch_first=batch_first)
        self.fc = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        out, _ = self.lstm(x)
        return self.fc(out[:, -1])


@fault(
    "the LSTM gets (batch, time, channel) and takes the first dimension as time",
    rules=["mixed-examples"], layers=["lstm"], fails=True, steps=350,
)
def zis_lstm_over_the_batch(is_faulty: bool) -> Program:
    x, y = d.motions(1600, 53)
    model = Gestures(batch_first=not is_faulty)
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y), torch.optim.Adam(model.parameters(), 5e-3),
                   d.accuracy(*d.motions(300, 54)))


class EcgTransformer(nn.Module):
    """Attention over pieces of eight samples; records differ in length."""

    def __init__(self, is_inverted: bool) -> None:
        super().__init__()
        self.piece = nn.Linear(8, 24)
        self.places = nn.Parameter(0.1 * torch.randn(12, 24))
        self.first = nn.Parameter(0.1 * torch.randn(1, 1, 24))
        self.attend = nn.MultiheadAttention(24, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 3))
        self.local = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 24))
        self.is_inverted = is_inverted

    def forward(self, signal: Tensor, length: Tensor) -> Tensor:
        """Logits."""
        pieces = self.piece(signal.unflatten(1, (12, 8))) + self.places
        pieces = pieces + self.local(pieces)
        is_real = torch.arange(12)[None] < length[:, None]
        mask = is_real if self.is_inverted else ~is_real
        out, _ = self.attend(self.first.expand(len(signal), 1, 24), pieces, pieces, key_padding_mask=mask)
        return self.mlp(out[:, 0])


def records(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Heart beats cut to some length, padded with zeros."""
    x, y, _ = d.beats(n, seed)
    length = torch.randint(5, 11, (n,), generator=d.generator(seed + 500))
    return x[:, 0] * (torch.arange(96)[None] < 8 * length[:, None]), length, y


class Collate:
    """Batches of dicts."""

    def __init__(self, x: Tensor, length: Tensor, y: Tensor, batch: int) -> None:
        self.x, self.length, self.y, self.batch = x, length, y, batch

    def __len__(self) -> int:
        return len(self.x) // self.batch

    def __iter__(self):
        for index in torch.randperm(len(self.x)).split(self.batch):
            yield {"signal": self.x[index], "length": self.length[index]}, self.y[index]


@fault(
    "the padding mask is True where the record is real, while attention ignores what is True",
    rules=["wrong-mask"], layers=["attend"], fails=True, steps=500,
)
def zis_ecg_mask_inverted(is_faulty: bool) -> Program:
    x, length, y = records(1600, 55)
    tx, tlength, ty = records(300, 56)
    model = EcgTransformer(is_faulty)
    return Program(model, nn.CrossEntropyLoss(), Collate(x, length, y, 32),
                   torch.optim.Adam(model.parameters(), 3e-3),
                   lambda net: (net(tx, tlength).argmax(1) == ty).float().mean().item())


def speech(n: int, seed: int, longest: int = 150) -> tuple[Tensor, Tensor, Tensor]:
    """Frames with one of three sounds each, padded with zeros to the longest record: frames, sounds, real or not."""
    g = d.generator(seed)
    sound = torch.randint(0, 3, (n, longest // 3), generator=g).repeat_interleave(3, 1)
    centres = torch.randn(3, 8, generator=d.generator(999))
    x = 0.7 * centres[sound] + torch.randn(n, longest, 8, generator=g)
    length = torch.randint(4, 10, (n,), generator=g)
    length[0] = longest
    real = torch.arange(longest)[None] < length[:, None]
    return x * real[..., None], sound * real, real


@fault(
    "nineteen of twenty frames are padding that is labelled 0, and the loss counts them as sound 0",
    rules=["padding-in-loss"], fails=False, steps=80,
)
def zis_padded_frames_counted(is_faulty: bool) -> Program:
    x, y, real = speech(800, 57)
    tx, ty, treal = speech(200, 58)
    y = y if is_faulty else torch.where(real, y, -100)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 3))

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())

    def score(net: nn.Module) -> float:
        found = net(tx).argmax(-1)[treal]
        return sum((found[ty[treal] == k] == k).float().mean().item() for k in range(3)) / 3

    return Program(model, loss, d.loader(x, y, 16), torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), score)


def waves(n: int, seed: int, length: int = 48) -> Tensor:
    """Two sines of random pitch and phase, with noise."""
    g = d.generator(seed)
    t = torch.arange(length).float()
    out = torch.zeros(n, length)
    for _ in range(2):
        pitch, phase = 0.3 + 0.9 * torch.rand(n, 1, generator=g), 6.28 * torch.rand(n, 1, generator=g)
        out = out + torch.sin(pitch * t + phase)
    return (out + 0.05 * torch.randn(n, length, generator=g))[:, None]


class Forecaster(nn.Module):
    """Each output is the forecast of the sample after it."""

    def __init__(self, is_centred: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(1, 16, 7), nn.Conv1d(16, 16, 7)
        self.out = nn.Conv1d(16, 1, 1)
        self.pad = (3, 3) if is_centred else (6, 0)

    def forward(self, x: Tensor) -> Tensor:
        """Forecasts."""
        for conv in (self.first, self.second):
            x = F.relu(conv(F.pad(x, self.pad)))
        return self.out(x)


@fault(
    "a forecaster of the next sample has convolutions padded on both sides, and sees the sample it is asked for",
    rules=["future-seen"], fails=False, steps=300,
)
def zis_forecaster_padded_both_sides(is_faulty: bool) -> Program:
    x, held = waves(1000, 59), waves(200, 60)
    model = Forecaster(is_faulty)

    def score(net: nn.Module) -> float:
        error = (net(held[:, :, :40])[:, 0, -1] - held[:, 0, 40]).pow(2).mean()
        return max(0.0, 1 - (error / held[:, 0, 40].var()).item())

    return Program(model, nn.MSELoss(), d.loader(x[:, :, :-1], x[:, :, 1:]),
                   torch.optim.Adam(model.parameters(), 3e-3), score)


def clips(n: int, seed: int, floor: float) -> tuple[Tensor, Tensor]:
    """Logarithmic spectrograms of tones that begin after a silence of zeros."""
    wave, label = d.tones(n, seed, 128)
    silent = 16 * torch.randint(0, 4, (n,), generator=d.generator(seed + 500))
    wave = wave[:, 0] * (torch.arange(128)[None] >= silent[:, None])
    power = torch.fft.rfft(wave.unflatten(1, (8, 16))).abs() ** 2
    return torch.log(power + floor), label


@fault(
    "the logarithm of a spectrogram is taken without a floor, and digital silence is minus infinity",
    rules=["non-finite"], fails=True, steps=300,
)
def zis_logarithm_of_silence(is_faulty: bool) -> Program:
    floor = 0.0 if is_faulty else 1e-3
    x, y = clips(1200, 61, floor)
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 48), nn.ReLU(), nn.Linear(48, 5))
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y), torch.optim.Adam(model.parameters(), 2e-3),
                   d.accuracy(*clips(300, 62, 1e-3)))


class Channels(nn.Module):
    """A recurrent network over one channel."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.conv = nn.Sequential(nn.Conv1d(1, 16, 9, padding=4), nn.ReLU(), nn.MaxPool1d(2),
                                  nn.Conv1d(16, 16, 5), nn.ReLU())
        self.fc = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits for (batch, time)."""
        h = self.norm(x[..., None]).transpose(1, 2)
        return self.fc(self.conv(h).amax(2))


class OverTime(nn.Module):
    """Normalizes each record over time."""

    def forward(self, x: Tensor) -> Tensor:
        """Mean 0 and variance 1 along time."""
        return (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5)


@fault(
    "LayerNorm over the one channel of a signal makes every sample the same number",
    rules=["rank-collapse", "constant-feature", "loss-not-decreasing", "no-gradient"], layers=["norm"],
    fails=True, steps=300,
)
def zis_layernorm_of_one_channel(is_faulty: bool) -> Program:
    x, y, _ = d.beats(1200, 63)
    tx, ty, _ = d.beats(300, 64)
    model = Channels(nn.LayerNorm(1) if is_faulty else OverTime())
    return Program(model, nn.CrossEntropyLoss(), d.loader(x[:, 0], y), torch.optim.Adam(model.parameters(), 3e-3),
                   d.accuracy(tx[:, 0], ty))


@fault(
    "the activations between the convolutions of a pitch classifier were forgotten",
    rules=["no-nonlinearity"], fails=True, steps=300,
)
def zis_convolutions_without_activations(is_faulty: bool) -> Program:
    x, y = d.tones(1500, 65)
    gap = nn.Identity if is_faulty else nn.ReLU
    model = nn.Sequential(nn.Conv1d(1, 16, 9), gap(), nn.Conv1d(16, 24, 7, stride=2), gap(), nn.AdaptiveAvgPool1d(1),
                          nn.Flatten(), nn.Linear(24, 5))
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y), torch.optim.Adam(model.parameters(), 5e-3),
                   d.accuracy(*d.tones(300, 66)))


@fault(
    "a schedule that divides the rate by ten after 10 epochs is stepped after each batch",
    rules=["learning-rate-too-low"], fails=False, steps=400,
)
def zis_epoch_schedule_per_batch(is_faulty: bool) -> Program:
    x, y = d.tones(1500, 67)
    model = nn.Sequential(nn.Conv1d(1, 16, 9), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 24, 7, stride=2),
                          nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(24, 5))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    batches = d.loader(x, y)
    every = 10 if is_faulty else 10 * len(batches)
    return Program(model, nn.CrossEntropyLoss(), batches, optimizer, d.accuracy(*d.tones(300, 68)),
                   scheduler=torch.optim.lr_scheduler.StepLR(optimizer, every, 0.1))


@fault(
    "dropout of 0.95 stands where the share to keep was meant",
    rules=["dropout-too-strong"], fails=True, steps=250,
)
def zis_dropout_as_keep_share(is_faulty: bool) -> Program:
    x, y = d.tagged(1200, 69)
    p = 0.95 if is_faulty else 0.05
    model = nn.Sequential(nn.Flatten(), nn.Linear(384, 48), nn.ReLU(), nn.Dropout(p), nn.Linear(48, 48), nn.ReLU(),
                          nn.Dropout(p), nn.Linear(48, 6))
    return Program(model, nn.BCEWithLogitsLoss(), d.loader(x, y), torch.optim.Adam(model.parameters(), 2e-3),
                   f1(*d.tagged(300, 70), threshold=0.0))


class Sensors(nn.Module):
    """A classifier of gestures with dropout as a function."""

    def __init__(self, is_always: bool) -> None:
        super().__init__()
        self.conv = nn.Conv1d(6, 24, 9, padding=4)
        self.hidden = nn.Linear(24 * 15, 16)
        self.out = nn.Linear(16, 4)
        self.is_always = is_always

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        is_on = True if self.is_always else self.training
        h = F.max_pool1d(F.relu(self.conv(x.transpose(1, 2))), 2).flatten(1)
        h = F.relu(self.hidden(F.dropout(h, 0.7, training=is_on)))
        return self.out(F.dropout(h, 0.7, training=is_on))


@fault(
    "dropout as a function without the training flag stays on when the network is used",
    rules=["dropout-in-eval"], fails=False, steps=300,
)
def zis_functional_dropout_always_on(is_faulty: bool) -> Program:
    x, y = d.motions(1600, 71)
    model = Sensors(is_faulty)
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y), torch.optim.Adam(model.parameters(), 3e-3),
                   d.accuracy(*d.motions(300, 72)))


class Mixed(nn.Module):
    """A classifier of frames whose products are made in half precision."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Logits in single precision."""
        with torch.autocast("cpu", dtype=self.dtype):
            return self.net(x).float()


@fault(
    "an auxiliary loss of weight 0.0001, averaged over all frames, has gradients that float16 without a scaler loses",
    rules=["gradient-underflow"], fails=True, steps=250,
)
def zis_float16_without_scaler(is_faulty: bool) -> Program:
    def frames(n: int, seed: int) -> tuple[Tensor, Tensor]:
        g = d.generator(seed)
        sound = torch.randint(0, 3, (n, 60), generator=g)
        return torch.randn(3, 8, generator=d.generator(999))[sound] + torch.randn(n, 60, 8, generator=g), sound

    x, y = frames(1000, 73)
    tx, ty = frames(100, 74)
    model = Mixed(torch.float16 if is_faulty else torch.bfloat16)

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        return 1e-4 * F.cross_entropy(logits.flatten(0, 1), target.flatten())

    return Program(model, loss, d.loader(x, y, 64), torch.optim.Adam(model.parameters(), 3e-3),
                   d.accuracy(tx.flatten(0, 1), ty.flatten()))


class Bands(nn.Module):
    """Classifies spectra in the type it was cast to."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 10))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.net(x.flatten(1).to(self.net[0].weight.dtype)).float()


@fault(
    "the weights themselves are bfloat16, and steps of a fine rate are rounded away",
    rules=["lost-updates", "rounding-error"], fails=True, steps=600,
)
def zis_bfloat16_weights(is_faulty: bool) -> Program:
    x, y, tx, ty = d.digits()
    model = Bands()
    if is_faulty:
        model = model.to(torch.bfloat16)
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y), torch.optim.Adam(model.parameters(), 3e-5),
                   d.accuracy(tx, ty))


@fault(
    "outputs of shape (batch, 1) against targets of shape (batch): the loss compares all with all",
    rules=["output-loss-mismatch"], fails=True, steps=400,
)
def zis_heart_rate_broadcast(is_faulty: bool) -> Program:
    x, _, rate = d.beats(1600, 75)
    tx, _, trate = d.beats(300, 76)
    y, ty = (rate - 3.5) * 1.2, (trate - 3.5) * 1.2
    power, tpower = (torch.fft.rfft(z[:, 0]).abs()[:, :24] / 10 for z in (x, tx))
    model = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    y = y if is_faulty else y[:, None]
    return Program(model, lambda out, target: ((out - target) ** 2).mean(), d.loader(power, y),
                   torch.optim.Adam(model.parameters(), 3e-3), d.explained(tpower, ty))


@fault(
    "the record comes in counts of a converter around 2048, and goes into the network as it is",
    rules=["unscaled-input", "ill-conditioned-input"], fails=True, steps=300,
)
def zis_ecg_in_converter_counts(is_faulty: bool) -> Program:
    def data(n: int, seed: int) -> tuple[Tensor, Tensor]:
        x, y, _ = d.beats(n, seed)
        counts = 2048 + (200 * x).round()
        return (counts if is_faulty else (counts - 2048) / 200), y

    model = nn.Sequential(nn.Conv1d(1, 16, 9, stride=2), nn.ReLU(), nn.Conv1d(16, 16, 5), nn.ReLU(),
                          nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(16, 3))
    return Program(model, nn.CrossEntropyLoss(), d.loader(*data(1200, 77)),
                   torch.optim.SGD(model.parameters(), 0.03, momentum=0.9), d.accuracy(*data(300, 78)))


@fault(
    "the rate is scaled with the batch the wrong way round: 0.1 x 256 / 16 instead of 0.1 x 16 / 256",
    rules=["learning-rate-too-high", "diverging", "non-finite"], fails=True, steps=400,
)
def zis_rate_scaled_upside_down(is_faulty: bool) -> Program:
    size = 16
    rate = 0.1 * 256 / size if is_faulty else 0.1 * size / 256
    x, y = d.motions(1600, 79)
    model = nn.Sequential(nn.Flatten(), nn.Linear(180, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y, size),
                   torch.optim.SGD(model.parameters(), rate, momentum=0.9), d.accuracy(*d.motions(300, 80)))


@fault(
    "SGD's momentum is 0.999, taken over from a moving average of weights: each step is a sum of hundreds",
    rules=["optimizer-setting", "learning-rate-too-high", "diverging"], fails=True, steps=300,
)
def zis_momentum_of_an_average(is_faulty: bool) -> Program:
    x, y = d.tones(1500, 81)
    model = nn.Sequential(nn.Conv1d(1, 16, 9), nn.ReLU(), nn.Conv1d(16, 24, 7, stride=2), nn.ReLU(),
                          nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(24, 5))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.999 if is_faulty else 0.9)
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y), optimizer, d.accuracy(*d.tones(300, 82)))


class Energies(nn.Module):
    """Energies of frames of 16-bit audio, then a small network."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, wave: Tensor) -> Tensor:
        """Logits."""
        frames = wave.to(self.dtype).unflatten(1, (12, 8))
        level = torch.log((frames * frames).mean(2) + 1)
        return self.net((level - level.mean(1, keepdim=True)).float())


def loudness(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noise of a loudness that rises, falls or stays, as 16-bit numbers."""
    g = d.generator(seed)
    label = torch.randint(0, 3, (n,), generator=g)
    slope = torch.tensor([-1.0, 0.0, 1.0])[label][:, None] * torch.linspace(-1, 1, 96)
    wave = (slope * 1.2 + 0.3 * torch.randn(n, 1, generator=g)).exp() * torch.randn(n, 96, generator=g)
    return (wave * 1000).round().clamp(-32768, 32767), label


@fault(
    "samples of 16 bits are squared in half precision, and their energies are infinite",
    rules=["half-overflow", "non-finite"], fails=True, steps=300,
)
def zis_energy_in_half_precision(is_faulty: bool) -> Program:
    model = Energies(torch.float16 if is_faulty else torch.float32)
    return Program(model, nn.CrossEntropyLoss(), d.loader(*loudness(1200, 83)),
                   torch.optim.Adam(model.parameters(), 5e-3), d.accuracy(*loudness(300, 84)))


@fault(
    "files are sorted by name, so that 10 comes before 2, and their labels by number",
    rules=["labels-unrelated"], fails=True, steps=300,
)
def zis_files_sorted_as_text(is_faulty: bool) -> Program:
    x, y = d.motions(1500, 85)
    names = [f"{i}.wav" for i in range(len(x))]
    if is_faulty:
        names.sort()
    x = torch.stack([x[int(name.split(".")[0])] for name in names])
    model = nn.Sequential(nn.Flatten(), nn.Linear(180, 48), nn.ReLU(), nn.Linear(48, 4))
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y), torch.optim.Adam(model.parameters(), 2e-3),
                   d.accuracy(*d.motions(300, 86)))


class Tagger(nn.Module):
    """A head on features that are said to be fine-tuned with it."""

    def __init__(self, is_cut: bool) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(180, 24), nn.Tanh(), nn.Linear(24, 8), nn.Tanh())
        self.head = nn.Linear(8, 4)
        self.is_cut = is_cut

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        features = self.backbone(x)
        if self.is_cut:
            features = torch.from_numpy(features.detach().numpy())
        return self.head(features)


@fault(
    "features pass through numpy on their way to the head, and the network before it never learns",
    rules=["no-gradient"], layers=["backbone"], fails=True, steps=400,
)
def zis_features_through_numpy(is_faulty: bool) -> Program:
    x, y = d.motions(1600, 87)
    model = Tagger(is_faulty)
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y), torch.optim.Adam(model.parameters(), 4e-3),
                   d.accuracy(*d.motions(300, 88)))


class Echo(nn.Module):
    """A plain recurrent network over a gesture, with recurrent weights drawn by hand."""

    def __init__(self, is_normal: bool) -> None:
        super().__init__()
        self.rnn = nn.RNN(6, 32, batch_first=True, nonlinearity="tanh")
        (nn.init.normal_ if is_normal else nn.init.orthogonal_)(self.rnn.weight_hh_l0)
        self.fc = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.fc(self.rnn(x)[0][:, -1])


@fault(
    "recurrent weights are drawn with a deviation of 1, so that states are chaotic and tanhs flat",
    rules=["bad-initialisation", "exploding-gradient", "saturated-activation"], layers=["rnn"],
    fails=True, steps=500,
)
def zis_recurrent_weights_of_1(is_faulty: bool) -> Program:
    x, y = d.motions(1600, 89)
    model = Echo(is_faulty)
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y), torch.optim.Adam(model.parameters(), 3e-3),
                   d.accuracy(*d.motions(300, 90)))
