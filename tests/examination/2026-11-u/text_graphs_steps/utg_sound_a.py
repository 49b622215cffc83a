import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

from program import Program, sound
from utg_data import (utg_accuracy, utg_clouds, utg_gen, utg_graph, utg_keyword, utg_loader, utg_markov, utg_r2,
                      utg_tagged)
from utg_faults_a import UtgGPT, UtgTagger, utg_waves
from utg_faults_b import UtgBag, UtgDeepSets, utg_small_graphs, utg_graph_batches, utg_topics, utg_translated


@sound("an ordinary tagger: most places are padding, and ignored", steps=150, least=0.9)
def utg_ok_tagger():
    ids, tags, _ = utg_tagged(600, 24, 30, 5, 101, mean=6)
    vi, vt, _ = utg_tagged(300, 24, 30, 5, 102, mean=6)
    model = UtgTagger(30, 6)
    real = vt > 0
    return Program(model, lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten(), ignore_index=0),
                   utg_loader(ids, tags), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: utg_accuracy(m(vi)[real], vt[real]))


@sound("an ordinary small GPT with AdamW", steps=200, least=0.85)
def utg_ok_gpt():
    train, held = utg_markov(800, 17, 12, 103), utg_markov(300, 17, 12, 104)
    model = UtgGPT(12, 16)
    return Program(model, lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten()),
                   utg_loader(train[:, :-1], train[:, 1:].contiguous()), torch.optim.AdamW(model.parameters(), 3e-3),
                   lambda m: utg_accuracy(m(held[:, :-1])[:, 3:], held[:, 4:]))


class UtgTwoLayerGCN(nn.Module):
    def __init__(self, a, b, c):
        super().__init__()
        self.w1, self.w2 = nn.Linear(a, b), nn.Linear(b, c)
        self.drop = nn.Dropout(0.5)

    def forward(self, x, adj):
        h = F.relu(adj @ self.w1(x))
        return adj @ self.w2(self.drop(h))


@sound("an ordinary GCN: one batch is the whole graph, a tenth of the nodes has labels, dropout of a half, weight decay",
       steps=150, least=0.8)
def utg_ok_gcn():
    x, adj, y = utg_graph(200, 4, 16, 107, p_in=0.15, p_out=0.02, noise=1.5)
    a = adj + torch.eye(200)
    r = a.sum(1).rsqrt()
    a = r[:, None] * a * r
    known = torch.rand(200, generator=utg_gen(1)) < 0.15
    model = UtgTwoLayerGCN(16, 16, 4)
    return Program(model, nn.CrossEntropyLoss(), [({"x": x, "adj": a}, y.masked_fill(~known, -100))],
                   torch.optim.Adam(model.parameters(), 1e-2, weight_decay=5e-4),
                   lambda m: utg_accuracy(m(x, a)[~known], y[~known]))


@sound("an ordinary PointNet with BatchNorm and shuffled batches", steps=200, least=0.75)
def utg_ok_pointnet():
    x, y = utg_clouds(800, 32, 108)
    vx, vy = utg_clouds(300, 32, 109)
    model = nn.Sequential(nn.Conv1d(3, 32, 1), nn.BatchNorm1d(32), nn.ReLU(), nn.Conv1d(32, 64, 1), nn.BatchNorm1d(64),
                          nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(64, 4))
    return Program(model, F.cross_entropy, utg_loader(x.transpose(1, 2).contiguous(), y),
                   torch.optim.Adam(model.parameters(), 3e-3), lambda m: utg_accuracy(m(vx.transpose(1, 2)), vy))


@sound("an ordinary DeepSets regression of a set's spread", steps=300, least=0.8)
def utg_ok_sets_regression():
    def make(n, seed):
        g = utg_gen(seed)
        wide = 0.3 + 1.5 * torch.rand(n, 1, generator=g)
        x = wide[:, None] * torch.randn(n, 24, 2, generator=g) + torch.randn(n, 1, 2, generator=g) * 0.3
        return x, wide

    x, y = make(1000, 110)
    vx, vy = make(300, 111)
    model = UtgDeepSets(2, 1)
    return Program(model, nn.MSELoss(), utg_loader(x, y), torch.optim.AdamW(model.parameters(), 2e-3),
                   lambda m: utg_r2(m(vx), vy))


class UtgSeq2Seq(nn.Module):
    def __init__(self, vocab, d=48):
        super().__init__()
        self.src = nn.Embedding(vocab, d, padding_idx=0)
        self.tgt = nn.Embedding(vocab + 1, d, padding_idx=0)
        self.encoder = nn.GRU(d, d, batch_first=True)
        self.decoder = nn.GRU(d, d, batch_first=True)
        self.project = nn.Linear(2 * d, vocab)

    def forward(self, src, decoder_input):
        e, _ = self.encoder(self.src(src))
        h = e[torch.arange(len(src)), (src != 0).sum(1) - 1][None]
        o, _ = self.decoder(self.tgt(decoder_input), h)
        scores = (o @ e.transpose(1, 2) / e.shape[-1] ** 0.5).masked_fill((src == 0)[:, None], -1e9)
        return self.project(torch.cat([o, scores.softmax(-1) @ e], -1))


@sound("an ordinary encoder and decoder with attention and teacher forcing; sources and targets are padded",
       steps=400, least=0.7)
def utg_ok_seq2seq():
    def make(n, seed, vocab=12, longest=6):
        g = utg_gen(seed)
        src = torch.randint(1, vocab, (n, longest), generator=g)
        lengths = torch.randint(3, longest + 1, (n,), generator=g)
        back = lengths[:, None] - 1 - torch.arange(longest)[None]
        tgt = src.gather(1, back.clamp_min(0)) * (back >= 0)
        given = torch.cat([torch.full((n, 1), vocab), tgt[:, :-1]], 1)
        return src * (torch.arange(longest)[None] < lengths[:, None]), given, tgt

    s, d, t = make(3200, 112)
    vs, vd, vt = make(300, 113)
    model = UtgSeq2Seq(12)
    real = vt > 0
    data = [({"src": a, "decoder_input": b}, c) for a, b, c in zip(s.split(64), d.split(64), t.split(64))]
    return Program(model, lambda o, y: F.cross_entropy(o.transpose(1, 2), y, ignore_index=0), data,
                   torch.optim.Adam(model.parameters(), 5e-3), lambda m: utg_accuracy(m(vs, vd)[real], vt[real]))


@sound("an ordinary LSTM on waves, one-cycle schedule", steps=200, least=0.9)
def utg_ok_onecycle():
    x, y = utg_waves(1000, 114)
    vx, vy = utg_waves(300, 115)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(2, 32, num_layers=2, batch_first=True)
            self.head = nn.Linear(32, 4)

        def forward(self, s):
            return self.head(self.lstm(s)[1][0][-1])

    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    return Program(model, nn.CrossEntropyLoss(label_smoothing=0.1), utg_loader(x, y), optimizer,
                   lambda m: utg_accuracy(m(vx), vy), scheduler=OneCycleLR(optimizer, 1e-2, total_steps=1000))


class UtgMLM(nn.Module):
    def __init__(self, vocab, length):
        super().__init__()
        self.word = nn.Embedding(vocab + 1, 32)
        self.position = nn.Embedding(length, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, activation="gelu", batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, vocab)

    def forward(self, input_ids):
        return self.head(self.body(self.word(input_ids) + self.position.weight))


@sound("masked language model: it sees both sides, and five places in six have no label", steps=400, least=0.7)
def utg_ok_mlm():
    def make(n, seed):
        ids = utg_markov(n, 12, 8, seed, noise=0.02)
        hidden = torch.rand(n, 12, generator=utg_gen(seed + 50)) < 0.17
        return ids.masked_fill(hidden, 8), ids.masked_fill(~hidden, -100)

    x, y = make(1600, 116)
    vx, vy = make(400, 117)
    model = UtgMLM(8, 12)
    real = vy >= 0
    data = [({"input_ids": a}, b) for a, b in zip(x.split(64), y.split(64))]
    return Program(model, lambda o, t: F.cross_entropy(o.transpose(1, 2), t), data,
                   torch.optim.AdamW(model.parameters(), 3e-3), lambda m: utg_accuracy(m(vx)[real], vy[real]))


@sound("repair of corrupted sequences: at most places the target is the input itself, and later tokens may be seen",
       steps=200, least=0.9)
def utg_ok_denoise():
    def make(n, seed):
        g = utg_gen(seed)
        clean = torch.randint(10, (n, 1), generator=g) + torch.arange(14)[None] * torch.randint(1, 4, (n, 1), generator=g)
        clean = clean % 10
        bad = torch.rand(n, 14, generator=g) < 0.15
        return torch.where(bad, 11, clean + 1), clean

    x, y = make(1000, 118)
    vx, vy = make(300, 119)
    model = UtgTagger(12, 10)
    return Program(model, lambda o, t: F.cross_entropy(o.transpose(1, 2), t), utg_loader(x, y),
                   torch.optim.Adam(model.parameters(), 5e-3), lambda m: utg_accuracy(m(vx), vy))


class UtgFactors(nn.Module):
    def __init__(self, users, items, d):
        super().__init__()
        self.u, self.i = nn.Embedding(users, d), nn.Embedding(items, d)
        self.bu, self.bi = nn.Embedding(users, 1), nn.Embedding(items, 1)
        for e in (self.u, self.i):
            nn.init.normal_(e.weight, std=0.3)
        for e in (self.bu, self.bi):
            nn.init.zeros_(e.weight)

    def forward(self, user, item):
        return (self.u(user) * self.i(item)).sum(1) + (self.bu(user) + self.bi(item)).squeeze(1)


class UtgUniversal(nn.Module):
    """One block, applied four times on purpose; and output weights tied to the embedding."""

    def __init__(self, vocab, length, d=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        nn.init.normal_(self.embed.weight, std=d ** -0.5)
        self.pos = nn.Parameter(0.1 * torch.randn(length, d))
        self.block = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(d)

    def forward(self, ids):
        x = self.embed(ids) * 32 ** 0.5 + self.pos[: ids.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        for _ in range(3):
            x = self.block(x, src_mask=mask, is_causal=True)
        return self.norm(x) @ self.embed.weight.T


@sound("a universal transformer: one block in a loop, tied embedding, warm-up and cosine", steps=250, least=0.85)
def utg_ok_universal():
    train, held = utg_markov(800, 13, 10, 123), utg_markov(300, 13, 10, 124)
    model = UtgUniversal(10, 12)
    optimizer = torch.optim.AdamW(model.parameters(), 4e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = LambdaLR(optimizer, lambda k: min(1.0, (k + 1) / 50) * 0.5 * (1 + math.cos(math.pi * min(k, 600) / 600)))
    return Program(model, lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten()),
                   utg_loader(train[:, :-1], train[:, 1:].contiguous()), optimizer,
                   lambda m: utg_accuracy(m(held[:, :-1])[:, 3:], held[:, 4:]), scheduler=schedule)


@sound("the same small GPT, trained to the noise of its data when it is examined", trained=300, steps=400, least=0.85)
def utg_ok_gpt_trained():
    train, held = utg_markov(1200, 13, 10, 125), utg_markov(300, 13, 10, 126)
    model = UtgGPT(10, 12)
    return Program(model, lambda o, t: F.cross_entropy(o.transpose(1, 2), t), utg_loader(train[:, :-1], train[:, 1:]),
                   torch.optim.AdamW(model.parameters(), 2e-3),
                   lambda m: utg_accuracy(m(held[:, :-1])[:, 3:], held[:, 4:]))


@sound("graphs come one at a time, each with its own number of nodes", steps=500, least=0.7)
def utg_ok_one_graph():
    g = utg_gen(127)

    def make():
        n = int(torch.randint(6, 16, (), generator=g))
        dense = bool(torch.rand((), generator=g) < 0.5)
        adj = (torch.rand(n, n, generator=g) < (0.65 if dense else 0.2)).float().triu(1)
        adj = adj + adj.T
        x = torch.stack([torch.ones(n), torch.rand(n, generator=g)], 1)
        return {"x": x, "adj": adj}, torch.tensor([int(dense)])

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(2, 16), nn.Linear(16, 16), nn.Linear(16, 2)

        def forward(self, x, adj):
            h = F.elu(self.a(x))
            h = F.elu(self.b(h + adj @ h / 4))
            return self.c((h + adj @ h / 4).mean(0, keepdim=True))

    data, held = [make() for _ in range(500)], [make() for _ in range(100)]
    model = Net()
    return Program(model, nn.CrossEntropyLoss(), data, torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: sum(utg_accuracy(m(**x), y) for x, y in held) / len(held))


@sound("a pretrained encoder is frozen; only a linear head learns", steps=200, least=0.7)
def utg_ok_frozen():
    class Pretrained(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.EmbeddingBag(100, 64), nn.Tanh())
            g = utg_gen(7)
            table = 0.5 * torch.randn(100, 64, generator=g)
            table += torch.randn(4, 64, generator=g).repeat_interleave(25, 0)
            self.encoder[0].weight.data.copy_(table)
            self.encoder.requires_grad_(False)
            self.head = nn.Linear(64, 4)

        def forward(self, ids):
            return self.head(self.encoder(ids))

    ids, y = utg_topics(1000, 100, 4, 128, strength=0.4)
    vi, vy = utg_topics(400, 100, 4, 129, strength=0.4)
    model = Pretrained()
    return Program(model, F.cross_entropy, utg_loader(ids, y),
                   torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-2),
                   lambda m: utg_accuracy(m(vi), vy))
