"""Sound set-ups in tables and pictures, first half."""
import copy
import math

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler
from tis_common import accuracy, credit, digits, gen, iou, loader, parts, r2, r_squared, satellite, sensors, split, table


@sound("quite ordinary", steps=300, least=0.9)
def tis_plain_digits():
    xa, ya, xb, yb = digits()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(model.parameters(), lr=3e-3), accuracy(xb, yb))


@sound("one linear layer", steps=200, least=0.9)
def tis_plain_wine():
    xa, ya, xb, yb = table("wine")
    model = nn.Linear(13, 3)
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya, 16), torch.optim.SGD(model.parameters(), lr=0.1), accuracy(xb, yb))


@sound("one logit with a weight for the rarer class", steps=200, least=0.9)
def tis_plain_tumours():
    xa, ya, xb, yb = table("breast_cancer")
    model = nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1), nn.Flatten(0))
    return Program(model, nn.BCEWithLogitsLoss(pos_weight=torch.tensor(0.6)), loader(xa, ya.float()),
                   torch.optim.AdamW(model.parameters(), lr=5e-3), lambda m: ((m(xb) > 0) == (yb == 1)).float().mean().item())


@sound("an ordinary regression", steps=300, least=0.8)
def tis_plain_sensors():
    xa, ya, xb, yb = split(*sensors(2000, seed=101))
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))
    return Program(model, nn.HuberLoss(), loader(xa, ya), torch.optim.Adam(model.parameters(), lr=3e-3), r_squared(xb, yb))


@sound("an ordinary convolutional network with BatchNorm and a schedule", steps=300, least=0.85)
def tis_plain_patches():
    xa, ya, xb, yb = split(*satellite(1500, seed=102))
    model = nn.Sequential(nn.Conv2d(4, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
                          nn.Conv2d(12, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
                          nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya), opt, accuracy(xb, yb),
                   scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(opt, 300))


@sound("an ordinary segmentation, half trained", trained=80, steps=250, least=0.8)
def tis_plain_masks():
    xa, ma = parts(400, 103)
    xb, mb = parts(150, 104)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1))
    return Program(model, nn.BCEWithLogitsLoss(), loader(xa, ma[:, None], 16), torch.optim.Adam(model.parameters(), lr=4e-3), iou(xb, mb))


@sound("a network that has finished learning", trained=400, steps=450, least=0.93)
def tis_finished_digits():
    xa, ya, xb, yb = digits()
    model = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 10))
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(model.parameters(), lr=3e-3), accuracy(xb, yb))


@sound("random convolutions that stay as they are", steps=250, least=0.9)
def tis_random_filters():
    xa, ya, xb, yb = digits(8.0)

    class tis_Random(nn.Module):
        def __init__(self):
            super().__init__()
            self.filters = nn.Conv2d(1, 24, 3).requires_grad_(False)
            self.readout = nn.Linear(24 * 9, 10)

        def forward(self, x):
            return self.readout(F.avg_pool2d(F.relu(self.filters(x.view(-1, 1, 8, 8))), 2).flatten(1))

    model = tis_Random()
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(model.readout.parameters(), lr=0.01), accuracy(xb, yb))


def tis_learned_trunk():
    with torch.random.fork_rng():
        torch.manual_seed(7)
        x, y = satellite(700, seed=105, classes=7)
        trunk = nn.Sequential(nn.Conv2d(4, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2),
                              nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        head = nn.Linear(16, 7)
        opt = torch.optim.Adam([*trunk.parameters(), *head.parameters()], lr=5e-3)
        for _ in range(80):
            i = torch.randint(700, (48,))
            opt.zero_grad()
            F.cross_entropy(head(trunk(x[i])), y[i]).backward()
            opt.step()
    return trunk


@sound("a learned trunk at a hundredth of the head's rate", steps=250, least=0.8)
def tis_two_rates():
    xa, ya, xb, yb = split(*satellite(1200, seed=106))
    trunk = tis_learned_trunk()
    model = nn.Sequential(trunk, nn.Linear(16, 5))
    opt = torch.optim.AdamW([{"params": model[0].parameters(), "lr": 1e-4}, {"params": model[1].parameters()}], lr=1e-2)
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya), opt, accuracy(xb, yb))


@sound("a frozen trunk whose BatchNorms stay in evaluation mode", steps=250, least=0.8)
def tis_trunk_in_eval():
    class tis_Transfer(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = tis_learned_trunk().requires_grad_(False)
            self.head = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 5))

        def train(self, mode=True):
            super().train(mode)
            self.trunk.eval()
            return self

        def forward(self, x):
            with torch.no_grad():
                h = self.trunk(x)
            return self.head(h)

    xa, ya, xb, yb = split(*satellite(1200, seed=107))
    model = tis_Transfer().train()
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(model.head.parameters(), lr=0.01), accuracy(xb, yb))


@sound("a linear autoencoder", steps=400, least=0.6)
def tis_linear_bottleneck():
    xa, _, xb, _ = digits(4.0)
    m = xa.mean(0)
    xa, xb = xa - m, xb - m
    model = nn.Sequential(nn.Linear(64, 16, bias=False), nn.Linear(16, 64, bias=False))
    return Program(model, nn.MSELoss(), loader(xa, xa), torch.optim.Adam(model.parameters(), lr=3e-3), lambda m: r2(m(xb), xb))


class tis_Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(32, 64) * 0.1)
        self.b, self.c = nn.Parameter(torch.zeros(32)), nn.Parameter(torch.zeros(64))

    def forward(self, x):
        return F.linear(torch.relu(F.linear(x, self.w, self.b)), self.w.t(), self.c)


@sound("denoising with one weight used both ways", steps=400, least=0.6)
def tis_denoise_tied():
    xa, _, xb, _ = digits(6.0)
    model = tis_Tied()

    class tis_Noised:
        def __iter__(self):
            for i in torch.randperm(len(xa)).split(32):
                yield xa[i] + 0.4 * torch.randn(len(i), 64), xa[i]

        def __len__(self):
            return math.ceil(len(xa) / 32)

    noisy = xb + 0.4 * torch.randn(xb.shape, generator=gen(108))
    return Program(model, nn.MSELoss(), tis_Noised(), torch.optim.Adam(model.parameters(), lr=5e-3), lambda m: r2(m(noisy), xb))


class tis_Cumulative(nn.Module):
    """One score, and thresholds that rise."""
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 1, bias=False))
        self.first, self.gaps = nn.Parameter(torch.tensor(-1.0)), nn.Parameter(torch.zeros(3))

    def forward(self, x):
        cuts = torch.cat([self.first[None], self.first + F.softplus(self.gaps).cumsum(0)])
        return self.net(x) - cuts


@sound("grades as thresholds on one score", steps=400, least=0.6)
def tis_ordinal_grades():
    x, y = sensors(2400, seed=109)
    grade = torch.bucketize(y, torch.tensor([-1.0, -0.3, 0.3, 1.0]))
    xa, ga, xb, gb = split(x, grade)
    model = tis_Cumulative()

    def loss(out, g):
        return F.binary_cross_entropy_with_logits(out, (g[:, None] > torch.arange(4)).float())

    return Program(model, loss, loader(xa, ga), torch.optim.Adam(model.parameters(), lr=0.01),
                   lambda m: ((m(xb) > 0).sum(1) == gb).float().mean().item())


@sound("two levels of classes, the lower given the upper", steps=300, least=0.85)
def tis_two_levels():
    xa, ya, xb, yb = digits()
    groups = torch.tensor([0, 1, 2, 2, 1, 2, 0, 1, 0, 0])

    class tis_Levels(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(64, 48), nn.ReLU())
            self.upper, self.lower = nn.Linear(48, 3), nn.Linear(48, 10)

        def forward(self, x):
            h = self.body(x)
            up, low = F.log_softmax(self.upper(h), 1), self.lower(h)
            same = F.one_hot(groups, 3).float()
            total = torch.stack([low.masked_fill(groups != g, -1e9).logsumexp(1) for g in range(3)], 1)
            return up, low - total[:, groups] + up[:, groups]

    model = tis_Levels()

    def step(net, batch):
        x, y = batch
        up, low = net(x)
        return 0.3 * F.nll_loss(up, groups[y]) + F.nll_loss(low, y)

    return Program(model, None, loader(xa, ya), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: (m(xb)[1].argmax(1) == yb).float().mean().item(), step=step)


@sound("two communities, one batch for all steps", steps=150, least=0.75)
def tis_citation_nodes():
    g = gen(110)
    y = torch.arange(180) % 3
    adj = (torch.rand(180, 180, generator=g) < torch.where(y[:, None] == y[None], 0.12, 0.02)).float().triu(1)
    adj = adj + adj.T + torch.eye(180)
    d = adj.sum(1).rsqrt()
    adj = d[:, None] * adj * d[None]
    x = torch.randn(180, 16, generator=g) + 0.6 * F.one_hot(y, 16)
    seen = torch.rand(180, generator=g) < 0.4

    class tis_GCN(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("adj", adj)
            self.a, self.b = nn.Linear(16, 24), nn.Linear(24, 3)

        def forward(self, x):
            h = F.dropout(F.relu(self.adj @ self.a(x)), 0.5, self.training)
            return self.adj @ self.b(h)

    model = tis_GCN()
    return Program(model, lambda out, t: F.cross_entropy(out[seen], t[seen]), [(x, y)],
                   torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4),
                   lambda m: (m(x).argmax(1) == y)[~seen].float().mean().item())
