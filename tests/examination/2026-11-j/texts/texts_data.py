"""Synthetic sequences shared by the cases."""
import torch


def gen(seed):
    return torch.Generator().manual_seed(seed)


def chain(seed, n, t, v=12, noise=0.1):
    """First order: the next token is a permutation of the last one, mostly."""
    perm = torch.randperm(v, generator=gen(77))
    g = gen(seed)
    x = torch.empty(n, t, dtype=torch.long)
    x[:, 0] = torch.randint(v, (n,), generator=g)
    for i in range(1, t):
        rnd = torch.rand(n, generator=g) < noise
        x[:, i] = torch.where(rnd, torch.randint(v, (n,), generator=g), perm[x[:, i - 1]])
    return x


def chain2(seed, n, t, v=6, noise=0.1):
    """Second order."""
    table = torch.randint(v, (v, v), generator=gen(78))
    g = gen(seed)
    x = torch.randint(v, (n, t), generator=g)
    for i in range(2, t):
        rnd = torch.rand(n, generator=g) < noise
        x[:, i] = torch.where(rnd, x[:, i], table[x[:, i - 1], x[:, i - 2]])
    return x


def reviews(seed, n, t, v=30, least=3, words=False):
    """Padded texts (pad = 0) with good (odd) and bad (even) words; label: more good ones."""
    g = gen(seed)
    lens = torch.randint(least, t + 1, (n,), generator=g)
    y = torch.randint(2, (n,), generator=g)
    p = torch.where(y == 1, 0.8, 0.2)
    odd = torch.rand(n, t, generator=g) < p[:, None]
    tok = 2 * torch.randint(1, v // 2, (n, t), generator=g) + odd.long()
    pad = torch.arange(t)[None] >= lens[:, None]
    tok = tok.masked_fill(pad, 0)
    count = torch.where(pad, 0, 2 * odd.long() - 1).sum(1)
    return tok, lens, torch.where(count == 0, y, (count > 0).long())


def tagged(seed, n, t, v=12, tags=4, least=3):
    """Padded tagging (pad = 0, label -100): the tag depends on the word and on the one before."""
    g = gen(seed)
    table = torch.randint(tags, (v, 2), generator=gen(79))
    x = torch.randint(1, v, (n, t), generator=g)
    prev = torch.cat([torch.zeros(n, 1, dtype=torch.long), x[:, :-1]], 1)
    y = table[x, prev % 2]
    lens = torch.randint(least, t + 1, (n,), generator=g)
    pad = torch.arange(t)[None] >= lens[:, None]
    return x.masked_fill(pad, 0), y.masked_fill(pad, -100), lens


def waves(seed, n, t, noise=0.05):
    """Sinusoids of random frequency and phase."""
    g = gen(seed)
    f = 0.2 + 0.5 * torch.rand(n, 1, generator=g)
    ph = 6.28 * torch.rand(n, 1, generator=g)
    return torch.sin(f * torch.arange(t)[None] + ph) + noise * torch.randn(n, t, generator=g)


def r2(pred, y):
    return max(0.0, 1 - ((pred - y) ** 2).mean().item() / y.var().item())


def acc(logits, y, ignore=-100):
    keep = y != ignore
    return (logits.argmax(-1) == y)[keep].float().mean().item()
