import math

import torch
import torch.nn.functional as F
from program import Program, fault
from sklearn.datasets import load_digits
from sqq_tools import accuracy, before, chain, events, first, loader, pairs, r2, rng, tag_accuracy, tags, tones, topics, waves
from sqq_lang import ConvTagger
from torch import nn

CE = nn.CrossEntropyLoss()


def texts(seed, held, **kw):
    return (*topics(1500, 20, seed, **kw), *topics(400, 20, held, **kw))


class Bag(nn.Module):
    def __init__(self, dim=24, drop=0.0):
        super().__init__()
        self.words = nn.EmbeddingBag(60, dim, mode="mean")
        self.hidden = nn.Linear(dim, 48)
        self.drop = nn.Dropout(drop)
        self.out = nn.Linear(48, 4)

    def forward(self, x):
        return self.out(self.drop(F.relu(self.hidden(self.words(x)))))


def digit_rows():
    d = load_digits()
    x = torch.tensor(d.images, dtype=torch.float32) / 16
    y = torch.tensor(d.target)
    order = torch.randperm(len(x), generator=rng(0))
    return x[order[:1400]], y[order[:1400]], x[order[1400:]], y[order[1400:]]


class RowGRU(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(8, 40, batch_first=True)
        self.out = nn.Linear(40, 10)

    def forward(self, x):
        return self.out(self.gru(x)[1][-1])


@fault("weight decay of 0.3 in Adam, meant as in AdamW", rules=("weight-decay-dominates",), fails=True, steps=400)
def sqq_decay_in_adam(is_faulty):
    x, y, hx, hy = digit_rows()
    model = RowGRU()
    return Program(model, CE, loader(x, y, size=64), torch.optim.Adam(model.parameters(), 5e-3, weight_decay=0.3 if is_faulty else 1e-5),
                   accuracy(hx, hy))


@fault("a keep probability given to Dropout", rules=("dropout-too-strong",), layers=("drop",), fails=False, steps=200)
def sqq_keep_probability(is_faulty):
    x, y, hx, hy = texts(1, 2)
    model = Bag(drop=0.98 if is_faulty else 0.02)
    return Program(model, CE, loader(x, y), torch.optim.Adam(model.parameters(), 2e-3), accuracy(hx, hy))


class SentenceVAE(nn.Module):
    def __init__(self, vocab=6, length=5, z=12):
        super().__init__()
        self.embed = nn.Embedding(vocab, 12)
        self.encoder = nn.GRU(12, 48, batch_first=True)
        self.mu, self.logvar = nn.Linear(48, z), nn.Linear(48, z)
        self.decoder = nn.Sequential(nn.Linear(z, 64), nn.ReLU(), nn.Linear(64, vocab * length))
        self.length = length

    def forward(self, x):
        h = self.encoder(self.embed(x))[1][0]
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
        return self.decoder(z).view(len(x), self.length, -1), mu, logvar


@fault("KL term summed, reconstruction averaged over tokens", rules=("term-dominates",), fails=True, steps=500)
def sqq_kl_summed(is_faulty):
    x = torch.randint(6, (2000, 5), generator=rng(3))
    held = torch.randint(6, (400, 5), generator=rng(4))
    model = SentenceVAE()

    def loss(out, y):
        logits, mu, logvar = out
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp())
        return F.cross_entropy(logits.transpose(1, 2), y) + (kl.sum(1).mean() if is_faulty else 1e-3 * kl.sum(1).mean())

    return Program(model, loss, loader(x, x, size=64), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: (m(held)[0].argmax(-1) == held).float().mean().item())


@fault("loader without shuffling over data sorted by class", rules=("sorted-batches",), fails=True, steps=200)
def sqq_class_by_class(is_faulty):
    x, y, hx, hy = digit_rows()
    order = y.argsort(stable=True)
    model = RowGRU()
    return Program(model, CE, loader(x[order], y[order], shuffle=not is_faulty), torch.optim.Adam(model.parameters(), 5e-3), accuracy(hx, hy))


@fault("ε of 1 in Adam", rules=("optimizer-setting", "learning-rate-too-low"), fails=True, steps=300)
def sqq_epsilon_one(is_faulty):
    x, y, hx, hy = texts(5, 6)
    model = Bag()
    return Program(model, CE, loader(x, y), torch.optim.Adam(model.parameters(), 3e-3, eps=1.0 if is_faulty else 1e-8), accuracy(hx, hy))


@fault("cross-entropy summed over batch and time, at a rate for a mean", rules=("summed-loss", "learning-rate-too-high", "diverging"), fails=True, steps=300)
def sqq_summed_tokens(is_faulty):
    x, y = tags(1500, 24, 7)
    hx, hy = tags(400, 24, 8)
    model = ConvTagger(12, 16, 4)
    loss = nn.CrossEntropyLoss(reduction="sum" if is_faulty else "mean")
    return Program(model, lambda out, t: loss(out.flatten(0, 1), t.flatten()), loader(x, y),
                   torch.optim.SGD(model.parameters(), 0.5, momentum=0.9), tag_accuracy(hx, hy))


@fault("weights in bfloat16 with small steps", rules=("lost-updates", "rounding-error"), fails=False, steps=600)
def sqq_bfloat_steps(is_faulty):
    x, y, hx, hy = texts(9, 10, strength=0.5)
    model = Bag()
    nn.init.normal_(model.words.weight)
    if is_faulty:
        model = model.bfloat16()
    return Program(model, lambda out, t: F.cross_entropy(out.float(), t), loader(x, y), torch.optim.Adam(model.parameters(), 1.2e-4),
                   accuracy(hx, hy))


@fault("recurrent tanh units with N(0, 1) weights", rules=("saturated-activation", "bad-initialisation"), layers=("rnn",), fails=False, steps=300)
def sqq_flat_tanh(is_faulty):
    x, y = waves(2000, 16, 11)
    hx, hy = waves(400, 16, 12)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.RNN(1, 48, num_layers=2, batch_first=True)
            self.out = nn.Linear(48, 1)

        def forward(self, x):
            return self.out(self.rnn(x)[0][:, -1]).squeeze(-1)

    model = Net()
    if is_faulty:
        for name, p in model.rnn.named_parameters():
            if "weight" in name:
                nn.init.normal_(p)
    return Program(model, nn.MSELoss(), loader(x, y), torch.optim.Adam(model.parameters(), 2e-3), r2(hx, hy))


class Deep(nn.Module):
    """Attention blocks without or with residual connections."""

    def __init__(self, residual, depth=6, dim=24):
        super().__init__()
        self.embed = nn.Embedding(60, dim)
        self.blocks = nn.ModuleList(nn.MultiheadAttention(dim, 2, batch_first=True) for _ in range(depth))
        self.out = nn.Linear(dim, 4)
        self.residual = residual

    def forward(self, x):
        h = self.embed(x)
        for block in self.blocks:
            a = block(h, h, h, need_weights=False)[0]
            h = h + a if self.residual else a
        return self.out(h.mean(1))


@fault("six attention layers without residual connections", rules=("rank-collapse", "vanishing-gradient", "activation-drift"), layers=("blocks",), fails=False, steps=300)
def sqq_attention_alone(is_faulty):
    x, y, hx, hy = texts(13, 14, strength=0.5)
    model = Deep(not is_faulty)
    return Program(model, CE, loader(x, y), torch.optim.SGD(model.parameters(), 0.03, momentum=0.9), accuracy(hx, hy))


@fault("rate of 1e-5 with cosine decay", rules=("learning-rate-too-low",), fails=True, steps=300)
def sqq_fine_tuning_rate(is_faulty):
    x, y = tones(1500, 48, 15)
    hx, hy = tones(400, 48, 16)
    model = nn.Sequential(nn.Conv1d(1, 16, 9), nn.ELU(), nn.Conv1d(16, 16, 5, stride=2), nn.ELU(), nn.AdaptiveMaxPool1d(1),
                          nn.Flatten(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5 if is_faulty else 5e-3)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)
    return Program(model, CE, loader(x, y), optimizer, accuracy(hx, hy), scheduler=cosine)


@fault("the loss of the step is computed from detached features", rules=("no-gradient",), layers=("embed", "gru"), fails=False, steps=400)
def sqq_detached_encoder(is_faulty):
    x, y = before(2500, 12, 17)
    hx, hy = before(500, 12, 18)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(12, 12)
            self.gru = nn.GRU(12, 24, batch_first=True)
            self.head = nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 2))

        def features(self, x):
            return self.gru(self.embed(x))[1][0]

        def forward(self, x):
            return self.head(self.features(x))

    model = Net()

    def step(m, batch):
        a, b = batch
        f = m.features(a)
        return F.cross_entropy(m.head(f.detach() if is_faulty else f), b)

    return Program(model, None, loader(x, y), torch.optim.Adam(model.parameters(), 1e-2), accuracy(hx, hy), step=step)


@fault("embedding drawn from N(0, 60²)", rules=("bad-initialisation", "saturated-output", "saturated-activation", "activation-drift", "weight-domination"), layers=("words",), fails=False, steps=300)
def sqq_wide_embedding(is_faulty):
    x, y = tags(1500, 20, 19)
    hx, hy = tags(400, 20, 20)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(12, 16)
            self.gru = nn.GRU(16, 32, batch_first=True)
            self.out = nn.Linear(32, 4)
            nn.init.normal_(self.words.weight, std=60.0 if is_faulty else 1.0)

        def forward(self, x):
            return self.out(self.gru(self.words(x))[0])

    model = Net()
    return Program(model, lambda out, t: F.cross_entropy(out.flatten(0, 1), t.flatten()), loader(x, y), torch.optim.Adam(model.parameters(), 2e-3),
                   tag_accuracy(hx, hy))


@fault("BatchNorm after pooling with batches of two", rules=("small-batch-batchnorm", "batchnorm-mode-gap"), layers=("norm",), fails=False, steps=400)
def sqq_two_per_batch(is_faulty):
    x, y, hx, hy = digit_rows()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(8, 48, 3)
            self.norm = nn.BatchNorm1d(48)
            self.out = nn.Linear(48, 10)

        def forward(self, x):
            return self.out(self.norm(self.conv(x).relu().amax(-1)).relu())

    model = Net()
    return Program(model, CE, loader(x, y, size=2 if is_faulty else 32, drop_last=True), torch.optim.Adam(model.parameters(), 5e-3), accuracy(hx, hy))


@fault("the labels of a scripted export are all of one column", rules=("constant-target",), fails=True, steps=200)
def sqq_first_column(is_faulty):
    x, y, hx, hy = texts(21, 22)
    table = torch.stack([torch.zeros_like(y), y], 1)
    model = Bag()
    return Program(model, CE, loader(x, table[:, 0 if is_faulty else 1]), torch.optim.Adam(model.parameters(), 3e-3), accuracy(hx, hy))


@fault("windows whose last value is the one to forecast", rules=("future-seen",), fails=False, steps=300)
def sqq_centred_smoothing(is_faulty):
    g = rng(23)

    def series(n):
        s = torch.zeros(n, 33)
        e = torch.randn(n, 33, generator=g)
        for t in range(2, 33):
            s[:, t] = 1.5 * s[:, t - 1] - 0.9 * s[:, t - 2] + 0.3 * e[:, t]
        return s

    class Causal(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Conv1d(1, 24, 3)
            self.two = nn.Conv1d(24, 1, 3)

        def forward(self, x):
            pad = (1, 1) if is_faulty else (2, 0)
            h = self.one(F.pad(x.unsqueeze(1), pad)).relu()
            return self.two(F.pad(h, pad)).squeeze(1)

    train, held = series(1500), series(400)

    def score(m):
        outs = torch.stack([m(held[:, : t])[:, -1] for t in (9, 14, 20, 27)], 1)
        real = held[:, [9, 14, 20, 27]]
        return max(-1.0, 1 - ((outs - real) ** 2).mean().item() / real.var().item())

    model = Causal()
    return Program(model, nn.MSELoss(), loader(train[:, :-1], train[:, 1:]), torch.optim.Adam(model.parameters(), 5e-3), score)


@fault("all weights set to one constant", rules=("symmetric-initialisation", "bad-initialisation"), layers=("gru", "out"), fails=True, steps=300)
def sqq_constant_gru(is_faulty):
    x, y, hx, hy = digit_rows()
    model = RowGRU()
    if is_faulty:
        for p in model.parameters():
            nn.init.constant_(p, 0.05)
    return Program(model, CE, loader(x, y), torch.optim.Adam(model.parameters(), 5e-3), accuracy(hx, hy))
