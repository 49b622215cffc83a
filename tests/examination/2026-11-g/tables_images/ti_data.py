"""Synthetic tables and pictures, all from generators of fixed seed."""

import torch


def clusters(n, d, classes, seed, per=2, noise=0.6, held=400):
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes * per, d, generator=g)
    which = torch.randint(classes * per, (n + held,), generator=g)
    x = centres[which] + noise * torch.randn(n + held, d, generator=g)
    y = which % classes
    return x[:n], y[:n], x[n:], y[n:]


def curve(n, d, seed, held=400, noise=0.05):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n + held, d, generator=g)
    y = torch.sin(1.5 * x[:, 0]) + 0.6 * x[:, 1] * x[:, 2] + 0.8 * x[:, 3]
    y = (y - y.mean()) / y.std() + noise * torch.randn(n + held, generator=g)
    return x[:n], y[:n], x[n:], y[n:]


def shapes(n, seed, size=12, noise=0.12, held=300):
    g = torch.Generator().manual_seed(seed)
    p = torch.zeros(4, 5, 5)
    p[0, 2, :] = 1
    p[1, :, 2] = 1
    p[2].fill_diagonal_(1)
    p[3, 0, :] = p[3, 4, :] = p[3, :, 0] = p[3, :, 4] = 1
    m = n + held
    kind = torch.randint(4, (m,), generator=g)
    at = torch.randint(0, size - 4, (m, 2), generator=g).tolist()
    img = torch.zeros(m, 1, size, size)
    for i, (r, c) in enumerate(at):
        img[i, 0, r : r + 5, c : c + 5] = p[kind[i]]
    img = img * (0.6 + 0.4 * torch.rand(m, 1, 1, 1, generator=g)) + noise * torch.randn(m, 1, size, size, generator=g)
    img = img.clamp(0, 1)
    return img[:n], kind[:n], img[n:], kind[n:]


def scenes(n, seed, size=16, held=100):
    """Noisy pictures with a disc (1) and a square (2); masks of class numbers."""
    g = torch.Generator().manual_seed(seed)
    m = n + held
    img = 0.15 * torch.randn(m, 1, size, size, generator=g)
    mask = torch.zeros(m, size, size, dtype=torch.long)
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    pos = (torch.rand(m, 4, generator=g) * (size - 6) + 3).tolist()
    for i, (a, b, c, d) in enumerate(pos):
        disc = (yy - a) ** 2 + (xx - b) ** 2 < 10
        square = ((yy - c).abs() < 2.5) & ((xx - d).abs() < 2.5) & ~disc
        img[i, 0][disc] += 1
        img[i, 0][square] -= 1
        mask[i][disc] = 1
        mask[i][square] = 2
    return img[:n], mask[:n], img[n:], mask[n:]


def smooth(n, seed, size=10, k=4, held=200):
    """Pictures that are mixtures of a few smooth waves, in 0..1."""
    g = torch.Generator().manual_seed(seed)
    t = torch.linspace(0, 3.14, size)
    basis = torch.stack([torch.outer(torch.cos(a * t), torch.cos(b * t)) for a, b in [(1, 0), (0, 1), (1, 2), (2, 1)][:k]])
    w = torch.randn(n + held, k, generator=g)
    x = torch.sigmoid(torch.einsum("nk,khw->nhw", w, basis))[:, None]
    return x[:n], x[n:]


def accuracy(model, x, y):
    return (model(x).argmax(1) == y).float().mean().item()


def r2(pred, y):
    pred = pred.float().reshape(y.shape)
    return max(0.0, (1 - ((pred - y) ** 2).mean() / ((y - y.mean()) ** 2).mean()).item())


def iou(pred, mask, classes=(1, 2)):
    out = []
    for c in classes:
        a, b = pred == c, mask == c
        out.append((a & b).sum().item() / max(1, (a | b).sum().item()))
    return sum(out) / len(out)
