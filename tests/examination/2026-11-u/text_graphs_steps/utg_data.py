"""Synthetic data that the cases share."""
import torch
from torch.utils.data import DataLoader, TensorDataset


def utg_gen(seed):
    return torch.Generator().manual_seed(seed)


def utg_loader(*tensors, batch=32, shuffle=True):
    return DataLoader(TensorDataset(*tensors), batch_size=batch, shuffle=shuffle)


def utg_markov(n, length, vocab, seed, noise=0.05):
    """Sequences in which a table says what follows two tokens, mostly."""
    table = torch.stack([torch.randperm(vocab, generator=utg_gen(77 + i)) for i in range(2)])
    g = utg_gen(seed)
    out = torch.randint(vocab, (n, length), generator=g)
    for t in range(1, length):
        which = (out[:, t - 2] >= vocab // 2).long() if t > 1 else torch.zeros(n, dtype=torch.long)
        nxt = table[which, out[:, t - 1]]
        keep = torch.rand(n, generator=g) > noise
        out[:, t] = torch.where(keep, nxt, out[:, t])
    return out


def utg_tagged(n, longest, vocab, tags, seed, shortest=3, mean=None):
    """Token ids from 1 on, padded with 0, and tags from 1 on, padded with 0; a tag depends on the token before too."""
    g = utg_gen(seed)
    ids = torch.randint(1, vocab, (n, longest), generator=g)
    if mean is None:
        lengths = torch.randint(shortest, longest + 1, (n,), generator=g)
    else:
        lengths = (shortest - mean * torch.rand(n, generator=g).clamp_min(1e-4).log()).long().clamp(shortest, longest)
    kind = torch.randint(0, tags, (vocab,), generator=utg_gen(5))
    before = torch.cat([torch.zeros(n, 1, dtype=torch.long), ids[:, :-1]], 1)
    shift = (before > vocab // 2).long()
    y = (kind[ids] + shift) % tags + 1
    real = torch.arange(longest)[None] < lengths[:, None]
    return ids * real, y * real, lengths


def utg_keyword(n, length, vocab, classes, seed, padded=True, shortest=4):
    """Ids from `classes + 2` on, one of them replaced by the keyword of its class; id 0 is padding, 1 a [CLS] in front."""
    g = utg_gen(seed)
    ids = torch.randint(classes + 2, vocab, (n, length), generator=g)
    lengths = torch.randint(shortest, length, (n,), generator=g) if padded else torch.full((n,), length)
    y = torch.randint(classes, (n,), generator=g)
    at = 1 + (torch.rand(n, generator=g) * (lengths - 1)).long()
    ids[torch.arange(n), at] = y + 2
    ids[:, 0] = 1
    return ids * (torch.arange(length)[None] < lengths[:, None]), y, lengths


def utg_graph(nodes, classes, features, seed, p_in=0.12, p_out=0.02, noise=2.0):
    """A stochastic block model with noisy features of its communities."""
    g = utg_gen(seed)
    y = torch.randint(classes, (nodes,), generator=g)
    same = y[:, None] == y[None]
    adj = (torch.rand(nodes, nodes, generator=g) < torch.where(same, p_in, p_out)).float().triu(1)
    adj = adj + adj.T
    centres = torch.randn(classes, features, generator=g)
    x = centres[y] + noise * torch.randn(nodes, features, generator=g)
    return x, adj, y


def utg_clouds(n, points, seed, noise=0.03):
    """Point clouds of a sphere, a cube's surface, a disc and a cross, of random sizes."""
    g = utg_gen(seed)
    y = torch.arange(n) % 4
    y = y[torch.randperm(n, generator=g)]
    v = torch.randn(n, points, 3, generator=g)
    sphere = v / v.norm(dim=-1, keepdim=True)
    cube = v / v.abs().amax(-1, keepdim=True)
    disc = sphere * torch.tensor([1.0, 1.0, 0.0])
    axis = torch.nn.functional.one_hot(torch.randint(3, (n, points), generator=g), 3)
    cross = (2 * torch.rand(n, points, 1, generator=g) - 1) * axis
    x = torch.stack([sphere, cube, disc, cross], 1)[torch.arange(n), y]
    return x * (0.7 + 0.6 * torch.rand(n, 1, 1, generator=g)) + noise * torch.randn(n, points, 3, generator=g), y


def utg_accuracy(logits, y):
    return (logits.argmax(-1) == y).float().mean().item()


def utg_r2(p, y):
    return max(-1.0, 1 - ((p - y) ** 2).mean().item() / y.var().item())
