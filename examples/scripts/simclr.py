"""Contrastive learning: two views of an image, with pixels missing, are to be recognized among all of the batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import wellcond as wc

EPOCHS, BATCH, TEMPERATURE = 8, 128, 0.2


def view(images: Tensor) -> Tensor:
    return images * (torch.rand_like(images) > 0.2) + 0.1 * torch.randn_like(images)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(512, 64), nn.ReLU(),
        )  # fmt: skip
        self.projection = nn.Linear(64, 32)

    def forward(self, images: Tensor) -> Tensor:
        return self.projection(self.body(images))


def main(planted: bool = False) -> tuple[wc.Diagnosis, float]:
    """Train it; `planted`: features are normalized over the batch, not over each vector."""
    torch.manual_seed(0)
    images = wc.digits()[0].reshape(-1, 1, 8, 8)
    loader = DataLoader(TensorDataset(images), batch_size=BATCH, shuffle=True, drop_last=True)
    model = Encoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def nt_xent(model: nn.Module, batch: list[Tensor]) -> Tensor:
        (x,) = batch
        z = F.normalize(model(torch.cat([view(x), view(x)])), dim=0 if planted else 1)
        similarity = (z @ z.T / TEMPERATURE).fill_diagonal_(float("-inf"))
        partner = torch.arange(2 * len(x)).roll(len(x))
        return F.cross_entropy(similarity, partner)

    diagnosis = wc.diagnose(wc.Problem.from_step(model, nt_xent, loader), optimizer)
    print(diagnosis.verdict())

    for epoch in range(EPOCHS):
        for batch in loader:
            loss = nt_xent(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            one, other = (F.normalize(model(view(images[:BATCH])), dim=1) for _ in range(2))
        nearest = (one @ other.T).argmax(1)
        error = float((nearest != torch.arange(BATCH)).float().mean())
        print(f"epoch {epoch}: loss {loss.item():.3f}, {error:.0%} of views are nearest to another image")
    return diagnosis, error


if __name__ == "__main__":
    main()
