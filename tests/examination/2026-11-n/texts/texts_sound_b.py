"""Programs that look wrong at a glance and are not."""
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import DataLoader, TensorDataset

from program import Program, sound


def gen(seed):
    return torch.Generator().manual_seed(seed)


def accuracy(out, y):
    return (out.argmax(-1) == y).float().mean().item()


def r2(p, t):
    return max(0.0, 1 - ((p - t) ** 2).mean().item() / t.var(unbiased=False).item())


@sound("An echo state network: its recurrent weights are fixed on purpose, and only the readout learns", steps=250, least=0.75)
def echo_state():
    g = gen(1)
    drive = torch.randn(900, 20, 1, generator=g)
    target = 0.6 * drive[:, -2] + 0.5 * drive[:, -1] * drive[:, -3]

    class Reservoir(nn.Module):
        def __init__(self, n=150):
            super().__init__()
            w = torch.randn(n, n)
            w *= 0.8 / torch.linalg.eigvals(w).abs().max()
            self.w_in = nn.Parameter(torch.rand(n, 1) * 2 - 1, requires_grad=False)
            self.bias = nn.Parameter(torch.randn(n) * 0.5, requires_grad=False)
            self.w = nn.Parameter(w, requires_grad=False)
            self.readout = nn.Linear(n, 1)

        def forward(self, x):
            h = x.new_zeros(len(x), self.w.shape[0])
            for t in range(x.shape[1]):
                h = torch.tanh(x[:, t] @ self.w_in.T + h @ self.w.T + self.bias)
            return self.readout(h)

    model = Reservoir()
    return Program(model, nn.MSELoss(), DataLoader(TensorDataset(drive[:700], target[:700]), 32, shuffle=True),
                   torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2),
                   lambda m: r2(m(drive[700:]), target[700:]))


@sound("Two towers with negatives from the batch: outputs compare every example with every other", steps=200, least=0.7)
def two_towers():
    g = gen(2)
    mix_a, mix_b = torch.randn(6, 20, generator=g), torch.randn(6, 24, generator=g)
    z = torch.randn(1300, 6, generator=g)
    query = z @ mix_a + 0.3 * torch.randn(1300, 20, generator=g)
    doc = torch.tanh(z @ mix_b / 2) + 0.1 * torch.randn(1300, 24, generator=g)

    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.query = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 16))
            self.doc = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 16))
            self.log_scale = nn.Parameter(torch.tensor(math.log(10.0)))

        def forward(self, q, d):
            return F.normalize(self.query(q), dim=-1), F.normalize(self.doc(d), dim=-1)

    def step(model, batch):
        q, d = model(*batch)
        logits = q @ d.T * model.log_scale.exp()
        gold = torch.arange(len(q))
        return (F.cross_entropy(logits, gold) + F.cross_entropy(logits.T, gold)) / 2

    def score(m):
        q, d = m(query[1200:], doc[1200:])
        return accuracy(q @ d.T, torch.arange(100))

    model = Towers()
    return Program(model, None, DataLoader(TensorDataset(query[:1200], doc[:1200]), 48, shuffle=True, drop_last=True),
                   torch.optim.AdamW(model.parameters(), lr=3e-3), score, step=step)


@sound("A loss summed over the batch and over time, with a rate and clipping made for it", steps=200, least=0.85)
def summed_on_purpose():
    g = gen(3)
    x = torch.randint(0, 30, (1200, 12), generator=g)
    y = torch.randint(0, 4, (30,), generator=g)[x]
    y[:, 1:] = torch.where(x[:, :-1] < 4, (y[:, 1:] + 1) % 4, y[:, 1:])

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(30, 24)
            self.rnn = nn.RNN(24, 48, batch_first=True)
            self.out = nn.Linear(48, 4)

        def forward(self, x):
            return self.out(self.rnn(self.emb(x))[0])

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=2e-3, momentum=0.9)

    def clip(*_):
        nn.utils.clip_grad_norm_(model.parameters(), 50.0)

    optimizer.register_step_pre_hook(clip)
    return Program(model, lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten(), reduction="sum"),
                   DataLoader(TensorDataset(x[:1000], y[:1000]), 20, shuffle=True), optimizer,
                   lambda m: accuracy(m(x[1000:]), y[1000:]))


@sound("ReZero: every residual branch starts with a gate of 0, and the head with weights of 0", steps=200, least=0.85)
def gates_of_zero():
    g = gen(4)
    y = torch.randint(0, 4, (1200,), generator=g)
    x = torch.randint(8, 40, (1200, 10), generator=g)
    x[torch.arange(1200), torch.randint(0, 10, (1200,), generator=g)] = y

    class Branch(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.attn = nn.MultiheadAttention(d, 4, batch_first=True)
            self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.SiLU(), nn.Linear(2 * d, d))
            self.a, self.b = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))

        def forward(self, x):
            x = x + self.a * self.attn(x, x, x, need_weights=False)[0]
            return x + self.b * self.mlp(x)

    class Net(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.emb = nn.Embedding(40, d)
            self.blocks = nn.Sequential(*(Branch(d) for _ in range(4)))
            self.head = nn.Linear(d, 4)
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

        def forward(self, x):
            return self.head(self.blocks(self.emb(x)).mean(1))

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x[:1000], y[:1000]), 32, shuffle=True),
                   torch.optim.RAdam(model.parameters(), lr=8e-3), lambda m: accuracy(m(x[1000:]), y[1000:]))


@sound("A forecaster without anything nonlinear: trend and season, each one linear map", trained=150, steps=200, least=0.8)
def linear_forecaster():
    g = gen(5)
    n = 1200
    t = torch.arange(36.0)
    series = (torch.randn(n, 1, generator=g) + 0.05 * torch.randn(n, 1, generator=g) * t
              + torch.sin(0.52 * t + 6.28 * torch.rand(n, 1, generator=g)) + 0.1 * torch.randn(n, 36, generator=g))
    x, y = series[:, :30], series[:, 30:]

    class DLinear(nn.Module):
        def __init__(self):
            super().__init__()
            self.season, self.trend = nn.Linear(30, 6), nn.Linear(30, 6)

        def forward(self, x):
            smooth = F.avg_pool1d(F.pad(x[:, None], (6, 6), mode="replicate"), 13, 1)[:, 0]
            return self.trend(smooth) + self.season(x - smooth)

    model = DLinear()
    return Program(model, nn.L1Loss(), DataLoader(TensorDataset(x[:1000], y[:1000]), 32, shuffle=True),
                   torch.optim.Adam(model.parameters(), lr=1e-2), lambda m: r2(m(x[1000:]), y[1000:]))


@sound("Nodes of one graph are the batch: one batch, outputs that depend on neighbours, most labels left out", steps=150, least=0.75)
def whole_graph():
    g = gen(6)
    n = 240
    y = torch.randint(0, 4, (n,), generator=g)
    chance = torch.where(y[:, None] == y[None], 0.12, 0.01)
    edges = (torch.rand(n, n, generator=g) < chance).float().triu(1)
    a = edges + edges.T + torch.eye(n)
    norm = a / (a.sum(0).sqrt()[:, None] * a.sum(1).sqrt()[None])
    x = F.one_hot(y, 4).float() @ torch.randn(4, 16, generator=g) * 0.6 + torch.randn(n, 16, generator=g)
    seen = torch.rand(n, generator=g) < 0.3
    labels = torch.where(seen, y, -100)

    class GCN(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("norm", norm)
            self.one, self.two = nn.Linear(16, 32), nn.Linear(32, 4)
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            return self.norm @ self.two(self.drop(F.relu(self.norm @ self.one(x))))

    model = GCN()
    return Program(model, nn.CrossEntropyLoss(ignore_index=-100), [(x, labels)],
                   torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4),
                   lambda m: accuracy(m(x)[~seen], y[~seen]))


@sound("A trained pointer: attention that has rightly become hard, and is the output", trained=250, steps=300, least=0.9)
def hard_pointer():
    g = gen(7)
    x = torch.randn(1400, 12, 4, generator=g)
    where = x[:, :, 0].argmax(1)

    class Pointer(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.item = nn.Sequential(nn.Linear(4, d), nn.ReLU(), nn.Linear(d, d))
            self.query = nn.Parameter(torch.randn(d) * d**-0.5)

        def forward(self, x):
            scores = self.item(x) @ self.query
            return torch.softmax(scores, dim=1)

    model = Pointer()
    return Program(model, lambda p, t: F.nll_loss(torch.log(p + 1e-9), t),
                   DataLoader(TensorDataset(x[:1200], where[:1200]), 32, shuffle=True),
                   torch.optim.Adam(model.parameters(), lr=1e-2), lambda m: accuracy(m(x[1200:]), where[1200:]))


@sound("Three in a hundred windows hold an event; the output's bias starts at their log-odds", steps=250, least=0.8)
def rare_events():
    g = gen(8)
    n = 4000
    y = (torch.rand(n, generator=g) < 0.03).float()
    x = torch.randn(n, 1, 32, generator=g)
    at = torch.randint(0, 27, (n,), generator=g)
    for k in range(5):
        x[torch.arange(n), 0, at + k] += 3.0 * y

    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Sequential(nn.Conv1d(1, 16, 5), nn.ReLU(), nn.Conv1d(16, 16, 3), nn.ReLU())
            self.out = nn.Linear(16, 1)
            nn.init.constant_(self.out.bias, math.log(0.03 / 0.97))

        def forward(self, x):
            return self.out(self.conv(x).amax(-1)).squeeze(1)

    def score(m):
        p, t = m(x[3000:]), y[3000:]
        return (p[t == 1][:, None] > p[t == 0][None]).float().mean().item() * 2 - 1

    model = Detector()
    return Program(model, nn.BCEWithLogitsLoss(), DataLoader(TensorDataset(x[:3000], y[:3000]), 64, shuffle=True),
                   torch.optim.Adam(model.parameters(), lr=3e-3), score)


@sound("A density forecast in order of time: its loss is below 0, and batches are never shuffled", trained=200, steps=300, least=0.8)
def density_in_order():
    g = gen(9)
    t = torch.arange(2200.0)
    series = 0.5 * torch.sin(t / 7) + 0.3 * torch.sin(t / 3.1) + 0.03 * torch.randn(2200, generator=g)
    windows = series.unfold(0, 17, 1)
    x, y = windows[:, :16, None], windows[:, 16]

    class Density(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(1, 24, batch_first=True)
            self.mean, self.log_std = nn.Linear(24, 1), nn.Linear(24, 1)

        def forward(self, x):
            h = self.gru(x)[0][:, -1]
            return self.mean(h).squeeze(1), self.log_std(h).squeeze(1)

    def nll(out, y):
        mean, log_std = out
        return (0.5 * ((y - mean) / log_std.exp()) ** 2 + log_std).mean()

    model = Density()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def clip(*_):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    optimizer.register_step_pre_hook(clip)
    return Program(model, nll, DataLoader(TensorDataset(x[:1800], y[:1800]), 32, shuffle=False), optimizer,
                   lambda m: r2(m(x[1800:])[0], y[1800:]), ExponentialLR(optimizer, 0.997))


@sound("Sparse embeddings of a large catalogue, most rows without a gradient in any one step", steps=300, least=0.6)
def sparse_catalogue():
    g = gen(10)
    users, items = 200, 1000
    taste, kind = torch.randn(users, 2, generator=g), torch.randn(items // 10, 2, generator=g).repeat(10, 1)
    u, i = torch.randint(0, users, (12000,), generator=g), torch.randint(0, items // 5, (12000,), generator=g)
    y = (taste[u] * kind[i]).sum(1)

    class Factors(nn.Module):
        def __init__(self):
            super().__init__()
            self.u, self.i = nn.Embedding(users, 8, sparse=True), nn.Embedding(items, 8, sparse=True)
            nn.init.normal_(self.u.weight, std=0.3)
            nn.init.normal_(self.i.weight, std=0.3)

        def forward(self, pair):
            return (self.u(pair[:, 0]) * self.i(pair[:, 1])).sum(1)

    pairs = torch.stack([u, i], 1)
    model = Factors()
    return Program(model, nn.MSELoss(), DataLoader(TensorDataset(pairs[:11000], y[:11000]), 256, shuffle=True),
                   torch.optim.SparseAdam(list(model.parameters()), lr=2e-2),
                   lambda m: r2(m(pairs[11000:]), y[11000:]))


@sound("Labels of which four in ten are random, and words dropped by half: the loss stays high, the answers are right", steps=250, least=0.75)
def crowd_labels():
    g = gen(11)
    y = torch.randint(0, 4, (2000,), generator=g)
    x = torch.randint(4, 50, (2000, 14), generator=g)
    for _ in range(4):
        x[torch.arange(2000), torch.randint(0, 14, (2000,), generator=g)] = y
    given = torch.where(torch.rand(2000, generator=g) < 0.4, torch.randint(0, 4, (2000,), generator=g), y)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(50, 32)
            self.word_dropout = nn.Dropout1d(0.5)
            self.gru = nn.GRU(32, 32, batch_first=True, bidirectional=True)
            self.out = nn.Linear(64, 4)

        def forward(self, x):
            return self.out(self.gru(self.word_dropout(self.emb(x)))[0].amax(1))

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x[:1700], given[:1700]), 32, shuffle=True),
                   torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.05),
                   lambda m: accuracy(m(x[1700:]), y[1700:]))
