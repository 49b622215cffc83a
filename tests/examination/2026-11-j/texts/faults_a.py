import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from program import Program, fault
from texts_data import acc, chain, chain2, gen, r2, reviews, tagged, waves


class GRULM(nn.Module):
    def __init__(self, v, d=32, h=48, bi=False):
        super().__init__()
        self.embed = nn.Embedding(v, d)
        self.rnn = nn.GRU(d, h, batch_first=True, bidirectional=bi)
        self.head = nn.Linear(h * (2 if bi else 1), v)

    def forward(self, x):
        return self.head(self.rnn(self.embed(x))[0])


@fault("the dataset shifts the targets by one and the loss shifts them again", rules=["label-shift"], fails=True, steps=200)
def shifted_twice(is_faulty):
    data, held = chain(1, 1024, 16), chain(2, 256, 16)
    loader = DataLoader(TensorDataset(data[:, :-1], data[:, 1:]), 32, shuffle=True, generator=gen(3))
    model = GRULM(12)

    def loss(logits, labels):
        if is_faulty:  # copied from a causal-LM head that gets labels == input_ids
            logits, labels = logits[:, :-1], labels[:, 1:]
        return F.cross_entropy(logits.reshape(-1, 12), labels.reshape(-1))

    return Program(model, loss, loader, torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: acc(m(held[:, :-1]), held[:, 1:]))


class Block(nn.Module):
    def __init__(self, d, keep_upper):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.keep_upper = keep_upper

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).chunk(3, -1)
        s = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        ones = torch.ones(x.shape[1], x.shape[1])
        allowed = torch.triu(ones) if self.keep_upper else torch.tril(ones)
        a = s.masked_fill(allowed == 0, float("-inf")).softmax(-1)
        x = x + self.proj(a @ v)
        return x + self.mlp(self.n2(x))


class TinyGPT(nn.Module):
    def __init__(self, v, t, d, upper):
        super().__init__()
        self.tok, self.pos = nn.Embedding(v, d), nn.Embedding(t, d)
        self.blocks = nn.ModuleList([Block(d, upper) for _ in range(2)])
        self.head = nn.Linear(d, v)

    def forward(self, x):
        h = self.tok(x) + self.pos(torch.arange(x.shape[1]))
        for b in self.blocks:
            h = b(h)
        return self.head(h)


@fault("the causal mask keeps the upper triangle instead of the lower one", rules=["future-seen"],
       layers=["blocks"], fails=True, steps=300)
def wrong_triangle(is_faulty):
    data, held = chain2(1, 1024, 17), chain2(2, 512, 17)
    batches = [(b[:, :-1], b[:, 1:]) for b in data.split(32)]
    model = TinyGPT(6, 16, 32, is_faulty)

    def score(m):
        return sum(acc(m(held[:, :k])[:, -1], held[:, k]) for k in (5, 8, 11)) / 3

    return Program(model, lambda o, y: F.cross_entropy(o.transpose(1, 2), y), batches,
                   torch.optim.AdamW(model.parameters(), 3e-3), score)


class Tagger(nn.Module):
    def __init__(self, v=12, tags=4):
        super().__init__()
        self.embed = nn.Embedding(v, 24)
        self.lstm = nn.LSTM(24, 32, batch_first=True)
        self.out = nn.Linear(32, tags)

    def forward(self, x):
        return self.out(self.lstm(self.embed(x))[0])


@fault("tags padded with 0 ('O') and counted; nine tenths of all places are padding", rules=["padding-in-loss"],
       fails=False, steps=200)
def pad_tags_counted(is_faulty):
    x, y, _ = tagged(1, 512, 6)
    hx, hy, _ = tagged(2, 256, 6)
    x, y = F.pad(x, (0, 34)), F.pad(y, (0, 34), value=-100)  # pad to max_len=40
    if is_faulty:
        y = y.masked_fill(y == -100, 0)
    batches = list(zip(x.split(16), y.split(16)))
    model = Tagger()
    crit = nn.CrossEntropyLoss(ignore_index=-100)
    return Program(model, lambda o, t: crit(o.reshape(-1, 4), t.reshape(-1)), batches,
                   torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), lambda m: acc(m(hx), hy))


class LastState(nn.Module):
    def __init__(self, naive):
        super().__init__()
        self.embed = nn.Embedding(30, 24)
        self.rnn = nn.RNN(24, 32, batch_first=True)
        self.fc = nn.Linear(32, 2)
        self.naive = naive

    def forward(self, ids, lengths):
        out, _ = self.rnn(self.embed(ids))
        last = out[:, -1] if self.naive else out[torch.arange(len(ids)), lengths - 1]
        return self.fc(last)


@fault("the state of the last column is read, which lies far behind the end of every text",
       rules=["wrong-mask", "vanishing-gradient", "rank-collapse"], layers=["rnn"], fails=True, steps=200)
def state_behind_the_padding(is_faulty):
    def make(seed, n):
        x, l, y = reviews(seed, n, 8)
        return F.pad(x, (0, 32)), l, y

    x, l, y = make(1, 1024)
    hx, hl, hy = make(2, 512)
    batches = [({"ids": a, "lengths": b}, c) for a, b, c in zip(x.split(32), l.split(32), y.split(32))]
    model = LastState(is_faulty)
    return Program(model, nn.CrossEntropyLoss(), batches, torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: acc(m(hx, hl), hy))


class AttnPool(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.inp = nn.Linear(6, 32)
        self.score = nn.Linear(32, 1)
        self.value = nn.Linear(32, 4)
        self.dim = dim

    def forward(self, x):
        h = torch.tanh(self.inp(x))
        w = torch.softmax(self.score(h), dim=self.dim)
        return (w * self.value(h)).sum(1)


@fault("softmax over the last dimension of (batch, time, 1), which is of size 1",
       rules=["wrong-softmax-dimension", "no-gradient"], layers=["score"], fails=False, steps=300)
def softmax_of_single(is_faulty):
    def make(seed, n, t=15):
        g = gen(seed)
        kind = torch.randint(4, (n, t), generator=g)
        mark = F.one_hot(torch.randint(t, (n,), generator=g), t).float()
        noise = 0.1 * torch.randn(n, t, 1, generator=g)
        x = torch.cat([F.one_hot(kind, 4).float(), mark[..., None], noise], -1)
        return x, (kind * mark.long()).sum(1)

    x, y = make(1, 2048)
    hx, hy = make(2, 512)
    model = AttnPool(-1 if is_faulty else 1)
    return Program(model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x, y), 64, shuffle=True, generator=gen(4)),
                   torch.optim.Adam(model.parameters(), 1e-2), lambda m: acc(m(hx), hy))
