"""Sound programs on sound and sensor signals."""

import torch
import torch.nn.functional as F
from ais_data import Dicts, accuracy, beats, chords, clips, loader, motion, r2, tones, waves
from program import Program, sound
from torch import nn


@sound("An ordinary convolutional network on tones", steps=400, least=0.9)
def ais_tones_cnn():
    x, y = tones(1200, 0)
    xt, yt = tones(300, 1)
    model = nn.Sequential(
        nn.Conv1d(1, 16, 9, padding=4), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 16, 7, 2, padding=3),
        nn.BatchNorm1d(16), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 4),
    )
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(xt, yt))


@sound("An ordinary network on heart beats, by SGD", steps=300, least=0.9)
def ais_beats_sgd():
    x, y = beats(1200, 0)
    xt, yt = beats(300, 1)
    model = nn.Sequential(
        nn.Conv1d(1, 8, 7, 2, 3), nn.ReLU(), nn.Conv1d(8, 12, 5, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(240, 4)
    )
    opt = torch.optim.SGD(model.parameters(), 0.03, momentum=0.9)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(xt, yt))


@sound("An ordinary recurrent network on motion, half trained", trained=150, steps=450, least=0.85)
def ais_motion_gru():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(6, 24, batch_first=True)
            self.fc = nn.Linear(24, 4)

        def forward(self, x):
            return self.fc(self.rnn(x)[1][0])

    x, y = motion(1200, 0)
    xt, yt = motion(300, 1)
    model = Net()
    opt = torch.optim.Adam(model.parameters(), 5e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(xt, yt))


@sound("An ordinary perceptron on motion, trained to the end", trained=400, steps=500, least=0.9)
def ais_motion_mlp_trained():
    x, y = motion(1200, 0)
    xt, yt = motion(300, 1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))
    opt = torch.optim.Adam(model.parameters(), 1e-3, weight_decay=1e-4)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(xt, yt))


@sound("A fifth of the labels is wrong, which the network learns to look past", steps=300, least=0.85)
def ais_beats_noisy_labels():
    x, y = beats(1200, 0)
    xt, yt = beats(300, 1)
    g = torch.Generator().manual_seed(8)
    wrong = torch.rand(len(y), generator=g) < 0.2
    y = torch.where(wrong, torch.randint(4, y.shape, generator=g), y)
    model = nn.Sequential(
        nn.Conv1d(1, 8, 7, 2, 3), nn.ReLU(), nn.Dropout(0.2), nn.Conv1d(8, 12, 5, 2, 2), nn.ReLU(), nn.Flatten(),
        nn.Linear(240, 4),
    )
    opt = torch.optim.Adam(model.parameters(), 2e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(xt, yt))


@sound("Several tags for each sound: independent sigmoids within the loss", steps=500, least=0.85)
def ais_tags():
    x, y = chords(1200, 0)
    xt, yt = chords(300, 1)
    model = nn.Sequential(
        nn.Conv1d(1, 16, 11, padding=5), nn.ReLU(), nn.Conv1d(16, 16, 7, 2, padding=3), nn.ReLU(),
        nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(16, 5),
    )
    opt = torch.optim.Adam(model.parameters(), 5e-3)

    def score(m):
        found = m(xt) > 0
        return (2 * (found & yt.bool()).sum() / (found.sum() + yt.sum())).item()

    return Program(model, nn.BCEWithLogitsLoss(), loader(x, y), opt, score)


@sound("A denoiser that may see the future: its GRU runs both ways", steps=500, least=0.7)
def ais_denoiser_both_ways():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(1, 16, batch_first=True, bidirectional=True)
            self.fc = nn.Linear(32, 1)

        def forward(self, x):
            return x + self.fc(self.rnn(x)[0])

    def data(n, seed):
        clean = waves(n, seed)[:, :, None]
        return clean + 0.6 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(seed + 9)), clean

    x, y = data(800, 0)
    xt, yt = data(300, 1)
    model = Net()
    opt = torch.optim.Adam(model.parameters(), 8e-3)
    return Program(model, nn.MSELoss(), loader(x, y), opt, r2(xt, yt))


@sound("A causal forecaster: its convolutions are padded on the left only", trained=250, steps=500, least=0.85)
def ais_causal_forecast():
    class Conv(nn.Module):
        def __init__(self, a, b, gap):
            super().__init__()
            self.pad = 2 * gap
            self.conv = nn.Conv1d(a, b, 3, dilation=gap)

        def forward(self, x):
            return self.conv(F.pad(x, (self.pad, 0)))

    series, seriest = waves(800, 0), waves(300, 1)
    model = nn.Sequential(
        Conv(1, 16, 1), nn.ReLU(), Conv(16, 16, 2), nn.ReLU(), Conv(16, 16, 4), nn.ReLU(), Conv(16, 1, 1)
    )
    opt = torch.optim.Adam(model.parameters(), 3e-3)

    def score(m):
        error = ((m(seriest[:, None, :-1])[:, 0, -1] - seriest[:, -1]) ** 2).mean()
        return max(0.0, 1 - (error / seriest[:, -1].var()).item())

    return Program(model, nn.HuberLoss(), loader(series[:, None, :-1], series[:, None, 1:]), opt, score)


@sound("A point cloud of a radar, whose points have no order, is summed up by a maximum", steps=400, least=0.85)
def ais_radar_points():
    class Cloud(nn.Module):
        def __init__(self):
            super().__init__()
            self.point = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 48), nn.ReLU())
            self.head = nn.Linear(48, 3)

        def forward(self, x):
            return self.head(self.point(x).amax(1))

    def data(n, seed):
        g = torch.Generator().manual_seed(seed)
        y = torch.randint(3, (n,), generator=g)
        spread = torch.tensor([[1.0, 0.3, 0.3], [0.3, 1.0, 0.3], [0.8, 0.8, 0.8]])[y][:, None]
        return spread * torch.randn(n, 24, 3, generator=g), y

    x, y = data(1200, 0)
    xt, yt = data(300, 1)
    model = Cloud()
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(xt, yt))


@sound("Attention over clips of unequal length, whose padding is hidden by the right mask", steps=400, least=0.9)
def ais_masked_clips():
    class Clip(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(8, 24)
            self.query = nn.Parameter(0.1 * torch.randn(24))
            self.head = nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 4))

        def forward(self, frames, real):
            x = torch.tanh(self.embed(frames))
            weight = (x @ self.query * 3).masked_fill(~real, -1e9).softmax(1)
            return self.head((weight[:, :, None] * x).sum(1))

    x, real, y = clips(1200, 0)
    xt, realt, yt = clips(300, 1)
    model = Clip()
    opt = torch.optim.Adam(model.parameters(), 5e-3)

    def score(m):
        return (m(frames=xt, real=realt).argmax(1) == yt).float().mean().item()

    return Program(model, nn.CrossEntropyLoss(), Dicts({"frames": x, "real": real}, y), opt, score)


@sound("The loss is a sum over the batch, and the rate is small enough for it", steps=300, least=0.9)
def ais_summed_small_rate():
    x, y = beats(1200, 0)
    xt, yt = beats(300, 1)
    model = nn.Sequential(
        nn.Conv1d(1, 8, 7, 2, 3), nn.ReLU(), nn.Conv1d(8, 12, 5, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(240, 4)
    )
    opt = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    return Program(model, nn.CrossEntropyLoss(reduction="sum"), loader(x, y), opt, accuracy(xt, yt))


@sound("One step of refinement is applied four times with the same weights, as intended", steps=500, least=0.75)
def ais_recurrent_refinement():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.step = nn.Sequential(
                nn.Conv1d(2, 16, 7, padding=3), nn.ReLU(), nn.Conv1d(16, 1, 7, padding=3)
            )

        def forward(self, x):
            estimate = torch.zeros_like(x)
            for _ in range(4):
                estimate = estimate + self.step(torch.cat([x, estimate], 1))
            return estimate

    def data(n, seed):
        clean = waves(n, seed)[:, None]
        return clean + 0.6 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(seed + 5)), clean

    x, y = data(800, 0)
    xt, yt = data(300, 1)
    model = Net()
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(model, nn.MSELoss(), loader(x, y), opt, r2(xt, yt))
