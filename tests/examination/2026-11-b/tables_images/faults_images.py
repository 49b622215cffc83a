"""Faults in programs on images."""

import numpy as np
import torch
import torch.nn.functional as F
from data import accuracy, balanced, digits, discs, iou, loader, r2, seeded, tensor
from program import Program, fault
from torch import nn


@fault("tokens are (patch, example, feature), and are reshaped to (example, all) without moving the examples to the front",
       rules=["mixed-examples"], fails=True, steps=300)
def patches_scrambled(faulty):
    x, y, xt, yt = digits()

    class Patches(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(4, 24)
            self.position = nn.Parameter(torch.randn(16, 1, 24) * 0.1)
            self.mix = nn.Linear(24, 24)
            self.head = nn.Linear(16 * 24, 10)

        def forward(self, images):
            patches = F.unfold(images, kernel_size=2, stride=2)  # (B, 4, 16)
            tokens = patches.permute(2, 0, 1)  # (16, B, 4)
            tokens = F.relu(self.embed(tokens) + self.position)
            tokens = tokens + F.relu(self.mix(tokens))
            if not faulty:
                tokens = tokens.transpose(0, 1)
            return self.head(tokens.reshape(len(images), -1))

    seeded(40)
    model = Patches()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: accuracy(m(xt), yt))


class MaskedConv2d(nn.Conv2d):
    def __init__(self, kind, *args, **kwargs):
        super().__init__(*args, **kwargs)
        height, width = self.weight.shape[2:]
        mask = torch.ones(height, width)
        mask[height // 2, width // 2 + (kind == "B"):] = 0
        mask[height // 2 + 1:] = 0
        self.register_buffer("mask", mask)

    def forward(self, x):
        return F.conv2d(x, self.weight * self.mask, self.bias, padding=self.padding)


@fault("PixelCNN whose first masked convolution is of type B: each pixel is predicted from itself",
       rules=["future-seen"], layers=["first"], fails=True, steps=300)
def pixel_sees_itself(faulty):
    rng = np.random.default_rng(41)
    rows = [rng.integers(0, 2, (1200, 8))]
    for _ in range(7):  # each row follows from the one above, with a few flips
        up = np.pad(rows[-1], ((0, 0), (1, 1)))
        rows.append((up[:, :-2] ^ (up[:, 1:-1] | up[:, 2:])) ^ (rng.random((1200, 8)) < 0.02))
    textures = tensor(np.stack(rows, 1)).unsqueeze(1)
    x, xt = textures[:1000], textures[1000:]

    class PixelCNN(nn.Module):
        def __init__(self, width=16):
            super().__init__()
            self.first = MaskedConv2d("B" if faulty else "A", 1, width, 5, padding=2)
            self.second = MaskedConv2d("B", width, width, 3, padding=1)
            self.third = MaskedConv2d("B", width, width, 3, padding=1)
            self.out = nn.Conv2d(width, 1, 1)

        def forward(self, x):
            h = F.relu(self.first(x))
            h = h + F.relu(self.second(h))
            h = h + F.relu(self.third(h))
            return self.out(h)

    def score(m):
        """Each pixel below the first row predicted when it and all that follow are not drawn yet."""
        guesses = []
        for i in range(8, 64):
            seen = xt.flatten(1).clone()
            seen[:, i:] = 0
            guesses.append((m(seen.view(-1, 1, 8, 8)).flatten(1)[:, i] > 0).long())
        return balanced(torch.stack(guesses, 1), xt.flatten(1)[:, 8:].long())

    seeded(41)
    model = PixelCNN()
    return Program(model, nn.BCEWithLogitsLoss(), loader(x, x, size=32), torch.optim.Adam(model.parameters(), 3e-3), score)


class SignThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.sign(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@fault("binary codes by torch.sign, whose gradient is zero: the encoder is never trained",
       rules=["no-gradient"], layers=["encoder"], fails=False, steps=500)
def binary_code_without_gradient(faulty):
    x, y, xt, yt = digits(flat=True)

    class Hash(nn.Module):
        def __init__(self, bits=8):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, bits))
            self.decoder = nn.Sequential(nn.Linear(bits, 64), nn.ReLU(), nn.Linear(64, 10))

        def forward(self, x):
            code = torch.tanh(self.encoder(x - 0.3))
            bits = torch.sign(code) if faulty else SignThrough.apply(code)
            return self.decoder(bits)

    seeded(42)
    model = Hash()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: accuracy(m(xt), yt))


class SmallCNN(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                                      nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.fc = nn.Linear(128, classes)

    def forward(self, x):
        return self.fc(self.features(x))


def pretrained_on_small_digits(steps=120):
    """A network that tells 0 to 4 apart."""
    x, y, _, _ = digits()
    x, y = x[y < 5], y[y < 5]
    model = SmallCNN(5)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        pick = torch.randint(len(x), (64,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x[pick]), y[pick]).backward()
        optimizer.step()
    return model


def large_digits():
    x, y, xt, yt = digits()
    return x[y >= 5], y[y >= 5] - 5, xt[yt >= 5], yt[yt >= 5] - 5


@fault("fine-tuning with a rate of its own for the pre-trained part: 0.1 instead of 0.0001 with Adam",
       rules=["learning-rate-too-high"], layers=["features"], fails=True, steps=250)
def backbone_rate_too_high(faulty):
    x, y, xt, yt = large_digits()
    seeded(44)
    model = pretrained_on_small_digits()
    model.fc = nn.Linear(128, 5)
    optimizer = torch.optim.Adam([{"params": model.features.parameters(), "lr": 0.1 if faulty else 1e-4},
                                  {"params": model.fc.parameters()}], lr=2e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, size=32), optimizer, lambda m: accuracy(m(xt), yt))


@fault("sine network (w0 = 30) with the default initialization of nn.Linear instead of the one divided by w0",
       rules=["bad-initialisation"], layers=["hidden"], fails=True, steps=400)
def sine_network_default_init(faulty):
    side = 24
    grid = torch.stack(torch.meshgrid(torch.linspace(-1, 1, side), torch.linspace(-1, 1, side), indexing="ij"), -1).view(-1, 2)

    def picture(p):
        a = torch.sin(5 * p[:, :1] + 2 * p[:, 1:]) + torch.exp(-8 * ((p - 0.3) ** 2).sum(1, keepdim=True)) * 2
        return (a - 0.2) / 0.9

    class Siren(nn.Module):
        def __init__(self, width=48):
            super().__init__()
            self.first = nn.Linear(2, width)
            self.hidden = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])
            self.out = nn.Linear(width, 1)
            nn.init.uniform_(self.first.weight, -1 / 6, 1 / 6)
            for layer in self.hidden:
                if not faulty:
                    nn.init.uniform_(layer.weight, -((6 / width) ** 0.5) / 30, (6 / width) ** 0.5 / 30)

        def forward(self, x):
            x = torch.sin(30 * self.first(x))
            for layer in self.hidden:
                x = torch.sin(30 * layer(x))
            return self.out(x)

    held_out = torch.rand(400, 2, generator=torch.Generator().manual_seed(3)) * 2 - 1
    seeded(45)
    model = Siren()
    return Program(model, nn.MSELoss(), loader(grid, picture(grid), size=144), torch.optim.Adam(model.parameters(), 3e-4),
                   lambda m: r2(m(held_out), picture(held_out)))


class TinyUNet(nn.Module):
    def __init__(self, classes=1, width=10):
        super().__init__()
        self.down1 = nn.Conv2d(1, width, 3, padding=1)
        self.down2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.bottom = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up1 = nn.Conv2d(4 * width, width, 3, padding=1)
        self.up2 = nn.Conv2d(2 * width, classes, 3, padding=1)

    def forward(self, x):
        a = F.relu(self.down1(x))
        b = F.relu(self.down2(F.max_pool2d(a, 2)))
        c = F.relu(self.bottom(F.max_pool2d(b, 2)))
        u = torch.cat([F.interpolate(c, scale_factor=2), b], 1)
        u = F.relu(self.up1(u))
        u = torch.cat([F.interpolate(u, scale_factor=2), a], 1)
        return self.up2(u)


@fault("masks stored as 0 and 255 are thresholded with > 255: nothing is foreground",
       rules=["constant-target"], fails=True, steps=150)
def masks_all_background(faulty):
    x, mask = discs(400)
    stored = (mask * 255).to(torch.uint8)  # as read from a PNG
    y = (stored > (255 if faulty else 127)).float().unsqueeze(1)
    seeded(46)
    model = TinyUNet()
    return Program(model, nn.BCEWithLogitsLoss(), loader(x[:320], y[:320], size=16), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: iou((m(x[320:]) > 0).long().squeeze(1), mask[320:], [1]))


@fault("segmentation into three classes: the softmax runs over the columns of the image instead of the classes",
       rules=["wrong-softmax-dimension", "output-loss-mismatch"], fails=False, steps=250)
def softmax_over_columns(faulty):
    x, mask = discs(400, classes=3, seed=47)

    class Segmenter(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = TinyUNet(3)

        def forward(self, x):
            return F.softmax(self.net(x), dim=-1 if faulty else 1)

    def dice(probabilities, target):
        target = F.one_hot(target, 3).permute(0, 3, 1, 2).float()
        overlap = (probabilities * target).sum((0, 2, 3))
        total = probabilities.sum((0, 2, 3)) + target.sum((0, 2, 3))
        return 1 - ((2 * overlap + 1) / (total + 1)).mean()

    seeded(47)
    model = Segmenter()
    return Program(model, dice, loader(x[:320], mask[:320], size=16), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: iou(m(x[320:]).argmax(1), mask[320:], [0, 1, 2]))


@fault("digits sorted by class and served in that order",
       rules=["sorted-batches"], fails=True, steps=280)
def digits_class_after_class(faulty):
    x, y, xt, yt = digits()
    order = torch.argsort(y, stable=True) if faulty else torch.randperm(len(y), generator=torch.Generator().manual_seed(48))
    x, y = x[order], y[order]
    seeded(48)
    model = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10))
    return Program(model, nn.CrossEntropyLoss(), [(x[i : i + 50], y[i : i + 50]) for i in range(0, 1400, 50)],
                   torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), lambda m: accuracy(m(xt), yt))


@fault("BatchNorm with momentum=0.001 (decay 0.999 of another framework): running statistics are useless after a few hundred steps",
       rules=["batchnorm-mode-gap"], layers=["stem", "block1", "block2"], fails=False, steps=150)
def running_statistics_too_slow(faulty):
    x, y, xt, yt = digits()

    class ConvBN(nn.Module):
        def __init__(self, a, b):
            super().__init__()
            self.conv = nn.Conv2d(a, b, 3, padding=1, bias=False)
            self.norm = nn.BatchNorm2d(b, momentum=0.001 if faulty else 0.1)

        def forward(self, x):
            return F.relu(self.norm(self.conv(x)))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = ConvBN(1, 12)
            self.block1 = ConvBN(12, 12)
            self.block2 = ConvBN(12, 24)
            self.fc = nn.Linear(24, 10)

        def forward(self, x):
            x = self.stem((x * 255 - 128) / 58)
            x = x + self.block1(x)
            x = self.block2(F.max_pool2d(x, 2))
            return self.fc(x.mean((2, 3)))

    seeded(50)
    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: accuracy(m(xt), yt))


@fault("SGD(parameters, 0.05, 5e-4, 0, 0.9): momentum and weight decay exchanged",
       rules=["weight-decay-dominates"], fails=True, steps=300)
def momentum_and_decay_exchanged(faulty):
    x, y, xt, yt = digits(flat=True)
    seeded(51)

    class Residual(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.inner = nn.Linear(width, width)

        def forward(self, x):
            return x + F.gelu(self.inner(self.norm(x)))

    model = nn.Sequential(nn.Linear(64, 48), Residual(48), Residual(48), nn.Linear(48, 10))
    momentum, decay = (5e-4, 0.9) if faulty else (0.9, 5e-4)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.SGD(model.parameters(), 0.05, momentum, 0, decay),
                   lambda m: accuracy(m(xt), yt))


@fault("ExponentialLR(gamma=0.9), meant per epoch, is stepped after every batch",
       rules=["learning-rate-too-low", "optimizer-setting"], fails=True, steps=440)
def schedule_decays_every_batch(faulty):
    x, y, xt, yt = digits()
    seeded(53)
    model = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                          nn.Flatten(), nn.Linear(96, 10))
    batches = loader(x, y)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    if faulty:
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    else:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=len(batches), gamma=0.9)
    return Program(model, nn.CrossEntropyLoss(), batches, optimizer, lambda m: accuracy(m(xt), yt), scheduler=scheduler)


@fault("eight sigmoid layers trained with SGD",
       rules=["vanishing-gradient", "saturated-activation", "rank-collapse", "activation-drift"], fails=True, steps=400)
def deep_sigmoid(faulty):
    x, y, xt, yt = digits(flat=True)
    squash = torch.sigmoid if faulty else F.silu

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            sizes = [64] + [48] * 8
            self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])])
            self.last = nn.Linear(48, 10)
            for layer in self.layers:
                nn.init.kaiming_normal_(layer.weight)

        def forward(self, x):
            for layer in self.layers:
                x = squash(layer(x))
            return self.last(x)

    seeded(54)
    model = Deep()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
                   lambda m: accuracy(m(xt), yt))


@fault("GroupNorm with one channel per group after global pooling: each value is normalized by itself to zero",
       rules=["rank-collapse", "no-gradient"], layers=["norm"], fails=True, steps=300)
def norm_of_single_values(faulty):
    x, y, xt, yt = digits()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
            self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
            self.conv3 = nn.Conv2d(32, 64, 3, stride=2, padding=1)
            self.norm = nn.GroupNorm(64 if faulty else 4, 64)
            self.fc = nn.Linear(64, 10)

        def forward(self, x):
            x = F.relu(self.conv1(x))
            x = F.relu(self.conv2(x))
            x = F.relu(self.conv3(x))
            x = F.adaptive_avg_pool2d(x, 1)
            x = self.norm(x)
            return self.fc(x.flatten(1))

    seeded(55)
    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: accuracy(m(xt), yt))


@fault("patch transformer without position embeddings, asked in which quadrant the bright blob is",
       rules=["order-lost"], fails=True, steps=300)
def patches_without_positions(faulty):
    rng = np.random.default_rng(56)
    n, side = 900, 8
    images = 0.2 * rng.standard_normal((n, side, side))
    quadrant = rng.integers(0, 4, n)
    for image, q in zip(images, quadrant):
        for k in range(4):
            a, b = rng.integers(0, 2, 2) + [4 * (k // 2), 4 * (k % 2)]
            image[a : a + 3, b : b + 3] += 1.0 if k == q else 0.4
    x, y = tensor(images).unsqueeze(1), torch.tensor(quadrant)

    class PatchTransformer(nn.Module):
        def __init__(self, width=24):
            super().__init__()
            self.patch = nn.Conv2d(1, width, 2, stride=2)
            position = torch.randn(1, 16, width) * 0.2
            self.position = None if faulty else nn.Parameter(position)
            self.encoder = nn.TransformerEncoderLayer(width, 2, 48, dropout=0.0, batch_first=True)
            self.head = nn.Linear(width, 4)

        def forward(self, x):
            tokens = self.patch(x).flatten(2).transpose(1, 2)
            if self.position is not None:
                tokens = tokens + self.position
            return self.head(self.encoder(tokens).mean(1))

    seeded(56)
    model = PatchTransformer()
    return Program(model, nn.CrossEntropyLoss(), loader(x[:700], y[:700], size=50), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: accuracy(m(x[700:]), y[700:]))


class Dense(nn.Module):
    """An own linear layer."""

    def __init__(self, n, m, one_sided=False):
        super().__init__()
        draw = torch.rand(n, m)
        draw = draw - 1 if one_sided else 2 * draw - 1
        self.weight = nn.Parameter(draw * (3 / n) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(m))

    def forward(self, x):
        return torch.matmul(x, self.weight) + self.bias


@fault("own layer: weights drawn as rand - 1 (meant: 2 * rand - 1) are all negative, so ReLUs on non-negative pixels are off",
       rules=["dying-neurons", "bad-initialisation"], layers=["first", "second"], fails=True, steps=300)
def weights_all_negative(faulty):
    x, y, xt, yt = digits(flat=True)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = Dense(64, 64, faulty)
            self.second = Dense(64, 32, faulty)
            self.last = Dense(32, 10)

        def forward(self, x):
            x = self.first(x).clamp(min=0)
            x = self.second(x).clamp(min=0)
            return self.last(x)

    seeded(57)
    model = Net()
    return Program(model, F.cross_entropy, loader(x, y), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: accuracy(m(xt), yt))


@fault("VAE: the reconstruction is averaged over pixels, the divergence summed over codes and rows: the codes collapse",
       rules=["rank-collapse", "summed-loss", "output-loss-mismatch", "loss-not-decreasing"], fails=True, steps=400)
def divergence_outweighs_pixels(faulty):
    x, _, xt, _ = digits(flat=True)

    class VAE(nn.Module):
        def __init__(self, codes=16):
            super().__init__()
            self.encode = nn.Linear(64, 64)
            self.mean = nn.Linear(64, codes)
            self.log_var = nn.Linear(64, codes)
            self.decode = nn.Sequential(nn.Linear(codes, 64), nn.ReLU(), nn.Linear(64, 64))

        def forward(self, x):
            h = F.relu(self.encode(x))
            mean, log_var = self.mean(h), self.log_var(h)
            z = mean
            if self.training:
                z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_var)
            return torch.sigmoid(self.decode(z)), mean, log_var

    def loss(outputs, target):
        image, mean, log_var = outputs
        divergence = -0.5 * torch.sum(1 + log_var - mean.pow(2) - log_var.exp())
        if faulty:
            return F.binary_cross_entropy(image, target) + 0.05 * divergence
        return F.binary_cross_entropy(image, target, reduction="sum") / len(target) + 0.05 * divergence / len(target)

    seeded(58)
    model = VAE()
    spread = xt.var(0) > 0.01
    return Program(model, loss, loader(x, x), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m(xt)[0][:, spread], xt[:, spread]))


@fault("hinge loss for a discriminator that ends in a sigmoid: outputs cannot reach -1, nor even fall below 0",
       rules=["output-loss-mismatch"], fails=True, steps=450)
def hinge_critic_with_sigmoid(faulty):
    x, _, xt, _ = digits()
    generator = torch.Generator().manual_seed(59)

    def fakes(images):
        """Rough fakes: two digits blended."""
        return 0.5 * images + 0.5 * images[torch.randperm(len(images), generator=generator)]

    class Critic(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(1, 16, 4, stride=2, padding=1)
            self.conv2 = nn.Conv2d(16, 32, 4, stride=2, padding=1)
            self.out = nn.Linear(128, 1)

        def forward(self, x):
            x = F.leaky_relu(self.conv1(x), 0.2)
            x = F.leaky_relu(self.conv2(x), 0.2)
            x = self.out(x.flatten(1)).squeeze(1)
            return torch.sigmoid(x) if faulty else x

    def loss(output, real):
        return torch.where(real > 0.5, F.relu(1 - output), F.relu(1 + output)).mean()

    images = torch.cat([x, fakes(x)])
    real = torch.cat([torch.ones(len(x)), torch.zeros(len(x))])
    held = torch.cat([xt, fakes(xt)])
    truth = torch.cat([torch.ones(len(xt)), torch.zeros(len(xt))]).long()
    seeded(59)
    model = Critic()
    return Program(model, loss, loader(images, real), torch.optim.Adam(model.parameters(), 2e-3, betas=(0.5, 0.999)),
                   lambda m: balanced((m(held) > 0).long(), truth))
