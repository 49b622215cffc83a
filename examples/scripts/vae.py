"""A variational autoencoder on handwritten digits: random draws inside the model, and a loss of two terms."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import wellcond as wc

EPOCHS, BATCH, LATENT = 8, 64, 8


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 2 * LATENT))
        self.decoder = nn.Sequential(nn.Linear(LATENT, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        z = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        return self.decoder(z), mean, log_variance


def vae_loss(outputs: tuple[Tensor, Tensor, Tensor], x: Tensor) -> dict[str, Tensor]:
    decoded, mean, log_variance = outputs
    kl = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1).mean()
    bce = F.binary_cross_entropy_with_logits(decoded, x, reduction="sum") / len(x)
    return {"reconstruction": bce, "kl": kl}


def main(planted: bool = False) -> tuple[wc.Diagnosis, float]:
    """Train it; `planted`: on pixels from 0 to 255 as an image file has them, not in [0, 1]."""
    torch.manual_seed(0)
    pixels = torch.tensor(load_digits().data, dtype=torch.float32) / 16
    loader = DataLoader(TensorDataset(pixels * 255 if planted else pixels), batch_size=BATCH, shuffle=True)
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    diagnosis = wc.diagnose(wc.Problem(model, vae_loss, loader), optimizer)
    print(diagnosis.verdict())

    for epoch in range(EPOCHS):
        for (x,) in loader:
            loss = sum(vae_loss(model(x), x).values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        decoded = model(loader.dataset.tensors[0])[0].sigmoid().detach()
        error = float(F.mse_loss(decoded, pixels) / pixels.var(0, correction=0).mean())
        print(f"epoch {epoch}: {error:.0%} of the variance is not reconstructed")
    return diagnosis, error


if __name__ == "__main__":
    main()
