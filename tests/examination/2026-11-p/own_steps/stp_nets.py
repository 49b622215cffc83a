"""Fine-tuning, adapters, distillation, mixtures of experts, graphs and sets."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from program import Program, fault, sound
from stp_tools import accuracy, loader, r2, seeded


def fitted(net, x, y, steps=300, lr=2e-3, seed=0, loss=F.cross_entropy):
    """The net after a short training of its own."""
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    opt = torch.optim.Adam(net.parameters(), lr=lr)
    for _ in range(steps):
        i = torch.randint(len(x), (128,))
        opt.zero_grad()
        loss(net(x[i]), y[i]).backward()
        opt.step()
    torch.set_rng_state(state)
    return net


def clusters(n=3000, dim=16, classes=6, per=3, seed=1, spread=0.5):
    g = seeded(seed)
    centre = torch.randn(classes * per, dim, generator=g)
    k = torch.randint(classes * per, (n,), generator=g)
    return centre[k] + spread * torch.randn(n, dim, generator=g), k % classes


def turned(x, seed=2, share=0.6):
    """A domain shift: a part of a random linear map, and an offset."""
    g = seeded(seed)
    d = x.shape[1]
    rot = torch.linalg.qr(torch.randn(d, d, generator=g)).Q
    return (1 - share) * x + share * x @ rot + 0.2 * torch.randn(d, generator=g)


class LoRALinear(nn.Module):
    def __init__(self, base, r=4, alpha=8, zero_a=False):
        super().__init__()
        self.base = base
        for p in base.parameters():
            p.requires_grad = False
        self.A = nn.Parameter(torch.zeros(r, base.in_features) if zero_a else torch.randn(r, base.in_features) / base.in_features**0.5)
        self.B = nn.Parameter(torch.zeros(base.out_features, r))
        self.scaling = alpha / r

    def forward(self, x):
        return self.base(x) + (x @ self.A.t() @ self.B.t()) * self.scaling


@fault(
    "Both factors of the low-rank adapters are zero, so that neither gets a gradient.",
    rules=("bad-initialisation", "no-gradient", "symmetric-initialisation", "loss-not-decreasing"),
    layers=("0", "2", "4"),
    fails=True,
    steps=400,
)
def stp_lora_zeros(is_faulty):
    x, y = clusters()
    net = fitted(nn.Sequential(nn.Linear(16, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 6)), x, y)
    x = turned(x)
    for i in (0, 2, 4):
        net[i] = LoRALinear(net[i], zero_a=is_faulty)
    opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=3e-3)
    return Program(net, nn.CrossEntropyLoss(), loader(x[:2500], y[:2500]), opt, lambda m: accuracy(m(x[2500:]), y[2500:]))


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        return self.head(self.backbone(x))


@fault(
    "The optimizer is made before the head is replaced: it holds the old head, and the new one never moves.",
    rules=("no-gradient", "loss-not-decreasing"),
    layers=("head",),
    fails=True,
    steps=300,
)
def stp_head_after_optimizer(is_faulty):
    x, k = clusters(classes=12, per=2, seed=4)
    net = fitted(Net(12), x, k)
    y = (k % 5).long()

    def new_head():
        for p in net.backbone.parameters():
            p.requires_grad = False
        net.head = nn.Linear(64, 5)

    if is_faulty:
        optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
        new_head()
    else:
        new_head()
        optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    return Program(net, nn.CrossEntropyLoss(), loader(x[:2500], y[:2500]), optimizer, lambda m: accuracy(m(x[2500:]), y[2500:]))


class MoE(nn.Module):
    def __init__(self, is_faulty, n=6, dim=6):
        super().__init__()
        self.gate = nn.Linear(dim, n)
        if is_faulty:
            self.experts = nn.ModuleList([nn.Linear(dim, 3)] * n)
        else:
            self.experts = nn.ModuleList([nn.Linear(dim, 3) for _ in range(n)])

    def forward(self, x):
        w = self.gate(x).softmax(-1)
        out = torch.stack([e(x) for e in self.experts], dim=1)
        return (w.unsqueeze(-1) * out).sum(1)


@fault(
    "nn.ModuleList([expert] * n) holds one expert n times.",
    rules=("shared-weight", "symmetric-initialisation", "no-gradient", "no-nonlinearity"),
    layers=("experts", "gate"),
    fails=False,
    steps=500,
)
def stp_one_expert(is_faulty):
    g = seeded(6)
    x = torch.randn(3000, 6, generator=g)
    maps = torch.randn(4, 6, 3, generator=g)
    region = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
    y = torch.einsum("nd,ndk->nk", x, maps[region])
    y = y / y.std()
    net = MoE(is_faulty)
    return Program(net, nn.MSELoss(), loader(x[:2500], y[:2500]), torch.optim.Adam(net.parameters(), lr=1e-2), lambda m: r2(m(x[2500:]), y[2500:]))


class SetEncoder(nn.Module):
    """Reads a set of points with a learned query token."""

    def __init__(self, classes, batch_first, d=32):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(3, d), nn.ReLU(), nn.Linear(d, d))
        self.cls = nn.Parameter(torch.randn(1, 1, d) * 0.5)
        self.attn = nn.MultiheadAttention(d, 4, batch_first=batch_first)
        self.norm = nn.LayerNorm(d)
        self.ff = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, classes))

    def forward(self, points):
        h = self.embed(points)
        h = torch.cat([self.cls.expand(len(h), -1, -1), h], dim=1)
        h = self.norm(h + self.attn(h, h, h, need_weights=False)[0])
        return self.ff(h[:, 0])


def point_sets(n=2500, size=12, seed=7):
    g = seeded(seed)
    y = torch.randint(4, (n,), generator=g)
    axes = torch.tensor([[1.6, 0.5, 0.5], [0.5, 1.6, 0.5], [0.5, 0.5, 1.6], [1.0, 1.0, 1.0]])
    return torch.randn(n, size, 3, generator=g) * axes[y][:, None], y


@fault(
    "MultiheadAttention without batch_first gets (batch, set, features): each point looks at other examples' points.",
    rules=("mixed-examples", "rank-collapse"),
    layers=("attn",),
    fails=True,
    steps=400,
)
def stp_attention_over_batch(is_faulty):
    x, y = point_sets(size=24)
    net = SetEncoder(4, batch_first=not is_faulty)
    return Program(
        net, nn.CrossEntropyLoss(), loader(x[:2000], y[:2000], batch_size=32), torch.optim.Adam(net.parameters(), lr=2e-3),
        lambda m: (accuracy(m(x[2000:]), y[2000:]) - 0.25) / 0.75,
    )


class Graphs(Dataset):
    """Block graphs: nodes of one community mostly know each other, and have noisy features of it."""

    def __init__(self, n, seed, nodes=24, communities=3, feats=8, noise=1.5):
        proto = torch.randn(communities, feats, generator=seeded(1000))
        g = seeded(seed)
        self.y = torch.randint(communities, (n, nodes), generator=g)
        same = self.y[:, :, None] == self.y[:, None]
        edge = torch.rand(n, nodes, nodes, generator=g) < torch.where(same, 0.6, 0.08)
        edge = edge.triu(1)
        adj = (edge | edge.transpose(1, 2)).float() + torch.eye(nodes)
        self.adj = adj / adj.sum(-1, keepdim=True)
        self.x = proto[self.y] + noise * torch.randn(n, nodes, feats, generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"x": self.x[i], "adj": self.adj[i]}, self.y[i]


class GCN(nn.Module):
    def __init__(self, depth, residual, width=32):
        super().__init__()
        self.encode = nn.Linear(8, width)
        self.convs = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.classify = nn.Linear(width, 3)
        self.residual = residual

    def forward(self, x, adj):
        h = F.relu(self.encode(x))
        for conv in self.convs:
            new = F.relu(conv(adj @ h))
            h = h + new if self.residual else new
        return self.classify(h)


def node_loss(logits, y):
    return F.cross_entropy(logits.flatten(0, 1), y.flatten())


@fault(
    "A graph net of 12 averaging layers without residual connections: all nodes of a graph end at the same point.",
    rules=("rank-collapse", "vanishing-gradient", "activation-drift", "bad-initialisation"),
    layers=("convs",),
    fails=False,
    steps=300,
)
def stp_oversmoothing(is_faulty):
    train, held = Graphs(400, 8), Graphs(80, 9)
    net = GCN(12, residual=not is_faulty)
    return Program(
        net, node_loss, DataLoader(train, 16, shuffle=True), torch.optim.Adam(net.parameters(), lr=1e-3),
        lambda m: (accuracy(m(held.x, held.adj), held.y) - 1 / 3) * 1.5,
    )


def pictures(n, seed, size=12):
    g = seeded(seed)
    y = torch.randint(4, (n,), generator=g)
    img = torch.zeros(n, 1, size, size)
    for i in range(n):
        r, c = (int(v) for v in torch.randint(1, size - 5, (2,), generator=g))
        if y[i] == 0:
            img[i, 0, r, c : c + 5] = 1
        elif y[i] == 1:
            img[i, 0, r : r + 5, c] = 1
        elif y[i] == 2:
            img[i, 0, r : r + 4, c : c + 4] = 1
        else:
            img[i, 0, range(r, r + 4), range(c, c + 4)] = 1
    return (img * 0.7 + 0.12 * torch.rand(img.shape, generator=g)).clamp(0, 1), y


def conv_net():
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(24 * 9, 48), nn.ReLU(), nn.Linear(48, 4),
    )


@fault(
    "A net trained on pictures between 0 and 1 goes on with new pictures between 0 and 255.",
    rules=("unscaled-input", "learning-rate-too-high", "exploding-gradient", "saturated-output"),
    fails=True,
    steps=250,
)
def stp_new_pictures_raw(is_faulty):
    old, old_y = pictures(600, 10)
    net = fitted(conv_net(), old, old_y, steps=100, lr=2e-3)
    raw, y = pictures(1000, 11)
    raw = (255 * (0.25 + 0.6 * raw)).round()
    x = raw if is_faulty else raw / 255
    opt = torch.optim.SGD(net.parameters(), lr=0.005, momentum=0.9)
    return Program(net, nn.CrossEntropyLoss(), loader(x[:800], y[:800], batch_size=32), opt, lambda m: (accuracy(m(x[800:]), y[800:]) - 0.25) / 0.75)


def teacher_and_data(seed=12):
    x, k = clusters(classes=5, per=4, seed=seed, spread=0.9)
    flip = torch.rand(len(k), generator=seeded(seed)) < 0.15
    k = torch.where(flip, torch.randint(5, k.shape, generator=seeded(seed + 1)), k)
    teacher = fitted(nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 5)), x, k, steps=200)
    return teacher.eval().requires_grad_(False), x, k


@fault(
    "F.kl_div gets the student's probabilities where it takes log-probabilities.",
    rules=("output-loss-mismatch",),
    fails=False,
    steps=400,
)
def stp_kl_of_probabilities(is_faulty):
    teacher, x, _ = teacher_and_data()
    student = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 5))
    tau = 2.0

    def step(model, batch):
        (inputs,) = batch
        with torch.no_grad():
            soft = F.softmax(teacher(inputs) / tau, dim=-1)
        out = model(inputs) / tau
        out = F.softmax(out, dim=-1) if is_faulty else F.log_softmax(out, dim=-1)
        return F.kl_div(out, soft, reduction="batchmean") * tau**2

    def score(m):
        return r2(m(x[2500:]).softmax(-1), teacher(x[2500:]).softmax(-1))

    return Program(student, None, loader(x[:2500]), torch.optim.Adam(student.parameters(), lr=2e-3), score, step=step)


# ------------------------------------------------------------------ sound


@sound("Low-rank adapters as usual: one factor is zero, so that the other gets no gradient at first; all else is frozen.", steps=400, least=0.75)
def stp_lora():
    x, y = clusters(seed=21)
    net = fitted(nn.Sequential(nn.Linear(16, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 6)), x, y)
    x = turned(x)
    for i in (0, 2, 4):
        net[i] = LoRALinear(net[i])
    opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=3e-3)
    return Program(net, nn.CrossEntropyLoss(), loader(x[:2500], y[:2500]), opt, lambda m: accuracy(m(x[2500:]), y[2500:]))


@sound("A frozen backbone and a new head that begins at zero.", steps=300, least=0.7)
def stp_frozen_backbone():
    x, k = clusters(classes=12, per=2, seed=22)
    net = fitted(Net(12), x, k)
    y = k % 5
    net.backbone.requires_grad_(False)
    net.head = nn.Linear(64, 5)
    nn.init.zeros_(net.head.weight)
    nn.init.zeros_(net.head.bias)
    opt = torch.optim.SGD(net.head.parameters(), lr=0.05, momentum=0.9)
    return Program(net, nn.CrossEntropyLoss(), loader(x[:2500], y[:2500]), opt, lambda m: accuracy(m(x[2500:]), y[2500:]))


class Top2(nn.Module):
    def __init__(self, dim=6, n=6, width=16):
        super().__init__()
        self.router = nn.Linear(dim, n, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(dim, width), nn.ReLU(), nn.Linear(width, 3)) for _ in range(n))

    def forward(self, x):
        p = self.router(x).softmax(-1)
        top, who = p.topk(2, dim=-1)
        w = torch.zeros_like(p).scatter(1, who, top / top.sum(-1, keepdim=True))
        y = torch.stack([e(x) for e in self.experts], 1)
        return (w[..., None] * y).sum(1), p, (w > 0).float()


@sound("Sparse mixture of experts, two of six per example, with a small balancing term, examined half trained.", trained=200, steps=500, least=0.75)
def stp_sparse_experts():
    g = seeded(6)
    x = torch.randn(3000, 6, generator=g)
    maps = torch.randn(4, 6, 3, generator=g)
    region = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
    y = torch.einsum("nd,ndk->nk", x, maps[region])
    y = y / y.std()
    net = Top2()

    def step(model, batch):
        out, p, used = model(batch[0])
        balance = 6 * (p.mean(0) * used.mean(0)).sum()
        return F.mse_loss(out, batch[1]) + 0.01 * balance

    return Program(net, None, loader(x[:2500], y[:2500]), torch.optim.Adam(net.parameters(), lr=5e-3), lambda m: r2(m(x[2500:])[0], y[2500:]), step=step)


class Sets(Dataset):
    """Sets of 2 to 15 numbers; padded places hold rubbish, and a mask says so."""

    def __init__(self, n, seed, size=15):
        g = seeded(seed)
        self.x = torch.randn(n, size, 2, generator=g)
        count = torch.randint(2, size + 1, (n, 1), generator=g)
        self.mask = torch.arange(size)[None] < count
        self.x[~self.mask] = -9.0
        m = self.mask.float()
        big = self.x.prod(-1).masked_fill(~self.mask, -9.0).max(1).values
        mean = (self.x[..., 0].abs() * m).sum(1) / m.sum(1)
        self.y = torch.stack([big, 3 * mean], 1)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"x": self.x[i], "mask": self.mask[i]}, self.y[i]


class DeepSet(nn.Module):
    def __init__(self):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64))
        self.rho = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, x, mask):
        h = self.phi(x)
        m = mask[..., None]
        mean = (h * m).sum(1) / m.sum(1)
        top = h.masked_fill(~m, -1e9).max(1).values
        return self.rho(torch.cat([mean, top], 1))


@sound("A set net on padded sets, whose padding holds -9 and is masked in both poolings; order does not matter.", steps=500, least=0.7)
def stp_deep_set():
    train, held = Sets(3000, 23), Sets(500, 24)
    net = DeepSet()
    return Program(
        net, nn.MSELoss(), DataLoader(train, 64, shuffle=True), torch.optim.Adam(net.parameters(), lr=2e-3),
        lambda m: r2(m(held.x, held.mask), held.y),
    )


@sound("A shallow graph net on block graphs, half trained.", trained=100, steps=250, least=0.7)
def stp_gcn():
    train, held = Graphs(400, 25), Graphs(80, 26)
    net = GCN(2, residual=True)
    return Program(
        net, node_loss, DataLoader(train, 16, shuffle=True), torch.optim.AdamW(net.parameters(), lr=2e-3),
        lambda m: (accuracy(m(held.x, held.adj), held.y) - 1 / 3) * 1.5,
    )


@sound("A net trained on pictures meets new ones, paler and mirrored: high loss at first, then fine-tunes at a low rate.", steps=300, least=0.75)
def stp_new_pictures():
    old, old_y = pictures(600, 27)
    net = fitted(conv_net(), old, old_y, steps=200, lr=2e-3)
    x, y = pictures(1000, 28)
    x = 0.35 + 0.5 * x.flip(-1).roll(1, -1)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    return Program(net, nn.CrossEntropyLoss(), loader(x[:800], y[:800], batch_size=32), opt, lambda m: (accuracy(m(x[800:]), y[800:]) - 0.25) / 0.75)


@sound("Distillation at temperature 4 with its square as factor, plus a small hard-label term; the teacher is a closure.", steps=400, least=0.7)
def stp_distil():
    teacher, x, y = teacher_and_data(seed=29)
    student = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 5))

    def step(model, batch):
        inputs, label = batch
        out = model(inputs)
        soft = F.kl_div(F.log_softmax(out / 4, -1), F.log_softmax(teacher(inputs) / 4, -1), reduction="batchmean", log_target=True)
        return 0.9 * 16 * soft + 0.1 * F.cross_entropy(out, label)

    return Program(
        student, None, loader(x[:2500], y[:2500]), torch.optim.Adam(student.parameters(), lr=3e-3),
        lambda m: r2(m(x[2500:]).softmax(-1), teacher(x[2500:]).softmax(-1)), step=step,
    )


class TwoTasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(16, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU())
        self.kind = nn.Linear(64, 6)
        self.amount = nn.Linear(64, 1)
        self.log_var = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        h = self.trunk(x)
        return self.kind(h), self.amount(h)


@sound("Two losses of different sizes, weighed by learned variances; the total goes below zero.", trained=250, steps=500, least=0.7)
def stp_learned_weights():
    x, y = clusters(seed=41)
    amount = 0.2 * torch.tanh(x[:, :1] + x[:, 1:2] * 0.5)
    net = TwoTasks()

    def step(model, batch):
        data, kind, much = batch
        logits, out = model(data)
        a, b = F.cross_entropy(logits, kind), F.mse_loss(out, much)
        s = model.log_var
        return (-s[0]).exp() * a + 0.5 * s[0] + 0.5 * (-s[1]).exp() * b + 0.5 * s[1]

    def score(m):
        logits, out = m(x[2500:])
        return (accuracy(logits, y[2500:]) + r2(out, amount[2500:])) / 2

    return Program(net, None, loader(x[:2500], y[:2500], amount[:2500]), torch.optim.Adam(net.parameters(), lr=2e-3), score, step=step)


@sound("An ordinary set classifier with attention, already trained when it is examined.", trained=350, steps=400, least=0.6)
def stp_set_attention():
    x, y = point_sets(size=24, seed=42)
    net = SetEncoder(4, batch_first=True)
    return Program(
        net, nn.CrossEntropyLoss(), loader(x[:2000], y[:2000], batch_size=32), torch.optim.Adam(net.parameters(), lr=2e-3),
        lambda m: (accuracy(m(x[2000:]), y[2000:]) - 0.25) / 0.75,
    )
