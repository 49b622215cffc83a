"""Sound set-ups over texts and token streams."""

from __future__ import annotations

import torch
from btg_data import (
    Gru,
    Pooled,
    Reader,
    accuracy,
    first_of_two,
    loader,
    lookup,
    markov,
    next_token,
    padded_topics,
    token_loss,
    topics,
)
from program import Program, sound
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import LambdaLR


@sound("Nothing: a mean of embeddings", steps=200, least=0.9)
def btg_plain_pooling():
    model = Pooled()
    return Program(
        model, nn.CrossEntropyLoss(), loader(*topics(800)), Adam(model.parameters(), 5e-3), accuracy(*topics(300))
    )


@sound("Nothing: a small transformer", steps=250, least=0.9)
def btg_plain_transformer():
    x, _, y = padded_topics(800)
    tx, _, ty = padded_topics(300)
    model = Reader(dropout=0.1)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), AdamW(model.parameters(), 2e-3), accuracy(tx, ty))


@sound("A language model that has been trained to its end", trained=400, steps=500, least=0.9)
def btg_language_model_done():
    x, nxt = markov(600, 13)
    model = Gru()
    return Program(
        model, token_loss, loader(x[:, :-1], x[:, 1:]), Adam(model.parameters(), 5e-3), next_token(nxt)
    )


class Causal(nn.Module):
    """Dilated convolutions that see the past only."""

    def __init__(self, vocab=24, width=32):
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.convs = nn.ModuleList(nn.Conv1d(width, width, 2, dilation=2**i) for i in range(3))
        self.head = nn.Conv1d(width, vocab, 1)

    def forward(self, x):
        h = self.embedding(x).transpose(1, 2)
        for i, conv in enumerate(self.convs):
            h = h + F.gelu(conv(F.pad(h, (2**i, 0))))
        return self.head(h).transpose(1, 2)


@sound("Convolutions over a stream, padded on the left", steps=250, least=0.9)
def btg_dilated_stream():
    x, nxt = markov(600, 13)
    model = Causal()
    return Program(
        model, token_loss, loader(x[:, :-1], x[:, 1:]), Adam(model.parameters(), 3e-3), next_token(nxt)
    )


@sound("A tagger that sees what follows, with targets of -100 in the padding", steps=300, least=0.85)
def btg_tagger_sees_ahead():
    def make(n):
        x = torch.randint(1, 20, (n, 14))
        tag = (x % 3 + 3 * (F.pad(x[:, 1:], (0, 1)) % 2)).long()
        real = torch.arange(14)[None] < torch.randint(5, 15, (n, 1))
        x = x * real
        tag = (x % 3 + 3 * (F.pad(x[:, 1:], (0, 1)) % 2)).long()
        return x, torch.where(real, tag, -100)

    tx, ty = make(300)

    def score(model):
        return (model(tx).argmax(-1) == ty)[ty != -100].float().mean().item()

    def loss(out, y):
        return F.cross_entropy(out.flatten(0, 1), y.flatten(), ignore_index=-100)

    model = Gru(20, 6, bidirectional=True)
    return Program(model, loss, loader(*make(600)), Adam(model.parameters(), 5e-3), score)


@sound("Masked words are filled in from both sides; other places do not count", steps=400, least=0.8)
def btg_fill_in_masks():
    def make(n, nxt=None):
        x, nxt = markov(n, 12, 16, 0.95, nxt)
        hidden = torch.rand(x.shape) < 0.2
        return (x.masked_fill(hidden, 16), torch.where(hidden, x, -100)), nxt

    train, nxt = make(1000)
    (tx, ty), _ = make(300, nxt)

    def score(model):
        return (model(tx).argmax(-1) == ty)[ty >= 0].float().mean().item()

    def loss(out, y):
        return F.cross_entropy(out.transpose(1, 2), y)

    model = Gru(17, 16, bidirectional=True)
    return Program(model, loss, loader(*train), Adam(model.parameters(), 5e-3), score)


class Squeeze(nn.Module):
    """Reads a sequence into one vector, and writes it again."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(8, 16)
        self.encode = nn.Linear(64, 24)
        self.decode = nn.Sequential(nn.ReLU(), nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, x):
        return self.decode(self.encode(self.embedding(x).flatten(1))).unflatten(1, (4, 8))


@sound("An autoencoder of tokens, whose targets are its inputs", steps=400, least=0.9)
def btg_tokens_again():
    x, tx = torch.randint(8, (1500, 4)), torch.randint(8, (300, 4))
    model = Squeeze()
    return Program(model, token_loss, loader(x, x), Adam(model.parameters(), 5e-3), accuracy(tx, tx))


class Translator(nn.Module):
    """Encoder and decoder, which is given what it should have said."""

    def __init__(self):
        super().__init__()
        self.source = nn.Embedding(12, 32)
        self.target = nn.Embedding(13, 32)
        self.encoder = nn.GRU(32, 32, batch_first=True)
        self.decoder = nn.GRU(32, 32, batch_first=True)
        self.head = nn.Linear(32, 12)

    def forward(self, source, said):
        _, state = self.encoder(self.source(source))
        return self.head(self.decoder(self.target(said), state)[0])


@sound("A decoder is given the targets, shifted by one place", steps=500, least=0.75)
def btg_teacher_forcing():
    words = torch.randperm(12)

    def make(n):
        x = torch.randint(12, (n, 4))
        y = words[x.flip(1)]
        return x, F.pad(y[:, :-1], (1, 0), value=12), y

    tx, ts, ty = make(300)
    model = Translator()

    def step(model, batch):
        x, said, y = batch
        return token_loss(model(x, said), y)

    def score(model):
        return (model(tx, ts).argmax(-1) == ty).float().mean().item()

    return Program(model, None, loader(*make(2000)), Adam(model.parameters(), 1e-2), score, step=step)


class Fast(nn.Module):
    """A bag of words and a linear layer."""

    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(120, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.bag(x))


@sound("Gradient descent at a rate of two, without anything nonlinear, as fastText does", steps=500, least=0.9)
def btg_fast_text():
    model = Fast()
    return Program(
        model, nn.CrossEntropyLoss(), loader(*topics(1500)), SGD(model.parameters(), 2.0), accuracy(*topics(300))
    )


class Adapted(nn.Module):
    """A frozen layer and an update that starts at zero."""

    def __init__(self, base, rank=8):
        super().__init__()
        self.base = base
        self.down = nn.Parameter(0.2 * torch.randn(rank, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + x @ self.down.T @ self.up.T


@sound("Adapters of low rank, one matrix of which is zero, over frozen weights", steps=300, least=0.85)
def btg_low_rank():
    model = Pooled()
    for parameter in model.parameters():
        parameter.requires_grad = False
    model.hidden, model.head = Adapted(model.hidden), Adapted(model.head)
    optimizer = Adam((p for p in model.parameters() if p.requires_grad), 1e-2)
    return Program(model, nn.CrossEntropyLoss(), loader(*topics(800)), optimizer, accuracy(*topics(300)))


@sound("The optimizer holds the head only; the encoder is kept as it is", steps=300, least=0.85)
def btg_probe():
    model = Pooled(width=64)
    for part in (model.embedding, model.hidden):
        part.requires_grad_(False)
    nn.init.normal_(model.embedding.weight, std=3.0)
    optimizer = Adam(model.head.parameters(), 1e-2)
    x, y = topics(800, classes=3, words=8)
    tx, ty = topics(300, classes=3, words=8)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), optimizer, accuracy(tx, ty))


class Gated(nn.Module):
    """Residual blocks behind gates that start closed, and a head of zeros."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(120, 32)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)) for _ in range(6)
        )
        self.gates = nn.Parameter(torch.zeros(6))
        self.head = nn.Linear(32, 4)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x):
        h = self.embedding(x).mean(1)
        for gate, block in zip(self.gates, self.blocks, strict=True):
            h = h + gate * block(h)
        return self.head(h)


@sound("Gates and head start at zero", steps=300, least=0.9)
def btg_gates_closed():
    model = Gated()
    return Program(
        model, nn.CrossEntropyLoss(), loader(*topics(800)), Adam(model.parameters(), 5e-3), accuracy(*topics(300))
    )


class Albert(nn.Module):
    """One block that is passed four times."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 32)
        self.places = nn.Parameter(0.3 * torch.randn(10, 32))
        self.block = nn.TransformerEncoderLayer(32, 2, 32, 0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(32, 2)

    def forward(self, x):
        h = self.embedding(x) + self.places
        for _ in range(3):
            h = self.block(h)
        return self.head(h.mean(1))


@sound("The same block is passed three times", steps=400, least=0.9)
def btg_one_block_thrice():
    model = Albert()
    data, test = first_of_two(1500), first_of_two(300)
    return Program(model, nn.CrossEntropyLoss(), loader(*data), Adam(model.parameters(), 2e-3), accuracy(*test))


@sound("The loss is a sum, for which the rate is small", steps=300, least=0.9)
def btg_sum_with_small_rate():
    x, nxt = markov(600, 13)
    model = Gru()

    def loss(out, y):
        return F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="sum")

    optimizer = SGD(model.parameters(), 2e-3, momentum=0.9)
    return Program(model, loss, loader(x[:, :-1], x[:, 1:]), optimizer, next_token(nxt))


@sound("A third of the labels is wrong, so that the loss stays high", steps=200, least=0.85)
def btg_noisy_labels():
    x, y = topics(1600)
    y = torch.where(torch.rand(len(y)) < 0.33, torch.randint(4, (len(y),)), y)
    model = Pooled()
    return Program(
        model, nn.CrossEntropyLoss(), loader(x, y), Adam(model.parameters(), 5e-3), accuracy(*topics(300))
    )


class Rows(nn.Module):
    """Reads an image row by row, time first inside."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 48)
        self.head = nn.Linear(48, 10)

    def forward(self, x):
        return self.head(self.lstm(x.transpose(0, 1))[0][-1])


@sound("Digits as eight rows, some of whose corners are always empty; half trained", trained=150, steps=400, least=0.85)
def btg_digits_by_row():
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32) / 16
    y = torch.tensor(data.target)
    order = torch.randperm(len(x))
    a, b = order[:1400], order[1400:]
    model = Rows()
    return Program(
        model, nn.CrossEntropyLoss(), loader(x[a], y[a]), Adam(model.parameters(), 5e-3), accuracy(x[b], y[b])
    )


class Points(nn.Module):
    """Attends to memories with a mask of minus a billion in the empty ones."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(19, 32, padding_idx=18)
        self.query = nn.Linear(32, 32)
        self.key = nn.Linear(32, 32)
        self.head = nn.Linear(32, 8)

    def forward(self, x):
        h = self.embedding(x)
        scores = (self.key(h[:, :6]) @ self.query(h[:, -1])[..., None]).squeeze(-1) / 32**0.5
        scores = scores.masked_fill(x[:, :6] == 18, -1e9)
        return self.head((scores.softmax(-1)[..., None] * h[:, 6:12]).sum(1))


@sound("A network that looks up memories, trained until its attention is sharp", trained=400, steps=500, least=0.9)
def btg_sharp_memory():
    def make(n):
        x, y = lookup(n, 5)
        fill = torch.full((n, 1), 18)
        return torch.cat([x[:, :5], fill, x[:, 5:10], fill, x[:, 10:]], 1), y

    model = Points()
    return Program(
        model, nn.CrossEntropyLoss(), loader(*make(2000)), Adam(model.parameters(), 5e-3), accuracy(*make(300))
    )


@sound("A transformer that normalises after its blocks, with a warm-up of eighty steps", steps=350, least=0.9)
def btg_warm_up():
    data, test = first_of_two(1500), first_of_two(300)
    model = Reader(20, 2, length=10, layers=2)
    optimizer = AdamW(model.parameters(), 3e-3, weight_decay=0.1)
    scheduler = LambdaLR(optimizer, lambda i: min((i + 1) / 80, 1.0))
    return Program(model, nn.CrossEntropyLoss(), loader(*data), optimizer, accuracy(*test), scheduler)
