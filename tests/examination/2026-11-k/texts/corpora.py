import torch
from torch.utils.data import DataLoader, TensorDataset

def G(s):
    return torch.Generator().manual_seed(s)

def loader(*ts, bs=32, shuffle=True, drop_last=True):
    return DataLoader(TensorDataset(*ts), batch_size=bs, shuffle=shuffle, drop_last=drop_last, generator=G(5))

def chain(n, L, V=12, seed=0, keep=0.95):
    """Texts in which a token mostly says what the next one is."""
    nxt = torch.randperm(V, generator=G(99))
    nxt = torch.roll(nxt, 1)[torch.argsort(nxt)]  # one long cycle
    g = G(seed)
    x = torch.randint(0, V, (n, L), generator=g)
    k = torch.rand(n, L, generator=g) < keep
    for t in range(1, L):
        x[:, t] = torch.where(k[:, t], nxt[x[:, t - 1]], x[:, t])
    return x

def padded(n, L=16, V=20, seed=0, least=3, most=None):
    """Ids from 1; 0 is padding. More tokens from the upper half than the lower one: class 1."""
    g = G(seed)
    y = torch.randint(0, 2, (n,), generator=g)
    lens = torch.randint(least, (most or L) + 1, (n,), generator=g)
    up = torch.rand(n, L, generator=g) < torch.where(y == 1, 0.85, 0.15)[:, None]
    x = 1 + torch.randint(0, V // 2, (n, L), generator=g) + up * (V // 2)
    x[torch.arange(L)[None] >= lens[:, None]] = 0
    return x, y, lens

def waves(n, L=24, ahead=1, seed=0, noise=0.05):
    g = G(seed)
    f = 0.2 + 0.6 * torch.rand(n, 1, generator=g)
    p = 6.28 * torch.rand(n, 1, generator=g)
    t = torch.arange(L + ahead)[None].float()
    s = torch.sin(f * t + p) + noise * torch.randn(n, L + ahead, generator=g)
    return s[:, :L, None], s[:, L + ahead - 1]

def tones(n, L=64, classes=4, seed=0, noise=0.5):
    g = G(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    f = (0.25 + 0.35 * y.float())[:, None]
    p = 6.28 * torch.rand(n, 1, generator=g)
    return torch.sin(f * torch.arange(L)[None] + p)[:, None] + noise * torch.randn(n, 1, L, generator=g), y

def acc(out, y):
    return (out.argmax(-1) == y).float().mean().item()

def r2(out, y):
    return 1 - ((out.reshape(-1) - y.reshape(-1)) ** 2).mean().item() / y.var().item()
