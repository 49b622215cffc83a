import math

import torch
import torch.nn.functional as F
from torch import nn

from data import accuracy, flagged, gen, loader, next_score, ordered, reversal, second_order, seed, sentiment, tagged
from program import Program, fault


@fault("A small GPT with its own attention: the causal mask was forgotten.", rules=["future-seen", "wrong-mask"], fails=False, steps=500)
def gpt_without_mask(is_faulty):
    seed(1)
    vocab, d, heads, context = 6, 48, 4, 15

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(d, 3 * d)
            self.proj = nn.Linear(d, d)
            self.up = nn.Linear(d, 2 * d)
            self.down = nn.Linear(2 * d, d)
            self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)

        def forward(self, x):
            b, t, _ = x.shape
            q, k, v = self.qkv(self.n1(x)).view(b, t, 3, heads, d // heads).unbind(2)
            scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(d // heads)
            if not is_faulty:
                scores = scores.masked_fill(torch.ones(t, t).triu(1).bool(), float("-inf"))
            out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).reshape(b, t, d)
            x = x + self.proj(out)
            return x + self.down(F.gelu(self.up(self.n2(x))))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok = nn.Embedding(vocab, d)
            self.pos = nn.Embedding(context, d)
            self.blocks = nn.ModuleList([Block(), Block()])
            self.norm = nn.LayerNorm(d)
            self.head = nn.Linear(d, vocab, bias=False)

        def forward(self, idx):
            x = self.tok(idx) + self.pos(torch.arange(idx.shape[1]))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    x, _ = second_order(1500, 16, s=1)
    model = GPT()
    return Program(
        model,
        lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten()),
        loader(x[:, :-1], x[:, 1:]),
        torch.optim.AdamW(model.parameters(), lr=2e-3),
        lambda m: next_score(lambda p: m(p)[:, -1]),
    )


@fault(
    "Sentence classifier on nn.TransformerEncoder: src_key_padding_mask is True at the words instead of at the padding.",
    rules=["wrong-mask"],
    fails=True,
    steps=300,
)
def padding_mask_inverted(is_faulty):
    seed(2)

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(22, 32, padding_idx=0)
            layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.out = nn.Linear(32, 3)

        def forward(self, tokens):
            cls = torch.full_like(tokens[:, :1], 21)
            tokens = torch.cat([cls, tokens], 1)
            mask = tokens != 0 if is_faulty else tokens == 0
            h = self.encoder(self.embed(tokens), src_key_padding_mask=mask)
            return self.out(h[:, 0])

    x, _, y = sentiment(1500, s=3)
    tx, _, ty = sentiment(500, s=4)
    model = Classifier()
    return Program(
        model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 1e-3), lambda m: accuracy(m(tx), ty)
    )


@fault(
    "Attention pooling masks padding with -inf, and a few sentences are empty, so that all of a row is masked.",
    rules=["non-finite", "wrong-mask"],
    fails=True,
    steps=300,
)
def empty_sentences(is_faulty):
    seed(3)
    hidden = float("-inf") if is_faulty else -1e4

    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(20, 24)
            self.score = nn.Linear(24, 1)
            self.fc1 = nn.Linear(24, 32)
            self.fc2 = nn.Linear(32, 3)

        def forward(self, tokens, lengths):
            e = self.embed(tokens)
            outside = torch.arange(tokens.shape[1]) >= lengths[:, None]
            w = self.score(torch.tanh(e)).squeeze(-1).masked_fill(outside, hidden).softmax(1)
            return self.fc2(F.relu(self.fc1(torch.bmm(w.unsqueeze(1), e).squeeze(1))))

    x, n, y = sentiment(1280, s=5, empty=0.02)
    tx, tn, ty = sentiment(500, s=6)
    batches = [({"tokens": a, "lengths": b}, c) for a, b, c in zip(x.split(32), n.split(32), y.split(32))]
    model = Pooled()
    return Program(
        model, nn.CrossEntropyLoss(), batches, torch.optim.Adam(model.parameters(), 3e-3), lambda m: accuracy(m(tx, tn), ty)
    )


class Pick(nn.Module):
    """Attention pooling by a learned query."""

    def __init__(self, features, d, classes, weigh):
        super().__init__()
        self.key = nn.Linear(features, d)
        self.value = nn.Linear(features, d)
        self.query = nn.Parameter(torch.randn(d) / d**0.5)
        self.norm = nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, classes))
        self.weigh = weigh

    def forward(self, x):
        scores = torch.tanh(self.key(x)) @ self.query.unsqueeze(1) * 3  # b t 1
        return self.mlp(self.norm((self.weigh(scores) * self.value(x)).sum(1)))


@fault(
    "Attention pooling: the softmax runs over the last dimension, which has size one, so that every weight is 1.",
    rules=["wrong-softmax-dimension"],
    fails=True,
    steps=400,
)
def pooling_over_last_dimension(is_faulty):
    seed(4)
    model = Pick(9, 32, 8, (lambda s: F.softmax(s, dim=-1)) if is_faulty else (lambda s: F.softmax(s, dim=1)))
    x, y = flagged(2000, s=7)
    tx, ty = flagged(500, s=8)
    return Program(
        model, F.cross_entropy, loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), lambda m: accuracy(m(tx), ty)
    )


@fault(
    "Self-attention with weights normalized over the batch (softmax of a b x t x t tensor in dim 0); users ask one sentence at a time.",
    rules=["wrong-softmax-dimension", "mixed-examples"],
    layers=["attention"],
    fails=True,
    steps=500,
)
def softmax_over_batch(is_faulty):
    seed(5)

    class Attention(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(d, d) / d**0.5) for _ in range(3))
            self.softmax = nn.Softmax(dim=0 if is_faulty else 2)

        def forward(self, x):
            q, k, v = x @ self.wq, x @ self.wk, x @ self.wv
            return self.softmax(torch.bmm(q, k.transpose(1, 2)) / q.shape[-1] ** 0.5) @ v

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(8, 32)
            self.places = nn.Parameter(torch.randn(12, 32) * 0.5)
            self.attention = Attention(32)
            self.hidden = nn.Linear(64, 96)
            self.tags = nn.Linear(96, 5)

        def forward(self, x):
            e = self.words(x) + self.places
            return self.tags(torch.relu(self.hidden(torch.cat([e, self.attention(e)], -1))))

    x, y = tagged(1500, s=9)
    tx, ty = tagged(200, s=10)
    model = Tagger()
    return Program(
        model,
        lambda out, y: F.cross_entropy(out.transpose(1, 2), y),
        loader(x, y),
        torch.optim.Adam(model.parameters(), 3e-3),
        lambda m: accuracy(torch.cat([m(one[None]) for one in tx]), ty),
    )


@fault(
    "nn.TransformerEncoder gets batch x time x features, but batch_first was forgotten: it attends to the other sentences.",
    rules=["mixed-examples"],
    layers=["encoder"],
    fails=False,
    steps=400,
)
def encoder_without_batch_first(is_faulty):
    seed(6)

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(8, 48)
            self.register_buffer("pe", torch.randn(12, 48, generator=gen(3)))
            self.encoder = nn.TransformerEncoder(
                nn.TransformerEncoderLayer(48, 4, 96, dropout=0.0, batch_first=not is_faulty, norm_first=True), 2, enable_nested_tensor=False
            )
            self.cls = nn.Linear(48, 5)

        def forward(self, x):
            return self.cls(self.encoder(self.emb(x) + self.pe[: x.size(1)]))

    x, y = tagged(1500, s=11)
    tx, ty = tagged(300, s=12)
    model = Tagger()
    return Program(
        model,
        lambda out, y: F.cross_entropy(out.reshape(-1, 5), y.reshape(-1)),
        loader(x, y),
        torch.optim.Adam(model.parameters(), 2e-3),
        lambda m: accuracy(m(tx), ty),
    )


@fault(
    "The learned positions are a plain tensor, not an nn.Parameter: they stay at zero and the order of the words is lost.",
    rules=["order-lost", "no-gradient"],
    fails=True,
    steps=400,
)
def positions_not_registered(is_faulty):
    seed(7)

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok = nn.Embedding(12, 32)
            zeros = torch.zeros(1, 12, 32)
            self.pos = zeros.requires_grad_() if is_faulty else nn.Parameter(zeros)
            self.att = nn.MultiheadAttention(32, 4, batch_first=True)
            self.ln1, self.ln2 = nn.LayerNorm(32), nn.LayerNorm(32)
            self.ff = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
            self.out = nn.Linear(32, 2)

        def forward(self, x):
            h = self.tok(x) + self.pos
            n = self.ln1(h)
            h = h + self.att(n, n, n, need_weights=False)[0]
            h = h + self.ff(self.ln2(h))
            return self.out(h.mean(1))

    x, y = ordered(2000, s=13)
    tx, ty = ordered(500, s=14)
    model = Encoder()
    return Program(
        model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 3e-3), lambda m: 2 * accuracy(m(tx), ty) - 1
    )


@fault(
    "Attention scores are multiplied by the square root of the head's size instead of divided.",
    rules=["attention-saturation"],
    layers=["attend"],
    fails=False,
    steps=150,
)
def scores_multiplied(is_faulty):
    seed(8)
    d = 64

    class Attend(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Linear(d, d, bias=False)
            self.k = nn.Linear(d, d, bias=False)
            self.v = nn.Linear(d, d, bias=False)

        def forward(self, x):
            scale = math.sqrt(d)
            a = self.q(x) @ self.k(x).mT
            a = a * scale if is_faulty else a / scale
            return a.softmax(-1) @ self.v(x)

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.word = nn.Embedding(8, d)
            self.place = nn.Embedding(12, d)
            self.attend = Attend()
            self.norm = nn.LayerNorm(d)
            self.ff = nn.Linear(2 * d, 128)
            self.tag = nn.Linear(128, 5)

        def forward(self, x):
            h = self.norm(self.word(x) + self.place.weight)
            return self.tag(F.gelu(self.ff(torch.cat([h, self.attend(h)], -1))))

    x, y = tagged(1500, s=15)
    tx, ty = tagged(300, s=16)
    model = Tagger()
    return Program(
        model,
        lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten()),
        loader(x, y),
        torch.optim.Adam(model.parameters(), 2e-3),
        lambda m: accuracy(m(tx), ty),
    )


@fault(
    "nn.Transformer translates; the decoder's input is the target itself, not the target shifted right behind a start token.",
    rules=["label-shift", "future-seen"],
    fails=True,
    steps=450,
)
def decoder_not_shifted(is_faulty):
    seed(9)
    vocab, d, length = 10, 32, 5

    class Translator(nn.Module):
        def __init__(self):
            super().__init__()
            self.src_emb = nn.Embedding(vocab, d)
            self.tgt_emb = nn.Embedding(vocab, d)
            self.pos = nn.Parameter(torch.randn(length + 1, d) * 0.5)
            self.transformer = nn.Transformer(d, 4, 1, 1, 64, dropout=0.0, batch_first=True, norm_first=True)
            self.generator = nn.Linear(d, vocab)

        def forward(self, src, tgt):
            causal = torch.ones(tgt.size(1), tgt.size(1), dtype=torch.bool).triu(1)
            s = self.src_emb(src) + self.pos[: src.size(1)]
            t = self.tgt_emb(tgt) + self.pos[: tgt.size(1)]
            return self.generator(self.transformer(s, t, tgt_mask=causal))

    src, tgt = reversal(2000, length, s=17)
    tsrc, ttgt = reversal(200, length, s=18)
    start = torch.ones(len(src), 1, dtype=torch.long)
    shifted = torch.cat([start, tgt[:, :-1]], 1)
    given = tgt if is_faulty else shifted
    batches = [({"src": a, "tgt": b}, c) for a, b, c in zip(src.split(32), given.split(32), tgt.split(32)) if len(a) == 32]

    def score(m):
        out = torch.ones(len(tsrc), 1, dtype=torch.long)
        for _ in range(length):
            out = torch.cat([out, m(tsrc, out)[:, -1:].argmax(-1)], 1)
        return (out[:, 1:] == ttgt).float().mean().item()

    model = Translator()
    return Program(
        model,
        lambda out, y: F.cross_entropy(out.transpose(1, 2), y),
        batches,
        torch.optim.Adam(model.parameters(), 2e-3),
        score,
    )
