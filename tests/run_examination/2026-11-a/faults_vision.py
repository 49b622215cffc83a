"""Faults on images. `mistake=False` is the same loop without the fault."""

from __future__ import annotations

import data
import torch
import torch.nn.functional as F
from program import Record, fault
from torch import nn


class BatchNormNet(nn.Module):
    def __init__(self, momentum: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8, momentum=momentum)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1, stride=2)
        self.bn2 = nn.BatchNorm2d(16, momentum=momentum)
        self.fc = nn.Linear(16 * 36, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        return self.fc(x.flatten(1))


@fault(
    "BatchNorm momentum of 1e-4 (0.9999 in the framework the model was ported from, where it means something else; 0.1"
    " was right): the running statistics hardly leave 0 and 1, so the network is good in train mode and bad in eval",
    rules=("stale-statistics", "batchnorm-mode-gap"),
    layers=("bn1", "bn2"),
    step=0,
    steps=1500,
)
def ported_batchnorm_momentum(record: Record, mistake: bool = True) -> None:
    torch.manual_seed(21)
    images, labels = data.digits(4000, 11)
    held, held_labels = data.digits(600, 12)
    images, held = images * 4 + 1, held * 4 + 1
    model = BatchNormNet(momentum=1e-4 if mistake else 0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    recorder = record(model, optimizer, criterion)
    value = 0.0
    for step in range(1, 1501):
        model.train()
        pick = torch.randint(4000, (32,))
        optimizer.zero_grad()
        loss = criterion(model(images[pick]), labels[pick])
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (images[pick], labels[pick]))
        if step % 100 == 0:
            model.eval()
            with torch.no_grad():
                value = criterion(model(held), held_labels).item()
            recorder.validation(value)
    data.SCORES["ported_batchnorm_momentum"] = value


@fault(
    "300 images of which one label in seven is wrong, a wide network, no regularisation, 1500 steps: the held-out loss is lowest early and then climbs while"
    " the training loss goes to zero",
    rules=("overfitting",),
    step=300,
    steps=1500,
)
def too_few_images(record: Record, mistake: bool = True) -> None:
    torch.manual_seed(22)
    count = 300 if mistake else 6000
    images, labels = data.digits(count, 13, size=10, noise=0.15)
    held, held_labels = data.digits(600, 14, size=10, noise=0.15)
    g = torch.Generator().manual_seed(220)
    labels = torch.where(torch.rand(count, generator=g) < 1 / 7, torch.randint(10, (count,), generator=g), labels)
    held_labels = torch.where(torch.rand(600, generator=g) < 1 / 7, torch.randint(10, (600,), generator=g), held_labels)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12 * 25, 96), nn.ReLU(),
        nn.Linear(96, 10),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss()
    recorder = record(model, optimizer, criterion)
    step, value = 0, 0.0
    while step < 1500:
        for batch in torch.randperm(count).split(25):
            loss = criterion(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss.item(), (images[batch], labels[batch]))
            step += 1
            if step % 25 == 0:
                with torch.no_grad():
                    value = criterion(model(held), held_labels).item()
                recorder.validation(value)
    data.SCORES["too_few_images"] = value


@fault(
    "At step 700 one batch comes as it was read, pixels 0..255 instead of 0..1 (all finite): the loss jumps for that"
    " batch, the huge gradient throws the weights and fills Adam's second moments, and training goes on from there",
    rules=("loss-spike", "exploding-gradient"),
    step=700,
    steps=1600,
)
def one_batch_not_rescaled(record: Record, mistake: bool = True) -> None:
    torch.manual_seed(23)
    images, labels = data.digits(6000, 15)
    held, held_labels = data.digits(800, 16)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.LeakyReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.LeakyReLU(),
        nn.Flatten(), nn.Linear(16 * 36, 10),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    recorder = record(model, optimizer, F.cross_entropy)
    for step in range(1600):
        pick = torch.randint(6000, (32,))
        x, y = images[pick], labels[pick]
        if mistake and step == 700:
            x = x * 255
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (x, y))
    with torch.no_grad():
        data.SCORES["one_batch_not_rescaled"] = F.cross_entropy(model(held), held_labels).item()
