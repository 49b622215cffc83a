"""Recurrent networks, series and sets, with a fault."""

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from torch.utils.data import DataLoader
from vtg_data import DictRows, r2, vtg_loader, waves


class DropForecaster(nn.Module):
    def __init__(self, always):
        super().__init__()
        self.always = always
        self.inp = nn.Linear(16, 48)
        self.mid = nn.Linear(48, 48)
        self.out = nn.Linear(48, 1)

    def forward(self, x):
        on = True if self.always else self.training
        h = F.dropout(x, 0.1, training=on)
        h = F.dropout(torch.relu(self.inp(h)), 0.6, training=on)
        h = F.dropout(torch.relu(self.mid(h)), 0.6, training=on)
        return self.out(h)[:, 0]


@fault(
    "F.dropout without training=self.training stays on when the model forecasts",
    rules=["dropout-in-eval"],
    fails=False,
    steps=500,
)
def vtg_forecast_functional_dropout(is_faulty):
    w = waves(2560, 18)
    x, y = w[:, :16], w[:, 17]
    model = DropForecaster(is_faulty)
    return Program(
        model=model,
        loss=nn.MSELoss(),
        batches=vtg_loader(x[:2048], y[:2048], batch=64),
        optimizer=torch.optim.Adam(model.parameters(), lr=2e-3),
        score=lambda m: r2(m(x[2048:]), y[2048:]),
    )


class GruForecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(1, 24, batch_first=True)
        self.readout = nn.Linear(24, 1)

    def forward(self, x):
        return self.readout(self.gru(x.unsqueeze(-1))[0][:, -1])


@fault(
    "forecasts of shape (batch, 1) are compared with targets of shape (batch,)",
    rules=["output-loss-mismatch"],
    fails=True,
    steps=350,
)
def vtg_forecast_broadcast_over_batch(is_faulty):
    w = waves(2048, 21)
    x, y = w[:, :20], w[:, 20]

    def criterion(out, target):
        if not is_faulty:
            out = out.squeeze(1)
        return (out - target).square().mean()

    model = GruForecast()
    return Program(
        model=model,
        loss=criterion,
        batches=vtg_loader(x[:1664], y[:1664], batch=64),
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        score=lambda m: r2(m(x[1664:])[:, 0], y[1664:]),
    )


class Tcn(nn.Module):
    def __init__(self, unit, base):
        super().__init__()
        self.c1 = nn.Conv1d(1, 16, 3, dilation=1)
        self.c2 = nn.Conv1d(16, 16, 3, dilation=2)
        self.c3 = nn.Conv1d(16, 16, 3, dilation=4)
        self.head = nn.Linear(16, 1)
        self.unit, self.base = unit, base

    def forward(self, x):
        h = x[:, None]
        for conv in (self.c1, self.c2, self.c3):
            h = F.elu(conv(h))
        return self.head(h[..., -1]).flatten()

    def megawatts(self, x):
        return self.base + self.unit * self(x)


@fault(
    "loads are forecast in their unit, thousands of megawatts large",
    rules=["unscaled-target"],
    fails=False,
    steps=400,
)
def vtg_load_in_megawatts(is_faulty):
    w = waves(2048, 17)
    x, load = w[:, :16], 32_000 + 4_500 * w[:, 16]
    base, unit = (0.0, 1.0) if is_faulty else (32_000.0, 4_500.0)
    model = Tcn(unit, base)
    y = (load - base) / unit
    return Program(
        model=model,
        loss=F.mse_loss,
        batches=vtg_loader(x[:1664], y[:1664], batch=64),
        optimizer=torch.optim.AdamW(model.parameters(), lr=3e-3),
        score=lambda m: r2(m.megawatts(x[1664:]), load[1664:]),
    )


class ReluRnn(nn.Module):
    def __init__(self, is_faulty):
        super().__init__()
        self.cell = nn.RNNCell(2, 40, nonlinearity="relu")
        self.decode = nn.Linear(40, 1)
        nn.init.zeros_(self.cell.bias_hh)
        nn.init.zeros_(self.cell.bias_ih)
        if is_faulty:
            nn.init.kaiming_normal_(self.cell.weight_hh, mode="fan_in", nonlinearity="relu")
            self.cell.weight_hh.data *= 1.6
        else:
            nn.init.eye_(self.cell.weight_hh)
        nn.init.normal_(self.cell.weight_ih, std=0.1)

    def forward(self, x):
        h = x.new_zeros(len(x), 40)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return self.decode(h).squeeze(1)


@fault(
    "a recurrent ReLU matrix of too large a scale: states and gradients grow with each time step",
    rules=["exploding-gradient", "activation-drift", "bad-initialisation"],
    layers=["cell"],
    fails=False,
    steps=500,
)
def vtg_relu_rnn_explodes(is_faulty):
    def make(n):
        x = torch.stack([torch.randn(n, 25), torch.rand(n, 25)], 2)
        at = torch.rand(n, 25).argsort(1) < 2
        x[..., 1] = at.float()
        return x, (x[..., 0] * x[..., 1]).sum(1)

    (x, y), (xt, yt) = make(3072), make(512)
    model = ReluRnn(is_faulty)
    return Program(
        model=model,
        loss=nn.SmoothL1Loss(),
        batches=vtg_loader(x, y, batch=32),
        optimizer=torch.optim.Adam(model.parameters(), lr=2e-3),
        score=lambda m: r2(m(xt).nan_to_num(0, 0, 0).clamp(-1e6, 1e6), yt),
    )


class SetAttention(nn.Module):
    def __init__(self, guards):
        super().__init__()
        self.guards = guards
        self.phi = nn.Linear(4, 32)
        self.query = nn.Parameter(torch.randn(32) / 6)
        self.rho = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, items, present):
        h = F.relu(self.phi(items))
        a = (h @ self.query).masked_fill(~present, float("-inf"))
        if self.guards:
            empty = ~present.any(1, keepdim=True)
            a = a.masked_fill(empty, 0.0)
        pooled = (a.softmax(1)[..., None] * h * (present[..., None] if self.guards else 1)).sum(1)
        return self.rho(pooled)[:, 0]


@fault(
    "a softmax over a set of which nothing is left after masking is NaN",
    rules=["non-finite", "wrong-mask"],
    fails=True,
    steps=400,
)
def vtg_empty_baskets(is_faulty):
    def make(n):
        items = torch.randn(n, 7, 4)
        present = torch.rand(n, 7) < 0.5
        m = present.float()[..., None]
        mean = (items * m).sum(1) / m.sum(1).clamp(min=1)
        return {"items": items, "present": present}, mean[:, 0] - 0.7 * mean[:, 1].abs()

    (x, y), (xt, yt) = make(2048), make(512)
    model = SetAttention(guards=not is_faulty)
    return Program(
        model=model,
        loss=nn.MSELoss(),
        batches=DataLoader(DictRows(x, y), batch_size=64, shuffle=True),
        optimizer=torch.optim.RMSprop(model.parameters(), lr=2e-3),
        score=lambda m: r2(m(**xt).nan_to_num(0.0), yt),
    )


class Mlp(nn.Module):
    def __init__(self, lags):
        super().__init__()
        self.a = nn.Linear(lags, 48)
        self.b = nn.Linear(48, 1)

    def forward(self, x):
        return self.b(self.a(x).tanh()).squeeze(-1)


@fault(
    "lags of a slow series, nearly equal to each other, go in as they are, and what counts is how they differ",
    rules=["ill-conditioned-input"],
    fails=False,
    steps=500,
)
def vtg_nearly_equal_lags(is_faulty):
    level = torch.randn(3072, 1)
    change = 0.04 * torch.randn(3072, 7)
    lags = level + torch.cat([torch.zeros(3072, 1), change.cumsum(1)], 1)
    y = (change[:, -1] - 0.7 * change[:, -2] + 0.5 * change[:, 2]) / 0.05
    x = lags if is_faulty else torch.cat([level, change / 0.04], 1)
    model = Mlp(8)
    x = (x - x.mean(0)) / x.std(0)
    return Program(
        model=model,
        loss=nn.MSELoss(),
        batches=vtg_loader(x[:2560], y[:2560], batch=64),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        score=lambda m: r2(m(x[2560:]), y[2560:]),
    )
