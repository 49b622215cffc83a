"""Fine-tuning: a network that knows the digits 0 to 4 gets a new head, and learns 5 to 9 from a few examples."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import wellcond as wc

PRETRAINING, EPOCHS, BATCH = 3, 6, 32


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 5),
    )  # fmt: skip


def pretrained(images: Tensor, labels: Tensor) -> nn.Sequential:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(PRETRAINING):
        for x, y in DataLoader(TensorDataset(images, labels), batch_size=BATCH, shuffle=True):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


def main(planted: bool = False) -> tuple[wc.Diagnosis, float]:
    """Train it; `planted`: the optimizer is made before the head is exchanged, and holds the old one."""
    torch.manual_seed(0)
    pixels, labels = wc.digits()
    images, is_new = pixels.reshape(-1, 1, 8, 8), labels >= 5
    model = pretrained(images[~is_new], labels[~is_new])

    model[:-1].requires_grad_(False)  # what it has learned stays as it is
    optimizer = torch.optim.Adam(model[-1].parameters(), lr=1e-2)
    model[-1] = nn.Linear(64, 5)
    if not planted:
        optimizer = torch.optim.Adam(model[-1].parameters(), lr=1e-2)
    images, labels = images[is_new], labels[is_new] - 5
    loader = DataLoader(TensorDataset(images[:200], labels[:200]), batch_size=BATCH, shuffle=True)
    criterion = nn.CrossEntropyLoss()

    diagnosis = wc.diagnose(wc.Problem(model, criterion, loader), optimizer)
    print(diagnosis.verdict())

    for epoch in range(EPOCHS):
        for x, y in loader:
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        error = float((model(images[200:]).argmax(1) != labels[200:]).float().mean())
        print(f"epoch {epoch}: loss {loss.item():.3f}, {error:.0%} of other images are wrong")
    return diagnosis, error


if __name__ == "__main__":
    main()
