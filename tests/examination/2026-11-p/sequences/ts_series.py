"""Faults in programs that forecast and read time series."""

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from ts_data import loader, r2, share_right, waves


class Forecaster(nn.Module):
    def __init__(self, hidden=32, out=1):
        super().__init__()
        self.lstm = nn.LSTM(1, hidden, batch_first=True)
        self.linear = nn.Linear(hidden, out)

    def forward(self, window):
        out, _ = self.lstm(window.unsqueeze(-1))
        return self.linear(out[:, -1])


class TCN(nn.Module):
    def __init__(self, causal, width=24):
        super().__init__()
        self.causal = causal
        sizes = [1, width, width, width]
        self.convs = nn.ModuleList(nn.Conv1d(a, b, 3, dilation=2**i) for i, (a, b) in enumerate(zip(sizes, sizes[1:])))
        self.last = nn.Conv1d(width, 1, 1)

    def forward(self, x):
        h = x[:, None]
        for i, conv in enumerate(self.convs):
            reach = 2 * 2**i
            h = F.pad(h, (reach, 0) if self.causal else (reach // 2, reach // 2))
            h = torch.relu(conv(h))
        return self.last(h)[:, 0]


@fault(
    "each step is to predict the next one, but convolutions are padded on both sides and see it",
    rules=["future-seen"],
    layers=["convs"],
    fails=False,
    steps=300,
)
def convolutions_see_the_next_step(is_faulty):
    s, held = waves(1000, 81), waves(300, 48)
    model = TCN(not is_faulty)

    def rolled(m):
        seen = held[:, :40]
        for _ in range(8):
            seen = torch.cat([seen, m(seen)[:, -1:]], 1)
        return r2(seen[:, 40:], held[:, 40:])

    return Program(model, nn.functional.mse_loss, loader(s[:, :-1], s[:, 1:]),
                   torch.optim.Adam(model.parameters(), lr=3e-3), rolled)


@fault(
    "the loss is the log-likelihood, without its minus",
    rules=["diverging", "output-loss-mismatch"],
    fails=True,
    steps=300,
)
def likelihood_without_its_minus(is_faulty):
    class DeepAR(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(1, 32, batch_first=True)
            self.mu = nn.Linear(32, 1)
            self.sigma = nn.Linear(32, 1)

        def forward(self, x):
            h, _ = self.rnn(x)
            return torch.distributions.Normal(self.mu(h), F.softplus(self.sigma(h)) + 1e-2)

    def train_step(model, batch):
        (x,) = batch
        likelihood = model(x[:, :-1]).log_prob(x[:, 1:]).mean()
        return likelihood if is_faulty else -likelihood

    s, held = waves(1200, 24)[..., None], waves(300, 24)[..., None]
    model = DeepAR()
    return Program(model, None, loader(s), torch.optim.Adam(model.parameters(), lr=4e-3),
                   lambda m: r2(m(held[:, :-1]).mean[:, -1], held[:, -1]), step=train_step)


@fault(
    "all weights, those of the recurrence too, are normals of 0.02, so that the state forgets within a step",
    rules=["vanishing-gradient", "bad-initialisation", "activation-drift"],
    layers=["rnn"],
    fails=True,
    steps=300,
)
def recurrence_of_small_normals(is_faulty):
    class Remember(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.RNN(3, 40, batch_first=True)
            self.fc = nn.Linear(40, 4)
            for p in self.rnn.parameters():
                if p.dim() == 2:
                    nn.init.normal_(p, std=0.02) if is_faulty else nn.init.orthogonal_(p)
                else:
                    nn.init.zeros_(p)

        def forward(self, x):
            return self.fc(self.rnn(x)[0][:, -1])

    def pulses(n):
        y = torch.randint(4, (n,))
        x = 0.05 * torch.randn(n, 60, 3)
        x[:, 1, 0] += torch.where(y % 2 == 0, 1.0, -1.0)
        x[:, 1, 1] += torch.where(y < 2, 1.0, -1.0)
        return x, y

    (x, y), (xh, yh) = pulses(1000), pulses(300)
    model = Remember()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), lr=1e-3),
                   lambda m: share_right(m(xh), yh))


@fault(
    "windows are shuffled, their targets are not",
    rules=["labels-unrelated"],
    fails=True,
    steps=250,
)
def windows_shuffled_without_targets(is_faulty):
    s = waves(1, 6000, 0.0)[0] + 0.8 * torch.sin(0.83 * torch.arange(6000)) + 0.05 * torch.randn(6000)
    windows = s.unfold(0, 17, 1)
    x, y = windows[:, :-1], windows[:, -1:]
    xh, yh = x[5000:], y[5000:]
    x, y = x[:4900], y[:4900]
    order = torch.randperm(len(x))
    x, y = x[order], y if is_faulty else y[order]
    net = nn.Sequential(nn.Linear(16, 48), nn.Tanh(), nn.Linear(48, 1))
    batches = list(zip(x.split(50), y.split(50)))
    return Program(net, nn.MSELoss(), batches, torch.optim.Adam(net.parameters(), lr=5e-3), lambda m: r2(m(xh), yh))


@fault(
    "StepLR was meant for epochs, and is stepped after every batch",
    rules=["learning-rate-too-low"],
    fails=True,
    steps=400,
)
def schedule_of_epochs_stepped_by_batch(is_faulty):
    x, xh = waves(1280, 30), waves(300, 30)
    model = Forecaster(32, 3)
    data = loader(x[:, :27], x[:, 27:])
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    epochs = 5
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, epochs if is_faulty else epochs * len(data), gamma=0.5)
    return Program(model, nn.SmoothL1Loss(), data, optimizer, lambda m: r2(m(xh[:, :27]), xh[:, 27:]), scheduler)


class SeriesVAE(nn.Module):
    def __init__(self, length=32, latent=4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv1d(1, 16, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 14, 64), nn.ReLU())
        self.to_mu, self.to_logvar = nn.Linear(64, latent), nn.Linear(64, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, 64), nn.ReLU(), nn.Linear(64, length))

    def forward(self, x):
        h = self.encoder(x[:, None])
        mu, logvar = self.to_mu(h), self.to_logvar(h)
        z = mu + torch.randn_like(mu) * (logvar / 2).exp() if self.training else mu
        return self.decoder(z), mu, logvar


@fault(
    "the divergence is summed over latents, and the error averaged over the window, so that the first outweighs it",
    rules=["term-dominates", "rank-collapse"],
    fails=True,
    steps=500,
)
def divergence_outweighs_reconstruction(is_faulty):
    x, xh = waves(1500, 32), waves(300, 32)
    model = SeriesVAE()

    def step(model, batch):
        (x,) = batch
        out, mu, logvar = model(x)
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1).mean()
        error = (out - x) ** 2
        return (error.mean() if is_faulty else 5 * error.sum(1).mean()) + kl

    return Program(model, None, loader(x, batch=64), torch.optim.Adam(model.parameters(), lr=2e-3),
                   lambda m: r2(m(xh)[0], xh), step=step)


@fault(
    "a weight decay of 0.1, as is usual for AdamW, given to Adam",
    rules=["weight-decay-dominates"],
    fails=True,
    steps=400,
)
def decay_of_adamw_given_to_adam(is_faulty):
    model = nn.Sequential(nn.Conv1d(2, 24, 5, padding=2), nn.GELU(), nn.Conv1d(24, 24, 5, padding=2), nn.GELU(),
                          nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(24, 24), nn.GELU(), nn.Linear(24, 3))

    def gestures(n):
        y = torch.randint(3, (n,))
        t = torch.arange(40)[None]
        f = (0.3 + 0.2 * y)[:, None] + 0.03 * torch.randn(n, 1)
        shift = 6 * torch.rand(n, 1)
        x = torch.stack([torch.sin(f * t + shift), torch.cos(f * t + shift)], 1)
        return x + 0.3 * torch.randn_like(x), y

    (x, y), (xh, yh) = gestures(1200), gestures(300)
    kind = torch.optim.Adam if is_faulty else torch.optim.AdamW
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), kind(model.parameters(), lr=2e-3, weight_decay=0.1),
                   lambda m: share_right(m(xh), yh))


@fault(
    "each window is divided by its standard deviation, which is 0 where a sensor was off",
    rules=["non-finite"],
    fails=True,
    steps=250,
)
def windows_divided_by_zero(is_faulty):
    def sensors(n):
        y = torch.randint(2, (n,))
        t = torch.arange(32.0)
        x = 20 + 3 * torch.randn(n, 1) + torch.rand(n, 1) * torch.sin((0.3 + 0.3 * y)[:, None] * t + 6 * torch.rand(n, 1))
        x = x + 0.05 * torch.randn(n, 32)
        off = torch.rand(n) < 0.05
        return torch.where(off[:, None], torch.tensor(20.0), x), y, off

    (x, y, off), (xh, yh, off_h) = sensors(1500), sensors(400)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv1d(1, 16, 7), nn.ReLU(), nn.Conv1d(16, 16, 7), nn.ReLU())
            self.head = nn.Linear(16, 2)

        def forward(self, x):
            spread = x.std(1, keepdim=True)
            x = (x - x.mean(1, keepdim=True)) / (spread if is_faulty else spread + 1e-6)
            return self.head(self.body(x[:, None]).amax(2))

    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(net.parameters(), 3e-3),
                   lambda m: 2 * share_right(m(xh[~off_h]), yh[~off_h]) - 1)


@fault(
    "the readings of a plant go in as they are, in pascals, kelvins and millimetres",
    rules=["unscaled-input", "saturated-activation", "ill-conditioned-input", "rank-collapse"],
    fails=True,
    steps=300,
)
def readings_in_si_units(is_faulty):
    def plant(n):
        z = torch.stack([waves(n, 20) for _ in range(3)], -1)
        y = z[:, -4:, 0].mean(1) * 0.8 - z[:, -1, 1] + 0.5 * z[:, -2, 2]
        return z * torch.tensor([3000.0, 8.0, 0.02]) + torch.tensor([101325.0, 293.0, 1.2]), y[:, None]

    (x, y), (xh, yh) = plant(1200), plant(300)
    mean, std = x.mean((0, 1)), x.std((0, 1))

    class Soft(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(3, 32, batch_first=True)
            self.out = nn.Linear(32, 1)

        def forward(self, x):
            if not is_faulty:
                x = (x - mean) / std
            return self.out(self.lstm(x)[1][0][-1])

    model = Soft()
    return Program(model, nn.MSELoss(), loader(x, y), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: r2(m(xh), yh))
