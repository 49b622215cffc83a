"""Ordinary scripts."""
import math
import torch
from torch import nn
from torch.nn import functional as F
from program import Program, fault, sound  # noqa: F401
from textdata import acc, before, chain, gen, keyword, loader, r2, waves  # noqa: F401


@sound("Ordinary: an LSTM on the feelings of texts", steps=200, least=0.8)
def ordinary_sentiment_lstm():
    x, y, _ = keyword(800, 12, 40, 2, 301)
    xt, yt, _ = keyword(300, 12, 40, 2, 302)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(40, 24)
            self.lstm = nn.LSTM(24, 32, batch_first=True)
            self.dropout = nn.Dropout(0.2)
            self.fc = nn.Linear(32, 1)

        def forward(self, x):
            _, (h, _) = self.lstm(self.embedding(x))
            return self.fc(self.dropout(h[-1])).squeeze(1)

    model = Net()
    return Program(model, nn.BCEWithLogitsLoss(), loader(x, y.float()), torch.optim.Adam(model.parameters(), lr=1e-2),
                   lambda m: ((m(xt) > 0).long() == yt).float().mean().item())


@sound("Ordinary: a small GPT, half trained", steps=250, least=0.75, trained=80)
def ordinary_gpt():
    ids, held = chain(900, 17, 16, 303), chain(200, 17, 16, 304)

    class Block(nn.Module):
        def __init__(self, d, heads):
            super().__init__()
            self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
            self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
            self.heads = heads

        def forward(self, x):
            q, k, v = self.qkv(self.ln1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(a.transpose(1, 2).flatten(2))
            return x + self.mlp(self.ln2(x))

    class GPT(nn.Module):
        def __init__(self, vocab, d=32):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(16, d)
            self.blocks = nn.Sequential(Block(d, 4), Block(d, 4))
            self.ln = nn.LayerNorm(d)
            self.head = nn.Linear(d, vocab, bias=False)
            for m in self.modules():
                if isinstance(m, (nn.Linear, nn.Embedding)):
                    nn.init.normal_(m.weight, std=0.02)

        def forward(self, x):
            return self.head(self.ln(self.blocks(self.wte(x) + self.wpe.weight[: x.shape[1]])))

    model = GPT(16)
    return Program(model, lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()), loader(ids[:, :-1], ids[:, 1:]),
                   torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1),
                   lambda m: acc(m(held[:, :-1]), held[:, 1:]))


@sound("Ordinary: convolutions with batch normalisation on sounds", steps=150, least=0.85)
def ordinary_audio_cnn():
    x, y = waves(640, 80, 305)
    xt, yt = waves(300, 80, 306)
    model = nn.Sequential(nn.Unflatten(1, (1, -1)), nn.Conv1d(1, 12, 9, stride=2), nn.BatchNorm1d(12), nn.ReLU(),
                          nn.Conv1d(12, 16, 5, stride=2), nn.BatchNorm1d(16), nn.ReLU(),
                          nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 4))
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), lr=3e-3),
                   lambda m: acc(m(xt), yt))


@sound("Ordinary: a GRU forecasts the next value of a noisy wave", steps=200, least=0.8)
def ordinary_forecaster():
    g = gen(307)
    t = torch.arange(1600)
    s = torch.sin(0.25 * t) + 0.5 * torch.sin(0.11 * t) + 0.05 * torch.randn(1600, generator=g)
    s = (s - s.mean()) / s.std()
    w = s.unfold(0, 25, 1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(1, 32, batch_first=True)
            self.fc = nn.Linear(32, 1)

        def forward(self, x):
            out, _ = self.gru(x)
            return self.fc(out[:, -1])

    model = Net()
    x, y = w[:, :24, None], w[:, 24:]
    return Program(model, nn.MSELoss(), loader(x[:1200], y[:1200]), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: r2(m(x[1250:]), y[1250:]))


@sound("Ordinary: a transformer classifier with dropout, warmup and a mask of the padding", steps=300, least=0.8)
def ordinary_transformer_classifier():
    x, y, _ = keyword(900, 12, 30, 4, 308, shortest=6)
    xt, yt, _ = keyword(300, 12, 30, 4, 309, shortest=6)

    class Net(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.emb = nn.Embedding(30, d, padding_idx=0)
            pos = torch.arange(12)[:, None] * torch.exp(-torch.arange(0, d, 2) * math.log(1e4) / d)
            self.register_buffer("pe", torch.stack([pos.sin(), pos.cos()], -1).flatten(1))
            self.enc = nn.TransformerEncoder(nn.TransformerEncoderLayer(d, 4, 64, 0.1, batch_first=True), 1,
                                             enable_nested_tensor=False)
            self.fc = nn.Linear(d, 4)

        def forward(self, x):
            pad = x == 0
            h = self.enc(self.emb(x) + self.pe, src_key_padding_mask=pad)
            real = (~pad).unsqueeze(-1).float()
            return self.fc((h * real).sum(1) / real.sum(1))

    model = Net()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    warm = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 30))
    return Program(model, nn.CrossEntropyLoss(label_smoothing=0.1), loader(x, y), opt, lambda m: acc(m(xt), yt),
                   scheduler=warm)


@sound("Ordinary: sequence to sequence with teacher forcing, reverses a word", steps=400, least=0.7)
def ordinary_seq2seq():
    def data(n, seed):
        s = torch.randint(0, 8, (n, 4), generator=gen(seed))
        t = s.flip(1)
        return s, torch.cat([torch.full((n, 1), 8), t[:, :-1]], 1), t

    s, i, t = data(2000, 310)
    sv, iv, tv = data(300, 311)

    class Seq2Seq(nn.Module):
        def __init__(self):
            super().__init__()
            self.src, self.tgt = nn.Embedding(8, 16), nn.Embedding(9, 16)
            self.encoder = nn.GRU(16, 48, batch_first=True)
            self.decoder = nn.GRU(16, 48, batch_first=True)
            self.head = nn.Linear(48, 8)

        def forward(self, src, tgt):
            return self.head(self.decoder(self.tgt(tgt), self.encoder(self.src(src))[1])[0])

    model = Seq2Seq()

    def step(m, batch):
        a, b, c = batch
        return F.cross_entropy(m(a, b).flatten(0, 1), c.flatten())

    return Program(model, None, loader(s, i, t, bs=50), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: acc(m(sv, iv), tv), step=step)


@sound("Ordinary: a bag of embeddings for topics, trained to its end", steps=300, least=0.85, trained=250)
def ordinary_embedding_bag():
    x, y, _ = keyword(1200, 8, 50, 5, 312)
    xt, yt, _ = keyword(300, 8, 50, 5, 313)
    model = nn.Sequential(nn.EmbeddingBag(50, 32), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 5))
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), lr=1e-2),
                   lambda m: acc(m(xt), yt))


@sound("CTC: outputs (time, batch, classes) of log_softmax, targets of another length than the outputs", steps=400, least=0.6)
def ctc_spotting():
    proto = torch.randn(6, 6, generator=gen(316))

    def data(n, seed):
        g = gen(seed)
        y = torch.stack([torch.randperm(5, generator=g)[:3] for _ in range(n)]) + 1
        x = proto[y.repeat_interleave(3, 1)] + 0.2 * torch.randn(n, 9, 6, generator=g)
        return x, y

    x, y = data(640, 317)
    xt, yt = data(200, 318)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(6, 32, batch_first=True, bidirectional=True)
            self.fc = nn.Linear(64, 6)

        def forward(self, x):
            return self.fc(self.gru(x)[0]).log_softmax(-1).transpose(0, 1)

    model = Net()

    def loss(lp, y):
        n = lp.shape[1]
        return F.ctc_loss(lp, y, torch.full((n,), 9), torch.full((n,), 3))

    def score(m):
        best = m(xt).argmax(-1).t()
        right = 0
        for p, t in zip(best, yt):
            p = torch.unique_consecutive(p)
            right += p[p != 0].tolist() == t.tolist()
        return right / len(yt)

    return Program(model, loss, loader(x, y), torch.optim.Adam(model.parameters(), lr=1e-2), score)
