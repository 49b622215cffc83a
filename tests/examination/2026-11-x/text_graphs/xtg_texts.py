"""Faults: classifiers and taggers of texts."""

import math

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from xtg_data import accuracy, loader, texts


class ClsEncoder(nn.Module):
    def __init__(self, vocab, d, length, classes, *, batch_first=True, inverted=False, positions=True, layers=1):
        super().__init__()
        self.token = nn.Embedding(vocab, d)
        self.cls = nn.Parameter(0.02 * torch.randn(1, 1, d))
        self.position = nn.Parameter(0.1 * torch.randn(length + 1, d)) if positions else None
        block = nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.out = nn.Linear(d, classes)
        self.inverted = inverted

    def forward(self, tokens, use_mask=True):
        h = torch.cat([self.cls.expand(len(tokens), -1, -1), self.token(tokens)], 1)
        if self.position is not None:
            h = h + self.position[: h.shape[1]]
        pad = F.pad(tokens == 0, (1, 0))
        if self.inverted:
            pad = ~pad
        return self.out(self.encoder(h, src_key_padding_mask=pad)[:, 0])


@fault(
    "src_key_padding_mask is True where tokens are real, as Hugging Face's attention_mask is",
    rules=["wrong-mask"],
    fails=True,
    steps=200,
)
def xtg_mask_true_for_real(is_faulty):
    x, _, y = texts(900, 14, 60, 4, 5, 12)
    model = ClsEncoder(60, 32, 14, 4, inverted=is_faulty)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:700], y[:700]),
        torch.optim.Adam(model.parameters(), lr=2e-3),
        lambda m: accuracy(m(x[700:]), y[700:]),
    )


class Pairs(nn.Module):
    """Mean of contextual tokens."""

    def __init__(self, positions):
        super().__init__()
        self.emb = nn.Embedding(30, 32)
        self.pos = nn.Embedding(10, 32) if positions else None
        self.body = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True),
            1,
            enable_nested_tensor=False,
        )
        self.head = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 2))

    def forward(self, x):
        h = self.emb(x)
        if self.pos is not None:
            h = h + self.pos(torch.arange(x.shape[1]))
        return self.head(self.body(h).mean(1))


@fault(
    "a transformer is to say which of two names comes first, and has no position embedding",
    rules=["order-lost", "loss-not-decreasing"],
    fails=True,
    steps=400,
)
def xtg_who_comes_first(is_faulty):
    n = 1500
    x = torch.randint(4, 30, (n, 10))
    y = torch.randint(2, (n,))
    for i in range(n):
        a, b = torch.randperm(10)[:2].sort().values.tolist()
        x[i, a], x[i, b] = (1, 2) if y[i] else (2, 1)
    model = Pairs(positions=not is_faulty)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:1200], y[:1200]),
        torch.optim.AdamW(model.parameters(), lr=3e-3),
        lambda m: accuracy(m(x[1200:]), y[1200:]),
    )


@fault(
    "an encoder made without batch_first is given (batch, time, features): it attends over the batch",
    rules=["mixed-examples"],
    layers=["encoder"],
    fails=True,
    steps=200,
)
def xtg_time_is_batch(is_faulty):
    class Unmasked(ClsEncoder):
        def forward(self, tokens):
            h = torch.cat([self.cls.expand(len(tokens), -1, -1), self.token(tokens)], 1) + self.position
            return self.out(self.encoder(h)[:, 0])

    x, _, y = texts(900, 10, 60, 5, 10, 10)
    model = Unmasked(60, 32, 10, 5, batch_first=not is_faulty)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:700], y[:700], size=28),
        torch.optim.Adam(model.parameters(), lr=2e-3),
        lambda m: accuracy(m(x[700:]), y[700:]),
    )


class Intents(nn.Module):
    def __init__(self, classes, softmax):
        super().__init__()
        self.words = nn.EmbeddingBag(300, 48, mode="mean", padding_idx=0)
        self.hidden = nn.Linear(48, 64)
        self.intent = nn.Linear(64, classes)
        self.softmax = softmax

    def forward(self, x):
        z = self.intent(torch.relu(self.hidden(self.words(x))))
        return z.softmax(-1) if self.softmax else z


@fault(
    "a classifier of forty intents returns probabilities, and CrossEntropyLoss takes a softmax of them",
    rules=["output-loss-mismatch", "saturated-output"],
    fails=False,
    steps=400,
)
def xtg_forty_intents(is_faulty):
    x, _, y = texts(1600, 8, 300, 40, 4, 8, plant=3)
    model = Intents(40, is_faulty)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:1300], y[:1300]),
        torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9),
        lambda m: accuracy(m(x[1300:]), y[1300:]),
    )


class Forgetful(nn.Module):
    def __init__(self, forget):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.lstm = nn.LSTM(16, 32, batch_first=True)
        self.fc = nn.Linear(32, 4)
        for name, p in self.lstm.named_parameters():
            if "bias" in name:
                nn.init.zeros_(p)
                p.data[32:64].fill_(forget)

    def forward(self, x):
        return self.fc(self.lstm(self.embedding(x))[1][0][-1])


@fault(
    "the bias of the forget gate starts at -2 in both bias vectors (a wrong sign), and what counts comes first",
    rules=["vanishing-gradient", "bad-initialisation", "loss-not-decreasing"],
    layers=["lstm"],
    fails=True,
    steps=300,
)
def xtg_forget_gate_shut(is_faulty):
    x = torch.randint(4, 20, (1200, 24))
    y = torch.randint(4, (1200,))
    x[:, 0] = y
    model = Forgetful(-2.0 if is_faulty else 1.5)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:1000], y[:1000]),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: accuracy(m(x[1000:]), y[1000:]),
    )


class Speller(nn.Module):
    """All positions of a transcription at once, from a code."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(12, 64)
        self.place = nn.Parameter(torch.randn(12, 64))
        self.mix = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 9))

    def forward(self, code):
        return self.mix(self.up(code)[:, None] + self.place)


@fault(
    "cross_entropy without ignore_index: padding after short strings is asked for like a letter",
    rules=["padding-in-loss"],
    fails=False,
    steps=400,
)
def xtg_letters_and_padding(is_faulty):
    n, length = 1300, 12
    code = torch.randn(n, 12)
    planes = torch.randn(length, 12, 8)
    letters = torch.einsum("nc,tck->ntk", code, planes)[..., :4].argmax(-1) + 1
    ends = torch.randint(1, length + 1, (n,))
    padded = torch.where(torch.arange(length) < ends[:, None], letters, torch.zeros_like(letters))
    model = Speller()

    def loss(logits, y):
        return F.cross_entropy(logits.transpose(1, 2), y, ignore_index=-100 if is_faulty else 0)

    def score(m):
        real = padded[1000:] > 0
        return accuracy(m(code[1000:])[real], padded[1000:][real])

    return Program(
        model, loss, loader(code[:1000], padded[:1000]), torch.optim.AdamW(model.parameters(), lr=3e-3), score
    )


@fault(
    "the function given to LambdaLR returns the rate instead of a factor, so that the rate is squared",
    rules=["learning-rate-too-low"],
    fails=True,
    steps=300,
)
def xtg_rate_squared(is_faulty):
    x, _, y = texts(1100, 12, 80, 4, 6, 12)
    model = nn.Sequential(nn.EmbeddingBag(80, 32, padding_idx=0), nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4))
    base, warm = 2e-3, 20
    optimizer = torch.optim.AdamW(model.parameters(), lr=base)

    def schedule(step):
        factor = min((step + 1) / warm, math.sqrt(warm / (step + 1)))
        return base * factor if is_faulty else factor

    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:900], y[:900]),
        optimizer,
        lambda m: accuracy(m(x[900:]), y[900:]),
        scheduler=LambdaLR(optimizer, schedule),
    )


class Slots(nn.Module):
    def __init__(self, repeated):
        super().__init__()
        self.bag = nn.EmbeddingBag(40, 32, mode="sum")
        self.trunk = nn.Sequential(nn.Linear(32, 48), nn.ReLU())
        heads = [nn.Linear(48, 5)] * 3 if repeated else [nn.Linear(48, 5) for _ in range(3)]
        self.heads = nn.ModuleList(heads)

    def forward(self, x):
        h = self.trunk(self.bag(x))
        return torch.stack([head(h) for head in self.heads], 1)


@fault(
    "[nn.Linear(...)] * 3: the three slots of an utterance have one and the same head",
    rules=["shared-weight"],
    layers=["heads"],
    fails=False,
    steps=300,
)
def xtg_three_times_one_head(is_faulty):
    y = torch.randint(5, (1200, 3))
    x = torch.cat([y + 5 * torch.arange(3), torch.randint(15, 40, (1200, 4))], 1)
    x = x.gather(1, torch.rand(1200, 7).argsort(1))
    model = Slots(is_faulty)
    return Program(
        model,
        lambda out, t: sum(F.cross_entropy(out[:, k], t[:, k]) for k in range(3)),
        loader(x[:1000], y[:1000]),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: accuracy(m(x[1000:]), y[1000:]),
    )


@fault(
    "texts come language by language, and the loader does not shuffle",
    rules=["sorted-batches"],
    fails=False,
    steps=320,
)
def xtg_language_by_language(is_faulty):
    n, classes = 1280, 8
    habits = torch.randn(classes, 26).mul(0.9).softmax(-1)
    y = torch.arange(classes).repeat_interleave(n // classes)
    x = torch.stack([torch.bincount(torch.multinomial(habits[k], 40, True), minlength=26).float() for k in y])
    x = (x - x.mean(0)) / x.std(0)
    held = torch.arange(classes).repeat(40)
    xt = torch.stack([torch.bincount(torch.multinomial(habits[k], 40, True), minlength=26).float() for k in held])
    xt = (xt - xt.mean(0)) / xt.std(0)
    model = nn.Sequential(nn.Linear(26, 64), nn.ReLU(), nn.Linear(64, classes))
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x, y, shuffle=not is_faulty),
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        lambda m: accuracy(m(xt), held),
    )


