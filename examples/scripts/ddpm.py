"""Denoising diffusion on handwritten digits: the model is called with noise that the training step draws."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import wellcond as wc

EPOCHS, BATCH, STEPS = 12, 64, 100
SIGNAL = torch.cumprod(1 - torch.linspace(1e-4, 0.1, STEPS), 0)


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Embedding(STEPS, 128)
        self.first, self.second, self.out = nn.Linear(64, 128), nn.Linear(128, 128), nn.Linear(128, 64)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = F.silu(self.first(x) + self.time(t))
        return self.out(F.silu(self.second(h)))


def training_step(model: nn.Module, batch: list[Tensor]) -> Tensor:
    (x,) = batch
    t, noise = torch.randint(STEPS, (len(x),)), torch.randn_like(x)
    share = SIGNAL[t, None]
    return F.mse_loss(model(share.sqrt() * x + (1 - share).sqrt() * noise, t), noise)


def main(planted: bool = False) -> tuple[wc.Diagnosis, float]:
    """Train it; `planted`: on pixels from 0 to 255 as an image file has them, not in [-1, 1]."""
    torch.manual_seed(0)
    pixels = torch.tensor(load_digits().data, dtype=torch.float32) / 16
    loader = DataLoader(TensorDataset(255 * pixels if planted else 2 * pixels - 1), batch_size=BATCH, shuffle=True)
    model = Denoiser()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    diagnosis = wc.diagnose(wc.Problem.from_step(model, training_step, loader), optimizer)
    print(diagnosis.verdict())

    for epoch in range(EPOCHS):
        losses = []
        for batch in loader:
            loss = training_step(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        error = sum(losses) / len(losses)
        print(f"epoch {epoch}: {error:.0%} of the noise is not removed")
    return diagnosis, error


if __name__ == "__main__":
    main()
