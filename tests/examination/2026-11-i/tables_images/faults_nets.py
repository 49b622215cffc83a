import torch
import torch.nn.functional as F
from torch import nn

from program import Program, fault
from ti_common import accuracy, classes, gen, loader, r2, r2_of, shapes, table


class Bag(nn.Module):
    """Attention over the patches of a bag."""

    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.embed = nn.Linear(10, 32)
        self.score = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1))
        self.out = nn.Linear(32, 4)

    def forward(self, patches):
        weight = F.softmax(self.score(patches), dim=self.dim)
        return self.out((weight * self.embed(patches)).sum(1))


@fault(
    "the softmax over patches is taken over the last dimension, of size one: all weights are 1",
    rules=["wrong-softmax-dimension", "no-gradient"],
    layers=["score"],
    fails=False,
    steps=400,
)
def bag_softmax_over_one(faulty):
    g = gen(1)
    n, k = 1500, 16
    x = torch.randn(n, k, 10, generator=g)
    which = torch.randint(0, k, (n,), generator=g)
    y = torch.randint(0, 4, (n,), generator=g)
    x[:, :, 9] = -1
    x[torch.arange(n), which, 9] = 2
    x[torch.arange(n), which, :4] += 2.5 * F.one_hot(y, 4)
    net = Bag(-1 if faulty else 1)
    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(x[:1200], y[:1200], batch_size=50),
        torch.optim.Adam(net.parameters(), lr=3e-3),
        accuracy(x[1200:], y[1200:]),
    )


class Backbone(nn.Module):
    def __init__(self, out):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(256, 64), nn.ReLU())
        self.fc = nn.Linear(64, out)

    def forward(self, x):
        return self.fc(self.features(x))


def pretrained(steps=60):
    x, y = shapes(600, seed=100)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        net = Backbone(4)
        opt = torch.optim.Adam(net.parameters(), lr=3e-3)
        for i in range(steps):
            j = torch.arange(32) + 32 * (i % 18)
            opt.zero_grad()
            F.cross_entropy(net(x[j]), y[j]).backward()
            opt.step()
    return net


@fault(
    "the head is replaced after the optimizer has been made from the old one",
    rules=["no-gradient"],
    layers=["fc"],
    fails=True,
    steps=200,
)
def head_replaced_after_optimizer(faulty):
    x, y = shapes(900, seed=12)
    y = (y >= 2).long()
    net = pretrained()
    for p in net.features.parameters():
        p.requires_grad_(False)
    if faulty:
        opt = torch.optim.Adam(net.fc.parameters(), lr=3e-3)
        net.fc = nn.Linear(64, 2)
    else:
        net.fc = nn.Linear(64, 2)
        opt = torch.optim.Adam(net.fc.parameters(), lr=3e-3)
    # score: 0 at chance
    def score(m):
        return max(0.0, 2 * accuracy(x[700:], y[700:])(m) - 1)

    return Program(net, nn.CrossEntropyLoss(), loader(x[:700], y[:700], batch_size=32), opt, score)


class Damped(nn.Module):
    def __init__(self, width, scale):
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.scale = scale

    def forward(self, x):
        if self.scale:
            return self.scale * (x + self.branch(x))
        return x + 0.2 * self.branch(x)


@fault(
    "residual scaling of 0.2 is applied to the sum instead of the branch, in eight blocks",
    rules=["activation-drift", "vanishing-gradient", "rank-collapse"],
    layers=[],
    fails=True,
    steps=300,
)
def scaling_on_the_sum(faulty):
    x, y = classes(1500, 8, 3, seed=13)
    net = nn.Sequential(nn.Linear(8, 40), *[Damped(40, 0.2 if faulty else None) for _ in range(8)], nn.Linear(40, 3))
    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(x[:1200], y[:1200]),
        torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9),
        accuracy(x[1200:], y[1200:]),
    )


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU())
        self.grade = nn.Linear(24, 3)
        self.distance = nn.Linear(24, 1)

    def forward(self, x):
        h = self.trunk(x)
        return {"grade": self.grade(h), "distance": self.distance(h).squeeze(1)}


@fault(
    "a distance in millimetres is added to a cross-entropy: its squared error is all of the loss",
    rules=["term-dominates", "unscaled-target"],
    layers=[],
    fails=True,
    steps=350,
)
def millimetres_next_to_classes(faulty):
    x, y = classes(1500, 8, 3, seed=14)
    g = gen(15)
    metres = 0.5 * torch.randn(1500, generator=g) + torch.sin(2 * x[:, 6]) + 0.5 * x[:, 7]
    unit = 1000.0 if faulty else 1.0
    net = TwoHeads()

    def step(model, batch):
        a, cls, dist = batch
        out = model(a)
        return F.cross_entropy(out["grade"], cls) + F.mse_loss(out["distance"], dist * unit)

    return Program(
        net,
        None,
        loader(x[:1200], y[:1200], metres[:1200]),
        torch.optim.Adam(net.parameters(), lr=3e-3),
        lambda m: (m(x[1200:])["grade"].argmax(1) == y[1200:]).float().mean().item(),
        step=step,
    )


@fault(
    "eps=1.0 copied from an Inception recipe, with the rate of an ordinary Adam",
    rules=["optimizer-setting", "learning-rate-too-low"],
    fails=True,
    steps=300,
)
def adam_epsilon_of_one(faulty):
    x, y = shapes(900, seed=17)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(432, 32), nn.ReLU(), nn.Linear(32, 4)
    )
    opt = torch.optim.Adam(net.parameters(), lr=2e-3, eps=1.0 if faulty else 1e-8)
    return Program(net, nn.CrossEntropyLoss(), loader(x[:704], y[:704], batch_size=32), opt, accuracy(x[704:], y[704:]))


@fault(
    "weights kept in bfloat16 with small steps: most updates round away",
    rules=["lost-updates"],
    fails=False,
    steps=400,
)
def weights_in_bfloat16(faulty):
    x, y = table(1500, 8, seed=18)
    net = nn.Sequential(nn.Linear(8, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 1), nn.Flatten(0))
    kind = torch.bfloat16 if faulty else torch.float32
    net = net.to(kind)
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.0)
    return Program(
        net,
        lambda p, t: F.mse_loss(p.float(), t),
        loader(x[:1200].to(kind), y[:1200]),
        opt,
        lambda m: r2_of(m(x[1200:].to(kind)).float(), y[1200:]),
    )


@fault(
    "a probability to keep (0.95) is given to Dropout, which takes the probability to drop",
    rules=["dropout-too-strong"],
    layers=["2", "5"],
    fails=True,
    steps=350,
)
def keep_probability_as_drop(faulty):
    x, y = table(1500, 8, seed=20)
    p = 0.95 if faulty else 0.05
    net = nn.Sequential(
        nn.Linear(8, 48), nn.ReLU(), nn.Dropout(p), nn.Linear(48, 48), nn.ReLU(), nn.Dropout(p), nn.Linear(48, 1), nn.Flatten(0)
    )
    return Program(
        net, nn.SmoothL1Loss(), loader(x[:1200], y[:1200]), torch.optim.Adam(net.parameters(), lr=3e-3), r2(x[1200:], y[1200:])
    )


@fault(
    "a half-trained network is fine-tuned at the rate of training from scratch times a hundred",
    rules=["learning-rate-too-high"],
    fails=True,
    steps=150,
)
def fine_tuned_too_fast(faulty):
    x, y = shapes(900, seed=24)
    x = 0.5 * x.transpose(2, 3).flip(3) + 0.2
    net = pretrained(100)
    opt = torch.optim.SGD(net.parameters(), lr=2.0 if faulty else 0.02, momentum=0.9)
    return Program(net, nn.CrossEntropyLoss(), loader(x[:704], y[:704], batch_size=32), opt, accuracy(x[704:], y[704:]))
