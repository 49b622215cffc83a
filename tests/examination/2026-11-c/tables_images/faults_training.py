"""Faults of the training: optimizers, groups, schedules, precision, data."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from data import *
from program import Program, fault


@fault("An own L2 penalty, the sum of all squared weights times 0.1 (meant: 0.0001), is added to the loss",
       rules=["weight-decay-dominates"], fails=True, steps=200)
def own_penalty_too_strong(is_faulty):
    start()
    xa, ya, xb, yb = digits()
    m = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    lam = 0.1 if is_faulty else 0.0001

    def step(model, batch):
        x, y = batch
        l2 = sum((p**2).sum() for p in model.parameters())
        return F.cross_entropy(model(x), y) + lam * l2

    return Program(m, None, loader(xa, ya), torch.optim.Adam(m.parameters(), 1e-3), accuracy(xb, yb), step=step)


@fault("The two betas of Adam are swapped: (0.999, 0.9)",
       rules=["optimizer-setting"], fails=False, steps=250)
def betas_swapped(is_faulty):
    start()
    xa, ya, xb, yb = regression(seed=35)
    m = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
    betas = (0.999, 0.9) if is_faulty else (0.9, 0.999)
    return Program(m, nn.HuberLoss(), loader(xa, ya), torch.optim.Adam(m.parameters(), 6e-3, betas=betas), r2(xb, yb))


@fault("The function of LambdaLR returns the learning rate itself and not a factor: the rate is squared",
       rules=["learning-rate-too-low"], fails=True, steps=250)
def lambda_returns_rate(is_faulty):
    start()
    xa, ya, xb, yb = digits()
    base, warm, total = 1e-3, 20, 400

    def schedule(step):
        factor = min((step + 1) / warm, 0.5 * (1 + math.cos(math.pi * min(step, total) / total)))
        return base * factor if is_faulty else factor

    m = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10))
    opt = torch.optim.AdamW(m.parameters(), lr=base, weight_decay=0.01)
    return Program(m, nn.CrossEntropyLoss(label_smoothing=0.05), loader(xa, ya), opt, accuracy(xb, yb), scheduler=LambdaLR(opt, schedule))


@fault("Biases should learn twice as fast; their group got a rate of 2 and not of 2 times the rate",
       rules=["learning-rate-too-high"], fails=False, steps=200)
def bias_group_rate_of_two(is_faulty):
    start()
    xa, ya, xb, yb = digits()
    m = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 10))
    lr = 2e-3
    decay = [p for n, p in m.named_parameters() if n.endswith("weight")]
    bias = [p for n, p in m.named_parameters() if n.endswith("bias")]
    opt = torch.optim.Adam([{"params": decay, "weight_decay": 1e-4}, {"params": bias, "lr": 2 if is_faulty else 2 * lr}], lr=lr)
    return Program(m, nn.CrossEntropyLoss(), loader(xa, ya), opt, accuracy(xb, yb))


class EqualLinear(nn.Module):
    """Weights of unit scale, scaled at run time."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_out, n_in))
        self.bias = nn.Parameter(torch.zeros(n_out))
        self.scale = n_in**-0.5

    def forward(self, x):
        return F.linear(x, self.weight * self.scale, self.bias)


@fault("A net with weights of unit scale is turned to bfloat16; steps of 0.001 are below the precision of the weights",
       rules=["lost-updates"], fails=False, steps=400)
def bfloat16_unit_weights(is_faulty):
    start()
    xa, ya, xb, yb = regression(seed=45)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([EqualLinear(8, 96), EqualLinear(96, 96), EqualLinear(96, 1)])

        def forward(self, x):
            x = x.to(self.layers[0].weight.dtype)
            for i, layer in enumerate(self.layers):
                x = layer(x)
                if i < 2:
                    x = F.leaky_relu(x, 0.2) * 2**0.5
            return x.float()

    m = Net()
    if is_faulty:
        m = m.bfloat16()
    return Program(m, nn.MSELoss(), loader(xa, ya), torch.optim.Adam(m.parameters(), 2e-3), r2(xb, yb))



@fault("Temperatures of sensors in kelvin are divided by 300 and not standardised: all inputs are nearly one and the same point",
       rules=["ill-conditioned-input", "unscaled-input", "constant-feature", "rank-collapse"], fails=True, steps=250)
def sensors_in_kelvin(is_faulty):
    start()
    xa, ya, xb, yb = smooth(seed=16)
    ka, kb = 295 + 1.5 * xa, 295 + 1.5 * xb
    if is_faulty:
        ka, kb = ka / 300, kb / 300
    else:
        mean, std = ka.mean(0), ka.std(0)
        ka, kb = (ka - mean) / std, (kb - mean) / std
    m = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    return Program(m, nn.MSELoss(), loader(ka, ya), torch.optim.Adam(m.parameters(), 2e-3), r2(kb, yb))


@fault("Of two tasks that share a trunk, one predicts prices in plain money: its loss is a million times the other's and never gets there",
       rules=["unscaled-target"], fails=True, steps=250)
def price_beside_a_class(is_faulty):
    start()
    xa, ya, xb, yb = smooth(seed=26)
    ca, cb = (xa[:, 0] * xa[:, 1] > 0).long(), (xb[:, 0] * xb[:, 1] > 0).long()
    pa, pb = 250_000 + 60_000 * ya, 250_000 + 60_000 * yb
    mean, std = (0.0, 1.0) if is_faulty else (pa.mean(), pa.std())
    ta = torch.cat([(pa - mean) / std, ca[:, None].float()], 1)

    class TwoHeads(nn.Module):
        def __init__(self):
            super().__init__()
            self.shared = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
            self.price = nn.Linear(64, 1)
            self.kind = nn.Linear(64, 2)

        def forward(self, x):
            h = self.shared(x)
            return {"price": self.price(h), "kind": self.kind(h)}

    def loss(out, t):
        return F.mse_loss(out["price"], t[:, :1]) + F.cross_entropy(out["kind"], t[:, 1].long())

    def score(m):
        out = m(xb)
        acc = (out["kind"].argmax(1) == cb).float().mean().item()
        return 0.5 * max(0.0, 2 * acc - 1) + 0.5 * r2_of(out["price"] * std + mean, pb)

    m = TwoHeads()
    return Program(m, loss, loader(xa, ta), torch.optim.Adam(m.parameters(), 3e-3), score)


