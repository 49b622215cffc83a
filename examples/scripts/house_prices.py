"""House prices as they come: areas, incomes and years in their own units, prices in dollars."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import wellcond as wc

EPOCHS, BATCH, LR = 10, 32, 0.05


def houses(count: int = 1024) -> tuple[Tensor, Tensor]:
    """Rooms, floor area, year, income of the neighborhood, its people; and the price."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(count, 6, generator=generator)
    rooms = (5 + 1.5 * noise[:, 0]).round().clamp(1, 12)
    area = 350 * rooms + 200 * noise[:, 1]
    year = (1975 + 20 * noise[:, 2]).round()
    income = (10.8 + 0.4 * noise[:, 3]).exp()
    people = (7 + 0.8 * noise[:, 4]).exp()
    price = 120 * area + 4 * income + 900 * (year - 1975) - 5 * people + 2e4 * noise[:, 5]
    return torch.stack([rooms, area, year, income, people], dim=1), price[:, None]


def main(planted: bool = False) -> tuple[wc.Diagnosis, float]:
    """Train it; `planted`: on the numbers as they are, not standardized."""
    torch.manual_seed(0)
    x, y = houses()
    if not planted:
        x, y = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    loader = DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True)
    model = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    criterion = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)

    diagnosis = wc.diagnose(wc.Problem(model, criterion, loader), optimizer)
    print(diagnosis.verdict())

    for epoch in range(EPOCHS):
        total = 0.0
        for inputs, prices in loader:
            loss = criterion(model(inputs), prices)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        share = total / len(loader) / float(y.var())
        print(f"epoch {epoch}: {share:.0%} of the variance is not explained")
        if math.isnan(share):
            break
    return diagnosis, share


if __name__ == "__main__":
    main()
