"""Pictures: loading, layers, segmentation, autoencoders."""

import torch
import torch.nn.functional as F
from program import Program, fault
from ti_data import accuracy, iou, r2, scenes, shapes, smooth
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset


def small_cnn(width=8, classes=4):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(2 * width * 9, classes),
    )  # fmt: skip


@fault(
    "pictures in 0..1 are normalised with the mean and the deviation of 0..255",
    rules=["unscaled-input", "ill-conditioned-input", "rank-collapse"],
    fails=True,
    steps=250,
)
def normalised_with_byte_statistics(is_faulty):
    x, y, xt, yt = shapes(1000, 1)
    mean, std = 255 * x.mean(), 255 * x.std()
    prepare = (lambda a: (a - mean) / std) if is_faulty else (lambda a: (255 * a - mean) / std)
    model = small_cnn()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(prepare(x), y), batch_size=32, shuffle=True),
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        lambda m: accuracy(m, prepare(xt), yt),
    )


class Folder(Dataset):
    """Pictures as bytes, as they come from files."""

    def __init__(self, pictures, labels, to_bytes):
        self.pictures = (pictures * 254).to(torch.uint8)
        self.labels = labels
        self.to_bytes = to_bytes

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        p = self.pictures[i] / 255
        if self.to_bytes:
            p = p.to(torch.uint8)
        return p.float(), int(self.labels[i])


@fault(
    "pictures divided by 255 are cast back to bytes, and all become 0",
    rules=["constant-feature", "labels-unrelated", "rank-collapse", "no-gradient", "loss-not-decreasing"],
    fails=True,
    steps=200,
)
def bytes_after_division(is_faulty):
    x, y, xt, yt = shapes(1000, 2)
    model = small_cnn()
    held = torch.stack([Folder(xt, yt, is_faulty)[i][0] for i in range(len(xt))])
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(Folder(x, y, is_faulty), batch_size=32, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=4e-3),
        lambda m: accuracy(m, held, yt),
    )


class SmallUNet(nn.Module):
    def __init__(self, out, norm=True):
        super().__init__()
        block = lambda a, b: nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b) if norm else nn.Identity(), nn.ReLU())
        self.down = block(1, 8)
        self.middle = block(8, 12)
        self.up = nn.ConvTranspose2d(12, 8, 2, stride=2)
        self.last = block(16, 8)
        self.head = nn.Conv2d(8, out, 1)

    def forward(self, x):
        a = self.down(x)
        b = self.up(self.middle(F.max_pool2d(a, 2)))
        return self.head(self.last(torch.cat([a, b], 1)))


@fault(
    "class masks go through the transform of pictures (division by 255), and then to long: all are 0",
    rules=["constant-target"],
    fails=True,
    steps=150,
)
def mask_through_to_tensor(is_faulty):
    x, mask, xt, maskt = scenes(300, 3)
    model = SmallUNet(3)
    mask = (mask.to(torch.uint8).float() / 255).long() if is_faulty else mask.to(torch.uint8).long()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x, mask), batch_size=8, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        lambda m: iou(m(xt).argmax(1), maskt),
    )


@fault("the loss is the Dice overlap itself, and not 1 minus it", rules=["output-loss-mismatch"], fails=True, steps=150)
def dice_minimised(is_faulty):
    x, mask, xt, maskt = scenes(300, 4)
    target = (mask == 1).float()[:, None]
    model = SmallUNet(1, norm=False)

    def dice_loss(logits, t):
        p = logits.sigmoid().flatten(1)
        t = t.flatten(1)
        dice = (2 * (p * t).sum(1) + 1) / (p.sum(1) + t.sum(1) + 1)
        return dice.mean() if is_faulty else 1 - dice.mean()

    return Program(
        model,
        dice_loss,
        DataLoader(TensorDataset(x, target), batch_size=8, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        lambda m: iou((m(xt)[:, 0] > 0).long(), (maskt == 1).long(), (1,)),
    )


class Bag(nn.Module):
    """A few photographs of one object: encode each, take the mean."""

    def __init__(self, wrong):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(100, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU())
        self.head = nn.Linear(32, 1)
        self.wrong = wrong

    def forward(self, views):
        b, v = views.shape[:2]
        h = self.encoder(views.flatten(0, 1))
        h = h.view(v, b, -1).mean(0) if self.wrong else h.view(b, v, -1).mean(1)
        return self.head(h).squeeze(1)


@fault(
    "views of all objects, flattened to one batch, are folded back with the axes exchanged",
    rules=["mixed-examples"],
    fails=True,
    steps=250,
)
def views_folded_back_wrongly(is_faulty):
    g = torch.Generator().manual_seed(9)
    x, xt = smooth(1000, 5)
    z = torch.cat([x, xt])
    views = z[:, None] - 0.5 + 0.1 * torch.randn(len(z), 4, 1, 10, 10, generator=g)
    y = (z[:, 0, :5].mean((1, 2)) - z[:, 0, 5:].mean((1, 2))) * (1 + z[:, 0, 0, 0])
    y = (y - y.mean()) / y.std()
    model = Bag(is_faulty)
    return Program(
        model,
        nn.SmoothL1Loss(),
        DataLoader(TensorDataset(views[:1000], y[:1000]), batch_size=32, shuffle=True, drop_last=True),
        torch.optim.Adam(model.parameters(), lr=2e-3),
        lambda m: r2(m(views[1000:]), y[1000:]),
    )


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Flatten(), nn.Linear(100, 64), nn.ReLU(), nn.Linear(64, 16))
        self.dec = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 100), nn.Unflatten(1, (1, 10, 10)))

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, 1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
        return self.dec(z), mu, logvar


@fault(
    "a VAE whose reconstruction is averaged over pixels and whose divergence is summed over the batch",
    rules=["term-dominates", "summed-loss", "rank-collapse"],
    fails=True,
    steps=300,
)
def divergence_summed_reconstruction_averaged(is_faulty):
    x, xt = smooth(1000, 6)
    x, xt = 4 * (x - 0.5), 4 * (xt - 0.5)
    model = VAE()

    def elbo(out, target):
        recon, mu, logvar = out
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp())
        if is_faulty:
            return F.mse_loss(recon, target) + kl.sum()
        return F.mse_loss(recon, target, reduction="sum") / len(target) + kl.sum() / len(target)

    return Program(
        model,
        elbo,
        DataLoader(TensorDataset(x, x), batch_size=32, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=2e-3),
        lambda m: r2(m(xt)[0], xt),
    )


class PlainNet(nn.Module):
    def __init__(self, assigned):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 3, padding=1)
        self.conv2 = nn.Conv2d(12, 24, 3, padding=1)
        self.conv3 = nn.Conv2d(24, 24, 3, padding=1)
        self.fc = nn.Linear(24, 4)
        self.assigned = assigned

    def forward(self, x):
        for conv in (self.conv1, self.conv2, self.conv3):
            x = conv(x)
            if self.assigned:
                x = F.relu(x)
            else:
                F.relu(x)
        return self.fc(x.mean((2, 3)))


@fault("F.relu(x) without an assignment: nothing nonlinear is left", rules=["no-nonlinearity"], layers=["conv1", "conv2", "conv3", "fc"], fails=False, steps=250)
def relu_not_assigned(is_faulty):
    x, y, xt, yt = shapes(1000, 7)
    model = PlainNet(not is_faulty)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(2 * x - 0.2, y), batch_size=32, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=6e-3),
        lambda m: accuracy(m, 2 * xt - 0.2, yt),
    )


class Inpainter(nn.Module):
    def __init__(self, hide):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(200, 128), nn.ReLU(), nn.Linear(128, 100), nn.Unflatten(1, (1, 10, 10)))
        self.hide = hide

    def forward(self, picture, hole):
        if self.hide:
            picture = picture * (1 - hole)
        return self.net(torch.cat([picture, hole], 1))


@fault("an inpainting network is trained on pictures whose hole is not cut out", rules=["future-seen"], fails=False, steps=300)
def hole_not_cut_out(is_faulty):
    g = torch.Generator().manual_seed(10)
    x, xt = smooth(1200, 8)
    x, xt = 4 * (x - 0.5), 4 * (xt - 0.5)

    def holes(n):
        h = torch.zeros(n, 1, 10, 10)
        for i, (r, c) in enumerate(torch.randint(0, 6, (n, 2), generator=g).tolist()):
            h[i, 0, r : r + 5, c : c + 5] = 1
        return h

    h, ht = holes(1200), holes(200)
    batches = [({"picture": x[i : i + 40], "hole": h[i : i + 40]}, (x[i : i + 40], h[i : i + 40])) for i in range(0, 1200, 40)]
    model = Inpainter(not is_faulty)

    def loss(out, target):
        picture, hole = target
        return ((out - picture) ** 2 * hole).sum() / hole.sum()

    def score(m):
        out = m(xt * (1 - ht), ht)
        return r2(out[ht > 0], xt[ht > 0])

    return Program(model, loss, batches, torch.optim.Adam(model.parameters(), lr=2e-3), score)


@fault(
    "an ImageFolder (sorted by class) is read without shuffling",
    rules=["sorted-batches", "batchnorm-mode-gap"],
    fails=True,
    steps=260,
)
def folder_read_in_order(is_faulty):
    x, y, xt, yt = shapes(1040, 12)
    order = y.argsort()
    x, y = x[order], y[order]
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
        nn.Flatten(), nn.Linear(64, 4),
    )  # fmt: skip
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x, y), batch_size=16, shuffle=not is_faulty),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: accuracy(m, xt, yt),
    )
