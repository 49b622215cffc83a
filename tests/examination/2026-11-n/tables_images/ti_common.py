"""What the cases of this part have in common: loaders and scores."""
import torch
from torch.utils.data import DataLoader, TensorDataset


def gen(seed):
    return torch.Generator().manual_seed(seed)


def loader(*tensors, batch_size=32, shuffle=True):
    return DataLoader(TensorDataset(*tensors), batch_size=batch_size, shuffle=shuffle, drop_last=True)


def accuracy(x, y):
    return lambda model: (model(x).argmax(-1) == y).float().mean().item()


def r2(x, y, read=lambda out: out):
    def score(model):
        out = read(model(x)).float().reshape(y.shape)
        return max(0.0, (1 - (out - y).pow(2).mean() / (y - y.mean(0)).pow(2).mean()).item())

    return score


def shapes(n, seed, size=12, channels=1, classes=4, noise=0.3):
    """Noisy pictures of bars, discs, crosses and rings at random places."""
    g = gen(seed)
    y = torch.randint(classes, (n,), generator=g)
    cx, cy = (torch.rand(2, n, 1, 1, generator=g) * (size - 8) + 3.5)
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    dx, dy = (xx - cx).abs(), (yy - cy).abs()
    r = (dx**2 + dy**2).sqrt()
    kinds = torch.stack([
        (dy < 1) & (dx < 3.5), (dx < 1) & (dy < 3.5), r < 2.6, (r < 3.6) & (r > 2.2),
        ((dx < 0.8) | (dy < 0.8)) & (r < 3.6),
    ])
    image = kinds[y, torch.arange(n)].float().unsqueeze(1).repeat(1, channels, 1, 1)
    return image + noise * torch.randn(n, channels, size, size, generator=g), y


def clusters(n, seed, d=10, classes=4, spread=1.0, centres_seed=77, per_class=2):
    """A table whose classes are a few clusters each."""
    centres = 2.0 * torch.randn(classes * per_class, d, generator=gen(centres_seed))
    g = gen(seed)
    k = torch.randint(classes * per_class, (n,), generator=g)
    return centres[k] + spread * torch.randn(n, d, generator=g), k % classes
