"""Faults: fine-tuning and adapters."""

import torch
from program import Program, fault
from torch import nn
from xtg_data import accuracy, loader, texts


class Lora(nn.Module):
    def __init__(self, base, rank, up_std, down_std):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(down_std * torch.randn(rank, base.in_features))
        self.up = nn.Parameter(up_std * torch.randn(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + 2 * (x @ self.down.T) @ self.up.T


class Backbone(nn.Module):
    def __init__(self, vocab=60, classes=4):
        super().__init__()
        self.embed = nn.EmbeddingBag(vocab, 32, padding_idx=0)
        self.fc1 = nn.Linear(32, 64)
        self.fc2 = nn.Linear(64, 32)
        self.head = nn.Linear(32, classes)

    def forward(self, x):
        return self.head(torch.relu(self.fc2(torch.relu(self.fc1(self.embed(x))))))


def pretrained(x, y, steps=150, rate=5e-3):
    model = Backbone()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(steps):
        rows = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    optimizer.zero_grad()
    return model


@fault(
    "both factors of the adapters start at zero, so that neither gets a gradient",
    rules=["bad-initialisation", "symmetric-initialisation", "no-gradient", "loss-not-decreasing"],
    layers=["fc1", "fc2", "head"],
    fails=True,
    steps=300,
)
def xtg_adapters_of_zeros(is_faulty):
    x, _, y = texts(1200, 12, 60, 4, 6, 12)
    model = pretrained(x[:500], y[:500]).requires_grad_(False)
    new = (y + 1) % 4
    for name in ("fc1", "fc2", "head"):
        setattr(model, name, Lora(getattr(model, name), 4, 0.0, 0.0 if is_faulty else 0.2))
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[500:1000], new[500:1000]),
        torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3),
        lambda m: accuracy(m(x[1000:]), new[1000:]),
    )


@fault(
    "the head is replaced after the optimizer has been made, which goes on moving the old one",
    rules=["no-gradient"],
    layers=["head"],
    fails=True,
    steps=250,
)
def xtg_head_after_optimizer(is_faulty):
    x, _, y = texts(1200, 12, 60, 4, 6, 12)
    model = pretrained(x[:500], y[:500])
    new = torch.stack([y // 2, y % 2], 1).sum(1)
    for part in (model.embed, model.fc1, model.fc2):
        part.requires_grad_(False)
    fresh = nn.Linear(32, 3)
    if not is_faulty:
        model.head = fresh
    optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-2)
    model.head = fresh
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[500:1000], new[500:1000]),
        optimizer,
        lambda m: accuracy(m(x[1000:]), new[1000:]),
    )
