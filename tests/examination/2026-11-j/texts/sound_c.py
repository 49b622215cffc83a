"""Unusual, and right."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from program import Program, sound
from texts_data import acc, chain, gen, r2, reviews, tagged, waves


class Ender(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 24)
        self.gru = nn.GRU(24, 48, batch_first=True)
        self.out = nn.Linear(48, 12)

    def forward(self, x):
        return self.out(self.gru(self.embed(x))[0])


@sound("0 is the end sign and repeats to the end of the text; the model has to learn it, so it counts", steps=250, least=0.7)
def end_sign_counts():
    def make(seed, n):
        x = chain(seed, n, 14, v=11, noise=0.05) + 1
        stop = (x == 4).cumsum(1) - (x == 4).long() > 0  # all behind the first 4
        return x.masked_fill(stop, 0)

    d, h = make(11, 1024), make(12, 256)
    model = Ender()
    return Program(model, lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()),
                   DataLoader(TensorDataset(d[:, :-1], d[:, 1:]), 32, shuffle=True, generator=gen(1)),
                   torch.optim.Adam(model.parameters(), 5e-3), lambda m: acc(m(h[:, :-1]), h[:, 1:]))


class Gaussian(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(1, 24, batch_first=True)
        self.head = nn.Linear(24, 2)

    def forward(self, x):
        return self.head(self.gru(x)[1][-1]).chunk(2, -1)


@sound("a forecast with its variance: the loss is a likelihood and becomes negative", steps=300, least=0.7)
def negative_likelihood():
    s, h = waves(11, 1024, 13), waves(12, 256, 13)
    model = Gaussian()

    def loss(out, y):
        mean, logvar = out
        return (0.5 * logvar + 0.5 * (y - mean) ** 2 * (-logvar).exp()).mean()

    return Program(model, loss, DataLoader(TensorDataset(s[:, :-1, None], s[:, -1:]), 32, shuffle=True, generator=gen(1)),
                   torch.optim.Adam(model.parameters(), 5e-3), lambda m: r2(m(h[:, :-1, None])[0], h[:, -1:]))


class Twin(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.EmbeddingBag(20, 24), nn.EmbeddingBag(20, 24)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, a, b):
        a, b = F.normalize(self.left(a), dim=-1), F.normalize(self.right(b), dim=-1)
        return self.scale.exp() * a @ b.t()


@sound("pairs of texts in two languages: the other examples of the batch are the negatives", steps=300, least=0.7)
def in_batch_negatives():
    table = torch.randperm(20, generator=gen(8))

    def make(seed, n):
        g = gen(seed)
        a = torch.randint(20, (n, 5), generator=g)
        return a, table[a][:, torch.randperm(5, generator=g)]

    (a, b), (ha, hb) = make(11, 2048), make(12, 64)
    model = Twin()
    step = lambda m, batch: F.cross_entropy(m(*batch), torch.arange(len(batch[0])))  # noqa: E731
    return Program(model, None, DataLoader(TensorDataset(a, b), 32, shuffle=True, drop_last=True, generator=gen(1)),
                   torch.optim.Adam(model.parameters(), 1e-2), lambda m: acc(m(ha, hb), torch.arange(64)), step=step)


class Rare(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.conv = nn.Conv1d(16, 32, 2)
        self.fc = nn.Linear(32, 1)

    def forward(self, x):
        h = self.conv(F.pad(self.embed(x).transpose(1, 2), (1, 0))).relu()
        return self.fc(h.transpose(1, 2)).squeeze(-1)


@sound("one word in ten is to be marked; pos_weight, and a mask that leaves padding out", steps=250, least=0.7)
def rare_marks():
    def make(seed, n):
        g = gen(seed)
        x = torch.randint(1, 20, (n, 12), generator=g)
        prev = F.pad(x[:, :-1], (1, 0))
        y = ((x % 5 == 0) & (prev % 2 == 1)).float()
        real = torch.arange(12)[None] < torch.randint(4, 13, (n, 1), generator=g)
        return x * real, y * real, real.float()

    d, (hx, hy, hm) = make(11, 1024), make(12, 512)
    model = Rare()

    def step(m, batch):
        x, y, real = batch
        each = F.binary_cross_entropy_with_logits(m(x), y, pos_weight=torch.tensor(5.0), reduction="none")
        return (each * real).sum() / real.sum()

    def score(m):  # F1
        p = (m(hx) > 0).float() * hm
        return (2 * (p * hy).sum() / ((p + hy).sum() + 1e-9)).item()

    return Program(model, None, DataLoader(TensorDataset(*d), 32, shuffle=True, generator=gen(1)),
                   torch.optim.Adam(model.parameters(), 1e-2), score, step=step)


class FrozenWords(nn.Module):
    def __init__(self, vectors):
        super().__init__()
        self.embed = nn.Embedding.from_pretrained(vectors, freeze=True, padding_idx=0)
        self.gru = nn.GRU(vectors.shape[1], 32, batch_first=True)
        self.fc = nn.Linear(32, 2)

    def forward(self, ids, mask):
        h, _ = self.gru(self.embed(ids))
        return self.fc((h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


@sound("given word vectors stay frozen; batches are sorted by length, not by class; mean over real places", trained=50, steps=250, least=0.75)
def frozen_vectors_in_buckets():
    vectors = torch.randn(30, 24, generator=gen(7))
    vectors[0] = 0
    x, l, y = reviews(11, 1024, 14)
    hx, _, hy = reviews(12, 512, 14)
    order = l.argsort()
    buckets = [(({"ids": x[i][:, : l[i].max()], "mask": (x[i][:, : l[i].max()] != 0).float()}), y[i]) for i in order.split(32)]
    shuffled = [buckets[i] for i in torch.randperm(len(buckets), generator=gen(2)).tolist()]
    model = FrozenWords(vectors)
    return Program(model, nn.CrossEntropyLoss(), shuffled,
                   torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 3e-3),
                   lambda m: acc(m(hx, (hx != 0).float()), hy))


@sound("one-cycle schedule that begins at a hundredth of its rate", trained=10, steps=300, least=0.7)
def begins_slowly():
    s, h = waves(11, 1024, 21), waves(12, 256, 21)
    model = nn.Sequential(nn.Flatten(), nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 1e-2, total_steps=500, div_factor=100)
    return Program(model, nn.SmoothL1Loss(), DataLoader(TensorDataset(s[:, :-1, None], s[:, -1:]), 32, shuffle=True, generator=gen(1)),
                   opt, lambda m: r2(m(h[:, :-1, None]), h[:, -1:]), sched)


class Causal(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv1d(1 if i == 0 else 24, 24, 2, dilation=2**i) for i in range(3)])
        self.out = nn.Conv1d(24, 1, 1)

    def forward(self, x):
        h = x[:, None]
        for i, c in enumerate(self.convs):
            h = torch.relu(c(F.pad(h, (2**i, 0))))
        return x + self.out(h)[:, 0]


@sound("every place forecasts the next one (causal convolutions, left padding), summed over time, mean over the batch", steps=300, least=0.8)
def causal_convolutions():
    s, h = waves(11, 1024, 25), waves(12, 256, 25)
    model = Causal()
    return Program(model, lambda p, y: (p - y).pow(2).sum(1).mean(),
                   DataLoader(TensorDataset(s[:, :-1], s[:, 1:]), 32, shuffle=True, generator=gen(1)),
                   torch.optim.RMSprop(model.parameters(), 1e-3), lambda m: r2(m(h[:, :-1])[:, 8:], h[:, 9:]))
