"""Ordinary programs for tables and pictures, nothing odd about them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn

from data import accuracy, blobs, classes, digits, loader, r2, table
from images import convnet, iou
from tables import mlp


@sound("Nothing: a ReLU network on a table.", steps=300, least=0.8)
def plain_mlp():
    x, y, tx, ty = table()
    net = mlp(10, 64, 64, 1)
    return Program(net, nn.MSELoss(), loader(x, y), torch.optim.Adam(net.parameters(), 3e-3), r2(tx, ty))


@sound("Nothing: a classifier of a table with SGD and momentum.", steps=500, least=0.8)
def sgd_classifier():
    x, y, tx, ty = classes()
    net = mlp(8, 64, 64, 4)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    return Program(net, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(tx, ty))


@sound("Nothing: a convolutional network on digits.", steps=250, least=0.9)
def plain_cnn():
    x, y, tx, ty = digits()
    net = convnet()
    return Program(net, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(net.parameters(), 3e-3), accuracy(tx, ty))


@sound("Nothing: a small residual network with BatchNorm.", steps=200, least=0.9)
def small_resnet():
    class Block(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.c1, self.b1 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
            self.c2, self.b2 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)

        def forward(self, x):
            return F.relu(x + self.b2(self.c2(F.relu(self.b1(self.c1(x))))))

    x, y, tx, ty = digits()
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        Block(16),
        Block(16),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    return Program(net, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(tx, ty))


@sound("Nothing: an autoencoder of digits.", steps=500, least=0.7)
def autoencoder():
    from generative import rebuilt

    x, _, tx, _ = digits()
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16), nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64)
    )
    opt = torch.optim.Adam(net.parameters(), 3e-3)
    return Program(net, lambda o, t: F.mse_loss(o, t.flatten(1)), loader(x, x), opt, rebuilt(tx))


@sound("Nothing: a variational autoencoder with a small weight of the divergence.", steps=500, least=0.6)
def small_beta_vae():
    from generative import divergence_summed

    return divergence_summed(False)


@sound("Nothing: a U-Net of two levels that finds rectangles.", steps=200, least=0.85)
def tiny_unet():
    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Conv2d(1, 8, 3, padding=1)
            self.mid = nn.Conv2d(8, 16, 3, padding=1)
            self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
            self.out = nn.Conv2d(16, 1, 3, padding=1)

        def forward(self, x):
            a = self.down(x).relu()
            b = self.mid(F.max_pool2d(a, 2)).relu()
            return self.out(torch.cat([a, self.up(b)], 1))

    x, m, _ = blobs()
    tx, tm, _ = blobs(seed=1, n=200)
    net = UNet()
    opt = torch.optim.Adam(net.parameters(), 5e-3)
    return Program(net, nn.BCEWithLogitsLoss(), loader(x, m, batch=16), opt, iou(tx, tm))


@sound("Nothing: a graph network.", steps=300, least=0.85)
def graph_network():
    from graphs import GCN, graph_program

    return graph_program(GCN(residual=True))


@sound("Nothing: noise prediction for diffusion.", steps=500, least=0.7)
def denoising_diffusion():
    from generative import noise_drawn_twice

    return noise_drawn_twice(False)


@sound("Nothing: a detector's box and class in one loss.", steps=400, least=0.75)
def box_and_class():
    from picture_tasks import boxes_in_pixels

    return boxes_in_pixels(False)


@sound("Nothing: a wide tanh network with dropout, AdamW and a cosine schedule.", steps=400, least=0.75)
def tanh_with_cosine():
    x, y, tx, ty = classes()
    net = nn.Sequential(nn.Linear(8, 96), nn.Tanh(), nn.Dropout(0.1), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 4))
    opt = torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=0.01)
    plan = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 400)
    return Program(net, F.cross_entropy, loader(x, y), opt, accuracy(tx, ty), scheduler=plan)


@sound("Nothing: logistic regression on pixels.", steps=400, least=0.85)
def logistic_regression():
    x, y, tx, ty = digits()
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    return Program(net, F.cross_entropy, loader(x, y), torch.optim.Adam(net.parameters(), 1e-2), accuracy(tx, ty))
