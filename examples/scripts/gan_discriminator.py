"""A DCGAN on handwritten digits, of which the discriminator is looked at: two losses, one for each kind of image."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import wellcond as wc

STEPS, BATCH, LATENT = 60, 64, 16


def generator() -> nn.Sequential:
    return nn.Sequential(
        nn.ConvTranspose2d(LATENT, 32, 2), nn.BatchNorm2d(32), nn.ReLU(),
        nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.ConvTranspose2d(16, 1, 4, 2, 1), nn.Tanh(),
    )  # fmt: skip


def discriminator(probability: bool) -> nn.Sequential:
    layers = [
        nn.Conv2d(1, 16, 4, 2, 1), nn.LeakyReLU(0.2),
        nn.Conv2d(16, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.LeakyReLU(0.2),
        nn.Conv2d(32, 1, 2), nn.Flatten(),
    ]  # fmt: skip
    return nn.Sequential(*layers, nn.Sigmoid()) if probability else nn.Sequential(*layers)


def main(planted: bool = False) -> tuple[wc.Diagnosis, float]:
    """Train both; `planted`: with a sigmoid in the discriminator, which the loss has too."""
    torch.manual_seed(0)
    images = torch.tensor(load_digits().images, dtype=torch.float32)[:, None] / 8 - 1
    loader = DataLoader(TensorDataset(images), batch_size=BATCH, shuffle=True, drop_last=True)
    net_g, net_d = generator(), discriminator(probability=planted)
    criterion = nn.BCEWithLogitsLoss()
    optimizer_g = torch.optim.Adam(net_g.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(net_d.parameters(), lr=2e-4, betas=(0.5, 0.999))
    real, fake = torch.ones(BATCH, 1), torch.zeros(BATCH, 1)

    def noise() -> Tensor:
        return torch.randn(BATCH, LATENT, 1, 1)

    pairs = [(next(iter(loader))[0], real), (net_g(noise()).detach(), fake)]
    diagnosis = wc.diagnose(wc.Problem(net_d, criterion, pairs), optimizer_d)
    print(diagnosis.verdict())

    losses = []
    for step in range(STEPS):
        (batch,) = next(iter(loader))
        generated = net_g(noise())
        loss_d = criterion(net_d(batch), real) + criterion(net_d(generated.detach()), fake)
        optimizer_d.zero_grad()
        loss_d.backward()
        optimizer_d.step()
        loss_g = criterion(net_d(generated), real)
        optimizer_g.zero_grad()
        loss_g.backward()
        optimizer_g.step()
        losses.append(loss_d.item())
        if step % 20 == 19:
            print(f"step {step + 1}: discriminator {loss_d.item():.3f}, generator {loss_g.item():.3f}")
    return diagnosis, sum(losses[-10:]) / 10


if __name__ == "__main__":
    main()
