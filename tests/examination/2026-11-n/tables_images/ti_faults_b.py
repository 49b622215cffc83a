import math

import torch
import torch.nn.functional as F
from program import Program, fault
from ti_common import accuracy, clusters, gen, loader, r2, shapes
from torch import nn
from torch.optim.lr_scheduler import LambdaLR


class LandmarkNet(nn.Module):
    """Tells shapes by the distances between learned projections of their landmarks."""

    def __init__(self, eps):
        super().__init__()
        self.project = nn.Linear(2, 4)
        self.mlp = nn.Sequential(nn.Linear(49, 32), nn.ReLU(), nn.Linear(32, 3))
        self.eps = eps

    def forward(self, points):
        p = self.project(points)
        square = (p[:, :, None] - p[:, None, :]).pow(2).sum(-1)
        return self.mlp((square + self.eps).sqrt().flatten(1))


@fault(
    "Distances between all pairs of landmarks, each with itself included, go through sqrt without an epsilon: the "
    "slope at 0 is infinite and the first step makes the projection NaN.",
    rules=["non-finite"], layers=["project"], fails=True, steps=300,
)
def distance_to_itself(is_faulty):
    def points(n, seed):
        g = gen(seed)
        y = torch.randint(3, (n,), generator=g)
        base = torch.randn(3, 7, 2, generator=gen(81))
        angle = torch.rand(n, generator=g) * 2 * math.pi
        turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], -1).reshape(n, 2, 2)
        return base[y] @ turn + 0.2 * torch.randn(n, 7, 2, generator=g), y

    model = LandmarkNet(0.0 if is_faulty else 1e-6)
    return Program(model, nn.CrossEntropyLoss(), loader(*points(800, 82)), torch.optim.Adam(model.parameters(), 5e-3),
                   accuracy(*points(300, 83)))


@fault(
    "The function given to LambdaLR returns the rate itself instead of a factor, so the rate is the square of what is "
    "meant.",
    rules=["learning-rate-too-low"], fails=True, steps=400,
)
def lambda_returns_the_rate(is_faulty):
    peak, warmup, total = 2e-3, 40, 400
    model = nn.Sequential(
        nn.Linear(10, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 6)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, weight_decay=0.01)

    def rate(step):
        share = min(step / warmup, 0.5 * (1 + math.cos(math.pi * min(1.0, step / total))))
        return peak * share if is_faulty else share

    return Program(model, nn.CrossEntropyLoss(), loader(*clusters(1200, 91, classes=6)), optimizer,
                   accuracy(*clusters(400, 92, classes=6)), LambdaLR(optimizer, rate))


class PlainBlock(nn.Module):
    def __init__(self, c_in, c_out):
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out)

    def forward(self, x):
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


@fault(
    "A plain network without skip connections takes over the ResNet habit of starting the last BatchNorm of each "
    "block at 0: the blocks return 0, and the ReLUs pass nothing back.",
    rules=["bad-initialisation", "dying-neurons", "no-gradient", "vanishing-gradient", "rank-collapse"],
    layers=["blocks", "stem"], fails=True, steps=300,
)
def zero_gamma_without_skips(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(1, 8, 3, padding=1)
            self.blocks = nn.Sequential(PlainBlock(8, 12), PlainBlock(12, 24))
            self.head = nn.Linear(24, 4)
            for m in self.modules():
                if isinstance(m, nn.Conv2d):
                    nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
                if isinstance(m, PlainBlock) and is_faulty:
                    nn.init.zeros_(m.bn2.weight)

        def forward(self, x):
            return self.head(self.blocks(F.relu(self.stem(x))).mean((2, 3)))

    model = Net()
    return Program(model, nn.CrossEntropyLoss(label_smoothing=0.05), loader(*shapes(1000, 101)),
                   torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4),
                   accuracy(*shapes(400, 102)))


class Adapted(nn.Module):
    """A layer that stays as it is, with a low-rank change that is learned."""

    def __init__(self, base, rank, is_faulty):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        for layer in (self.down, self.up) if is_faulty else (self.up,):
            nn.init.zeros_(layer.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


@fault(
    "Low-rank adapters of a frozen network start with both factors at zero, so that neither ever has a gradient.",
    rules=["bad-initialisation", "no-gradient", "symmetric-initialisation", "vanishing-gradient"],
    layers=["0.down", "0.up", "2.down", "2.up", "4.down", "4.up"], fails=True, steps=300,
)
def both_factors_zero(is_faulty):
    x, y = clusters(1200, 111, classes=5)
    base = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 5))
    pre = torch.optim.Adam(base.parameters(), 5e-3)
    for _ in range(5):
        for part in torch.randperm(1200).split(50):
            pre.zero_grad()
            F.cross_entropy(base(x[part]), y[part]).backward()
            pre.step()

    def clinic(n, seed):  # the same patients, measured otherwise and coded in another order
        x, y = clusters(n, seed, classes=5)
        return x.roll(3, 1), (y + 2) % 5

    model = nn.Sequential(*(Adapted(m, 6, is_faulty) if isinstance(m, nn.Linear) else m for m in base))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 5e-3)
    return Program(model, nn.CrossEntropyLoss(), loader(*clinic(800, 112)), optimizer, accuracy(*clinic(400, 113)))


class FourConvs(nn.Module):
    def __init__(self, is_shared):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(3 if i == 0 else 12, 12, 3, padding=1) for i in range(4)])
        self.bn = nn.BatchNorm2d(12) if is_shared else nn.ModuleList([nn.BatchNorm2d(12) for _ in range(4)])
        self.fc = nn.Linear(12, 4)
        self.is_shared = is_shared

    def forward(self, x):
        for i, conv in enumerate(self.convs):
            x = F.relu((self.bn if self.is_shared else self.bn[i])(conv(x)))
            if i in (0, 2):
                x = F.max_pool2d(x, 2)
        return self.fc(x.amax((2, 3)))


@fault(
    "All convolutions have as many channels and go through one self.bn, whose running statistics fit none of them.",
    rules=["shared-weight", "batchnorm-mode-gap"], layers=["bn"], fails=True, steps=250,
)
def one_bn_for_all(is_faulty):
    def photos(n, seed):
        x, y = shapes(n, seed, channels=3)
        return 4 * x + torch.tensor([6.0, 4.0, 2.0])[:, None, None], y

    model = FourConvs(is_faulty)
    return Program(model, nn.CrossEntropyLoss(), loader(*photos(800, 121), batch_size=24),
                   torch.optim.Adam(model.parameters(), 3e-3), accuracy(*photos(400, 122)))


class Hash(nn.Module):
    def __init__(self, d, bits, is_faulty):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(d, 48), nn.ReLU(), nn.Linear(48, bits), nn.Sigmoid())
        self.decoder = nn.Sequential(nn.Linear(bits, 48), nn.ReLU(), nn.Linear(48, d))
        self.is_faulty = is_faulty

    def forward(self, x):
        soft = self.encoder(x)
        code = torch.round(soft)
        if not self.is_faulty:
            code = soft + (code - soft).detach()
        return self.decoder(code)


@fault(
    "A hashing autoencoder rounds its code, and rounding has no slope: the encoder stays as it was.",
    rules=["no-gradient"], layers=["encoder"], fails=False, steps=600,
)
def rounded_code(is_faulty):
    centres = torch.randn(16, 30, generator=gen(131))

    def rows(n, seed):
        g = gen(seed)
        return centres[torch.randint(16, (n,), generator=g)] + 0.25 * torch.randn(n, 30, generator=g)

    x, xt = rows(1500, 132), rows(300, 133)
    model = Hash(30, 5, is_faulty)
    return Program(model, nn.MSELoss(), loader(x, x), torch.optim.Adam(model.parameters(), 4e-3), r2(xt, xt))
