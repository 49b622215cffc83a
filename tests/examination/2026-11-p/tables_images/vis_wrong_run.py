"""Mistakes in optimizers, schedules, normalization settings and losses of several terms."""

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from vis_data import accuracy, blobs, loader, r2, rings, shapes, table, waves


class ConvBN(nn.Sequential):
    def __init__(self, i, o, momentum=0.1):
        super().__init__(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o, momentum=momentum), nn.ReLU(inplace=True))


@fault(
    "BatchNorm with a momentum of another framework: 0.001 after its 0.999",
    rules=["batchnorm-mode-gap"],
    layers=["0", "1", "3"],
    fails=True,
    steps=200,
)
def momentum_of_statistics(is_faulty):
    x, y = shapes(1024)
    x = 2 + 3 * x
    mom = 0.001 if is_faulty else 0.1
    net = nn.Sequential(ConvBN(1, 8, mom), ConvBN(8, 12, mom), nn.MaxPool2d(2), ConvBN(12, 16, mom), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))
    opt = optim.AdamW(net.parameters(), 5e-3)
    return Program(net, nn.CrossEntropyLoss(), loader(x[:768], y[:768]), opt, accuracy(x[768:], y[768:]))


@fault(
    "weight_decay=0.5 in Adam, a value from a paper about AdamW",
    rules=["weight-decay-dominates"],
    fails=True,
    steps=300,
)
def decay_in_adam(is_faulty):
    x, y = rings(1400)
    net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    opt = (optim.Adam if is_faulty else optim.AdamW)(net.parameters(), lr=3e-3, weight_decay=0.5)
    return Program(net, nn.CrossEntropyLoss(), loader(x[:1024], y[:1024]), opt, accuracy(x[1024:], y[1024:]))


@fault("A decay meant for epochs, taken at each step", rules=["learning-rate-too-low"], fails=False, steps=350)
def decay_per_step(is_faulty):
    x, y = waves(1024)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 7, padding=3), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(16, 24, 5, padding=2), nn.ReLU(),
        nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(24, 4))  # fmt: skip
    opt = optim.Adam(net.parameters(), 3e-3)
    batches = loader(x[:768], y[:768])
    sched = optim.lr_scheduler.StepLR(opt, step_size=5 if is_faulty else 5 * len(batches), gamma=0.3)
    return Program(net, nn.CrossEntropyLoss(), batches, opt, accuracy(x[768:], y[768:]), scheduler=sched)


@fault(
    "The loss is a sum over 128 examples, at a rate for means",
    rules=["summed-loss", "learning-rate-too-high", "diverging", "exploding-gradient"],
    fails=True,
    steps=250,
)
def summed(is_faulty):
    x, y = table(1400)
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    loss = nn.MSELoss(reduction="sum" if is_faulty else "mean")
    opt = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    return Program(net, loss, loader(x[:1024], y[:1024, None], batch=128), opt, r2(x[1024:], y[1024:]))


@fault(
    "A box in pixels and a class: the squared error of the box drowns the class",
    rules=["term-dominates", "unscaled-target"],
    fails=True,
    steps=300,
)
def box_and_class(is_faulty):
    x, y = shapes(1200)
    size = 640.0
    # where the shape is: from the mass of the picture
    i = torch.arange(12.0)
    mass = x[:, 0].clamp(min=0.6) - 0.6
    cy = (mass.sum(2) * i).sum(1) / mass.sum((1, 2)).clamp(min=1e-3) / 12
    cx = (mass.sum(1) * i).sum(1) / mass.sum((1, 2)).clamp(min=1e-3) / 12
    box = torch.stack([cx, cy], 1) * (size if is_faulty else 1.0)

    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(),
                nn.Flatten(), nn.Linear(16 * 36, 48), nn.ReLU())
            self.cls, self.box = nn.Linear(48, 4), nn.Linear(48, 2)

        def forward(self, x):
            h = self.body(x)
            return self.cls(h), self.box(h)

    def step(model, batch):
        img, label, where = batch
        logits, found = model(img)
        return F.cross_entropy(logits, label) + F.mse_loss(found, where)

    def score(model):
        return (model(x[900:])[0].argmax(1) == y[900:]).float().mean().item()

    net = Detector()
    return Program(net, None, loader(x[:900], y[:900], box[:900]), optim.Adam(net.parameters(), 2e-3), score, step=step)


@fault("The betas of Adam the wrong way round", rules=["optimizer-setting"], fails=False, steps=250)
def betas_swapped(is_faulty):
    x, y = table(1400)
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
    opt = optim.Adam(net.parameters(), lr=1e-2, betas=(0.999, 0.9) if is_faulty else (0.9, 0.999))
    return Program(net, nn.MSELoss(), loader(x[:1024], y[:1024]), opt, r2(x[1024:], y[1024:]))
