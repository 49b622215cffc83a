"""Language models, taggers, classifiers of text."""
import math

import torch
import torch.nn.functional as F
from data import accuracy, chain, gen, loader, order_text, seed
from program import Program, fault
from torch import nn


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)
        self.fc1, self.fc2 = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(out.transpose(1, 2).reshape(b, t, d))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))


class TinyGPT(nn.Module):
    def __init__(self, vocab, length, d=32, layers=2):
        super().__init__()
        self.wte = nn.Embedding(vocab, d)
        self.wpe = nn.Parameter(0.1 * torch.randn(length, d))
        self.blocks = nn.ModuleList(Block(d, 2) for _ in range(layers))
        self.ln_f = nn.LayerNorm(d)
        self.lm_head = nn.Linear(d, vocab, bias=False)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe[: ids.size(1)]
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.ln_f(x))


@fault("the data set already gives next tokens, and the loss shifts them once more, so the model learns to skip a token",
       rules=("label-shift",), fails=False, steps=250)
def shifted_twice(is_faulty):
    ids, table = chain(800, 17, k=1)
    test, _ = chain(200, 17, k=2)
    seed(1)
    model = TinyGPT(8, 16)

    def lm_loss(logits, labels):
        if is_faulty:  # as in the model class of a well-known library
            logits, labels = logits[:, :-1].contiguous(), labels[:, 1:].contiguous()
        return F.cross_entropy(logits.view(-1, 8), labels.view(-1))

    def score(m):
        return accuracy(m(test[:, :-1])[:, 1:], table[test[:, :-2], test[:, 1:-1]])

    return Program(model, lm_loss, loader(ids[:, :-1], ids[:, 1:]), torch.optim.AdamW(model.parameters(), lr=3e-3), score)


class PositionalEncoding(nn.Module):
    def __init__(self, d, batch_first, max_len=512):
        super().__init__()
        self.batch_first = batch_first
        position = torch.arange(max_len).unsqueeze(1)
        div = torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d))
        pe = torch.zeros(max_len, 1, d)
        pe[:, 0, 0::2] = torch.sin(position * div)
        pe[:, 0, 1::2] = torch.cos(position * div)
        self.register_buffer("pe", pe)

    def forward(self, x):
        if self.batch_first:
            return x + self.pe[: x.size(1)].transpose(0, 1)
        return x + self.pe[: x.size(0)]


class OrderClassifier(nn.Module):
    def __init__(self, vocab, d, batch_first_positions):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.pos_encoder = PositionalEncoding(d, batch_first_positions)
        layer = nn.TransformerEncoderLayer(d, 2, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(d, 2)

    def forward(self, ids):
        h = self.encoder(self.pos_encoder(self.embed(ids)))
        return self.out(h.mean(dim=1))


@fault("the tutorial's positional encoding (time first) added to batch-first tensors: each example gets the code of its place in the batch",
       rules=("order-lost", "mixed-examples"), layers=("pos_encoder",), fails=True, steps=300)
def positions_along_batch(is_faulty):
    ids, y = order_text(1500, 10, k=3)
    test, want = order_text(300, 10, k=4)
    seed(2)
    model = OrderClassifier(20, 32, not is_faulty)
    return Program(model, nn.CrossEntropyLoss(), loader(ids, y), torch.optim.Adam(model.parameters(), lr=2e-3), lambda m: accuracy(m(test), want))


class MaskedLM(nn.Module):
    """A decoder of nn.MultiheadAttention with an additive mask."""

    def __init__(self, vocab, length, d, mask):
        super().__init__()
        self.emb, self.pos = nn.Embedding(vocab, d), nn.Embedding(length, d)
        self.attn1 = nn.MultiheadAttention(d, 2, batch_first=True)
        self.attn2 = nn.MultiheadAttention(d, 2, batch_first=True)
        self.ff1 = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, d))
        self.ff2 = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, d))
        self.n1, self.n2, self.n3, self.n4 = (nn.LayerNorm(d) for _ in range(4))
        self.to_vocab = nn.Linear(d, vocab)
        self.register_buffer("mask", mask)

    def forward(self, ids):
        t = ids.size(1)
        m = self.mask[:t, :t]
        h = self.emb(ids) + self.pos.weight[:t]
        h = self.n1(h + self.attn1(h, h, h, attn_mask=m, need_weights=False)[0])
        h = self.n2(h + self.ff1(h))
        h = self.n3(h + self.attn2(h, h, h, attn_mask=m, need_weights=False)[0])
        h = self.n4(h + self.ff2(h))
        return self.to_vocab(h)


@fault("the attention mask is a float matrix with ones above the diagonal; it is added to the scores, so the future is favoured and not hidden",
       rules=("wrong-mask", "future-seen"), fails=True, steps=300)
def float_mask_of_ones(is_faulty):
    ids, table = chain(1000, 17, k=7)
    test, _ = chain(300, 17, k=8)
    seed(4)
    mask = torch.triu(torch.ones(16, 16), diagonal=1)
    if not is_faulty:
        mask = mask.masked_fill(mask == 1, float("-inf"))
    model = MaskedLM(8, 16, 32, mask)

    def score(m):  # continuing a beginning
        return sum(accuracy(m(test[:, :t])[:, -1], table[test[:, t - 2], test[:, t - 1]]) for t in (4, 7, 10, 13)) / 4

    def loss(logits, y):
        return F.cross_entropy(logits.transpose(1, 2), y)

    return Program(model, loss, loader(ids[:, :-1], ids[:, 1:]), torch.optim.Adam(model.parameters(), lr=2e-3), score)


class Tagger(nn.Module):
    def __init__(self, vocab, tags):
        super().__init__()
        self.emb = nn.Embedding(vocab, 24, padding_idx=0)
        self.gru = nn.GRU(24, 32, batch_first=True, bidirectional=True)
        self.tag = nn.Linear(64, tags)

    def forward(self, ids):
        h, _ = self.gru(self.emb(ids))
        return self.tag(h)


@fault("padded positions, nine of ten, are trained on as the outside tag: the words hardly count",
       rules=("padding-in-loss",), fails=False, steps=120)
def padding_is_outside(is_faulty):
    g = gen(10)

    def sentences(n):
        ids = torch.randint(1, 13, (n, 30), generator=g)
        lengths = torch.randint(2, 5, (n,), generator=g)
        real = torch.arange(30) < lengths[:, None]
        before = F.pad(ids, (1, 0))[:, :-1]
        tags = torch.where(before % 2 == 0, ids % 4, (ids + 1) % 4) + 1  # depends on the word and the one before
        return ids * real, tags * real, real

    ids, tags, _ = sentences(800)
    test, want, real = sentences(200)
    seed(5)
    model = Tagger(13, 5)

    def loss(scores, y):
        if is_faulty:
            return F.cross_entropy(scores.reshape(-1, 5), y.reshape(-1))
        return F.cross_entropy(scores.reshape(-1, 5), y.reshape(-1), ignore_index=0)

    return Program(model, loss, loader(ids, tags), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), lambda m: accuracy(m(test)[real], want[real]))


class Recaller(nn.Module):
    def __init__(self, vocab, hidden, cut):
        super().__init__()
        self.hidden, self.cut = hidden, cut
        self.emb = nn.Embedding(vocab, 16)
        self.cell = nn.LSTMCell(16, hidden)
        self.fc = nn.Linear(hidden, 4)

    def forward(self, ids):
        h = c = torch.zeros(ids.size(0), self.hidden)
        for t in range(ids.size(1)):
            if self.cut:
                h, c = h.detach(), c.detach()  # "or the graph grows"
            h, c = self.cell(self.emb(ids[:, t]), (h, c))
        return self.fc(F.relu(h))


@fault("the LSTM's state is detached at every time step: nothing learns to remember the first word",
       rules=("no-gradient", "vanishing-gradient"), layers=("cell", "emb"), fails=True, steps=300)
def state_detached(is_faulty):
    g = gen(11)
    ids = torch.cat([torch.randint(4, (1300, 1), generator=g), torch.randint(4, 12, (1300, 11), generator=g)], 1)
    seed(6)
    model = Recaller(12, 32, is_faulty)
    return Program(model, nn.CrossEntropyLoss(), loader(ids[:1000], ids[:1000, 0]), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: accuracy(m(ids[1000:]), ids[1000:, 0]))


class Lookup(nn.Module):
    """Additive attention over a memory of (key, value) pairs."""

    def __init__(self, keys, values, dim):
        super().__init__()
        self.dim = dim
        self.key, self.query = nn.Embedding(keys, 24), nn.Embedding(keys, 24)
        self.value = nn.Embedding(values, 24)
        self.mix = nn.Linear(48, 64)
        self.score = nn.Linear(64, 1)
        self.out = nn.Linear(24, values)

    def forward(self, keys, values, query):
        k = self.key(keys)
        q = self.query(query).unsqueeze(1).expand_as(k)
        weights = F.softmax(self.score(F.relu(self.mix(torch.cat([q, k], dim=-1)))), dim=self.dim)
        return self.out((weights * self.value(values)).sum(1))


@fault("attention weights of shape (batch, time, 1) are normalised over the last dimension: each is 1 and the memory is summed",
       rules=("wrong-softmax-dimension", "no-gradient"), layers=("score", "mix", "query", "key"), fails=False, steps=350)
def softmax_over_one(is_faulty):
    g = gen(14)
    n = 2000
    keys = torch.rand(n, 8, generator=g).argsort(1)[:, :5]
    values = torch.randint(6, (n, 5), generator=g)
    which = torch.randint(5, (n, 1), generator=g)
    query, y = keys.gather(1, which)[:, 0], values.gather(1, which)[:, 0]
    seed(8)
    model = Lookup(8, 6, -1 if is_faulty else 1)
    batches = [({"keys": keys[i:i + 40], "values": values[i:i + 40], "query": query[i:i + 40]}, y[i:i + 40]) for i in range(0, 1600, 40)]
    return Program(model, nn.CrossEntropyLoss(), batches, torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: accuracy(m(keys[1600:], values[1600:], query[1600:]), y[1600:]))


class RandnAttention(nn.Module):
    def __init__(self, d, scale):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Parameter(torch.randn(d, d) * scale) for _ in range(4))
        self.norm = nn.LayerNorm(d)

    def forward(self, x):
        q, k, v = x @ self.wq, x @ self.wk, x @ self.wv
        a = torch.einsum("bid,bjd->bij", q, k).div(x.shape[-1] ** 0.5).softmax(-1)
        return self.norm(x + torch.einsum("bij,bjd->bid", a, v) @ self.wo)


class RandnNet(nn.Module):
    def __init__(self, scale, d=64):
        super().__init__()
        self.tok, self.place = nn.Embedding(20, d), nn.Embedding(10, d)
        self.a1, self.a2 = RandnAttention(d, scale), RandnAttention(d, scale)
        self.ff = nn.Linear(d, d)
        self.out = nn.Linear(d, 2)

    def forward(self, ids):
        h = self.a2(self.a1(self.tok(ids) + self.place.weight))
        return self.out(F.gelu(self.ff(h)).mean(1))


@fault("own attention weights are torch.randn(d, d) without a scale: scores of hundreds, attention on one position",
       rules=("bad-initialisation", "attention-saturation"), layers=("a1", "a2"), fails=False, steps=300)
def randn_attention(is_faulty):
    ids, y = order_text(1500, 10, k=16)
    test, want = order_text(300, 10, k=17)
    seed(10)
    model = RandnNet(1.0 if is_faulty else 64 ** -0.5)
    return Program(model, nn.CrossEntropyLoss(), loader(ids, y), torch.optim.Adam(model.parameters(), lr=1e-3), lambda m: accuracy(m(test), want))
