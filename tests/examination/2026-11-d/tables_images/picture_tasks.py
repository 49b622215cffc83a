"""Segmentation and boxes with one mistake each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn

from data import blobs, loader
from images import Detector, iou


@fault(
    "The Dice loss is taken of thresholded masks: (p > 0.5).float() has no gradient.",
    rules=["no-gradient"],
    fails=True,
    steps=200,
)
def dice_of_hard_masks(is_faulty):
    x, m, _ = blobs()
    tx, tm, _ = blobs(seed=1, n=200)
    net = nn.Sequential(nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 1, 5, padding=2), nn.Sigmoid())

    def dice(p, target):
        if is_faulty:
            p = (p > 0.5).float()
            p.requires_grad_()
        both = (p * target).sum((1, 2, 3))
        return 1 - ((2 * both + 1) / (p.sum((1, 2, 3)) + target.sum((1, 2, 3)) + 1)).mean()

    return Program(net, dice, loader(x, m, batch=16), torch.optim.Adam(net.parameters(), 5e-3), iou(tx, tm, 0.5))


@fault(
    "Masks are stored as 0 and 255 and go into the binary cross-entropy as they are.",
    rules=["unscaled-target", "output-loss-mismatch"],
    fails=True,
    steps=250,
)
def masks_of_255(is_faulty):
    x, m, _ = blobs()
    tx, tm, _ = blobs(seed=1, n=200)
    net = nn.Sequential(nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 1, 5, padding=2))
    target = 255 * m if is_faulty else m
    opt = torch.optim.Adam(net.parameters(), 5e-3)
    return Program(net, nn.BCEWithLogitsLoss(), loader(x, target, batch=16), opt, iou(tx, tm))


@fault(
    "The softmax of a segmentation is taken over dim 0, the pictures, before the log-likelihood.",
    rules=["wrong-softmax-dimension", "mixed-examples"],
    fails=True,
    steps=250,
)
def segmentation_softmax_over_pictures(is_faulty):
    x, m, _ = blobs()
    tx, tm, _ = blobs(seed=1, n=60)

    class Seg(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 2, 5, padding=2))

        def forward(self, x):
            return F.softmax(self.body(x), dim=0 if is_faulty else 1)

    def nll(p, y):
        return F.nll_loss(torch.log(p + 1e-8), y)

    def score(model):
        p = torch.cat([model(tx[i : i + 1]) for i in range(60)]).argmax(1).bool()
        t = tm[:, 0].bool()
        return ((p & t).sum() / (p | t).sum()).item()

    net = Seg()
    return Program(net, nll, loader(x, m[:, 0].long(), batch=16), torch.optim.Adam(net.parameters(), 5e-3), score)


@fault(
    "Boxes are in pixels of the original photograph (up to 2000) and share a loss with the class.",
    rules=["unscaled-target", "term-dominates"],
    fails=False,
    steps=400,
)
def boxes_in_pixels(is_faulty):
    x, _, box = blobs()
    tx, _, tbox = blobs(seed=1, n=300)
    wide, twide = (box[:, 2] > box[:, 3]).long(), (tbox[:, 2] > tbox[:, 3]).long()
    size = 2000.0 if is_faulty else 1.0

    def step(model, batch):
        image, target, kind = batch
        b, c = model(image)
        return F.mse_loss(b, size * target) + 0.1 * F.cross_entropy(c, kind)

    def score(model):
        b, c = model(tx)
        fit = 1 - (b / size - tbox).square().mean() / tbox.var(0).mean()
        return 0.5 * max(0.0, fit.item()) + 0.5 * (c.argmax(1) == twide).float().mean().item()

    net = Detector()
    opt = torch.optim.Adam(net.parameters(), 2e-3)
    return Program(net, None, loader(x, box, wide), opt, score, step=step)
