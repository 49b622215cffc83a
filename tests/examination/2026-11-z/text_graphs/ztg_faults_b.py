"""Faults of language models, translation, fine-tuning and optimizers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from ztg_data import accuracy, fit, loader, next_score, rng, stream, tagged, topics

ce = F.cross_entropy


def token_loss(logits, targets):
    return ce(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


class GPT(nn.Module):
    def __init__(self, vocab=24, dim=32, layers=1, length=14, is_causal=True):
        super().__init__()
        self.wte = nn.Embedding(vocab, dim)
        self.wpe = nn.Embedding(length, dim)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        self.is_causal = is_causal

    def forward(self, ids):
        time = ids.shape[1]
        h = self.wte(ids) + self.wpe(torch.arange(time))
        mask = nn.Transformer.generate_square_subsequent_mask(time) if self.is_causal else None
        for block in self.blocks:
            h = block(h, src_mask=mask)
        return self.lm_head(self.norm(h))


class RNNLM(nn.Module):
    def __init__(self, vocab=24, dim=32, is_both_ways=False):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True, bidirectional=is_both_ways)
        self.out = nn.Linear(dim * (2 if is_both_ways else 1), vocab)

    def forward(self, ids):
        return self.out(self.rnn(self.embed(ids))[0])


@fault(
    "The causal language model's labels are its own inputs: nothing shifts them.",
    rules=("label-shift", "future-seen"),
    fails=True,
    steps=300,
)
def ztg_labels_are_inputs(is_faulty):
    ids = stream(800)
    model = GPT()
    batches = loader(ids, ids, batch=16) if is_faulty else loader(ids[:, :-1], ids[:, 1:], batch=16)
    return Program(model, token_loss, batches, torch.optim.AdamW(model.parameters(), 3e-3), next_score())


@fault(
    "The data set shifts the labels and the loss shifts them once more.",
    rules=("label-shift",),
    fails=True,
    steps=300,
)
def ztg_shifted_twice(is_faulty):
    ids = stream(800)
    x, y = ids[:, :-1], ids[:, 1:]

    def criterion(logits, labels):
        if is_faulty:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return token_loss(logits, labels)

    model = RNNLM()
    return Program(model, criterion, loader(x, y, batch=16), torch.optim.Adam(model.parameters(), 5e-3), next_score())


@fault(
    "The decoder has no causal mask, so that every place sees the token it is to predict.",
    rules=("future-seen",),
    fails=True,
    steps=450,
)
def ztg_no_causal_mask(is_faulty):
    ids = stream(1500, noise=0.4)
    model = GPT(layers=2, is_causal=not is_faulty)
    return Program(model, token_loss, loader(ids[:, :-1], ids[:, 1:], batch=16),
                   torch.optim.AdamW(model.parameters(), 2e-3), next_score())


MASK = 24


def masked(n, seed):
    ids = stream(n, noise=0.0, seed=seed)
    hidden = torch.rand(ids.shape, generator=rng(seed + 50)) < 0.2
    return ids, hidden


@fault(
    "Masked language model: the masked copy of the text is made, but the text itself is fed.",
    rules=("future-seen", "label-shift"),
    fails=False,
    steps=350,
)
def ztg_masked_copy_unused(is_faulty):
    ids, hidden = masked(1200, 0)
    corrupted = ids.masked_fill(hidden, MASK)
    labels = ids.masked_fill(~hidden, -100)
    model = RNNLM(25, is_both_ways=True)
    tests, places = masked(200, 1)

    def score(m):
        return (m(tests.masked_fill(places, MASK)).argmax(-1) == tests)[places].float().mean().item()

    batches = loader(ids if is_faulty else corrupted, labels, batch=16)
    return Program(model, token_loss, batches, torch.optim.Adam(model.parameters(), 5e-3), score)


def translation(n, seed, length=5, vocab=14):
    """The target says the source in other words, one for one; 0 begins a target."""
    g = rng(seed)
    source = torch.randint(1, vocab, (n, length), generator=g)
    words = torch.randperm(vocab - 1, generator=rng(6)) + 1
    return source, words[source - 1]


class Seq2Seq(nn.Module):
    def __init__(self, vocab=14, dim=32):
        super().__init__()
        self.source, self.target = nn.Embedding(vocab, dim), nn.Embedding(vocab, dim)
        self.encoder = nn.GRU(dim, dim, batch_first=True, bidirectional=True)
        self.decoder = nn.GRU(dim, dim, batch_first=True)
        self.places = nn.Parameter(torch.randn(6, dim) * 0.5)
        self.key = nn.Linear(2 * dim, dim)
        self.out = nn.Linear(3 * dim, vocab)

    def forward(self, src, tgt):
        memory = self.encoder(self.source(src))[0]
        h = self.decoder(self.target(tgt))[0] + self.places[: tgt.shape[1]]
        keys = self.key(memory) + self.places[: src.shape[1]]
        weights = torch.softmax(h @ keys.transpose(1, 2) / 32**0.5, -1)
        return self.out(torch.cat([h, weights @ memory], -1))


@fault(
    "Teacher forcing feeds the decoder the target itself instead of the target behind a start token.",
    rules=("future-seen", "label-shift"),
    fails=True,
    steps=400,
)
def ztg_teacher_tells_all(is_faulty):
    src, tgt = translation(1500, 0)
    start = torch.zeros(len(tgt), 1, dtype=torch.long)
    fed = tgt if is_faulty else torch.cat([start, tgt[:, :-1]], 1)
    model = Seq2Seq()
    xs, ys = translation(200, 1)

    def score(m):
        said = torch.zeros(len(xs), 1, dtype=torch.long)
        for _ in range(ys.shape[1]):
            said = torch.cat([said, m(xs, said)[:, -1:].argmax(-1)], 1)
        return (said[:, 1:] == ys).float().mean().item()

    def step(m, batch):
        s, f, t = batch
        return token_loss(m(s, f), t)

    return Program(model, None, loader(src, fed, tgt), torch.optim.Adam(model.parameters(), 5e-3), score, step=step)


class LoRA(nn.Module):
    def __init__(self, base, rank, is_faulty):
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.zeros(rank, base.in_features) if is_faulty else
                              torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + 4 * F.linear(F.linear(x, self.a), self.b)


class Small(nn.Module):
    def __init__(self, vocab=120, classes=4, dim=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.up = nn.Linear(dim, 64)
        self.down = nn.Linear(64, dim)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, ids):
        h = self.embed(ids).mean(1)
        return self.head(self.norm(h + self.down(F.relu(self.up(h)))))


@fault(
    "Both factors of the LoRA adapters begin at zero, so that neither gets a gradient.",
    rules=("bad-initialisation", "symmetric-initialisation", "no-gradient", "loss-not-decreasing", "rank-collapse"),
    layers=("up", "down"),
    fails=True,
    steps=300,
)
def ztg_lora_zeros(is_faulty):
    x, y = topics(1200)
    model = fit(Small(), x, y, 150)
    model.requires_grad_(False)
    model.up, model.down = LoRA(model.up, 4, is_faulty), LoRA(model.down, 4, is_faulty)
    z, (xt, yt) = (y + 1) % 4, topics(300, seed=1)  # the new task names the topics differently
    opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 5e-3)
    return Program(model, ce, loader(x, z), opt, accuracy(xt, (yt + 1) % 4))


@fault(
    "The optimizer is made before the head is replaced for the new task, so that it holds the old head.",
    rules=("no-gradient",),
    layers=("head",),
    fails=False,
    steps=200,
)
def ztg_head_replaced_later(is_faulty):
    x, y = topics(1200)
    model = fit(Small(), x, y, 100)
    for part in (model.embed, model.up, model.down):  # the norm and the head are tuned
        part.requires_grad_(False)
    xt, yt = topics(400, 4, share=0.5, seed=1)
    yt = (yt + 1) % 4
    x, y = topics(1200, 4, share=0.5, seed=2)
    y = (y + 1) % 4
    if is_faulty:
        opt = torch.optim.SGD(model.parameters(), 0.05)
        model.head = nn.Linear(32, 4)
    else:
        model.head = nn.Linear(32, 4)
        opt = torch.optim.SGD(model.parameters(), 0.05)
    return Program(model, ce, loader(x, y), opt, accuracy(xt, yt))


@fault(
    "Warm-up is counted in epochs of the original run, 20 000 steps: the rate stays next to nothing.",
    rules=("learning-rate-too-low",),
    fails=True,
    steps=300,
)
def ztg_endless_warmup(is_faulty):
    ids = stream(800)
    model = GPT()
    opt = torch.optim.AdamW(model.parameters(), 2e-3)
    warm = 20_000 if is_faulty else 30
    plan = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / warm))
    return Program(model, token_loss, loader(ids[:, :-1], ids[:, 1:], batch=16), opt, next_score(), scheduler=plan)


@fault(
    "The rate of a full fine-tuning is 0.1 with Adam, left over from SGD.",
    rules=("learning-rate-too-high", "diverging"),
    fails=False,
    steps=300,
)
def ztg_sgd_rate_for_adam(is_faulty):
    x, y = tagged(800)
    model = GPT(30, layers=2)
    model.lm_head = nn.Linear(32, 8)
    opt = torch.optim.Adam(model.parameters(), 0.1 if is_faulty else 2e-3)
    return Program(model, token_loss, loader(x, y, batch=16), opt, accuracy(*tagged(200, seed=1)))


@fault(
    "The model is cast to bfloat16 whole and fine-tuned with small steps, which its weights round away.",
    rules=("lost-updates", "learning-rate-too-low"),
    fails=False,
    steps=600,
)
def ztg_weights_in_bfloat16(is_faulty):
    x, y = topics(1200)
    model = fit(Small(), x, y, 100)
    model.head = nn.Linear(32, 4)
    with torch.no_grad():
        model.head.weight.mul_(0.0).add_(torch.randn(4, 32, generator=rng(2)) * 0.3)
    z = (y + 1) % 4
    kind = torch.bfloat16 if is_faulty else torch.float32
    model = model.to(kind)
    xt, yt = topics(400, seed=1)
    opt = torch.optim.Adam(model.parameters(), lr=1.5e-4)
    return Program(model, lambda out, t: ce(out.float(), t), loader(x, z), opt, accuracy(xt, (yt + 1) % 4))


@fault(
    "Adam's epsilon is 1.0, as for an Inception network: gradients of rare words vanish next to it.",
    rules=("optimizer-setting", "learning-rate-too-low"),
    fails=False,
    steps=300,
)
def ztg_epsilon_one(is_faulty):
    x, y = topics(1500, 8, 260, share=0.4)
    model = Small(260, 8)
    opt = torch.optim.Adam(model.parameters(), 3e-3, eps=1.0 if is_faulty else 1e-8)
    return Program(model, ce, loader(x, y), opt, accuracy(*topics(400, 8, 260, share=0.4, seed=1)))


@fault(
    "Adam's weight_decay of 0.1 is meant for AdamW; as an L2 penalty it outweighs the gradients of all words.",
    rules=("weight-decay-dominates",),
    fails=False,
    steps=400,
)
def ztg_decay_of_adamw(is_faulty):
    x, y = topics(1500, 8, 260, share=0.4)
    model = Small(260, 8)
    kind = torch.optim.Adam if is_faulty else torch.optim.AdamW
    opt = kind(model.parameters(), 3e-3, weight_decay=0.1)
    return Program(model, ce, loader(x, y), opt, accuracy(*topics(400, 8, 260, share=0.4, seed=1)))


@fault(
    "The loss is summed over all tokens, while the rate is that of a mean.",
    rules=("summed-loss", "learning-rate-too-high", "diverging"),
    fails=False,
    steps=300,
)
def ztg_sum_over_tokens(is_faulty):
    x, y = tagged(800)
    model = RNNLM(30)
    model.out = nn.Linear(32, 8)
    criterion = nn.CrossEntropyLoss(reduction="sum" if is_faulty else "mean")
    opt = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    return Program(model, lambda out, t: criterion(out.flatten(0, 1), t.flatten()), loader(x, y), opt,
                   accuracy(*tagged(200, seed=1)))


@fault(
    "Embedding and output share a table, as is usual, but it keeps nn.Embedding's standard deviation of 1.",
    rules=("bad-initialisation", "saturated-output"),
    layers=("embed", "out"),
    fails=True,
    steps=250,
)
def ztg_tied_table_too_large(is_faulty):
    class Net(nn.Module):
        def __init__(self, vocab=200, dim=256):
            super().__init__()
            self.embed = nn.Embedding(vocab, dim)
            self.mix = nn.Sequential(nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, dim))
            self.norm = nn.LayerNorm(dim)
            self.out = nn.Linear(dim, vocab, bias=False)
            self.out.weight = self.embed.weight
            if not is_faulty:
                nn.init.normal_(self.embed.weight, std=0.02)

        def forward(self, ids):
            h = self.embed(ids)
            return self.out(self.norm(h + self.mix(h)))

    ids = stream(1500, vocab=200)
    model = Net()
    return Program(model, token_loss, loader(ids[:, :-1], ids[:, 1:], batch=16),
                   torch.optim.AdamW(model.parameters(), 3e-4), next_score(200))


@fault(
    "Queries and keys are not divided by the root of their width, and their weights are drawn from N(0, 1).",
    rules=("attention-saturation", "bad-initialisation"),
    layers=("q", "k"),
    fails=False,
    steps=400,
)
def ztg_sharp_attention(is_faulty):
    def data(n, seed):
        # the answer is the value behind the key that is asked for
        g = rng(seed)
        keys = torch.rand(n, 10, generator=g).argsort(1)[:, :6]
        values = torch.randint(10, 18, (n, 6), generator=g)
        which = torch.randint(6, (n, 1), generator=g)
        return torch.cat([keys, values, keys.gather(1, which)], 1), values.gather(1, which)[:, 0] - 10

    class Net(nn.Module):
        def __init__(self, dim=32):
            super().__init__()
            self.embed = nn.Embedding(18, dim)
            self.q, self.k = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
            if is_faulty:
                nn.init.normal_(self.q.weight)
                nn.init.normal_(self.k.weight)
            self.scale = 1.0 if is_faulty else dim**-0.5
            self.head = nn.Linear(dim, 8)

        def forward(self, ids):
            q, k = self.q(self.embed(ids[:, -1:])), self.k(self.embed(ids[:, :6]))
            weights = torch.softmax(q @ k.transpose(1, 2) * self.scale, -1)
            return self.head((weights @ self.embed(ids[:, 6:12]))[:, 0])

    model = Net()
    return Program(model, ce, loader(*data(2500, 0)), torch.optim.Adam(model.parameters(), 5e-3),
                   accuracy(*data(400, 1)))


@fault(
    "CTC gets raw scores: the log-softmax is missing, so that the loss can fall without end below zero.",
    rules=("output-loss-mismatch", "diverging"),
    fails=True,
    steps=400,
)
def ztg_ctc_of_scores(is_faulty):
    def data(n, seed):
        # 4 phones of 1 to 4 frames each, 16 frames
        g = rng(seed)
        phones = torch.rand(n, 8, generator=g).argsort(1)[:, :4] + 1
        cuts = torch.rand(n, 15, generator=g).argsort(1)[:, :3].sort(1).values
        index = (torch.arange(16)[None, :, None] > cuts[:, None]).sum(2)
        frames = F.one_hot(phones.gather(1, index), 9).float() + 0.3 * torch.randn(n, 16, 9, generator=g)
        return frames, phones

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(9, 32, batch_first=True, bidirectional=True)
            self.out = nn.Linear(64, 9)

        def forward(self, frames):
            out = self.out(self.rnn(frames)[0])
            return (out if is_faulty else out.log_softmax(-1)).transpose(0, 1)

    def criterion(out, phones):
        n = phones.shape[0]
        return F.ctc_loss(out, phones, torch.full((n,), 16), torch.full((n,), 4))

    xt, yt = data(100, 1)

    def score(m):
        right = 0
        for path, phones in zip(m(xt).argmax(-1).T.tolist(), yt.tolist()):
            said = [p for i, p in enumerate(path) if p and (i == 0 or path[i - 1] != p)]
            right += said == phones
        return right / len(yt)

    model = Net()
    return Program(model, criterion, loader(*data(1000, 0)), torch.optim.Adam(model.parameters(), 5e-3), score)

