"""Faults in tables and pictures, first half."""
import copy

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from tis_common import accuracy, credit, digits, gen, iou, loader, parts, r2, r_squared, satellite, sensors, split, table


@fault("income in currency next to ratios", rules=["unscaled-input", "ill-conditioned-input"], fails=True, steps=300)
def tis_credit_columns(is_faulty):
    raw, y = credit(2400)
    if not is_faulty:
        raw = torch.cat([raw[:, :1].log(), raw[:, 1:]], 1)
        raw = (raw - raw.mean(0)) / raw.std(0)
    xa, ya, xb, yb = split(raw, y)
    model = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya, 64),
                   torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), accuracy(xb, yb))


@fault("disease progression in its own units with a small rate",
       rules=["unscaled-target", "learning-rate-too-low"], fails=True, steps=400)
def tis_progression_units(is_faulty):
    xa, ya, xb, yb = table("diabetes")
    g = gen(8)
    w = torch.randn(10, 4, generator=g) * 0.4
    f = lambda x: torch.tanh(x @ w).sum(1)  # noqa: E731
    ya, yb = (1500 + 400 * f(x) + 40 * torch.randn(len(x), generator=g) for x in (xa, xb))
    if not is_faulty:
        m, s = ya.mean(), ya.std()
        ya, yb = (ya - m) / s, (yb - m) / s
    model = nn.Sequential(nn.Linear(10, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1), nn.Flatten(0))
    return Program(model, nn.MSELoss(), loader(xa, ya, 24), torch.optim.AdamW(model.parameters(), lr=1e-3),
                   r_squared(xb, yb))


class tis_Vibration(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.out = nn.Linear(64, 1)

    def forward(self, x):
        return self.out(self.body(x))


@fault("(N, 1) against (N,)", rules=["output-loss-mismatch"], fails=True, steps=300)
def tis_response_column(is_faulty):
    x, y = sensors(2000)
    xa, ya, xb, yb = split(x, y)
    model = tis_Vibration()
    data = loader(xa, ya if is_faulty else ya[:, None], 50)
    return Program(model, nn.SmoothL1Loss(), data, torch.optim.Adam(model.parameters(), lr=3e-3), r_squared(xb, yb))


class tis_Segmenter(nn.Module):
    def __init__(self, last):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        self.up = nn.Conv2d(8, 1, 3, padding=1)
        self.last = last

    def forward(self, x):
        return self.last(self.up(self.down(x)))


@fault("a sigmoid in front of the loss that has its own", rules=["output-loss-mismatch"], layers=["last"], fails=True,
       steps=200)
def tis_disc_masks(is_faulty):
    xa, ma = parts(400)
    xb, mb = parts(150, seed=12)
    model = tis_Segmenter(nn.Sigmoid() if is_faulty else nn.Identity())
    return Program(model, nn.BCEWithLogitsLoss(), loader(xa, ma[:, None], 16),
                   torch.optim.Adam(model.parameters(), lr=3e-3), iou(xb, mb))


class tis_Patches(nn.Module):
    def __init__(self, classes=5, bands=4, norm=lambda c: nn.BatchNorm2d(c)):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(bands, 12, 3, padding=1), norm(12), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(12, 16, 3, padding=1), norm(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Linear(16, classes)

    def forward(self, x):
        return self.fc(self.features(x))


def tis_pretrained():
    with torch.random.fork_rng():
        torch.manual_seed(42)
        x, y = satellite(600, seed=20, classes=7)
        net = tis_Patches(7)
        opt = torch.optim.Adam(net.parameters(), lr=5e-3)
        for k in range(60):
            i = torch.randint(600, (48,))
            opt.zero_grad()
            F.cross_entropy(net(x[i]), y[i]).backward()
            opt.step()
    return net


@fault("the optimizer is made before the head is exchanged", rules=["no-gradient"], layers=["fc"], fails=True, steps=200)
def tis_new_head(is_faulty):
    x, y = satellite(1200, seed=21)
    xa, ya, xb, yb = split(x, y)
    model = tis_pretrained()
    for p in model.features.parameters():
        p.requires_grad = False
    model.fc.requires_grad_(True)
    if is_faulty:
        opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.02)
        model.fc = nn.Linear(16, 5)
    else:
        model.fc = nn.Linear(16, 5)
        opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.02)
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya, 32), opt, accuracy(xb, yb))


class tis_GraphConv(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.own, self.near = nn.Linear(a, b), nn.Linear(a, b, bias=False)

    def forward(self, x, adj):
        return self.own(x) + self.near(adj @ x)


class tis_Molecules(nn.Module):
    """Graphs of 8 nodes, given as nodes and adjacency side by side."""
    def __init__(self, cut):
        super().__init__()
        self.embed = nn.Embedding(24, 6)
        self.conv = tis_GraphConv(6, 24)
        self.read = nn.Linear(24, 2)
        self.cut = cut

    def forward(self, kinds, adj):
        h = self.embed(kinds)
        if self.cut:
            h = torch.tensor(h.tolist())
        h = F.relu(self.conv(h, adj))
        return self.read(h.sum(1) / 3)


def tis_graphs(n, seed):
    g = gen(seed)
    kinds = torch.randint(24, (n, 8), generator=g)
    adj = (torch.rand(n, 8, 8, generator=g) < 0.25).float().triu(1)
    adj = adj + adj.transpose(1, 2)
    sign = torch.where(torch.rand(24, generator=gen(99)) < 0.5, -1.0, 1.0)
    s = sign[kinds]
    y = ((s[:, :, None] * s[:, None, :] * adj).sum((1, 2)) + 0.1 > 0).long()
    return kinds, adj, y


@fault("embeddings go through Python lists", rules=["no-gradient"], layers=["embed"], fails=True, steps=500)
def tis_molecule_graphs(is_faulty):
    ka, aa, ya = tis_graphs(1600, 31)
    kb, ab, yb = tis_graphs(600, 32)
    model = tis_Molecules(is_faulty)
    data = DataLoader(TensorDataset(ka, aa, ya), 32, shuffle=True,
                      collate_fn=lambda rows: ({"kinds": torch.stack([r[0] for r in rows]),
                                                "adj": torch.stack([r[1] for r in rows])},
                                               torch.stack([r[2] for r in rows])))
    return Program(model, nn.CrossEntropyLoss(), data, torch.optim.Adam(model.parameters(), lr=0.01),
                   lambda m: (m(kb, ab).argmax(1) == yb).float().mean().item())


@fault("running statistics that take a thousandth of a batch's",
       rules=["batchnorm-mode-gap"], layers=["features.1", "features.5"], fails=True, steps=250)
def tis_momentum_elsewhere(is_faulty):
    x, y = satellite(1500, seed=22)
    x = x * 0.25
    xa, ya, xb, yb = split(x, y)
    model = tis_Patches(norm=lambda c: nn.BatchNorm2d(c, momentum=0.001 if is_faulty else 0.1))
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya, 32), torch.optim.Adam(model.parameters(), lr=5e-3),
                   accuracy(xb, yb))


class tis_Wines(nn.Module):
    def __init__(self, bare):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(64, 24), nn.Linear(24, 24), nn.Linear(24, 10)
        self.bare = bare

    def drop(self, x):
        return F.dropout(x, 0.7) if self.bare else F.dropout(x, 0.3, self.training)

    def forward(self, x):
        x = self.drop(F.relu(self.a(x)))
        return self.c(self.drop(F.relu(self.b(x))))


@fault("F.dropout without the mode", rules=["dropout-in-eval", "dropout-too-strong"], fails=False, steps=400)
def tis_always_dropping(is_faulty):
    xa, ya, xb, yb = digits()
    model = tis_Wines(is_faulty)
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya, 64), torch.optim.Adam(model.parameters(), lr=3e-3),
                   accuracy(xb, yb))


@fault("the share kept is taken for the share dropped", rules=["dropout-too-strong"], layers=["2", "5"], fails=True,
       steps=300)
def tis_keep_share(is_faulty):
    xa, ya, xb, yb = digits()
    p = 0.97 if is_faulty else 0.03
    model = nn.Sequential(nn.Linear(64, 40), nn.ReLU(), nn.Dropout(p), nn.Linear(40, 40), nn.ReLU(), nn.Dropout(p),
                          nn.Linear(40, 10))
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya, 32), torch.optim.RMSprop(model.parameters(), lr=1e-3),
                   accuracy(xb, yb))


@fault("weight decay of 0.3 in plain SGD", rules=["weight-decay-dominates"], fails=False, steps=300)
def tis_decay_of_sgd(is_faulty):
    xa, ya, xb, yb = table("breast_cancer")
    g = gen(50)
    w1, w2 = torch.randn(30, 12, generator=g) / 3, torch.randn(12, generator=g)
    f = lambda x: (torch.tanh(x @ w1) @ w2)  # noqa: E731
    ya, yb = f(xa), f(xb)
    m, s = ya.mean(), ya.std()
    ya, yb = (ya - m) / s, (yb - m) / s
    model = nn.Sequential(nn.Linear(30, 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 1))
    return Program(model, nn.MSELoss(), loader(xa, ya[:, None], 32),
                   torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.3 if is_faulty else 1e-4),
                   r_squared(xb, yb[:, None]))


@fault("Adam at 0.3", rules=["learning-rate-too-high", "diverging", "dying-neurons"], fails=True, steps=250)
def tis_rate_of_conv(is_faulty):
    x, y = satellite(1200, seed=23)
    xa, ya, xb, yb = split(x - 0.5, y)
    model = nn.Sequential(nn.Conv2d(4, 12, 3), nn.ReLU(), nn.Conv2d(12, 16, 3, stride=2), nn.ReLU(), nn.Flatten(),
                          nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 5))
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya, 32),
                   torch.optim.Adam(model.parameters(), lr=0.3 if is_faulty else 0.003), accuracy(xb, yb))


@fault("a decay meant for epochs is taken at every step", rules=["learning-rate-too-low"], fails=True, steps=400)
def tis_decay_per_step(is_faulty):
    x, y = sensors(2400, seed=44)
    xa, ya, xb, yb = split(x, y)
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0))
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    return Program(model, nn.MSELoss(), loader(xa, ya, 48), opt, r_squared(xb, yb),
                   scheduler=torch.optim.lr_scheduler.ExponentialLR(opt, 0.8 if is_faulty else 0.995))


class tis_FolderOrder(Dataset):
    def __init__(self, x, y):
        order = y.argsort()
        self.x, self.y = x[order], y[order]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


@fault("files are read class by class", rules=["sorted-batches"], fails=True, steps=420)
def tis_folder_by_folder(is_faulty):
    xa, ya, xb, yb = digits()
    model = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    return Program(model, nn.CrossEntropyLoss(), DataLoader(tis_FolderOrder(xa - 0.3, ya), 32, shuffle=not is_faulty),
                   torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), accuracy(xb - 0.3, yb))


@fault("weights of a tanh layer drawn with a deviation of 4",
       rules=["saturated-activation", "bad-initialisation", "vanishing-gradient"], layers=["0", "1", "2", "3"], fails=False, steps=300)
def tis_wide_tanh(is_faulty):
    x, y = sensors(2000, seed=45)
    xa, ya, xb, yb = split(x, y)
    model = nn.Sequential(nn.Linear(10, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))
    for m in (model[0], model[2]):
        if is_faulty:
            nn.init.normal_(m.weight, std=4.0)
        else:
            nn.init.xavier_normal_(m.weight)
        nn.init.zeros_(m.bias)
    return Program(model, nn.MSELoss(), loader(xa, ya[:, None], 40), torch.optim.Adam(model.parameters(), lr=3e-3),
                   r_squared(xb, yb[:, None]))


@fault("all weights are 0.05", rules=["symmetric-initialisation", "bad-initialisation", "rank-collapse"], fails=True, steps=250)
def tis_same_weights(is_faulty):
    xa, ya, xb, yb = digits()
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 10))
    for m in model:
        if isinstance(m, nn.Linear):
            nn.init.constant_(m.weight, 0.05) if is_faulty else nn.init.kaiming_uniform_(m.weight)
            nn.init.zeros_(m.bias)
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya, 32), torch.optim.Adam(model.parameters(), lr=2e-3),
                   accuracy(xb, yb))


@fault("ten sigmoid layers", rules=["vanishing-gradient", "rank-collapse", "bad-initialisation", "activation-drift"], fails=True, steps=300)
def tis_sigmoid_tower(is_faulty):
    xa, ya, xb, yb = digits(4.0)
    layers, wide = [], 64
    for _ in range(9):
        layers += [nn.Linear(wide, 32), nn.Sigmoid() if is_faulty else nn.SELU()]
        wide = 32
    model = nn.Sequential(*layers, nn.Linear(32, 10))
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya, 32),
                   torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), accuracy(xb, yb))


@fault("biases of -3 in front of ReLUs", rules=["dying-neurons", "bad-initialisation"], layers=["conv2", "relu2"], fails=True,
       steps=200)
def tis_dark_convolution(is_faulty):
    xa, ya, xb, yb = digits()
    from collections import OrderedDict
    model = nn.Sequential(OrderedDict(
        shape=nn.Unflatten(1, (1, 8, 8)), conv1=nn.Conv2d(1, 8, 3, padding=1), relu1=nn.ReLU(),
        conv2=nn.Conv2d(8, 12, 3, stride=2), relu2=nn.ReLU(), flat=nn.Flatten(), out=nn.Linear(108, 10)))
    nn.init.constant_(model.conv2.bias, -3.0 if is_faulty else 0.0)
    return Program(model, nn.CrossEntropyLoss(), loader(xa, ya, 32), torch.optim.Adamax(model.parameters(), lr=4e-3),
                   accuracy(xb, yb))
