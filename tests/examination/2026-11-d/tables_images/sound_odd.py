"""Sound programs for tables and pictures that look wrong."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn

from data import accuracy, classes, digits, loader, r2, rng, table
from images import convnet
from tables import mlp


@sound("Nothing nonlinear between two layers: a low-rank linear autoencoder, which is PCA.", steps=500, least=0.65)
def linear_autoencoder():
    from generative import rebuilt

    x, _, tx, _ = digits()
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Linear(16, 64))
    opt = torch.optim.Adam(net.parameters(), 5e-3)
    return Program(net, lambda o, t: F.mse_loss(o, t.flatten(1)), loader(x, x), opt, rebuilt(tx))


@sound(
    "Features differ ten-thousandfold in scale, and a BatchNorm stands in front of the first layer.",
    steps=400,
    least=0.8,
)
def batchnorm_on_raw_features():
    x, y, tx, ty = classes()
    unit = torch.tensor([1e4, 10.0, 0.1, 1.0, 500.0, 1.0, 0.01, 30.0])
    net = nn.Sequential(nn.BatchNorm1d(8), *mlp(8, 64, 64, 4))
    opt = torch.optim.Adam(net.parameters(), 5e-3)
    return Program(net, F.cross_entropy, loader(unit * x + unit, y), opt, accuracy(unit * tx + unit, ty))


@sound(
    "Each batch holds four classes of ten only: a sampler for metric learning, eight pictures of each.",
    steps=400,
    least=0.8,
)
def class_sampler():
    """Nearest neighbors by the embedding are scored."""
    x, y, tx, ty = digits()

    class Sampler:
        def __iter__(self):
            for _ in range(40):
                some = torch.randperm(10)[:4]
                i = torch.cat([torch.where(y == c)[0][torch.randperm(int((y == c).sum()))[:8]] for c in some])
                yield x[i], y[i]

    def triplet(z, y):
        d = torch.cdist(z, z)
        same = y[:, None] == y[None]
        far = (d - 1e3 * (~same)).amax(1)
        near = (d + 1e3 * same).amin(1)
        return F.softplus(far - near).mean()

    def score(model):
        z, tz = model(x), model(tx)
        return (y[torch.cdist(tz, z).argmin(1)] == ty).float().mean().item()

    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    return Program(net, triplet, Sampler(), torch.optim.Adam(net.parameters(), 3e-3), score)


@sound("Half the columns are one-hot codes of rare categories: in most batches they do not vary.", steps=400, least=0.8)
def rare_categories():
    x, y, tx, ty = table()
    g = rng(3)

    def widen(x):
        c = (torch.rand(len(x), generator=g) ** 4 * 40).long()
        return torch.cat([x, F.one_hot(c, 40).float()], 1)

    net = mlp(50, 64, 64, 1)
    return Program(net, nn.MSELoss(), loader(widen(x), y), torch.optim.Adam(net.parameters(), 5e-3), r2(widen(tx), ty))


@sound("One picture at a time, with GroupNorm in place of BatchNorm.", steps=600, least=0.75)
def batches_of_one():
    x, y, tx, ty = digits()
    net = convnet(norm=lambda c: nn.GroupNorm(4, c))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    return Program(net, F.cross_entropy, loader(x, y, batch=1), opt, accuracy(tx, ty))


@sound(
    "The outputs are held to the scale of targets in the thousands by a last layer with that mean and scale.",
    steps=400,
    least=0.8,
)
def targets_in_thousands():
    x, y, tx, ty = table()

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(10, 64, 64, 1)

        def forward(self, x):
            return 5000 + 2000 * self.net(x)

    net = Scaled()
    opt = torch.optim.Adam(net.parameters(), 3e-3)
    return Program(net, nn.HuberLoss(delta=1000.0), loader(x, 5000 + 2000 * y), opt, r2(tx, 5000 + 2000 * ty))


@sound("Counts up to hundreds are the targets of a Poisson likelihood in logarithms.", steps=400, least=0.7)
def poisson_counts():
    g = rng(5)
    x = torch.randn(1600, 6, generator=g)
    rate = torch.exp(3 + 0.5 * x[:, 0] - 0.4 * x[:, 1] * x[:, 2])
    y = torch.poisson(rate, generator=g)
    net = mlp(6, 64, 64, 1)

    def loss(out, y):
        return F.poisson_nll_loss(out[:, 0], y, log_input=True)

    def score(model):
        want = rate[1200:].log()
        return max(0.0, 1 - ((model(x[1200:])[:, 0] - want).square().mean() / want.var()).item())

    return Program(net, loss, loader(x[:1200], y[:1200]), torch.optim.Adam(net.parameters(), 3e-3), score)


@sound("SIREN: sines of thirty times the input, weights in front of it that look too large.", steps=500, least=0.8)
def siren():
    class Sine(nn.Module):
        def __init__(self, a, b, w, first=False):
            super().__init__()
            self.fc, self.w = nn.Linear(a, b), w
            bound = 1 / a if first else math.sqrt(6 / a) / w
            nn.init.uniform_(self.fc.weight, -bound, bound)

        def forward(self, x):
            return torch.sin(self.w * self.fc(x))

    g = rng(6)
    x = 2 * torch.rand(1500, 2, generator=g) - 1
    y = torch.sin(9 * x[:, :1]) * torch.cos(7 * x[:, 1:])
    net = nn.Sequential(Sine(2, 48, 15, True), Sine(48, 48, 15), nn.Linear(48, 1))
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    return Program(net, nn.MSELoss(), loader(x[:1200], y[:1200], batch=64), opt, r2(x[1200:], y[1200:]))


@sound(
    "The last norm of each residual block starts at zero, so that most layers get no gradient at first.",
    steps=300,
    least=0.9,
)
def zero_gamma():
    class Block(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.f = nn.Sequential(
                nn.Linear(d, d, bias=False),
                nn.BatchNorm1d(d),
                nn.ReLU(),
                nn.Linear(d, d, bias=False),
                nn.BatchNorm1d(d),
            )
            nn.init.zeros_(self.f[-1].weight)

        def forward(self, x):
            return F.relu(x + self.f(x))

    x, y, tx, ty = digits()
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), *[Block(48) for _ in range(4)], nn.Linear(48, 10))
    nn.init.zeros_(net[-1].weight)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    return Program(net, F.cross_entropy, loader(x, y), opt, accuracy(tx, ty))


@sound("A binary code with a straight-through estimate of the gradient.", steps=600, least=0.6)
def straight_through():
    from generative import sign_stops_the_gradient

    return sign_stops_the_gradient(False)


@sound("A GAN: the generator's loss need not fall, because the discriminator learns too.", steps=600, least=0.6)
def small_gan():
    from generative import generator_detached

    return generator_detached(False)


@sound(
    "A physics-informed network: the loss is of second derivatives, at random points, without any data.",
    steps=600,
    least=0.8,
)
def pinn():
    """u'' = -pi^2 sin(pi x), u(0) = u(1) = 0; the answer is sin(pi x)."""
    net = mlp(1, 32, 32, 1, act=nn.Tanh)
    points = torch.rand(1024, 1, generator=rng(8))
    grid = torch.linspace(0, 1, 200)[:, None]

    def step(net, batch):
        x = batch[0].clone().requires_grad_()
        u = net(x)
        (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (ddu,) = torch.autograd.grad(du.sum(), x, create_graph=True)
        inside = (ddu + math.pi**2 * torch.sin(math.pi * x)).square().mean()
        edge = net(torch.tensor([[0.0], [1.0]])).square().mean()
        return 0.05 * inside + edge

    return Program(
        net,
        None,
        loader(points, batch=64),
        torch.optim.Adam(net.parameters(), 5e-3),
        r2(grid, torch.sin(math.pi * grid)),
        step=step,
    )
