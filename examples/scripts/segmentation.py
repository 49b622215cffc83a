"""Segmentation: a small U-Net marks the pixels of a digit under noise, by cross-entropy and dice."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import wellcond as wc

EPOCHS, BATCH = 3, 64


def block(ins: int, outs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(ins, outs, 3, padding=1), nn.BatchNorm2d(outs), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, probabilities: bool) -> None:
        super().__init__()
        self.down, self.bottom, self.up = block(1, 16), block(16, 32), block(48, 16)
        self.out = nn.Conv2d(16, 1, 1)
        self.probabilities = probabilities

    def forward(self, x: Tensor) -> Tensor:
        down = self.down(x)
        bottom = F.interpolate(self.bottom(F.max_pool2d(down, 2)), scale_factor=2)
        logits = self.out(self.up(torch.cat([down, bottom], 1)))
        return logits.sigmoid() if self.probabilities else logits


def bce_and_dice(logits: Tensor, masks: Tensor) -> Tensor:
    p = logits.sigmoid()
    overlap = 2 * (p * masks).sum((1, 2, 3)) / (p + masks).sum((1, 2, 3)).clamp_min(1)
    return F.binary_cross_entropy_with_logits(logits, masks) + 1 - overlap.mean()


def main(planted: bool = False) -> tuple[wc.Diagnosis, float]:
    """Train it; `planted`: the network ends in a sigmoid, and the loss has its own."""
    torch.manual_seed(0)
    images = wc.digits()[0].reshape(-1, 1, 8, 8)
    images = (images - images.min()) / (images.max() - images.min())
    masks = (images > 0.5).float()
    noisy = images + 0.3 * torch.randn_like(images)
    loader = DataLoader(TensorDataset(noisy, masks), batch_size=BATCH, shuffle=True)
    model = UNet(probabilities=planted)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    diagnosis = wc.diagnose(wc.Problem(model, bce_and_dice, loader), optimizer)
    print(diagnosis.verdict())

    for epoch in range(EPOCHS):
        for inputs, targets in loader:
            loss = bce_and_dice(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")
    return diagnosis, loss.item()


if __name__ == "__main__":
    main()
