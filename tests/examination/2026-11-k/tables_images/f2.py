import math
import torch
import torch.nn.functional as F
from program import Program, fault
from tidata import *
from torch import nn


class Rate(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp(8, 64, 64, 1)

    def forward(self, x):
        return self.net(x).exp()


@fault("the network returns a rate, and PoissonNLLLoss takes it for a logarithm", rules=["output-loss-mismatch"], fails=True, steps=300)
def visits_per_day(is_faulty):
    x, y, xt, yt = curve(seed=21, noise=0.0)
    rate = (1.0 + 0.5 * y).exp()
    counts = torch.poisson(rate, generator=gen(5))
    model = Rate()
    loss = nn.PoissonNLLLoss() if is_faulty else nn.PoissonNLLLoss(log_input=False)
    rt = (1.0 + 0.5 * yt).exp()
    return Program(model, loss, loader(x, counts), torch.optim.Adam(model.parameters(), 2e-3), fit(xt, rt))


@fault("momentum of BatchNorm copied from a framework where it means the opposite", rules=["batchnorm-mode-gap"], layers=["1", "4"], fails=True, steps=250)
def imported_momentum(is_faulty):
    x, y, xt, yt = curve(seed=22)
    x, xt = x * 3 + 4, xt * 3 + 4
    mom = 0.001 if is_faulty else 0.1
    model = nn.Sequential(
        nn.Linear(8, 64), nn.BatchNorm1d(64, momentum=mom), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64, momentum=mom), nn.ReLU(), nn.Linear(64, 1)
    )
    return Program(model, nn.MSELoss(), loader(x, y), torch.optim.Adam(model.parameters(), 5e-3), fit(xt, yt))


@fault("keep probability given where the drop probability belongs", rules=["dropout-too-strong"], layers=["drop1", "drop2"], fails=True, steps=300)
def keep_probability(is_faulty):
    x, y, xt, yt = curve(seed=23)
    keep = 0.95
    p = keep if is_faulty else 1 - keep

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2, self.out = nn.Linear(8, 64), nn.Linear(64, 64), nn.Linear(64, 1)
            self.drop1, self.drop2 = nn.Dropout(p), nn.Dropout(p)

        def forward(self, x):
            x = self.drop1(F.relu(self.fc1(x)))
            return self.out(self.drop2(F.relu(self.fc2(x))))

    model = Net()
    return Program(model, nn.MSELoss(), loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), fit(xt, yt))


@fault("F.dropout without training=self.training", rules=["dropout-in-eval"], fails=False, steps=400)
def functional_dropout(is_faulty):
    x, y, xt, yt = curve(seed=24)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(8, 96), nn.Linear(96, 96), nn.Linear(96, 1)

        def forward(self, x):
            on = True if is_faulty else self.training
            x = F.dropout(x, 0.1, on)
            x = F.dropout(F.relu(self.a(x)), 0.3, on)
            x = F.dropout(F.relu(self.b(x)), 0.3, on)
            return self.c(x)

    model = Net()
    return Program(model, nn.MSELoss(), loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), fit(xt, yt))


@fault("sensor channels moved to the front before the reshape, so rows of the table are made of several examples", rules=["mixed-examples"], fails=True, steps=300)
def channels_in_front(is_faulty):
    x, y, xt, yt = table(d=12, seed=25)
    x, xt = x.view(-1, 3, 4), xt.view(-1, 3, 4)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(12, 64, 64, 3)

        def forward(self, x):
            n = x.shape[0]
            x = x.transpose(0, 1) if is_faulty else x
            return self.net(x.reshape(n, -1))

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, drop_last=True), torch.optim.Adam(model.parameters(), 3e-3), accuracy(xt, yt))


class Experts(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.gate = nn.Linear(8, 6)
        self.experts = nn.ModuleList([mlp(8, 24, 1) for _ in range(6)])

    def forward(self, x):
        w = self.gate(x).softmax(self.dim)
        return (w * torch.cat([e(x) for e in self.experts], 1)).sum(1, keepdim=True)


@fault("the gate of a mixture of experts is normalised over the batch", rules=["wrong-softmax-dimension", "mixed-examples"], layers=["gate"], fails=True, steps=300)
def gate_of_experts(is_faulty):
    x, y, xt, yt = curve(seed=26)
    model = Experts(0 if is_faulty else 1)
    return Program(model, nn.MSELoss(), loader(x, y), torch.optim.Adam(model.parameters(), 5e-3), fit(xt, yt))


@fault("LambdaLR's function returns a learning rate instead of a factor", rules=["learning-rate-too-low"], fails=True, steps=300)
def lambda_returns_rate(is_faulty):
    x, y, xt, yt = images(seed=27)
    model = nn.Sequential(nn.Conv2d(1, 12, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 4))
    base = 2e-3
    opt = torch.optim.Adam(model.parameters(), lr=base)

    def cosine(s):
        f = 0.5 * (1 + math.cos(math.pi * min(s, 400) / 400))
        return base * f if is_faulty else f

    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(xt, yt), scheduler=torch.optim.lr_scheduler.LambdaLR(opt, cosine))


@fault("epsilon of Adam set to 1, as in a recipe for another network", rules=["optimizer-setting", "learning-rate-too-low"], fails=True, steps=300)
def epsilon_of_one(is_faulty):
    x, y, xt, yt = table(seed=28, k=5)
    model = nn.Sequential(nn.Linear(10, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 5))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1.0 if is_faulty else 1e-8)
    return Program(model, nn.CrossEntropyLoss(label_smoothing=0.05), loader(x, y), opt, accuracy(xt, yt))
