"""Sound programs on images."""

import copy
import math

import torch
import torch.nn.functional as F
from ais_data import Dicts, accuracy, depths, digits, loader, overlap, r2, shapes
from program import Program, sound
from torch import nn


@sound("An ordinary convolutional network on digits", steps=300, least=0.9)
def ais_digits_cnn():
    x, y, xt, yt = digits()
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(384, 10),
    )
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(xt, yt))


@sound("A perceptron on standardised digits, some of whose pixels are always zero", steps=300, least=0.9)
def ais_digits_dead_border():
    x, y, xt, yt = digits()
    mean, std = x.mean(0), x.std(0).clamp(min=0.02)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
    opt = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
    return Program(model, nn.CrossEntropyLoss(), loader((x - mean) / std, y), opt, accuracy((xt - mean) / std, yt))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        nn.init.zeros_(self.bn2.weight)

    def forward(self, x):
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


@sound("Residual blocks that start as the identity: their last BatchNorm has a weight of zero", steps=300, least=0.9)
def ais_zero_gamma():
    x, y, xt, yt = digits()
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2), Block(12),
        Block(12), Block(12), nn.Flatten(), nn.Linear(192, 10),
    )
    opt = torch.optim.SGD(model.parameters(), 0.03, momentum=0.9, nesterov=True, weight_decay=1e-4)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, drop_last=True), opt, accuracy(xt, yt))


def trained_body():
    """A body that was trained to tell even digits from odd ones."""
    x, y, _, _ = digits()
    with torch.random.fork_rng():
        torch.manual_seed(11)
        body = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        net = nn.Sequential(body, nn.Linear(64, 5))
        opt = torch.optim.Adam(net.parameters(), 3e-3)
        for _ in range(60):
            opt.zero_grad()
            F.cross_entropy(net(x), y // 2).backward()
            opt.step()
    return body


class LowRank(nn.Module):
    """A frozen layer with a learned addition of low rank that starts at zero."""

    def __init__(self, layer, rank=6):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x):
        return self.layer(x) + x @ self.down.T @ self.up.T


@sound("Fine-tuning by additions of low rank, which start at zero, to frozen layers", steps=400, least=0.85)
def ais_low_rank_tuning():
    x, y, xt, yt = digits()
    body = trained_body()
    body[1], body[3] = LowRank(body[1]), LowRank(body[3])
    model = nn.Sequential(body, nn.Linear(64, 10))
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 3e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(xt, yt))


@sound("A digit network that has been trained, at the small rate of a last phase", trained=300, steps=500, least=0.9)
def ais_digits_trained():
    x, y, xt, yt = digits()
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.GELU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(192, 48), nn.GELU(),
        nn.Linear(48, 10),
    )
    opt = torch.optim.AdamW(model.parameters(), 2e-3, weight_decay=0.05)
    plan = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 500)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(xt, yt), scheduler=plan)


@sound("Few pixels are foreground, and the head starts with a bias of -4", steps=400, least=0.8)
def ais_rare_foreground():
    x, _, mask, _, _ = shapes(400, 0, 24)
    xt, _, maskt, _, _ = shapes(100, 1, 24)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1)
    )
    nn.init.constant_(model[-1].bias, -4.0)
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    batches = loader(x, mask[:, None].float(), size=8)
    return Program(model, nn.BCEWithLogitsLoss(), batches, opt, lambda m: overlap(m(xt)[:, 0] > 0, maskt))


@sound("A U-Net with GroupNorm in batches of four, trained by the Dice loss alone", trained=120, steps=300, least=0.85)
def ais_dice_unet():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
            self.b = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.SiLU())
            self.up = nn.ConvTranspose2d(16, 8, 2, 2)
            self.out = nn.Conv2d(16, 1, 3, padding=1)

        def forward(self, x):
            a = self.a(x)
            return torch.sigmoid(self.out(torch.cat([a, self.up(self.b(a))], 1)))

    def dice(p, t):
        return 1 - (2 * (p * t).sum((1, 2, 3)) + 1).div((p + t).sum((1, 2, 3)) + 1).mean()

    x, _, mask, _, _ = shapes(800, 0)
    xt, _, maskt, _, _ = shapes(200, 1)
    model = Net()
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(
        model, dice, loader(x, mask[:, None].float(), size=4), opt, lambda m: overlap(m(xt)[:, 0] > 0.5, maskt)
    )


@sound("Bytes from 0 to 255 go into a BatchNorm first, which scales them", steps=300, least=0.85)
def ais_bytes_into_batchnorm():
    x, y, _, _, _ = shapes(1200, 0)
    xt, yt, _, _, _ = shapes(300, 1)
    model = nn.Sequential(
        nn.BatchNorm2d(1), nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 4),
    )
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(model, nn.CrossEntropyLoss(), loader((x * 255).round(), y), opt, accuracy((xt * 255).round(), yt))


@sound("Keypoints in pixels of a large image, which the network itself scales up from [-1, 1]", steps=400, least=0.9)
def ais_keypoints_scaled_inside():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(1, 12, 3, 2, 1), nn.ReLU(), nn.Conv2d(12, 16, 3, 2, 1), nn.ReLU(), nn.Flatten(),
                nn.Linear(256, 48), nn.ReLU(), nn.Linear(48, 2),
            )

        def forward(self, x):
            return 320 + 320 * self.body(x)

    def loss(out, target):
        return F.smooth_l1_loss(out / 320, target / 320)

    x, _, _, centre, _ = shapes(1200, 0)
    xt, _, _, centret, _ = shapes(300, 1)
    model = Net()
    opt = torch.optim.Adam(model.parameters(), 2e-3)
    return Program(model, loss, loader(x, centre * 640), opt, r2(xt, centret * 640))


@sound("A variational autoencoder whose reconstruction is well weighted", steps=500, least=0.6)
def ais_vae():
    class VAE(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 24))
            self.dec = nn.Sequential(nn.Linear(12, 96), nn.ReLU(), nn.Linear(96, 64), nn.Sigmoid())

        def forward(self, x):
            mu, logvar = self.enc(x).chunk(2, 1)
            z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
            return self.dec(z), mu, logvar

    def loss(out, target):
        rec, mu, logvar = out
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1).mean()
        return F.mse_loss(rec, target, reduction="sum") / len(target) + 0.05 * kl

    x, _, xt, _ = digits()
    model = VAE()
    opt = torch.optim.Adam(model.parameters(), 2e-3)
    return Program(model, loss, loader(x, x.flatten(1), size=64), opt, r2(xt, xt.flatten(1), lambda out: out[0]))


@sound("A linear autoencoder, without any activation on purpose", steps=500, least=0.75)
def ais_linear_autoencoder():
    x, _, xt, _ = digits()
    mean = x.mean(0)
    x, xt = (x - mean).flatten(1) * 2, (xt - mean).flatten(1) * 2
    model = nn.Sequential(nn.Linear(64, 16, bias=False), nn.Linear(16, 64, bias=False))
    opt = torch.optim.Adam(model.parameters(), 5e-3)
    return Program(model, nn.MSELoss(), loader(x, x, size=64), opt, r2(xt, xt))


@sound("Super-resolution that adds a learned detail, zero at the start, to an interpolation", steps=500, least=0.6)
def ais_super_resolution():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1), nn.ReLU(),
                nn.Conv2d(24, 4, 3, padding=1), nn.PixelShuffle(2),
            )
            nn.init.zeros_(self.body[4].weight)
            nn.init.zeros_(self.body[4].bias)

        def forward(self, x):
            return F.interpolate(x, scale_factor=2, mode="bilinear") + self.body(x)

    x, _, xt, _ = digits()
    model = Net()
    opt = torch.optim.Adam(model.parameters(), 2e-3)
    return Program(model, nn.L1Loss(), loader(F.avg_pool2d(x, 2), x), opt, r2(F.avg_pool2d(xt, 2), xt))


@sound("A denoiser of a diffusion model, with sines and cosines of the noise step", steps=500, least=0.6)
def ais_diffusion():
    class Denoiser(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("speed", torch.exp(-math.log(1000) * torch.arange(8) / 8))
            self.time = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 128))
            self.inp, self.mid, self.out = nn.Linear(64, 128), nn.Linear(128, 128), nn.Linear(128, 64)

        def forward(self, noisy, t):
            phase = t[:, None] * self.speed
            h = self.inp(noisy) + self.time(torch.cat([phase.sin(), phase.cos()], 1))
            return self.out(F.silu(self.mid(F.silu(h))))

    def noised(images, repeats, seed):
        g = torch.Generator().manual_seed(seed)
        clean = images.flatten(1).repeat(repeats, 1) * 2 - 1
        t = torch.randint(0, 1000, (len(clean),), generator=g)
        keep = torch.cos(t[:, None] / 1000 * math.pi / 2)
        noise = torch.randn(clean.shape, generator=g)
        return {"noisy": keep * clean + (1 - keep**2).sqrt() * noise, "t": t.float()}, noise

    x, _, xt, _ = digits()
    inputs, noise = noised(x, 8, 0)
    test, noiset = noised(xt, 1, 1)
    model = Denoiser()
    opt = torch.optim.Adam(model.parameters(), 2e-3)

    def score(m):
        return max(0.0, 1 - ((m(**test) - noiset) ** 2).mean().item())

    return Program(model, nn.MSELoss(), Dicts(inputs, noise, 64), opt, score)


@sound("Contrastive learning on two noisy views; the loss compares all examples of a batch", steps=600, least=0.6)
def ais_contrastive():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 48))
            self.project = nn.Sequential(nn.ReLU(), nn.Linear(48, 24))

        def forward(self, x):
            return F.normalize(self.project(self.body(x)), dim=1)

    def view(x):
        keep = (torch.rand_like(x) > 0.15).float()
        return x * keep + 0.03 * torch.randn_like(x)

    def step(m, batch):
        a, b = m(view(batch[0])), m(view(batch[0]))
        logits = a @ b.T / 0.2
        target = torch.arange(len(a))
        return 0.5 * (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target))

    x, _, xt, _ = digits()
    with torch.random.fork_rng():
        torch.manual_seed(6)
        one, other = view(xt[:100]), view(xt[:100])

    def score(m):
        """How often the other view of an image is found among those of a hundred."""
        return ((m(one) @ m(other).T).argmax(1) == torch.arange(100)).float().mean().item()

    model = Encoder()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    return Program(model, None, loader(x, size=64, drop_last=True), opt, score, step=step)


@sound("A student predicts a frozen copy of an encoder, which holds weights that nothing moves", steps=400, least=0.7)
def ais_frozen_teacher():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            teacher = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 16))
            self.teacher = copy.deepcopy(teacher).requires_grad_(False)
            self.student = nn.Sequential(
                nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 16)
            )

        def forward(self, x):
            with torch.no_grad():
                goal = self.teacher(x)
            return self.student(x), goal

    def step(m, batch):
        out, goal = m(batch[0] + 0.02 * torch.randn_like(batch[0]))
        return F.mse_loss(out, goal)

    x, _, xt, _ = digits()

    def score(m):
        out, goal = m(xt)
        return max(0.0, 1 - (((out - goal) ** 2).sum() / ((goal - goal.mean(0)) ** 2).sum()).item())

    model = Pair()
    opt = torch.optim.Adam(model.student.parameters(), 2e-3)
    return Program(model, None, loader(x), opt, score, step=step)


class Reverse(torch.autograd.Function):
    """Turns the gradient round."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -0.3 * grad


@sound("Domain-adversarial training: one gradient is turned round on purpose", trained=200, steps=400, least=0.85)
def ais_domain_adversarial():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
            self.label = nn.Linear(32, 10)
            self.domain = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))

        def forward(self, x):
            x = self.body(x)
            return self.label(x), self.domain(Reverse.apply(x))

    def loss(out, target):
        return F.cross_entropy(out[0], target[:, 0]) + F.cross_entropy(out[1], target[:, 1])

    x, y, xt, yt = digits()
    domain = torch.arange(len(x)) % 2
    mixed = torch.where(domain[:, None, None, None] == 1, 0.7 * x + 0.2, x)
    model = Net()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    return Program(
        model, loss, loader(mixed, torch.stack([y, domain], 1)), opt,
        lambda m: (m(0.7 * xt + 0.2)[0].argmax(1) == yt).float().mean().item(),
    )


@sound("Holes in the depth are marked by zeros, which the loss leaves out", steps=400, least=0.85)
def ais_sparse_depth():
    x, y = depths(600, 0)
    xt, yt = depths(200, 1)
    hole = torch.rand(y.shape, generator=torch.Generator().manual_seed(2)) < 0.6
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1),
        nn.Softplus(),
    )
    nn.init.constant_(model[4].bias, 4.0)

    def loss(out, target):
        valid = target > 0
        return F.smooth_l1_loss(out[valid], target[valid])

    opt = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(model, loss, loader(x, y.masked_fill(hole, 0.0), size=16), opt, r2(xt, yt))


@sound("A vision transformer under a warm-up that starts at a rate near zero", steps=500, least=0.85)
def ais_vit_warmup():
    class Vit(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Conv2d(1, 32, 2, 2)
            self.pos = nn.Parameter(0.02 * torch.randn(17, 32))
            self.cls = nn.Parameter(torch.zeros(1, 1, 32))
            self.blocks = nn.Sequential(
                *(nn.TransformerEncoderLayer(32, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True) for _ in "ab")
            )
            self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 10)

        def forward(self, x):
            x = self.embed(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
            return self.head(self.norm(self.blocks(x)[:, 0]))

    x, y, xt, yt = digits()
    model = Vit()
    opt = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.05)
    plan = torch.optim.lr_scheduler.OneCycleLR(opt, 3e-3, total_steps=601, pct_start=0.2, div_factor=100)
    return Program(
        model, nn.CrossEntropyLoss(label_smoothing=0.1), loader(x, y), opt, accuracy(xt, yt), scheduler=plan
    )
