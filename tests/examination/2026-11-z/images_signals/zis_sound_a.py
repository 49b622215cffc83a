"""Sound programs that learn from images."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
import zis_data as d
from program import Program, sound
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


@sound("nothing: a small network on digits", steps=400, least=0.9)
def zis_plain_digits() -> Program:
    x, y, tx, ty = d.digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y), torch.optim.Adam(model.parameters(), 2e-3),
                   d.accuracy(tx, ty))


@sound("nothing: convolutions with BatchNorm on shapes", steps=250, least=0.9)
def zis_plain_shapes() -> Program:
    x, y, *_ = d.shapes(1200, 101)
    tx, ty, *_ = d.shapes(300, 102)
    model = d.shape_cnn()
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y), torch.optim.AdamW(model.parameters(), 3e-3),
                   d.accuracy(tx, ty))


class Unet(nn.Module):
    """Two levels and a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU())
        self.mid = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU())
        self.dec = nn.Sequential(nn.Conv2d(24, 8, 3, padding=1), nn.ReLU())
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        e = self.enc(x)
        m = F.interpolate(self.mid(F.max_pool2d(e, 2)), scale_factor=2)
        return self.out(self.dec(torch.cat([e, m], 1)))


@sound("nothing: a U-Net with GroupNorm, Dice added to cross-entropy", steps=200, least=0.8)
def zis_plain_segmentation() -> Program:
    x, _, mask, *_ = d.shapes(800, 103)
    tx, _, tmask, *_ = d.shapes(200, 104)
    model = Unet()

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        p = logits.sigmoid()
        dice = (2 * (p * target).sum() + 1) / (p.sum() + target.sum() + 1)
        return F.binary_cross_entropy_with_logits(logits, target) + 1 - dice

    return Program(model, loss, d.loader(x, mask, 16), torch.optim.Adam(model.parameters(), 3e-3),
                   d.overlap(tx, tmask))


@sound("nothing: a denoiser that predicts what is to be taken away", steps=250, least=0.8)
def zis_plain_denoiser() -> Program:
    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1),
                                     nn.ReLU(), nn.Conv2d(12, 1, 3, padding=1))

        def forward(self, x: Tensor) -> Tensor:
            return x - self.net(x)

    clean, held = d.smooth_images(800, 105), d.smooth_images(200, 106)
    g = d.generator(107)
    x, tx = (z + 0.3 * torch.randn(z.shape, generator=g) for z in (clean, held))
    model = Denoiser()
    return Program(model, nn.MSELoss(), d.loader(x, clean, 16), torch.optim.Adam(model.parameters(), 2e-3),
                   d.explained(tx, held))


@sound("both terms of a variational autoencoder are summed over pixels and codes: the loss starts near 40",
       steps=500, least=0.6)
def zis_vae_summed_per_image() -> Program:
    class Vae(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU())
            self.mu, self.logvar = nn.Linear(96, 16), nn.Linear(96, 16)
            self.decoder = nn.Sequential(nn.Linear(16, 96), nn.ReLU(), nn.Linear(96, 64), nn.Sigmoid())

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            h = self.encoder(x)
            mu, logvar = self.mu(h), self.logvar(h)
            z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
            return self.decoder(z).view_as(x), mu, logvar

    x, _, tx, _ = d.digits()

    def loss(out: tuple[Tensor, Tensor, Tensor], image: Tensor) -> Tensor:
        again, mu, logvar = out
        error = F.binary_cross_entropy(again, image, reduction="sum")
        return (error - 0.3 * 0.5 * (1 + logvar - mu**2 - logvar.exp()).sum()) / len(image)

    model = Vae()
    spread = tx.sub(x.mean(0)).pow(2).mean().item()
    return Program(model, loss, d.loader(x, x), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda net: max(0.0, 1 - (net(tx)[0] - tx).pow(2).mean().item() / spread))


@sound("the backbone is frozen on purpose, in evaluation mode, and only the head is in the optimizer",
       steps=300, least=0.85)
def zis_frozen_backbone() -> Program:
    x, y, tx, ty = d.digits()
    backbone = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
                             nn.Flatten())
    with torch.no_grad():
        for _ in range(100):
            backbone(x[:256])
    backbone.requires_grad_(False)

    class Probe(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.head = backbone, nn.Linear(512, 10)

        def train(self, mode: bool = True) -> Probe:
            super().train(mode)
            self.backbone.eval()
            return self

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                h = self.backbone(x)
            return self.head(h)

    model = Probe().train()
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y), torch.optim.Adam(model.head.parameters(), 2e-3),
                   d.accuracy(tx, ty))


@sound("distances in millimetres, which the last module computes from a number near 1", steps=400, least=0.7)
def zis_millimetres_made_by_the_model() -> Program:
    class ToMillimetres(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2800 + 900 * x

    def data(n: int, seed: int) -> tuple[Tensor, Tensor]:
        image, _, _, _, radius = d.shapes(n, seed)
        return image, 8000 / radius[:, None]

    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1),
                          nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 1),
                          ToMillimetres())
    return Program(model, nn.L1Loss(), d.loader(*data(1600, 108)), torch.optim.Adam(model.parameters(), 3e-3),
                   d.explained(*data(200, 109)))


@sound("pixels from 0 to 255 go into the network, whose first module is a BatchNorm", steps=250, least=0.9)
def zis_bytes_into_batchnorm() -> Program:
    x, y = d.gratings(1200, 110)
    tx, ty = d.gratings(300, 111)
    x, tx = ((127 + 50 * z).clamp(0, 255).round() for z in (x, tx))
    model = nn.Sequential(nn.BatchNorm2d(1), nn.Conv2d(1, 12, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 12, 3),
                          nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4))
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y), torch.optim.Adam(model.parameters(), 5e-3),
                   d.accuracy(tx, ty))


class ZeroBlock(nn.Module):
    """A residual block that starts as nothing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        nn.init.zeros_(self.bn2.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Sum of both paths."""
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


@sound("the last BatchNorm of each residual block starts with weight 0, and the classifier at 0", steps=200, least=0.85)
def zis_zero_gamma_resnet() -> Program:
    x, y, tx, ty = d.digits()
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), ZeroBlock(8), ZeroBlock(8), ZeroBlock(8),
                          nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10))
    nn.init.zeros_(model[-1].weight)
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y),
                   torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=5e-4),
                   d.accuracy(tx, ty))


@sound("dropout of 0.8, over a layer of a thousand units", steps=400, least=0.88)
def zis_dropout_on_a_wide_layer() -> Program:
    x, y, tx, ty = d.digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 1024), nn.ReLU(), nn.Dropout(0.8), nn.Linear(1024, 10))
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y), torch.optim.Adam(model.parameters(), 1e-3),
                   d.accuracy(tx, ty))


@sound("few pixels are foreground, and the last bias starts at -4 as the prior says", steps=250, least=0.75)
def zis_prior_bias_of_rare_pixels() -> Program:
    x, _, mask, *_ = d.shapes(800, 112)
    tx, _, tmask, *_ = d.shapes(200, 113)
    model = nn.Sequential(nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(),
                          nn.Conv2d(12, 1, 3, padding=1))
    nn.init.constant_(model[-1].bias, -4)

    def focal(logits: Tensor, target: Tensor) -> Tensor:
        each = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        return ((1 - torch.exp(-each)) ** 2 * each).sum() / target.sum().clamp(min=1)

    return Program(model, focal, d.loader(x, mask, 16), torch.optim.Adam(model.parameters(), 3e-3),
                   d.overlap(tx, tmask))


class Siren(nn.Module):
    """Sines of 20 times what linear layers give."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 48), nn.Linear(48, 48), nn.Linear(48, 1)])
        with torch.no_grad():
            self.layers[0].weight.uniform_(-1 / 2, 1 / 2)
            for layer in list(self.layers)[1:]:
                bound = math.sqrt(6 / 48) / 20
                layer.weight.uniform_(-bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Brightness at a place."""
        x = torch.sin(10 * self.layers[0](x))
        x = torch.sin(20 * self.layers[1](x))
        return self.layers[2](x)


@sound("sines of large multiples as activations, with tiny weights: a network that is an image", steps=400, least=0.9)
def zis_sine_network() -> Program:
    def brightness(place: Tensor) -> Tensor:
        a, b = place[:, :1], place[:, 1:]
        return torch.sin(5 * a + 2 * b) * torch.cos(4 * b) + 0.5 * torch.sin(9 * a * b)

    x, tx = (2 * torch.rand(n, 2, generator=d.generator(114 + n)) - 1 for n in (2000, 300))
    model = Siren()
    return Program(model, nn.MSELoss(), d.loader(x, brightness(x), 64), torch.optim.Adam(model.parameters(), 1e-3),
                   d.explained(tx, brightness(tx)))


class Masked(Dataset):
    """Digits with three quarters of their pixels, and whole digits as the answer."""

    def __init__(self, images: Tensor) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        keep = (torch.rand(1, 8, 8) > 0.25).float()
        return torch.cat([self.images[i] * keep, keep]), torch.cat([self.images[i], 1 - keep])


@sound("a masked autoencoder: the answer is the input, and only what was hidden counts in the loss",
       steps=600, least=0.6)
def zis_masked_autoencoder() -> Program:
    x, _, tx, _ = d.digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(128, 192), nn.GELU(), nn.Linear(192, 192), nn.GELU(),
                          nn.Linear(192, 64), nn.Unflatten(1, (1, 8, 8)))

    def loss(out: Tensor, target: Tensor) -> Tensor:
        image, hidden = target[:, :1], target[:, 1:]
        return ((out - image) ** 2 * hidden).sum() / hidden.sum().clamp(min=1)

    keep = (torch.rand(tx.shape, generator=d.generator(115)) > 0.25).float()

    def score(net: nn.Module) -> float:
        error = ((net(torch.cat([tx * keep, keep], 1)) - tx) ** 2 * (1 - keep)).sum()
        return max(0.0, 1 - (error / ((x.mean(0) - tx) ** 2 * (1 - keep)).sum()).item())

    return Program(model, loss, DataLoader(Masked(x), batch_size=64, shuffle=True),
                   torch.optim.AdamW(model.parameters(), 2e-3), score)


class Student(nn.Module):
    """A student with its frozen teacher inside."""

    def __init__(self, teacher: nn.Module) -> None:
        super().__init__()
        self.teacher = teacher.requires_grad_(False)
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x: Tensor) -> Tensor:
        """The student's logits."""
        return self.net(x)


@sound("a frozen teacher inside of the model, whose weights no step moves, and no label at all", steps=300, least=0.85)
def zis_teacher_inside() -> Program:
    x, y, tx, ty = d.digits()
    state = torch.random.get_rng_state()
    torch.manual_seed(5)
    teacher = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(teacher.parameters(), 5e-3)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(teacher(x), y).backward()
        optimizer.step()
    torch.random.set_rng_state(state)
    model = Student(teacher)

    def step(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        image, _ = batch
        with torch.no_grad():
            soft = (net.teacher(image) / 2).softmax(1)
        return F.kl_div((net(image) / 2).log_softmax(1), soft, reduction="batchmean") * 4

    return Program(model, None, d.loader(x, y), torch.optim.Adam(model.net.parameters(), 3e-3), d.accuracy(tx, ty),
                   step=step)


class ClassPairs:
    """Batches of eight images of each of four classes, as metric learning wants them."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y
        self.places = [(y == k).nonzero()[:, 0] for k in range(10)]

    def __len__(self) -> int:
        return 40

    def __iter__(self):
        for _ in range(len(self)):
            kinds = torch.randperm(10)[:4]
            index = torch.cat([self.places[int(k)][torch.randperm(len(self.places[int(k)]))[:8]] for k in kinds])
            yield self.x[index], self.y[index]


@sound("batches of four classes in a row, and a triplet loss that compares examples of a batch", steps=400, least=0.85)
def zis_hardest_triplets() -> Program:
    x, y, tx, ty = d.digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 4))

    def triplet(z: Tensor, label: Tensor) -> Tensor:
        far = torch.cdist(z, z)
        same = label[:, None] == label[None]
        hardest = (far * same).amax(1)
        nearest = (far + 1e6 * same).amin(1)
        return F.softplus(hardest - nearest).mean()

    return Program(model, triplet, ClassPairs(x, y), torch.optim.Adam(model.parameters(), 2e-3),
                   d.neighbours(tx, ty))


@sound("contrastive learning of two images of a class: outputs are compared within a batch, the loss stays high",
       steps=400, least=0.8)
def zis_two_views() -> Program:
    x, y, tx, ty = d.digits()

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 3))

        def forward(self, image: Tensor) -> Tensor:
            return F.normalize(self.body(image), dim=1)

    def step(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        image, label = batch
        order = torch.randperm(len(image))
        partner = torch.stack([x[members[torch.randint(len(members), ())]]
                               for members in (places[int(k)] for k in label[order])])
        image = image[order]
        first, second = (net(v + 0.1 * torch.randn_like(v)) for v in (image, partner))
        logits = first @ second.T / 0.1
        target = torch.arange(len(image))
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2

    places = [(y == k).nonzero()[:, 0] for k in range(10)]
    model = Encoder()
    return Program(model, None, d.loader(x, y, 48), torch.optim.Adam(model.parameters(), 3e-3), d.neighbours(tx, ty),
                   step=step)


@sound("a trained network, examined at the end of its run: probabilities of 0 and 1, hardly any gradient",
       trained=400, steps=500, least=0.9)
def zis_trained_digits() -> Program:
    x, y, tx, ty = d.digits()
    model = nn.Sequential(d.conv_block(1, 8), d.conv_block(8, 16), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10))
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y), torch.optim.Adam(model.parameters(), 3e-3),
                   d.accuracy(tx, ty))


@sound("half of a cosine schedule is over", trained=200, steps=400, least=0.9)
def zis_half_of_a_cosine() -> Program:
    x, y, *_ = d.shapes(1600, 116)
    tx, ty, *_ = d.shapes(300, 117)
    model = d.shape_cnn()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
    return Program(model, nn.CrossEntropyLoss(label_smoothing=0.1), d.loader(x, y), optimizer, d.accuracy(tx, ty),
                   scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400))


class TextureBag(nn.Module):
    """A vote of patches, wherever they are."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Sequential(nn.Linear(36, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU())
        self.head = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.patch(F.unfold(x, 6, stride=3).transpose(1, 2)).mean(1))


@sound("a bag of patches without positions, where the texture is all that matters", steps=300, least=0.9)
def zis_bag_of_textures() -> Program:
    x, y = d.gratings(1200, 118)
    model = TextureBag()
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y), torch.optim.Adam(model.parameters(), 3e-3),
                   d.accuracy(*d.gratings(300, 119)))


@sound("thirty of a hundred labels are wrong: the loss stays high, and the network is right nonetheless",
       steps=250, least=0.8)
def zis_noisy_labels() -> Program:
    x, y, tx, ty = d.digits()
    g = d.generator(120)
    y = torch.where(torch.rand(len(y), generator=g) < 0.3, torch.randint(0, 10, y.shape, generator=g), y)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    return Program(model, nn.CrossEntropyLoss(), d.loader(x, y), torch.optim.Adam(model.parameters(), 2e-3),
                   d.accuracy(tx, ty))


class Quantized(nn.Module):
    """An autoencoder whose code is the sign of numbers, passed straight through on the way back."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32), nn.Tanh())
        self.decoder = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 64), nn.Unflatten(1, (1, 8, 8)))

    def forward(self, x: Tensor) -> Tensor:
        """The reconstruction."""
        z = self.encoder(x)
        return self.decoder(z + (torch.sign(z) - z).detach())


@sound("the code of an autoencoder is rounded to signs, with a straight-through gradient", steps=500, least=0.6)
def zis_sign_codes() -> Program:
    x, _, tx, _ = d.digits()
    model = Quantized()
    spread = tx.sub(x.mean(0)).pow(2).mean().item()
    return Program(model, nn.MSELoss(), d.loader(x, x), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda net: max(0.0, 1 - (net(tx) - tx).pow(2).mean().item() / spread))
