"""Faults in scripts on images."""

import torch
import torch.nn.functional as F
from program import Program, fault
from ti_common import accuracy, factors, gen, loader, r2_pos, shapes
from torch import nn
from torch.utils.data import DataLoader, Dataset


def small_cnn(classes=4, channels=1):
    return nn.Sequential(
        nn.Conv2d(channels, 12, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(24, classes),
    )


class ByteImages(Dataset):
    def __init__(self, pixels, y, transform):
        self.pixels, self.y, self.transform = pixels, y, transform

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.transform(self.pixels[i]), self.y[i]


@fault(
    "bytes are divided by 255 as integers, so that every pixel is 0",
    rules=["constant-feature", "labels-unrelated", "rank-collapse"],
    fails=True,
    steps=300,
)
def bytes_divided_as_integers(is_faulty):
    x, y, _, _ = shapes(1000, 20)
    xt, yt, _, _ = shapes(400, 21)
    pixels, pixels_t = ((a.clamp(max=0.99) * 255).to(torch.uint8) for a in (x, xt))

    def transform(p):
        return (p // 255).float() if is_faulty else p.float() / 255

    net = small_cnn()
    return Program(
        net,
        nn.CrossEntropyLoss(),
        DataLoader(ByteImages(pixels, y, transform), batch_size=50, shuffle=True),
        torch.optim.Adam(net.parameters(), lr=5e-3),
        lambda m: accuracy(m(transform(pixels_t)), yt),
    )


def coloured(n, seed):
    """Red or green shapes; the mask says which."""
    x, y, mask, _ = shapes(n, seed)
    colour = torch.randint(2, (n,), generator=gen(seed + 1))
    image = 0.1 * torch.rand(n, 3, 12, 12, generator=gen(seed + 2))
    image[torch.arange(n), colour] += x[:, 0]
    return image, (mask * (colour + 1)[:, None, None]).long()


@fault(
    "the maps of a segmentation are flattened to rows of classes without moving the class dimension to the end",
    rules=["output-loss-mismatch"],
    fails=True,
    steps=150,
)
def class_maps_flattened_as_they_lie(is_faulty):
    x, y = coloured(600, 22)
    xt, yt = coloured(200, 23)
    net = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 3, 1)
    )
    weight = torch.tensor([0.1, 1.0, 1.0])

    def loss(out, target):
        if not is_faulty:
            out = out.permute(0, 2, 3, 1)
        return F.cross_entropy(out.reshape(-1, 3), target.reshape(-1), weight=weight)

    def score(m):
        guess = m(xt).argmax(1)
        return sum(float((guess[yt == k] == k).float().mean()) for k in range(3)) / 3

    return Program(net, loss, loader(x, y, bs=32), torch.optim.Adam(net.parameters(), lr=5e-3), score)


class GridDetector(nn.Module):
    """Whether a shape has its centre in each of 4 x 4 cells."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1)
        self.tower = nn.Conv2d(16, 24, 3, padding=1)
        self.tower2 = nn.Conv2d(24, 24, 3, padding=1)
        self.objectness = nn.Conv2d(24, 1, 1)

    def forward(self, x):
        h = F.max_pool2d(F.relu(self.stem(x)), 3)
        h = F.relu(self.tower2(F.relu(self.tower(h))))
        return self.objectness(h).flatten(1)


@fault(
    "the prior of rare objects, a bias of -log 99, is given to every convolution instead of the last only",
    rules=["dying-neurons", "bad-initialisation", "no-gradient", "rank-collapse"],
    layers=["stem", "tower", "tower2"],
    fails=True,
    steps=300,
)
def object_prior_in_every_bias(is_faulty):
    x, _, _, centre = shapes(900, 26)
    xt, _, _, ct = shapes(300, 27)

    def cells(c):
        cell = ((c * 11) // 3).long()
        return F.one_hot(cell[:, 0] * 4 + cell[:, 1], 16).float()

    net = GridDetector()
    for name, module in net.named_modules():
        if isinstance(module, nn.Conv2d) and (is_faulty or name == "objectness"):
            nn.init.constant_(module.bias, -4.595)
    yt = cells(ct).argmax(1)
    return Program(
        net,
        lambda out, y: F.binary_cross_entropy_with_logits(out, y),
        loader(x, cells(centre), bs=32),
        torch.optim.Adam(net.parameters(), lr=5e-3),
        lambda m: accuracy(m(xt), yt),
    )


class PatchNet(nn.Module):
    """Patches, a mixing of their features, one linear read-out."""

    def __init__(self, is_faulty):
        super().__init__()
        self.is_faulty = is_faulty
        self.patch = nn.Conv2d(1, 16, 3, stride=3)
        self.mix = nn.Linear(16, 16)
        self.hidden = nn.Linear(256, 64)
        self.head = nn.Linear(64, 2)

    def forward(self, x):
        n = x.shape[0]
        tokens = F.relu(self.patch(x)).flatten(2).permute(2, 0, 1)  # patches first
        tokens = F.relu(self.mix(tokens))
        if not self.is_faulty:
            tokens = tokens.transpose(0, 1)
        return self.head(F.relu(self.hidden(tokens.reshape(n, -1))))


@fault(
    "features with the patches first are reshaped to (batch, -1), so that each row holds parts of many images",
    rules=["mixed-examples"],
    fails=True,
    steps=300,
)
def reshape_across_the_batch(is_faulty):
    x, _, _, centre = shapes(1000, 28)
    xt, _, _, ct = shapes(320, 29)
    net = PatchNet(is_faulty)
    return Program(
        net,
        F.mse_loss,
        loader(x, (centre - 0.5) * 4, bs=64),
        torch.optim.Adam(net.parameters(), lr=3e-3),
        lambda m: r2_pos(m(xt), (ct - 0.5) * 4),
    )


@fault(
    "images are read folder by folder and the loader does not shuffle",
    rules=["sorted-batches"],
    fails=True,
    steps=240,
)
def folder_by_folder(is_faulty):
    x, y, _, _ = shapes(1200, 30)
    xt, yt, _, _ = shapes(400, 31)
    order = torch.argsort(y, stable=True)
    x, y = x[order], y[order]
    net = small_cnn()
    data = torch.utils.data.TensorDataset(x, y)
    return Program(
        net,
        nn.CrossEntropyLoss(),
        DataLoader(data, batch_size=50) if is_faulty else DataLoader(data, batch_size=50, shuffle=True),
        torch.optim.Adam(net.parameters(), lr=1e-2),
        lambda m: accuracy(m(xt), yt),
    )


class TwoConvs(nn.Module):
    def __init__(self, is_faulty):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1)
        self.bn = nn.BatchNorm2d(16)
        if not is_faulty:
            self.bn2 = nn.BatchNorm2d(16)
        self.fc = nn.Linear(16, 4)
        self.is_faulty = is_faulty

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn(self.conv1(x))), 2)
        norm = self.bn if self.is_faulty else self.bn2
        x = F.relu(norm(self.conv2(x)))
        return self.fc(x.amax((2, 3)))


@fault(
    "one BatchNorm is used behind both convolutions, as if it had no state",
    rules=["shared-weight", "batchnorm-mode-gap"],
    layers=["bn"],
    fails=False,
    steps=250,
)
def one_batchnorm_twice(is_faulty):
    x, y, _, _ = shapes(1000, 32)
    xt, yt, _, _ = shapes(400, 33)
    net = TwoConvs(is_faulty)
    return Program(
        net,
        nn.CrossEntropyLoss(),
        loader(x, y, bs=50),
        torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9),
        lambda m: accuracy(m(xt), yt),
    )


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(30, 48), nn.ReLU(), nn.Linear(48, 8))
        self.dec = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 30))

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, 1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
        return self.dec(z), mu, logvar


@fault(
    "a variational autoencoder: squared errors are a mean over columns, the divergence a sum over latents",
    rules=["term-dominates"],
    fails=True,
    steps=350,
)
def divergence_outweighs_reconstruction(is_faulty):
    x, xt = factors(1000, 30, 3, 36), factors(300, 30, 3, 37)
    net = VAE()

    def step(model, batch):
        out, mu, logvar = model(batch[0])
        error = (out - batch[0]).pow(2) / 0.1
        reconstruction = 0.1 * error.mean() if is_faulty else error.sum(1).mean() / 2
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
        return reconstruction + kl

    return Program(
        net,
        None,
        loader(x),
        torch.optim.Adam(net.parameters(), lr=3e-3),
        lambda m: r2_pos(m(xt)[0], xt),
        step=step,
    )
