"""Sound programs over sequences, looked at half trained or trained."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn

from data import accuracy, loader, motifs, order, r2, recall, text, waves


@sound("A trained lookup: its attention looks at one place, as it should.", trained=500, steps=600, least=0.9)
def trained_lookup():
    from attention import Lookup, lookup_program

    return lookup_program(Lookup())


@sound("A language model halfway: the loss still falls.", trained=80, steps=300, least=0.85)
def gpt_halfway():
    from language import TinyGPT, ce, next_token

    data = text()
    model = TinyGPT(depth=1)
    return Program(
        model, ce, loader(data[:, :-1], data[:, 1:]), torch.optim.Adam(model.parameters(), 2e-3), next_token()
    )


@sound("A trained memory: gates of its LSTM are open or shut for good.", trained=300, steps=400, least=0.9)
def trained_memory():
    from recurrent import forget_gates_closed

    p = forget_gates_closed(False)
    x, y = recall(length=25)
    tx, ty = recall(length=25, seed=1)
    p.batches, p.score = loader(x, y), accuracy(tx, ty)
    return p


@sound("A forecaster that has converged to the noise: the loss falls no more.", trained=500, steps=550, least=0.9)
def converged_forecaster():
    x, y = waves()
    tx, ty = waves(seed=2)
    net = nn.Sequential(nn.Flatten(), nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 1))
    return Program(net, nn.MSELoss(), loader(x, y), torch.optim.Adam(net.parameters(), 3e-3), r2(tx, ty))


@sound(
    "A classifier that is sure and right: its probabilities are 0 and 1 and its gradients tiny.",
    trained=300,
    steps=350,
    least=0.95,
)
def sure_and_right():
    x, y = motifs()
    tx, ty = motifs(seed=4)
    net = nn.Sequential(
        nn.Conv1d(3, 24, 7),
        nn.ReLU(),
        nn.AdaptiveMaxPool1d(1),
        nn.Flatten(),
        nn.Linear(24, 32),
        nn.ReLU(),
        nn.Linear(32, 4),
    )
    return Program(net, F.cross_entropy, loader(x, y), torch.optim.Adam(net.parameters(), 5e-3), accuracy(tx, ty))


@sound("The rate of a cosine schedule near its end is almost zero.", trained=280, steps=300, least=0.85)
def end_of_cosine():
    x, y = order(n=2048)
    tx, ty = order(seed=1)
    net = nn.Sequential(nn.Embedding(10, 16), nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 2))
    opt = torch.optim.AdamW(net.parameters(), 5e-3)
    plan = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=300)
    return Program(net, F.cross_entropy, loader(x, y, batch=64), opt, accuracy(tx, ty), scheduler=plan)


@sound("Fine-tuning at 1e-4 of a network that was trained on the same task with less noise.", steps=200, least=0.9)
def gentle_fine_tuning():
    x, y = waves()
    tx, ty = waves(seed=2)
    net = nn.Sequential(nn.Flatten(), nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 1))
    before = Program(net, nn.MSELoss(), loader(x, y), torch.optim.Adam(net.parameters(), 5e-3), r2(tx, ty))
    before.train(250)
    shift = 0.2
    return Program(
        net, nn.MSELoss(), loader(x, y + shift), torch.optim.Adam(net.parameters(), 1e-4), r2(tx, ty + shift)
    )


@sound(
    "A probe: a pretrained encoder is frozen in evaluation mode, the linear head alone is trained.",
    steps=200,
    least=0.85,
)
def linear_probe():
    x, y = motifs()
    tx, ty = motifs(seed=4)
    body = nn.Sequential(nn.Conv1d(3, 24, 7), nn.BatchNorm1d(24), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten())
    first = nn.Sequential(body, nn.Linear(24, 4))
    Program(first, F.cross_entropy, loader(x, y), torch.optim.Adam(first.parameters(), 5e-3), accuracy(tx, ty)).train(
        150
    )
    body.requires_grad_(False)

    class Probe(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = body, nn.Linear(24, 2)

        def train(self, mode=True):
            super().train(mode)
            self.body.eval()
            return self

        def forward(self, x):
            with torch.no_grad():
                h = self.body(x)
            return self.head(h)

    net = Probe().train()
    return Program(
        net, F.cross_entropy, loader(x, y % 2), torch.optim.Adam(net.head.parameters(), 1e-2), accuracy(tx, ty % 2)
    )
