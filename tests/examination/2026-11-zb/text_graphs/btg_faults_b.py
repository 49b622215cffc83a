"""Mistakes in losses, optimizers, initialisations and precision."""

from __future__ import annotations

import torch
from btg_data import (
    Factors,
    Gru,
    Message,
    Pooled,
    Reader,
    accuracy,
    explained,
    loader,
    markov,
    molecules,
    next_token,
    padded_topics,
    ratings,
    token_loss,
    topics,
)
from program import Program, fault
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import LambdaLR


class Chances(nn.Module):
    """A language model that returns probabilities, or logits."""

    def __init__(self, softmax):
        super().__init__()
        self.softmax = softmax
        self.net = Gru()

    def forward(self, x):
        out = self.net(x)
        return out.softmax(-1) if self.softmax else out


@fault(
    "A language model ends in a softmax, and so does its loss",
    rules=["output-loss-mismatch"],
    layers=[],
    fails=False,
    steps=90,
)
def btg_softmax_twice(is_faulty):
    x, nxt = markov(600, 12)
    model = Chances(is_faulty)
    batches = loader(x[:, :-1], x[:, 1:])
    return Program(model, token_loss, batches, SGD(model.parameters(), 0.1, momentum=0.9), next_token(nxt))


class Rater(Message):
    """Keeps the last dimension of its output."""

    def forward(self, x):
        return super().forward(x)[:, None]


@fault(
    "Predictions are a column and targets a row, which the loss broadcasts",
    rules=["output-loss-mismatch"],
    fails=True,
    steps=300,
)
def btg_column_and_row(is_faulty):
    x, y = molecules(1000)
    model = Rater()
    y = y if is_faulty else y[:, None]

    def loss(out, y):
        return ((out - y) ** 2).mean()

    return Program(
        model, loss, loader(x, y), Adam(model.parameters(), 5e-3), explained(*molecules(300))
    )


@fault(
    "A transformer is fine-tuned at the rate of plain gradient descent",
    rules=["learning-rate-too-high"],
    fails=True,
    steps=250,
)
def btg_transformer_rate(is_faulty):
    x, _, y = padded_topics(800)
    tx, _, ty = padded_topics(300)
    model = Reader(layers=2)
    optimizer = AdamW(model.parameters(), lr=0.3 if is_faulty else 0.002)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), optimizer, accuracy(tx, ty))


@fault(
    "A run of a few hundred steps has a warm-up of a hundred thousand",
    rules=["learning-rate-too-low"],
    fails=True,
    steps=250,
)
def btg_warm_up_too_long(is_faulty):
    x, y = topics(800)
    tx, ty = topics(300)
    model = Reader()
    optimizer = AdamW(model.parameters(), lr=2e-3)
    most = 100_000 if is_faulty else 50
    scheduler = LambdaLR(optimizer, lambda i: min(1.0, (i + 1) / most))
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), optimizer, accuracy(tx, ty), scheduler)


class LowRank(nn.Module):
    """A frozen layer with a trained update of low rank."""

    def __init__(self, base, rank=8):
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.zeros(rank, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


@fault(
    "Both matrices of low-rank adapters start at zero",
    rules=["no-gradient", "symmetric-initialisation", "bad-initialisation", "loss-not-decreasing"],
    layers=["hidden", "head"],
    fails=True,
    steps=300,
)
def btg_adapters_all_zero(is_faulty):
    x, y = topics(800)
    tx, ty = topics(300)
    model = Pooled()
    for parameter in model.parameters():
        parameter.requires_grad = False
    model.hidden, model.head = LowRank(model.hidden), LowRank(model.head)
    if not is_faulty:
        for adapter in (model.hidden, model.head):
            nn.init.normal_(adapter.down, std=0.3)
    optimizer = Adam((p for p in model.parameters() if p.requires_grad), 1e-2)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), optimizer, accuracy(tx, ty))


@fault(
    "A penalty on the embeddings is a sum over all entries, with weight one",
    rules=["term-dominates"],
    fails=True,
    steps=300,
)
def btg_penalty_dominates(is_faulty):
    (x, y), (tx, ty) = ratings()
    model = Factors()
    weight = 1.0 if is_faulty else 1e-5

    def step(model, batch):
        pairs, stars = batch
        fit = F.mse_loss(model(pairs), stars)
        penalty = model.user.weight.pow(2).sum() + model.item.weight.pow(2).sum()
        return fit + weight * penalty

    optimizer = Adam(model.parameters(), 2e-2)
    return Program(model, None, loader(x, y, size=64), optimizer, explained(tx, ty), step=step)


@fault(
    "The bias meant for the output's rare class is set in all layers",
    rules=["dying-neurons", "bad-initialisation"],
    layers=["first", "second"],
    fails=True,
    steps=300,
)
def btg_bias_everywhere(is_faulty):
    x, y = molecules(1000)
    tx, ty = molecules(300)
    y, ty = (y > 0.6).float(), (ty > 0.6).float()
    model = Message()
    for layer in (model.first, model.second, model.readout) if is_faulty else (model.readout,):
        nn.init.constant_(layer.bias, -4.0)

    def score(model):
        said, right = model(tx) > 0, ty > 0.5
        return max(0.0, (said[right].float().mean() - said[~right].float().mean()).item())

    return Program(model, nn.BCEWithLogitsLoss(), loader(x, y), Adam(model.parameters(), 5e-3), score)


@fault(
    "The whole model is made half precision, and Adam's epsilon rounds to zero",
    rules=["non-finite", "half-overflow", "gradient-underflow", "optimizer-setting"],
    fails=True,
    steps=200,
)
def btg_all_half(is_faulty):
    x, y = topics(800)
    tx, ty = topics(300)
    model = Pooled()
    if is_faulty:
        model = model.half()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), Adam(model.parameters(), 5e-3), accuracy(tx, ty))


class WordAttention(nn.Module):
    """Weighs words and adds them up."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(120, 32)
        self.weigh = nn.Linear(32, 1)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        h = self.embedding(x)
        scores = self.weigh(torch.tanh(h)).squeeze(-1).masked_fill(x == 0, float("-inf"))
        return self.head((scores.softmax(1)[..., None] * h).sum(1))


@fault(
    "Some documents are empty, and attention over nothing is not a number",
    rules=["non-finite", "wrong-mask"],
    fails=True,
    steps=200,
)
def btg_empty_documents(is_faulty):
    x, _, y = padded_topics(900)
    empty = torch.rand(900) < 0.08
    if is_faulty:
        x = x * ~empty[:, None]
    else:
        x, y = x[~empty], y[~empty]
    tx, _, ty = padded_topics(300)
    model = WordAttention()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), Adam(model.parameters(), 5e-3), accuracy(tx, ty))


class Bag(nn.Module):
    """A set of ids, each of which is embedded and transformed."""

    def __init__(self):
        super().__init__()
        self.element = nn.Embedding(120, 32)
        self.phi = nn.Linear(32, 32)
        self.rho = nn.Linear(32, 32)
        self.out = nn.Linear(32, 4)

    def forward(self, x):
        h = torch.relu(self.phi(self.element(x))).mean(1)
        return self.out(torch.relu(self.rho(h)))


def constants(module):
    """Give a module constant weights."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.constant_(module.weight, 0.1)


@fault(
    "All weights of a network over sets start at the same number",
    rules=["symmetric-initialisation", "bad-initialisation", "rank-collapse"],
    layers=["element", "phi", "rho", "out"],
    fails=False,
    steps=250,
)
def btg_constant_weights(is_faulty):
    x, y = topics(800)
    tx, ty = topics(300)
    model = Bag()
    if is_faulty:
        model.apply(constants)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), Adam(model.parameters(), 3e-3), accuracy(tx, ty))


class Forgetful(nn.Module):
    """A linear state-space layer that is read at the end."""

    def __init__(self, decay):
        super().__init__()
        self.embedding = nn.Embedding(12, 32)
        self.decay = nn.Parameter(torch.full((32,), decay))
        self.gate = nn.Linear(32, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        h = self.gate(self.embedding(x))
        back = torch.arange(x.shape[1] - 1, -1, -1)[:, None]
        kernel = torch.exp(F.logsigmoid(self.decay) * back)
        return self.head((kernel * h).sum(1))


@fault(
    "A state-space layer forgets half of its state at every step, and is asked for what was sixty steps ago",
    rules=["vanishing-gradient", "bad-initialisation"],
    layers=["decay", "gate", "embedding"],
    fails=True,
    steps=300,
)
def btg_state_forgets(is_faulty):
    def make(n):
        y = torch.randint(10, (n,))
        x = torch.randint(10, 12, (n, 60))
        x[:, 0] = y
        return x, y

    model = Forgetful(0.0 if is_faulty else 4.0)
    return Program(
        model, nn.CrossEntropyLoss(), loader(*make(800)), Adam(model.parameters(), 5e-3), accuracy(*make(300))
    )


class AlwaysDropped(Pooled):
    """Drops out through the function, which does not know of modes unless it is told."""

    def __init__(self, always):
        super().__init__(classes=8)
        self.always = always

    def forward(self, x):
        training = True if self.always else self.training
        h = F.dropout(self.embedding(x).mean(1), 0.5, training=training)
        h = F.dropout(torch.relu(self.hidden(h)), 0.5, training=training)
        return self.head(h)


@fault(
    "F.dropout is called without the mode", rules=["dropout-in-eval"], fails=False, steps=300
)
def btg_dropout_function(is_faulty):
    x, y = topics(1000, classes=8, vocab=120, words=4)
    tx, ty = topics(400, classes=8, vocab=120, words=4)
    model = AlwaysDropped(is_faulty)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), Adam(model.parameters(), 5e-3), accuracy(tx, ty))


@fault(
    "A vocabulary without its unknown word: some ids lie behind the table",
    rules=["model-fails"],
    layers=["embedding"],
    fails=True,
    steps=200,
)
def btg_unknown_word(is_faulty):
    x, y = topics(800)
    x = torch.where(torch.rand(x.shape) < 0.05, 120, x)
    tx, ty = topics(300)
    model = Pooled(vocab=120 if is_faulty else 121)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), Adam(model.parameters(), 5e-3), accuracy(tx, ty))
