"""Sound programs that learn from sound and sensors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
import zis_data as d
from program import Program, sound
from torch import Tensor, nn


@sound("nothing: convolutions over a waveform", steps=300, least=0.9)
def zis_plain_pitch() -> Program:
    x, y = d.tones(1500, 151)
    model = nn.Sequential(nn.Conv1d(1, 16, 9), nn.ReLU(), nn.Conv1d(16, 24, 7, stride=2), nn.ReLU(),
                          nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(24, 5))
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y), torch.optim.Adam(model.parameters(), 5e-3),
                   d.accuracy(*d.tones(300, 152)))


@sound("nothing: a GRU over the six channels of a wrist", steps=350, least=0.9)
def zis_plain_gestures() -> Program:
    class Gru(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(6, 24, batch_first=True)
            self.fc = nn.Linear(24, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.gru(x)[1][-1])

    x, y = d.motions(1600, 153)
    model = Gru()
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y), torch.optim.Adam(model.parameters(), 5e-3),
                   d.accuracy(*d.motions(300, 154)))


@sound("nothing: tags of spectrograms, a logit each", steps=300, least=0.85)
def zis_plain_tags() -> Program:
    x, y = d.tagged(1200, 155)
    tx, ty = d.tagged(300, 156)
    model = nn.Sequential(nn.Conv1d(24, 24, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(),
                          nn.Linear(24, 6))

    def score(net: nn.Module) -> float:
        found = (net(tx) > 0).float()
        return (2 * (found * ty).sum() / (found.sum() + ty.sum()).clamp(min=1)).item()

    return Program(model, nn.BCEWithLogitsLoss(), d.loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), score)


@sound("nothing: heart beats, a residual network in one dimension", steps=250, least=0.9)
def zis_plain_heart_beats() -> Program:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Conv1d(12, 12, 7, padding=3), nn.BatchNorm1d(12), nn.ReLU(),
                                     nn.Conv1d(12, 12, 7, padding=3), nn.BatchNorm1d(12))

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(x + self.net(x))

    x, y, _ = d.beats(1200, 157)
    tx, ty, _ = d.beats(300, 158)
    model = nn.Sequential(nn.Conv1d(1, 12, 7, stride=2, padding=3), Block(), Block(), nn.AdaptiveAvgPool1d(1),
                          nn.Flatten(), nn.Linear(12, 3))
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y), torch.optim.AdamW(model.parameters(), 3e-3),
                   d.accuracy(tx, ty))


class TimeFirst(nn.Module):
    """An LSTM that takes (time, batch, channel), as it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 24)
        self.fc = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.fc(self.lstm(x)[0][-1])


class TimeFirstBatches:
    """Batches of (time, batch, channel)."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x) // 32

    def __iter__(self):
        for index in torch.randperm(len(self.x)).split(32):
            yield self.x[index].transpose(0, 1).contiguous(), self.y[index]


@sound("the first dimension of inputs is time, and the LSTM knows", steps=350, least=0.9)
def zis_time_comes_first() -> Program:
    x, y = d.motions(1600, 159)
    tx, ty = d.motions(300, 160)
    model = TimeFirst()
    return Program(model, nn.CrossEntropyLoss(), TimeFirstBatches(x, y), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda net: (net(tx.transpose(0, 1)).argmax(1) == ty).float().mean().item())


@sound("nine of ten frames are padding, which the loss ignores", steps=250, least=0.75)
def zis_mostly_padding_ignored() -> Program:
    def frames(n: int, seed: int) -> tuple[Tensor, Tensor]:
        g = d.generator(seed)
        y = torch.randint(0, 3, (n, 60), generator=g)
        x = torch.randn(3, 8, generator=d.generator(998))[y] + 0.8 * torch.randn(n, 60, 8, generator=g)
        real = torch.arange(60)[None] < torch.randint(4, 10, (n, 1), generator=g)
        return x * real[..., None], torch.where(real, y, -100)

    x, y = frames(800, 161)
    tx, ty = frames(200, 162)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 3))
    return Program(model, lambda out, target: F.cross_entropy(out.transpose(1, 2), target), d.loader(x, y, 16),
                   torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
                   lambda net: (net(tx).argmax(-1)[ty >= 0] == ty[ty >= 0]).float().mean().item())


class Causal(nn.Module):
    """The forecast is the last sample, and a change to it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(1, 16, 7), nn.Conv1d(16, 16, 7, dilation=2)
        self.out = nn.Conv1d(16, 1, 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Forecasts of the next samples."""
        h = F.relu(self.first(F.pad(x, (6, 0))))
        h = F.relu(self.second(F.pad(h, (12, 0))))
        return x + self.out(h)


@sound("a forecaster that adds a change, at first 0, to what it sees: inputs and targets are nearly the same",
       steps=300, least=0.85)
def zis_change_of_the_last_sample() -> Program:
    def waves(n: int, seed: int) -> Tensor:
        g = d.generator(seed)
        t = torch.arange(48).float()
        pitch, phase = 0.3 + 0.9 * torch.rand(n, 1, generator=g), 6.28 * torch.rand(n, 1, generator=g)
        return (torch.sin(pitch * t + phase) + 0.05 * torch.randn(n, 48, generator=g))[:, None]

    x, held = waves(1000, 163), waves(200, 164)
    model = Causal()
    return Program(model, nn.HuberLoss(), d.loader(x[:, :, :-1], x[:, :, 1:]),
                   torch.optim.Adam(model.parameters(), 3e-3), d.explained(held[:, :, :-1], held[:, :, 1:]))


@sound("a negative loss: the likelihood of a Gaussian whose width is learned", steps=400, least=0.8)
def zis_gaussian_likelihood() -> Program:
    class Gaussian(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 2))

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    x, _, rate = d.beats(1600, 165)
    tx, _, trate = d.beats(300, 166)
    power, tpower = (torch.fft.rfft(z[:, 0]).abs()[:, :24] / 10 for z in (x, tx))
    y, ty = (rate[:, None] - 3.5) / 4, (trate[:, None] - 3.5) / 4
    model = Gaussian()
    return Program(model, lambda out, target: F.gaussian_nll_loss(out[:, :1], target, F.softplus(out[:, 1:]) + 1e-4),
                   d.loader(power, y), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda net: max(0.0, 1 - ((net(tpower)[:, :1] - ty) ** 2).mean().item() / ty.var().item()))


@sound("a cosine as the loss: it is negative, and of the outputs only the direction counts", steps=300, least=0.8)
def zis_direction_of_arrival() -> Program:
    def data(n: int, seed: int) -> tuple[Tensor, Tensor]:
        g = d.generator(seed)
        angle = 6.2832 * torch.rand(n, generator=g)
        microphones = torch.arange(4) * 1.5708
        delay = 1.2 * torch.cos(angle[:, None] - microphones)
        t = torch.arange(24).float()
        wave = torch.sin(0.7 * (t[None, None] - delay[..., None]))
        return wave + 0.2 * torch.randn(n, 4, 24, generator=g), torch.stack([angle.cos(), angle.sin()], 1)

    x, y = data(1500, 167)
    tx, ty = data(300, 168)
    model = nn.Sequential(nn.Flatten(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 2))
    return Program(model, lambda out, target: -F.cosine_similarity(out, target).mean(), d.loader(x, y),
                   torch.optim.Adam(model.parameters(), 2e-3),
                   lambda net: F.cosine_similarity(net(tx), ty).mean().item())


@sound("a summed loss, with a rate that is as much smaller", steps=300, least=0.85)
def zis_sum_with_a_small_rate() -> Program:
    x, y = d.motions(1600, 169)
    model = nn.Sequential(nn.Flatten(), nn.Linear(180, 64), nn.ReLU(), nn.Linear(64, 4))
    return Program(model, nn.CrossEntropyLoss(reduction="sum"), d.loader(x, y),
                   torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9), d.accuracy(*d.motions(300, 170)))


class Unrolled(nn.Module):
    """One convolution used five times, as an unrolled iteration for deblurring."""

    def __init__(self) -> None:
        super().__init__()
        self.given = nn.Conv1d(1, 12, 7, padding=3)
        self.again = nn.Conv1d(12, 12, 5, padding=2)
        self.out = nn.Conv1d(12, 1, 5, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        """The signal before it was blurred."""
        start = self.given(x)
        h = torch.zeros_like(start)
        for _ in range(5):
            h = F.relu(start + 0.5 * self.again(h))
        return self.out(h)


@sound("one layer is used five times, since the network unrolls an iteration", steps=300, least=0.8)
def zis_unrolled_iteration() -> Program:
    def data(n: int, seed: int) -> tuple[Tensor, Tensor]:
        clean, _, _ = d.beats(n, seed, 64)
        blurred = F.conv1d(clean, torch.full((1, 1, 5), 0.2), padding=2)
        return blurred + 0.02 * torch.randn(blurred.shape, generator=d.generator(seed + 9)), clean

    model = Unrolled()
    return Program(model, nn.MSELoss(), d.loader(*data(1000, 171)), torch.optim.Adam(model.parameters(), 2e-3),
                   d.explained(*data(200, 172)))


@sound("products in bfloat16, weights in single precision, a warm-up whose first rate is nearly 0",
       steps=400, least=0.9)
def zis_bfloat16_with_warmup() -> Program:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(180, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 4))

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.net(x.flatten(1)).float()

    x, y = d.motions(1600, 173)
    model = Half()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, (i + 1) / 60))
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y), optimizer, d.accuracy(*d.motions(300, 174)),
                   scheduler=schedule)


@sound("examined half-way: a transformer over pieces of a record, still learning", trained=150, steps=500, least=0.85)
def zis_half_trained_transformer() -> Program:
    class Pieces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(8, 32)
            self.places = nn.Parameter(0.02 * torch.randn(12, 32))
            self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True, norm_first=True)
            self.head = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 3))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.layer(self.embed(x.view(-1, 12, 8)) + self.places).mean(1))

    x, y, _ = d.beats(1600, 175)
    tx, ty, _ = d.beats(300, 176)
    model = Pieces()
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y), torch.optim.AdamW(model.parameters(), 2e-3),
                   d.accuracy(tx, ty))


@sound("a rate of 1, as Adadelta takes it", steps=400, least=0.85)
def zis_adadelta_rate_of_1() -> Program:
    x, y, _ = d.beats(1200, 177)
    tx, ty, _ = d.beats(300, 178)
    model = nn.Sequential(nn.Conv1d(1, 16, 9, stride=2), nn.ReLU(), nn.Conv1d(16, 16, 5), nn.ReLU(),
                          nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(16, 3))
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y), torch.optim.Adadelta(model.parameters(), lr=1.0),
                   d.accuracy(tx, ty))
