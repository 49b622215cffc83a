"""A small convolutional network on handwritten digits, shuffled and augmented at random."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import wellcond as wc

EPOCHS, BATCH, LR = 2, 64, 3e-3


class Digits(Dataset):
    """8×8 images in [0, 1], shifted by up to a pixel and with noise: other ones every time."""

    def __init__(self) -> None:
        data = load_digits()
        self.images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16
        self.labels = torch.tensor(data.target)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        shift = torch.randint(-1, 2, (2,)).tolist()
        image = torch.roll(self.images[index], shift, dims=(1, 2))
        return image + 0.05 * torch.randn_like(image), self.labels[index]


class Net(nn.Module):
    def __init__(self, probabilities: bool) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(32, 10)
        self.out = nn.Softmax(dim=1) if probabilities else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.head(self.features(x)))


def main(planted: bool = False) -> tuple[wc.Diagnosis, float]:
    """Train it; `planted`: with a softmax under a loss that has its own."""
    torch.manual_seed(0)
    loader = DataLoader(Digits(), batch_size=BATCH, shuffle=True, drop_last=True)
    model = Net(probabilities=planted)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)

    diagnosis = wc.diagnose(wc.Problem(model, criterion, loader), optimizer)
    print(diagnosis.verdict())

    for epoch in range(EPOCHS):
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total / len(loader):.3f}")
    return diagnosis, total / len(loader)


if __name__ == "__main__":
    main()
