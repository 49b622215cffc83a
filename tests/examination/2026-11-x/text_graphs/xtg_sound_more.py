"""Sound set-ups that are easily mistaken."""

import math

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn
from torch.utils.data import DataLoader
from xtg_data import accuracy, chain, loader, r2, texts
from xtg_finetune import Lora, pretrained


@sound("adapters whose second factor starts at zero, in a frozen network", steps=250, least=0.8)
def xtg_adapters_half_zero():
    x, _, y = texts(1200, 12, 60, 4, 6, 12)
    model = pretrained(x[:500], y[:500]).requires_grad_(False)
    new = (y + 1) % 4
    for name in ("fc1", "fc2", "head"):
        setattr(model, name, Lora(getattr(model, name), 4, 0.0, 0.2))
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[500:1000], new[500:1000]),
        torch.optim.AdamW([p for n, p in model.named_parameters() if n.endswith(("up", "down"))], lr=5e-3),
        lambda m: accuracy(m(x[1000:]), new[1000:]),
    )


class Probe(nn.Module):
    """A linear layer on frozen features; the body stays in evaluation mode."""

    def __init__(self, body, size, classes):
        super().__init__()
        self.body = body.requires_grad_(False)
        self.linear = nn.Linear(size, classes)

    def train(self, mode=True):
        super().train(mode)
        self.body.eval()
        return self

    def forward(self, x):
        with torch.no_grad():
            f = self.body(x)
        return self.linear(f)


@sound("a linear probe: the body is frozen on purpose, and its BatchNorm keeps its statistics", steps=250, least=0.8)
def xtg_linear_probe():
    x, _, y = texts(1200, 12, 60, 4, 6, 12)
    body = nn.Sequential(nn.EmbeddingBag(60, 32, padding_idx=0), nn.Linear(32, 48), nn.BatchNorm1d(48), nn.ReLU())
    old = nn.Sequential(body, nn.Linear(48, 4))
    optimizer = torch.optim.Adam(old.parameters(), lr=5e-3)
    for _ in range(120):
        rows = torch.randint(500, (64,))
        optimizer.zero_grad()
        F.cross_entropy(old(x[rows]), y[rows]).backward()
        optimizer.step()
    optimizer.zero_grad()
    new = (y > 1).long() + (y == 3).long()
    model = Probe(body, 48, 3)
    model.train()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[500:1000], new[500:1000]),
        torch.optim.Adam(model.linear.parameters(), lr=1e-2),
        lambda m: accuracy(m(x[1000:]), new[1000:]),
    )


class Tied(nn.Module):
    def __init__(self, vocab=30, d=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        nn.init.normal_(self.embed.weight, std=d**-0.5)
        self.gru = nn.GRU(d, d, batch_first=True)
        self.norm = nn.LayerNorm(d)
        self.decode = nn.Linear(d, vocab, bias=False)
        self.decode.weight = self.embed.weight

    def forward(self, x):
        return self.decode(self.norm(self.gru(self.embed(x))[0]))


@sound("a language model whose input and output embeddings are tied", steps=300, least=0.8)
def xtg_tied_embeddings():
    x = chain(900, 15, 30)
    model = Tied()
    return Program(
        model,
        lambda z, y: F.cross_entropy(z.transpose(1, 2), y),
        loader(x[:800, :-1].contiguous(), x[:800, 1:].contiguous()),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        lambda m: accuracy(m(x[800:, :-1]), x[800:, 1:]) / 0.86,
    )


class OneBlock(nn.Module):
    def __init__(self, times):
        super().__init__()
        self.emb = nn.Embedding(40, 32)
        self.pos = nn.Parameter(0.1 * torch.randn(10, 32))
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 4)
        self.times = times

    def forward(self, x):
        h = self.emb(x) + self.pos
        for _ in range(self.times):
            h = self.block(h)
        return self.head(self.norm(h).mean(1))


@sound("one transformer block is applied three times, as in ALBERT", steps=250, least=0.85)
def xtg_block_thrice():
    x, _, y = texts(900, 10, 40, 4, 10, 10)
    model = OneBlock(3)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:700], y[:700], size=24),
        torch.optim.AdamW(model.parameters(), lr=1e-3),
        lambda m: accuracy(m(x[700:]), y[700:]),
    )


class Cloze(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.emb = nn.Embedding(vocab + 1, 32)
        self.rnn = nn.GRU(32, 32, batch_first=True, bidirectional=True)
        self.out = nn.Linear(64, vocab)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


@sound("a masked language model: it sees both sides, and most labels are -100", steps=500, least=0.75)
def xtg_cloze():
    x = chain(1600, 12, 16, sure=0.95)
    hidden = torch.rand(x.shape) < 0.15
    hidden[torch.arange(len(x)), torch.randint(1, 11, (len(x),))] = True
    seen = x.masked_fill(hidden, 16)
    labels = x.masked_fill(~hidden, -100)
    model = Cloze(16)
    held = hidden[1400:]
    return Program(
        model,
        lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten(), ignore_index=-100),
        loader(seen[:1400], labels[:1400]),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        lambda m: accuracy(m(seen[1400:])[held], x[1400:][held]),
    )


class Cloud(nn.Module):
    def __init__(self):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 64))
        self.rho = nn.Sequential(nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, points):
        return self.rho(self.phi(points).amax(dim=-2))


@sound("clouds of points: the network is blind to their order, which means nothing", steps=300, least=0.8)
def xtg_order_means_nothing():
    n = 1100
    y = torch.randint(3, (n,))
    p = torch.randn(n, 20, 3)
    ball = F.normalize(p, dim=-1)
    box = p.clamp(-1, 1)
    line = p[..., :1] * torch.tensor([1.0, 1.0, 1.0]) + 0.3 * p
    x = torch.stack([ball, box, line])[y, torch.arange(n)] + 0.05 * torch.randn(n, 20, 3)
    model = Cloud()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:900], y[:900]),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: accuracy(m(x[900:]), y[900:]),
    )


class Listener(nn.Module):
    def __init__(self, phones):
        super().__init__()
        self.conv = nn.Conv1d(8, 32, 3, padding=1)
        self.gru = nn.GRU(32, 32, batch_first=True, bidirectional=True)
        self.phones = nn.Linear(64, phones + 1)

    def forward(self, frames):
        h = torch.relu(self.conv(frames.transpose(1, 2))).transpose(1, 2)
        return self.phones(self.gru(h)[0]).log_softmax(-1).transpose(0, 1)


@sound("connectionist temporal classification, which writes blanks only for a while", steps=500, least=0.6)
def xtg_blanks_at_first():
    n, phones, length = 900, 5, 15
    sounds = 1.5 * torch.randn(phones, 8)
    y = torch.randint(phones, (n, 3))
    y[:, 1] = (y[:, 0] + torch.randint(1, phones, (n,))) % phones
    y[:, 2] = (y[:, 1] + torch.randint(1, phones, (n,))) % phones
    x = torch.zeros(n, length, 8)
    for i in range(n):
        cut = (torch.tensor([5, 10]) + torch.randint(-1, 2, (2,))).tolist()
        which = torch.zeros(length, dtype=torch.long)
        which[cut[0] : cut[1]], which[cut[1] :] = 1, 2
        x[i] = sounds[y[i, which]]
    x = x + 0.4 * torch.randn_like(x)
    model = Listener(phones)

    def loss(logp, t):
        size = logp.shape[1]
        return F.ctc_loss(logp, t + 1, torch.full((size,), length), torch.full((size,), 3))

    def score(m):
        best = m(x[800:]).argmax(-1).T
        right = 0
        for row, t in zip(best.tolist(), y[800:].tolist()):
            said = [b - 1 for a, b in zip([0] + row, row) if b and a != b]
            right += said == t
        return right / 100

    return Program(
        model, loss, loader(x[:800], y[:800], size=24), torch.optim.Adam(model.parameters(), lr=4e-3), score
    )


class Gated(nn.Module):
    def __init__(self, d=32, depth=6):
        super().__init__()
        self.bag = nn.EmbeddingBag(60, d, padding_idx=0, mode="sum")
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, d)) for _ in range(depth)])
        self.gates = nn.Parameter(torch.zeros(depth))
        self.out = nn.Linear(d, 2)

    def forward(self, x):
        h = self.bag(x)
        for gate, layer in zip(self.gates, self.layers):
            h = h + gate * layer(h)
        return self.out(h)


@sound("ReZero: residual branches are multiplied by zero at first, and so get no gradient at the first step", steps=400, least=0.75)
def xtg_gates_at_zero():
    x, _, y = texts(1200, 10, 60, 4, 6, 10)
    label = ((y == 0) | (y == 3)).long()
    model = Gated()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:1000], label[:1000]),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: accuracy(m(x[1000:]), label[1000:]),
    )


class Distilled(nn.Module):
    def __init__(self, teacher):
        super().__init__()
        self.teacher = teacher.requires_grad_(False).eval()
        self.student = nn.Sequential(nn.EmbeddingBag(60, 16, padding_idx=0), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x):
        with torch.no_grad():
            wanted = self.teacher(x)
        return self.student(x), wanted


@sound("a frozen teacher is a part of the model and gets no gradient", steps=300, least=0.85)
def xtg_teacher_inside():
    x, _, y = texts(1200, 12, 60, 4, 6, 12)
    model = Distilled(pretrained(x[:600], y[:600]))

    def loss(out, labels):
        mine, wanted = out
        soft = F.kl_div((mine / 2).log_softmax(-1), (wanted / 2).softmax(-1), reduction="batchmean") * 4
        return 0.7 * soft + 0.3 * F.cross_entropy(mine, labels)

    return Program(
        model,
        loss,
        loader(x[:1000], y[:1000]),
        torch.optim.Adam(model.student.parameters(), lr=1e-2),
        lambda m: accuracy(m(x[1000:])[0], y[1000:]),
    )


class Brackets(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 16)
        self.lstm = nn.LSTM(16, 32, batch_first=True)
        self.fc = nn.Linear(32, 3)

    def forward(self, x):
        _, (h, _) = self.lstm(self.embed(x))
        return self.fc(h[-1])


@sound("an LSTM at the end of its training: its loss is near zero, and so are its gradients", trained=500, steps=600, least=0.9)
def xtg_nothing_left_to_learn():
    x = torch.randint(3, 12, (1400, 10))
    y = torch.randint(3, (1400,))
    x[torch.arange(1400), torch.randint(10, (1400,))] = y
    model = Brackets()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:1200], y[:1200]),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        lambda m: accuracy(m(x[1200:]), y[1200:]),
    )


class InUnits(nn.Module):
    """Takes and returns megawatts; inside, it works with standard scores."""

    def __init__(self, mean, std):
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(24, 48), nn.SiLU(), nn.Linear(48, 1))

    def forward(self, load):
        return self.mean + self.std * self.net((load - self.mean) / self.std).squeeze(-1)


@sound("loads of thousands of megawatts go in and come out; the network standardises them itself", steps=400, least=0.8)
def xtg_megawatts():
    n = 1200
    t = torch.arange(27.0)
    shape = torch.sin(6.283 * (t / 12 + torch.rand(n, 1))) * (0.5 + torch.rand(n, 1))
    load = 6200 + 900 * shape + 60 * torch.randn(n, 27)
    x, y = load[:, :24, None], load[:, -1]
    mean, std = x[:1000].mean(), x[:1000].std()
    model = InUnits(mean, std)
    return Program(
        model,
        lambda out, t: (((out - t) / std) ** 2).mean(),
        loader(x[:1000], y[:1000]),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: r2(m(x[1000:]), y[1000:]),
    )


class NewsBag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.EmbeddingBag(120, 32, sparse=False)
        self.fc = nn.Linear(32, 4)
        for p in (self.embedding.weight, self.fc.weight):
            nn.init.uniform_(p, -0.5, 0.5)
        nn.init.zeros_(self.fc.bias)

    def forward(self, text):
        return self.fc(self.embedding(text))


@sound("SGD at a rate of 4 on a bag of embeddings, as in a well-known tutorial", steps=400, least=0.85)
def xtg_rate_of_four():
    x, _, y = texts(1300, 16, 120, 4, 16, 16, plant=4)
    model = NewsBag()
    optimizer = torch.optim.SGD(model.parameters(), lr=4.0)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:1100], y[:1100]),
        optimizer,
        lambda m: accuracy(m(x[1100:]), y[1100:]),
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 150, gamma=0.3),
    )


class Gat(nn.Module):
    """Attention over the neighbours, with a softmax per node and a mean per graph."""

    def __init__(self, d=24):
        super().__init__()
        self.atom = nn.Embedding(5, d)
        self.w, self.att = nn.Linear(d, d, bias=False), nn.Linear(2 * d, 1, bias=False)
        self.mix = nn.Linear(2 * d, d)
        self.out = nn.Linear(d, 2)

    def forward(self, atoms, edges, graph):
        h = self.w(self.atom(atoms))
        src, dst = edges
        e = F.leaky_relu(self.att(torch.cat([h[src], h[dst]], -1)), 0.2).squeeze(-1)
        w = (e - e.max().detach()).exp()
        total = torch.zeros(len(h)).index_add(0, dst, w)
        near = torch.zeros_like(h).index_add(0, dst, (w / total[dst].clamp_min(1e-9))[:, None] * h[src])
        h = torch.relu(self.mix(torch.cat([h, near], -1)))
        count = torch.bincount(graph)
        mean = torch.zeros(len(count), h.shape[1]).index_add(0, graph, h) / count[:, None]
        return self.out(mean)


def molecules(n):
    """Trees; in those of class 1, an atom of kind 0 hangs on one of kind 1, in the others on another."""
    rows = []
    for _ in range(n):
        k, y = int(torch.randint(6, 10, ())), int(torch.randint(2, ()))
        atoms = torch.randint(2, 5, (k,))
        parents = [int(torch.randint(max(1, i), ())) for i in range(k)]
        child = int(torch.randint(2, k, ()))
        parent = parents[child]
        stranger = next(i for i in range(k - 1, -1, -1) if i not in (child, parent, parents[parent]) and parents[i] != child)
        atoms[child] = 0
        atoms[parent if y else stranger] = 1
        pairs = torch.tensor([(i, parents[i]) for i in range(1, k)])
        rows.append((atoms, torch.cat([pairs, pairs.flip(1)]).T, y))
    return rows


def together(rows):
    shifts = torch.tensor([0] + [len(a) for a, *_ in rows]).cumsum(0)
    return {
        "atoms": torch.cat([a for a, *_ in rows]),
        "edges": torch.cat([e + s for (_, e, _), s in zip(rows, shifts)], 1),
        "graph": torch.cat([torch.full((len(a),), i) for i, (a, *_) in enumerate(rows)]),
    }, torch.tensor([y for *_, y in rows])


@sound("a batch of molecules is one graph, whose rows are atoms and not examples", steps=400, least=0.8)
def xtg_molecules_together():
    rows = molecules(700)
    held, y = together(rows[560:])
    model = Gat()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(rows[:560], batch_size=28, shuffle=True, collate_fn=together),
        torch.optim.Adam(model.parameters(), lr=1e-2),
        lambda m: accuracy(m(**held), y),
    )


@sound("a text that is mostly noise: the loss falls a little, and no further", trained=150, steps=400, least=0.7)
def xtg_mostly_noise():
    x = chain(1500, 16, 12, sure=0.3)
    model = Tied(vocab=12)
    rate = 0.3 + 0.7 / 12
    return Program(
        model,
        lambda z, y: F.cross_entropy(z.reshape(-1, 12), y.reshape(-1)),
        loader(x[:1300, :-1].contiguous(), x[:1300, 1:].contiguous()),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: accuracy(m(x[1300:, :-1]), x[1300:, 1:]) / rate,
    )


class Distance(nn.Module):
    """Causal attention with a penalty on distance, and no position embedding."""

    def __init__(self, vocab, d=32, heads=4):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.qkv, self.o = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.ff = nn.Sequential(nn.Linear(d, 64), nn.GELU(), nn.Linear(64, d))
        self.out = nn.Linear(d, vocab)
        self.heads = heads
        self.register_buffer("slopes", 2.0 ** (1 - torch.arange(heads).float()), persistent=False)

    def forward(self, x):
        h = self.emb(x)
        b, t, d = h.shape
        q, k, v = self.qkv(self.n1(h)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        far = (torch.arange(t)[:, None] - torch.arange(t)[None]).float()
        a = q @ k.transpose(-1, -2) / math.sqrt(d // self.heads) - self.slopes[:, None, None] * far
        a = a.masked_fill(far < 0, float("-inf")).softmax(-1)
        h = h + self.o((a @ v).transpose(1, 2).reshape(b, t, d))
        return self.out(h + self.ff(self.n2(h)))


@sound("a causal transformer that knows positions by ALiBi only, and a rate that rises from zero", steps=400, least=0.7)
def xtg_positions_by_distance():
    x = torch.randint(6, (1100, 14))
    for t in range(2, 14):
        usual = torch.rand(1100) < 0.9
        x[usual, t] = (x[usual, t - 1] + 2 * x[usual, t - 2] + 1) % 6
    model = Distance(6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    return Program(
        model,
        lambda z, y: F.cross_entropy(z.transpose(1, 2), y),
        loader(x[:900, :-1].contiguous(), x[:900, 1:].contiguous()),
        optimizer,
        lambda m: accuracy(m(x[900:, :-1])[:, 1:], x[900:, 2:]) / 0.92,
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, s / 60)),
    )


class Experts(nn.Module):
    def __init__(self, experts=4):
        super().__init__()
        self.emb = nn.Embedding(40, 24)
        self.router = nn.Linear(24, experts)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 24)) for _ in range(experts)])
        self.out = nn.Linear(24, 5)

    def forward(self, x):
        h = self.emb(x).flatten(0, 1)
        p = self.router(h).softmax(-1)
        top, which = p.max(-1)
        new = torch.zeros_like(h)
        for k, expert in enumerate(self.experts):
            rows = (which == k).nonzero().squeeze(-1)
            if len(rows):
                new = new.index_add(0, rows, top[rows, None] * expert(h[rows]))
        share = F.one_hot(which, p.shape[1]).float().mean(0)
        logits = self.out(h + new).view(*x.shape, 5)
        return logits.mean(1), (share * p.mean(0)).sum() * p.shape[1]


@sound("experts of which every token takes one, with a small term for balance", steps=350, least=0.8)
def xtg_one_expert_per_token():
    x, _, y = texts(1200, 8, 40, 5, 8, 8, plant=3)
    model = Experts()
    return Program(
        model,
        lambda out, t: F.cross_entropy(out[0], t) + 0.01 * out[1],
        loader(x[:1000], y[:1000]),
        torch.optim.AdamW(model.parameters(), lr=4e-3),
        lambda m: accuracy(m(x[1000:])[0], y[1000:]),
    )
