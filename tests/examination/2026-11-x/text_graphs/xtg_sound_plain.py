"""Ordinary sound set-ups."""

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel
from xtg_data import accuracy, blocks, chain, loader, normalised, r2, texts


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(60, 24, padding_idx=0)
        self.gru = nn.GRU(24, 24, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(48, 4)

    def forward(self, tokens, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(tokens), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        _, h = self.gru(packed)
        return self.fc(self.dropout(torch.cat([h[0], h[1]], -1)))


@sound("packed texts in a bidirectional GRU", steps=300, least=0.85)
def xtg_packed_texts():
    x, lengths, y = texts(900, 14, 60, 4, 4, 12)
    model = Packed()
    rows = [({"tokens": x[i], "lengths": lengths[i]}, y[i]) for i in range(700)]
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(rows, batch_size=32, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: accuracy(m(x[700:], lengths[700:]), y[700:]),
    )


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(60, 32, padding_idx=0)
        self.pos = nn.Embedding(14, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True, activation="gelu")
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.cls = nn.Linear(32, 4)

    def forward(self, ids):
        pad = ids == 0
        h = self.layers(self.tok(ids) + self.pos.weight, src_key_padding_mask=pad)
        real = (~pad).unsqueeze(-1).float()
        return self.cls((h * real).sum(1) / real.sum(1))


@sound("a small transformer with padding masked in attention and in the mean", trained=100, steps=250, least=0.85)
def xtg_masked_encoder():
    x, _, y = texts(900, 14, 60, 4, 4, 14)
    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    return Program(
        model,
        nn.CrossEntropyLoss(label_smoothing=0.1),
        loader(x[:700], y[:700]),
        optimizer,
        lambda m: accuracy(m(x[700:]), y[700:]),
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400),
    )


class TwoHops(nn.Module):
    def __init__(self, a, sizes=(32, 16, 5)):
        super().__init__()
        self.register_buffer("a", a)
        self.w1, self.w2 = nn.Linear(sizes[0], sizes[1]), nn.Linear(sizes[1], sizes[2])
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.a @ self.w2(self.drop(torch.relu(self.a @ self.w1(x))))


@sound("a graph of communities as one batch, a part of whose nodes have labels", steps=150, least=0.7)
def xtg_two_hops():
    x, a, y = blocks(200, 5, 0.1, 0.015, 32, 2.5)
    known = torch.rand(200) < 0.4
    model = TwoHops(normalised(a))
    return Program(
        model,
        lambda z, t: F.cross_entropy(z[known], t[known]),
        [(x, y)],
        torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4),
        lambda m: accuracy(m(x)[~known], y[~known]),
    )


class Matrix(nn.Module):
    def __init__(self):
        super().__init__()
        self.u, self.v = nn.Embedding(50, 6), nn.Embedding(40, 6)
        self.bu, self.bv = nn.Embedding(50, 1), nn.Embedding(40, 1)
        self.mean = nn.Parameter(torch.tensor(3.0))
        for e in (self.u, self.v, self.bu, self.bv):
            nn.init.normal_(e.weight, std=0.2)

    def forward(self, pair):
        i, j = pair[:, 0], pair[:, 1]
        return self.mean + self.bu(i)[:, 0] + self.bv(j)[:, 0] + (self.u(i) * self.v(j)).sum(-1)


@sound("matrix factorisation of ratings about 3, half trained", trained=200, steps=500, least=0.7)
def xtg_half_a_matrix():
    pair = torch.stack([torch.randint(50, (2200,)), torch.randint(40, (2200,))], 1)
    p, q = torch.randn(50, 2), torch.randn(40, 2)
    r = 3 + 0.7 * (p[pair[:, 0]] * q[pair[:, 1]]).sum(1) + 0.15 * torch.randn(2200)
    model = Matrix()
    return Program(
        model,
        nn.MSELoss(),
        loader(pair[:1900], r[:1900], size=64),
        torch.optim.Adam(model.parameters(), lr=2e-2, weight_decay=1e-5),
        lambda m: r2(m(pair[1900:]), r[1900:]),
    )


@sound("BertForSequenceClassification from a small config, with attention_mask", steps=250, least=0.8)
def xtg_small_bert():
    x, _, y = texts(800, 12, 50, 3, 5, 12)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=50,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=16,
            num_labels=3,
        )
    )
    model.train()
    mask = (x > 0).long()
    rows = [{"input_ids": x[i], "attention_mask": mask[i], "labels": y[i]} for i in range(640)]
    return Program(
        model,
        None,
        DataLoader(rows, batch_size=16, shuffle=True),
        torch.optim.AdamW(model.parameters(), lr=2e-3),
        lambda m: accuracy(m(input_ids=x[640:], attention_mask=mask[640:]).logits, y[640:]),
        step=lambda m, batch: m(**batch).loss,
    )


class Horizon(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(2, 32, batch_first=True)
        self.out = nn.Linear(32, 4)

    def forward(self, x):
        return self.out(self.lstm(x)[0][:, -1])


@sound("an LSTM that forecasts four steps of a wave", trained=120, steps=350, least=0.75)
def xtg_four_steps_ahead():
    n = 900
    t = torch.arange(20.0)
    wave = torch.sin(6.283 * t / (6 + 5 * torch.rand(n, 1)) + 6.283 * torch.rand(n, 1)) + 0.08 * torch.randn(n, 20)
    x = torch.stack([wave[:, :16], wave[:, :16].diff(dim=1, prepend=wave[:, :1])], -1)
    y = wave[:, 16:]
    model = Horizon()
    return Program(
        model,
        nn.SmoothL1Loss(),
        loader(x[:750], y[:750]),
        torch.optim.Adam(model.parameters(), lr=4e-3),
        lambda m: r2(m(x[750:]), y[750:]),
    )


@sound("a small GPT-2 on a Markov chain, most of the way", trained=200, steps=300, least=0.85)
def xtg_most_of_a_gpt():
    x = chain(800, 13, 20)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=20, n_positions=16, n_embd=32, n_layer=1, n_head=2, use_cache=False, bos_token_id=0, eos_token_id=0
        )
    )
    model.train()

    def score(m):
        z = m(input_ids=x[700:, :-1]).logits
        return accuracy(z, x[700:, 1:]) / 0.86

    return Program(
        model,
        lambda out, y: F.cross_entropy(out.logits[:, :-1].reshape(-1, 20), y[:, 1:].reshape(-1)),
        DataLoader([({"input_ids": r}, r) for r in x[:700]], batch_size=16, shuffle=True),
        torch.optim.AdamW(model.parameters(), lr=3e-3),
        score,
    )


class Dual(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 16))
        self.right = nn.Sequential(nn.EmbeddingBag(80, 32), nn.ReLU(), nn.Linear(32, 16))
        self.log_scale = nn.Parameter(torch.tensor(2.3))

    def forward(self, image, words):
        a, b = F.normalize(self.left(image), dim=-1), F.normalize(self.right(words), dim=-1)
        return self.log_scale.exp() * a @ b.T


@sound("CLIP in small: what belongs together is found among the others of its batch", steps=400, least=0.6)
def xtg_clip_in_small():
    parts = torch.randint(8, (1300, 4))
    words = parts + 8 * torch.arange(4)
    words = torch.cat([words, torch.randint(32, 80, (1300, 2))], 1)
    words = words.gather(1, torch.rand(1300, 6).argsort(1))
    codes = torch.randn(4, 8, 16)
    image = sum(codes[k, parts[:, k]] for k in range(4)) / 2 + 0.1 * torch.randn(1300, 16)
    model = Dual()

    def step(m, batch):
        z = m(*batch)
        y = torch.arange(len(z))
        return 0.5 * (F.cross_entropy(z, y) + F.cross_entropy(z.t(), y))

    return Program(
        model,
        None,
        loader(image[:1200], words[:1200], size=48),
        torch.optim.AdamW(model.parameters(), lr=4e-3),
        lambda m: accuracy(m(image[1200:], words[1200:]), torch.arange(100)),
        step=step,
    )
