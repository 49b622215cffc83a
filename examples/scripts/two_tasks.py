"""Several losses: one network tells which digit it sees, and how much ink it is made of."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import wellcond as wc

EPOCHS, BATCH = 4, 64


class Drawings(Dataset):
    """Every example is a dict."""

    def __init__(self, ink_scale: float) -> None:
        self.images, self.labels = wc.digits()
        ink = self.images.sum(1)
        self.ink = (ink - ink.mean()) / ink.std() * ink_scale

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"image": self.images[i], "digit": self.labels[i], "ink": self.ink[i]}


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.digit, self.ink = nn.Linear(64, 10), nn.Linear(64, 1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(image)
        return self.digit(h), self.ink(h)[:, 0]


def training_step(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    digit, ink = model(batch["image"])
    return {"digit": F.cross_entropy(digit, batch["digit"]), "ink": F.mse_loss(ink, batch["ink"])}


def main(planted: bool = False) -> tuple[wc.Diagnosis, float]:
    """Train it; `planted`: ink in milligrams, so that its squared error outweighs everything."""
    torch.manual_seed(0)
    data = Drawings(ink_scale=1000.0 if planted else 1.0)
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    model = TwoHeads()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    diagnosis = wc.diagnose(wc.Problem.from_step(model, training_step, loader), optimizer)
    print(diagnosis.verdict())

    for epoch in range(EPOCHS):
        for batch in loader:
            losses = training_step(model, batch)
            optimizer.zero_grad()
            sum(losses.values()).backward()
            optimizer.step()
        error = float((model(data.images)[0].argmax(1) != data.labels).float().mean())
        print(f"epoch {epoch}: {error:.0%} of the digits are wrong")
    return diagnosis, error


if __name__ == "__main__":
    main()
