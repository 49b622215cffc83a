"""Recurrent code with one mistake each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn

from data import accuracy, loader, r2, recall, waves


@fault(
    "batch_first is left out: the LSTM runs along the batch and the last 'step' of all is read at position -1 of the time axis.",
    rules=["mixed-examples"],
    layers=["lstm"],
    fails=True,
    steps=400,
)
def batch_first_forgotten(is_faulty):
    class SensorNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(5, 32, batch_first=not is_faulty)
            self.fc = nn.Linear(32, 4)

        def forward(self, x):
            out, _ = self.lstm(x)
            return self.fc(out[:, -1])

    x, y = recall(length=8)
    tx, ty = recall(length=8, seed=1)
    net = SensorNet()
    return Program(net, F.cross_entropy, loader(x, y), torch.optim.Adam(net.parameters(), 1e-2), accuracy(tx, ty))


@fault(
    "Time is brought to the front with view instead of transpose, which mixes the steps of different examples.",
    rules=["mixed-examples"],
    fails=True,
    steps=300,
)
def view_instead_of_transpose(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(1, 32)
            self.head = nn.Linear(32, 1)

        def forward(self, x):  # [batch, time, 1]
            b, t, c = x.shape
            x = x.view(t, b, c) if is_faulty else x.transpose(0, 1)
            return self.head(self.rnn(x)[0][-1])

    x, y = waves()
    tx, ty = waves(seed=2)
    net = Net()
    return Program(net, nn.MSELoss(), loader(x, y), torch.optim.Adam(net.parameters(), 1e-2), r2(tx, ty))


@fault(
    "The state is detached at every step of the loop (it was meant to be detached between chunks), so nothing is remembered.",
    rules=["vanishing-gradient", "no-gradient"],
    layers=["cell"],
    fails=True,
    steps=300,
)
def detached_at_every_step(is_faulty):
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRUCell(5, 32)
            self.read = nn.Linear(32, 4)

        def forward(self, x):
            h = x.new_zeros(len(x), 32)
            for t in range(x.shape[1]):
                if is_faulty:
                    h = h.detach()
                h = self.cell(x[:, t], h)
            return self.read(h)

    x, y = recall(length=25)
    tx, ty = recall(length=25, seed=1)
    net = Loop()
    return Program(net, F.cross_entropy, loader(x, y), torch.optim.Adam(net.parameters(), 5e-3), accuracy(tx, ty))


@fault(
    "Chrono initialisation with the sign wrong: the forget gates start almost closed, over a sequence of 60 steps.",
    rules=["vanishing-gradient"],
    layers=["lstm"],
    fails=True,
    steps=300,
)
def forget_gates_closed(is_faulty):
    class Memory(nn.Module):
        def __init__(self, hidden=24):
            super().__init__()
            self.lstm = nn.LSTM(5, hidden, batch_first=True)
            b = torch.log(torch.rand(hidden) * 38 + 1)
            with torch.no_grad():
                for bias in (self.lstm.bias_ih_l0, self.lstm.bias_hh_l0):
                    bias.zero_()
                self.lstm.bias_ih_l0[hidden : 2 * hidden] = -b if is_faulty else b
                self.lstm.bias_ih_l0[:hidden] = b if is_faulty else -b
            self.fc = nn.Linear(hidden, 4)

        def forward(self, x):
            return self.fc(self.lstm(x)[1][0][0])

    x, y = recall(length=60)
    tx, ty = recall(length=60, seed=1)
    net = Memory()
    return Program(net, F.cross_entropy, loader(x, y), torch.optim.Adam(net.parameters(), 1e-2), accuracy(tx, ty))


@fault(
    "All weights of a plain RNN are redrawn from N(0, 1), as `for p in parameters(): normal_(p)` does: the state is chaotic.",
    rules=["exploding-gradient", "saturated-activation"],
    layers=["rnn"],
    fails=True,
    steps=300,
)
def every_parameter_normal(is_faulty):
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.RNN(5, 48, batch_first=True)
            self.fc = nn.Linear(48, 4)
            for name, p in self.rnn.named_parameters():
                if is_faulty:
                    nn.init.normal_(p)
                elif "weight_hh" in name:
                    nn.init.orthogonal_(p)

        def forward(self, x):
            return self.fc(self.rnn(x)[0][:, -1])

    x, y = recall(length=25)
    tx, ty = recall(length=25, seed=1)
    net = Plain()
    return Program(net, F.cross_entropy, loader(x, y), torch.optim.Adam(net.parameters(), 1e-3), accuracy(tx, ty))


@fault(
    "The state of the last batch is kept for the next one and never detached: the second backward pass raises.",
    rules=["model-fails"],
    fails=True,
    steps=200,
)
def state_kept_with_its_graph(is_faulty):
    class Stateful(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(1, 24, batch_first=True)
            self.out = nn.Linear(24, 1)
            self.h = None

        def forward(self, x):
            h = self.h if self.h is not None and self.h.shape[1] == len(x) and self.training else None
            y, h = self.gru(x, h)
            self.h = h if is_faulty else h.detach()
            return self.out(y[:, -1])

    x, y = waves()
    tx, ty = waves(seed=2)
    net = Stateful()
    return Program(net, nn.MSELoss(), loader(x, y), torch.optim.Adam(net.parameters(), 1e-2), r2(tx, ty))


@fault(
    "The predicted value has shape [batch, 1], the target [batch]: the squared error is taken over all pairs.",
    rules=["output-loss-mismatch"],
    fails=True,
    steps=200,
)
def prediction_not_squeezed(is_faulty):
    class Forecaster(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(1, 24, batch_first=True)
            self.out = nn.Linear(24, 1)

        def forward(self, x):
            y = self.out(self.gru(x)[1][0])
            return y if is_faulty else y.squeeze(-1)

    import warnings

    warnings.filterwarnings("ignore", message="Using a target size")
    x, y = waves()
    tx, ty = waves(seed=2)
    net = Forecaster()
    return Program(net, F.mse_loss, loader(x, y[:, 0]), torch.optim.Adam(net.parameters(), 1e-2), r2(tx, ty[:, 0]))


@fault(
    "A homemade recurrent layer starts with recurrent weights of standard deviation 0.001, over 20 steps.",
    rules=["vanishing-gradient"],
    layers=["recurrent"],
    fails=True,
    steps=400,
)
def tiny_recurrent_weights(is_faulty):
    class Elman(nn.Module):
        def __init__(self, hidden=32):
            super().__init__()
            self.inp = nn.Linear(5, hidden)
            self.recurrent = nn.Linear(hidden, hidden, bias=False)
            nn.init.normal_(self.recurrent.weight, std=0.001) if is_faulty else nn.init.orthogonal_(self.recurrent.weight)
            self.fc = nn.Linear(hidden, 4)

        def forward(self, x):
            u = self.inp(x)
            h = torch.zeros_like(u[:, 0])
            for t in range(u.shape[1]):
                h = torch.tanh(u[:, t] + self.recurrent(h))
            return self.fc(h)

    x, y = recall(length=20)
    tx, ty = recall(length=20, seed=1)
    net = Elman()
    return Program(net, F.cross_entropy, loader(x, y), torch.optim.Adam(net.parameters(), 1e-3), accuracy(tx, ty))
