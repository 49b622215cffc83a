from __future__ import annotations

import math

import torch
import torch.nn.functional as F
import vis_data as D
from program import Program, sound
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset, TensorDataset
from vis_faults_a import TinyViT, halves, loader


@sound("an ordinary convolutional classifier with BatchNorm", steps=300, least=0.9)
def vis_plain_classifier():
    x, y = D.glyphs(1500)
    xt, yt = D.glyphs(400)

    def unit(i, o):
        return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))

    m = nn.Sequential(unit(1, 12), nn.MaxPool2d(2), unit(12, 24), unit(24, 24), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 4))
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), optim.SGD(m.parameters(), 0.05, momentum=0.9, weight_decay=1e-4), D.accuracy(xt, yt))


@sound("an ordinary small U-Net", steps=300, least=0.75)
def vis_plain_unet():
    x, y = D.discs(1000)
    xt, yt = D.discs(250)

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.down1, self.down2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
            self.mid = nn.Conv2d(16, 16, 3, padding=1)
            self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
            self.last = nn.Conv2d(16, 1, 3, padding=1)

        def forward(self, im):
            a = F.relu(self.down1(im))
            b = F.relu(self.mid(F.relu(self.down2(F.max_pool2d(a, 2)))))
            return self.last(torch.cat([a, self.up(b)], 1))

    m = UNet()
    return Program(m, nn.BCEWithLogitsLoss(), loader(x, y), optim.Adam(m.parameters(), 3e-3), D.iou(xt, yt))


@sound("an ordinary 1d convolutional network on tones, half trained", trained=80, steps=400, least=0.9)
def vis_plain_tones():
    x, y = D.tones(1200, classes=5, noise=0.5)
    xt, yt = D.tones(300, classes=5, noise=0.5)
    m = nn.Sequential(nn.Conv1d(1, 16, 15, stride=2), nn.ReLU(), nn.Conv1d(16, 16, 7, stride=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1),
                      nn.Flatten(), nn.Dropout(0.1), nn.Linear(16, 5))
    return Program(m, F.cross_entropy, loader(x, y), optim.RMSprop(m.parameters(), lr=1.5e-3), D.accuracy(xt, yt))


@sound("an ordinary convolutional autoencoder", steps=500, least=0.8)
def vis_plain_autoencoder():
    x, xt = D.smooth(1200, coarse=2), D.smooth(300, coarse=2)

    class Auto(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.GELU(), nn.Conv2d(8, 16, 3, 2, 1), nn.GELU(), nn.Flatten(), nn.Linear(144, 8))
            self.dec = nn.Sequential(nn.Linear(8, 144), nn.GELU(), nn.Unflatten(1, (16, 3, 3)), nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.GELU(),
                                     nn.ConvTranspose2d(8, 1, 4, 2, 1))

        def forward(self, im):
            return self.dec(self.enc(im))

    m = Auto()
    return Program(m, nn.MSELoss(), loader(x, x), optim.Adam(m.parameters(), 3e-3), D.r2(xt, xt))


@sound("an ordinary vision transformer with a warmup and a cosine", steps=400, least=0.9)
def vis_plain_vit():
    x, y = halves(1500)
    xt, yt = halves(400)
    m = TinyViT(dim=16)
    opt = optim.AdamW(m.parameters(), lr=3e-3, weight_decay=0.05, betas=(0.9, 0.95))
    sched = optim.lr_scheduler.LambdaLR(opt, lambda s: min((s + 1) / 30, 0.5 * (1 + math.cos(math.pi * s / 400))))
    return Program(m, F.cross_entropy, loader(x, y), opt, D.accuracy(xt, yt), scheduler=sched)


@sound("ordinary keypoint regression with dict batches, trained", trained=400, steps=450, least=0.85)
def vis_plain_keypoints():
    x, y = D.spots(1200)
    xt, yt = D.spots(300)

    class Rows(Dataset):
        def __len__(self):
            return len(x)

        def __getitem__(self, i):
            return {"image": x[i], "point": y[i]}

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 12, 3, stride=2, padding=1)
            self.fc1, self.fc2 = nn.Linear(300, 32), nn.Linear(32, 2)

        def forward(self, image):
            h = F.relu(self.conv2(F.relu(self.conv1(image))))
            return torch.sigmoid(self.fc2(F.relu(self.fc1(h.flatten(1)))))

    def step(model, batch):
        return F.smooth_l1_loss(model(batch["image"]), batch["point"], beta=0.1)

    m = Net()
    return Program(m, None, DataLoader(Rows(), 32, shuffle=True), optim.Adam(m.parameters(), 2e-3), D.r2(xt, yt), step=step)


@sound("an ordinary 3d convolutional network on clips", steps=400, least=0.8)
def vis_plain_video():
    x, y = D.moving(1500)
    xt, yt = D.moving(400)
    m = nn.Sequential(nn.Conv3d(1, 12, (2, 3, 3)), nn.BatchNorm3d(12), nn.ReLU(), nn.Conv3d(12, 16, (2, 3, 3), stride=(1, 2, 2)), nn.ReLU(),
                      nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(16, 4))
    return Program(m, F.cross_entropy, loader(x, y), optim.AdamW(m.parameters(), 5e-3), D.accuracy(xt, yt))


@sound("ordinary super-resolution that adds to an interpolated image, with an L1 loss", steps=300, least=0.9)
def vis_plain_upscaling():
    x, xt = D.smooth(1200, coarse=6), D.smooth(300, coarse=6)

    class SR(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.body, self.tail = nn.Conv2d(1, 12, 3, padding=1), nn.Conv2d(12, 12, 3, padding=1), nn.Conv2d(12, 4, 3, padding=1)

        def forward(self, im):
            h = self.head(im)
            h = h + self.body(F.relu(h))
            return F.interpolate(im, scale_factor=2, mode="nearest") + F.pixel_shuffle(self.tail(F.relu(h)), 2)

    m = SR()
    return Program(m, nn.L1Loss(), loader(F.avg_pool2d(x, 2), x), optim.Adam(m.parameters(), 2e-3), D.r2(F.avg_pool2d(xt, 2), xt))


@sound("a residual network whose branches start at zero, so that most weights have no gradient in the first step", steps=300, least=0.85)
def vis_zero_branches():
    x, y = D.glyphs(1500)
    xt, yt = D.glyphs(400)

    class Basic(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
            self.conv2, self.bn2 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
            nn.init.zeros_(self.bn2.weight)

        def forward(self, h):
            return F.relu(h + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(h))))))

    m = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), Basic(12), nn.MaxPool2d(2), Basic(12), Basic(12),
                      nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4))
    opt = optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    return Program(m, F.cross_entropy, loader(x, y), opt, D.accuracy(xt, yt), scheduler=optim.lr_scheduler.CosineAnnealingLR(opt, 300))


@sound("a last layer of zeros, weight and bias", steps=300, least=0.9)
def vis_zero_head():
    x, y = D.tones(1200)
    xt, yt = D.tones(300)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv1d(1, 16, 9, stride=2), nn.Conv1d(16, 24, 5, stride=2)
            self.norm = nn.GroupNorm(4, 24)
            self.head = nn.Linear(24, 4)
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

        def forward(self, w):
            return self.head(F.gelu(self.norm(self.b(F.gelu(self.a(w))))).mean(-1))

    m = Net()
    return Program(m, nn.CrossEntropyLoss(label_smoothing=0.1), loader(x, y), optim.AdamW(m.parameters(), 3e-3, weight_decay=0.1), D.accuracy(xt, yt))


@sound("a frozen bank of filters before what is trained; the optimizer takes only what requires a gradient", steps=300, least=0.85)
def vis_frozen_filters():
    x, y = D.tones(1200, length=80)
    xt, yt = D.tones(300, length=80)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.bank = nn.Conv1d(1, 16, 25, bias=False)
            t = torch.arange(25.0) - 12
            f = torch.linspace(0.02, 0.4, 8)[:, None]
            w = torch.hann_window(25) / 6
            self.bank.weight.data = torch.cat([w * torch.cos(2 * math.pi * f * t), w * torch.sin(2 * math.pi * f * t)])[:, None]
            self.bank.requires_grad_(False)
            self.net = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4))

        def forward(self, w):
            s = self.bank(w)
            return self.net(torch.log((s[:, :8] ** 2 + s[:, 8:] ** 2).mean(-1) + 1e-2))

    m = Net()
    return Program(m, F.cross_entropy, loader(x, y), optim.Adam([p for p in m.parameters() if p.requires_grad], 3e-3), D.accuracy(xt, yt))


@sound("pixels of 0 to 255 go straight into a BatchNorm, which scales them", steps=300, least=0.85)
def vis_bytes_normalised_inside():
    def draw(n):
        im, y = D.glyphs(n)
        return (60 + 70 * im).clamp(0, 255).round(), y

    x, y = draw(1500)
    xt, yt = draw(400)
    m = nn.Sequential(nn.BatchNorm2d(1, affine=False), nn.Conv2d(1, 12, 3), nn.ReLU(), nn.Conv2d(12, 16, 3), nn.ReLU(), nn.Conv2d(16, 24, 3), nn.ReLU(),
                      nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(24, 4))
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), optim.Adam(m.parameters(), 3e-3), D.accuracy(xt, yt))
