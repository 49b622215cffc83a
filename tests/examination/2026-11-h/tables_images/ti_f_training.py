"""Faults in how networks are set up and trained."""

from functools import lru_cache

import torch
import torch.nn.functional as F
from program import Program, fault
from ti_common import accuracy, classes, loader, r2_pos, table
from torch import nn, optim


@lru_cache(maxsize=None)
def pretrained():
    """Weights of a backbone that has been trained on another response to the same features."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        x, f = table(1000, 8, 40)
        net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
        y = torch.stack([f, x[:, 0] * x[:, 1], x[:, 2].abs(), x[:, 3] * x[:, 4], x[:, 5]], 1)
        opt = optim.Adam(net.parameters(), lr=3e-3)
        for _ in range(25):
            for i in range(0, 1000, 100):
                opt.zero_grad()
                F.mse_loss(net(x[i : i + 100]), y[i : i + 100]).backward()
                opt.step()
    return {k: v.clone() for k, v in net.state_dict().items()}


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
        self.net.load_state_dict(pretrained())

    def forward(self, x):
        return self.net(x)


@fault(
    "the optimizer is made before the head of a frozen, pretrained network is replaced",
    rules=["no-gradient"],
    layers=["net.4"],
    fails=True,
    steps=250,
)
def head_replaced_after_optimizer(is_faulty):
    x, f = table(1000, 8, 41)
    xt, ft = table(400, 8, 42)
    y, yt = (torch.bucketize(a, torch.tensor([-0.6, 0.6])) for a in (f, ft))
    model = Backbone()
    for p in model.net[:4].parameters():
        p.requires_grad = False
    if not is_faulty:
        model.net[4] = nn.Linear(64, 3)
    opt = optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    if is_faulty:
        model.net[4] = nn.Linear(64, 3)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, lambda m: accuracy(m(xt), yt))


@fault(
    "the function given to LambdaLR returns the rate itself, which is multiplied with the rate",
    rules=["learning-rate-too-low"],
    fails=True,
    steps=300,
)
def warmup_returns_the_rate(is_faulty):
    x, y = classes(1000, 10, 4, 43)
    xt, yt = classes(400, 10, 4, 44)
    net = nn.Sequential(nn.Linear(10, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    base = 2e-3
    opt = optim.AdamW(net.parameters(), lr=base)

    def warmup(step):
        share = min(1.0, (step + 1) / 5)
        return base * share if is_faulty else share

    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(x, y),
        opt,
        lambda m: accuracy(m(xt), yt),
        scheduler=optim.lr_scheduler.LambdaLR(opt, warmup),
    )


class DropNet(nn.Module):
    def __init__(self, is_faulty):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(8, 96), nn.Linear(96, 96), nn.Linear(96, 1)
        self.is_faulty = is_faulty

    def drop(self, x, p=0.4):
        return F.dropout(x, p) if self.is_faulty else F.dropout(x, p, training=self.training)

    def forward(self, x):
        x = self.drop(F.relu(self.fc1(self.drop(x, 0.1))))
        x = self.drop(F.relu(self.fc2(x)))
        return self.fc3(x).squeeze(-1)


@fault(
    "F.dropout is called without the training flag, so that predictions are noisy",
    rules=["dropout-in-eval"],
    fails=False,
    steps=400,
)
def functional_dropout_always_on(is_faulty):
    x, f = table(1200, 8, 45)
    xt, ft = table(500, 8, 46)
    net = DropNet(is_faulty)
    return Program(
        net, nn.MSELoss(), loader(x, f), optim.Adam(net.parameters(), lr=3e-3), lambda m: r2_pos(m(xt), ft)
    )


@fault(
    "momentum of BatchNorm set to 0.0005, as the rest of a decay of 0.9995: running statistics stay at their start",
    rules=["batchnorm-mode-gap"],
    layers=["norm1", "norm2"],
    fails=False,
    steps=250,
)
def running_statistics_too_slow(is_faulty):
    x, y = classes(1000, 10, 4, 51)
    xt, yt = classes(400, 10, 4, 52)
    shift = torch.linspace(-3, 3, 10)
    momentum = 0.0005 if is_faulty else 0.1

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.norm1 = nn.Linear(10, 48), nn.BatchNorm1d(48, momentum=momentum)
            self.fc2, self.norm2 = nn.Linear(48, 48), nn.BatchNorm1d(48, momentum=momentum)
            self.out = nn.Linear(48, 4)

        def forward(self, x):
            x = F.relu(self.norm1(self.fc1(x)))
            return self.out(F.relu(self.norm2(self.fc2(x))))

    net = Net()
    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(x + shift, y),
        optim.Adam(net.parameters(), lr=3e-3),
        lambda m: accuracy(m(xt + shift), yt),
    )


class EqualLinear(nn.Module):
    """Weights of variance 1, scaled in the forward pass."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.gain = (2 / inputs) ** 0.5

    def forward(self, x):
        return F.linear(x, self.weight * self.gain, self.bias)


@fault(
    "the network is cast to bfloat16 as a whole, and steps of Adam are lost in the rounding of its weights",
    rules=["lost-updates", "rounding-error"],
    fails=False,
    steps=400,
)
def whole_model_in_bfloat16(is_faulty):
    x, f = table(1200, 8, 53)
    xt, ft = table(400, 8, 54)
    net = nn.Sequential(EqualLinear(8, 96), nn.ReLU(), EqualLinear(96, 96), nn.ReLU(), EqualLinear(96, 1))
    dtype = torch.bfloat16 if is_faulty else torch.float32
    net.to(dtype)
    return Program(
        net,
        lambda out, y: F.mse_loss(out.float()[:, 0], y),
        loader(x.to(dtype), f),
        optim.Adam(net.parameters(), lr=1e-3),
        lambda m: r2_pos(m(xt.to(dtype)).float()[:, 0], ft),
    )


class Dense(nn.Module):
    """The author's own linear layer."""

    def __init__(self, n_in, n_out, is_faulty):
        super().__init__()
        if is_faulty:
            self.w = nn.Parameter(torch.ones(n_in, n_out) / n_in)
        else:
            self.w = nn.Parameter(torch.randn(n_in, n_out) * (2 / n_in) ** 0.5)
        self.b = nn.Parameter(torch.zeros(n_out))

    def forward(self, x):
        return x @ self.w + self.b


@fault(
    "the author's own layer starts with ones over the number of inputs",
    rules=["symmetric-initialisation", "bad-initialisation", "rank-collapse"],
    layers=["a", "b", "c"],
    fails=False,
    steps=300,
)
def own_layer_begins_with_ones(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = Dense(8, 40, is_faulty), Dense(40, 40, is_faulty)
            self.c = Dense(40, 1, is_faulty)

        def forward(self, x):
            return self.c(F.relu(self.b(F.relu(self.a(x)))))[:, 0]

    x, f = table(1000, 8, 57)
    xt, ft = table(400, 8, 58)
    net = Net()
    return Program(
        net, nn.MSELoss(), loader(x, f), optim.Adam(net.parameters(), lr=5e-3), lambda m: r2_pos(m(xt), ft)
    )
