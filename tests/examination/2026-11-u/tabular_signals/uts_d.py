"""Sound networks for signals and time series."""
import math

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from uts_tools import uts_acc, uts_gen, uts_loader, uts_r2, uts_waves


class UtsForecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 32, batch_first=True)
        self.out = nn.Linear(32, 4)

    def forward(self, x):
        return self.out(self.lstm(x)[0][:, -1])


@sound("an ordinary LSTM that forecasts four steps", steps=300, least=0.8)
def uts_s_lstm_forecast():
    def data(n, seed):
        g = uts_gen(seed)
        w = 0.2 + 0.4 * torch.rand(n, 1, generator=g)
        s = torch.sin(w * torch.arange(28) + 6.28 * torch.rand(n, 1, generator=g))
        s = s + 0.05 * torch.randn(n, 28, generator=g)
        return s[:, :24, None], s[:, 24:]

    x, y = data(1200, 1)
    vx, vy = data(300, 2)
    net = UtsForecast()
    return Program(net, nn.MSELoss(), uts_loader(x, y, size=32), torch.optim.Adam(net.parameters(), 5e-3),
                   lambda m: uts_r2(m(vx), vy))


@sound("an ordinary convolutional network with BatchNorm on sensor windows", steps=200, least=0.85)
def uts_s_conv_bn():
    x, y = uts_waves(1500, 3, noise=0.5)
    vx, vy = uts_waves(400, 4, noise=0.5)
    net = nn.Sequential(nn.Conv1d(2, 16, 7, stride=2, padding=3, bias=False), nn.BatchNorm1d(16), nn.ReLU(),
                        nn.Conv1d(16, 32, 5, stride=2, padding=2, bias=False), nn.BatchNorm1d(32), nn.ReLU(),
                        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 4))
    return Program(net, nn.CrossEntropyLoss(), uts_loader(x.transpose(1, 2), y, size=32),
                   torch.optim.Adam(net.parameters(), 2e-3), lambda m: uts_acc(m(vx.transpose(1, 2)), vy))


class UtsTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Linear(12, 24)
        self.place = nn.Parameter(0.02 * torch.randn(8, 24))
        layer = nn.TransformerEncoderLayer(24, 4, 48, dropout=0.05, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.out = nn.LayerNorm(24), nn.Linear(24, 4)

    def forward(self, x):
        h = self.patch(x.reshape(len(x), 8, 12)) + self.place
        return self.out(self.norm(self.layers(h).mean(1)))


@sound("a small transformer over patches, with a warm-up from zero", steps=250, least=0.8)
def uts_s_patches():
    x, y = uts_waves(1500, 5)
    vx, vy = uts_waves(400, 6)
    net = UtsTransformer()
    opt = torch.optim.AdamW(net.parameters(), 3e-3)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: min(1.0, k / 50))
    return Program(net, nn.CrossEntropyLoss(), uts_loader(x, y, size=32), opt, lambda m: uts_acc(m(vx), vy),
                   scheduler=sched)


class UtsSine(nn.Module):
    def __init__(self, a, b, omega):
        super().__init__()
        self.linear, self.omega = nn.Linear(a, b), omega
        bound = 1 / a if omega > 5 else math.sqrt(6 / b)
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x):
        return torch.sin(self.omega * self.linear(x))


@sound("sines as activations, the first of which is fast, to represent one waveform", steps=400, least=0.8)
def uts_s_siren():
    def wave(t):
        return torch.sin(18 * t) * torch.cos(5 * t) + 0.4 * torch.sin(31 * t)

    g = uts_gen(7)
    t, v = 2 * torch.rand(2000, 1, generator=g) - 1, 2 * torch.rand(500, 1, generator=g) - 1
    net = nn.Sequential(UtsSine(1, 48, 20.0), UtsSine(48, 48, 1.0), nn.Linear(48, 1))
    return Program(net, F.mse_loss, uts_loader(t, wave(t), size=128), torch.optim.Adam(net.parameters(), 1e-3),
                   lambda m: uts_r2(m(v), wave(v)))


class UtsPacked(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(2, 24, batch_first=True)
        self.out = nn.Linear(24, 2)

    def forward(self, series, lengths):
        packed = pack_padded_sequence(series, lengths, batch_first=True, enforce_sorted=False)
        return self.out(self.rnn(packed)[1][0])


@sound("series of very different lengths, mostly padding, which is packed away", steps=250, least=0.8)
def uts_s_packed():
    def data(n, seed):
        g = uts_gen(seed)
        lengths = torch.randint(4, 30, (n,), generator=g)
        x = torch.randn(n, 40, 2, generator=g) * (torch.arange(40) < lengths[:, None]).unsqueeze(-1)
        last = torch.stack([x[k, max(0, m - 4) : m, 0].sum() for k, m in enumerate(lengths.tolist())])
        return x, lengths, (last > 0).long()

    x, n, y = data(1280, 8)
    vx, vn, vy = data(400, 9)
    batches = [({"series": x[i], "lengths": n[i]}, y[i]) for i in torch.randperm(1280).split(32)]
    net = UtsPacked()
    return Program(net, F.cross_entropy, batches, torch.optim.Adam(net.parameters(), 5e-3),
                   lambda m: uts_acc(m(vx, vn), vy))


class UtsSiamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower = nn.Sequential(nn.Conv1d(2, 24, 7, stride=2, padding=3), nn.ReLU(),
                                   nn.Conv1d(24, 32, 5, stride=2, padding=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1),
                                   nn.Flatten(), nn.Linear(32, 16))
        self.log_scale = nn.Parameter(torch.tensor(2.3))

    def embed(self, x):
        return F.normalize(self.tower(x.transpose(1, 2)), dim=1)

    def forward(self, a, b):
        return self.log_scale.exp() * self.embed(a) @ self.embed(b).T


@sound("one tower for both recordings of a machine; the others of the batch are the negatives", steps=250, least=0.6)
def uts_s_contrast():
    def data(n, seed):
        g = uts_gen(seed)
        t = torch.arange(48) / 48
        f = 2 + 14 * torch.rand(n, 2, generator=g)

        def view():
            w = torch.sin(6.2832 * (f[:, None] * t[None, :, None] + torch.rand(n, 1, 2, generator=g)))
            return w + 0.1 * torch.randn(n, 48, 2, generator=g)

        return view(), view()

    a, b = data(2000, 10)
    va, vb = data(32, 11)

    def step(model, batch):
        logits = model(*batch)
        y = torch.arange(len(logits))
        return 0.5 * (F.cross_entropy(logits, y) + F.cross_entropy(logits.T, y))

    net = UtsSiamese()
    return Program(net, None, uts_loader(a, b, size=32, drop_last=True), torch.optim.Adam(net.parameters(), 3e-3),
                   lambda m: uts_acc(m(va, vb), torch.arange(32)), step=step)


class UtsDenoise(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 20, batch_first=True, bidirectional=True)
        self.out = nn.Linear(40, 1)

    def forward(self, x):
        return self.out(self.lstm(x)[0])


@sound("a bidirectional LSTM that may see both sides, as it cleans a signal", steps=250, least=0.75)
def uts_s_denoise():
    def data(n, seed):
        g = uts_gen(seed)
        w = 0.2 + 0.3 * torch.rand(n, 1, generator=g)
        s = torch.sin(w * torch.arange(32) + 6.28 * torch.rand(n, 1, generator=g)).unsqueeze(-1)
        return s + 0.5 * torch.randn(n, 32, 1, generator=g), s

    x, y = data(1000, 12)
    vx, vy = data(200, 13)
    net = UtsDenoise()
    return Program(net, F.l1_loss, uts_loader(x, y, size=32), torch.optim.Adam(net.parameters(), 5e-3),
                   lambda m: uts_r2(m(vx), vy))


class UtsSet(nn.Module):
    def __init__(self):
        super().__init__()
        self.each = nn.Sequential(nn.Linear(3, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU())
        self.all = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        h = self.each(x)
        return self.all(torch.cat([h.mean(1), h.amax(1)], 1))[:, 0]


@sound("a set of detectors, whose order does not matter: the network does not see it", steps=300, least=0.75)
def uts_s_set():
    def data(n, seed):
        g = uts_gen(seed)
        x = torch.randn(n, 12, 3, generator=g)
        return x, x[..., 0].amax(1) + 2 * (x[..., 1] * x[..., 2]).mean(1) - 1.6

    x, y = data(2000, 14)
    vx, vy = data(400, 15)
    net = UtsSet()
    return Program(net, F.mse_loss, uts_loader(x, y, size=64), torch.optim.Adam(net.parameters(), 3e-3),
                   lambda m: uts_r2(m(vx), vy))


class UtsEcho(nn.Module):
    """An echo state network: the recurrence is fixed, the reading learned."""

    def __init__(self, n=100):
        super().__init__()
        w = torch.randn(n, n) / n ** 0.5
        self.register_buffer("w", 0.8 * w)
        self.register_buffer("w_in", torch.randn(1, n) * 0.5)
        self.read = nn.Linear(n, 1)

    def forward(self, x):
        h = x.new_zeros(len(x), self.w.shape[0])
        for t in range(x.shape[1]):
            h = torch.tanh(x[:, t : t + 1] @ self.w_in + h @ self.w)
        return self.read(h)[:, 0]


@sound("a reservoir that is never trained; only the last layer is, at a high rate", steps=250, least=0.75)
def uts_s_reservoir():
    def data(n, seed):
        g = uts_gen(seed)
        w = 0.3 + 0.4 * torch.rand(n, 1, generator=g)
        s = torch.sin(w * torch.arange(21) + 6.28 * torch.rand(n, 1, generator=g))
        return s[:, :20], s[:, 20]

    x, y = data(1000, 18)
    vx, vy = data(300, 19)
    net = UtsEcho()
    return Program(net, F.mse_loss, uts_loader(x, y, size=50), torch.optim.Adam(net.parameters(), 0.02),
                   lambda m: uts_r2(m(vx), vy))


class UtsMeanAndSpread(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(1, 16, 5), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 16, 32), nn.ReLU())
        self.mean, self.spread = nn.Linear(32, 1), nn.Linear(32, 1)

    def forward(self, x):
        h = self.body(x)
        return self.mean(h)[:, 0], F.softplus(self.spread(h)[:, 0]) + 1e-3


@sound("a Gaussian likelihood, whose loss goes below zero", steps=300, least=0.75)
def uts_s_negative_loss():
    def data(n, seed):
        g = uts_gen(seed)
        w = 0.2 + 0.5 * torch.rand(n, 1, generator=g)
        s = torch.sin(w * torch.arange(21) + 6.28 * torch.rand(n, 1, generator=g))
        s = s + 0.03 * torch.randn(n, 21, generator=g)
        return s[:, None, :20], s[:, 20]

    x, y = data(1500, 20)
    vx, vy = data(300, 21)
    net = UtsMeanAndSpread()
    return Program(net, lambda o, t: F.gaussian_nll_loss(o[0], t, o[1] ** 2), uts_loader(x, y, size=32),
                   torch.optim.Adam(net.parameters(), 2e-3), lambda m: uts_r2(m(vx)[0], vy))


class UtsSpectrum(nn.Module):
    """A fixed spectrum in front of a perceptron."""

    def __init__(self):
        super().__init__()
        self.head = nn.Sequential(nn.Linear(50, 32), nn.Hardtanh(), nn.Linear(32, 4))

    def forward(self, x):
        power = torch.fft.rfft(x, dim=1).abs() / 7
        return self.head(torch.log1p(power).flatten(1))


@sound("a spectrum without weights in front, Hardtanh, large batches and a one-cycle rate", steps=200, least=0.85)
def uts_s_spectrum():
    x, y = uts_waves(2000, 24, noise=0.6)
    vx, vy = uts_waves(400, 25, noise=0.6)
    net = UtsSpectrum()
    opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.3, total_steps=650)
    return Program(net, F.cross_entropy, uts_loader(x, y, size=500), opt, lambda m: uts_acc(m(vx), vy),
                   scheduler=sched)
