"""Fine-tuning, distillation, precision, schedules and memory with one mistake each."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn

from data import accuracy, classes, digits, loader, r2, rng, table


@fault(
    "Everything is frozen but parameters with 'fc' in their names; the head is called 'classifier'.",
    rules=["no-gradient", "model-fails"],
    fails=True,
    steps=200,
)
def head_frozen_by_its_name(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
            self.classifier = nn.Linear(144, 10)

        def forward(self, x):
            return self.classifier(self.features(x))

    x, y, tx, ty = digits()
    net = Net()
    for name, p in net.named_parameters():
        p.requires_grad = ("fc" if is_faulty else "classifier") in name
    return Program(net, F.cross_entropy, loader(x, y), torch.optim.Adam(net.parameters(), 1e-2), accuracy(tx, ty))


@fault(
    "The body runs under no_grad, as it did when it was pretrained, but this one starts from random weights.",
    rules=["no-gradient"],
    layers=["body"],
    fails=True,
    steps=300,
)
def random_body_under_no_grad(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh())
            self.head = nn.Linear(16, 4)

        def forward(self, x):
            with torch.set_grad_enabled(torch.is_grad_enabled() and not is_faulty):
                h = self.body(x)
            return self.head(h)

    x, y, tx, ty = classes()
    net = Net()
    return Program(net, F.cross_entropy, loader(x, y), torch.optim.Adam(net.parameters(), 1e-2), accuracy(tx, ty))


@fault(
    "The optimizer is given model.head.parameters() where model.parameters() was meant.",
    rules=["lost-updates", "no-gradient"],
    layers=["stem", "middle"],
    fails=False,
    steps=300,
)
def optimizer_of_the_head(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.middle, self.head = nn.Linear(10, 64), nn.Linear(64, 64), nn.Linear(64, 1)

        def forward(self, x):
            return self.head(torch.tanh(self.middle(torch.tanh(self.stem(x)))))

    x, y, tx, ty = table()
    net = Net()
    chosen = net.head if is_faulty else net
    return Program(net, nn.MSELoss(), loader(x, y), torch.optim.Adam(chosen.parameters(), 1e-2), r2(tx, ty))


@fault(
    "NLLLoss is fed raw scores: without a log_softmax it falls for ever and says nothing about the other classes.",
    rules=["output-loss-mismatch"],
    fails=True,
    steps=300,
)
def nll_of_raw_scores(is_faulty):
    x, y, tx, ty = classes()
    layers = [nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)]
    if not is_faulty:
        layers.append(nn.LogSoftmax(dim=1))
    net = nn.Sequential(*layers)
    return Program(net, nn.NLLLoss(), loader(x, y), torch.optim.Adam(net.parameters(), 5e-3), accuracy(tx, ty))


@fault(
    "BCELoss is fed scores without a sigmoid, and refuses them.",
    rules=["model-fails", "output-loss-mismatch", "non-finite"],
    fails=True,
    steps=300,
)
def bce_without_sigmoid(is_faulty):
    x, y, tx, ty = classes()
    y2 = F.one_hot(y, 4).float()
    layers = [nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)]
    if not is_faulty:
        layers.append(nn.Sigmoid())
    net = nn.Sequential(*layers)
    return Program(net, nn.BCELoss(), loader(x, y2), torch.optim.Adam(net.parameters(), 5e-3), accuracy(tx, ty))


@fault(
    "ExponentialLR with gamma 0.8, meant for epochs, is stepped after every batch.",
    rules=["learning-rate-too-low"],
    fails=True,
    steps=300,
)
def decayed_every_batch(is_faulty):
    x, y, tx, ty = digits()
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    gamma = 0.8 if is_faulty else 0.8 ** (1 / 43)
    plan = torch.optim.lr_scheduler.ExponentialLR(opt, gamma)
    return Program(net, F.cross_entropy, loader(x, y), opt, accuracy(tx, ty), scheduler=plan)


@fault(
    "The rate 3.0 of plain SGD for a small convolutional network (0.1 was meant).",
    rules=["learning-rate-too-high"],
    fails=True,
    steps=300,
)
def rate_of_three(is_faulty):
    x, y, tx, ty = digits()
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3),
        nn.ReLU(),
        nn.Conv2d(12, 16, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )
    opt = torch.optim.SGD(net.parameters(), lr=3.0 if is_faulty else 0.1)
    return Program(net, F.cross_entropy, loader(x, y), opt, accuracy(tx, ty))


@fault(
    "Adam's 1e-5 of a recipe for fine-tuning trains a small network from scratch.",
    rules=["learning-rate-too-low"],
    fails=True,
    steps=300,
)
def fine_tuning_rate_from_scratch(is_faulty):
    x, y, tx, ty = classes()
    net = nn.Sequential(nn.Linear(8, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 4))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-5 if is_faulty else 5e-3)
    return Program(net, F.cross_entropy, loader(x, y), opt, accuracy(tx, ty))


@fault(
    "The norm of each picture is computed in half precision: the sum of squared pixels overflows, and x / inf is 0.",
    rules=["non-finite", "constant-feature", "rank-collapse"],
    fails=True,
    steps=200,
)
def half_precision_norm(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

        def forward(self, x):
            x = 255 * x.flatten(1)
            if is_faulty:
                x = x.half()
            norm = (x * x).sum(1, keepdim=True).sqrt()
            return self.fc(4 * (x / norm).float())

    x, y, tx, ty = digits()
    net = Net()
    return Program(net, F.cross_entropy, loader(x, y), torch.optim.Adam(net.parameters(), 3e-3), accuracy(tx, ty))


@fault(
    "Two towers that should differ: one's weights were set by `a.weight.data = b.weight.data`, which shares the memory.",
    rules=["shared-weight"],
    layers=["left", "right"],
    fails=False,
    steps=400,
)
def memory_shared_by_data(is_faulty):
    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(5, 32), nn.Linear(5, 32)
            for p, q in zip(self.left.parameters(), self.right.parameters(), strict=True):
                q.data = p.data if is_faulty else p.data.clone()

        def forward(self, x):
            a, b = x.chunk(2, 1)
            return (torch.tanh(self.left(a)) - torch.tanh(self.right(b))).mean(1, keepdim=True) * 4

    g = rng(3)
    x = torch.randn(1500, 10, generator=g)
    y = (torch.tanh(x[:, 0] + x[:, 1]) + torch.tanh(x[:, 5] - x[:, 6]))[:, None]
    net = Towers()
    opt = torch.optim.Adam(net.parameters(), 1e-2)
    return Program(net, nn.MSELoss(), loader(x[:1100], y[:1100]), opt, r2(x[1100:], y[1100:]))


@fault(
    "The features of all places are summed, not averaged, before the last layer, at a rate that was right for the mean.",
    rules=["last-layer-drift", "activation-drift", "learning-rate-too-high", "bad-initialisation"],
    fails=True,
    steps=500,
)
def sum_pooling(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.c1, self.c2 = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
            self.fc = nn.Linear(32, 10)

        def forward(self, x):
            h = F.relu(self.c2(F.relu(self.c1(2 * x))))
            return self.fc(h.sum((2, 3)) if is_faulty else h.mean((2, 3)))

    x, y, tx, ty = digits()
    net = Net()
    return Program(
        net, F.cross_entropy, loader(x, y), torch.optim.SGD(net.parameters(), 0.05, momentum=0.9), accuracy(tx, ty)
    )


@fault(
    "The focal loss's prior bias, -log(99), is set on all layers and not on the last one only: no ReLU is ever on.",
    rules=["dying-neurons", "no-gradient", "rank-collapse"],
    fails=True,
    steps=300,
)
def prior_bias_everywhere(is_faulty):
    x, y, tx, ty = digits()
    net = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(96, 10),
    )
    prior = -math.log((1 - 0.01) / 0.01)
    for m in net:
        if isinstance(m, (nn.Conv2d, nn.Linear)) and (is_faulty or m is net[-1]):
            nn.init.constant_(m.bias, prior)
    opt = torch.optim.Adam(net.parameters(), 2e-3)
    loss = nn.BCEWithLogitsLoss()
    return Program(net, loss, loader(x, F.one_hot(y, 10).float()), opt, accuracy(tx, ty))


@fault(
    "Fifteen residual blocks with nothing to hold their sum down, neither a norm nor a small last layer.",
    rules=["activation-drift", "exploding-gradient", "bad-initialisation"],
    fails=False,
    steps=200,
)
def fifteen_bare_residuals(is_faulty):
    class Block(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.a, self.b = nn.Linear(d, d), nn.Linear(d, d)
            nn.init.kaiming_normal_(self.a.weight)
            nn.init.kaiming_normal_(self.b.weight)
            if not is_faulty:
                nn.init.zeros_(self.b.weight)

        def forward(self, x):
            return x + self.b(self.a(x).relu())

    x, y, tx, ty = digits()
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), *[Block() for _ in range(15)], nn.Linear(32, 10))
    return Program(net, F.cross_entropy, loader(x, y), torch.optim.Adam(net.parameters(), 1e-3), accuracy(tx, ty))


@fault(
    "F.dropout in forward without training=self.training, on two layers.",
    rules=["dropout-in-eval"],
    fails=False,
    steps=300,
)
def functional_dropout(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2, self.fc3 = nn.Linear(64, 32), nn.Linear(32, 32), nn.Linear(32, 10)

        def forward(self, x):
            on = True if is_faulty else self.training
            x = F.dropout(self.fc1(x.flatten(1)).relu(), 0.5, training=on)
            x = F.dropout(self.fc2(x).relu(), 0.5, training=on)
            return self.fc3(x)

    x, y, tx, ty = digits()
    net = Net()
    return Program(net, F.cross_entropy, loader(x, y), torch.optim.Adam(net.parameters(), 5e-3), accuracy(tx, ty))
