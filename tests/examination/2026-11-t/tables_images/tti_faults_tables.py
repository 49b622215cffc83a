import torch
import torch.nn.functional as F
from torch import nn

from program import Program, fault
from tti_common import *


@fault("prices in dollars as targets of a network that returns numbers near 0",
       rules=["unscaled-target", "learning-rate-too-low"], fails=True, steps=300)
def tti_house_prices(is_faulty):
    xa, ya, xb, yb = friedman()
    xa, xb = (xa - 0.5) * 3.4, (xb - 0.5) * 3.4
    ya, yb = 20000 * ya, 20000 * yb
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    m, s = (0.0, 1.0) if is_faulty else (ya.mean().item(), ya.std().item())
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    return Program(net, nn.MSELoss(), loader(xa, ((ya - m) / s)[:, None]), opt, r2(xb, yb, s, m))


@fault("wine features as they come, with SGD",
       rules=["unscaled-input", "learning-rate-too-high", "ill-conditioned-input", "exploding-gradient", "dying-neurons",
              "saturated-output"], fails=True, steps=300)
def tti_wine_as_is(is_faulty):
    xa, ya, xb, yb = sk("wine", scaled=not is_faulty)
    net = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 3))
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya, 16), opt, accuracy(xb, yb))


@fault("predictions of (B, 1) against targets of (B,)", rules=["output-loss-mismatch"], fails=True, steps=300)
def tti_energy_regressor(is_faulty):
    xa, ya, xb, yb = friedman(seed=15)
    m, s = ya.mean(), ya.std()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(8)
            self.body = nn.Sequential(nn.Linear(8, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU())
            self.out = nn.Linear(48, 1)

        def forward(self, x):
            y = self.out(self.body(self.norm(x)))
            return y if is_faulty else y.squeeze(-1)

    net = Net()
    opt = torch.optim.AdamW(net.parameters(), lr=5e-3)
    return Program(net, nn.SmoothL1Loss(), loader(xa, (ya - m) / s, 40), opt, r2(xb, (yb - m) / s))


@fault("the gate of a mixture of experts is normalised over the batch",
       rules=["wrong-softmax-dimension", "mixed-examples"], layers=["gate"], fails=True, steps=300)
def tti_expert_gate(is_faulty):
    g = gen(21)
    x = torch.randn(1000, 6, generator=g)
    y = torch.where(x[:, 0] > 0, 2 * x[:, 1] + x[:, 2], -2 * x[:, 3] + x[:, 4])
    xa, ya, xb, yb = split(x, y / y.std())

    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(6, 4)
            self.softmax = nn.Softmax(dim=0 if is_faulty else 1)

        def forward(self, x):
            return self.softmax(self.lin(x))

    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = Gate()
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)) for _ in range(4))

        def forward(self, x):
            out = torch.cat([e(x) for e in self.experts], 1)
            return (self.gate(x) * out).sum(1)

    net = Mixture()
    return Program(net, nn.MSELoss(), loader(xa, ya), torch.optim.Adam(net.parameters(), lr=1e-2), r2(xb, yb))


@fault("keep probability given as dropout probability", rules=["dropout-too-strong"], layers=["drop1", "drop2"],
       fails=True, steps=300)
def tti_keep_prob(is_faulty):
    xa, ya, xb, yb = friedman(seed=25)
    m, s = ya.mean(), ya.std()
    p = 0.95 if is_faulty else 0.05

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1 = nn.Linear(8, 64)
            self.drop1 = nn.Dropout(p)
            self.fc2 = nn.Linear(64, 64)
            self.drop2 = nn.Dropout(p)
            self.fc3 = nn.Linear(64, 1)

        def forward(self, x):
            x = self.drop1(F.relu(self.fc1(3 * x - 1.5)))
            x = self.drop2(F.relu(self.fc2(x)))
            return self.fc3(x)

    net = Net()
    return Program(net, nn.MSELoss(), loader(xa, ((ya - m) / s)[:, None], 64), torch.optim.Adam(net.parameters(), 3e-3),
                   r2(xb, (yb - m) / s))


@fault("L2 penalty of another library used as weight decay of SGD", rules=["weight-decay-dominates"], fails=True, steps=300)
def tti_decay(is_faulty):
    xa, ya, xb, yb = sk("digits")
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.5 if is_faulty else 1e-4)
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), opt, accuracy(xb, yb))


@fault("StepLR meant for epochs is stepped after every batch", rules=["learning-rate-too-low"], fails=True, steps=300)
def tti_step_lr(is_faulty):
    xa, ya, xb, yb = friedman(seed=31)
    m, s = ya.mean(), ya.std()
    net = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1), nn.Flatten(0))
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    sched = torch.optim.lr_scheduler.StepLR(opt, step_size=3 if is_faulty else 3 * 28, gamma=0.1 if is_faulty else 0.1)
    return Program(net, nn.MSELoss(), loader(2 * xa - 1, (ya - m) / s), opt, r2(2 * xb - 1, (yb - m) / s), scheduler=sched)


@fault("hidden layers without activations", rules=["no-nonlinearity"], fails=True, steps=400)
def tti_circles(is_faulty):
    g = gen(33)
    x = torch.randn(800, 2, generator=g)
    y = (x.norm(dim=1) > 1.17).long()
    xa, ya, xb, yb = split(x, y)
    act = (lambda: nn.Identity()) if is_faulty else (lambda: nn.LeakyReLU())
    net = nn.Sequential(nn.Linear(2, 32), act(), nn.Linear(32, 32), act(), nn.Linear(32, 2))
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(net.parameters(), 5e-3), accuracy(xb, yb))


@fault("features sorted by customer, labels sorted otherwise", rules=["labels-unrelated"], fails=True, steps=300)
def tti_joined_tables(is_faulty):
    xa, ya, xb, yb = sk("breast_cancer")
    if is_faulty:
        ya = ya[torch.randperm(len(ya), generator=gen(4))]
    net = nn.Sequential(nn.Linear(30, 16), nn.Tanh(), nn.Linear(16, 2))
    opt = torch.optim.Adam(net.parameters(), 3e-3, weight_decay=1e-2)
    base = accuracy(xb, yb)
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), opt, lambda m: max(0.0, 2 * base(m) - 1))


@fault("missing values that nobody filled", rules=["non-finite"], fails=True, steps=250)
def tti_missing(is_faulty):
    xa, ya, xb, yb = sk("wine")
    xa = torch.where(torch.rand(xa.shape, generator=gen(6)) < 0.03, torch.nan if is_faulty else 0.0, xa)
    net = nn.Sequential(nn.Linear(13, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 3))
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya, 16), torch.optim.RMSprop(net.parameters(), 2e-3), accuracy(xb, yb))


@fault("GroupNorm with a channel per group on a plain vector gives zeros", rules=["rank-collapse", "loss-not-decreasing", "no-gradient"],
       layers=["1", "4"], fails=True, steps=250)
def tti_group_norm_vector(is_faulty):
    xa, ya, xb, yb = sk("digits")
    norm = (lambda: nn.GroupNorm(32, 32)) if is_faulty else (lambda: nn.GroupNorm(4, 32))
    net = nn.Sequential(nn.Linear(64, 32), norm(), nn.ReLU(), nn.Linear(32, 32), norm(), nn.ReLU(), nn.Linear(32, 10))
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(net.parameters(), 3e-3), accuracy(xb, yb))


@fault("BatchNorm over batches of two", rules=["small-batch-batchnorm", "batchnorm-mode-gap", "mixed-examples"],
       layers=["n1", "n2", "n3"], fails=False, steps=500)
def tti_two_rows(is_faulty):
    xa, ya, xb, yb = friedman(seed=41)
    m, s = ya.mean(), ya.std()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.f1, self.n1 = nn.Linear(8, 32), nn.BatchNorm1d(32)
            self.f2, self.n2 = nn.Linear(32, 32), nn.BatchNorm1d(32)
            self.f3, self.n3 = nn.Linear(32, 32), nn.BatchNorm1d(32)
            self.out = nn.Linear(32, 1)

        def forward(self, x):
            x = F.relu(self.n1(self.f1(x)))
            x = F.relu(self.n2(self.f2(x)))
            x = F.relu(self.n3(self.f3(x)))
            return self.out(x)[:, 0]

    net = Net()
    return Program(net, nn.MSELoss(), loader(xa, (ya - m) / s, 2 if is_faulty else 32), torch.optim.Adam(net.parameters(), 2e-3),
                   r2(xb, (yb - m) / s))


@fault("one BatchNorm for two measurements in different units", rules=["shared-weight", "batchnorm-mode-gap"], layers=["norm"],
       fails=True, steps=300)
def tti_one_norm(is_faulty):
    g = gen(35)
    a, b = torch.randn(900, 5, generator=g), torch.randn(900, 5, generator=g)
    y = torch.sin(a[:, 0]) + a[:, 1] * b[:, 1] + b[:, 2] - a[:, 3]
    xa, ya, xb, yb = split(torch.cat([4 * a + 12, 0.5 * b - 1], 1), (y - y.mean()) / y.std())

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(5)
            self.norm_after = self.norm if is_faulty else nn.BatchNorm1d(5)
            self.body = nn.Sequential(nn.Linear(10, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

        def forward(self, x):
            before, after = x[:, :5], x[:, 5:]
            return self.body(torch.cat([self.norm(before), self.norm_after(after)], 1))[:, 0]

    net = Net()
    return Program(net, nn.MSELoss(), loader(xa, ya), torch.optim.Adam(net.parameters(), 5e-3), r2(xb, yb))


@fault("all linear layers filled with a constant", rules=["symmetric-initialisation", "bad-initialisation"], fails=True, steps=300)
def tti_constant_init(is_faulty):
    xa, ya, xb, yb = sk("digits")
    net = nn.Sequential(nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 10))
    for layer in net:
        if isinstance(layer, nn.Linear):
            if is_faulty:
                nn.init.constant_(layer.weight, 0.02)
            else:
                nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(net.parameters(), 2e-3), accuracy(xb, yb))


@fault("an ε of 1 in Adam", rules=["optimizer-setting", "learning-rate-too-low"], fails=False, steps=300)
def tti_big_epsilon(is_faulty):
    xa, ya, xb, yb = sk("iris")
    net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3))
    with torch.no_grad():
        net[4].bias.copy_(torch.tensor([0.0, 0.0, 1.0]))
    opt = torch.optim.Adam(net.parameters(), lr=2e-3, eps=1.0 if is_faulty else 1e-8)
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya, 16), opt, accuracy(xb, yb))


@fault("a second task in its own units drowns the first", rules=["term-dominates", "unscaled-target"], fails=True, steps=300)
def tti_two_tasks(is_faulty):
    g = gen(51)
    x = torch.randn(1000, 10, generator=g)
    label = ((x[:, 0] * x[:, 1] + 0.5 * x[:, 2]) > 0).float()
    income = 900 * (x[:, 3] + 0.6 * torch.sin(2 * x[:, 4])) + 300 * torch.randn(1000, generator=g)
    y = torch.stack([label, income], 1)
    xa, ya, xb, yb = split(x, y)

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU())
            self.churn, self.income = nn.Linear(32, 1), nn.Linear(32, 1)

        def forward(self, x):
            h = self.trunk(x)
            return torch.cat([self.churn(h), self.income(h)], 1)

    def loss(out, y):
        scale = 1.0 if is_faulty else 1000.0
        return F.binary_cross_entropy_with_logits(out[:, 0], y[:, 0]) + F.mse_loss(out[:, 1], y[:, 1] / scale)

    net = Two()
    base = binary(xb, yb[:, 0])

    def score(model):
        hit = ((model(xb)[:, 0] > 0) == (yb[:, 0] > 0.5)).float().mean().item()
        return max(0.0, 2 * hit - 1)

    return Program(net, loss, loader(xa, ya), torch.optim.Adam(net.parameters(), 5e-3), score)


@fault("logits given to NLLLoss", rules=["output-loss-mismatch", "diverging", "non-finite"], fails=True, steps=300)
def tti_nll_of_logits(is_faulty):
    xa, ya, xb, yb = sk("wine")
    tail = [] if is_faulty else [nn.LogSoftmax(1)]
    net = nn.Sequential(nn.Linear(13, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 3), *tail)
    return Program(net, nn.NLLLoss(), loader(xa, ya, 24), torch.optim.Adam(net.parameters(), 5e-3), accuracy(xb, yb))


@fault("a deep stack of sigmoids", rules=["vanishing-gradient", "rank-collapse", "saturated-activation", "bad-initialisation",
                                           "loss-not-decreasing"], fails=True, steps=400)
def tti_deep_sigmoid(is_faulty):
    xa, ya, xb, yb = sk("digits")
    parts = [nn.Linear(64, 48)]
    for _ in range(7):
        parts += [nn.Sigmoid() if is_faulty else nn.ELU(), nn.Linear(48, 48)]
    net = nn.Sequential(*parts, nn.ELU(), nn.Linear(48, 10))
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.SGD(net.parameters(), 0.03, momentum=0.9), accuracy(xb, yb))


@fault("the mean of a year is not taken off", rules=["ill-conditioned-input", "unscaled-input"], fails=True, steps=400)
def tti_years(is_faulty):
    g = gen(61)
    year = 1990 + 30 * torch.rand(900, 1, generator=g)
    rest = torch.randn(900, 3, generator=g)
    y = ((year[:, 0] - 2005) / 9 + 0.3 * rest[:, 0] * 1.0) / 1.2
    x = torch.cat([year / 1000 if is_faulty else (year - 2005) / 9, rest], 1)
    xa, ya, xb, yb = split(x, y)
    net = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 1), nn.Flatten(0))
    return Program(net, nn.MSELoss(), loader(xa, ya), torch.optim.SGD(net.parameters(), 0.03), r2(xb, yb))


@fault("dates and amounts as they are into tanh units", rules=["unscaled-input", "saturated-activation"], fails=False, steps=300)
def tti_tanh_on_raw(is_faulty):
    g = gen(63)
    z = torch.randn(1000, 6, generator=g)
    y = torch.tanh(z[:, 0] * z[:, 1]) + 0.7 * z[:, 2] + torch.sin(z[:, 3])
    y = (y - y.mean()) / y.std()
    x = 40 * z + 90 if is_faulty else z
    xa, ya, xb, yb = split(x, y)
    net = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 1), nn.Flatten(0))
    return Program(net, nn.HuberLoss(), loader(xa, ya), torch.optim.Adam(net.parameters(), 5e-3), r2(xb, yb))


@fault("a threshold in the middle passes no gradient", rules=["no-gradient"], layers=["encode"], fails=True, steps=400)
def tti_hash_codes(is_faulty):
    g = gen(65)
    x = torch.randn(900, 20, generator=g)
    y = ((x[:, 0] > 0).long() * 2 + (x[:, 1] + x[:, 2] > 0).long())
    xa, ya, xb, yb = split(x, y)

    class Codes(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode = nn.Linear(20, 8)
            self.head = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))

        def forward(self, x):
            a = self.encode(x)
            hard = (a > 0).float()
            if not is_faulty:
                soft = torch.sigmoid(a)
                hard = hard + soft - soft.detach()
            return self.head(2 * hard - 1)

    net = Codes()
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(net.parameters(), 1e-2), accuracy(xb, yb))


@fault("all weights drawn from N(0, 1)", rules=["bad-initialisation", "saturated-activation", "saturated-output"],
       fails=False, steps=300)
def tti_normal_init(is_faulty):
    xa, ya, xb, yb = sk("digits")
    net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    if is_faulty:
        with torch.no_grad():
            for layer in net[::2]:
                layer.weight.normal_()
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.SGD(net.parameters(), 0.02, momentum=0.9), accuracy(xb, yb))
