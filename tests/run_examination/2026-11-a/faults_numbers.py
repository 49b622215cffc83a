"""Faults of numbers: precision and loss scales. `mistake=False` is the same loop without the fault."""

from __future__ import annotations

import data
import torch
import torch.nn.functional as F
from program import Record, fault
from torch import nn


@fault(
    "Weights kept in bfloat16 and plain SGD at 0.005 on them: nearly every update is smaller than half a step of the"
    " format and is rounded away, so the loss stops far above that of float32 weights",
    rules=("lost-updates", "learning-rate-too-low"),
    step=0,
    steps=2000,
)
def bfloat16_weights(record: Record, mistake: bool = True) -> None:
    torch.manual_seed(31)
    dtype = torch.bfloat16 if mistake else torch.float32
    x, y = data.tabular(8000, 21, features=16, classes=4, noise=0.2)
    held_x, held_y = data.tabular(2000, 22, features=16, classes=4, noise=0.2)
    model = nn.Sequential(
        nn.Linear(16, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 4)
    ).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005)

    def criterion(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(outputs.float(), targets)

    recorder = record(model, optimizer, criterion)
    for _ in range(2000):
        pick = torch.randint(8000, (64,))
        inputs = x[pick].to(dtype)
        optimizer.zero_grad()
        loss = criterion(model(inputs), y[pick])
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (inputs, y[pick]))
    with torch.no_grad():
        data.SCORES["bfloat16_weights"] = criterion(model(held_x.to(dtype)), held_y).item()


class Embedder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 16))
        self.classes = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        e = self.trunk(x)
        return self.classes(e), e


@fault(
    "From step 600 the sampler draws with replacement, so a batch holds the same sample twice in a row; the square root"
    " in the pull loss has a NaN gradient at distance zero, GradScaler skips every step and halves its scale to nothing."
    " The loss stays finite, no weight moves any more",
    rules=("lost-updates", "non-finite", "no-gradient", "loss-not-decreasing"),
    step=600,
    steps=1500,
)
def loss_scale_collapses(record: Record, mistake: bool = True) -> None:
    torch.manual_seed(32)
    x, y = data.tabular(6000, 23)
    held_x, held_y = data.tabular(2000, 24)
    model = Embedder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1.5e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)

    def criterion(outputs: tuple[torch.Tensor, torch.Tensor], targets: torch.Tensor) -> torch.Tensor:
        logits, e = outputs
        distance = ((e[1:] - e[:-1]) ** 2).sum(1).sqrt()
        same = (targets[1:] == targets[:-1]).float()
        return F.cross_entropy(logits, targets) + 0.05 * (same * distance).mean()

    recorder = record(model, optimizer, criterion)
    for step in range(1500):
        if step < 600 or not mistake:
            pick = torch.randperm(6000)[:64]
        else:
            pick = torch.randint(6000, (56,))
            pick = torch.cat([pick, pick[torch.randint(56, (8,))]])  # class-balancing "oversampler"
            pick = pick.sort().values
        pick = pick[y[pick].argsort(stable=True)]
        inputs, labels = x[pick], y[pick]
        optimizer.zero_grad()
        loss = criterion(model(inputs), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        recorder.step(loss.item(), (inputs, labels))
    with torch.no_grad():
        data.SCORES["loss_scale_collapses"] = F.cross_entropy(model(held_x)[0], held_y).item()
