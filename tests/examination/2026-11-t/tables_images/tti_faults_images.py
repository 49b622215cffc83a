import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, DataLoader

from program import Program, fault
from tti_common import *


class ConvNet(nn.Module):
    """Two convolutions and a head, for 8×8 images."""

    def __init__(self, norm=True, width=12, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(width) if norm else nn.Identity()
        self.conv2 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.bn2 = nn.BatchNorm2d(2 * width) if norm else nn.Identity()
        self.fc = nn.Linear(2 * width * 4, classes)

    def features(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        return F.avg_pool2d(x, 2).flatten(1)

    def forward(self, x):
        return self.fc(self.features(x))


def pretrained(steps=120, classes=5, norm=True, scale=1.0, width=12):
    """A ConvNet that knows the digits below `classes`."""
    xa, ya, _, _ = digits()
    keep = ya < classes
    net = ConvNet(norm=norm, classes=classes, width=width)
    opt = torch.optim.Adam(net.parameters(), 5e-3)
    x, y = xa[keep] * scale, ya[keep]
    for i in range(steps):
        index = torch.randint(len(x), (48,), generator=gen(i))
        opt.zero_grad()
        F.cross_entropy(net(x[index]), y[index]).backward()
        opt.step()
    return net


@fault("BatchNorm momentum in the meaning of another library", rules=["batchnorm-mode-gap"], layers=["bn1", "bn2"], fails=False, steps=150)
def tti_bn_momentum(is_faulty):
    xa, ya, xb, yb = digits(0.25)
    net = ConvNet()
    for m in (net.bn1, net.bn2):
        m.momentum = 0.0001 if is_faulty else 0.1
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(net.parameters(), 3e-3), accuracy(xb, yb))


@fault("optimizer made before the head was replaced; the rest is frozen", rules=["no-gradient", "loss-not-decreasing"],
       layers=["fc"], fails=True, steps=250)
def tti_new_head(is_faulty):
    xa, ya, xb, yb = digits()
    net = pretrained()
    for p in net.parameters():
        p.requires_grad_(False)
    opt = torch.optim.Adam(net.parameters(), 1e-2) if is_faulty else None
    net.fc = nn.Linear(96, 10)
    if opt is None:
        opt = torch.optim.Adam(net.fc.parameters(), 1e-2)

    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), opt, accuracy(xb, yb))


@fault("log-softmax over the height instead of the classes", rules=["wrong-softmax-dimension", "output-loss-mismatch"], layers=["log_softmax"],
       fails=False, steps=250)
def tti_segment_dim(is_faulty):
    x, mask, _, ring = blobs()
    y = mask[:, 0].long() * (1 + ring[:, None, None])
    xa, ya, xb, yb = split(x, y)

    class Seg(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(),
                                      nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
            self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
            self.out = nn.Conv2d(8, 3, 3, padding=1)
            self.log_softmax = nn.LogSoftmax(dim=2 if is_faulty else 1)

        def forward(self, x):
            return self.log_softmax(self.out(F.relu(self.up(self.down(x)))))

    def score(model):
        out = model(xb).argmax(1)
        return ((out > 0) & (yb > 0)).sum().item() / max(1, ((out > 0) | (yb > 0)).sum().item())

    net = Seg()
    return Program(net, nn.NLLLoss(), loader(xa, ya, 16), torch.optim.Adam(net.parameters(), 3e-3), score)


@fault("the Dice coefficient itself is minimised", rules=["output-loss-mismatch"], fails=True, steps=250)
def tti_dice_sign(is_faulty):
    x, mask, _, _ = blobs(seed=17)
    xa, ya, xb, yb = split(x, mask)

    def loss(out, y):
        p = torch.sigmoid(out)
        dice = (2 * (p * y).sum((1, 2, 3)) + 1) / (p.sum((1, 2, 3)) + y.sum((1, 2, 3)) + 1)
        return dice.mean() if is_faulty else 1 - dice.mean()

    net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=2, dilation=2), nn.BatchNorm2d(8),
                        nn.ReLU(), nn.Conv2d(8, 1, 1))
    return Program(net, loss, loader(xa, ya, 16), torch.optim.Adam(net.parameters(), 5e-3), iou(xb, yb))


@fault("a decoder that ends in a ReLU for standardised pixels", rules=["output-loss-mismatch", "dying-neurons"], layers=["decoder.3"],
       fails=False, steps=400)
def tti_autoencoder_relu(is_faulty):
    xa, _, xb, _ = sk("digits")

    class Auto(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 24))
            self.decoder = nn.Sequential(nn.Linear(24, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU() if is_faulty else nn.Identity())

        def forward(self, x):
            return self.decoder(self.encoder(x))

    xa, xb = xa.clamp(-3, 3), xb.clamp(-3, 3)
    net = Auto()
    return Program(net, nn.MSELoss(), loader(xa, xa), torch.optim.Adam(net.parameters(), 4e-3), r2(xb, xb))


@fault("a decoder that ends in a sigmoid for pixels up to 16", rules=["output-loss-mismatch", "unscaled-target"], fails=True, steps=400)
def tti_autoencoder_pixels(is_faulty):
    xa, _, xb, _ = digits(1.0)

    class Auto(nn.Module):
        def __init__(self):
            super().__init__()
            self.bn = nn.BatchNorm2d(1)
            self.enc = nn.Sequential(nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.ELU(), nn.Flatten(), nn.Linear(192, 20))
            self.dec = nn.Sequential(nn.Linear(20, 192), nn.ELU(), nn.Unflatten(1, (12, 4, 4)), nn.Upsample(scale_factor=2), nn.Conv2d(12, 1, 3, padding=1),
                                     nn.Sigmoid())

        def forward(self, x):
            return self.dec(self.enc(self.bn(x)))

    def r2_scaled(model):
        out = model(xb) * (1 if is_faulty else 16)
        return max(0.0, 1 - ((out - xb) ** 2).mean().item() / ((xb - xb.mean(0)) ** 2).mean().item())

    net = Auto()
    return Program(net, nn.MSELoss(), loader(xa, xa if is_faulty else xa / 16), torch.optim.Adam(net.parameters(), 5e-3), r2_scaled)


@fault("boxes in pixels of a large frame drown the class of a detector", rules=["term-dominates", "unscaled-target"], fails=True, steps=350)
def tti_boxes_and_class(is_faulty):
    x, _, box, ring = blobs(700, seed=19)
    frame = 1024 / 16 if is_faulty else 1 / 16
    y = torch.cat([box * frame, ring[:, None].float()], 1)
    xa, ya, xb, yb = split(x, y)

    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(1, 12, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(12, 24, 3, stride=2, padding=1), nn.ReLU(),
                                      nn.Flatten(), nn.Linear(384, 48), nn.ReLU())
            self.box, self.cls = nn.Linear(48, 3), nn.Linear(48, 1)

        def forward(self, x):
            h = self.body(x)
            return torch.cat([self.box(h), self.cls(h)], 1)

    def loss(out, y):
        return F.mse_loss(out[:, :3], y[:, :3]) + F.binary_cross_entropy_with_logits(out[:, 3], y[:, 3])

    def score(model):
        out = model(xb)
        hit = ((out[:, 3] > 0) == (yb[:, 3] > 0.5)).float().mean().item()
        return max(0.0, 2 * hit - 1)

    net = Detector()
    return Program(net, loss, loader(xa, ya, 24), torch.optim.Adam(net.parameters(), 3e-3), score)


@fault("a loss summed over the batch with a rate for means", rules=["summed-loss", "learning-rate-too-high", "exploding-gradient", "dying-neurons"], fails=True, steps=250)
def tti_reduction_sum(is_faulty):
    xa, ya, xb, yb = digits()
    net = ConvNet(norm=False)
    loss = nn.CrossEntropyLoss(reduction="sum" if is_faulty else "mean")
    return Program(net, loss, loader(xa, ya, 64), torch.optim.SGD(net.parameters(), 0.05, momentum=0.9), accuracy(xb, yb))


@fault("a folder per class, read in order", rules=["sorted-batches"], fails=True, steps=400)
def tti_folders(is_faulty):
    xa, ya, xb, yb = digits()
    order = ya.argsort(stable=True)
    net = ConvNet(norm=False)
    batches = loader(xa[order], ya[order], 16, shuffle=not is_faulty)
    return Program(net, nn.CrossEntropyLoss(), batches, torch.optim.SGD(net.parameters(), 0.05, momentum=0.9), accuracy(xb, yb))


@fault("pixels divided by 255 as integers", rules=["constant-feature", "rank-collapse", "labels-unrelated", "loss-not-decreasing"], fails=True, steps=200)
def tti_integer_pixels(is_faulty):
    x, _, _, _ = blobs(600, seed=23)
    ring = blobs(600, seed=23)[3]
    x = ((x + 0.8) / 2.8).clamp(0, 1) * 254
    xa, ya, xb, yb = split(x.to(torch.uint8), ring)

    def prepare(x):
        return (torch.div(x, 255, rounding_mode="floor") if is_faulty else x / 255).float()

    xa, xb = prepare(xa), prepare(xb)
    net = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
                        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(16, 2))
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(net.parameters(), 5e-3), accuracy(xb, yb))


@fault("pixels divided by 255 twice", rules=["unscaled-input"], fails=True, steps=300)
def tti_divided_twice(is_faulty):
    xa, ya, xb, yb = digits(16 * 255 if is_faulty else 16)
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10))
    opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, nesterov=True)
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), opt, accuracy(xb, yb))


class Flipped(Dataset):
    def __init__(self, x, y, dims):
        self.x, self.y, self.dims = x, y, dims

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = self.x[i]
        if torch.rand(()) < 0.5:
            x = x.flip(self.dims)
        return x, self.y[i]


@fault("random horizontal flips for classes that are mirror images", rules=["labels-unrelated"], fails=True, steps=350)
def tti_mirror(is_faulty):
    xa, ya, xb, yb = stripes()
    net = nn.Sequential(nn.Conv2d(1, 8, 5, stride=2, padding=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                        nn.Linear(12, 2))
    batches = DataLoader(Flipped(xa, ya, (-1,) if is_faulty else (-2, -1)), batch_size=32, shuffle=True, drop_last=True)
    every = accuracy(torch.cat([xb, xb.flip((-2, -1))]), torch.cat([yb, yb]))
    return Program(net, nn.CrossEntropyLoss(), batches, torch.optim.Adam(net.parameters(), 2e-3), lambda m: max(0.0, 2 * every(m) - 1))


@fault("channels are moved to the front before flattening, which mixes the batch", rules=["mixed-examples", "output-loss-mismatch"], fails=True, steps=250)
def tti_reshape(is_faulty):
    xa, ya, xb, yb = digits()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.LeakyReLU(), nn.MaxPool2d(2))
            self.fc = nn.Sequential(nn.Linear(192, 48), nn.LeakyReLU(), nn.Linear(48, 10))

        def forward(self, x):
            h = self.conv(x)
            h = h.permute(1, 2, 3, 0) if is_faulty else h.permute(0, 2, 3, 1)
            return self.fc(h.reshape(len(x), -1))

    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(net.parameters(), 3e-3), accuracy(xb, yb))


@fault("dropout of F without training=", rules=["dropout-in-eval"], fails=False, steps=300)
def tti_functional_dropout(is_faulty):
    xa, ya, xb, yb = digits()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(1, 16, 3, stride=2, padding=1)
            self.fc1, self.fc2 = nn.Linear(256, 64), nn.Linear(64, 10)

        def forward(self, x):
            on = True if is_faulty else self.training
            x = F.dropout2d(F.relu(self.conv(x)), 0.5, on)
            x = F.dropout(F.relu(self.fc1(x.flatten(1))), 0.7, on)
            return self.fc2(x)

    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(net.parameters(), 3e-3), accuracy(xb, yb))


@fault("a rate for SGD given to Adam", rules=["learning-rate-too-high", "dying-neurons", "diverging"], fails=True, steps=250)
def tti_adam_rate(is_faulty):
    xa, ya, xb, yb = digits()
    net = ConvNet(norm=False)
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(net.parameters(), 0.3 if is_faulty else 3e-3), accuracy(xb, yb))


@fault("a fine-tuning rate for a network from scratch", rules=["learning-rate-too-low"], fails=True, steps=300)
def tti_finetune_rate(is_faulty):
    x, mask, _, _ = blobs(400, seed=27)
    xa, ya, xb, yb = split(x, mask)
    net = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 3, padding=1))
    opt = torch.optim.AdamW(net.parameters(), lr=2e-6 if is_faulty else 5e-3)
    return Program(net, nn.BCEWithLogitsLoss(), loader(xa, ya, 16), opt, iou(xb, yb))


@fault("LayerNorm over a single output", rules=["rank-collapse", "loss-not-decreasing", "no-gradient"], layers=["head.2"], fails=True, steps=250)
def tti_norm_of_one(is_faulty):
    x, _, box, _ = blobs(seed=29)
    r = (box[:, 2:] - 3.25) / 0.43
    xa, ya, xb, yb = split(x, r)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(4), nn.Flatten())
            self.head = nn.Sequential(nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 1), nn.LayerNorm(1)) if is_faulty else nn.Sequential(
                nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 1))

        def forward(self, x):
            return self.head(self.body(x))

    net = Net()
    return Program(net, nn.MSELoss(), loader(xa, ya), torch.optim.Adam(net.parameters(), 4e-3), r2(xb, yb))


@fault("a triplet loss with positive and negative exchanged", rules=["output-loss-mismatch"], fails=True, steps=200)
def tti_triplet(is_faulty):
    xa, ya, xb, yb = digits()
    g = gen(37)
    triples = []
    for i in range(800):
        k = int(torch.randint(len(xa), (1,), generator=g))
        same, other = (ya == ya[k]).nonzero()[:, 0], (ya != ya[k]).nonzero()[:, 0]
        p = same[torch.randint(len(same), (1,), generator=g)][0]
        n = other[torch.randint(len(other), (1,), generator=g)][0]
        triples.append((xa[k], xa[p], xa[n]))
    x = torch.stack([torch.stack(t) for t in triples])

    class Embed(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6))

        def forward(self, x):
            return F.normalize(self.net(x), dim=1)

    def step(model, batch):
        a, p, n = batch[0].unbind(1)
        a, p, n = model(a), model(p), model(n)
        return F.triplet_margin_loss(a, n, p, margin=0.5) if is_faulty else F.triplet_margin_loss(a, p, n, margin=0.5)

    def score(model):
        near = (torch.cdist(model(xb), model(xa)) + 0.0).topk(5, largest=False).indices
        votes = F.one_hot(ya[near], 10).sum(1).argmax(1)
        return (votes == yb).float().mean().item()

    net = Embed()
    batches = DataLoader(torch.utils.data.TensorDataset(x), batch_size=40, shuffle=True)
    return Program(net, None, batches, torch.optim.Adam(net.parameters(), 3e-3), score, step=step)


@fault("features are detached from a backbone that is to be trained", rules=["no-gradient"], layers=["backbone"], fails=False, steps=350)
def tti_detached(is_faulty):
    xa, ya, xb, yb = digits()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = nn.Sequential(nn.Conv2d(1, 6, 3, stride=2), nn.Tanh(), nn.Conv2d(6, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, 8), nn.Tanh())
            self.head = nn.Linear(8, 10)

        def forward(self, x):
            h = self.backbone(x)
            return self.head(h.detach() if is_faulty else h)

    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(net.parameters(), 1e-2), accuracy(xb, yb))


@fault("biases of −4 before the ReLUs", rules=["dying-neurons", "bad-initialisation", "no-gradient", "loss-not-decreasing"], layers=["conv1", "conv2"], fails=True, steps=250)
def tti_bias(is_faulty):
    xa, ya, xb, yb = digits()
    net = ConvNet(norm=False)
    if is_faulty:
        nn.init.constant_(net.conv1.bias, -4.0)
        nn.init.constant_(net.conv2.bias, -4.0)
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.SGD(net.parameters(), 0.05, momentum=0.9), accuracy(xb, yb))


@fault("a residual stack of which the second convolutions are drawn far too wide", rules=["activation-drift", "bad-initialisation", "exploding-gradient",
       "saturated-output", "last-layer-drift"], fails=True, steps=200)
def tti_residual_init(is_faulty):
    xa, ya, xb, yb = digits()

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(10, 10, 3, padding=1), nn.Conv2d(10, 10, 3, padding=1)
            nn.init.normal_(self.b.weight, std=0.5 if is_faulty else 0.02)

        def forward(self, x):
            return x + self.b(F.relu(self.a(x)))

    net = nn.Sequential(nn.Conv2d(1, 10, 3, stride=2, padding=1), *[Block() for _ in range(7)], nn.ReLU(), nn.Flatten(), nn.Linear(160, 10))
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya, 24), torch.optim.SGD(net.parameters(), 0.01, momentum=0.9), accuracy(xb, yb))


@fault("last convolution and head are both filled with zeros", rules=["symmetric-initialisation", "bad-initialisation", "no-gradient", "rank-collapse", "dying-neurons", "loss-not-decreasing"], layers=["conv2", "fc"], fails=True, steps=250)
def tti_zero_layers(is_faulty):
    xa, ya, xb, yb = digits()
    net = ConvNet(norm=False)
    if is_faulty:
        for m in (net.conv2, net.fc):
            nn.init.zeros_(m.weight)
            nn.init.zeros_(m.bias)
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(net.parameters(), 3e-3), accuracy(xb, yb))


@fault("log of an intensity that is 0", rules=["non-finite"], fails=True, steps=200)
def tti_log_image(is_faulty):
    xa, ya, xb, yb = digits()

    class LogNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = ConvNet()

        def forward(self, x):
            return self.net(torch.log(x) if is_faulty else torch.log(x + 0.1))

    net = LogNet()
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(net.parameters(), 3e-3), accuracy(xb, yb))


@fault("tanh outputs for offsets up to 4 pixels", rules=["output-loss-mismatch", "unscaled-target", "saturated-activation"], layers=["8"], fails=False, steps=350)
def tti_tanh_offsets(is_faulty):
    x, _, box, _ = blobs(700, seed=43)
    xa, ya, xb, yb = split(x, box[:, :2] - 8)
    net = nn.Sequential(nn.Conv2d(1, 8, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
                        nn.Linear(256, 48), nn.ReLU(), nn.Linear(48, 2), nn.Tanh() if is_faulty else nn.Identity())
    return Program(net, nn.L1Loss(), loader(xa, ya, 24), torch.optim.Adam(net.parameters(), 3e-3), r2(xb, yb))


@fault("momentum 0.999", rules=["optimizer-setting", "learning-rate-too-high", "diverging"], fails=False, steps=250)
def tti_momentum(is_faulty):
    xa, ya, xb, yb = digits()
    net = ConvNet(norm=False)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.999 if is_faulty else 0.9)
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), opt, accuracy(xb, yb))


@fault("BCE with pixels whose mask is 0 and 255", rules=["output-loss-mismatch", "unscaled-target", "diverging"], fails=True, steps=250)
def tti_mask_255(is_faulty):
    x, mask, _, _ = blobs(400, seed=47)
    xa, ya, xb, yb = split(x, mask * (255 if is_faulty else 1))
    net = nn.Sequential(nn.Conv2d(1, 10, 3, padding=1), nn.BatchNorm2d(10), nn.ReLU(), nn.Conv2d(10, 10, 3, padding=1), nn.ReLU(), nn.Conv2d(10, 1, 1))
    return Program(net, nn.BCEWithLogitsLoss(), loader(xa, ya, 16), torch.optim.Adam(net.parameters(), 5e-3), iou(xb, yb))


@fault("weights in bfloat16 with a small rate", rules=["lost-updates", "learning-rate-too-low"], fails=False, steps=400)
def tti_bf16_weights(is_faulty):
    xa, ya, xb, yb = sk("digits")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

        def forward(self, x):
            return self.net(x.to(self.net[0].weight.dtype)).float()

    net = Net()
    if is_faulty:
        net = net.bfloat16()
    return Program(net, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(net.parameters(), 1.5e-4), accuracy(xb, yb))
