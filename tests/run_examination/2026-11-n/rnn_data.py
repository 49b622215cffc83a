"""Data makers and small helpers of the rnn_ cases."""
from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)


def rnn_seed(n):
    torch.manual_seed(n)
    np.random.seed(n)


def rnn_gen(n):
    return torch.Generator().manual_seed(n)


def rnn_digits(n_train=1297, seed=0):
    from sklearn.datasets import load_digits

    d = load_digits()
    p = np.random.RandomState(seed).permutation(len(d.target))
    x = torch.tensor(d.images[p], dtype=torch.float32).unsqueeze(1) / 16.0
    x = (x - 0.305) / 0.376
    y = torch.tensor(d.target[p])
    return x[:n_train], y[:n_train], x[1297:], y[1297:]


def rnn_epochs(n, size, gen):
    """Endless shuffled index batches."""
    while True:
        p = torch.randperm(n, generator=gen)
        for i in range(0, n - size + 1, size):
            yield p[i : i + size]


@torch.no_grad()
def rnn_eval(model, loss, x, y):
    was = model.training
    model.eval()
    v = float(loss(model(x), y))
    model.train(was)
    return v


def rnn_teacher(n, gen, d=20, classes=6, noise=0.0):
    """Classes given by a fixed random two-layer network."""
    g = rnn_gen(1234 + classes + d)
    w1 = torch.randn(d, 24, generator=g) / d**0.5 * 1.5
    w2 = torch.randn(24, classes, generator=g)
    x = torch.randn(n, d, generator=gen)
    z = torch.tanh(x @ w1) @ w2
    z = z - z.mean(0)
    if noise:
        z = z + noise * torch.randn(z.shape, generator=gen)
    return x, z.argmax(1)


def rnn_images(n, gen, size=12, noise=0.4):
    """Six kinds of small pictures: bars, diagonals, cross, square."""
    x = torch.zeros(n, 1, size, size)
    y = torch.randint(0, 6, (n,), generator=gen)
    r = torch.randint(2, size - 4, (n, 2), generator=gen)
    for i in range(n):
        a, b = int(r[i, 0]), int(r[i, 1])
        k = int(y[i])
        im = x[i, 0]
        if k == 0:
            im[a, b - 2 : b + 4] = 1
        elif k == 1:
            im[a - 2 : a + 4, b] = 1
        elif k == 2:
            for j in range(-2, 4):
                im[a + j, b + j] = 1
        elif k == 3:
            for j in range(-2, 4):
                im[a + j, b + 1 - j] = 1
        elif k == 4:
            im[a, b - 2 : b + 3] = 1
            im[a - 2 : a + 3, b] = 1
        else:
            im[a - 2 : a + 3, b - 2] = im[a - 2 : a + 3, b + 2] = 1
            im[a - 2, b - 2 : b + 3] = im[a + 2, b - 2 : b + 3] = 1
    x = x + noise * torch.randn(x.shape, generator=gen)
    return x * 1.5, y


def rnn_waves(n, gen, length=24, classes=5, noise=0.5):
    """Waves whose frequency is the class; [n, length, 1]."""
    y = torch.randint(0, classes, (n,), generator=gen)
    t = torch.arange(length).float()
    f = 0.2 + 0.16 * y.float() + 0.03 * torch.randn(n, generator=gen)
    ph = 6.283 * torch.rand(n, generator=gen)
    a = 1.0 + 0.3 * torch.rand(n, generator=gen)
    x = a[:, None] * torch.sin(f[:, None] * t + ph[:, None]) + noise * torch.randn(n, length, generator=gen)
    return x.unsqueeze(-1), y


def rnn_forecast(n, gen, length=20, noise=0.1):
    """Sum of two waves; the target is the next value."""
    t = torch.arange(length + 1).float()
    x = torch.zeros(n, length + 1)
    for lo, hi, amp in ((0.15, 0.4, 1.0), (0.6, 1.0, 0.5)):
        f = lo + (hi - lo) * torch.rand(n, 1, generator=gen)
        x = x + amp * torch.sin(f * t + 6.283 * torch.rand(n, 1, generator=gen))
    x = x + noise * torch.randn(x.shape, generator=gen)
    return x[:, :-1].unsqueeze(-1), x[:, -1:]


def rnn_text(n, seed, vocab=20, sharp=1.6):
    """A second-order Markov text; the chain is the same for every seed."""
    r = np.random.RandomState(77)
    a = r.randn(vocab, vocab) * sharp
    b = r.randn(vocab, vocab) * sharp
    logits = a[:, None, :] + b[None, :, :]
    p = np.exp(logits - logits.max(-1, keepdims=True))
    c = (p / p.sum(-1, keepdims=True)).cumsum(-1)
    r = np.random.RandomState(seed)
    u = r.rand(n)
    out = np.zeros(n, dtype=np.int64)
    for i in range(2, n):
        out[i] = min(int(np.searchsorted(c[out[i - 2], out[i - 1]], u[i])), vocab - 1)
    return torch.from_numpy(out)


def rnn_windows(text, size, length, gen):
    i = torch.randint(0, len(text) - length - 1, (size,), generator=gen)
    w = text[i[:, None] + torch.arange(length + 1)]
    return w[:, :-1], w[:, 1:]


def rnn_cloud(n, gen, points=32):
    """Point clouds of four forms; [n, points, 3]."""
    y = torch.randint(0, 4, (n,), generator=gen)
    v = torch.randn(n, points, 3, generator=gen)
    u = torch.rand(n, points, 3, generator=gen) * 2 - 1
    sphere = v / v.norm(dim=-1, keepdim=True)
    cube = u.clone()
    ax = torch.randint(0, 3, (n, points, 1), generator=gen)
    cube.scatter_(2, ax, cube.gather(2, ax).sign())
    cube = cube * 0.8
    an = 6.283 * torch.rand(n, points, 2, generator=gen)
    torus = torch.stack(
        [(0.8 + 0.3 * an[..., 1].cos()) * an[..., 0].cos(), (0.8 + 0.3 * an[..., 1].cos()) * an[..., 0].sin(), 0.3 * an[..., 1].sin()], -1
    )
    blob = v * 0.6
    all_ = torch.stack([sphere, cube, torus, blob], 1)
    x = all_[torch.arange(n), y]
    x = x + 0.08 * torch.randn(x.shape, generator=gen)
    return x, y


def rnn_ratings(n, gen, users=120, items=80):
    g = rnn_gen(4321)
    u = torch.randn(users, 5, generator=g)
    v = torch.randn(items, 5, generator=g)
    bu = 0.5 * torch.randn(users, generator=g)
    i = torch.randint(0, users, (n,), generator=gen)
    p = torch.rand(n, generator=gen) ** 2
    j = (p * items).long().clamp(max=items - 1)
    r = (u[i] * v[j]).sum(1) * 0.6 + bu[i] + 0.4 * torch.randn(n, generator=gen)
    return torch.stack([i, j], 1), r


def rnn_lm_loss(o, y):
    return F.cross_entropy(o.flatten(0, 1), y.flatten())


def rnn_set_lr(opt, lr):
    for g in opt.param_groups:
        g["lr"] = lr


def rnn_cosine(step, total, base, warm=0, end=0.0):
    if step <= warm:
        return base * step / warm
    f = (step - warm) / max(1, total - warm)
    return end + (base - end) * 0.5 * (1 + math.cos(math.pi * min(1.0, f)))


class RnnBlock(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, d, heads, causal=True, drop=0.0):
        super().__init__()
        self.n1 = nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.n2 = nn.LayerNorm(d)
        self.up = nn.Linear(d, 3 * d)
        self.act = nn.GELU()
        self.down = nn.Linear(3 * d, d)
        self.drop = nn.Dropout(drop)
        self.heads, self.causal = heads, causal

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.n1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.drop(self.out(a.transpose(1, 2).reshape(b, t, d)))
        return x + self.drop(self.down(self.act(self.up(self.n2(x)))))


class RnnLM(nn.Module):
    def __init__(self, vocab, d=32, heads=4, layers=2, length=24, causal=True, tied=False, drop=0.0):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Embedding(length, d)
        nn.init.normal_(self.tok.weight, std=0.1)
        nn.init.normal_(self.pos.weight, std=0.1)
        self.blocks = nn.ModuleList(RnnBlock(d, heads, causal, drop) for _ in range(layers))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab, bias=False)
        if tied:
            self.head.weight = self.tok.weight

    def forward(self, x):
        h = self.tok(x) + self.pos(torch.arange(x.shape[1]))
        for b in self.blocks:
            h = b(h)
        return self.head(self.norm(h))
