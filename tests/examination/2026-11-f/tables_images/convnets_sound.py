"""Classification of small pictures: sound set-ups."""

from __future__ import annotations

import torch
from convnets import KINDS, normal, shapes, skill, small_cnn
from program import Program, sound
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import DataLoader, TensorDataset


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1 = nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(c)
        self.conv2 = nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(c)
        nn.init.zeros_(self.bn2.weight)

    def forward(self, x):
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


@sound("an ordinary CNN with momentum and a cosine schedule", steps=250, least=0.8)
def plain_cnn():
    x, y = shapes(1200, 20)
    hx, hy = shapes(500, 21)
    model = small_cnn()
    loader = DataLoader(TensorDataset(normal(x), y), batch_size=32, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 250)
    return Program(model, nn.CrossEntropyLoss(), loader, optimizer, skill(normal(hx), hy), scheduler)


@sound("residual blocks whose last BatchNorm starts at zero: no gradient in their first step", steps=250, least=0.8)
def zero_gamma_resnet():
    x, y = shapes(1000, 22)
    hx, hy = shapes(500, 23)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2), *(Residual(12) for _ in range(3)), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(12, KINDS)
    )
    loader = DataLoader(TensorDataset(normal(x), y), batch_size=32, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=700, div_factor=100)
    return Program(model, nn.CrossEntropyLoss(), loader, optimizer, skill(normal(hx), hy), scheduler)


@sound("bytes from 0 to 255 that a first BatchNorm normalises, black borders that never vary", steps=250, least=0.8)
def bytes_with_borders():
    def load(n, seed):
        x, y = shapes(n, seed)
        return F.pad((x * 255).round(), (2, 2, 2, 2)), y

    model = nn.Sequential(nn.BatchNorm2d(1, affine=False), small_cnn())
    loader = DataLoader(TensorDataset(*load(1200, 24)), batch_size=32, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(model, nn.CrossEntropyLoss(), loader, optimizer, skill(*load(500, 25)))


@sound("batches of two pictures, with GroupNorm", steps=500, least=0.7)
def batches_of_two():
    x, y = shapes(1200, 26)
    hx, hy = shapes(500, 27)
    model = small_cnn(norm=lambda c: nn.GroupNorm(4, c))
    loader = DataLoader(TensorDataset(normal(x), y), batch_size=2, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    return Program(model, nn.CrossEntropyLoss(), loader, optimizer, skill(normal(hx), hy))


@sound("spectrally normalised convolutions, label smoothing and an AdamW decay of 0.3, half trained", trained=150, steps=350, least=0.7)
def spectral_and_smooth():
    x, y = shapes(1200, 28)
    hx, hy = shapes(500, 29)
    model = nn.Sequential(
        spectral_norm(nn.Conv2d(1, 16, 3, padding=1)), nn.LeakyReLU(0.1), nn.MaxPool2d(2), spectral_norm(nn.Conv2d(16, 32, 3, padding=1)), nn.LeakyReLU(0.1), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(32, KINDS)
    )
    loader = DataLoader(TensorDataset(normal(x), y), batch_size=32, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.3)
    return Program(model, nn.CrossEntropyLoss(label_smoothing=0.1), loader, optimizer, skill(normal(hx), hy))


@sound("a CNN at the end of its training", trained=300, steps=400, least=0.8)
def trained_cnn():
    x, y = shapes(1500, 30)
    hx, hy = shapes(500, 31)
    model = small_cnn(8)
    loader = DataLoader(TensorDataset(normal(x), y), batch_size=50, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(model, nn.CrossEntropyLoss(), loader, optimizer, skill(normal(hx), hy))
