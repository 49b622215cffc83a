"""Ordinary programs, and some that share weights, leave out order, or see everything on purpose."""
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

from program import Program, sound


def gen(seed):
    return torch.Generator().manual_seed(seed)


def accuracy(out, y):
    return (out.argmax(-1) == y).float().mean().item()


def r2(p, t):
    return max(0.0, 1 - ((p - t) ** 2).mean().item() / t.var(unbiased=False).item())


def chain(n, length, vocab, seed, keep=0.9):
    g = gen(seed)
    perm = torch.randperm(vocab, generator=gen(99))
    x = torch.randint(0, vocab, (n, length), generator=g)
    stay = torch.rand(n, length, generator=g) < keep
    for t in range(1, length):
        x[:, t] = torch.where(stay[:, t], perm[x[:, t - 1]], x[:, t])
    return x, perm


@sound("Nothing: a packed GRU for sentiment", steps=200, least=0.8)
def packed_gru():
    g = gen(1)
    lengths = torch.randint(3, 19, (1400,), generator=g)
    x = torch.randint(1, 50, (1400, 18), generator=g)
    x[torch.arange(18)[None] >= lengths[:, None]] = 0
    polarity = torch.randn(50, generator=g)
    polarity -= polarity[1:].mean()
    polarity[0] = 0
    y = (polarity[x].sum(1) > 0).float()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(50, 32, padding_idx=0)
            self.gru = nn.GRU(32, 32, batch_first=True)
            self.fc = nn.Linear(32, 1)

        def forward(self, x):
            n = (x != 0).sum(1)
            _, h = self.gru(pack_padded_sequence(self.emb(x), n, batch_first=True, enforce_sorted=False))
            return self.fc(h[-1]).squeeze(1)

    model = Net()
    return Program(model, nn.BCEWithLogitsLoss(), DataLoader(TensorDataset(x[:1200], y[:1200]), 32, shuffle=True),
                   torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: ((m(x[1200:]) > 0).float() == y[1200:]).float().mean().item())


@sound("Nothing: a small GPT with decay groups and a warm-up that starts at a rate of zero", steps=220, least=0.9)
def small_gpt():
    vocab, dim = 24, 32
    x, perm = chain(1200, 17, vocab, 2)
    test, _ = chain(200, 16, vocab, 3)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
            self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

        def forward(self, x):
            b, t, _ = x.shape
            q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, 4, dim // 4).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(y.transpose(1, 2).reshape(b, t, dim))
            return x + self.mlp(self.ln2(x))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(vocab, dim), nn.Embedding(16, dim)
            self.h = nn.Sequential(Block(), Block())
            self.ln_f = nn.LayerNorm(dim)
            self.head = nn.Linear(dim, vocab, bias=False)
            for m in self.modules():
                if isinstance(m, nn.Linear | nn.Embedding):
                    nn.init.normal_(m.weight, std=0.02)

        def forward(self, idx):
            return self.head(self.ln_f(self.h(self.wte(idx) + self.wpe.weight[: idx.shape[1]])))

    model = GPT()
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
                                  lr=4e-3, betas=(0.9, 0.95))
    scheduler = LambdaLR(optimizer, lambda s: min(s / 40, 1.0) * 0.5 * (1 + math.cos(math.pi * min(s, 400) / 400)))
    return Program(model, lambda o, y: F.cross_entropy(o.reshape(-1, vocab), y.reshape(-1)),
                   DataLoader(TensorDataset(x[:, :-1], x[:, 1:]), 24, shuffle=True), optimizer,
                   lambda m: accuracy(m(test), perm[test]), scheduler)


@sound("Nothing: an LSTM tagger with padded labels that the loss leaves out", steps=220, least=0.85)
def lstm_tagger():
    g = gen(4)
    x = torch.randint(1, 40, (1300, 16), generator=g)
    lengths = torch.randint(4, 17, (1300,), generator=g)
    y = torch.randint(0, 5, (40,), generator=g)[x]
    y[:, 1:] = torch.where(x[:, :-1] < 6, (y[:, 1:] + 1) % 5, y[:, 1:])
    pad = torch.arange(16)[None] >= lengths[:, None]
    x[pad], y[pad] = 0, -100

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(40, 32, padding_idx=0)
            self.lstm = nn.LSTM(32, 32, batch_first=True, bidirectional=True)
            self.out = nn.Linear(64, 5)

        def forward(self, x):
            return self.out(self.lstm(self.emb(x))[0])

    def score(m):
        real = ~pad[1100:]
        return accuracy(m(x[1100:])[real], y[1100:][real])

    model = Tagger()
    return Program(model, lambda o, t: F.cross_entropy(o.transpose(1, 2), t, ignore_index=-100),
                   DataLoader(TensorDataset(x[:1100], y[:1100]), 25, shuffle=True),
                   torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9), score)


@sound("Nothing: a causal convolutional forecaster with weight norm, half trained", trained=100, steps=220, least=0.85)
def tcn_forecaster():
    g = gen(5)
    n = 1300
    phase, speed = torch.rand(n, 1, generator=g) * 6.28, 0.3 + 0.5 * torch.rand(n, 1, generator=g)
    t = torch.arange(33)
    series = torch.sin(phase + speed * t) + 0.05 * torch.randn(n, 33, generator=g)
    x, y = series[:, None, :32], series[:, 32:]

    class Causal(nn.Module):
        def __init__(self, a, b, d):
            super().__init__()
            self.d = d
            self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(a, b, 3, dilation=d))

        def forward(self, x):
            return F.relu(self.conv(F.pad(x, (2 * self.d, 0))))

    class TCN(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(Causal(1, 16, 1), Causal(16, 16, 2), Causal(16, 16, 4), Causal(16, 16, 8))
            self.out = nn.Linear(16, 1)

        def forward(self, x):
            return self.out(self.net(x)[:, :, -1])

    model = TCN()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return Program(model, nn.SmoothL1Loss(), DataLoader(TensorDataset(x[:1100], y[:1100]), 32, shuffle=True), optimizer,
                   lambda m: r2(m(x[1100:]), y[1100:]), CosineAnnealingLR(optimizer, 300))


@sound("Nothing: CTC on short utterances", steps=220, least=0.8)
def plain_ctc():
    g = gen(6)
    shapes = torch.randn(6, 10, generator=g) * 1.5
    text = torch.randint(1, 6, (1000, 3), generator=g)
    aligned = torch.zeros(1000, 18, dtype=torch.long)
    for i in range(3):
        start = 6 * i + torch.randint(0, 3, (1000,), generator=g)
        for k in range(3):
            aligned[torch.arange(1000), start + k] = text[:, i]
    audio = shapes[aligned] + 0.4 * torch.randn(1000, 18, 10, generator=g)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(10, 24, bidirectional=True, batch_first=True)
            self.fc = nn.Linear(48, 6)

        def forward(self, x):
            return self.fc(self.rnn(x)[0]).log_softmax(-1)

    def loss(out, y):
        return F.ctc_loss(out.transpose(0, 1), y, torch.full((len(y),), 18), torch.full((len(y),), 3))

    def score(m):
        right = 0
        for row, truth in zip(m(audio[800:]).argmax(-1), text[800:], strict=True):
            row = torch.unique_consecutive(row)
            right += row[row != 0].tolist() == truth.tolist()
        return right / 200

    model = Net()
    return Program(model, loss, DataLoader(TensorDataset(audio[:800], text[:800]), 20, shuffle=True),
                   torch.optim.Adam(model.parameters(), lr=8e-3), score)


@sound("Nothing: a transformer classifier with key padding, dropout and one cycle of the rate", steps=200, least=0.85)
def padded_transformer():
    g = gen(7)
    y = torch.randint(0, 3, (1200,), generator=g)
    lengths = torch.randint(3, 15, (1200,), generator=g)
    x = torch.randint(5, 40, (1200, 15), generator=g)
    x[torch.arange(1200), (torch.rand(1200, generator=g) * lengths).long()] = 2 + y
    x[torch.arange(15)[None] >= lengths[:, None]] = 0

    class Net(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.emb, self.pos = nn.Embedding(40, d, padding_idx=0), nn.Embedding(15, d)
            layer = nn.TransformerEncoderLayer(d, 4, 64, 0.1, batch_first=True)
            self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.cls = nn.Linear(d, 3)

        def forward(self, x):
            pad = x == 0
            h = self.enc(self.emb(x) + self.pos.weight[: x.shape[1]], src_key_padding_mask=pad)
            keep = (~pad).unsqueeze(-1)
            return self.cls((h * keep).sum(1) / keep.sum(1))

    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Program(model, nn.CrossEntropyLoss(label_smoothing=0.05),
                   DataLoader(TensorDataset(x[:1000], y[:1000]), 25, shuffle=True), optimizer,
                   lambda m: accuracy(m(x[1000:]), y[1000:]),
                   OneCycleLR(optimizer, 4e-3, total_steps=1200, pct_start=0.1))


@sound("Nothing: sequence to sequence with teacher forcing, trained", trained=250, steps=300, least=0.8)
def seq2seq_trained():
    vocab, bos = 8, 8
    g = gen(8)
    src = torch.randint(0, vocab, (2000, 4), generator=g)
    tgt = (src + 3) % vocab
    prefix = torch.cat([torch.full((2000, 1), bos), tgt[:, :-1]], 1)

    class Net(nn.Module):
        def __init__(self, d=64):
            super().__init__()
            self.a, self.b = nn.Embedding(vocab, d), nn.Embedding(vocab + 1, d)
            self.enc, self.dec = nn.GRU(d, d, batch_first=True), nn.GRU(d, d, batch_first=True)
            self.out = nn.Linear(d, vocab)

        def forward(self, src, prefix):
            return self.out(self.dec(self.b(prefix), self.enc(self.a(src))[1])[0])

    def score(m):
        h, token, said = m.enc(m.a(src[1800:]))[1], torch.full((200, 1), bos), []
        for _ in range(4):
            o, h = m.dec(m.b(token), h)
            token = m.out(o).argmax(-1)
            said.append(token)
        return (torch.cat(said, 1) == tgt[1800:]).float().mean().item()

    rows = [({"src": src[i], "prefix": prefix[i]}, tgt[i]) for i in torch.arange(1800).split(36)]
    model = Net()
    return Program(model, lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()), rows,
                   torch.optim.Adam(model.parameters(), lr=5e-3), score)


@sound("No encoding of positions: the label does not depend on the order of words", steps=150, least=0.8)
def order_does_not_matter():
    g = gen(9)
    y = torch.randint(0, 4, (1200,), generator=g)
    x = torch.randint(0, 48, (1200, 14), generator=g)
    own = torch.randint(0, 12, (1200, 14), generator=g) * 4 + y[:, None]
    x = torch.where(torch.rand(1200, 14, generator=g) < 0.4, own, x)

    class SetEncoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(48, 32)
            self.attn = nn.MultiheadAttention(32, 4, batch_first=True)
            self.out = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))

        def forward(self, x):
            h = self.emb(x)
            h = h + self.attn(h, h, h, need_weights=False)[0]
            return self.out(h.mean(1))

    model = SetEncoder()
    return Program(model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x[:1000], y[:1000]), 32, shuffle=True),
                   torch.optim.Adam(model.parameters(), lr=3e-3), lambda m: accuracy(m(x[1000:]), y[1000:]))


@sound("The language model's head is its embedding, by design", steps=200, least=0.9)
def tied_head():
    vocab, d = 24, 48
    x, perm = chain(1200, 15, vocab, 10)
    test, _ = chain(200, 14, vocab, 11)

    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Embedding(vocab, d)
            self.rnn = nn.LSTM(d, d, batch_first=True)
            self.decoder = nn.Linear(d, vocab)
            self.decoder.weight = self.encoder.weight
            nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
            nn.init.zeros_(self.decoder.bias)

        def forward(self, x):
            return self.decoder(self.rnn(self.encoder(x))[0])

    model = LM()
    return Program(model, lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()),
                   DataLoader(TensorDataset(x[:, :-1], x[:, 1:]), 32, shuffle=True),
                   torch.optim.Adam(model.parameters(), lr=8e-3), lambda m: accuracy(m(test), perm[test]))


@sound("One layer applied four times, as in ALBERT", steps=200, least=0.85)
def one_layer_four_times():
    g = gen(12)
    x = torch.randint(0, 20, (1200, 12), generator=g)
    y = torch.where(torch.arange(12) % 2 == 0, x % 3, (x + 1) % 3)

    class Shared(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.emb = nn.Embedding(20, d)
            self.pos = nn.Parameter(torch.randn(12, d) * 0.5)
            self.layer = nn.TransformerEncoderLayer(d, 2, 64, 0.0, batch_first=True, norm_first=True)
            self.norm = nn.LayerNorm(d)
            self.out = nn.Linear(d, 3)

        def forward(self, x):
            h = self.emb(x) + self.pos
            for _ in range(4):
                h = self.layer(h)
            return self.out(self.norm(h))

    model = Shared()
    return Program(model, lambda o, t: F.cross_entropy(o.transpose(1, 2), t),
                   DataLoader(TensorDataset(x[:1000], y[:1000]), 20, shuffle=True),
                   torch.optim.NAdam(model.parameters(), lr=2e-3), lambda m: accuracy(m(x[1000:]), y[1000:]))


@sound("A denoising autoencoder of sensor windows: targets are (nearly) the inputs, on purpose", steps=200, least=0.7)
def denoising_autoencoder():
    g = gen(13)
    basis = torch.randn(3, 40, generator=g)
    clean = torch.randn(1300, 3, generator=g) @ basis
    noisy = clean + 0.5 * torch.randn(1300, 40, generator=g)
    model = nn.Sequential(nn.Linear(40, 32), nn.ELU(), nn.Linear(32, 4), nn.Linear(4, 32), nn.ELU(), nn.Linear(32, 40))
    return Program(model, nn.MSELoss(), DataLoader(TensorDataset(noisy[:1100], clean[:1100]), 32, shuffle=True),
                   torch.optim.Adam(model.parameters(), lr=3e-3), lambda m: r2(m(noisy[1100:]), clean[1100:]))
