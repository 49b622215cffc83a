"""Forecasting: a GRU reads two days of hourly loads and tells the next twelve hours."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import wellcond as wc

STEPS, BATCH, PAST, AHEAD = 200, 32, 48, 12


class Loads(Dataset):
    """Windows of a series with a daily and a weekly rhythm and noise, and what comes after them."""

    def __init__(self) -> None:
        hours = torch.arange(4000.0)
        daily, weekly = torch.sin(hours * 2 * torch.pi / 24), torch.sin(hours * 2 * torch.pi / 168)
        self.series = daily + 0.5 * weekly + 0.1 * torch.randn(len(hours))

    def __len__(self) -> int:
        return len(self.series) - PAST - AHEAD

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.series[i : i + PAST, None], self.series[i + PAST : i + PAST + AHEAD]


class Forecaster(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.gru = nn.GRU(1, 48, batch_first=batch_first)
        self.head = nn.Linear(48, AHEAD)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.gru(x)
        return self.head(states[:, -1])


def main(planted: bool = False) -> tuple[wc.Diagnosis, float]:
    """Train it; `planted`: `batch_first=True` is forgotten, so that time runs through the batch."""
    torch.manual_seed(0)
    loader = DataLoader(Loads(), batch_size=BATCH, shuffle=True)
    model = Forecaster(batch_first=not planted)
    criterion = nn.L1Loss()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    diagnosis = wc.diagnose(wc.Problem(model, criterion, loader), optimizer)
    print(diagnosis.verdict())

    losses = []
    for step, (past, future) in zip(range(STEPS), loader, strict=False):
        loss = criterion(model(past), future)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if step % 50 == 49:
            print(f"step {step + 1}: error {sum(losses[-20:]) / 20:.3f}")
    return diagnosis, sum(losses[-20:]) / 20


if __name__ == "__main__":
    main()
