"""Ordinary scripts."""

import torch
import torch.nn.functional as F
from program import Program, sound
from ti_data import accuracy, clusters, curve, iou, r2, scenes, shapes, smooth
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Table(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


@sound("ordinary: an MLP classifier", steps=250, least=0.85)
def plain_table_classifier():
    x, y, xt, yt = clusters(1500, 12, 5, 101)
    mean, std = x.mean(0), x.std(0)
    x, xt = (x - mean) / std, (xt - mean) / std
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
    return Program(model, nn.CrossEntropyLoss(), DataLoader(Table(x, y), batch_size=64, shuffle=True), torch.optim.Adam(model.parameters(), lr=1e-3), lambda m: accuracy(m, xt, yt))


@sound("ordinary: a CNN with BatchNorm, SGD and a cosine schedule", steps=300, least=0.9)
def plain_cnn_with_cosine():
    x, y, xt, yt = shapes(1200, 102)
    x, xt = (x - 0.13) / 0.22, (xt - 0.13) / 0.22
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(144, 4),
    )  # fmt: skip
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    return Program(model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True), opt, lambda m: accuracy(m, xt, yt), torch.optim.lr_scheduler.CosineAnnealingLR(opt, 300))


@sound("ordinary: a regressor, half trained", trained=120, steps=300, least=0.8)
def plain_regressor_half_trained():
    x, y, xt, yt = curve(1500, 8, 103)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
    return Program(model, nn.SmoothL1Loss(), DataLoader(TensorDataset(x, y.unsqueeze(1)), batch_size=64, shuffle=True), torch.optim.Adam(model.parameters(), lr=2e-3), lambda m: r2(m(xt), yt))


@sound("ordinary: a denoising autoencoder of convolutions", steps=250, least=0.7)
def plain_denoising_autoencoder():
    g = torch.Generator().manual_seed(4)
    clean, clean_t = smooth(800, 104, size=12)
    noisy, noisy_t = [a + 0.2 * torch.randn(a.shape, generator=g) for a in (clean, clean_t)]
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(12, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.ConvTranspose2d(16, 12, 2, stride=2), nn.ReLU(), nn.ConvTranspose2d(12, 1, 2, stride=2),
    )  # fmt: skip
    return Program(model, nn.MSELoss(), DataLoader(TensorDataset(noisy, clean), batch_size=32, shuffle=True), torch.optim.AdamW(model.parameters(), lr=3e-3), lambda m: r2(m(noisy_t), clean_t))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc1 = self.block(1, 8)
        self.enc2 = self.block(8, 16)
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.dec = self.block(24, 8)
        self.out = nn.Conv2d(8, 1, 1)

    @staticmethod
    def block(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())

    def forward(self, x):
        e1 = self.enc1(x)
        e2 = self.enc2(F.max_pool2d(e1, 2))
        return self.out(self.dec(torch.cat([e1, self.up(e2)], 1)))


@sound("ordinary: a U-Net for a foreground that covers few pixels", steps=150, least=0.8)
def plain_unet():
    x, mask, xt, maskt = scenes(300, 105)
    model = UNet()
    return Program(
        model,
        nn.BCEWithLogitsLoss(),
        DataLoader(TensorDataset(x, (mask == 1).float()[:, None]), batch_size=8, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        lambda m: iou((m(xt)[:, 0] > 0).long(), (maskt == 1).long(), (1,)),
    )


@sound("ordinary: multi-label with pos_weight", steps=250, least=0.7)
def plain_multi_label():
    g = torch.Generator().manual_seed(106)
    x = torch.randn(2000, 12, generator=g)
    y = (x @ torch.randn(12, 6, generator=g) / 3.4 > 0.8).float()
    model = nn.Sequential(nn.Linear(12, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 6))
    share = y[:1500].mean(0)

    def f1(m):
        p, t = m(x[1500:]) > 0, y[1500:] > 0
        return (2 * (p & t).sum() / (p.sum() + t.sum()).clamp(min=1)).item()

    return Program(model, nn.BCEWithLogitsLoss(pos_weight=((1 - share) / share).sqrt()), DataLoader(TensorDataset(x[:1500], y[:1500]), batch_size=50, shuffle=True), torch.optim.Adam(model.parameters(), lr=5e-3), f1)


class Residual(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.conv2, self.bn2 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)

    def forward(self, x):
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


@sound("ordinary: a small ResNet with OneCycleLR", steps=200, least=0.85)
def plain_resnet_onecycle():
    x, y, xt, yt = shapes(800, 107)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), Residual(8), nn.MaxPool2d(2), Residual(8), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 4))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    return Program(model, nn.CrossEntropyLoss(label_smoothing=0.05), DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True), opt, lambda m: accuracy(m, xt, yt), torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.02, total_steps=401))
