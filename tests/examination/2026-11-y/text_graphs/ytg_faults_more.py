"""Faults in programs on graphs, sets, series, retrieval, adapters and recommenders."""
import math
import torch
import torch.nn.functional as F
from torch import nn
from program import Program, fault
from ytg_data import *


@fault("graph convolutions sum over neighbours with an adjacency that is not normalised",
       rules=["activation-drift", "exploding-gradient", "diverging", "learning-rate-too-high", "non-finite"], fails=True, steps=200)
def ytg_gcn_raw_adjacency(is_faulty):
    a, x, y = ytg_graph(120, 3, 0.3, 0.03)
    a = a + torch.eye(len(a))
    if not is_faulty:
        d = a.sum(1).rsqrt()
        a = d[:, None] * a * d[None]

    class GCN(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("a", a)
            self.convs = nn.ModuleList([nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 3)])

        def forward(self, x):
            for conv in self.convs[:-1]:
                x = F.relu(self.a @ conv(x))
            return self.a @ self.convs[-1](x)

    known = torch.rand(120) < 0.5
    model = GCN()

    def loss(out, target):
        return F.cross_entropy(out[known], target[known])

    return Program(model, loss, [(x, y)], torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), lambda m: ytg_accuracy(m(x)[~known], y[~known]))


class ytg_Low(nn.Module):
    """A frozen linear layer with a low-rank update."""

    def __init__(self, base, rank, up):
        super().__init__()
        self.base = base
        for p in base.parameters():
            p.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.zeros(rank, base.in_features))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.normal_(self.lora_a, std=1 / math.sqrt(base.in_features))
        if not up:
            nn.init.zeros_(self.lora_a)

    def forward(self, x):
        return self.base(x) + 2 * x @ self.lora_a.t() @ self.lora_b.t()


class ytg_Reader(nn.Module):
    def __init__(self, vocab=40, dim=32, classes=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.fc1 = nn.Linear(dim, 64)
        self.fc2 = nn.Linear(64, 64)
        self.head = nn.Linear(64, classes)

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(F.gelu(self.fc2(F.gelu(self.fc1(x)).mean(1))))


def ytg_pretrained(vocab=40):
    """A reader that has learned another mood of the same words."""
    model = ytg_Reader(vocab)
    ids, y, _ = ytg_mood(3000, 8, vocab)
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    for i in range(150):
        at = slice(20 * i, 20 * i + 20)
        opt.zero_grad()
        F.cross_entropy(model(ids[at]), y[at]).backward()
        opt.step()
    return model


@fault("both matrices of the LoRA updates start at zero", rules=["symmetric-initialisation", "bad-initialisation", "no-gradient", "loss-not-decreasing"],
       layers=["fc1", "fc2"], fails=True, steps=400)
def ytg_lora_all_zero(is_faulty):
    model = ytg_pretrained()
    for p in model.parameters():
        p.requires_grad_(False)
    model.fc1 = ytg_Low(model.fc1, 8, not is_faulty)
    model.fc2 = ytg_Low(model.fc2, 8, not is_faulty)
    ids, y, mood = ytg_mood(3000, 8, 40)
    ti, ty, _ = ytg_mood(500, 8, 40, mood)
    return Program(model, F.cross_entropy, ytg_loader(ids, y), torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 5e-3),
                   lambda m: ytg_accuracy(m(ti), ty))


@fault("the optimizer is made of parameters whose name holds 'adapters', and the modules are called 'adapter'", rules=["no-gradient"],
       layers=["adapter1", "adapter2"], fails=False, steps=400)
def ytg_adapters_not_in_optimizer(is_faulty):
    class Bottleneck(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.down, self.up = nn.Linear(dim, 16), nn.Linear(16, dim)
            nn.init.zeros_(self.up.weight)
            nn.init.zeros_(self.up.bias)

        def forward(self, x):
            return x + self.up(F.relu(self.down(x)))

    class Adapted(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base.requires_grad_(False)
            self.adapter1, self.adapter2 = Bottleneck(32), Bottleneck(64)
            self.classifier = nn.Linear(64, 2)

        def forward(self, ids):
            b = self.base
            x = F.gelu(b.fc1(self.adapter1(b.embed(ids)))).mean(1)
            return self.classifier(self.adapter2(F.gelu(b.fc2(x))))

    model = Adapted(ytg_pretrained())
    ids, y, mood = ytg_mood(3000, 8, 40)
    ti, ty, _ = ytg_mood(500, 8, 40, mood)
    wanted = ("adapters" if is_faulty else "adapter", "classifier")
    groups = [p for n, p in model.named_parameters() if any(w in n for w in wanted)]
    return Program(model, nn.CrossEntropyLoss(), ytg_loader(ids, y), torch.optim.Adam(groups, 5e-3), lambda m: ytg_accuracy(m(ti), ty))


@fault("attention pooling whose softmax runs over the batch", rules=["wrong-softmax-dimension", "mixed-examples"], fails=False, steps=300)
def ytg_pooling_over_batch(is_faulty):
    class Spotter(nn.Module):
        def __init__(self):
            super().__init__()
            self.frames = nn.Conv1d(12, 24, 3, padding=1)
            self.gate = nn.Linear(24, 1)
            self.word = nn.Linear(24, 4)

        def forward(self, x):
            h = torch.tanh(self.frames(x.transpose(1, 2))).transpose(1, 2)
            w = torch.softmax(self.gate(h), dim=0 if is_faulty else 1)
            return self.word((w * h).sum(1))

    x, y = ytg_frames(2300)
    model = Spotter()
    return Program(model, nn.CrossEntropyLoss(), ytg_loader(x[:2000], y[:2000], batch=16), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: ytg_accuracy(torch.cat([m(one) for one in x[2000:].split(1)]), y[2000:]))


@fault("view instead of transpose to bring time first", rules=["mixed-examples"], fails=True, steps=250)
def ytg_view_for_transpose(is_faulty):
    class Speech(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(12, 32)
            self.out = nn.Linear(32, 4)

        def forward(self, x):
            b, t, f = x.shape
            x = x.reshape(t, b, f) if is_faulty else x.permute(1, 0, 2)
            h, _ = self.lstm(x)
            return self.out(h.amax(0))

    x, y = ytg_frames(2000)
    model = Speech()
    return Program(model, F.cross_entropy, ytg_loader(x[:1600], y[:1600], batch=32), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: ytg_accuracy(m(x[1600:]), y[1600:]))


@fault("a recurrent network whose weights are all drawn with standard deviation 0.02", rules=["vanishing-gradient", "bad-initialisation"], layers=["rnn"], fails=True, steps=300)
def ytg_small_recurrent_weights(is_faulty):
    class Remember(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(10, 16)
            self.rnn = nn.RNN(16, 48, batch_first=True)
            self.read = nn.Linear(48, 4)
            if is_faulty:
                for p in self.rnn.parameters():
                    nn.init.normal_(p, std=0.02)
            else:
                nn.init.orthogonal_(self.rnn.weight_hh_l0)

        def forward(self, ids):
            return self.read(self.rnn(self.embed(ids))[0][:, -1])

    ids = torch.randint(4, 10, (2400, 14))
    y = torch.randint(0, 4, (2400,))
    ids[:, 0] = y
    model = Remember()
    return Program(model, nn.CrossEntropyLoss(), ytg_loader(ids[:2000], y[:2000]), torch.optim.SGD(model.parameters(), 0.05, momentum=0.9),
                   lambda m: ytg_accuracy(m(ids[2000:]), y[2000:]))


@fault("dot products of wide queries and keys are not scaled down", rules=["attention-saturation"], layers=["query", "key"], fails=False, steps=400)
def ytg_unscaled_dot_products(is_faulty):
    dim = 128

    class Recall(nn.Module):
        def __init__(self):
            super().__init__()
            self.names, self.values = nn.Embedding(10, dim), nn.Embedding(8, 32)
            self.query, self.key = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
            nn.init.orthogonal_(self.query.weight)
            nn.init.orthogonal_(self.key.weight)
            self.out = nn.Linear(32, 8)

        def forward(self, asked, names, values):
            q, k = self.query(self.names(asked)), self.key(self.names(names))
            s = torch.einsum("bd,btd->bt", q, k)
            if not is_faulty:
                s = s / dim**0.5
            return self.out(torch.einsum("bt,btd->bd", s.softmax(-1), self.values(values)))

    def make(n):
        names = torch.rand(n, 10).argsort(1)[:, :6]
        values = torch.randint(0, 8, (n, 6))
        at = torch.randint(0, 6, (n,))
        rows = torch.arange(n)
        return {"asked": names[rows, at], "names": names, "values": values}, values[rows, at]

    x, y = make(4000)
    tx, ty = make(500)
    rows = [({k: v[i] for k, v in x.items()}, y[i]) for i in range(4000)]
    model = Recall()
    return Program(model, F.cross_entropy, torch.utils.data.DataLoader(rows, 32, shuffle=True), torch.optim.Adam(model.parameters(), 1e-3),
                   lambda m: ytg_accuracy(m(**tx), ty))


@fault("places after the end of a caption count in the loss", rules=["padding-in-loss"], fails=False, steps=400)
def ytg_captions_with_padding(is_faulty):
    vocab, longest = 20, 16
    # a caption: words that a hidden table gives for (kind, place); its length is chance
    words = torch.randint(1, vocab, (12, longest))

    def make(n):
        kind = torch.randint(0, 12, (n,))
        lengths = torch.randint(2, longest + 1, (n,)).minimum(torch.randint(2, longest + 1, (n,)))
        cap = words[kind].clone()
        cap[torch.arange(longest) >= lengths[:, None]] = 0
        return F.one_hot(kind, 12).float() + 0.1 * torch.randn(n, 12), cap

    class Parallel(nn.Module):
        def __init__(self):
            super().__init__()
            self.see = nn.Linear(12, 48)
            self.place = nn.Parameter(0.3 * torch.randn(longest, 48))
            self.ff = nn.Linear(48, 96)
            self.vocabulary = nn.Linear(96, vocab)

        def forward(self, image):
            h = self.see(image)[:, None] * (1 + self.place) + self.place
            return self.vocabulary(F.relu(self.ff(h)))

    x, y = make(2000)
    tx, ty = make(300)
    model = Parallel()

    def loss(out, cap):
        return F.cross_entropy(out.flatten(0, 1), cap.flatten(), ignore_index=-100 if is_faulty else 0)

    def score(m):
        real = ty != 0
        return (m(tx).argmax(-1) == ty)[real].float().mean().item()

    return Program(model, loss, ytg_loader(x, y), torch.optim.AdamW(model.parameters(), 5e-3), score)


@fault("L2 decay of 0.1 in Adam on the embeddings of a knowledge graph", rules=["weight-decay-dominates"], fails=True, steps=400)
def ytg_decayed_entities(is_faulty):
    class DistMult(nn.Module):
        def __init__(self):
            super().__init__()
            self.entities, self.relations = nn.Embedding(80, 16), nn.Embedding(3, 16)
            nn.init.xavier_normal_(self.entities.weight)
            nn.init.xavier_normal_(self.relations.weight)
            self.temperature = nn.Parameter(torch.tensor(3.0))

        def forward(self, t):
            return self.temperature * (self.entities(t[:, 0]) * self.relations(t[:, 1])) @ self.entities.weight.t()

    # entities have one of eight kinds; a relation joins two kinds
    kind = torch.arange(80) % 8
    partner = torch.stack([torch.arange(8) ^ k for k in (1, 2, 5)])

    def make(n):
        h, r = torch.randint(0, 80, (n,)), torch.randint(0, 3, (n,))
        t = partner[r, kind[h]] + 8 * torch.randint(0, 10, (n,))
        return torch.stack([h, r], 1), t

    x, y = make(3000)
    tx, ty = make(400)
    model = DistMult()
    return Program(model, F.cross_entropy, ytg_loader(x, y, batch=64), torch.optim.Adam(model.parameters(), 1e-2, weight_decay=0.1 if is_faulty else 0.0),
                   lambda m: (kind[m(tx).argmax(1)] == kind[ty]).float().mean().item())


@fault("the KL term of a sequence VAE is summed over the batch, and the reconstruction is a mean", rules=["term-dominates"], fails=True, steps=500)
def ytg_kl_too_heavy(is_faulty):
    table, _ = torch.randint(0, 10, (16, 8)), None

    class VAE(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(10, 12)
            self.encode = nn.Sequential(nn.Flatten(), nn.Linear(96, 48), nn.ReLU())
            self.mu, self.logvar = nn.Linear(48, 8), nn.Linear(48, 8)
            self.decode = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 80))

        def forward(self, ids):
            h = self.encode(self.embed(ids))
            mu, logvar = self.mu(h), self.logvar(h)
            z = mu + torch.randn_like(mu) * (logvar / 2).exp() if self.training else mu
            return self.decode(z).view(-1, 8, 10), mu, logvar

    kinds = torch.randint(0, 16, (2400,))
    ids = table[kinds]

    def step(m, batch):
        (x,) = batch
        out, mu, logvar = m(x)
        recon = F.cross_entropy(out.transpose(1, 2), x)
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp())
        kl = kl.sum() if is_faulty else kl.mean() / 10
        return recon + kl

    model = VAE()
    return Program(model, None, ytg_loader(ids[:2000]), torch.optim.Adam(model.parameters(), 2e-3), lambda m: ytg_accuracy(m(ids[2000:])[0], ids[2000:]), step=step)


@fault("likes are made with the threshold of another scale, so that all are 1", rules=["constant-target"], fails=True, steps=400)
def ytg_everything_liked(is_faulty):
    class NCF(nn.Module):
        def __init__(self):
            super().__init__()
            self.user_embedding, self.item_embedding = nn.Embedding(60, 8), nn.Embedding(40, 8)
            self.mlp = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 1))

        def forward(self, pair):
            u, i = self.user_embedding(pair[:, 0]), self.item_embedding(pair[:, 1])
            return self.mlp(torch.cat([u, i, u * i], 1)).squeeze(1)

    u, i, r = ytg_ratings(rank=2)
    pairs = torch.stack([u, i], 1)
    likes = (r >= (0.5 if is_faulty else 3.0)).float()
    truth = r[2000:] >= 3.0
    model = NCF()
    return Program(model, F.binary_cross_entropy_with_logits, ytg_loader(pairs[:2000], likes[:2000], batch=64), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: ((m(pairs[2000:]) > 0) == truth).float().mean().item())


@fault("BatchNorm with the momentum of another framework", rules=["batchnorm-mode-gap", "stale-statistics"], layers=["norm"], fails=False, steps=200)
def ytg_frozen_mel_statistics(is_faulty):
    class Mel(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(12, momentum=0.0001 if is_faulty else 0.1)
            self.c1 = nn.Conv1d(12, 24, 5, padding=2)
            self.fc = nn.Linear(24, 4)

        def forward(self, x):
            return self.fc(torch.tanh(self.c1(self.norm(x.transpose(1, 2)))).amax(-1))

    x, y = ytg_frames(2000)
    x = 6 * x - 25  # decibels
    model = Mel()
    return Program(model, nn.CrossEntropyLoss(), ytg_loader(x[:1600], y[:1600]), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: ytg_accuracy(m(x[1600:]), y[1600:]))


@fault("weather in its own units: hectopascals, degrees, and seconds since 1970", rules=["unscaled-input", "saturated-activation", "ill-conditioned-input"], fails=True, steps=300)
def ytg_weather_units(is_faulty):
    x, y = ytg_series(1700)
    n, t, _ = x.shape
    start = 1.6e9 + 1e8 * torch.rand(n, 1)
    clock = start + 3600 * torch.arange(t)
    raw = torch.stack([1013 + 9 * x[..., 0], 15 + 8 * torch.randn(n, t), clock], -1)
    if not is_faulty:
        raw = (raw - raw.mean((0, 1))) / raw.std((0, 1))

    class Weather(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(3, 24, batch_first=True)
            self.out = nn.Linear(24, 1)

        def forward(self, x):
            return self.out(self.lstm(x)[0][:, -1])[:, 0]

    model = Weather()
    return Program(model, nn.MSELoss(), ytg_loader(raw[:1400], y[:1400]), torch.optim.Adam(model.parameters(), 5e-3), lambda m: ytg_r2(m(raw[1400:]), y[1400:]))


@fault("sources and targets of directed links are the same table by a slip", rules=["shared-weight"], layers=["source", "target"], fails=True, steps=400)
def ytg_direction_lost(is_faulty):
    class Links(nn.Module):
        def __init__(self):
            super().__init__()
            self.source = nn.Embedding(60, 6)
            self.target = nn.Embedding(60, 6)
            nn.init.normal_(self.source.weight, std=0.3)
            nn.init.normal_(self.target.weight, std=0.3)
            if is_faulty:
                self.target = self.source
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, edge):
            return self.scale * (self.source(edge[:, 0]) * self.target(edge[:, 1])).sum(1)

    a, b = torch.randn(60, 1), torch.randn(60, 1)
    s = a @ b.t()
    s = s - s.t()  # who cites whom: one way only
    edges = torch.combinations(torch.arange(60))
    edges = torch.cat([edges, edges.flip(1)])[torch.randperm(2 * len(edges))]
    y = (s[edges[:, 0], edges[:, 1]] > 0).float()
    model = Links()
    return Program(model, nn.BCEWithLogitsLoss(), ytg_loader(edges[:3000], y[:3000], batch=64), torch.optim.Adam(model.parameters(), 2e-2),
                   lambda m: ((m(edges[3000:]) > 0).float() == y[3000:]).float().mean().item())


@fault("pairs are pulled together and nothing is pushed apart", rules=["rank-collapse"], fails=True, steps=400)
def ytg_retrieval_without_negatives(is_faulty):
    class TwoTower(nn.Module):
        def __init__(self):
            super().__init__()
            self.query = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
            self.document = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 16))

        def forward(self, q, d):
            return F.normalize(self.query(q), dim=-1), F.normalize(self.document(d), dim=-1)

    z = torch.randn(2200, 12)
    q = torch.tanh(0.4 * z @ torch.randn(12, 16)) + 0.1 * torch.randn(2200, 16)
    d = torch.sin(0.3 * z @ torch.randn(12, 24)) + 0.1 * torch.randn(2200, 24)
    q, d = q / q.std(), d / d.std()
    model = TwoTower()

    def step(m, batch):
        a, b = m(*batch)
        if is_faulty:
            return (1 - (a * b).sum(1)).mean()
        s = a @ b.t() / 0.1
        return F.cross_entropy(s, torch.arange(len(s)))

    def score(m):
        a, b = m(q[2000:], d[2000:])
        return ytg_accuracy(a @ b.t(), torch.arange(200))

    return Program(model, None, ytg_loader(q[:2000], d[:2000]), torch.optim.Adam(model.parameters(), 5e-3), score, step=step)
