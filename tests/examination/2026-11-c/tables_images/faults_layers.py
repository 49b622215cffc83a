"""Faults inside networks: layers, wiring, initialisation."""

import torch
import torch.nn.functional as F
from torch import nn

from data import *
from program import Program, fault


@fault("torch.relu(h) is called but its result is thrown away: the network is linear",
       rules=["no-nonlinearity"], fails=True, steps=350)
def relu_not_assigned(is_faulty):
    start()
    xa, ya, xb, yb = regression()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1 = nn.Linear(8, 64)
            self.fc2 = nn.Linear(64, 64)
            self.fc3 = nn.Linear(64, 1)

        def forward(self, x):
            h = self.fc1(x)
            if is_faulty:
                torch.relu(h)
            else:
                h = torch.relu(h)
            h = self.fc2(h)
            if is_faulty:
                torch.relu(h)
            else:
                h = torch.relu(h)
            return self.fc3(h)

    m = Net()
    return Program(m, F.mse_loss, loader(xa, ya), torch.optim.Adam(m.parameters(), 5e-3), r2(xb, yb))


@fault("The noise that augments the training images is added inside forward without asking whether the model is training",
       rules=["dropout-in-eval"], fails=False, steps=250)
def augmentation_in_evaluation(is_faulty):
    start()
    xa, ya, xb, yb = digits()

    class Net(nn.Module):
        def __init__(self, sigma=1.2):
            super().__init__()
            self.sigma = sigma
            self.conv = nn.Conv2d(1, 16, 3)
            self.fc1 = nn.Linear(16 * 9, 64)
            self.fc2 = nn.Linear(64, 10)

        def forward(self, x):
            if is_faulty or self.training:
                x = x + self.sigma * torch.randn_like(x)
            x = F.max_pool2d(F.relu(self.conv(x)), 2)
            return self.fc2(F.relu(self.fc1(x.flatten(1))))

    m = Net()
    return Program(m, F.cross_entropy, loader(xa, ya), torch.optim.Adam(m.parameters(), 2e-3), accuracy(xb, yb))


@fault("Dropout got 0.95 as the probability to keep a unit, as in another framework",
       rules=["dropout-too-strong"], layers=["2", "5"], fails=True, steps=200)
def dropout_keep_probability(is_faulty):
    start()
    xa, ya, xb, yb = digits()
    p = 0.95 if is_faulty else 0.05
    m = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(64, 64), nn.ReLU()), nn.Dropout(p), nn.Linear(64, 48), nn.ReLU(), nn.Dropout(p), nn.Linear(48, 10))
    return Program(m, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.Adam(m.parameters(), 1e-3), accuracy(xb, yb))


@fault("One BatchNorm is reused after every convolution: its running statistics are a mix that fits none of them",
       rules=["shared-weight", "batchnorm-mode-gap"], layers=["bn"], fails=True, steps=200)
def one_batchnorm_for_all(is_faulty):
    start()
    xa, ya, xb, yb = digits(standard=False)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
            self.conv2 = nn.Conv2d(16, 16, 3, padding=1)
            self.conv3 = nn.Conv2d(16, 16, 3, padding=1, stride=2)
            if is_faulty:
                self.bn = nn.BatchNorm2d(16)
            else:
                self.bns = nn.ModuleList([nn.BatchNorm2d(16) for _ in range(3)])
            self.fc = nn.Linear(16 * 4, 10)

        def norm(self, i, x):
            return self.bn(x) if is_faulty else self.bns[i](x)

        def forward(self, x):
            x = F.relu(self.norm(0, self.conv1(x)))
            x = F.max_pool2d(F.relu(self.norm(1, self.conv2(x))), 2)
            x = F.relu(self.norm(2, self.conv3(x)))
            return self.fc(x.flatten(1))

    m = Net()
    return Program(m, F.cross_entropy, loader(xa, ya), torch.optim.SGD(m.parameters(), 0.05, momentum=0.9), accuracy(xb, yb))


@fault("The residual blocks forget to add their input: a plain net of 28 layers without normalisation",
       rules=["vanishing-gradient", "activation-drift", "rank-collapse", "bad-initialisation"], fails=True, steps=250)
def forgotten_skip(is_faulty):
    start()
    xa, ya, xb, yb = digits()

    class Block(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.lin1 = nn.Linear(d, d)
            self.lin2 = nn.Linear(d, d)

        def forward(self, x):
            out = self.lin2(F.relu(self.lin1(F.relu(x))))
            return out if is_faulty else x + out

    m = nn.Sequential(nn.Flatten(), nn.Linear(64, 40), *[Block(40) for _ in range(14)], nn.ReLU(), nn.Linear(40, 10))
    return Program(m, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.SGD(m.parameters(), 0.02, momentum=0.9), accuracy(xb, yb))



@fault("The starting values of a DCGAN are mixed up: convolutions get mean 1 and BatchNorms mean 0",
       rules=["bad-initialisation", "symmetric-initialisation", "rank-collapse"], layers=["0", "1", "3", "4"], fails=False, steps=200)
def dcgan_init_swapped(is_faulty):
    start()
    x, _, _, kind = shapes()

    def weights_init(mod):
        name = mod.__class__.__name__
        conv_mean, norm_mean = (1.0, 0.0) if is_faulty else (0.0, 1.0)
        if name.find("Conv") != -1:
            nn.init.normal_(mod.weight, conv_mean, 0.02)
        elif name.find("BatchNorm") != -1:
            nn.init.normal_(mod.weight, norm_mean, 0.02)
            nn.init.zeros_(mod.bias)

    m = nn.Sequential(
        nn.Conv2d(1, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.LeakyReLU(0.2),
        nn.Conv2d(16, 24, 4, 2, 1, bias=False), nn.BatchNorm2d(24), nn.LeakyReLU(0.2),
        nn.Flatten(), nn.Linear(384, 2),
    )
    m.apply(weights_init)
    return Program(m, nn.CrossEntropyLoss(), loader(x[200:], kind[200:]), torch.optim.Adam(m.parameters(), 2e-3, betas=(0.5, 0.999)), accuracy(x[:200], kind[:200]))


class LoRALinear(nn.Module):
    def __init__(self, base, rank, zero_both):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.zeros(rank, base.in_features))
        self.B = nn.Parameter(torch.zeros(base.out_features, rank))
        if not zero_both:
            nn.init.normal_(self.A, std=base.in_features**-0.5)

    def forward(self, x):
        return self.base(x) + torch.einsum("bi,ri,or->bo", x, self.A, self.B)


@fault("Both matrices of every low-rank adapter start at zero: neither ever gets a gradient",
       rules=["no-gradient", "symmetric-initialisation", "bad-initialisation"], layers=["l1.A", "l1.B", "l2.A", "l2.B", "l3.A", "l3.B", "l1", "l2", "l3"], fails=True, steps=250)
def lora_both_zero(is_faulty):
    start()
    xa, ya, xb, yb = digits()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.l1, self.l2, self.l3 = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)

        def forward(self, x):
            x = F.gelu(self.l1(x.flatten(1)))
            x = F.gelu(self.l2(x))
            return self.l3(x)

    m = Net()
    before = Program(m, F.cross_entropy, loader(xa, ya), torch.optim.Adam(m.parameters(), 3e-3), accuracy(xb, yb))
    before.train(120)  # upright digits; then adapt to rotated ones
    start()
    for name in ("l1", "l2", "l3"):
        setattr(m, name, LoRALinear(getattr(m, name), 8, is_faulty))
    ra, rb = torch.rot90(xa, 1, (2, 3)), torch.rot90(xb, 1, (2, 3))
    opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], 4e-3)
    return Program(m, F.cross_entropy, loader(ra, ya), opt, accuracy(rb, yb))


@fault("The bias of -4.6 that a rare-object head should start with is given to every convolution: the ReLUs are off",
       rules=["dying-neurons", "bad-initialisation", "no-gradient", "vanishing-gradient"], layers=["c1", "c2", "c3"], fails=True, steps=250)
def prior_bias_everywhere(is_faulty):
    start()
    x, _, box, _ = shapes()
    cell = (box[:, 1] // 4).long() * 4 + (box[:, 0] // 4).long()
    heat = F.one_hot(cell, 16).float().view(-1, 1, 4, 4)

    class CenterNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.c1 = nn.Conv2d(1, 16, 3, 2, 1)
            self.c2 = nn.Conv2d(16, 24, 3, 2, 1)
            self.c3 = nn.Conv2d(24, 24, 3, 1, 1)
            self.heat = nn.Conv2d(24, 1, 1)
            for mod in self.modules():
                if isinstance(mod, nn.Conv2d) and (is_faulty or mod is self.heat):
                    nn.init.constant_(mod.bias, -4.6)

        def forward(self, x):
            x = self.c1(x).relu()
            x = self.c2(x).relu()
            x = self.c3(x).relu()
            return self.heat(x)

    def focal(logits, t, gamma=2.0):
        ce = F.binary_cross_entropy_with_logits(logits, t, reduction="none")
        p = torch.where(t > 0.5, logits.sigmoid(), 1 - logits.sigmoid())
        return ((1 - p) ** gamma * ce).sum() / t.sum()

    m = CenterNet()
    score = lambda m: (m(x[:200]).flatten(1).argmax(1) == cell[:200]).float().mean().item()
    return Program(m, focal, loader(x[200:], heat[200:]), torch.optim.Adam(m.parameters(), 3e-3), score)


@fault("Hidden biases start at 10 'so that no ReLU dies': every ReLU is on for every example and the network is linear",
       rules=["full-neurons", "bad-initialisation", "no-nonlinearity"], layers=["trunk"], fails=True, steps=350)
def biases_of_ten(is_faulty):
    start()
    xa, ya, xb, yb = regression(seed=15)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.ModuleList([nn.Linear(8, 64), nn.Linear(64, 48)])
            self.head = nn.Linear(48, 1)
            for lin in self.trunk:
                nn.init.kaiming_uniform_(lin.weight, nonlinearity="relu")
                nn.init.constant_(lin.bias, 10.0 if is_faulty else 0.01)

        def forward(self, x):
            for lin in self.trunk:
                x = F.relu(lin(x))
            return self.head(x)

    m = Net()
    return Program(m, nn.MSELoss(), loader(xa, ya), torch.optim.Adam(m.parameters(), 3e-3), r2(xb, yb))


@fault("self.mean = self.log_var = nn.Linear(...): mean and log variance are one layer",
       rules=["shared-weight"], layers=["mean", "log_var"], fails=False, steps=300)
def chained_heads(is_faulty):
    start()
    xa, ya, xb, yb = noisy(seed=18)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden = nn.Sequential(nn.Linear(5, 64), nn.SiLU(), nn.Linear(64, 32), nn.SiLU())
            self.mean = self.log_var = nn.Linear(32, 1)
            if not is_faulty:
                self.log_var = nn.Linear(32, 1)

        def forward(self, x):
            h = self.hidden(x)
            return self.mean(h), self.log_var(h)

    def loss(out, y):
        mu, log_var = out
        return F.gaussian_nll_loss(mu, y, log_var.exp())

    m = Net()
    return Program(m, loss, loader(xa, ya), torch.optim.Adam(m.parameters(), 3e-3), gauss_skill(xb, yb))


@fault("Patches stacked as (patch, example) are brought to (example, patch) with view: each example gets patches of others",
       rules=["mixed-examples"], fails=True, steps=200)
def patches_viewed(is_faulty):
    start()
    xa, ya, xb, yb = digits()

    class Mixer(nn.Module):
        def __init__(self, d=24):
            super().__init__()
            self.embed = nn.Linear(4, d)
            self.tokens = nn.Linear(16, 16)
            self.channels = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
            self.head = nn.Linear(16 * d, 10)

        def forward(self, x):
            n = x.shape[0]
            p = torch.stack([x[:, 0, i:i + 2, j:j + 2].flatten(1) for i in range(0, 8, 2) for j in range(0, 8, 2)])
            p = p.view(n, 16, 4) if is_faulty else p.transpose(0, 1)
            h = self.embed(p)
            h = h + F.gelu(self.tokens(h.transpose(1, 2))).transpose(1, 2)
            h = h + self.channels(h)
            return self.head(h.flatten(1))

    m = Mixer()
    return Program(m, nn.CrossEntropyLoss(), loader(xa, ya), torch.optim.AdamW(m.parameters(), 3e-3), accuracy(xb, yb))


@fault("GroupNorm with as many groups as channels on a pooled vector: every value is normalised by itself and becomes 0",
       rules=["rank-collapse", "no-gradient"], layers=["norm"], fails=True, steps=250)
def group_of_one(is_faulty):
    start()
    xa, ya, xb, yb = digits()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(1, 16, 3)
            self.conv2 = nn.Conv2d(16, 32, 3)
            self.norm = nn.GroupNorm(64 if is_faulty else 4, 64)
            self.fc1 = nn.Linear(32 * 4, 64)
            self.fc2 = nn.Linear(64, 10)

        def forward(self, x):
            x = F.relu(self.conv1(x))
            x = F.avg_pool2d(F.relu(self.conv2(x)), 2)
            x = F.relu(self.norm(self.fc1(x.flatten(1))))
            return self.fc2(x)

    m = Net()
    return Program(m, F.cross_entropy, loader(xa, ya), torch.optim.Adam(m.parameters(), 2e-3), accuracy(xb, yb))


