"""Faults in classification, segmentation, detection, keypoints and the like."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from torch.utils.data import DataLoader, Dataset
from xis_data import accuracy, blobs, fields, gratings, iou, loader, r2, shapes


class DepthNet(nn.Module):
    def __init__(self, squeeze):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
        self.depth = nn.Conv2d(16, 1, 1)
        self.squeeze = squeeze

    def forward(self, x):
        d = self.depth(self.enc(x))
        return d.squeeze(1) if self.squeeze else d


@fault(
    "maps (B, 1, H, W) are compared with depths (B, H, W), which broadcasts to (B, B, H, W)",
    rules=("output-loss-mismatch",),
    fails=False,
    steps=250,
)
def xis_depth_map(is_faulty):
    x = fields(700, 10)
    depth = F.avg_pool2d(F.pad(x.abs(), (1, 1, 1, 1), mode="replicate"), 3, 1)[:, 0]
    x = x + 0.1 * torch.randn_like(x)
    net = DepthNet(squeeze=not is_faulty)
    return Program(
        net,
        lambda out, y: ((out - y) ** 2).mean(),
        loader(x[:500], depth[:500], batch=16),
        torch.optim.Adam(net.parameters(), lr=3e-3),
        lambda m: r2(m(x[500:]).reshape(200, 10, 10), depth[500:]),
    )


class DnCNN(nn.Module):
    def __init__(self, depth=3, width=16, last_activation=False):
        super().__init__()
        layers = [nn.Conv2d(1, width, 3, padding=1), nn.ReLU(inplace=True)]
        for _ in range(depth - 1):
            layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        layers.append(nn.Conv2d(width, 1, 3, padding=1))
        if last_activation:
            layers.append(nn.ReLU(inplace=True))
        self.body = nn.Sequential(*layers)

    def forward(self, noisy):
        return self.body(noisy)


@fault(
    "a ReLU after the last convolution of a network that predicts noise of either sign",
    rules=("output-loss-mismatch",),
    fails=False,
    steps=250,
)
def xis_dncnn(is_faulty):
    clean = fields(600, 12, coarse=4)
    noise = 0.6 * torch.randn_like(clean)
    net = DnCNN(last_activation=is_faulty)
    return Program(
        net,
        nn.MSELoss(),
        loader(clean[:450] + noise[:450], noise[:450], batch=16),
        torch.optim.Adam(net.parameters(), lr=2e-3),
        lambda m: r2(m(clean[450:] + noise[450:]), noise[450:]),
    )


class TinyViT(nn.Module):
    def __init__(self, size, patch, dim, classes, depth=2, add_pos=True):
        super().__init__()
        self.patch = nn.Conv2d(1, dim, patch, stride=patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(0.5 * torch.randn(1, (size // patch) ** 2, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)
        self.add_pos = add_pos

    def forward(self, x):
        h = self.patch(x).flatten(2).transpose(1, 2)
        if self.add_pos:
            h = h + self.pos_embed
        h = torch.cat([self.cls_token.expand(len(h), -1, -1), h], 1)
        return self.head(self.norm(self.blocks(h))[:, 0])


@fault(
    "a vision transformer whose position embedding is never added, asked in which quadrant an object is",
    rules=("order-lost", "no-gradient"),
    layers=("pos_embed",),
    fails=True,
    steps=300,
)
def xis_vit_quadrant(is_faulty):
    x, _, where = blobs(900, radius=(0.3, 0.4))
    y = 2 * (where[:, 0] > 0).long() + (where[:, 1] > 0).long()
    net = TinyViT(12, 3, 32, 4, add_pos=not is_faulty)
    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(x[:700], y[:700], batch=32),
        torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.05),
        lambda m: accuracy(m(x[700:]), y[700:]),
    )


class Backbone(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc = nn.Linear(32, classes)

    def forward(self, x):
        h = F.max_pool2d(F.relu(self.conv1(x)), 2)
        h = F.relu(self.conv2(h)).amax((2, 3))
        return self.fc(h)


@fault(
    "the head is replaced after the optimizer was made, which holds the weights of the old one",
    rules=("no-gradient",),
    layers=("fc",),
    fails=True,
    steps=150,
)
def xis_new_head(is_faulty):
    net = Backbone(6)
    x, kind = shapes(1000, classes=6)
    old = torch.optim.Adam(net.parameters(), lr=3e-3)
    for i in range(150):  # the pretrained network
        j = torch.arange(32 * i, 32 * i + 32) % 1000
        old.zero_grad()
        F.cross_entropy(net(x[j]), kind[j]).backward()
        old.step()
    net.zero_grad()
    for p in net.parameters():
        p.requires_grad_(False)
    y = torch.tensor([2, 0, 1, 2, 1, 0])[kind]
    new = nn.Linear(32, 3)
    if not is_faulty:
        net.fc = new
    else:
        net.fc.requires_grad_(True)
    optimizer = torch.optim.Adam(net.fc.parameters(), lr=1e-2)
    net.fc = new
    xt, kt = shapes(300, classes=6)
    yt = torch.tensor([2, 0, 1, 2, 1, 0])[kt]
    return Program(
        net, F.cross_entropy, loader(x, y, batch=25), optimizer, lambda m: accuracy(m(xt), yt)
    )


class BoxNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 16, 3, padding=1), nn.ReLU()
        )
        self.box = nn.Sequential(nn.Flatten(), nn.Linear(16 * 36, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, image):
        return self.box(self.features(image))


@fault(
    "boxes in the pixels of the photographs (640 x 480) as targets of a network that starts near 0",
    rules=("unscaled-target", "learning-rate-too-low"),
    fails=False,
    steps=300,
)
def xis_boxes(is_faulty):
    x, _, g = blobs(800, noise=0.3)
    cy, cx, r = g.T
    box = torch.stack([cx - r, cy - r, cx + r, cy + r], 1) / 2 + 0.5
    if is_faulty:
        box = box * torch.tensor([640.0, 480.0, 640.0, 480.0])
    data = [{"image": a, "boxes": b} for a, b in zip(x, box, strict=True)]
    net = BoxNet()

    def step(model, batch):
        return F.smooth_l1_loss(model(batch["image"]), batch["boxes"])

    return Program(
        net,
        None,
        DataLoader(data[:600], batch_size=32, shuffle=True),
        torch.optim.Adam(net.parameters(), lr=3e-4),
        lambda m: r2(m(x[600:]), box[600:]),
        step=step,
    )


class DepthwiseBlock(nn.Module):
    def __init__(self, a, b, stride=1):
        super().__init__()
        self.dw = nn.Conv2d(a, a, 3, stride, 1, groups=a, bias=False)
        self.bn1 = nn.BatchNorm2d(a)
        self.pw = nn.Conv2d(a, b, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(b)

    def forward(self, x):
        x = F.relu6(self.bn1(self.dw(x)))
        return F.relu6(self.bn2(self.pw(x)))


class MobileNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.stem = nn.Conv2d(1, 12, 3, padding=1)
        self.b1 = DepthwiseBlock(12, 24)
        self.b2 = DepthwiseBlock(24, 32, 2)
        self.classifier = nn.Linear(32, classes)

    def forward(self, x):
        return self.classifier(self.b2(self.b1(self.stem(x))).mean((-2, -1)))


@fault(
    "a weight decay of 0.3 (a zero too few) on all weights, those of BatchNorm among them",
    rules=("weight-decay-dominates",),
    fails=True,
    steps=250,
)
def xis_mobile_decay(is_faulty):
    x, y = gratings(800, noise=0.8)
    net = MobileNet(4)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.3 if is_faulty else 3e-4)
    return Program(
        net,
        nn.CrossEntropyLoss(label_smoothing=0.05),
        loader(x[:600], y[:600]),
        opt,
        lambda m: accuracy(m(x[600:]), y[600:]),
    )


class Folder(Dataset):
    """Images as a directory lists them: class by class."""

    def __init__(self, images, labels):
        order = labels.argsort(stable=True)
        self.samples = [(images[i], int(labels[i])) for i in order]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        return self.samples[i]


@fault(
    "a folder of images by class, read without shuffling",
    rules=("sorted-batches",),
    fails=True,
    steps=300,
)
def xis_folder(is_faulty):
    x, y = shapes(1000)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 24, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(24, 4),
    )
    return Program(
        net,
        nn.CrossEntropyLoss(),
        DataLoader(Folder(x[:800], y[:800]), batch_size=20, shuffle=not is_faulty),
        torch.optim.RMSprop(net.parameters(), lr=2e-3),
        lambda m: accuracy(m(x[800:]), y[800:]),
    )


class OneNorm(nn.Module):
    def __init__(self, c, own):
        super().__init__()
        self.inp = nn.Conv2d(1, c, 3, padding=1)
        self.mid = nn.Conv2d(c, c, 3, padding=1)
        self.out = nn.Conv2d(c, c, 3, padding=1)
        self.bn = nn.BatchNorm2d(c)
        if own:
            self.bn2 = nn.BatchNorm2d(c)
            self.bn3 = nn.BatchNorm2d(c)
        self.fc = nn.Linear(c, 4)
        self.own = own

    def forward(self, x):
        x = F.relu(self.bn(self.inp(x)))
        x = F.max_pool2d(x, 2)
        x = F.relu((self.bn2 if self.own else self.bn)(self.mid(x)))
        x = F.relu((self.bn3 if self.own else self.bn)(self.out(x)))
        return self.fc(x.mean((2, 3)))


@fault(
    "one BatchNorm after three convolutions, so that its running statistics are those of none of them",
    rules=("shared-weight", "batchnorm-mode-gap"),
    layers=("bn",),
    fails=True,
    steps=250,
)
def xis_one_norm(is_faulty):
    x, y = shapes(900)
    x = 3 * x + 2
    net = OneNorm(16, not is_faulty)
    return Program(
        net,
        F.cross_entropy,
        loader(x[:700], y[:700]),
        torch.optim.Adam(net.parameters(), lr=5e-3),
        lambda m: accuracy(m(x[700:]), y[700:]),
    )


class PoolHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2)
        self.fc1 = nn.Linear(32, 32)
        self.bn = nn.BatchNorm1d(32)
        self.fc2 = nn.Linear(32, 4)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x)))).amax((2, 3))
        return self.fc2(F.relu(self.bn(self.fc1(x))))


@fault(
    "513 images in batches of 64: the last batch holds one, on which BatchNorm1d raises",
    rules=("model-fails", "small-batch-batchnorm"),
    layers=("bn",),
    fails=True,
    steps=250,
)
def xis_lone_image(is_faulty):
    x, y = shapes(763, size=9)
    net = PoolHead()
    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(x[:513], y[:513], batch=64, drop_last=not is_faulty),
        torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9),
        lambda m: accuracy(m(x[513:]), y[513:]),
    )


class MaskSet(Dataset):
    def __init__(self, images, masks, divide):
        self.images, self.masks, self.divide = images, masks, divide

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        mask = self.masks[i]
        if self.divide:
            mask = (mask / 255.0).long()
        return self.images[i], mask.long()


@fault(
    "masks of 0 and 1 are divided by 255 and made integers, so that all are background",
    rules=("constant-target",),
    fails=True,
    steps=200,
)
def xis_mask_255(is_faulty):
    x, mask, _ = blobs(500, noise=0.3)
    mask = mask.to(torch.uint8)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.GELU(),
        nn.Conv2d(16, 2, 1),
    )
    return Program(
        net,
        nn.CrossEntropyLoss(),
        DataLoader(MaskSet(x[:400], mask[:400], is_faulty), batch_size=16, shuffle=True),
        torch.optim.Adam(net.parameters(), lr=2e-3),
        lambda m: iou(m(x[400:]).argmax(1), mask[400:]),
    )


class GNHead(nn.Module):
    def __init__(self, groups):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.Conv2d(32, 32, 3, stride=2), nn.ReLU()
        )
        self.pool = nn.AdaptiveMaxPool2d(1)
        self.norm = nn.GroupNorm(groups, 32)
        self.fc = nn.Linear(32, 4)

    def forward(self, x):
        return self.fc(self.norm(self.pool(self.body(x))).flatten(1))


@fault(
    "a GroupNorm of one channel per group on 1x1 maps, which takes every value to 0",
    rules=("rank-collapse", "no-gradient", "vanishing-gradient"),
    layers=("norm",),
    fails=True,
    steps=200,
)
def xis_norm_after_pool(is_faulty):
    x, y = shapes(800, size=10)
    net = GNHead(32 if is_faulty else 4)
    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(x[:600], y[:600]),
        torch.optim.AdamW(net.parameters(), lr=3e-3),
        lambda m: accuracy(m(x[600:]), y[600:]),
    )


@fault(
    "landmarks that nobody marked are stored as (-1, -1) and count in the loss",
    rules=("padding-in-loss",),
    fails=False,
    steps=350,
)
def xis_landmarks(is_faulty):
    n = 900
    a, _, ga = blobs(n, noise=0.15, radius=(0.3, 0.35))
    b, _, gb = blobs(n, noise=0.15, radius=(0.3, 0.35))
    x = torch.cat([a, b], 1)
    xy = torch.stack([ga[:, :2], gb[:, :2]], 1)
    visible = torch.rand(n, 2) > 0.3
    stored = torch.where(visible[..., None], xy, torch.tensor(-1.0))
    net = nn.Sequential(
        nn.Conv2d(2, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 36, 48),
        nn.ReLU(),
        nn.Linear(48, 4),
        nn.Unflatten(1, (2, 2)),
    )

    def loss(out, target):
        points, seen = target["points"], target["visible"]
        error = (out - points).abs().sum(-1) + (out - points).pow(2).sum(-1)
        if is_faulty:
            return error.mean()
        return (error * seen).sum() / seen.sum().clamp(min=1)

    rows = [(x[i], {"points": stored[i], "visible": visible[i].float()}) for i in range(700)]
    return Program(
        net,
        loss,
        DataLoader(rows, batch_size=32, shuffle=True),
        torch.optim.Adam(net.parameters(), lr=1e-3),
        lambda m: r2(m(x[700:]), xy[700:]),
    )
