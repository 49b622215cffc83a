"""Language models, masks, padding."""
import torch
from torch import nn
from torch.nn import functional as F
from program import Program, fault, sound  # noqa: F401
from textdata import acc, before, chain, gen, keyword, loader, r2, waves  # noqa: F401


class TinyGPT(nn.Module):
    def __init__(self, vocab, d=32, causal=True, length=24):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Embedding(length, d)
        layer = nn.TransformerEncoderLayer(d, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(d, vocab)
        self.causal = causal

    def forward(self, ids):
        t = ids.shape[1]
        h = self.tok(ids) + self.pos(torch.arange(t))
        mask = torch.full((t, t), float("-inf")).triu(1) if self.causal else None
        return self.head(self.blocks(h, mask=mask))


@fault("Labels are the input ids themselves; nobody shifts them (the author thought the model does)",
       rules=("label-shift", "future-seen"), fails=True, steps=150)
def gpt_labels_not_shifted(bad):
    ids, held = chain(800, 13, 20, 1), chain(200, 13, 20, 2)
    batches = loader(ids[:, :-1], ids[:, :-1] if bad else ids[:, 1:])
    model = TinyGPT(20)

    def loss(logits, labels):
        return F.cross_entropy(logits.reshape(-1, 20), labels.reshape(-1))

    return Program(model, loss, batches, torch.optim.AdamW(model.parameters(), lr=3e-3),
                   lambda m: acc(m(held[:, :-1]), held[:, 1:]))


@fault("A next-word model of TransformerEncoder layers, called without a mask",
       rules=("future-seen",), fails=False, steps=300)
def encoder_as_lm_without_mask(bad):
    ids, held = chain(800, 13, 12, 3), chain(300, 9, 12, 4, noise=0.0)
    model = TinyGPT(12, causal=not bad)

    def step(m, batch):
        ids = batch[0]
        out = m(ids[:, :-1])
        return nn.functional.cross_entropy(out.transpose(1, 2), ids[:, 1:])

    return Program(model, None, loader(ids), torch.optim.Adam(model.parameters(), lr=3e-3),
                   lambda m: acc(m(held[:, :-1])[:, -1], held[:, -1]), step=step)


@fault("Padded places of a tagger count in the loss: tag 0 is <pad>, ignore_index is forgotten, 9 in 10 places are padding",
       rules=("padding-in-loss",), fails=False, steps=60)
def tagger_pad_counted(bad):
    g = gen(7)
    tags = torch.randint(1, 6, (40,), generator=g)
    tags[0] = 0

    def texts(n, seed):
        g = gen(seed)
        x = torch.randint(1, 40, (n, 60), generator=g)
        n_real = torch.randint(3, 9, (n, 1), generator=g)
        x[:, 20:] = 0
        x[torch.arange(60)[None] >= n_real] = 0
        x[0, :60] = torch.randint(1, 40, (60,), generator=g)
        return x, tags[x]

    x, y = texts(640, 8)
    xt, yt = texts(200, 9)
    model = nn.Sequential(nn.Embedding(40, 24, padding_idx=0), nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 6))
    crit = nn.CrossEntropyLoss() if bad else nn.CrossEntropyLoss(ignore_index=0)

    def score(m):
        real = yt != 0
        return acc(m(xt)[real], yt[real])

    return Program(model, lambda o, t: crit(o.reshape(-1, 6), t.reshape(-1)), loader(x, y),
                   torch.optim.SGD(model.parameters(), lr=0.5), score)


class QueryPool(nn.Module):
    def __init__(self, vocab, classes, d=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.query = nn.Parameter(torch.randn(1, 1, d) * 0.1)
        self.mha = nn.MultiheadAttention(d, 4, batch_first=True)
        self.out = nn.Linear(d, classes)

    def forward(self, ids, attention_mask):
        e = self.emb(ids)
        h, _ = self.mha(self.query.expand(len(ids), -1, -1), e, e, key_padding_mask=attention_mask, need_weights=False)
        return self.out(h[:, 0])


@fault("The attention mask says True for real words, as tokenizers do; MultiheadAttention takes True for padding",
       rules=("wrong-mask", "rank-collapse"), layers=("mha",), fails=True, steps=250)
def inverted_key_padding_mask(bad):
    x, y, n = keyword(800, 14, 30, 4, 10, shortest=5)
    xt, yt, _ = keyword(300, 14, 30, 4, 11, shortest=5)
    x[:, -1] = 0
    xt[:, -1] = 0
    make = (lambda i: i != 0) if bad else (lambda i: i == 0)

    class Collated:
        def __iter__(self):
            for a, b in loader(x, y):
                yield {"ids": a, "attention_mask": make(a)}, b

        def __len__(self):
            return 25

    model = QueryPool(30, 4)
    return Program(model, F.cross_entropy, Collated(), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: acc(m(xt, make(xt)), yt))


class LastStep(nn.Module):
    def __init__(self, bad):
        super().__init__()
        self.emb = nn.Embedding(20, 12)
        self.gru = nn.LSTM(12, 24, batch_first=True)
        self.fc = nn.Linear(24, 4)
        self.bad = bad

    def forward(self, x, lengths):
        out, _ = self.gru(self.emb(x))
        last = out[:, -1] if self.bad else out[torch.arange(len(x)), lengths - 1]
        return self.fc(last)


@fault("Takes out[:, -1] of an LSTM on texts that are padded at the end to a far greater length",
       rules=("wrong-mask", "vanishing-gradient"), fails=True, steps=200)
def last_state_is_padding(bad):
    x, y, n = keyword(600, 8, 20, 4, 12, shortest=4)
    xt, yt, nt = keyword(300, 8, 20, 4, 13, shortest=4)
    pad = lambda a: F.pad(a, (0, 52))
    x, xt = pad(x), pad(xt)
    model = LastStep(bad)

    def step(m, batch):
        a, k, b = batch
        return F.cross_entropy(m(a, k), b)

    return Program(model, None, loader(x, n, y, bs=20), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: acc(m(xt, nt), yt), step=step)


class AttnPool(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.score = nn.Linear(16, 1)
        self.classifier = nn.Linear(16, 5)
        self.dim = dim

    def forward(self, x):
        e = self.embedding(x)
        w = F.softmax(self.score(e), dim=self.dim)
        return self.classifier((w * e).sum(1))


@fault("Attention pooling with softmax(dim=0): over the texts of the batch, not over the words",
       rules=("wrong-softmax-dimension", "mixed-examples"), fails=False, steps=300)
def pooling_softmax_over_batch(bad):
    x, y, _ = keyword(900, 24, 40, 5, 14)
    xt, yt, _ = keyword(200, 24, 40, 5, 15)
    model = AttnPool(0 if bad else 1)
    # served one text at a time
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), lr=1e-2),
                   lambda m: sum(acc(m(xt[i:i + 1]), yt[i:i + 1]) for i in range(200)) / 200)


class WordAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(25, 24, padding_idx=0)
        self.proj = nn.Linear(24, 24)
        self.context = nn.Linear(24, 1, bias=False)
        self.out = nn.Linear(24, 3)

    def forward(self, ids):
        e = self.emb(ids)
        s = self.context(torch.tanh(self.proj(e))).squeeze(-1)
        w = torch.softmax(s.masked_fill(ids == 0, float("-inf")), dim=-1)
        return self.out(torch.einsum("bt,btd->bd", w, e))


@fault("Batches hold empty texts: all of their words are masked with -inf, the softmax gives NaN",
       rules=("non-finite",), fails=True, steps=200)
def empty_texts_all_masked(bad):
    x, y, _ = keyword(800, 10, 25, 3, 16, shortest=4)
    xt, yt, _ = keyword(300, 10, 25, 3, 17, shortest=4)
    x[::9] = 0
    if not bad:
        keep = (x != 0).any(1)
        x, y = x[keep], y[keep]
    model = WordAttention()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: acc(m(xt), yt))
