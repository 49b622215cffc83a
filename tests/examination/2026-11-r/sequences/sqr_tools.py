"""Data and scores shared by the cases."""
import math
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, Dataset


def gen(seed):
    return torch.Generator().manual_seed(seed)


def loader(*tensors, size=32, shuffle=True, **kw):
    return DataLoader(TensorDataset(*tensors), batch_size=size, shuffle=shuffle, **kw)


class Dicts(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {k: v[i] for k, v in self.x.items()}, self.y[i]


def accuracy(x, y, get=lambda o: o):
    def score(model):
        out = get(model(**x) if isinstance(x, dict) else model(x))
        return (out.argmax(-1) == y).float().mean().item()
    return score


def r2(x, y, get=lambda o: o):
    def score(model):
        out = get(model(x)).reshape(y.shape)
        return max(0.0, 1 - ((out - y) ** 2).mean().item() / y.var(unbiased=False).item())
    return score


def keywords(n, length, seed, low=None, vocab=40, classes=4, cls=False):
    """Two keywords of a class among filler words; 0 pads; 13 begins, if `cls`."""
    g = gen(seed)
    low = low or length
    x = torch.randint(14, vocab, (n, length), generator=g)
    y = torch.randint(0, classes, (n,), generator=g)
    lens = torch.randint(low, length + 1, (n,), generator=g)
    for i in range(n):
        first = 1 if cls else 0
        spots = torch.randperm(int(lens[i]) - first, generator=g)[:2] + first
        x[i, spots] = 1 + 3 * y[i] + torch.randint(0, 3, (2,), generator=g)
        x[i, lens[i]:] = 0
        if cls:
            x[i, 0] = 13
    return x, y


def first_of(n, length, seed, vocab=20):
    """Whether token 1 comes before token 2."""
    g = gen(seed)
    x = torch.randint(3, vocab, (n, length), generator=g)
    y = torch.empty(n, dtype=torch.long)
    for i in range(n):
        a, b = torch.randperm(length, generator=g)[:2].tolist()
        x[i, a], x[i, b] = 1, 2
        y[i] = int(a < b)
    return x, y


def table(vocab, seed=99):
    return torch.randperm(vocab, generator=gen(seed))


def chain(n, length, seed, vocab=24, keep=0.85):
    """A Markov chain that follows a permutation mostly."""
    g = gen(seed)
    step = table(vocab)
    x = torch.randint(0, vocab, (n, length), generator=g)
    for t in range(1, length):
        follow = torch.rand(n, generator=g) < keep
        x[:, t] = torch.where(follow, step[x[:, t - 1]], x[:, t])
    return x


def next_score(vocab=24, length=16, get=lambda o: o, as_dict=False, classes_first=False):
    """How often the likeliest token after a whole prefix is named."""
    x = chain(400, length, 777, vocab)
    y = table(vocab)[x[:, -1]]

    def score(model):
        out = get(model(input_ids=x) if as_dict else model(x))
        out = out[..., -1] if classes_first else out[:, -1]
        return (out.argmax(-1) == y).float().mean().item()
    return score


def sines(n, length, seed, noise=0.05):
    g = gen(seed)
    t = torch.arange(length).float()
    freq = 0.15 + 0.5 * torch.rand(n, 1, generator=g)
    phase = 2 * math.pi * torch.rand(n, 1, generator=g)
    amp = 0.5 + torch.rand(n, 1, generator=g)
    return amp * torch.sin(freq * t + phase) + noise * torch.randn(n, length, generator=g)


def tones(n, length, seed, classes=4, noise=0.3):
    g = gen(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    t = torch.arange(length).float()
    freq = (0.25 + 0.35 * y.float())[:, None] * (1 + 0.05 * torch.randn(n, 1, generator=g))
    x = torch.sin(freq * t + 6.283 * torch.rand(n, 1, generator=g)) * (0.7 + 0.6 * torch.rand(n, 1, generator=g))
    return x + noise * torch.randn(n, length, generator=g), y


class Attend(nn.Module):
    """Self-attention by hand."""

    def __init__(self, d, heads=2, causal=False, factor=None):
        super().__init__()
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.heads, self.causal = heads, causal
        self.factor = factor or (d // heads) ** -0.5

    def forward(self, x, pad=None):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        a = q @ k.transpose(-1, -2) * self.factor
        if self.causal:
            a = a.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -math.inf)
        if pad is not None:
            a = a.masked_fill(pad[:, None, None], -1e9)
        return self.out((a.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, d, heads=2, causal=False, factor=None):
        super().__init__()
        self.n1, self.att = nn.LayerNorm(d), Attend(d, heads, causal, factor)
        self.n2, self.mlp = nn.LayerNorm(d), nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x, pad=None):
        x = x + self.att(self.n1(x), pad)
        return x + self.mlp(self.n2(x))


def token_loss(out, y):
    return F.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1))
