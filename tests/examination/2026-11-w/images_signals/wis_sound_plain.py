"""Sound set-ups of the ordinary kind."""

import torch
import torch.nn.functional as F
from torch import nn

from program import Program, sound
from wis_data import (wis_accuracy, wis_beats, wis_cells, wis_figures, wis_fit, wis_gratings, wis_iou,
                      wis_loader, wis_smooth, wis_tones)


@sound("an ordinary small classifier", steps=250, least=0.85)
def wis_ordinary_classifier():
    model = nn.Sequential()
    for i, (a, b) in enumerate([(1, 12), (12, 24)]):
        model.add_module(f"conv{i}", nn.Conv2d(a, b, 3, padding=1, bias=False))
        model.add_module(f"bn{i}", nn.BatchNorm2d(b))
        model.add_module(f"relu{i}", nn.ReLU(inplace=True))
        model.add_module(f"pool{i}", nn.MaxPool2d(2))
    model.add_module("flatten", nn.Flatten())
    model.add_module("fc", nn.Linear(24 * 9, 4))
    return Program(model, nn.CrossEntropyLoss(), wis_loader(*wis_figures(512)),
                   torch.optim.Adam(model.parameters(), 1e-3), wis_accuracy(*wis_figures(256)))


class wis_DoubleConv(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(4, b), nn.ReLU())

    def forward(self, x):
        return self.net(x)


@sound("an ordinary U-Net, half trained", trained=60, steps=200, least=0.8)
def wis_ordinary_unet():
    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.inc, self.down, self.up = wis_DoubleConv(1, 8), wis_DoubleConv(8, 16), wis_DoubleConv(24, 8)
            self.outc = nn.Conv2d(8, 1, 1)

        def forward(self, x):
            a = self.inc(x)
            b = self.down(F.max_pool2d(a, 2))
            b = F.interpolate(b, size=a.shape[-2:], mode="nearest")
            return self.outc(self.up(torch.cat([a, b], 1))).squeeze(1)

    def bce_dice(logits, mask):
        p = logits.sigmoid()
        dice = 1 - (2 * (p * mask).sum() + 1) / (p.sum() + mask.sum() + 1)
        return F.binary_cross_entropy_with_logits(logits, mask) + dice

    x, mask = wis_cells(384)
    held, truth = wis_cells(128)
    model = UNet()
    return Program(model, bce_dice, wis_loader(x, mask.float(), size=24), torch.optim.AdamW(model.parameters(), 3e-3),
                   lambda m: wis_iou(m(held) > 0, truth))


@sound("an ordinary 1d residual network under SGD with cosine annealing", steps=300, least=0.9)
def wis_ordinary_resnet1d():
    class Basic(nn.Module):
        def __init__(self, a, b, stride):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv1d(a, b, 7, stride, 3, bias=False), nn.BatchNorm1d(b)
            self.conv2, self.bn2 = nn.Conv1d(b, b, 7, 1, 3, bias=False), nn.BatchNorm1d(b)
            self.short = nn.Conv1d(a, b, 1, stride) if (a, stride) != (b, 1) else nn.Identity()

        def forward(self, x):
            h = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
            return F.relu(h + self.short(x))

    model = nn.Sequential(Basic(1, 12, 2), Basic(12, 16, 2), Basic(16, 16, 1), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
                          nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    return Program(model, nn.CrossEntropyLoss(), wis_loader(*wis_tones(768)), optimizer,
                   wis_accuracy(*wis_tones(256)), scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600))


@sound("an ordinary convolutional autoencoder", steps=400, least=0.85)
def wis_ordinary_autoencoder():
    model = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.LeakyReLU(0.1), nn.Flatten(), nn.Linear(128, 10),
                          nn.Linear(10, 128), nn.LeakyReLU(0.1), nn.Unflatten(1, (8, 4, 4)),
                          nn.ConvTranspose2d(8, 1, 4, 2, 1))
    x, held = wis_smooth(768), wis_smooth(256)
    return Program(model, nn.MSELoss(), wis_loader(x, x), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: wis_fit(m(held), held))


@sound("an ordinary vision transformer with warm-up, whose first rate is nearly 0", steps=300, least=0.85)
def wis_ordinary_transformer():
    class ViT(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch = nn.Linear(9, 32)
            self.cls = nn.Parameter(torch.zeros(1, 1, 32))
            self.pos = nn.Parameter(torch.empty(1, 17, 32))
            nn.init.trunc_normal_(self.pos, std=0.02)
            layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, "gelu", batch_first=True, norm_first=True)
            self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 4)

        def forward(self, x):
            p = x.unfold(2, 3, 3).unfold(3, 3, 3).reshape(len(x), 16, 9)
            z = torch.cat([self.cls.expand(len(x), -1, -1), self.patch(p)], 1) + self.pos
            return self.head(self.norm(self.blocks(z))[:, 0])

    model = ViT()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.05)
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, (i + 1) / 50))
    return Program(model, nn.CrossEntropyLoss(), wis_loader(*wis_gratings(768)), optimizer,
                   wis_accuracy(*wis_gratings(256)), scheduler=warm)


@sound("an ordinary dense network, trained to the end", trained=300, steps=300, least=0.9)
def wis_ordinary_dense_net():
    class DenseLayer(nn.Module):
        def __init__(self, a):
            super().__init__()
            self.norm, self.conv = nn.BatchNorm2d(a), nn.Conv2d(a, 8, 3, padding=1, bias=False)

        def forward(self, x):
            return torch.cat([x, self.conv(F.relu(self.norm(x)))], 1)

    model = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), DenseLayer(8), DenseLayer(16), DenseLayer(24), nn.BatchNorm2d(32),
                          nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(32 * 9, 4))
    return Program(model, nn.CrossEntropyLoss(), wis_loader(*wis_figures(640)),
                   torch.optim.Adam(model.parameters(), 2e-3), wis_accuracy(*wis_figures(256)))


@sound("an ordinary residual denoiser, half trained", trained=100, steps=250, least=0.8)
def wis_ordinary_denoiser():
    class DnCNN(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1),
                                      nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 1, 3, padding=1))

        def forward(self, noisy):
            return noisy - self.body(noisy)

    x, held = wis_smooth(512, 8, 8, 0.0), wis_smooth(128, 8, 8, 0.0)
    seen = held + 0.6 * torch.randn_like(held)
    model = DnCNN()

    def step(model, batch):
        (clean,) = batch
        return F.l1_loss(model(clean + 0.6 * torch.randn_like(clean)), clean)

    return Program(model, None, wis_loader(x), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: wis_fit(m(seen), held), step=step)


@sound("an ordinary regression of two targets in a dict, for pulse trains", steps=300, least=0.8)
def wis_ordinary_pulse_meter():
    class Meter(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Conv1d(1, 16, 9, 2, 4), nn.SiLU(), nn.Conv1d(16, 24, 9, 2, 4), nn.SiLU())
            self.rate, self.fast = nn.Linear(24, 1), nn.Linear(24, 1)

        def forward(self, x):
            h = self.trunk(x).mean(-1)
            return {"rate": self.rate(h)[:, 0], "fast": self.fast(h)[:, 0]}

    def step(model, batch):
        x, rate = batch
        out = model(x)
        return F.mse_loss(out["rate"], (rate - 6) / 1.73) + \
            0.3 * F.binary_cross_entropy_with_logits(out["fast"], (rate > 6).float())

    held, truth = wis_beats(256)
    model = Meter()
    return Program(model, None, wis_loader(*wis_beats(768)), torch.optim.Adam(model.parameters(), 4e-3),
                   lambda m: wis_fit(m(held)["rate"], (truth - 6) / 1.73), step=step)
