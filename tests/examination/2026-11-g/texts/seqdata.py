import torch
from torch.utils.data import DataLoader, TensorDataset


def gen(seed):
    return torch.Generator().manual_seed(seed)


def loader(*tensors, batch_size=64, shuffle=True):
    return DataLoader(TensorDataset(*tensors), batch_size=batch_size, shuffle=shuffle, drop_last=True)


def acc(logits, y):
    return (logits.argmax(-1) == y).float().mean().item()


def r2(pred, y):
    return max(0.0, 1 - ((pred - y) ** 2).mean().item() / y.var(unbiased=False).item())


def topics(n, length, vocab, classes, seed, share=0.5):
    """Documents: a share of the words come from the words of the class; id 0 is never used."""
    g = gen(seed)
    y = torch.randint(classes, (n,), generator=g)
    x = torch.randint(1, vocab, (n, length), generator=g)
    own = 1 + y[:, None] + classes * torch.randint((vocab - 1) // classes, (n, length), generator=g)
    return torch.where(torch.rand(n, length, generator=g) < share, own, x), y


def padded(x, least, seed):
    n, t = x.shape
    lengths = torch.randint(least, t, (n,), generator=gen(seed))
    return torch.where(torch.arange(t) < lengths[:, None], x, 0), lengths


def chain(n, length, vocab, seed, noise=0.1, table_seed=77):
    g = gen(seed)
    nxt = torch.randperm(vocab, generator=gen(table_seed))
    x = torch.empty(n, length, dtype=torch.long)
    x[:, 0] = torch.randint(vocab, (n,), generator=g)
    for t in range(1, length):
        rnd = torch.randint(vocab, (n,), generator=g)
        x[:, t] = torch.where(torch.rand(n, generator=g) < noise, rnd, nxt[x[:, t - 1]])
    return x
