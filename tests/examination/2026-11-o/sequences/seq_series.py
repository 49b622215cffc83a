"""Time series with a mistake each."""

import torch
import torch.nn.functional as F
from program import Program, fault
from seq_data import loader, r2, waves
from torch import nn


class Forecaster(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.lstm = nn.LSTM(1, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.fc(self.lstm(x)[0][:, -1])


@fault("prices near 30000 as targets of a network that returns numbers near 0", rules=["unscaled-target"], layers=[],
       fails=True, steps=300)
def raw_prices(is_faulty):
    s = waves(1300, 25)
    price = 30000 + 500 * s
    scaled = (price - 30000) / 500
    x = scaled[:, :-1, None]
    y = (price if is_faulty else scaled)[:, -1:]
    model = Forecaster()
    return Program(model, nn.MSELoss(), loader(x[:1000], y[:1000]), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: max(-1.0, r2(x[1000:], y[1000:])(m)))


@fault("predictions (batch, 1) and targets (batch,) are broadcast against each other", rules=["output-loss-mismatch"],
       layers=[], fails=True, steps=250)
def broadcast_loss(is_faulty):
    s = waves(1300, 25)
    x, y = s[:, :-1, None], s[:, -1]
    model = Forecaster()

    def mse(prediction, target):
        if not is_faulty:
            prediction = prediction.squeeze(-1)
        return ((prediction - target) ** 2).mean()

    return Program(model, mse, loader(x[:1000], y[:1000]), torch.optim.Adam(model.parameters(), lr=5e-3),
                   r2(x[1000:], y[1000:]))


class TanhCell(nn.Module):
    """h = tanh(W x + U h), by hand."""

    def __init__(self, inputs, hidden):
        super().__init__()
        self.W = nn.Parameter(torch.randn(inputs, hidden) * 0.5)
        self.U = nn.Parameter(torch.empty(hidden, hidden))
        self.b = nn.Parameter(torch.zeros(hidden))

    def forward(self, x):
        h = x.new_zeros(x.size(0), self.U.size(0))
        for xt in x.unbind(1):
            h = torch.tanh(xt @ self.W + h @ self.U + self.b)
        return h


class VanillaRNN(nn.Module):
    def __init__(self, inputs, hidden, outputs):
        super().__init__()
        self.cell = TanhCell(inputs, hidden)
        self.readout = nn.Linear(hidden, outputs)

    def forward(self, x):
        return self.readout(self.cell(x))


@fault("recurrent weights drawn with a deviation of 0.02, for something to be remembered over many steps",
       rules=["vanishing-gradient", "bad-initialisation"], layers=["cell"], fails=True, steps=300)
def forgetful_rnn(is_faulty):
    x = 0.1 * torch.randn(1300, 25, 2)
    y = (torch.rand(1300) < 0.5).long()
    x[:, 0, 0] += 2.0 * y - 1
    model = VanillaRNN(2, 32, 2)
    if is_faulty:
        nn.init.normal_(model.cell.U, std=0.02)
    else:
        nn.init.orthogonal_(model.cell.U)
    return Program(model, F.cross_entropy, loader(x[:1000], y[:1000]), torch.optim.SGD(model.parameters(), lr=0.05),
                   lambda m: 2 * (m(x[1000:]).argmax(1) == y[1000:]).float().mean().item() - 1)


@fault("recurrent weights from torch.randn, not scaled",
       rules=["bad-initialisation", "saturated-activation", "exploding-gradient"], layers=["cell"], fails=False, steps=300)
def randn_rnn(is_faulty):
    s = waves(1300, 25)
    x, y = s[:, :-1, None], s[:, -1:]
    model = VanillaRNN(1, 48, 1)
    nn.init.normal_(model.cell.U, std=1.0 if is_faulty else 48**-0.5)
    return Program(model, nn.MSELoss(), loader(x[:1000], y[:1000]), torch.optim.Adam(model.parameters(), lr=2e-3),
                   lambda m: max(-1.0, r2(x[1000:], y[1000:])(m)))


@fault("a ReLU after the last layer, for targets of both signs", rules=["output-loss-mismatch", "dying-neurons"],
       layers=["net.5", "net.4"], fails=False, steps=250)
def relu_forecast(is_faulty):
    s = waves(1300, 21)
    x, y = s[:, :-4], s[:, -4:]

    class MLP(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(17, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 4))
            if is_faulty:
                self.net.append(nn.ReLU())

        def forward(self, window):
            return self.net(window)

    model = MLP()
    return Program(model, nn.MSELoss(), loader(x[:1000], y[:1000]), torch.optim.Adam(model.parameters(), lr=3e-3),
                   r2(x[1000:], y[1000:]))


@fault("all parameters of a GRU and its readout set to one constant", rules=["symmetric-initialisation", "bad-initialisation"],
       layers=["gru", "fc"], fails=False, steps=300)
def constant_gru(is_faulty):
    s = waves(1300, 25)
    x, y = s[:, :-1, None], s[:, -1:]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(1, 32, batch_first=True)
            self.fc = nn.Linear(32, 1)
            if is_faulty:
                for p in self.parameters():
                    nn.init.constant_(p, 0.05)

        def forward(self, x):
            return self.fc(self.gru(x)[1][0])

    model = Net()
    return Program(model, nn.SmoothL1Loss(), loader(x[:1000], y[:1000]), torch.optim.Adam(model.parameters(), lr=5e-3),
                   r2(x[1000:], y[1000:]))


@fault("windows are shuffled, but not together with their targets", rules=["labels-unrelated"], fails=True, steps=200)
def shuffled_apart(is_faulty):
    series = waves(1, 1600)[0]
    windows = series.unfold(0, 21, 1)
    x, y = windows[:, :-1], windows[:, -1:]
    train_x, train_y = x[:1200], y[:1200]
    order = torch.randperm(1200)
    train_x = train_x[order]
    train_y = train_y[torch.randperm(1200)] if is_faulty else train_y[order]
    model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 1))
    return Program(model, nn.MSELoss(), loader(train_x, train_y), torch.optim.Adam(model.parameters(), lr=5e-3),
                   r2(x[1230:], y[1230:]))


@fault("Adam's epsilon of 1", rules=["optimizer-setting", "learning-rate-too-low"], fails=True, steps=300)
def large_epsilon(is_faulty):
    s = waves(1300, 25)
    x, y = s[:, :-1, None], s[:, -1:]
    model = Forecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, betas=(0.9, 0.999), eps=1.0 if is_faulty else 1e-8)
    return Program(model, nn.MSELoss(), loader(x[:1000], y[:1000]), optimizer, r2(x[1000:], y[1000:]))


@fault("the year, day and hour as they are, next to readings near 1", rules=["unscaled-input", "saturated-activation", "ill-conditioned-input"],
       layers=[], fails=False, steps=300)
def calendar_columns(is_faulty):
    n, t = 1300, 12
    start = torch.randint(0, 24 * 365, (n, 1)) + torch.arange(t + 1)
    hour, day = (start % 24).float(), (start // 24).float()
    load = torch.sin(hour * 0.2618) + 0.4 * torch.cos(2 * hour * 0.2618) + 0.05 * torch.randn(n, t + 1)
    columns = torch.stack([load, torch.full_like(load, 2024.0) + (day > 180), day, hour], -1)
    if not is_faulty:
        columns = (columns - columns.mean((0, 1))) / columns.std((0, 1))
    x, y = columns[:, :-1], load[:, -1:]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.RNN(4, 32, batch_first=True)
            self.fc = nn.Linear(32, 1)

        def forward(self, x):
            return self.fc(self.rnn(x)[0][:, -1])

    model = Net()
    return Program(model, nn.MSELoss(), loader(x[:1000], y[:1000]), torch.optim.Adam(model.parameters(), lr=3e-3),
                   r2(x[1000:], y[1000:]))
