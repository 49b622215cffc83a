"""Faults in programs on signals and volumes."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from program import Program, fault
from wis_data import wis_accuracy, wis_beats, wis_fit, wis_loader, wis_tones


def wis_temporal(width=16, out=4, act=nn.ReLU):
    return nn.Sequential(nn.Conv1d(1, width, 9, padding=4), act(), nn.Conv1d(width, width, 5, stride=2, padding=2),
                         act(), nn.Conv1d(width, width, 5, stride=2, padding=2), act(), nn.AdaptiveAvgPool1d(1),
                         nn.Flatten(), nn.Linear(width, out))


@fault("EEG is given in volts (1e-5) as the file has it", rules=("unscaled-input",), fails=True, steps=300)
def wis_eeg_in_volts(is_faulty):
    def draw(n, scale):
        x, y = wis_tones(n, 64, 3)
        gains = torch.tensor([1.0, -0.7, 0.4])[:, None]
        return (x * gains + 0.4 * torch.randn(n, 3, 64)) * scale, y

    scale = 2e-5 if is_faulty else 1.0

    class EEG(nn.Module):
        def __init__(self):
            super().__init__()
            self.spatial = nn.Conv1d(3, 6, 1)
            self.temporal = nn.Conv1d(6, 16, 15, padding=7)
            self.fc = nn.Linear(16 * 8, 3)

        def forward(self, x):
            x = F.elu(self.temporal(self.spatial(x)))
            return self.fc(F.avg_pool1d(x * x, 8).flatten(1))

    model = EEG()
    return Program(model, nn.CrossEntropyLoss(), wis_loader(*draw(512, scale)),
                   torch.optim.Adam(model.parameters(), 2e-3), wis_accuracy(*draw(256, scale)))


@fault("dilated convolutions of a wave model are padded on both sides, so it sees the sample it must predict",
       rules=("future-seen",), fails=False, steps=300)
def wis_wave_model(is_faulty):
    class Causal(nn.Module):
        def __init__(self, a, b, dilation):
            super().__init__()
            self.conv = nn.Conv1d(a, b, 3, dilation=dilation)
            self.reach = 2 * dilation

        def forward(self, x):
            sides = (self.reach // 2, self.reach // 2) if is_faulty else (self.reach, 0)
            return self.conv(F.pad(x, sides))

    class Wave(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = Causal(1, 16, 1)
            self.gates = nn.ModuleList(Causal(16, 32, d) for d in (2, 4))
            self.last = nn.Conv1d(16, 1, 1)

        def forward(self, x):
            x = torch.tanh(self.first(x))
            for gate in self.gates:
                a, b = gate(x).chunk(2, 1)
                x = x + torch.tanh(a) * torch.sigmoid(b)
            return self.last(x)

    def draw(n):
        t = torch.arange(49)
        f = 0.08 + 0.12 * torch.rand(n, 1)
        x = torch.sin(2 * math.pi * (f * t + torch.rand(n, 1))) + 0.02 * torch.randn(n, 49)
        return x[:, None]

    x, held = draw(512), draw(256)

    def score(model):
        found = [model(held[..., :end])[:, 0, -1] for end in (24, 32, 40)]
        return wis_fit(torch.stack(found, 1), held[:, 0, [24, 32, 40]])

    model = Wave()
    return Program(model, nn.MSELoss(), wis_loader(x[..., :-1], x[..., 1:]),
                   torch.optim.Adam(model.parameters(), 3e-3), score)


class wis_Clips(Dataset):
    def __init__(self, n):
        x, self.y = wis_tones(n, 96, 4, 0.3)
        self.length = torch.randint(5, 10, (n,)) * 8
        self.x = x[:, 0] * (torch.arange(96) < self.length[:, None])

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"wave": self.x[i], "length": self.length[i]}, self.y[i]


@fault("the key padding mask is True where there is sound, which is what attention must not see then",
       rules=("wrong-mask",), fails=True, steps=300)
def wis_inverted_mask(is_faulty):
    class Clip(nn.Module):
        def __init__(self):
            super().__init__()
            self.frames = nn.Linear(8, 48)
            self.mix = nn.Linear(48, 32)
            self.query = nn.Parameter(torch.randn(1, 1, 32) * 0.2)
            self.pool = nn.MultiheadAttention(32, 2, batch_first=True)
            self.head = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 4))

        def forward(self, wave, length):
            h = F.relu(self.mix(F.relu(self.frames(wave.unflatten(1, (12, 8))))))
            real = torch.arange(12) < length[:, None] // 8
            mask = real if is_faulty else ~real
            out, _ = self.pool(self.query.expand(len(h), -1, -1), h, h, key_padding_mask=mask)
            return self.head(out[:, 0])

    held = wis_Clips(256)
    model = Clip()

    def score(m):
        return (m(held.x, held.length).argmax(1) == held.y).float().mean().item()

    return Program(model, nn.CrossEntropyLoss(), DataLoader(wis_Clips(768), 32, shuffle=True),
                   torch.optim.AdamW(model.parameters(), 3e-3), score)


@fault("the logarithm of a spectrogram that is exactly 0 in digital silence", rules=("non-finite",), fails=True,
       steps=250)
def wis_log_of_silence(is_faulty):
    class Spectral(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("window", torch.hann_window(16))
            self.conv = nn.Conv1d(9, 16, 3, padding=1)
            self.out = nn.Linear(16, 4)

        def forward(self, wave):
            power = torch.fft.rfft(wave.unfold(-1, 16, 8) * self.window).abs() ** 2
            features = torch.log(power if is_faulty else power + 1e-3).mT
            return self.out(F.relu(self.conv(features)).mean(-1))

    def draw(n):
        x, y = wis_tones(n, 96, 4, 0.2)
        begin = torch.randint(0, 48, (n, 1))
        return x[:, 0] * (torch.arange(96) >= begin), y

    model = Spectral()
    return Program(model, nn.CrossEntropyLoss(), wis_loader(*draw(512)),
                   torch.optim.Adam(model.parameters(), 3e-3), wis_accuracy(*draw(256)))


@fault("momentum=0.001 for BatchNorm, from a framework where 0.999 is the share kept: running statistics lag behind",
       rules=("batchnorm-mode-gap",), layers=("norm1", "norm2"), fails=True, steps=250)
def wis_kept_statistics(is_faulty):
    momentum = 0.001 if is_faulty else 0.1

    class Rate(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv1d(1, 16, 9, padding=4, bias=False)
            self.norm1 = nn.BatchNorm1d(16, momentum=momentum)
            self.conv2 = nn.Conv1d(16, 24, 9, stride=2, padding=4, bias=False)
            self.norm2 = nn.BatchNorm1d(24, momentum=momentum)
            self.head = nn.Linear(24, 1)

        def forward(self, x):
            x = F.leaky_relu(self.norm1(self.conv1(x)), 0.1)
            x = F.leaky_relu(self.norm2(self.conv2(x)), 0.1)
            return self.head(x.mean(-1)).squeeze(-1)

    def draw(n):
        x, rate = wis_beats(n)
        return x, (rate - 6) / 1.73

    held, truth = draw(256)
    model = Rate()
    return Program(model, nn.MSELoss(), wis_loader(*draw(768)), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: wis_fit(m(held), truth))


@fault("a 3d network takes two volumes at a time and has BatchNorm on the vectors of its head",
       rules=("small-batch-batchnorm", "batchnorm-mode-gap", "mixed-examples"), layers=("head.1",), fails=False, steps=500)
def wis_two_volumes(is_faulty):
    def draw(n):
        line = torch.linspace(-1, 1, 8)
        z, y, x = torch.meshgrid(line, line, line, indexing="ij")
        size = 0.4 + 0.5 * torch.rand(n, 1, 1, 1)
        c = 0.5 * torch.rand(n, 3, 1, 1, 1) - 0.25
        lump = ((x - c[:, 0]) ** 2 + (y - c[:, 1]) ** 2 + (z - c[:, 2]) ** 2 < size**2).float()
        return (lump + 0.1 * torch.randn_like(lump))[:, None], (size[:, 0, 0] - 0.65) / 0.145

    class Volumes(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Sequential(nn.Conv3d(1, 6, 3, 2, 1), nn.ReLU(), nn.Conv3d(6, 12, 3, 2, 1), nn.ReLU())
            self.head = nn.Sequential(nn.Linear(96, 24), nn.BatchNorm1d(24) if is_faulty else nn.LayerNorm(24),
                                      nn.ReLU(), nn.Linear(24, 1))

        def forward(self, x):
            return self.head(self.conv(x).flatten(1))

    held, truth = draw(200)
    model = Volumes()
    return Program(model, nn.MSELoss(), wis_loader(*draw(400), size=2), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: wis_fit(m(held), truth))


@fault("F.dropout without training=self.training stays on in evaluation", rules=("dropout-in-eval",), fails=False,
       steps=400)
def wis_functional_dropout(is_faulty):
    class Sway(nn.Module):
        def __init__(self):
            super().__init__()
            self.c1, self.c2 = nn.Conv1d(1, 16, 9, 2, 4), nn.Conv1d(16, 24, 9, 2, 4)
            self.f1, self.f2 = nn.Linear(24 * 4, 12), nn.Linear(12, 1)

        def forward(self, x):
            x = F.relu(self.c2(F.relu(self.c1(x))))
            x = F.adaptive_avg_pool1d(x, 4).flatten(1)
            for layer in (self.f1, self.f2):
                x = F.dropout(F.relu(x), 0.5) if is_faulty else F.dropout(F.relu(x), 0.5, self.training)
                x = layer(x)
            return x

    def draw(n):
        x, rate = wis_beats(n)
        return 2 * x, ((rate - 6) / 1.73)[:, None]

    held, truth = draw(256)
    model = Sway()
    return Program(model, nn.MSELoss(), wis_loader(*draw(1024)), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: wis_fit(m(held), truth))


@fault("an ExponentialLR meant for epochs is stepped after every batch", rules=("learning-rate-too-low",), fails=True,
       steps=300)
def wis_decay_per_batch(is_faulty):
    x, y = wis_tones(768)
    loader = wis_loader(x, y)
    model = wis_temporal(16, 4, nn.GELU)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    gamma = 0.9
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma if is_faulty else gamma ** (1 / len(loader)))
    return Program(model, nn.CrossEntropyLoss(), loader, optimizer, wis_accuracy(*wis_tones(256)), scheduler=scheduler)
