"""Language models, taggers and translators with one mistake each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn

from data import accuracy, loader, rng, tags, text

V = 20


class TinyGPT(nn.Module):
    def __init__(self, vocab=V, width=32, heads=4, depth=2, length=16, causal=True):
        super().__init__()
        self.tok = nn.Embedding(vocab, width)
        self.pos = nn.Parameter(0.02 * torch.randn(length, width))
        block = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocab)
        self.causal = causal

    def forward(self, ids):
        n = ids.shape[1]
        mask = torch.triu(torch.full((n, n), float("-inf")), 1) if self.causal else None
        return self.head(self.blocks(self.tok(ids) + self.pos[:n], mask=mask))


def ce(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def next_token(skip=3):
    """Accuracy of the last position's prediction, for prefixes of the held-out text."""
    held = text(seed=5)

    def score(model):
        hits = [(model(held[:, :t])[:, -1].argmax(-1) == held[:, t]).float().mean() for t in range(skip, 16, 3)]
        return torch.stack(hits).mean().item()

    return score


@fault(
    "The labels of a causal language model are its input ids, as for a library that shifts them, but nothing shifts them.",
    rules=["label-shift"],
    fails=True,
    steps=300,
)
def labels_not_shifted(is_faulty):
    data = text()
    model = TinyGPT()
    x, y = (data, data) if is_faulty else (data[:, :-1], data[:, 1:])
    return Program(model, ce, loader(x, y, batch=16), torch.optim.Adam(model.parameters(), 3e-3), next_token())


@fault(
    "The dataset shifts the labels by one, and the loss shifts them once more: the model learns the token after the next.",
    rules=["label-shift"],
    fails=True,
    steps=300,
)
def shifted_twice(is_faulty):
    class GRULM(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(V, 32)
            self.rnn = nn.GRU(32, 48, batch_first=True)
            self.out = nn.Linear(48, V)

        def forward(self, ids):
            return self.out(self.rnn(self.emb(ids))[0])

    def shifted_ce(logits, labels):
        if is_faulty:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return F.cross_entropy(logits.reshape(-1, V), labels.reshape(-1))

    data = text()
    model = GRULM()
    return Program(
        model, shifted_ce, loader(data[:, :-1], data[:, 1:]), torch.optim.Adam(model.parameters(), 5e-3), next_token()
    )


@fault(
    "The causal mask is not passed to the encoder, so each position sees the token that it is asked for.",
    rules=["future-seen"],
    layers=["blocks"],
    fails=False,
    steps=300,
)
def no_causal_mask(is_faulty):
    data = text()
    model = TinyGPT(causal=not is_faulty)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return Program(model, ce, loader(data[:, :-1], data[:, 1:], batch=16), opt, next_token())


@fault(
    "The causal mask is made with tril where triu was meant: each token attends to itself and to what comes after it.",
    rules=["future-seen", "wrong-mask"],
    fails=False,
    steps=300,
)
def mask_upside_down(is_faulty):
    class OneHeadLM(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.table = nn.Embedding(V, d)
            self.where = nn.Embedding(16, d)
            self.att = nn.Linear(d, 3 * d, bias=False)
            self.ff = nn.Sequential(nn.LayerNorm(2 * d), nn.Linear(2 * d, 96), nn.GELU(), nn.Linear(96, V))

        def forward(self, ids):
            n = ids.shape[1]
            h = self.table(ids)
            q, k, v = self.att(h + self.where.weight[:n]).chunk(3, -1)
            ones = torch.ones(n, n, dtype=torch.bool)
            hide = ones.tril(-1) if is_faulty else ones.triu(1)
            a = (q @ k.mT / 32**0.5).masked_fill(hide, float("-inf")).softmax(-1) @ v
            return self.ff(torch.cat([h, a], -1))

    data = text()
    net = OneHeadLM()
    return Program(net, ce, loader(data[:, :-1], data[:, 1:]), torch.optim.Adam(net.parameters(), 5e-3), next_token())


@fault(
    "The tags' padding (0) counts in the loss, and nearly all of it is padding.",
    rules=["padding-in-loss"],
    fails=False,
    steps=60,
)
def tagger_learns_padding(is_faulty):
    x, y, _ = tags(length=40, shortest=3, longest=5)
    tx, ty, _ = tags(length=40, shortest=3, longest=5, seed=9)

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(16, 16)
            self.gru = nn.GRU(16, 24, batch_first=True)
            self.tag = nn.Linear(24, 5)

        def forward(self, ids):
            return self.tag(self.gru(self.emb(ids))[0])

    crit = nn.CrossEntropyLoss() if is_faulty else nn.CrossEntropyLoss(ignore_index=0)
    net = Tagger()
    return Program(
        net,
        lambda out, y: crit(out.transpose(1, 2), y),
        loader(x, y, batch=16),
        torch.optim.Adam(net.parameters(), lr=5e-3),
        accuracy(tx, ty.masked_fill(ty == 0, -1)),
    )


@fault(
    "The translator's decoder is fed the very tokens that it is asked for: nobody puts a start token before them.",
    rules=["label-shift", "future-seen"],
    fails=True,
    steps=400,
)
def decoder_fed_its_answer(is_faulty):
    start, length = 10, 5
    src = torch.randint(0, 10, (1024, length), generator=rng(3))
    test = torch.randint(0, 10, (256, length), generator=rng(4))

    def translated(s):
        return (s * 3 + 1) % 10

    class Seq2Seq(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(11, 32)
            self.pos = nn.Parameter(0.3 * torch.randn(length, 32))
            self.net = nn.Transformer(32, 4, 1, 1, 64, dropout=0.0, batch_first=True)
            self.out = nn.Linear(32, 10)

        def forward(self, src, tgt):
            mask = self.net.generate_square_subsequent_mask(tgt.shape[1])
            return self.out(self.net(self.emb(src) + self.pos, self.emb(tgt) + self.pos[: tgt.shape[1]], tgt_mask=mask))

    class Pairs:
        def __iter__(self):
            for i in torch.randperm(1024).split(32):
                y = translated(src[i])
                begin = torch.full((len(i), 1), start)
                yield {"src": src[i], "tgt": y if is_faulty else torch.cat([begin, y[:, :-1]], 1)}, y

    def greedy(model):
        out = torch.full((256, 1), start)
        for _ in range(length):
            out = torch.cat([out, model(test, out)[:, -1:].argmax(-1)], 1)
        return (out[:, 1:] == translated(test)).float().mean().item()

    model = Seq2Seq()
    return Program(model, ce, Pairs(), torch.optim.Adam(model.parameters(), lr=2e-3), greedy)


@fault(
    "Output weights tied to embeddings drawn from N(0, 1) at width 256, and plain SGD: the loss starts far above that of guessing.",
    rules=["bad-initialisation", "saturated-output"],
    layers=["tok", "out"],
    fails=True,
    steps=200,
)
def tied_embedding_of_unit_variance(is_faulty):
    class Tied(nn.Module):
        def __init__(self, d=256):
            super().__init__()
            self.tok = nn.Embedding(V, d)
            if not is_faulty:
                nn.init.normal_(self.tok.weight, std=d**-0.5)
            self.mix = nn.Linear(2 * d, d)
            nn.init.normal_(self.mix.weight, std=d**-0.5)
            self.out = nn.Linear(d, V, bias=False)
            self.out.weight = self.tok.weight

        def forward(self, ids):
            e = self.tok(ids)
            first = e[:, :1].expand_as(e)
            return self.out(self.mix(torch.cat([e, first], -1)).relu())

    data = text()
    model = Tied()
    opt = torch.optim.SGD(model.parameters(), lr=1.0)
    return Program(model, ce, loader(data[:, :-1], data[:, 1:], batch=16), opt, next_token())


@fault(
    "The noam schedule, which is a rate of its own, multiplies a base rate of 1e-3 and warms up for 4000 steps.",
    rules=["learning-rate-too-low"],
    fails=True,
    steps=300,
)
def noam_times_rate(is_faulty):
    data = text()
    model = TinyGPT()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3 if is_faulty else 1.0, betas=(0.9, 0.98), eps=1e-9)
    warm = 4000 if is_faulty else 100

    def noam(step):
        step += 1
        return 32**-0.5 * min(step**-0.5, step * warm**-1.5) * (1.0 if is_faulty else 0.2)

    sched = torch.optim.lr_scheduler.LambdaLR(opt, noam)
    return Program(model, ce, loader(data[:, :-1], data[:, 1:], batch=16), opt, next_token(), scheduler=sched)
