"""Recommenders, sensors, audio, graphs and optimizers with mistakes."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from program import Program, fault


def gen(seed):
    return torch.Generator().manual_seed(seed)


def r2(prediction, target):
    return max(0.0, 1 - ((prediction - target) ** 2).mean().item() / target.var(unbiased=False).item())


def chain(n, length, vocab, seed, order=3):
    g = gen(seed)
    perm = torch.randperm(vocab, generator=gen(order))
    x = torch.randint(0, vocab, (n, length), generator=g)
    stay = torch.rand(n, length, generator=g) < 0.9
    for t in range(1, length):
        x[:, t] = torch.where(stay[:, t], perm[x[:, t - 1]], x[:, t])
    return x, perm


@fault(
    "Users and items get one embedding table by a chained assignment",
    rules=("shared-weight",), layers=("users", "items"), fails=True, steps=300,
)
def chained_assignment(is_faulty):
    count, rank = 60, 4
    g = gen(1)
    u, v = torch.randn(count, rank, generator=g), torch.randn(count, rank, generator=g)
    pairs = torch.cartesian_prod(torch.arange(count), torch.arange(count))[torch.randperm(count**2, generator=g)]
    rating = (u[pairs[:, 0]] * v[pairs[:, 1]]).sum(1) / 2 + 0.1 * torch.randn(count**2, generator=g)

    class MF(nn.Module):
        def __init__(self, dim=8):
            super().__init__()
            if is_faulty:
                self.users = self.items = nn.Embedding(count, dim)
            else:
                self.users, self.items = nn.Embedding(count, dim), nn.Embedding(count, dim)
            for table in (self.users, self.items):
                nn.init.normal_(table.weight, std=0.3)

        def forward(self, pair):
            return (self.users(pair[:, 0]) * self.items(pair[:, 1])).sum(-1)

    model = MF()
    return Program(model, nn.MSELoss(), DataLoader(TensorDataset(pairs[:3000], rating[:3000]), 128, shuffle=True),
                   torch.optim.Adam(model.parameters(), lr=2e-2), lambda m: r2(m(pairs[3000:]), rating[3000:]))


@fault(
    "An acoustic model for CTC whose log-softmax runs over time in place of symbols",
    rules=("wrong-softmax-dimension", "output-loss-mismatch"), fails=True, steps=250,
)
def ctc_softmax_over_time(is_faulty):
    symbols, letters, frames = 6, 4, 20
    shapes = torch.randn(symbols + 1, 12, generator=gen(2)) * 1.5

    def utterances(n, seed):
        g = gen(seed)
        text = torch.randint(1, symbols + 1, (n, letters), generator=g)
        aligned = torch.zeros(n, frames, dtype=torch.long)
        for i in range(letters):
            start = 5 * i + torch.randint(0, 2, (n,), generator=g)
            for k in range(3):
                aligned[torch.arange(n), start + k] = text[:, i]
        return shapes[aligned] + 0.4 * torch.randn(n, frames, 12, generator=g), text

    audio, text = utterances(1000, 3)
    heard, said = utterances(200, 4)

    class Acoustic(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(12, 32, 3, padding=1)
            self.rnn = nn.GRU(32, 24, bidirectional=True)
            self.proj = nn.Linear(48, symbols + 1)

        def forward(self, x):
            h = F.relu(self.conv(x.transpose(1, 2))).permute(2, 0, 1)
            logits = self.proj(self.rnn(h)[0])
            return F.log_softmax(logits, dim=0 if is_faulty else 2)

    ctc = nn.CTCLoss(blank=0, zero_infinity=True)

    def loss(log_probs, target):
        t, b, _ = log_probs.shape
        return ctc(log_probs, target, torch.full((b,), t), torch.full((b,), letters))

    def score(model):
        best = model(heard).argmax(-1).T
        right = 0
        for row, truth in zip(best, said, strict=True):
            row = torch.unique_consecutive(row)
            row = row[row != 0]
            right += len(row) == letters and bool((row == truth).all())
        return right / len(said)

    model = Acoustic()
    return Program(model, loss, DataLoader(TensorDataset(audio, text), 20, shuffle=True),
                   torch.optim.Adam(model.parameters(), lr=5e-3), score)


@fault(
    "Seconds since 1970 stand among the features of a sensor's window",
    rules=("unscaled-input", "ill-conditioned-input"), fails=True, steps=200,
)
def unix_time_feature(is_faulty):
    g = gen(5)
    n, length = 1400, 16
    start = torch.randint(0, 86400 * 30, (n, 1), generator=g)
    seconds = (start + 600 * torch.arange(length)).double() + 1.7e9
    phase = torch.rand(n, 1, generator=g) * 6.28
    value = torch.sin(phase + 0.5 * torch.arange(length)) + 0.1 * torch.randn(n, length, generator=g)
    target = torch.sin(phase + 0.5 * (length + 1)).float()
    if is_faulty:
        clock = seconds
    else:
        clock = (seconds - seconds.mean()) / seconds.std()
    windows = torch.stack([value, clock.float()], -1).float()

    class Forecaster(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(2, 32, batch_first=True)
            self.head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

        def forward(self, x):
            return self.head(self.gru(x)[0][:, -1])

    model = Forecaster()
    return Program(model, nn.MSELoss(), DataLoader(TensorDataset(windows[:1200], target[:1200]), 32, shuffle=True),
                   torch.optim.Adam(model.parameters(), lr=5e-3), lambda m: r2(m(windows[1200:]), target[1200:]))


@fault(
    "The schedule of Vaswani et al., which gives the rate itself, multiplies an optimizer's rate of 1e-3",
    rules=("learning-rate-too-low",), fails=True, steps=250,
)
def noam_times_rate(is_faulty):
    vocab, dim, warmup = 20, 32, 60
    x, perm = chain(1200, 17, vocab, 6)
    test, _ = chain(200, 16, vocab, 7)

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok = nn.Embedding(vocab, dim)
            self.pos = nn.Embedding(32, dim)
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(dim, 4, 64, 0.0, batch_first=True, norm_first=True) for _ in range(2)
            )
            self.norm = nn.LayerNorm(dim)
            self.out = nn.Linear(dim, vocab)

        def forward(self, ids):
            t = ids.shape[1]
            h = self.tok(ids) + self.pos(torch.arange(t))
            mask = torch.triu(torch.full((t, t), float("-inf")), diagonal=1)
            for layer in self.layers:
                h = layer(h, src_mask=mask)
            return self.out(self.norm(h))

    def noam(step):
        step = max(step, 1)
        return dim**-0.5 * min(step**-0.5, step * warmup**-1.5)

    model = GPT()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3 if is_faulty else 1.0, betas=(0.9, 0.98), eps=1e-9)
    return Program(
        model, lambda o, y: F.cross_entropy(o.reshape(-1, vocab), y.reshape(-1)),
        DataLoader(TensorDataset(x[:, :-1], x[:, 1:]), 24, shuffle=True), optimizer,
        lambda m: (m(test).argmax(-1) == perm[test]).float().mean().item(), LambdaLR(optimizer, noam),
    )


@fault(
    "AdamW(params, 2e-3, (0.9, 0.95), 0.1): the fourth argument is ε, the decay was meant",
    rules=("optimizer-setting", "learning-rate-too-low"), fails=True, steps=200,
)
def decay_given_as_epsilon(is_faulty):
    vocab = 32
    x, perm = chain(1000, 13, vocab, 8, order=9)
    test, _ = chain(200, 12, vocab, 10, order=9)

    class Mixer(nn.Module):
        def __init__(self, d=48):
            super().__init__()
            self.emb = nn.Embedding(vocab, d)
            nn.init.normal_(self.emb.weight, std=0.02)
            self.rnn = nn.GRU(d, d, num_layers=2, batch_first=True)
            self.norm = nn.LayerNorm(d)
            self.head = nn.Linear(d, vocab)

        def forward(self, x):
            return self.head(self.norm(self.rnn(self.emb(x))[0]))

    model = Mixer()
    if is_faulty:
        optimizer = torch.optim.AdamW(model.parameters(), 2e-3, (0.9, 0.95), 0.1)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), 2e-3, (0.9, 0.95), weight_decay=0.1)

    def step(net, ids):
        logits = net(ids[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    return Program(model, None, DataLoader(x, batch_size=32, shuffle=True), optimizer,
                   lambda m: (m(test).argmax(-1) == perm[test]).float().mean().item(), step=step)


@fault(
    "A sentence autoencoder whose KL term is summed over the batch while reconstruction is a mean over words",
    rules=("term-dominates", "summed-loss"), fails=True, steps=250,
)
def kl_summed(is_faulty):
    vocab, length, latent = 12, 8, 8
    g = gen(11)
    plans = torch.randint(0, vocab, (16, length), generator=g)
    which = torch.randint(0, 16, (1500,), generator=g)
    x = plans[which]
    noise = torch.rand(x.shape, generator=g) < 0.05
    x = torch.where(noise, torch.randint(0, vocab, x.shape, generator=g), x)

    class TextVAE(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(vocab, 16)
            self.enc = nn.GRU(16, 48, batch_first=True)
            self.mu, self.logvar = nn.Linear(48, latent), nn.Linear(48, latent)
            self.dec = nn.Sequential(nn.Linear(latent, 96), nn.GELU(), nn.Linear(96, length * vocab))

        def forward(self, x):
            _, h = self.enc(self.emb(x))
            mu, logvar = self.mu(h[0]), self.logvar(h[0])
            z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
            return self.dec(z).view(-1, length, vocab), mu, logvar

    def loss(outputs, x):
        logits, mu, logvar = outputs
        reconstruction = F.cross_entropy(logits.transpose(1, 2), x)
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp())
        kl = kl.sum() if is_faulty else kl.sum() / x.numel()
        return reconstruction + 0.5 * kl

    model = TextVAE()
    return Program(model, loss, DataLoader(TensorDataset(x[:1300], x[:1300]), 32, shuffle=True),
                   torch.optim.Adam(model.parameters(), lr=3e-3),
                   lambda m: (m(x[1300:])[0].argmax(-1) == x[1300:]).float().mean().item())


@fault(
    "All weights cast to bfloat16 and trained at a small rate: the steps are rounded away",
    rules=("lost-updates",), fails=True, steps=300,
)
def everything_bfloat16(is_faulty):
    dtype = torch.bfloat16 if is_faulty else torch.float32
    g = gen(12)
    x = torch.randn(1500, 10, 6, generator=g)
    y = (x[:, :, 0].mean(1) + x[:, :, 1].mean(1) > 0).long()

    class Activity(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp = nn.Linear(60, 256)
            self.norm = nn.LayerNorm(256)
            self.mid = nn.Linear(256, 256)
            self.out = nn.Linear(256, 2)

        def forward(self, x):
            x = x.flatten(1).to(self.inp.weight.dtype)
            return self.out(F.gelu(self.mid(F.gelu(self.norm(self.inp(x)))))).float()

    model = Activity().to(dtype)
    return Program(model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x[:1200], y[:1200]), 32, shuffle=True),
                   torch.optim.Adam(model.parameters(), lr=3e-5),
                   lambda m: (m(x[1200:]).argmax(1) == y[1200:]).float().mean().item())
