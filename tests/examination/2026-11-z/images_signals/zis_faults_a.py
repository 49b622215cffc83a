"""Mistakes in programs that learn from images."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
import zis_data as d
from program import Program, fault
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Segmenter(nn.Module):
    """A small U-Net with one level."""

    def __init__(self, made: int = 1, given: int = 1, width: int = 8) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(given, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.middle = nn.Sequential(nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.out = nn.Sequential(nn.Conv2d(2 * width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, made, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Logits for each pixel."""
        skip = self.down(x)
        return self.out(torch.cat([skip, self.up(self.middle(F.max_pool2d(skip, 2)))], 1))


@fault(
    "masks are stored as 0 and 255, and the dataset asks which pixels equal 1: all masks are empty",
    rules=["constant-target"], fails=True, steps=200,
)
def zis_masks_of_255_compared_with_1(is_faulty: bool) -> Program:
    x, _, mask, *_ = d.shapes(800, 1)
    tx, _, tmask, *_ = d.shapes(200, 2)
    stored = (mask * 255).to(torch.uint8)
    y = (stored == (1 if is_faulty else 255)).float()
    model = Segmenter()
    return Program(model, nn.BCEWithLogitsLoss(), d.loader(x, y, 16), torch.optim.Adam(model.parameters(), 3e-3),
                   d.overlap(tx, tmask))


class Flipped(Dataset):
    """Pairs of an image and its mask, flipped at random."""

    def __init__(self, images: Tensor, masks: Tensor, flip_mask: bool) -> None:
        self.images, self.masks, self.flip_mask = images, masks, flip_mask

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        image, mask = self.images[i], self.masks[i]
        if torch.rand(()) < 0.5:
            image = image.flip(-1)
            if self.flip_mask:
                mask = mask.flip(-1)
        if torch.rand(()) < 0.5:
            image = image.flip(-2)
            if self.flip_mask:
                mask = mask.flip(-2)
        return image, mask


@fault(
    "random flips are applied to the image and not to its mask",
    rules=["labels-unrelated", "output-loss-mismatch"], fails=False, steps=200,
)
def zis_flip_without_mask(is_faulty: bool) -> Program:
    x, _, mask, *_ = d.shapes(800, 3)
    tx, _, tmask, *_ = d.shapes(200, 4)
    model = Segmenter()
    batches = DataLoader(Flipped(x, mask, not is_faulty), batch_size=16, shuffle=True)
    return Program(model, F.binary_cross_entropy_with_logits, batches, torch.optim.Adam(model.parameters(), 3e-3),
                   d.overlap(tx, tmask))


@fault(
    "logits of shape (batch, class, height, width) are viewed as (pixels, class) without a permute",
    rules=["output-loss-mismatch", "labels-unrelated"], fails=True, steps=250,
)
def zis_logits_viewed_without_permute(is_faulty: bool) -> Program:
    x, label, mask, *_ = d.shapes(800, 5)
    tx, tlabel, tmask, *_ = d.shapes(200, 6)
    classes = 3
    y = (mask[:, 0].long() * (1 + label[:, None, None] % 2))
    ty = (tmask[:, 0].long() * (1 + tlabel[:, None, None] % 2))
    model = Segmenter(classes, width=12)
    weight = torch.tensor([0.2, 1.0, 1.0])

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        if not is_faulty:
            logits = logits.permute(0, 2, 3, 1)
        return F.cross_entropy(logits.reshape(-1, classes), target.reshape(-1), weight=weight)

    def score(net: nn.Module) -> float:
        found = net(tx).argmax(1)
        return sum((found[ty == k] == k).float().mean().item() for k in range(classes)) / classes

    return Program(model, loss, d.loader(x, y, 16), torch.optim.AdamW(model.parameters(), 5e-3), score)


@fault(
    "the Dice coefficient itself is minimized instead of one minus it",
    rules=["output-loss-mismatch"], fails=True, steps=200,
)
def zis_dice_minimized(is_faulty: bool) -> Program:
    x, _, mask, *_ = d.shapes(800, 7)
    tx, _, tmask, *_ = d.shapes(200, 8)

    def dice_loss(probability: Tensor, target: Tensor) -> Tensor:
        both = (probability * target).sum((1, 2, 3))
        dice = (2 * both + 1) / (probability.sum((1, 2, 3)) + target.sum((1, 2, 3)) + 1)
        return dice.mean() if is_faulty else 1 - dice.mean()

    model = nn.Sequential(Segmenter(), nn.Sigmoid())
    return Program(model, dice_loss, d.loader(x, mask, 16), torch.optim.Adam(model.parameters(), 3e-3),
                   d.overlap(tx, tmask, 0.5))


class Keypoints(nn.Module):
    """Heat maps whose expected position is the answer."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 2, 1)
        )
        self.dim = dim
        grid = torch.linspace(-1, 1, 16)
        self.register_buffer("xs", grid.repeat(16))
        self.register_buffer("ys", grid.repeat_interleave(16))

    def forward(self, image: Tensor) -> Tensor:
        """The centre and the upper left corner."""
        heat = torch.softmax(self.body(image).flatten(2), dim=self.dim)
        return torch.stack([(heat * self.xs).sum(-1), (heat * self.ys).sum(-1)], -1).flatten(1)


@fault(
    "the soft-argmax of keypoints takes its softmax over the channels of heat maps, not over their places",
    rules=["wrong-softmax-dimension"], fails=True, steps=250,
)
def zis_soft_argmax_over_channels(is_faulty: bool) -> Program:
    def data(n: int, seed: int) -> tuple[Tensor, Tensor]:
        x, _, _, centre, radius = d.shapes(n, seed)
        return x, torch.cat([centre, centre - radius[:, None] * 2 / 15], 1)

    x, y = data(800, 9)
    model = Keypoints(1 if is_faulty else 2)
    return Program(model, nn.SmoothL1Loss(), d.loader(x, y, 16), torch.optim.Adam(model.parameters(), 3e-3),
                   d.explained(*data(200, 10)))


class Detector(nn.Module):
    """A class and a box."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 64), nn.ReLU(),
        )
        self.classifier = nn.Linear(64, 4)
        self.box = nn.Linear(64, 3)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and box."""
        h = self.features(image)
        return self.classifier(h), self.box(h)


@fault(
    "boxes are in pixels of the original photograph, and their squared error is added to a cross-entropy",
    rules=["term-dominates", "unscaled-target"], fails=True, steps=400,
)
def zis_boxes_in_pixels(is_faulty: bool) -> Program:
    scale = 640.0 if is_faulty else 1.0

    x, label, _, centre, radius = d.shapes(1200, 11)
    tx, tlabel, *_ = d.shapes(300, 12)
    box = torch.cat([(centre + 1) / 2, radius[:, None] / 8], 1) * scale
    model = Detector()

    def loss(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
        logits, found = outputs
        return F.cross_entropy(logits, targets[:, 0].long()) + F.mse_loss(found, targets[:, 1:])

    return Program(model, loss, d.loader(x, torch.cat([label[:, None].float(), box], 1)),
                   torch.optim.Adam(model.parameters(), 2e-3),
                   lambda net: (net(tx)[0].argmax(1) == tlabel).float().mean().item())


@fault(
    "distances are in millimetres, and the network starts at 0 and moves by a thousandth per step",
    rules=["unscaled-target"], fails=False, steps=400,
)
def zis_depth_in_millimetres(is_faulty: bool) -> Program:
    def data(n: int, seed: int) -> tuple[Tensor, Tensor]:
        x, _, _, _, radius = d.shapes(n, seed, noise=0.03)
        metres = 8.0 / radius
        return x, (metres * 1000 if is_faulty else metres)[:, None]

    x, y = data(2400, 13)
    model = nn.Sequential(d.conv_block(1, 8), nn.MaxPool2d(2), d.conv_block(8, 16), nn.MaxPool2d(2), nn.Flatten(),
                          nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 1))
    return Program(model, nn.L1Loss(), d.loader(x, y), torch.optim.Adam(model.parameters(), 1e-3),
                   d.explained(*data(200, 14)))


class Vae(nn.Module):
    """A variational autoencoder of digits."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 24))
        self.decoder = nn.Sequential(nn.Linear(12, 96), nn.ReLU(), nn.Linear(96, 64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The reconstruction, and mean and log variance of the code."""
        mean, logvar = self.encoder(x).chunk(2, 1)
        code = mean + torch.randn_like(mean) * (logvar / 2).exp() if self.training else mean
        return self.decoder(code).view_as(x), mean, logvar


@fault(
    "the reconstruction error is a mean over pixels and the divergence a sum: nothing is coded",
    rules=["term-dominates"], fails=True, steps=500,
)
def zis_vae_mean_against_sum(is_faulty: bool) -> Program:
    x, _, tx, _ = d.digits()
    model = Vae()

    def step(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        image, _ = batch
        out, mean, logvar = net(image)
        error = F.mse_loss(out, image) if is_faulty else 20 * F.mse_loss(out, image, reduction="sum") / len(image)
        return error - 0.5 * (1 + logvar - mean**2 - logvar.exp()).sum(1).mean()

    baseline = (tx - x.mean(0)).pow(2).mean().item()
    return Program(model, None, d.loader(x, x), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda net: max(0.0, 1 - (net(tx)[0] - tx).pow(2).mean().item() / baseline), step=step)


class Backbone(nn.Module):
    """A network to be fine-tuned."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                                      nn.Linear(128, 32), nn.ReLU())
        self.fc = nn.Linear(32, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.fc(self.features(x))


@fault(
    "the optimizer is made before the last layer is replaced, so it moves the one thrown away",
    rules=["no-gradient"], layers=["fc"], fails=True, steps=300,
)
def zis_head_replaced_after_optimizer(is_faulty: bool) -> Program:
    x, y, tx, ty = d.digits()
    model = Backbone()
    if is_faulty:
        optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
        model.fc = nn.Linear(32, 10)
    else:
        model.fc = nn.Linear(32, 10)
        optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    nn.init.normal_(model.fc.weight, std=0.01)
    nn.init.zeros_(model.fc.bias)
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y), optimizer, d.accuracy(tx, ty))


@fault(
    "BatchNorm's momentum is 0.001, as for a library in which it is the share that is replaced of a long run",
    rules=["batchnorm-mode-gap"], fails=True, steps=150,
)
def zis_batchnorm_that_hardly_follows(is_faulty: bool) -> Program:
    x, y, *_ = d.shapes(1200, 15, noise=0.05)
    tx, ty, *_ = d.shapes(300, 16, noise=0.05)
    x, tx = x * 0.5 + 0.2, tx * 0.5 + 0.2
    model = d.shape_cnn()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.001 if is_faulty else 0.1
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y), torch.optim.Adam(model.parameters(), 5e-3),
                   d.accuracy(tx, ty))


@fault(
    "images lie in a folder per class, and the loader goes through the folders without shuffling",
    rules=["sorted-batches"], fails=True, steps=300,
)
def zis_folder_after_folder(is_faulty: bool) -> Program:
    x, y, tx, ty = d.digits()
    order = y.argsort(stable=True)
    model = nn.Sequential(d.conv_block(1, 8), d.conv_block(8, 16), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10))
    return Program(model, nn.CrossEntropyLoss(), d.loader(x[order], y[order], 28, shuffle=not is_faulty),
                   torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), d.accuracy(tx, ty))


class Pairs(nn.Module):
    """An embedding of 2 numbers; pairs are stacked along the channels in training."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Distances of pairs; embeddings of single images."""
        if x.shape[1] == 1:
            return self.embed(x)
        return (self.embed(x[:, :1]) - self.embed(x[:, 1:])).pow(2).sum(1).add(1e-9).sqrt()


@fault(
    "pairs are marked 1 where they are the same, and the contrastive loss takes 1 as different",
    rules=["output-loss-mismatch", "labels-unrelated", "rank-collapse"], fails=True, steps=500,
)
def zis_contrastive_marks_inverted(is_faulty: bool) -> Program:
    x, y, tx, ty = d.digits()
    g = d.generator(17)
    first = torch.randint(0, len(x), (6000,), generator=g)
    second = torch.randint(0, len(x), (6000,), generator=g)
    keep = (y[first] == y[second]) | (torch.rand(6000, generator=g) < 0.12)
    first, second = first[keep], second[keep]
    same = (y[first] == y[second]).float()
    model = Pairs()

    def contrastive(distance: Tensor, mark: Tensor) -> Tensor:
        different = mark if is_faulty else 1 - mark
        return ((1 - different) * distance**2 + different * F.relu(2 - distance) ** 2).mean()

    return Program(model, contrastive, d.loader(torch.cat([x[first], x[second]], 1), same),
                   torch.optim.Adam(model.parameters(), 2e-3), d.neighbours(tx, ty))


@fault(
    "the student's probabilities go to a divergence that takes logarithms of them",
    rules=["output-loss-mismatch"], fails=False, steps=300,
)
def zis_distillation_without_log(is_faulty: bool) -> Program:
    x, y, tx, ty = d.digits()
    temperature = 3.0
    g = d.generator(18)
    teacher = 6 * F.one_hot(y, 10) + torch.randn(len(y), 10, generator=g)
    soft = (teacher / temperature).softmax(1)
    student = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        out = (F.softmax if is_faulty else F.log_softmax)(logits / temperature, dim=1)
        return F.kl_div(out, target, reduction="batchmean") * temperature**2

    return Program(student, loss, d.loader(x, soft), torch.optim.Adam(student.parameters(), 2e-3), d.accuracy(tx, ty))


class Vit(nn.Module):
    """A vision transformer of one layer for 12 x 12 images in patches of 4 x 4."""

    def __init__(self, classes: int, has_places: bool = True, scale: float | None = None, wide: int = 32) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, wide, 4, stride=4)
        self.places = nn.Parameter(0.5 * torch.randn(1, 9, wide)) if has_places else None
        self.norm = nn.LayerNorm(wide)
        self.query, self.key, self.value = (nn.Linear(wide, wide) for _ in range(3))
        self.mlp = nn.Sequential(nn.LayerNorm(wide), nn.Linear(wide, 64), nn.GELU(), nn.Linear(64, wide))
        self.head = nn.Sequential(nn.LayerNorm(wide), nn.Linear(wide, classes))
        self.scale = wide**-0.5 if scale is None else scale

    def forward(self, image: Tensor) -> Tensor:
        """Logits."""
        x = self.patch(image).flatten(2).transpose(1, 2)
        if self.places is not None:
            x = x + self.places
        h = self.norm(x)
        attention = (self.query(h) @ self.key(h).transpose(1, 2) * self.scale).softmax(-1)
        x = x + attention @ self.value(h)
        x = x + self.mlp(x)
        return self.head(x.mean(1))


def corners(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """A bright tile and a striped tile: which of four sides of the one the other is on."""
    g = d.generator(seed)
    label = torch.randint(0, 4, (n,), generator=g)
    x = 0.2 * torch.randn(n, 1, 12, 12, generator=g)
    stripes = torch.tensor([1.0, -1.0]).repeat(2).expand(4, 4)
    for i in range(n):
        dy, dx = ((0, 1), (1, 0), (0, -1), (-1, 0))[int(label[i])]
        rows = [r for r in range(3) if 0 <= r + dy < 3]
        columns = [c for c in range(3) if 0 <= c + dx < 3]
        r = rows[int(torch.randint(0, len(rows), (), generator=g))]
        c = columns[int(torch.randint(0, len(columns), (), generator=g))]
        x[i, 0, 4 * r:4 * r + 4, 4 * c:4 * c + 4] += 1
        x[i, 0, 4 * (r + dy):4 * (r + dy) + 4, 4 * (c + dx):4 * (c + dx) + 4] += stripes
    return x, label


@fault(
    "the transformer's patches carry no positions, and the answer is how two tiles lie to each other",
    rules=["order-lost"], fails=True, steps=400,
)
def zis_patches_without_places(is_faulty: bool) -> Program:
    model = Vit(4, has_places=not is_faulty)
    return Program(model, nn.CrossEntropyLoss(), d.loader(*corners(2000, 19)),
                   torch.optim.AdamW(model.parameters(), 3e-3), d.accuracy(*corners(300, 20)))


class LocalAttention(nn.Module):
    """Attention over the pixels of a digit, in rows of 8."""

    def __init__(self, is_multiplied: bool) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 64)
        self.places = nn.Parameter(torch.randn(8, 64))
        self.start, self.middle = nn.LayerNorm(64), nn.LayerNorm(64)
        self.qkv = nn.Linear(64, 192)
        self.qkv2 = nn.Linear(64, 192)
        self.head = nn.Linear(64, 10)
        self.scale = 64**0.5 if is_multiplied else 64**-0.5

    def attend(self, layer: nn.Linear, h: Tensor) -> Tensor:
        """Scaled dot products."""
        q, k, v = layer(h).chunk(3, -1)
        return (q @ k.transpose(1, 2) * self.scale).softmax(-1) @ v

    def forward(self, image: Tensor) -> Tensor:
        """Logits."""
        h = self.start(self.embed(image[:, 0]) + self.places)
        h = self.middle(h + self.attend(self.qkv, h))
        return self.head((h + self.attend(self.qkv2, h)).mean(1))


@fault(
    "the products of queries and keys are multiplied by the root of their width instead of divided",
    rules=["attention-saturation"], fails=False, steps=300,
)
def zis_attention_times_root(is_faulty: bool) -> Program:
    x, y, tx, ty = d.digits()
    model = LocalAttention(is_faulty)
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y), torch.optim.Adam(model.parameters(), 1e-3),
                   d.accuracy(tx, ty))


class Residual(nn.Module):
    """Two convolutions next to a path that does nothing."""

    def __init__(self, width: int, is_zero: bool) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        for conv in (self.first, self.second):
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
            nn.init.zeros_(conv.bias)
        if is_zero:
            nn.init.zeros_(self.second.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Sum of both paths."""
        return x + self.second(F.relu(self.first(x)))


@fault(
    "BatchNorm was taken out of twelve residual blocks without making their last convolutions start small",
    rules=["activation-drift", "bad-initialisation", "exploding-gradient", "learning-rate-too-high", "diverging"],
    fails=True, steps=250,
)
def zis_residual_blocks_that_double(is_faulty: bool) -> Program:
    x, y, tx, ty = d.digits()
    blocks = [Residual(8, is_zero=not is_faulty) for _ in range(12)]
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), *blocks, nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y, 24),
                   torch.optim.SGD(model.parameters(), 0.003, momentum=0.9), d.accuracy(tx, ty))


@fault(
    "weights are drawn with a deviation of 0.02 as in a GAN, in a deep network that has no normalization",
    rules=["bad-initialisation", "activation-drift", "vanishing-gradient", "rank-collapse"], fails=True, steps=250,
)
def zis_gan_weights_without_norm(is_faulty: bool) -> Program:
    x, y, tx, ty = d.digits()

    def weights_init(module: nn.Module) -> None:
        if isinstance(module, nn.Conv2d):
            if is_faulty:
                nn.init.normal_(module.weight, 0.0, 0.02)
            else:
                nn.init.kaiming_normal_(module.weight)
            nn.init.zeros_(module.bias)

    layers: list[nn.Module] = []
    given = 1
    for i, made in enumerate((8, 8, 16, 16, 16, 16)):
        layers += [nn.Conv2d(given, made, 3, padding=1), nn.LeakyReLU(0.2)]
        if i in (3, 5):
            layers.append(nn.MaxPool2d(2))
        given = made
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 10))
    model.apply(weights_init)
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y, 24),
                   torch.optim.SGD(model.parameters(), 0.01, momentum=0.9), d.accuracy(tx, ty))


@fault(
    "the bias of -4.6 meant for the last layer of a detector is set in every convolution",
    rules=["dying-neurons", "bad-initialisation"], fails=True, steps=200,
)
def zis_prior_bias_everywhere(is_faulty: bool) -> Program:
    x, _, mask, *_ = d.shapes(800, 23)
    tx, _, tmask, *_ = d.shapes(200, 24)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(),
                          nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 1))
    for i, module in enumerate(model):
        if isinstance(module, nn.Conv2d) and (is_faulty or i == 6):
            nn.init.constant_(module.bias, -math.log((1 - 0.01) / 0.01))
    return Program(model, nn.BCEWithLogitsLoss(), d.loader(x, mask, 16), torch.optim.Adam(model.parameters(), 3e-3),
                   d.overlap(tx, tmask))


class Adapted(nn.Module):
    """A frozen linear layer with an update of low rank."""

    def __init__(self, base: nn.Linear, rank: int, are_both_zero: bool) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.zeros(rank, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        if not are_both_zero:
            nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """The base's outputs, changed."""
        return self.base(x) + x @ self.down.T @ self.up.T


@fault(
    "both factors of the low-rank updates start at 0, so that neither gets a gradient",
    rules=["no-gradient", "symmetric-initialisation", "bad-initialisation"], fails=True, steps=400,
)
def zis_adapters_of_two_zeros(is_faulty: bool) -> Program:
    x, y, tx, ty = d.digits()
    model = nn.Sequential(nn.Flatten(), *[
        layer for given, made in ((64, 96), (96, 10))
        for layer in (Adapted(nn.Linear(given, made), 8, is_faulty), nn.ReLU())
    ][:-1])
    trainable = [p for p in model.parameters() if p.requires_grad]
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y), torch.optim.AdamW(trainable, 5e-3),
                   d.accuracy(tx, ty))


@fault(
    "images are divided by 255 and cast back to bytes, so that all pixels become 0",
    rules=["constant-feature", "labels-unrelated", "rank-collapse"], fails=True, steps=200,
)
def zis_scaled_then_cast_to_bytes(is_faulty: bool) -> Program:
    def load(n: int, seed: int) -> tuple[Tensor, Tensor]:
        image, label = d.gratings(n, seed)
        image = (127 + 50 * image).clamp(0, 254) / 255
        return (image.to(torch.uint8).float() if is_faulty else image), label

    model = nn.Sequential(nn.Conv2d(1, 12, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 12, 3), nn.ReLU(),
                          nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4))
    return Program(model, nn.CrossEntropyLoss(), d.loader(*load(1200, 25)),
                   torch.optim.Adam(model.parameters(), 5e-3), d.accuracy(*load(300, 26)))


class OneNorm(nn.Module):
    """Convolutions with BatchNorm after each."""

    def __init__(self, is_one: bool) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 12, 3, padding=1)
        self.convs = nn.ModuleList([nn.Conv2d(12, 12, 3, padding=1) for _ in range(3)])
        norm = nn.BatchNorm2d(12)
        self.norms = nn.ModuleList([norm if is_one else nn.BatchNorm2d(12) for _ in range(4)])
        self.fc = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        h = F.max_pool2d(F.relu(self.norms[0](self.stem(x))), 2)
        for conv, norm in zip(self.convs, list(self.norms)[1:], strict=True):
            h = F.relu(norm(conv(h)))
        return self.fc(h.amax((2, 3)))


@fault(
    "one BatchNorm is made outside of the loop and used after four convolutions",
    rules=["shared-weight", "batchnorm-mode-gap"], layers=["norms"], fails=True, steps=200,
)
def zis_one_batchnorm_for_all(is_faulty: bool) -> Program:
    x, y, *_ = d.shapes(1200, 27, noise=0.05)
    tx, ty, *_ = d.shapes(300, 28, noise=0.05)
    x, tx = 255 * x, 255 * tx
    model = OneNorm(is_faulty)
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y, 24), torch.optim.Adam(model.parameters(), 5e-3),
                   d.accuracy(tx, ty))


class NoiseModel(nn.Module):
    """Predicts the noise in an image, given how noisy it is."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(65, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Noise."""
        return self.net(torch.cat([x.flatten(1), t[:, None]], 1)).view_as(x)


class Diffused(Dataset):
    """Digits with noise of a random step."""

    def __init__(self, images: Tensor, divisor: float) -> None:
        self.images, self.divisor = images * 2 - 1, divisor
        self.alpha = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[dict[str, Tensor], Tensor]:
        t = torch.randint(0, 1000, ())
        noise = torch.randn(self.images[i].shape)
        noisy = self.alpha[t].sqrt() * self.images[i] + (1 - self.alpha[t]).sqrt() * noise
        return {"x": noisy, "t": t / self.divisor}, noise


@fault(
    "the step of diffusion, from 0 to 999, goes into the network next to pixels in [-1, 1]",
    rules=["unscaled-input", "ill-conditioned-input"], layers=[], fails=True, steps=500,
)
def zis_timesteps_raw(is_faulty: bool) -> Program:
    x, _, tx, _ = d.digits()
    divisor = 1.0 if is_faulty else 1000.0
    g = d.generator(29)
    held = Diffused(tx, divisor)
    t = torch.randint(0, 1000, (len(tx),), generator=g)
    noise = torch.randn(tx.shape, generator=g)
    a = held.alpha[t].view(-1, 1, 1, 1)
    noisy = a.sqrt() * held.images + (1 - a).sqrt() * noise
    model = NoiseModel()
    return Program(model, nn.MSELoss(), DataLoader(Diffused(x, divisor), batch_size=64, shuffle=True),
                   torch.optim.Adam(model.parameters(), 2e-3),
                   lambda net: max(0.0, 1 - F.mse_loss(net(noisy, t / divisor), noise).item()))


@fault(
    "a denoiser that predicts the noise ends in a ReLU and cannot say anything negative",
    rules=["output-loss-mismatch", "dying-neurons"], fails=True, steps=300,
)
def zis_noise_through_relu(is_faulty: bool) -> Program:
    def data(n: int, seed: int) -> tuple[Tensor, Tensor]:
        image = d.smooth_images(n, seed)
        noise = 0.3 * torch.randn(image.shape, generator=d.generator(seed + 100))
        return image + noise, noise

    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
              nn.Conv2d(16, 1, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*(layers if is_faulty else layers[:-1]))
    return Program(model, nn.MSELoss(), d.loader(*data(800, 30), 16), torch.optim.Adam(model.parameters(), 3e-3),
                   d.explained(*data(200, 31)))


@fault(
    "the squared error of super-resolution is summed over pixels and examples, at the rate of a mean",
    rules=["summed-loss", "learning-rate-too-high", "diverging", "non-finite", "exploding-gradient"],
    fails=True, steps=300,
)
def zis_super_resolution_summed(is_faulty: bool) -> Program:
    def data(n: int, seed: int) -> tuple[Tensor, Tensor]:
        image = d.smooth_images(n, seed, 16)
        image = image - image.mean((2, 3), keepdim=True)
        return F.avg_pool2d(image, 2), image

    model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
                          nn.Conv2d(16, 4, 3, padding=1), nn.PixelShuffle(2))
    loss = nn.MSELoss(reduction="sum" if is_faulty else "mean")
    return Program(model, loss, d.loader(*data(800, 32), 16), torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
                   d.explained(*data(200, 33)))


@fault(
    "weight decay is 0.5 where 0.0005 was meant, and Adam adds it to the gradient",
    rules=["weight-decay-dominates"], fails=True, steps=250,
)
def zis_decay_a_thousand_times(is_faulty: bool) -> Program:
    x, y = d.gratings(1200, 34)
    model = nn.Sequential(nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(),
                          nn.Flatten(), nn.Linear(64, 4))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3, weight_decay=0.5 if is_faulty else 5e-4)
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y), optimizer, d.accuracy(*d.gratings(300, 35)))


@fault(
    "memory allows two images at a time, and BatchNorm normalizes over those two",
    rules=["small-batch-batchnorm", "batchnorm-mode-gap", "mixed-examples"], fails=False, steps=600,
)
def zis_two_images_and_batchnorm(is_faulty: bool) -> Program:
    x, y, tx, ty = d.digits()

    def norm(width: int) -> nn.Module:
        return nn.BatchNorm1d(width) if is_faulty else nn.LayerNorm(width)

    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), norm(64), nn.ReLU(), nn.Linear(64, 64), norm(64), nn.ReLU(),
                          nn.Linear(64, 10))
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y, 2), torch.optim.Adam(model.parameters(), 1e-3),
                   d.accuracy(tx, ty))


@fault(
    "the penalty on differences of neighbours outweighs the error, and the denoiser paints everything grey",
    rules=["term-dominates"], fails=True, steps=250,
)
def zis_smoothness_outweighs(is_faulty: bool) -> Program:
    clean, held = d.smooth_images(800, 36), d.smooth_images(200, 37)
    g = d.generator(38)
    x = clean + 0.3 * torch.randn(clean.shape, generator=g)
    tx = held + 0.3 * torch.randn(held.shape, generator=g)
    model = nn.Sequential(nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(),
                          nn.Conv2d(12, 1, 3, padding=1))

    def loss(out: Tensor, target: Tensor) -> Tensor:
        rough = out.diff(dim=-1).abs().mean() + out.diff(dim=-2).abs().mean()
        return F.mse_loss(out, target) + (10 if is_faulty else 0.01) * rough

    return Program(model, loss, d.loader(x, clean, 16), torch.optim.Adam(model.parameters(), 3e-3),
                   d.explained(tx, held))


@fault(
    "optical flow is asked between a frame and itself: the dataset reads frame i twice",
    rules=["labels-unrelated"], fails=True, steps=400,
)
def zis_same_frame_twice(is_faulty: bool) -> Program:
    x, y = d.blob_pairs(1600, 39)
    if is_faulty:
        x = x[:, [0, 0]]
    tx, ty = d.blob_pairs(300, 40)
    model = nn.Sequential(nn.Conv2d(2, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(288, 64),
                          nn.ReLU(), nn.Linear(64, 2))
    return Program(model, nn.MSELoss(), d.loader(x, y), torch.optim.Adam(model.parameters(), 2e-3),
                   d.explained(tx, ty))
