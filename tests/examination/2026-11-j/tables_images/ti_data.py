"""Synthetic data shared by the cases of this folder."""
import torch


def gen(seed):
    return torch.Generator().manual_seed(seed)


def clusters(n, d=10, k=4, per=3, seed=0, spread=1.6):
    """Tabular classification: several clusters a class, in d dimensions."""
    g = gen(seed)
    centers = torch.randn(k * per, d, generator=g) * spread
    which = torch.randint(0, k * per, (n,), generator=g)
    return centers[which] + 0.6 * torch.randn(n, d, generator=g), which % k


def surface(n, d=8, seed=0, noise=0.1):
    """Tabular regression; targets of about unit scale."""
    g = gen(seed)
    x = torch.randn(n, d, generator=g)
    y = torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] * 0.8 + 0.5 * x[:, 3] + 0.5 * x[:, 4].abs()
    y = y + noise * torch.randn(n, generator=g)
    return x, (y - 0.4) / 1.25


def shapes(n, size=12, seed=0, noise=0.15):
    """Pictures in [0, 1]: horizontal bar, vertical bar, diagonal, square outline."""
    g = gen(seed)
    x = torch.zeros(n, 1, size, size)
    y = torch.randint(0, 4, (n,), generator=g)
    pos = torch.randint(1, size - 6, (n, 2), generator=g)
    for i in range(n):
        r, c = pos[i].tolist()
        k = int(y[i])
        if k == 0:
            x[i, 0, r + 2, c:c + 5] = 1
        elif k == 1:
            x[i, 0, r:r + 5, c + 2] = 1
        elif k == 2:
            for j in range(5):
                x[i, 0, r + j, c + j] = 1
        else:
            x[i, 0, r:r + 5, c:c + 5] = 1
            x[i, 0, r + 1:r + 4, c + 1:c + 4] = 0
    x = (x * 0.8 + noise * torch.rand(n, 1, size, size, generator=g)).clamp(0, 1)
    return x, y


def scenes(n, size=12, seed=0, classes=3):
    """Pictures with rectangles, and a mask of classes by brightness."""
    g = gen(seed)
    x = torch.zeros(n, 1, size, size)
    m = torch.zeros(n, size, size, dtype=torch.long)
    for i in range(n):
        for k in range(1, classes):
            r, c = torch.randint(0, size - 5, (2,), generator=g).tolist()
            h, w = torch.randint(3, 6, (2,), generator=g).tolist()
            x[i, 0, r:r + h, c:c + w] = k / (classes - 1)
            m[i, r:r + h, c:c + w] = k
    return x + 0.08 * torch.randn(n, 1, size, size, generator=g), m


def r2(p, y):
    p, y = p.reshape(-1).float(), y.reshape(-1).float()
    v = 1 - float(((p - y) ** 2).mean() / y.var())
    return max(0.0, v) if v == v else 0.0


def acc(logits, y):
    return float((logits.argmax(1) == y).float().mean())


def miou(logits, m, first=0):
    p = logits.argmax(1)
    out = []
    for k in range(first, logits.shape[1]):
        a, b = p == k, m == k
        out.append(float((a & b).sum()) / max(1, float((a | b).sum())))
    return sum(out) / len(out)
