"""More that is unusual but right."""
import torch
import torch.nn.functional as F
from program import Program, sound
from seqdata import acc, gen, loader, r2, topics
from torch import nn


@sound("a forecast three steps ahead at every place of the series", steps=250, least=0.8)
def three_steps_ahead():
    def make(n, seed):
        g = gen(seed)
        s = torch.sin(6.28 * torch.rand(n, 1, generator=g) + 0.6 * torch.arange(23))
        s = s * (0.5 + torch.rand(n, 1, generator=g))
        return s[:, :20, None], s[:, 3:]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(1, 24, batch_first=True)
            self.fc = nn.Linear(24, 1)

        def forward(self, x):
            return self.fc(self.rnn(x)[0]).squeeze(-1)

    x, y = make(1500, 1)
    tx, ty = make(200, 2)
    m = Net()
    return Program(m, nn.SmoothL1Loss(), loader(x, y, batch_size=50), torch.optim.Adam(m.parameters(), 1e-2),
                   lambda m: r2(m(tx), ty))


@sound("the gates of residual branches and the head start at zero", steps=300, least=0.85)
def zero_gates():
    class Block(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.attn = nn.MultiheadAttention(d, 2, batch_first=True)
            self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))
            self.alpha = nn.Parameter(torch.zeros(2))

        def forward(self, h):
            h = h + self.alpha[0] * self.attn(h, h, h, need_weights=False)[0]
            return h + self.alpha[1] * self.mlp(h)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(40, 24)
            self.blocks = nn.Sequential(Block(24), Block(24))
            self.head = nn.Linear(24, 4)
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

        def forward(self, x):
            return self.head(self.blocks(self.embed(x)).mean(1))

    x, y = topics(2000, 12, 40, 4, 303, 0.6)
    tx, ty = topics(300, 12, 40, 4, 304, 0.6)
    m = Net()
    return Program(m, nn.CrossEntropyLoss(), loader(x, y, batch_size=40), torch.optim.Adam(m.parameters(), 5e-3),
                   lambda m: acc(m(tx), ty))


@sound("token 0 is silence, a class that counts, and most places have it", steps=300, least=0.6)
def silence_is_a_class():
    sounds = torch.randn(5, 8, generator=gen(80))

    def make(n, seed):
        g = gen(seed)
        y = torch.randint(1, 5, (n, 20), generator=g) * (torch.rand(n, 20, generator=g) < 0.25)
        y[:, 15:] = 0
        return sounds[y] * (y > 0)[..., None] + 0.2 * torch.randn(n, 20, 8, generator=g), y

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(8, 24, batch_first=True, bidirectional=True)
            self.out = nn.Linear(48, 5)

        def forward(self, x):
            return self.out(self.rnn(x)[0])

    x, y = make(1500, 1)
    tx, ty = make(200, 2)
    m = Net()
    return Program(m, lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()), loader(x, y, batch_size=40),
                   torch.optim.Adam(m.parameters(), 5e-3), lambda m: acc(m(tx)[ty > 0], ty[ty > 0]))


@sound("batches of sentences of one length each, in any order", steps=250, least=0.85)
def buckets_by_length():
    class Buckets:
        def __init__(self):
            self.parts = [topics(300, n, 60, 3, 400 + n, 0.6) for n in range(6, 14)]

        def __iter__(self):
            batches = [(x[i:i + 50], y[i:i + 50]) for x, y in self.parts for i in range(0, 300, 50)]
            for i in torch.randperm(len(batches)).tolist():
                yield batches[i]

        def __len__(self):
            return 48

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(60, 16)
            self.rnn = nn.GRU(16, 24, batch_first=True)
            self.fc = nn.Linear(24, 3)

        def forward(self, x):
            return self.fc(self.rnn(self.embed(x))[0].amax(1))

    tx, ty = topics(300, 10, 60, 3, 305, 0.6)
    m = Net()
    return Program(m, nn.CrossEntropyLoss(), Buckets(), torch.optim.RMSprop(m.parameters(), 3e-3),
                   lambda m: acc(m(tx), ty))


@sound("attention that has to look at one place, after most of its training", trained=300, steps=350, least=0.8)
def sharp_lookup():
    def make(n, seed):
        g = gen(seed)
        keys = torch.rand(n, 6, generator=g).argsort(1)
        values = torch.randint(4, (n, 6), generator=g)
        ask = torch.randint(6, (n,), generator=g)
        return {"keys": keys, "values": values, "ask": ask}, values[torch.arange(n), (keys == ask[:, None]).long().argmax(1)]

    class Lookup(nn.Module):
        def __init__(self):
            super().__init__()
            self.k, self.q, self.v = nn.Embedding(6, 16), nn.Embedding(6, 16), nn.Embedding(4, 16)
            self.out = nn.Linear(16, 4)

        def forward(self, keys, values, ask):
            w = (torch.einsum("btd,bd->bt", self.k(keys), self.q(ask)) / 4).softmax(-1)
            return self.out(torch.einsum("bt,btd->bd", w, self.v(values)))

    x, y = make(4000, 1)
    tx, ty = make(400, 2)

    class Batches:
        def __iter__(self):
            for i in torch.randperm(4000).split(64):
                yield {k: v[i] for k, v in x.items()}, y[i]

        def __len__(self):
            return 63

    m = Lookup()
    return Program(m, nn.CrossEntropyLoss(), Batches(), torch.optim.Adam(m.parameters(), 1e-2),
                   lambda m: acc(m(**tx), ty))


@sound("a softmax over experts, which is dimension 1 of (B, E, T), and the one that is summed", steps=300, least=0.7)
def softmax_over_experts():
    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(30, 16)
            self.gate = nn.Conv1d(16, 4, 1)
            self.experts = nn.ModuleList(nn.Conv1d(16, 24, 3, padding=1) for _ in range(4))
            self.out = nn.Linear(24, 4)

        def forward(self, x):
            h = self.embed(x).transpose(1, 2)
            w = self.gate(h).softmax(dim=1)
            each = torch.stack([e(h) for e in self.experts], 1)
            return self.out(torch.relu((w[:, :, None] * each).sum(1)).transpose(1, 2))

    def make(n, seed):
        x = torch.randint(30, (n, 10), generator=gen(seed))
        left = F.pad(x, (1, 0))[:, :-1]
        return x, 2 * (x % 2) + (left + x) % 2

    x, y = make(2000, 1)
    tx, ty = make(200, 2)
    m = Mixture()
    return Program(m, lambda o, y: F.cross_entropy(o.transpose(1, 2), y), loader(x, y, batch_size=40),
                   torch.optim.Adam(m.parameters(), 1e-2), lambda m: acc(m(tx), ty))


@sound("an RNN with ReLU that starts as the identity remembers the first token; half trained", trained=100, steps=300,
       least=0.8)
def identity_rnn():
    class IRNN(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(12, 16)
            self.rnn = nn.RNN(16, 32, nonlinearity="relu", batch_first=True)
            nn.init.eye_(self.rnn.weight_hh_l0)
            nn.init.normal_(self.rnn.weight_ih_l0, std=0.05)
            nn.init.zeros_(self.rnn.bias_hh_l0)
            nn.init.zeros_(self.rnn.bias_ih_l0)
            self.fc = nn.Linear(32, 4)

        def forward(self, x):
            return self.fc(self.rnn(self.embed(x))[1][0])

    def make(n, seed):
        x = torch.randint(4, 12, (n, 12), generator=gen(seed))
        x[:, 0] = torch.randint(4, (n,), generator=gen(seed + 1))
        return x, x[:, 0].clone()

    x, y = make(2000, 1)
    tx, ty = make(300, 3)
    m = IRNN()
    return Program(m, nn.CrossEntropyLoss(), loader(x, y, batch_size=50), torch.optim.Adam(m.parameters(), 3e-3),
                   lambda m: acc(m(tx), ty))
