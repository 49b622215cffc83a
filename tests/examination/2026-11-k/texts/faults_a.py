import torch
import torch.nn.functional as F
from torch import nn
from corpora import G, acc, chain, loader, padded, r2, tones, waves
from program import Program, fault


class TinyGPT(nn.Module):
    def __init__(self, vocab=12, d=32, causal=True, L=16):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Parameter(0.02 * torch.randn(L, d))
        self.block = nn.TransformerEncoderLayer(d, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, vocab)
        self.causal = causal

    def forward(self, x):
        T = x.shape[1]
        h = self.tok(x) + self.pos[:T]
        mask = torch.ones(T, T, dtype=torch.bool).triu(1) if self.causal else None
        return self.out(self.norm(self.block(h, src_mask=mask)))


@fault("a language model whose block is called without its causal mask", rules=["future-seen"], fails=False, steps=200)
def gpt_mask_forgotten(bad):
    x, v = chain(512, 17, keep=0.85), chain(256, 17, seed=1, keep=0.85)
    m = TinyGPT(causal=not bad)
    return Program(m, lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()), loader(x[:, :-1], x[:, 1:]),
                   torch.optim.AdamW(m.parameters(), lr=3e-3),
                   lambda m: sum(acc(m(v[:, :k])[:, -1], v[:, k]) for k in (5, 8, 12, 16)) / 4)


class CharGRU(nn.Module):
    def __init__(self, vocab=12, d=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.head = nn.Linear(d, vocab)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


@fault("the data set shifts the labels, and the step shifts them once more", rules=["label-shift"], fails=True, steps=150)
def shifted_twice(bad):
    x, v = chain(512, 18), chain(256, 18, seed=1)
    m = CharGRU()
    ids, labels = (x[:, :-1], x[:, 1:]) if bad else (x, x)

    def step(m, batch):
        ids, labels = batch
        logits = m(ids)[:, :-1]
        return F.cross_entropy(logits.reshape(-1, 12), labels[:, 1:].reshape(-1))

    return Program(m, None, loader(ids, labels), torch.optim.Adam(m.parameters(), lr=5e-3),
                   lambda m: acc(m(v[:, :-1]), v[:, 1:]), step=step)


@fault("labels are a copy of the ids, and nobody shifts them", rules=["label-shift", "future-seen"], fails=True, steps=150)
def nobody_shifts(bad):
    x, v = chain(512, 17, seed=3), chain(256, 17, seed=4)
    m = TinyGPT(L=17)

    def step(m, ids):
        ids = ids[0]
        labels = ids.clone()
        logits = m(ids)
        if not bad:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return nn.CrossEntropyLoss()(logits.transpose(1, 2), labels)

    return Program(m, None, loader(x), torch.optim.Adam(m.parameters(), lr=3e-3),
                   lambda m: acc(m(v[:, :-1]), v[:, 1:]), step=step)


@fault("a tagger averages its loss over long padding as well", rules=["padding-in-loss"], fails=True, steps=60)
def tagger_counts_padding(bad):
    def make(n, seed):
        x, _, lens = padded(n, L=48, V=20, seed=seed, least=2, most=4)
        tags = torch.where(x > 0, 1 + x % 5, 0)
        return x, tags
    x, t = make(600, 0)
    vx, vt = make(200, 1)
    torch_loss = nn.CrossEntropyLoss() if bad else nn.CrossEntropyLoss(ignore_index=0)
    m = nn.Sequential(nn.Embedding(21, 24, padding_idx=0), nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 6))
    real = vt > 0
    return Program(m, lambda o, y: torch_loss(o.transpose(1, 2), y), loader(x, t), torch.optim.SGD(m.parameters(), lr=0.3),
                   lambda m: acc(m(vx)[real], vt[real]))


class PooledEncoder(nn.Module):
    def __init__(self, inverted):
        super().__init__()
        self.inverted = inverted
        self.emb = nn.Embedding(21, 32)
        self.att = nn.MultiheadAttention(32, 2, batch_first=True)
        self.query = nn.Parameter(torch.randn(1, 1, 32))
        self.fc = nn.Linear(32, 2)

    def forward(self, ids):
        e = self.emb(ids)
        mask = (ids != 0) if self.inverted else (ids == 0)
        pooled, _ = self.att(self.query.expand(len(ids), -1, -1), e, e, key_padding_mask=mask)
        return self.fc(pooled[:, 0])


@fault("key_padding_mask is True where tokens are real", rules=["wrong-mask", "rank-collapse", "loss-not-decreasing"], fails=True, steps=120)
def inverted_padding_mask(bad):
    x, y, _ = padded(800, L=16, most=14)
    vx, vy, _ = padded(300, L=16, most=14, seed=1)
    m = PooledEncoder(bad)
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), lr=3e-3), lambda m: acc(m(vx), vy))


class SentenceLSTM(nn.Module):
    def __init__(self, batch_first):
        super().__init__()
        self.emb = nn.Embedding(16, 24)
        self.lstm = nn.LSTM(24, 32, batch_first=batch_first)
        self.fc = nn.Linear(32, 8)

    def forward(self, x):
        out, _ = self.lstm(self.emb(x))
        return self.fc(out[:, -1])


@fault("an LSTM that is not batch_first gets (batch, time, features)", rules=["mixed-examples"], layers=["lstm"], fails=True, steps=300)
def lstm_over_the_batch(bad):
    def make(n, s):
        x = torch.randint(0, 16, (n, 5), generator=G(s))
        return x, x[:, 2] % 8
    x, y = make(1600, 0)
    vx, vy = make(300, 1)
    m = SentenceLSTM(not bad)
    return Program(m, F.cross_entropy, loader(x, y), torch.optim.Adam(m.parameters(), lr=1e-2), lambda m: acc(m(vx), vy))


class WhoCameFirst(nn.Module):
    def __init__(self, with_positions):
        super().__init__()
        self.word = nn.Embedding(10, 32)
        self.place = nn.Embedding(8, 32)
        self.enc = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), 1, enable_nested_tensor=False)
        self.fc = nn.Linear(32, 2)
        if not with_positions:
            del self.place

    def forward(self, x):
        h = self.word(x)
        if hasattr(self, "place"):
            h = h + self.place(torch.arange(8))
        return self.fc(self.enc(h).mean(1))


@fault("a transformer without positions is asked which of two words came first", rules=["order-lost"], fails=True, steps=300)
def positions_left_out(bad):
    def make(n, s):
        g = G(s)
        x = torch.randint(2, 10, (n, 8), generator=g)
        two = torch.rand(n, 8, generator=g).argsort(1)[:, :2]
        y = (two[:, 0] < two[:, 1]).long()
        x.scatter_(1, two[:, :1], 0)
        x.scatter_(1, two[:, 1:], 1)
        return x, y
    x, y = make(2000, 0)
    vx, vy = make(300, 1)
    m = WhoCameFirst(not bad)
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), lr=2e-3),
                   lambda m: max(0.0, 2 * acc(m(vx), vy) - 1))


@fault("logits are viewed as (batch, classes, time) instead of transposed", rules=["output-loss-mismatch"], fails=True, steps=200)
def viewed_not_transposed(bad):
    def make(n, s):
        x = torch.randint(0, 15, (n, 10), generator=G(s))
        return x, (x + torch.roll(x, 1, 1) // 8) % 6
    x, y = make(800, 0)
    vx, vy = make(200, 1)

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(15, 24)
            self.lstm = nn.LSTM(24, 24, bidirectional=True, batch_first=True)
            self.tags = nn.Linear(48, 6)

        def forward(self, x):
            return self.tags(self.lstm(self.emb(x))[0])

    def loss(o, y):
        B, T, C = o.shape
        return F.cross_entropy(o.view(B, C, T) if bad else o.transpose(1, 2), y)

    m = Tagger()
    return Program(m, loss, loader(x, y), torch.optim.Adam(m.parameters(), lr=1e-2), lambda m: acc(m(vx), vy))
