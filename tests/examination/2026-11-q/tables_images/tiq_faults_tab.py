"""Faults in programs on tables."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from program import Program, fault
from tiq_common import accuracy, blobs, digits, friedman, loader, r2, split, table


@fault("predictions (N, 1) against targets (N,)", rules=["output-loss-mismatch"], fails=True, steps=400)
def tiq_broadcast_smooth_l1(is_faulty):
    x, y, xt, yt = friedman()
    mean, std = y.mean(), y.std()
    y, yt = (y - mean) / std, (yt - mean) / std
    model = nn.Sequential(nn.Linear(8, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1))
    train = loader(x, y if is_faulty else y[:, None], 32)
    return Program(model, nn.SmoothL1Loss(), train, torch.optim.AdamW(model.parameters(), lr=4e-3), r2(xt, yt))


@fault("wine as it is stored, proline in the thousands", rules=["unscaled-input"], fails=True, steps=200)
def tiq_wine_raw(is_faulty):
    x, y, xt, yt = table("wine", standard=not is_faulty)
    model = nn.Sequential(nn.Linear(13, 24), nn.Tanh(), nn.Linear(24, 3))
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 16), torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
                   accuracy(xt, yt))


@fault("prices in dollars as targets", rules=["unscaled-target", "learning-rate-too-low"], fails=True, steps=400)
def tiq_prices(is_faulty):
    x, y, xt, yt = friedman(noise=0.5)
    unit = 1.0 if is_faulty else 1e5
    price, pricet = y * 2.5e4 / unit, yt * 2.5e4 / unit

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
            self.out = nn.Linear(32, 1)

        def forward(self, x):
            return self.out(self.body(x)).squeeze(1)

    model = Net()
    return Program(model, nn.MSELoss(), loader(x, price, 32), torch.optim.Adam(model.parameters(), lr=2e-3), r2(xt, pricet))


@fault("rows shuffled, labels not", rules=["labels-unrelated"], fails=True, steps=300)
def tiq_two_loaders(is_faulty):
    x, y, xt, yt = blobs()

    class Pairs:
        def __init__(self):
            self.xs = DataLoader(x, batch_size=32, shuffle=True)
            self.ys = DataLoader(y, batch_size=32, shuffle=True)
            self.both = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)

        def __len__(self):
            return len(self.xs)

        def __iter__(self):
            return iter(zip(self.xs, self.ys)) if is_faulty else iter(self.both)

    model = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 5))
    return Program(model, nn.CrossEntropyLoss(), Pairs(), torch.optim.Adam(model.parameters(), lr=3e-3), accuracy(xt, yt))


class _Rows(Dataset):
    def __init__(self, x, y, copy):
        self.x, self.y, self.copy = x, y, copy
        self.buffer = torch.empty(x.shape[1])

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        self.buffer.copy_(self.x[i]).mul_(2).sub_(1)
        return (self.buffer.clone() if self.copy else self.buffer), self.y[i]


@fault("the dataset returns one buffer, so all rows of a batch are its last one",
       rules=["constant-feature", "labels-unrelated"], fails=True, steps=250)
def tiq_one_buffer(is_faulty):
    x, y, xt, yt = digits(flat=True)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    train = DataLoader(_Rows(x, y, not is_faulty), batch_size=32, shuffle=True)
    return Program(model, nn.CrossEntropyLoss(), train, torch.optim.Adam(model.parameters(), lr=2e-3),
                   accuracy(2 * xt - 1, yt))


@fault("the scheduler counts epochs but is stepped per batch", rules=["learning-rate-too-low"], fails=True, steps=300)
def tiq_step_lr(is_faulty):
    x, y, xt, yt = digits(flat=True)
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    train = loader(x, y, 32)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2 if is_faulty else 2 * len(train), gamma=0.1)
    return Program(model, nn.CrossEntropyLoss(), train, optimizer, accuracy(xt, yt), scheduler)


@fault("threshold in raw units on standardised targets, so all labels are 0", rules=["constant-target"], fails=True, steps=200)
def tiq_threshold(is_faulty):
    x, y, xt, yt = table("diabetes")
    y, yt = y.float(), yt.float()
    if is_faulty:
        label = ((y - y.mean()) / y.std() > 140).float()
    else:
        label = (y > 140).float()
    labelt = (yt > 140).float()
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten(0))
    return Program(model, nn.BCEWithLogitsLoss(), loader(x, label, 32), torch.optim.Adam(model.parameters(), lr=3e-3),
                   accuracy(xt, labelt, lambda o: (o > 0).float()))


@fault("BCELoss on what no sigmoid has squashed", rules=["model-fails", "output-loss-mismatch"], fails=True, steps=200)
def tiq_bce_plain(is_faulty):
    x, y, xt, yt = table("breast_cancer")
    model = nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 1))
    if not is_faulty:
        model.append(nn.Sigmoid())
    return Program(model, nn.BCELoss(), loader(x, y.float()[:, None], 32), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: max(0.0, 2 * accuracy(xt, yt[:, None].long(), lambda o: (o > 0.5).long())(m) - 1))


@fault("NLLLoss on logits", rules=["output-loss-mismatch"], fails=True, steps=300)
def tiq_nll_logits(is_faulty):
    x, y, xt, yt = blobs(classes=6, features=16, sep=1.2)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2, self.fc3 = nn.Linear(16, 64), nn.Linear(64, 64), nn.Linear(64, 6)

        def forward(self, x):
            x = self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))
            return x if is_faulty else F.log_softmax(x, dim=1)

    model = Net()
    return Program(model, F.nll_loss, loader(x, y, 50), torch.optim.Adam(model.parameters(), lr=3e-3), accuracy(xt, yt))


@fault("a ReLU after the regression's last layer, with targets of both signs", rules=["output-loss-mismatch", "dying-neurons"],
       layers=["4", "5"], fails=True, steps=400)
def tiq_relu_last(is_faulty):
    x, y, xt, yt = friedman()
    mean, std = y.mean(), y.std()
    parts = [nn.Linear(8, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1)]
    model = nn.Sequential(*parts, nn.ReLU() if is_faulty else nn.Identity())
    return Program(model, nn.MSELoss(), loader(x, ((y - mean) / std)[:, None], 32),
                   torch.optim.Adam(model.parameters(), lr=3e-3), r2(xt, (yt - mean) / std))


@fault("weight decay of 0.3 in Adam, meant for AdamW's 0.01", rules=["weight-decay-dominates"], fails=True, steps=300)
def tiq_decay(is_faulty):
    x, y, xt, yt = friedman()
    mean, std = y.mean(), y.std()
    model = nn.Sequential(nn.Linear(8, 64), nn.LeakyReLU(), nn.Linear(64, 64), nn.LeakyReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=0.3 if is_faulty else 1e-4)
    return Program(model, nn.MSELoss(), loader(x, ((y - mean) / std)[:, None], 40), optimizer, r2(xt, (yt - mean) / std))


@fault("momentum 0.999", rules=["optimizer-setting", "learning-rate-too-high"], fails=True, steps=300)
def tiq_momentum(is_faulty):
    x, y, xt, yt = friedman()
    mean, std = y.mean(), y.std()
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.999 if is_faulty else 0.9)
    return Program(model, nn.MSELoss(), loader(x, ((y - mean) / std)[:, None], 32), optimizer, r2(xt, (yt - mean) / std))


@fault("no activations between layers", rules=["no-nonlinearity"], fails=True, steps=500)
def tiq_rings(is_faulty):
    g = torch.Generator().manual_seed(4)
    x = 2.4 * torch.rand(1200, 2, generator=g) - 1.2
    y = ((x.norm(dim=1) * 2).long() % 2)
    x, y, xt, yt = split(x, y, 300)

    class Block(nn.Module):
        def __init__(self, a, b):
            super().__init__()
            self.linear, self.act = nn.Linear(a, b), nn.ReLU()

        def forward(self, x):
            return self.linear(x) if is_faulty else self.act(self.linear(x))

    model = nn.Sequential(Block(2, 64), Block(64, 64), nn.Linear(64, 2))
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 64), torch.optim.Adam(model.parameters(), lr=1e-2), accuracy(xt, yt))


class _Lora(nn.Module):
    def __init__(self, base, rank, zero):
        super().__init__()
        self.base = base
        self.base.requires_grad_(False)
        self.down = nn.Parameter(torch.zeros(rank, base.in_features) if zero else torch.randn(rank, base.in_features) / rank)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + 2 * x @ self.down.T @ self.up.T


@fault("both factors of low-rank adapters start at zero", rules=["no-gradient", "symmetric-initialisation", "bad-initialisation"],
       layers=["0", "2", "0.down", "0.up", "2.down", "2.up"], fails=True, steps=300)
def tiq_lora_zeros(is_faulty):
    x, y, xt, yt = digits(flat=True)
    x, xt = 2 * x - 1, 2 * xt - 1
    base = [nn.Linear(64, 96), nn.Linear(96, 10)]
    model = nn.Sequential(_Lora(base[0], 6, is_faulty), nn.ReLU(), _Lora(base[1], 6, is_faulty))
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 32),
                   torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3), accuracy(xt, yt))


class _Tokens(nn.Module):
    """A token per column."""

    def __init__(self, columns, width, wrong):
        super().__init__()
        self.norm = nn.LayerNorm(1) if wrong else nn.LayerNorm(columns)
        self.wrong = wrong
        self.weight = nn.Parameter(torch.randn(columns, width) * 0.5)
        self.bias = nn.Parameter(torch.zeros(columns, width))
        self.mix = nn.TransformerEncoderLayer(width, 2, 32, 0.0, batch_first=True)
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        x = self.norm(x.unsqueeze(-1)) if self.wrong else self.norm(x).unsqueeze(-1)
        return self.head(self.mix(x * self.weight + self.bias).mean(1))


@fault("LayerNorm over a single number, which leaves nothing of it", rules=["rank-collapse", "no-gradient", "loss-not-decreasing"],
       layers=["norm"], fails=True, steps=250)
def tiq_layernorm_one(is_faulty):
    x, y, xt, yt = table("wine")
    model = _Tokens(13, 16, is_faulty)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 16), torch.optim.AdamW(model.parameters(), lr=2e-3), accuracy(xt, yt))


@fault("columns that share a huge common part, plain SGD", rules=["ill-conditioned-input", "unscaled-input"], fails=False, steps=500)
def tiq_sensors(is_faulty):
    g = torch.Generator().manual_seed(8)
    common = torch.randn(1200, 1, generator=g)
    own = torch.randn(1200, 10, generator=g)
    raw = common + 0.08 * own
    y = own @ torch.linspace(-1, 1, 10) + 0.5 * own[:, 0] * own[:, 9]
    y = (y - y.mean()) / y.std()
    raw = (raw - raw.mean(0)) / raw.std(0)
    if not is_faulty:
        centred = raw - raw.mean(0)
        _, s, v = torch.linalg.svd(centred, full_matrices=False)
        raw = centred @ v.T / s * 1200**0.5
    x, y, xt, yt = split(raw, y, 300)
    model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1), nn.Flatten(0))
    return Program(model, nn.MSELoss(), loader(x, y, 32), torch.optim.SGD(model.parameters(), lr=0.05), r2(xt, yt))


@fault("weights in bfloat16 that small steps of SGD do not move", rules=["lost-updates", "learning-rate-too-low", "rounding-error"],
       fails=True, steps=600)
def tiq_bfloat16_weights(is_faulty):
    x, y, xt, yt = digits(flat=True)
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10))
    kind = torch.bfloat16 if is_faulty else torch.float32
    model = model.to(kind)
    return Program(model, lambda o, t: F.cross_entropy(o.float(), t), loader(x.to(kind), y, 32),
                   torch.optim.Adam(model.parameters(), lr=5e-5), lambda m: accuracy(xt.to(next(m.parameters()).dtype), yt)(m))


@fault("an optimizer over the head's parameters and one tower's, the other tower is forgotten",
       rules=["no-gradient"], layers=["right"], fails=True, steps=400)
def tiq_two_towers(is_faulty):
    g = torch.Generator().manual_seed(5)
    a, b = torch.randn(2500, 12, generator=g), torch.randn(2500, 12, generator=g)
    w1, w2 = 0.3 * torch.randn(12, 2, generator=g), 0.3 * torch.randn(12, 2, generator=g)
    y = (torch.tanh(a @ w1) * torch.tanh(b @ w2)).sum(1)
    y = (y - y.mean()) / y.std()
    x, y, xt, yt = split(torch.cat([a, b], 1), y, 300)

    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.left = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 4))
            self.right = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 4))
            self.temperature = nn.Parameter(torch.ones(()))

        def forward(self, x):
            return self.temperature * (self.left(x[:, :12]) * self.right(x[:, 12:])).sum(1)

    model = Towers()
    groups = [{"params": model.left.parameters(), "lr": 4e-3}, {"params": [model.temperature], "lr": 1e-3}]
    if not is_faulty:
        groups.append({"params": model.right.parameters(), "lr": 4e-3})
    return Program(model, nn.MSELoss(), loader(x, y, 64), torch.optim.Adam(groups), r2(xt, yt))


@fault("SGD on a summed loss with a rate meant for a mean", rules=["summed-loss", "learning-rate-too-high"], fails=True, steps=300)
def tiq_sum_reduction(is_faulty):
    x, y, xt, yt = friedman()
    mean, std = y.mean(), y.std()
    model = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 1))
    return Program(model, nn.MSELoss(reduction="sum" if is_faulty else "mean"), loader(x, ((y - mean) / std)[:, None], 64),
                   torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), r2(xt, (yt - mean) / std))


@fault("ten sigmoid layers", rules=["vanishing-gradient", "rank-collapse"], fails=True, steps=300)
def tiq_deep_sigmoid(is_faulty):
    x, y, xt, yt = digits(flat=True)
    act = nn.Sigmoid if is_faulty else nn.ELU
    layers = [nn.Linear(64, 48), act()]
    for _ in range(6):
        layers += [nn.Linear(48, 48), act()]
    model = nn.Sequential(*layers, nn.Linear(48, 10))
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, 32), torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
                   accuracy(xt, yt))


@fault("dropout of 0.9, read as the share to keep", rules=["dropout-too-strong"], layers=["drop1", "drop2"], fails=True, steps=300)
def tiq_keep_prob(is_faulty):
    x, y, xt, yt = friedman()
    mean, std = y.mean(), y.std()

    class Net(nn.Module):
        def __init__(self, keep):
            super().__init__()
            self.fc1, self.drop1 = nn.Linear(8, 64), nn.Dropout(keep if is_faulty else 1 - keep)
            self.fc2, self.drop2 = nn.Linear(64, 64), nn.Dropout(keep if is_faulty else 1 - keep)
            self.fc3 = nn.Linear(64, 1)

        def forward(self, x):
            x = self.drop1(F.relu(self.fc1(x)))
            return self.fc3(self.drop2(F.relu(self.fc2(x)))).squeeze(1)

    model = Net(0.95)
    return Program(model, nn.MSELoss(), loader(x, (y - mean) / std, 32), torch.optim.Adam(model.parameters(), lr=4e-3),
                   r2(xt, (yt - mean) / std))
