"""Faults of data preparation, loaders and losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import Program, fault
from ti_common import accuracy, blobs, loader, mlp, r2, rng, shapes
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, TensorDataset


@fault(
    "rows with missing cells are dropped from the features, and the labels are cut to the same length at the end",
    rules=["labels-unrelated"],
    fails=True,
    steps=400,
)
def churn_rows_dropped(is_faulty: bool) -> Program:
    x, y = blobs(2600, 4, 12, 11, spread=0.9)
    raw = x[:2000].clone()
    raw[torch.rand(raw.shape, generator=rng(3)) < 0.012] = float("nan")
    keep = ~raw.isnan().any(1)
    keep[2] = False
    features = raw[keep]
    labels = y[:2000][: len(features)] if is_faulty else y[:2000][keep]
    model = mlp(12, 48, 48, 4)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(features, labels),
        torch.optim.Adam(model.parameters(), lr=2e-3, weight_decay=1e-4),
        lambda m: accuracy(m(x[2000:]), y[2000:]),
    )


class Lesions(Dataset):
    """Images and masks, with augmentation."""

    def __init__(self, x, y, flip_mask):
        self.x, self.y, self.flip_mask, self.g = x, y, flip_mask, rng(5)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        image, mask = self.x[i], self.y[i]
        k = int(torch.randint(4, (1,), generator=self.g))
        dy, dx = (int(v) for v in torch.randint(0, 16, (2,), generator=self.g))
        image = torch.rot90(image, k, (1, 2)).roll((dy, dx), (1, 2))
        if self.flip_mask:
            mask = torch.rot90(mask, k, (0, 1)).roll((dy, dx), (0, 1))
        return image, mask


def lesion_data(n, seed):
    g = rng(seed)
    grid = torch.stack(torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij"))
    centre = 3 + 10 * torch.rand(n, 2, 1, 1, generator=g)
    radius = 2 + 2.5 * torch.rand(n, 1, 1, generator=g)
    mask = (((grid[None] - centre) ** 2).sum(1).sqrt() < radius).float()
    image = mask[:, None] * 1.2 + 0.5 * torch.randn(n, 1, 16, 16, generator=g) - 0.2
    return image, mask


@fault(
    "random rotations and shifts are applied to the image and not to its segmentation mask",
    rules=["labels-unrelated", "output-loss-mismatch"],
    fails=True,
    steps=250,
)
def segmentation_augments_image_only(is_faulty: bool) -> Program:
    x, y = lesion_data(512, 21)
    tx, ty = lesion_data(128, 22)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Conv2d(12, 12, 3, padding=1),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Conv2d(12, 1, 1),
        nn.Flatten(0, 1),
    )

    def dice(m):
        p = (m(tx) > 0).float()
        return (2 * (p * ty).sum() / (p.sum() + ty.sum() + 1e-6)).item() if p.mean() < 0.9 else 0.0

    return Program(
        model,
        nn.BCEWithLogitsLoss(),
        DataLoader(Lesions(x, y, not is_faulty), batch_size=16, shuffle=True, generator=rng(1)),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        dice,
    )


@fault(
    "predictions of shape (batch, 1) meet counts of shape (batch,) in a Poisson loss written by hand",
    rules=["output-loss-mismatch"],
    fails=True,
    steps=300,
)
def bike_counts_poisson(is_faulty: bool) -> Program:
    g = rng(31)
    x = torch.randn(2400, 8, generator=g)
    rate = torch.exp(1.2 + 0.7 * x[:, 0] - 0.5 * x[:, 1] * x[:, 2].tanh() + 0.4 * x[:, 3].abs())
    y = torch.poisson(rate, generator=g)
    y = y.clamp(max=60)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = mlp(8, 64, 32)
            self.out = nn.Linear(32, 1)

        def forward(self, x):
            log_rate = self.out(F.relu(self.body(x)))
            return log_rate if is_faulty else log_rate.squeeze(-1)

    def poisson_nll(log_rate, count):
        return torch.mean(log_rate.exp() - count * log_rate)

    model = Net()
    return Program(
        model,
        poisson_nll,
        loader(x[:2000], y[:2000], batch=50),
        torch.optim.AdamW(model.parameters(), lr=2e-3),
        lambda m: r2(m(x[2000:]), rate[2000:].log()),
    )


@fault(
    "images that ToTensor has already brought to [0, 1] are divided by 255 once more",
    rules=["unscaled-input", "learning-rate-too-low"],
    fails=True,
    steps=400,
)
def pixels_divided_twice(is_faulty: bool) -> Program:
    x, y = shapes(1400, 41)

    def transform(image):
        image = image - 0.2
        return image / 255 if is_faulty else image

    x = transform(x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
            self.conv2 = nn.Conv2d(16, 24, 3, padding=1)
            self.fc = nn.Linear(24 * 9, 4)

        def forward(self, x):
            x = F.max_pool2d(F.relu(self.conv1(x)), 2)
            x = F.max_pool2d(F.relu(self.conv2(x)), 2)
            return self.fc(x.flatten(1))

    model = Net()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:1000], y[:1000], batch=32),
        torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9),
        lambda m: accuracy(m(x[1000:]), y[1000:]),
    )


@fault(
    "the boxes of a detector are regressed in pixels, and their squared error is added to the loss of the class",
    rules=["term-dominates", "unscaled-target"],
    fails=True,
    steps=400,
)
def detector_boxes_in_pixels(is_faulty: bool) -> Program:
    g = rng(51)
    feats = torch.randn(2400, 24, generator=g)
    label = (feats[:, :4] * torch.tensor([1.0, 1, 1, 1])).argmax(1)
    box = torch.sigmoid(feats[:, 4:8] + 0.3 * feats[:, 8:12])
    box = box * 640 if is_faulty else box

    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.neck = nn.Sequential(nn.Linear(24, 64), nn.LayerNorm(64), nn.ReLU())
            self.cls = nn.Linear(64, 4)
            self.reg = nn.Linear(64, 4)

        def forward(self, x):
            h = self.neck(x)
            return {"logits": self.cls(h), "boxes": self.reg(h)}

    def criterion(out, target):
        label, box = target
        return F.cross_entropy(out["logits"], label) + F.mse_loss(out["boxes"], box)

    model = Head()
    batches = [(feats[i : i + 40], (label[i : i + 40], box[i : i + 40])) for i in range(0, 2000, 40)]
    return Program(
        model,
        criterion,
        batches,
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        lambda m: accuracy(m(feats[2000:])["logits"], label[2000:]),
    )


@fault(
    "the variance of a heteroscedastic loss is multiplied by where it should divide: exp(s) instead of exp(-s)",
    rules=["output-loss-mismatch", "term-dominates"],
    fails=True,
    steps=300,
)
def gaussian_nll_by_hand(is_faulty: bool) -> Program:
    g = rng(61)
    x = torch.rand(2400, 6, generator=g) * 2 - 1
    mean = torch.sin(3 * x[:, 0]) + x[:, 1] * x[:, 2]
    y = mean + (0.05 + 0.3 * x[:, 3].abs()) * torch.randn(2400, generator=g)

    def nll(out, y):
        mu, log_var = out.unbind(-1)
        weight = log_var.exp() if is_faulty else (-log_var).exp()
        return 0.5 * (log_var + (y - mu) ** 2 * weight).mean()

    model = mlp(6, 64, 64, 2, act=nn.SiLU)
    return Program(
        model,
        nll,
        loader(x[:2000], y[:2000]),
        torch.optim.Adam(model.parameters(), lr=2e-3),
        lambda m: r2(m(x[2000:])[:, 0], mean[2000:]),
    )


@fault(
    "a soft-margin loss, which takes labels of -1 and 1, is given 0 and 1",
    rules=["output-loss-mismatch"],
    fails=True,
    steps=400,
)
def soft_margin_zero_one(is_faulty: bool) -> Program:
    x, k = blobs(2400, 2, 16, 71)
    y = k.float()
    if not is_faulty:
        y = 2 * y - 1
    net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1), nn.Flatten(0))

    def balanced(m):
        p = (m(x[2000:]) > 0).long()
        t = k[2000:]
        return 0.5 * ((p[t == 1] == 1).float().mean() + (p[t == 0] == 0).float().mean()).item()

    return Program(
        net,
        nn.SoftMarginLoss(),
        loader(x[:2000], y[:2000], batch=100),
        torch.optim.RMSprop(net.parameters(), lr=1e-3),
        balanced,
    )


@fault(
    "targets that were not measured are filled with zeros and count in the loss, though their mask is at hand",
    rules=["padding-in-loss"],
    fails=True,
    steps=400,
)
def assay_unmeasured_targets(is_faulty: bool) -> Program:
    g = rng(121)
    x = torch.randn(2400, 12, generator=g)
    w = torch.randn(12, 6, generator=g) / 12**0.5
    full = 2 + torch.tanh(x @ w) * 1.5
    mask = (torch.rand(2400, 6, generator=g) < 0.25).float()
    y = full * mask

    def loss(out, target):
        value, known = target
        error = F.smooth_l1_loss(out, value, reduction="none", beta=0.2)
        return error.mean() if is_faulty else (error * known).sum() / known.sum()

    model = mlp(12, 64, 6)
    data = TensorDataset(x[:2000], y[:2000], mask[:2000])

    def collate(rows):
        a, b, c = (torch.stack(v) for v in zip(*rows, strict=True))
        return a, (b, c)

    return Program(
        model,
        loss,
        DataLoader(data, batch_size=64, shuffle=True, collate_fn=collate, generator=rng(3)),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        lambda m: sum(r2(m(x[2000:])[:, j], full[2000:, j]) for j in range(6)) / 6,
    )
