"""Sound programs on images."""

from __future__ import annotations

import bis_data as data
import torch
from program import Program, sound
from torch import nn
from torch.nn import functional as F


@sound("nothing: an ordinary convolutional network", steps=200, least=0.85)
def bis_plain_cnn():
    """Digits."""
    x, y, x_held, y_held = data.digits()
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(x, y), torch.optim.Adam(model.parameters(), 2e-3),
        data.accuracy(x_held, y_held),
    )  # fmt: skip


@sound("half trained; border pixels of digits are always black", trained=150, steps=400, least=0.85)
def bis_half_trained_mlp():
    """Digits with a fully connected network and SGD."""
    x, y, x_held, y_held = data.digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(x, y), torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
        data.accuracy(x_held, y_held),
    )  # fmt: skip


class UNet(nn.Module):
    """A small U-Net with BatchNorm."""

    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.middle = nn.Sequential(
            nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        )
        self.rise = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.out = nn.Sequential(nn.Conv2d(16, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1))

    def forward(self, x):
        skip = self.down(x)
        return self.out(torch.cat([skip, self.rise(self.middle(skip))], 1))


@sound("nothing: an ordinary U-Net", steps=200, least=0.75)
def bis_plain_unet():
    """Segmentation of shapes."""
    x, _, mask, _ = data.shapes()
    model = UNet()
    return Program(
        model, nn.BCEWithLogitsLoss(), data.loader(x[:800], mask[:800], batch=16),
        torch.optim.Adam(model.parameters(), 3e-3), data.overlap(x[800:], mask[800:]),
    )  # fmt: skip


@sound("a bias of -3 at the output, for objects are rare: all probabilities near 0 at first", steps=250, least=0.7)
def bis_prior_bias_at_output():
    """Finds the pixels of shapes."""
    x, _, mask, _ = data.shapes(noise=0.1)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.LeakyReLU(0.1), nn.Conv2d(12, 12, 3, padding=1), nn.LeakyReLU(0.1),
        nn.Conv2d(12, 1, 1),
    )  # fmt: skip
    nn.init.constant_(model[4].bias, -3.0)
    return Program(
        model, nn.BCEWithLogitsLoss(), data.loader(x[:800], mask[:800], batch=16),
        torch.optim.Adam(model.parameters(), 5e-3), data.overlap(x[800:], mask[800:]),
    )  # fmt: skip


class Block(nn.Module):
    """A residual block whose last normalisation starts at zero."""

    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip
        nn.init.zeros_(self.body[4].weight)

    def forward(self, x):
        return F.relu(x + self.body(x))


@sound("residual branches that start at zero, so that no gradient enters them in the first step", steps=150, least=0.8)
def bis_zero_gamma_resnet():
    """Digits."""
    x, y, x_held, y_held = data.digits()
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), Block(12), nn.MaxPool2d(2),
        Block(12), nn.Flatten(), nn.Linear(192, 10),
    )  # fmt: skip
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(x, y), torch.optim.SGD(model.parameters(), 0.02, 0.9, nesterov=True),
        data.accuracy(x_held, y_held),
    )  # fmt: skip


@sound("a last layer of zeros: nothing reaches the features in the first step", steps=200, least=0.8)
def bis_zero_head():
    """Shapes with a classifier that starts undecided."""
    x, y, _, _ = data.shapes(noise=0.08)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.GELU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.GELU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(288, 4),
    )  # fmt: skip
    nn.init.zeros_(model[7].weight)
    nn.init.zeros_(model[7].bias)
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(x[:800], y[:800]), torch.optim.Adam(model.parameters(), 3e-3),
        data.accuracy(x[800:], y[800:]),
    )  # fmt: skip


@sound("a frozen backbone in evaluation mode; only the head learns", steps=250, least=0.8)
def bis_frozen_backbone():
    """Fine-tunes a head on random but useful features."""
    x, y, x_held, y_held = data.digits()
    backbone = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2))
    with torch.no_grad():
        for start in range(0, 1400, 100):
            backbone(x[start : start + 100])
    backbone.eval().requires_grad_(False)
    model = nn.Sequential(backbone, nn.Flatten(), nn.Linear(512, 10))
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(x, y), torch.optim.Adam(model[2].parameters(), 3e-3),
        data.accuracy(x_held, y_held),
    )  # fmt: skip


@sound("errors summed over the pixels of an image, and a KL divergence summed likewise", steps=500, least=0.6)
def bis_vae_sums():
    """A variational autoencoder in its usual form."""
    x, _, held, _ = data.digits()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU())
            self.mean = nn.Linear(96, 12)
            self.logvar = nn.Linear(96, 12)
            self.decoder = nn.Sequential(nn.Linear(12, 96), nn.ReLU(), nn.Linear(96, 64))

        def forward(self, images):
            h = self.encoder(images)
            mean, logvar = self.mean(h), self.logvar(h)
            z = mean + torch.randn_like(mean) * torch.exp(0.5 * logvar) if self.training else mean
            return torch.sigmoid(self.decoder(z)), mean, logvar

    def loss(out, images):
        p, mean, logvar = out
        error = ((p - images.flatten(1)) ** 2).sum(1) / (2 * 0.1)
        kl = -0.5 * (1 + logvar - mean**2 - logvar.exp()).sum(1)
        return (error + kl).mean()

    model = Net()
    return Program(
        model, loss, data.loader(x, x, batch=64), torch.optim.Adam(model.parameters(), 4e-3),
        data.r2(held, held.flatten(1), read=lambda out: out[0]),
    )  # fmt: skip


@sound("holes in depth maps are zero, and the loss leaves them out", steps=250, least=0.85)
def bis_depth_masked():
    """Depth from an image."""
    g = torch.Generator().manual_seed(2)
    clean = data.textures()
    depth = 2.0 + clean
    measured = depth * (torch.rand(depth.shape, generator=g) < 0.4)
    x = clean + 0.2 * torch.randn(clean.shape, generator=g)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1),
        nn.Softplus(),
    )  # fmt: skip

    def loss(out, y):
        valid = (y > 0).float()
        return ((out - y).abs() * valid).sum() / valid.sum()

    return Program(
        model, loss, data.loader(x[:640], measured[:640], batch=16), torch.optim.Adam(model.parameters(), 4e-3),
        data.r2(x[640:], depth[640:]),
    )  # fmt: skip


@sound("targets are noisy images too, which no network can meet", steps=300, least=0.85)
def bis_noise_to_noise():
    """Denoising without clean images."""
    g = torch.Generator().manual_seed(3)
    clean = data.textures()
    one = clean + 0.6 * torch.randn(clean.shape, generator=g)
    two = clean + 0.6 * torch.randn(clean.shape, generator=g)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 16, 5, padding=2), nn.ReLU(),
        nn.Conv2d(16, 1, 5, padding=2),
    )  # fmt: skip
    return Program(
        model, nn.MSELoss(), data.loader(one[:640], two[:640], batch=16), torch.optim.Adam(model.parameters(), 3e-3),
        data.r2(one[640:], clean[640:]),
    )  # fmt: skip


class Siren(nn.Module):
    """An image as a function of coordinates, with sines."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 64), nn.Linear(64, 64), nn.Linear(64, 1)])
        nn.init.uniform_(self.layers[0].weight, -0.5, 0.5)
        for layer in self.layers[1:]:
            nn.init.uniform_(layer.weight, -((6 / 64) ** 0.5) / 10, (6 / 64) ** 0.5 / 10)

    def forward(self, places):
        h = torch.sin(10 * self.layers[0](places))
        h = torch.sin(10 * self.layers[1](h))
        return self.layers[2](h)


@sound("sines with a frequency of 10 and unusual weights; inputs are two coordinates", steps=400, least=0.8)
def bis_siren():
    """Fits one picture."""
    row, col = data.grid(32)
    places = torch.stack([row, col], 2).reshape(-1, 2) / 15.5 - 1
    disk = (places.norm(dim=1, keepdim=True) < 0.6).float()
    value = torch.sin(4 * places[:, :1]) * torch.cos(6 * places[:, 1:]) + disk
    held = torch.arange(1024) % 5 == 0
    model = Siren()
    return Program(
        model, nn.MSELoss(), data.loader(places[~held], value[~held], batch=128),
        torch.optim.Adam(model.parameters(), 1e-3), data.r2(places[held], value[held]),
    )  # fmt: skip


@sound("a diffusion model: targets are noise", steps=500, least=0.6)
def bis_diffusion():
    """Predicts noise from a noisy image and sines of the time."""
    x, _, held, _ = data.digits()
    x, held = x.flatten(1) * 2 - 1, held.flatten(1) * 2 - 1

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("rates", torch.logspace(0, 1.5, 8))
            self.net = nn.Sequential(nn.Linear(80, 192), nn.SiLU(), nn.Linear(192, 192), nn.SiLU(), nn.Linear(192, 64))

        def forward(self, noisy, t):
            angle = t[:, None] * self.rates
            return self.net(torch.cat([noisy, angle.sin(), angle.cos()], 1))

    def mix(clean, t, noise):
        angle = t[:, None] * torch.pi / 2
        return angle.cos() * clean + angle.sin() * noise

    def step(m, batch):
        t = torch.rand(len(batch[0]))
        noise = torch.randn_like(batch[0])
        return F.mse_loss(m(mix(batch[0], t, noise), t), noise)

    g = torch.Generator().manual_seed(1)
    t_held, noise_held = torch.rand(len(held), generator=g), torch.randn(held.shape, generator=g)

    def score(m):
        return max(0.0, 1 - F.mse_loss(m(mix(held, t_held, noise_held), t_held), noise_held).item())

    model = Net()
    return Program(
        model, None, data.loader(x, batch=64), torch.optim.AdamW(model.parameters(), 3e-3), score, step=step
    )


@sound("a flow that may be negative, and a tanh before the scaled output", steps=300, least=0.8)
def bis_bounded_flow():
    """Optical flow of a blob, bounded by 2 pixels."""
    x, shift = data.moves()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Conv2d(2, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 24, 3, padding=1), nn.ReLU(),
                nn.Flatten(), nn.Linear(864, 32), nn.ReLU(), nn.Linear(32, 2),
            )  # fmt: skip

        def forward(self, frames):
            return 2 * torch.tanh(self.net(frames))

    model = Net()
    return Program(
        model, nn.SmoothL1Loss(), data.loader(x[:800], shift[:800]), torch.optim.Adam(model.parameters(), 2e-3),
        data.r2(x[800:], shift[800:]),
    )  # fmt: skip


@sound("the encoder's weight is the decoder's, transposed", trained=200, steps=450, least=0.7)
def bis_tied_autoencoder():
    """An autoencoder with tied weights, half trained."""
    x = data.digits()[0].flatten(1)
    held = data.digits()[2].flatten(1)

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(24, 64) * 0.1)
            self.inner = nn.Parameter(torch.zeros(24))
            self.outer = nn.Parameter(torch.zeros(64))

        def forward(self, images):
            return F.linear(F.elu(F.linear(images, self.weight, self.inner)), self.weight.T, self.outer)

    model = Tied()
    return Program(
        model, nn.MSELoss(), data.loader(x, x), torch.optim.Adam(model.parameters(), 2e-3), data.r2(held, held)
    )


@sound("GroupNorm with batches of four; the batch is small, but no statistic is taken over it", steps=500, least=0.75)
def bis_groupnorm_small_batch():
    """Shapes in high resolution would fit only four at a time."""
    x, y, _, _ = data.shapes(noise=0.08)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1), nn.GroupNorm(3, 24), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(216, 4),
    )  # fmt: skip
    return Program(
        model, nn.CrossEntropyLoss(), data.loader(x[:800], y[:800], batch=4),
        torch.optim.Adam(model.parameters(), 1.5e-3), data.accuracy(x[800:], y[800:]),
    )  # fmt: skip
