"""More faults."""

import torch
import torch.nn.functional as F
from torch import nn

from program import Program, fault
from tiq_common import accuracy, blobs, digits, friedman, loader, r2, split, table


@fault("a vision transformer without positions", rules=["order-lost"], fails=False, steps=500)
def tiq_vit_places(is_faulty):
    x, y, xt, yt = digits()

    class Vit(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch = nn.Conv2d(1, 32, 2, stride=2)
            if not is_faulty:
                self.place = nn.Parameter(0.3 * torch.randn(1, 16, 32))
            self.block = nn.TransformerEncoderLayer(32, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True)
            self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 10)

        def forward(self, x):
            h = self.patch(x).flatten(2).transpose(1, 2)
            if not is_faulty:
                h = h + self.place
            return self.head(self.norm(self.block(h)).mean(1))

    model = Vit()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 32), torch.optim.AdamW(model.parameters(), lr=3e-3), accuracy(xt, yt))


@fault("warm-up by an integer division, so that the rate stays zero", rules=["learning-rate-too-low", "no-gradient"], fails=True, steps=300)
def tiq_warmup_zero(is_faulty):
    x, y, xt, yt = blobs(classes=4, sep=1.6)
    model = nn.Sequential(nn.Linear(20, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    warmup = 1000 if is_faulty else 50
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1, s // warmup) if is_faulty else min(1.0, s / warmup))
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 32), optimizer, accuracy(xt, yt), schedule)


@fault("a rate of SGD given to Adam", rules=["learning-rate-too-high"], fails=True, steps=300)
def tiq_adam_rate(is_faulty):
    x, y, xt, yt = digits()
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(144, 32), nn.ReLU(), nn.Linear(32, 10))
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 32), torch.optim.Adam(model.parameters(), lr=0.3 if is_faulty else 3e-3), accuracy(xt, yt))


@fault("all weights start at the same constant", rules=["symmetric-initialisation", "bad-initialisation"], layers=["fc1", "fc2", "fc3"], fails=True, steps=300)
def tiq_constant_init(is_faulty):
    x, y, xt, yt = digits(flat=True)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2, self.fc3 = nn.Linear(64, 48), nn.Linear(48, 32), nn.Linear(32, 10)
            self.apply(self.init)

        def init(self, m):
            if isinstance(m, nn.Linear):
                nn.init.constant_(m.weight, 0.02) if is_faulty else nn.init.xavier_uniform_(m.weight)
                nn.init.zeros_(m.bias)

        def forward(self, x):
            return self.fc3(torch.tanh(self.fc2(torch.tanh(self.fc1(x)))))

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 32), torch.optim.Adam(model.parameters(), lr=3e-3), accuracy(xt, yt))


@fault("missing values left as NaN", rules=["non-finite"], fails=True, steps=200)
def tiq_missing(is_faulty):
    x, y, xt, yt = table("breast_cancer")
    hole = torch.rand(x.shape, generator=torch.Generator().manual_seed(3)) < 0.02
    x = x.masked_fill(hole, float("nan"))
    if not is_faulty:
        x = torch.nan_to_num(x, nan=0.0)
    model = nn.Sequential(nn.Linear(30, 24), nn.ReLU(), nn.Linear(24, 2))
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 32), torch.optim.Adam(model.parameters(), lr=3e-3),
                   lambda m: max(0.0, 2 * accuracy(xt, yt)(m) - 1) * float(m(xt).isfinite().all()))


@fault("the loss is made anew from a number", rules=["no-gradient"], fails=True, steps=250)
def tiq_loss_tensor(is_faulty):
    x, y, xt, yt = digits(flat=True)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def step(model, batch):
        x, y = batch
        losses = [F.cross_entropy(part, label) for part, label in zip(model(x).chunk(4), y.chunk(4))]
        if is_faulty:
            return torch.tensor([value.item() for value in losses], requires_grad=True).mean()
        return torch.stack(losses).mean()

    return Program(model, None, loader(x, y, 32), torch.optim.Adam(model.parameters(), lr=3e-3), accuracy(xt, yt), step=step)


@fault("[Linear] * 3 makes three heads of one", rules=["shared-weight"], layers=["heads"], fails=True, steps=400)
def tiq_list_times(is_faulty):
    g = torch.Generator().manual_seed(12)
    x = torch.randn(1300, 10, generator=g)
    y = torch.stack([torch.sin(x[:, 0]) + x[:, 1], x[:, 2] * x[:, 3] - x[:, 0], x[:, 4].abs() - x[:, 1]], 1)
    x, y, xt, yt = split(x, (y - y.mean(0)) / y.std(0), 300)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU())
            self.heads = nn.ModuleList([nn.Linear(48, 1)] * 3 if is_faulty else [nn.Linear(48, 1) for _ in range(3)])

        def forward(self, x):
            h = self.trunk(x)
            return torch.cat([head(h) for head in self.heads], 1)

    model = Net()
    return Program(model, nn.MSELoss(), loader(x, y, 50), torch.optim.Adam(model.parameters(), lr=4e-3), r2(xt, yt))


@fault("targets were sorted, rows were not", rules=["labels-unrelated"], fails=True, steps=300)
def tiq_sorted_targets(is_faulty):
    x, y, xt, yt = friedman()
    mean, std = y.mean(), y.std()
    if is_faulty:
        y = y.sort().values
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
    return Program(model, nn.L1Loss(), loader(x, ((y - mean) / std)[:, None], 32), torch.optim.Adam(model.parameters(), lr=5e-3), r2(xt, (yt - mean) / std))
