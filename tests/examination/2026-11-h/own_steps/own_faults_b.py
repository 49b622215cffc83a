import torch
import torch.nn.functional as F
from own_kit import accuracy, blobs, curve, loader, r2, rng
from program import Program, fault
from torch import nn


class NodePool(nn.Module):
    """Attention pooling over the nodes of a graph."""

    def __init__(self, dim, d=6):
        super().__init__()
        self.dim = dim
        self.gate = nn.Linear(d, 1)
        self.value = nn.Linear(d, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        w = torch.softmax(self.gate(x), dim=self.dim)
        return self.head((w * self.value(x)).sum(1)).squeeze(-1)


def graphs(seed, n):
    x = torch.randn(n, 7, 6, generator=rng(seed))
    x[..., 0] *= 2
    return x, x[torch.arange(n), x[..., 0].argmax(1), 1]


@fault(
    "attention pooling of a graph: softmax over the single channel of the gate, so that every weight is 1",
    rules=["wrong-softmax-dimension", "no-gradient"],
    layers=["gate"],
    fails=True,
    steps=400,
)
def graph_gate_softmax_last(is_faulty):
    model = NodePool(-1 if is_faulty else 1)
    tx, ty = graphs(2, 600)
    return Program(
        model,
        F.mse_loss,
        loader(*graphs(1, 2048)),
        torch.optim.Adam(model.parameters(), lr=1e-2),
        lambda m: r2(m(tx), ty),
    )


@fault(
    "physics-informed network: the residual is weighted 1e4 against the two boundary conditions, and u = 0 wins",
    rules=["term-dominates"],
    fails=True,
    steps=400,
)
def pinn_residual_outweighs_boundary(is_faulty):
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    weight = 1e4 if is_faulty else 0.1
    test = torch.linspace(0, 2, 100)[:, None]
    truth = torch.cos(2 * test)

    def step(model, batch):
        (x,) = batch
        x = x.requires_grad_(True)
        u = model(x)
        du = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
        ddu = torch.autograd.grad(du.sum(), x, create_graph=True)[0]
        residual = ((ddu + 4 * u) ** 2).mean()
        zero = torch.zeros(1, 1, requires_grad=True)
        start = model(zero)
        slope = torch.autograd.grad(start.sum(), zero, create_graph=True)[0]
        return weight * residual + ((start - 1) ** 2 + slope**2).mean()

    return Program(
        model,
        None,
        loader(2 * torch.rand(640, 1, generator=rng(1))),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        lambda m: r2(m(test), truth),
        step=step,
    )


class Sine(nn.Module):
    def __init__(self, i, o, w0=30.0, first=False, init=True):
        super().__init__()
        self.linear, self.w0 = nn.Linear(i, o), w0
        if init:
            bound = 1 / i / 3 if first else (6 / i) ** 0.5 / w0
            nn.init.uniform_(self.linear.weight, -bound, bound)
        else:
            nn.init.normal_(self.linear.weight)

    def forward(self, x):
        return torch.sin(self.w0 * self.linear(x))


def picture(seed, n):
    x = 2 * torch.rand(n, 2, generator=rng(seed)) - 1
    return x, (torch.sin(4 * x[:, :1]) * torch.cos(5 * x[:, 1:]) + 0.5 * x[:, :1])


@fault(
    "implicit network with sines: weights drawn from N(0, 1) although they are multiplied by w0 = 30",
    rules=["bad-initialisation", "exploding-gradient"],
    layers=["0", "1", "2"],
    fails=True,
    steps=300,
)
def siren_normal_weights(is_faulty):
    good = not is_faulty
    model = nn.Sequential(Sine(2, 48, first=True, init=good), Sine(48, 48, init=good), nn.Linear(48, 1))
    tx, ty = picture(2, 500)
    return Program(
        model,
        nn.MSELoss(),
        loader(*picture(1, 1024), size=128),
        torch.optim.Adam(model.parameters(), lr=1e-3),
        lambda m: r2(m(tx), ty),
    )


@fault(
    "a scheduler meant for epochs (halve the rate) is stepped after every batch",
    rules=["learning-rate-too-low"],
    fails=True,
    steps=300,
)
def exponential_schedule_per_batch(is_faulty):
    x, y = blobs(1, 2048, 6, 16)
    tx, ty = blobs(2, 600, 6, 16)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 6))
    opt = torch.optim.SGD(
        [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.05}], lr=0.02, momentum=0.9
    )
    per_epoch = 32
    if is_faulty:
        sched = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.5)
    else:
        sched = torch.optim.lr_scheduler.StepLR(opt, per_epoch, gamma=0.5)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, lambda m: accuracy(m(tx), ty), scheduler=sched)


@fault(
    "an L2 penalty on all weights, written by hand in the step, with a coefficient of 0.3",
    rules=["weight-decay-dominates", "term-dominates"],
    fails=True,
    steps=400,
)
def hand_written_l2(is_faulty):
    x, y = curve(1, 2000)
    tx, ty = curve(2, 500)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    lam = 0.3 if is_faulty else 1e-6

    def step(model, batch):
        a, b = batch
        l2 = sum(p.pow(2).sum() for p in model.parameters())
        return F.mse_loss(model(a), b) + lam * l2

    return Program(
        model, None, loader(x, y), torch.optim.Adam(model.parameters(), lr=3e-3), lambda m: r2(m(tx), ty), step=step
    )
