import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from program import Program, sound
from tti_common import *
from tti_faults_images import ConvNet, Flipped, pretrained


@sound("an ordinary CNN with BatchNorm", steps=200, least=0.9)
def tti_plain_cnn():
    xa, ya, xb, yb = digits()
    net = ConvNet()
    opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), opt, accuracy(xb, yb), scheduler=lr_scheduler.StepLR(opt, 84, 0.5))


@sound("an ordinary segmentation", steps=200, least=0.8)
def tti_plain_segmentation():
    x, mask, _, _ = blobs(seed=101)
    xa, ya, xb, yb = split(x, mask)
    net = nn.Sequential(nn.Conv2d(1, 10, 3, padding=1), nn.ReLU(), nn.Conv2d(10, 10, 3, padding=1), nn.ReLU(), nn.Conv2d(10, 1, 1))
    return Program(net, nn.BCEWithLogitsLoss(), loader(xa, ya, 16), torch.optim.Adam(net.parameters(), 5e-3), iou(xb, yb))


@sound("an ordinary regression of centre and radius", trained=200, steps=350, least=0.7)
def tti_plain_boxes():
    x, _, box, _ = blobs(700, seed=103)
    xa, ya, xb, yb = split(x, (box - box.mean(0)) / box.std(0))
    net = nn.Sequential(nn.Conv2d(1, 12, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(12, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
                        nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 3))
    return Program(net, nn.SmoothL1Loss(), loader(xa, ya, 24), torch.optim.Adam(net.parameters(), 3e-3), r2(xb, yb))


@sound("an ordinary convolutional autoencoder, examined trained", trained=300, steps=400, least=0.7)
def tti_plain_autoencoder():
    xa, _, xb, _ = digits()
    net = nn.Sequential(nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(192, 24), nn.Linear(24, 192), nn.ReLU(),
                        nn.Unflatten(1, (12, 4, 4)), nn.ConvTranspose2d(12, 1, 4, stride=2, padding=1), nn.Sigmoid())
    return Program(net, nn.BCELoss(), loader(xa, xa), torch.optim.Adam(net.parameters(), 5e-3), r2(xb, xb))


@sound("an ordinary small CNN without normalisation, examined at its end", trained=300, steps=350, least=0.9)
def tti_trained_cnn():
    xa, ya, xb, yb = digits()
    net = ConvNet(norm=False)
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(net.parameters(), 5e-3), accuracy(xb, yb))


@sound("a frozen backbone in evaluation mode on purpose, with a new head", steps=200, least=0.8)
def tti_linear_probe():
    xa, ya, xb, yb = digits()
    body = pretrained(steps=100)
    body.fc = nn.Identity()
    body.requires_grad_(False)

    class Probe(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = body
            self.head = nn.Linear(96, 10)

        def train(self, mode=True):
            super().train(mode)
            self.body.eval()
            return self

        def forward(self, x):
            return self.head(self.body.features(x))

    net = Probe().train()
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(net.head.parameters(), 1e-2), accuracy(xb, yb))


@sound("fine-tuning with a rate of its own for the body", trained=100, steps=200, least=0.85)
def tti_two_rates():
    xa, ya, xb, yb = digits()
    net = pretrained(steps=100)
    net.fc = nn.Linear(96, 10)
    body = [p for n, p in net.named_parameters() if not n.startswith("fc")]
    opt = torch.optim.AdamW([{"params": body, "lr": 1e-4}, {"params": net.fc.parameters(), "lr": 5e-3}])
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), opt, accuracy(xb, yb))


@sound("low-rank adapters next to frozen layers, of which one factor is zero", steps=250, least=0.8)
def tti_adapters():
    xa, ya, xb, yb = digits()
    keep = ya < 6
    x, y = xa[keep].flatten(1), ya[keep]
    base = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6))
    opt = torch.optim.Adam(base.parameters(), 3e-3)
    for k in range(150):
        index = torch.randint(len(x), (48,), generator=gen(k))
        opt.zero_grad()
        F.cross_entropy(base(x[index]), y[index]).backward()
        opt.step()
    base.requires_grad_(False)

    class Adapter(nn.Module):
        def __init__(self, layer, rank=4):
            super().__init__()
            self.layer = layer
            self.down = nn.Linear(layer.in_features, rank, bias=False)
            self.up = nn.Linear(rank, layer.out_features, bias=False)
            nn.init.zeros_(self.up.weight)

        def forward(self, x):
            return self.layer(x) + 2 * self.up(self.down(x))

    net = nn.Sequential(nn.Flatten(), Adapter(base[0]), nn.ReLU(), Adapter(base[2]), nn.ReLU(), nn.Linear(64, 10))
    opt = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], 1e-2)
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), opt, accuracy(xb, yb))


@sound("one minus Dice", trained=150, steps=250, least=0.8)
def tti_dice():
    x, mask, _, _ = blobs(seed=107)
    xa, ya, xb, yb = split(x, mask)

    def loss(out, y):
        p = torch.sigmoid(out)
        return 1 - (2 * (p * y).sum() + 1) / (p.sum() + y.sum() + 1)

    net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.InstanceNorm2d(8, affine=True), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=2, dilation=2), nn.ReLU(), nn.Conv2d(8, 1, 1))
    return Program(net, loss, loader(xa, ya, 8), torch.optim.Adam(net.parameters(), 5e-3), iou(xb, yb))


@sound("a focal loss for a map of rare centres, with a prior in the last bias", steps=300, least=0.6)
def tti_focal():
    x, _, box, _ = blobs(500, seed=109)
    centre = box[:, :2].round().long()
    heat = torch.zeros(500, 1, 16, 16)
    heat[torch.arange(500), 0, centre[:, 0], centre[:, 1]] = 1
    wide = F.max_pool2d(heat, 3, 1, 1)
    xa, ya, xb, yb = split(x, wide)
    _, _, _, cb = split(x, centre.float())

    def focal(out, y):
        p = torch.sigmoid(out)
        ce = F.binary_cross_entropy_with_logits(out, y, reduction="none")
        return (ce * torch.where(y > 0, 1 - p, p) ** 2).sum() / y.sum()

    def score(model):
        best = model(xb).flatten(1).argmax(1)
        where = torch.stack([best // 16, best % 16], 1).float()
        return ((where - cb).abs().amax(1) <= 1.5).float().mean().item()

    net = nn.Sequential(nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 1, 1))
    nn.init.constant_(net[4].bias, -4.6)
    return Program(net, focal, loader(xa, ya, 12), torch.optim.Adam(net.parameters(), 4e-3), score)


@sound("a softmax over places, not channels: keypoints as expected coordinates", steps=350, least=0.8)
def tti_spatial_softmax():
    x, _, box, _ = blobs(500, seed=111)
    xa, ya, xb, yb = split(x, box[:, :2] / 7.5 - 1)

    class Keypoint(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Sequential(nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 4, 5, padding=2))
            line = torch.linspace(-1, 1, 16)
            self.register_buffer("grid", torch.stack(torch.meshgrid(line, line, indexing="ij")).flatten(1))
            self.mix = nn.Linear(8, 2)

        def forward(self, x):
            p = self.conv(x).flatten(2).softmax(-1)
            return self.mix((p @ self.grid.t()).flatten(1))

    net = Keypoint()
    return Program(net, nn.MSELoss(), loader(xa, ya, 12), torch.optim.Adam(net.parameters(), 1e-2), r2(xb, yb))


@sound("detection: a box only where there is an object", steps=400, least=0.7)
def tti_masked_boxes():
    g = gen(113)
    x, _, box, _ = blobs(800, seed=113)
    there = (torch.rand(800, generator=g) < 0.4).float()
    x = torch.where(there[:, None, None, None] > 0, x, 0.15 * torch.randn(800, 1, 16, 16, generator=g))
    y = torch.cat([there[:, None], (box[:, :2] / 8 - 1) * there[:, None]], 1)
    xa, ya, xb, yb = split(x, y)

    def loss(out, y):
        on = y[:, :1]
        return F.binary_cross_entropy_with_logits(out[:, :1], on) + 5 * (on * (out[:, 1:] - y[:, 1:]).abs()).sum() / on.sum().clamp(min=1)

    def score(model):
        out, on = model(xb), yb[:, 0] > 0
        hit = ((out[:, 0] > 0) == on)
        near = (out[:, 1:] - yb[:, 1:]).abs().amax(1) < 0.25
        return (hit & (near | ~on)).float().mean().item()

    net = nn.Sequential(nn.Conv2d(1, 10, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(10, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 48),
                        nn.ReLU(), nn.Linear(48, 3))
    return Program(net, loss, loader(xa, ya, 24), torch.optim.Adam(net.parameters(), 3e-3), score)


@sound("mixup: two labels per image", steps=300, least=0.85)
def tti_mixup():
    xa, ya, xb, yb = digits()

    def step(model, batch):
        x, y = batch
        lam = float(torch.rand(()) * 0.3)
        other = torch.randperm(len(x))
        out = model((1 - lam) * x + lam * x[other])
        return (1 - lam) * F.cross_entropy(out, y) + lam * F.cross_entropy(out, y[other])

    net = ConvNet()
    return Program(net, None, loader(xa, ya), torch.optim.Adam(net.parameters(), 4e-3), accuracy(xb, yb), step=step)


@sound("binary weights by a straight-through estimator", trained=150, steps=350, least=0.8)
def tti_binary_weights():
    xa, ya, xb, yb = digits()

    class BinaryConv(nn.Conv2d):
        def forward(self, x):
            alpha = self.weight.abs().mean((1, 2, 3), keepdim=True)
            w = self.weight + (alpha * self.weight.sign() - self.weight).detach()
            return F.conv2d(x, w, self.bias, padding=1)

    net = nn.Sequential(BinaryConv(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), BinaryConv(16, 24, 3), nn.BatchNorm2d(24), nn.ReLU(), nn.Flatten(),
                        nn.Linear(384, 10))
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(net.parameters(), 3e-3), accuracy(xb, yb))


@sound("a contrastive loss, in which the examples of a batch meet", steps=250, least=0.8)
def tti_supervised_contrastive():
    xa, ya, xb, yb = digits()

    class Embed(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 16))

        def forward(self, x):
            return F.normalize(self.net(x), dim=1)

    def loss(z, y):
        sim = (z @ z.t() / 0.1).masked_fill(torch.eye(len(z), dtype=torch.bool), -1e9)
        same = (y[:, None] == y[None]).float().fill_diagonal_(0)
        return -(sim.log_softmax(1) * same).sum(1).div(same.sum(1).clamp(min=1)).mean()

    def score(model):
        near = (model(xb) @ model(xa).t()).topk(5).indices
        return (F.one_hot(ya[near], 10).sum(1).argmax(1) == yb).float().mean().item()

    net = Embed()
    return Program(net, loss, loader(xa, ya, 64), torch.optim.Adam(net.parameters(), 5e-3), score)


@sound("a critic with spectral normalisation and hinge loss", steps=300, least=0.8)
def tti_critic():
    xa, _, xb, _ = digits()
    g = gen(115)
    fake = lambda x: (x.mean(0) + x.std(0) * torch.randn(x.shape, generator=g)).clamp(0, 1)
    x, t = torch.cat([xa, fake(xa)]), torch.cat([torch.ones(len(xa)), -torch.ones(len(xa))])
    xt, tt = torch.cat([xb, fake(xb)]), torch.cat([torch.ones(len(xb)), -torch.ones(len(xb))])
    sn = parametrizations.spectral_norm
    net = nn.Sequential(sn(nn.Conv2d(1, 12, 3, padding=1)), nn.LeakyReLU(0.2), sn(nn.Conv2d(12, 16, 4, stride=2, padding=1)), nn.LeakyReLU(0.2), nn.Flatten(),
                        sn(nn.Linear(256, 1)), nn.Flatten(0))
    score = lambda m: ((m(xt) > 0) == (tt > 0)).float().mean().item()
    return Program(net, lambda out, t: F.relu(1 - t * out).mean(), loader(x, t), torch.optim.Adam(net.parameters(), 4e-3, betas=(0.0, 0.9)), score)


@sound("heavy dropout of whole inputs in a wide network", steps=400, least=0.85)
def tti_input_dropout():
    xa, ya, xb, yb = digits()
    net = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 10))
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya, 48), torch.optim.Adam(net.parameters(), 3e-3), accuracy(xb, yb))


@sound("flips and shifts that keep the class", steps=300, least=0.8)
def tti_good_flips():
    xa, ya, xb, yb = stripes(seed=117)
    net = nn.Sequential(nn.Conv2d(1, 8, 5, stride=2, padding=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                        nn.Linear(12, 2))
    batches = DataLoader(Flipped(xa, ya, (-2, -1)), batch_size=16, shuffle=True, drop_last=True)
    return Program(net, nn.CrossEntropyLoss(), batches, torch.optim.RMSprop(net.parameters(), 2e-3), accuracy(xb, yb))


@sound("a cosine classifier with a learned temperature", steps=250, least=0.85)
def tti_cosine_head():
    xa, ya, xb, yb = digits()

    class Cosine(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 24))
            self.centres = nn.Parameter(torch.randn(10, 24))
            self.log_scale = nn.Parameter(torch.tensor(math.log(12.0)))

        def forward(self, x):
            return self.log_scale.exp() * F.normalize(self.body(x), dim=1) @ F.normalize(self.centres, dim=1).t()

    net = Cosine()
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(net.parameters(), 4e-3), accuracy(xb, yb))


@sound("several labels per image, each with a sigmoid", steps=300, least=0.85)
def tti_multilabel():
    xa, ya, xb, yb = digits()
    bits = lambda y: torch.stack([y % 2, (y > 4).long(), (y % 3 == 0).long(), (y == 8).long()], 1).float()
    net = nn.Sequential(nn.Conv2d(1, 12, 3), nn.ELU(), nn.Conv2d(12, 16, 3), nn.ELU(), nn.Flatten(), nn.Linear(256, 4), nn.Sigmoid())
    score = lambda m: ((m(xb) > 0.5) == (bits(yb) > 0.5)).all(1).float().mean().item()
    return Program(net, nn.BCELoss(), loader(xa, bits(ya)), torch.optim.Adam(net.parameters(), 5e-3), score)


@sound("a bag of patches weighted by attention over the patches", steps=300, least=0.75)
def tti_patches():
    x, _, _, ring = blobs(700, seed=119)
    xa, ya, xb, yb = split(x, ring)

    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Sequential(nn.Conv2d(1, 16, 5), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU())
            self.weigh = nn.Sequential(nn.Conv2d(16, 8, 1), nn.Tanh(), nn.Conv2d(8, 1, 1))
            self.out = nn.Linear(16, 2)

        def forward(self, x):
            h = self.conv(x).flatten(2)
            a = self.weigh(h.unflatten(2, (10, 10))).flatten(2).softmax(2)
            return self.out((h * a).sum(2))

    net = Bag()
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(net.parameters(), 6e-3), accuracy(xb, yb))


@sound("the target of a student is a frozen teacher", steps=250, least=0.85)
def tti_distilled():
    xa, ya, xb, yb = digits()
    teacher = pretrained(steps=150, classes=10).eval().requires_grad_(False)
    with torch.no_grad():
        soft = F.softmax(teacher(xa) / 3, 1)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    loss = lambda out, p: 9 * F.kl_div(F.log_softmax(out / 3, 1), p, reduction="batchmean")
    return Program(net, loss, loader(xa, soft), torch.optim.Adam(net.parameters(), 3e-3), accuracy(xb, yb))


@sound("Adamax with lower betas and a high rate", steps=300, least=0.8)
def tti_adamax():
    xa, ya, xb, yb = digits()
    net = ConvNet(norm=False)
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adamax(net.parameters(), 8e-3, betas=(0.8, 0.99)), accuracy(xb, yb))


@sound("pixels of which a border never varies, with the raw range of 0 to 16", steps=250, least=0.85)
def tti_border():
    xa, ya, xb, yb = digits(1.0)
    pad = lambda x: F.pad(x - 5, (2, 2, 2, 2), value=-5.0)
    net = nn.Sequential(nn.Conv2d(1, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(300, 10))
    return Program(net, nn.CrossEntropyLoss(), loader(pad(xa), ya), torch.optim.Adam(net.parameters(), 2e-3), accuracy(pad(xb), yb))


@sound("a decay of 0.5, decoupled and with a small rate", trained=200, steps=300, least=0.85)
def tti_strong_decay():
    xa, ya, xb, yb = digits()
    net = ConvNet()
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=0.5), accuracy(xb, yb))


class Scarce:
    """Half of the labels are unknown and ignored."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x) // 32

    def __iter__(self):
        order = torch.randperm(len(self.x))
        for i in range(len(self)):
            index = order[32 * i:32 * i + 32]
            yield self.x[index], self.y[index]


@sound("half of the labels are −100 and ignored", steps=300, least=0.8)
def tti_ignored():
    xa, ya, xb, yb = digits()
    ya = torch.where(torch.rand(len(ya), generator=gen(121)) < 0.5, -100, ya)
    net = ConvNet(norm=False)
    return Program(net, nn.CrossEntropyLoss(ignore_index=-100), Scarce(xa, ya), torch.optim.Adam(net.parameters(), 5e-3), accuracy(xb, yb))


@sound("a variational autoencoder with a small weight of the KL term", steps=400, least=0.6)
def tti_vae():
    xa, _, xb, _ = digits()

    class Vae(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU())
            self.mean, self.log_var = nn.Linear(96, 12), nn.Linear(96, 12)
            self.dec = nn.Sequential(nn.Linear(12, 96), nn.ReLU(), nn.Linear(96, 64))

        def forward(self, x):
            h = self.enc(x)
            m, v = self.mean(h), self.log_var(h)
            z = m + torch.randn_like(m) * (v / 2).exp() if self.training else m
            return self.dec(z).view_as(x), m, v

    def loss(out, x):
        y, m, v = out
        kl = -0.5 * (1 + v - m ** 2 - v.exp()).sum(1).mean()
        return F.mse_loss(y, x, reduction="sum") / len(x) + 0.05 * kl

    net = Vae()
    return Program(net, loss, loader(xa, xa), torch.optim.Adam(net.parameters(), 3e-3), lambda m: r2(xb, xb)(lambda x: m(x)[0]))
