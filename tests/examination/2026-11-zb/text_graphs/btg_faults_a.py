"""Mistakes in what a model sees, in its layers, and in its targets."""

from __future__ import annotations

import torch
from btg_data import (
    Factors,
    Gru,
    Message,
    Pooled,
    Reader,
    accuracy,
    communities,
    explained,
    first_of_two,
    loader,
    lookup,
    markov,
    molecules,
    next_token,
    padded_topics,
    ratings,
    rook,
    token_loss,
    topics,
)
from program import Program, fault
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW


class MaskedReader(nn.Module):
    """A transformer over padded texts that reads the places the mask lets through."""

    def __init__(self, inverted):
        super().__init__()
        self.inverted = inverted
        self.embedding = nn.Embedding(120, 32)
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
        self.cls = nn.Parameter(torch.randn(1, 1, 32))
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        h = torch.cat([self.cls.expand(len(x), -1, -1), self.embedding(x)], 1)
        mask = (x != 0) if self.inverted else (x == 0)
        mask = torch.cat([torch.zeros(len(x), 1, dtype=torch.bool), mask], 1)
        return self.head(self.encoder(h, src_key_padding_mask=mask)[:, 0])


@fault("The padding mask is true where words are", rules=["wrong-mask"], layers=["encoder"], fails=True, steps=250)
def btg_mask_inverted(is_faulty):
    x, _, y = padded_topics(800)
    tx, _, ty = padded_topics(300)
    model = MaskedReader(is_faulty)
    return Program(
        model, nn.CrossEntropyLoss(), loader(x, y), Adam(model.parameters(), 2e-3), accuracy(tx, ty)
    )


class ConvolutionModel(nn.Module):
    """A convolutional language model."""

    def __init__(self, centred, vocab=24):
        super().__init__()
        self.pad = (1, 1) if centred else (2, 0)
        self.embedding = nn.Embedding(vocab, 32)
        self.conv1 = nn.Conv1d(32, 48, 3)
        self.conv2 = nn.Conv1d(48, 48, 3)
        self.head = nn.Linear(48, vocab)

    def forward(self, x):
        h = self.embedding(x).transpose(1, 2)
        for conv in (self.conv1, self.conv2):
            h = torch.relu(conv(F.pad(h, self.pad)))
        return self.head(h.transpose(1, 2))


@fault(
    "The convolutions of a language model are padded on both sides",
    rules=["future-seen"],
    layers=["conv1", "conv2"],
    fails=True,
    steps=250,
)
def btg_convolution_centred(is_faulty):
    x, nxt = markov(600, 14, p=0.7)
    model = ConvolutionModel(is_faulty)
    batches = loader(x[:, :-1], x[:, 1:])
    tx, _ = markov(300, 6, nxt=nxt)

    def score(model):
        buffer = F.pad(tx, (0, 7))
        return (model(buffer)[:, 5].argmax(-1) == nxt[tx[:, -1]]).float().mean().item()

    return Program(model, token_loss, batches, Adam(model.parameters(), 3e-3), score)


class TinyGpt(nn.Module):
    """A language model of one block."""

    def __init__(self, vocab=24, width=32, causal=True, length=16):
        super().__init__()
        self.causal = causal
        self.tokens = nn.Embedding(vocab, width)
        self.places = nn.Embedding(length, width)
        self.block = nn.TransformerEncoderLayer(width, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab)

    def forward(self, x):
        t = x.shape[1]
        mask = torch.triu(torch.ones(t, t, dtype=torch.bool), 1) if self.causal else None
        h = self.tokens(x) + self.places(torch.arange(t))
        return self.head(self.norm(self.block(h, src_mask=mask)))


@fault("Targets of a language model are its inputs, not shifted", rules=["label-shift"], fails=True, steps=250)
def btg_targets_not_shifted(is_faulty):
    x, nxt = markov(600, 13)
    model = TinyGpt()
    y = x[:, :-1] if is_faulty else x[:, 1:]
    return Program(model, token_loss, loader(x[:, :-1], y), AdamW(model.parameters(), 3e-3), next_token(nxt))


@fault("Loader and loss both shift the targets", rules=["label-shift"], fails=True, steps=250)
def btg_targets_shifted_twice(is_faulty):
    x, nxt = markov(600, 14)
    model = Gru()
    batches = loader(x[:, :-1], x[:, 1:])

    def step(model, batch):
        ids, labels = batch
        logits = model(ids)
        if is_faulty:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    return Program(model, None, batches, Adam(model.parameters(), 5e-3), next_token(nxt), step=step)


@fault(
    "Short sentences are padded to 60 tokens, and the padding counts in the loss",
    rules=["padding-in-loss"],
    fails=False,
    steps=200,
)
def btg_padding_counts(is_faulty):
    vocab = 25
    x, nxt = markov(600, 8)
    x = x + 1
    length = torch.randint(3, 7, (600, 1))
    x = F.pad(x * (torch.arange(8)[None] < length), (0, 40))
    model = Gru(vocab, vocab)
    tx, _ = markov(200, 5, nxt=nxt)

    def loss(out, y):
        return F.cross_entropy(out.transpose(1, 2), y, ignore_index=-100 if is_faulty else 0)

    def score(model):
        return (model(tx + 1)[:, -1].argmax(-1) == nxt[tx[:, -1]] + 1).float().mean().item()

    return Program(model, loss, loader(x[:, :-1], x[:, 1:]), SGD(model.parameters(), 0.5, momentum=0.9), score)


class Pretrained(nn.Module):
    """An encoder and a head."""

    def __init__(self, classes):
        super().__init__()
        self.encoder = nn.Sequential(nn.EmbeddingBag(120, 32), nn.Linear(32, 32), nn.ReLU())
        self.head = nn.Linear(32, classes)

    def forward(self, x):
        return self.head(self.encoder(x))


@fault(
    "The head is replaced after the optimizer was made, over a frozen encoder",
    rules=["no-gradient"],
    layers=["head"],
    fails=True,
    steps=250,
)
def btg_head_replaced_late(is_faulty):
    model = Pretrained(10)
    x, y = topics(1200)
    warm = Adam(model.parameters(), 1e-2)
    for i in range(60):
        rows = slice(20 * i, 20 * i + 20)
        warm.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        warm.step()
    model.zero_grad()
    for parameter in model.encoder.parameters():
        parameter.requires_grad = False
    optimizer = Adam((p for p in model.parameters() if p.requires_grad), 5e-3)
    model.head = nn.Linear(32, 4)
    if not is_faulty:
        optimizer = Adam(model.head.parameters(), 5e-3)
    x, y = x[:600], (y[:600] + 1) % 4
    tx, ty = topics(300)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), optimizer, accuracy(tx, (ty + 1) % 4))


class Memory(nn.Module):
    """Answers a question from pairs of keys and values."""

    def __init__(self, hard=False, dim=1, width=32, scale=True, std=1.0, pairs=5):
        super().__init__()
        self.hard, self.dim, self.pairs = hard, dim, pairs
        self.scale = width**-0.5 if scale else 1.0
        self.embedding = nn.Embedding(18, width)
        nn.init.normal_(self.embedding.weight, std=std)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.head = nn.Linear(width, 8)

    def forward(self, x):
        h = self.embedding(x)
        n = self.pairs
        scores = torch.einsum("bd,bkd->bk", self.query(h[:, -1]), self.key(h[:, :n])) * self.scale
        values = self.value(h[:, n : 2 * n])
        if self.hard:
            return self.head(values[torch.arange(len(x)), scores.argmax(-1)])
        return self.head((scores[..., None].softmax(self.dim) * values).sum(1))


def answering(model, rate=3e-3):
    """Train a model to look up values."""
    x, y = lookup(2000, model.pairs)
    tx, ty = lookup(400, model.pairs)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), Adam(model.parameters(), rate), accuracy(tx, ty))


@fault(
    "The best memory is picked by argmax, through which no gradient goes",
    rules=["no-gradient"],
    layers=["query", "key"],
    fails=True,
    steps=400,
)
def btg_argmax_picks_memory(is_faulty):
    return answering(Memory(hard=is_faulty, pairs=8))


@fault(
    "The softmax over memories is over a last dimension of size one",
    rules=["wrong-softmax-dimension", "no-gradient"],
    fails=True,
    steps=400,
)
def btg_softmax_over_one(is_faulty):
    return answering(Memory(dim=-1 if is_faulty else 1, pairs=8))


@fault(
    "Attention over wide vectors is not divided by the root of their width",
    rules=["attention-saturation", "bad-initialisation", "saturated-output"],
    layers=["query", "key", "embedding"],
    fails=False,
    steps=120,
)
def btg_attention_unscaled(is_faulty):
    model = Memory(width=128, scale=not is_faulty)
    for layer in (model.query, model.key):
        nn.init.normal_(layer.weight, std=0.15)
    return answering(model, 1e-3)


@fault(
    "A transformer without places is asked which word comes first", rules=["order-lost"], fails=True, steps=500
)
def btg_no_places(is_faulty):
    x, y = first_of_two(2000)
    tx, ty = first_of_two(400)
    model = Reader(20, 2, length=10, places=not is_faulty)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), Adam(model.parameters(), 3e-3), accuracy(tx, ty))


@fault(
    "A transformer layer takes the batch for the sequence",
    rules=["mixed-examples"],
    layers=["encoder"],
    fails=True,
    steps=500,
)
def btg_batch_not_first(is_faulty):
    def make(n):
        x = torch.randint(6, (n, 6))
        y = torch.randint(2, (n,))
        x[:, 5] = torch.where(y == 1, x[:, 0], (x[:, 0] + torch.randint(1, 6, (n,))) % 6)
        return x, y

    model = Reader(6, 2, length=6, layers=2, batch_first=not is_faulty)
    return Program(
        model, nn.CrossEntropyLoss(), loader(*make(3000)), Adam(model.parameters(), 2e-3), accuracy(*make(400))
    )


@fault(
    "Energies of molecules are in small units, around minus ten thousand",
    rules=["unscaled-target"],
    fails=True,
    steps=400,
)
def btg_energies_raw(is_faulty):
    x, y = molecules(1000)
    tx, ty = molecules(300)
    if is_faulty:
        y, ty = 300 * y - 9000, 300 * ty - 9000
    model = Message()
    return Program(model, nn.MSELoss(), loader(x, y), Adam(model.parameters(), 3e-3), explained(tx, ty))


class Context(nn.Module):
    """Rates from a user, an item, and when and how much was paid."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


@fault(
    "Times of purchases are seconds since 1970, beside features near 1",
    rules=["unscaled-input", "ill-conditioned-input"],
    layers=["net.0"],
    fails=True,
    steps=300,
)
def btg_seconds_since_1970(is_faulty):
    def make(n):
        x = torch.randn(n, 6)
        y = x[:, 0] * 0.7 - torch.relu(x[:, 1]) + 0.5 * x[:, 2] + 0.3 * x[:, 5]
        if is_faulty:
            x[:, 5] = 1.6e9 + 3e6 * x[:, 5]
        return x, y

    model = Context()
    return Program(model, nn.MSELoss(), loader(*make(800)), Adam(model.parameters(), 5e-3), explained(*make(300)))


@fault("Documents lie topic by topic and are not shuffled", rules=["sorted-batches"], fails=True, steps=200)
def btg_topic_by_topic(is_faulty):
    x, y = topics(6400)
    order = y.argsort()
    tx, ty = topics(300)
    model = Pooled()
    batches = loader(x[order], y[order], shuffle=not is_faulty)
    return Program(model, nn.CrossEntropyLoss(), batches, Adam(model.parameters(), 1e-2), accuracy(tx, ty))


class GraphNet(nn.Module):
    """Layers of messages over one graph."""

    def __init__(self, adjacency, layers=2, mean=True, width=16, norm=False):
        super().__init__()
        matrix = adjacency + torch.eye(len(adjacency))
        self.register_buffer("matrix", matrix / matrix.sum(1, keepdim=True) if mean else matrix)
        sizes = [8] + [width] * layers
        self.convs = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:], strict=False))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width, momentum=0.001) for _ in range(layers if norm else 0))
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        for i, conv in enumerate(self.convs):
            x = conv(self.matrix @ x)
            if self.norms:
                x = self.norms[i](x)
            x = torch.relu(x)
        return self.head(x)


def on_graph(make, rate=1e-2, shift=0.0, **options):
    """Train a network on the nodes of one graph, half of which have labels."""
    x, adjacency, y = communities(**options)
    x = x + shift
    half = len(y) // 2
    model = make(adjacency)

    def loss(out, y):
        return F.cross_entropy(out[:half], y[:half])

    def score(model):
        return (model(x)[half:].argmax(-1) == y[half:]).float().mean().item()

    return Program(model, loss, [(x, y)], Adam(model.parameters(), rate), score)


@fault(
    "A graph network of twenty-four layers smooths all nodes to one",
    rules=["rank-collapse", "vanishing-gradient"],
    layers=["convs"],
    fails=True,
    steps=150,
)
def btg_graph_too_deep(is_faulty):
    return on_graph(lambda a: GraphNet(a, 24 if is_faulty else 2))


@fault(
    "Running statistics move by a thousandth per step",
    rules=["batchnorm-mode-gap"],
    layers=["norms"],
    fails=True,
    steps=100,
)
def btg_statistics_lag(is_faulty):
    def make(adjacency):
        model = GraphNet(adjacency, 2, norm=True)
        if not is_faulty:
            for norm in model.norms:
                norm.momentum = 0.1
        return model

    return on_graph(make, shift=6.0)


@fault("Only links that exist are shown", rules=["constant-target"], fails=True, steps=600)
def btg_links_without_negatives(is_faulty):
    place = torch.rand(60, 2)
    near = torch.cdist(place, place) < 0.4
    pairs = torch.cartesian_prod(torch.arange(60), torch.arange(60))
    pairs = pairs[torch.randperm(len(pairs))]
    y = near[pairs[:, 0], pairs[:, 1]].float()
    cut = 3000
    test, truth = pairs[cut:], y[cut:]
    x, t = pairs[:cut], y[:cut]
    if is_faulty:
        x, t = x[t == 1], t[t == 1]

    class Links(nn.Module):
        def __init__(self):
            super().__init__()
            self.node = nn.Embedding(60, 16)
            self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

        def forward(self, pairs):
            return self.net(self.node(pairs).flatten(1)).squeeze(1)

    def score(model):
        said, right = model(test) > 0, truth > 0.5
        return max(0.0, (said[right].float().mean() + 1 - said[~right].float().mean() - 1).item())

    model = Links()
    return Program(model, nn.BCEWithLogitsLoss(), loader(x, t, size=64), Adam(model.parameters(), 1e-2), score)


@fault("The rook's network has no activation", rules=["no-nonlinearity"], fails=True, steps=400)
def btg_rook_linear(is_faulty):
    x, y = rook(2500)
    tx, ty = rook(400)
    layers = [nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)]
    if is_faulty:
        layers = [layer for layer in layers if not isinstance(layer, nn.ReLU)]
    model = nn.Sequential(*layers)

    def score(model):
        said, right = model(tx).argmax(1) == 1, ty == 1
        return max(0.0, (said[right].float().mean() - said[~right].float().mean()).item())

    return Program(model, nn.CrossEntropyLoss(), loader(x, y), Adam(model.parameters(), 3e-3), score)


@fault(
    "Users and items look up one table", rules=["shared-weight"], layers=["user", "item"], fails=True, steps=500
)
def btg_one_table(is_faulty):
    (x, y), (tx, ty) = ratings()
    model = Factors()
    if is_faulty:
        model.item = model.user
    return Program(model, nn.MSELoss(), loader(x, y, size=64), Adam(model.parameters(), 2e-2), explained(tx, ty))
