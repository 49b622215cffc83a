"""Order, batches, states, pairing."""
import torch
from torch import nn
from torch.nn import functional as F
from program import Program, fault, sound  # noqa: F401
from textdata import acc, before, chain, gen, keyword, loader, r2, waves  # noqa: F401


class SeriesLSTM(nn.Module):
    def __init__(self, batch_first):
        super().__init__()
        self.rnn = nn.LSTM(2, 24, batch_first=batch_first)
        self.fc = nn.Linear(24, 2)

    def forward(self, x):
        y, _ = self.rnn(x)
        return self.fc(y[:, -1, :])


@fault("batch_first=True forgotten: the LSTM walks over the batch instead of over time",
       rules=("mixed-examples", "order-lost"), layers=("rnn",), fails=True, steps=200)
def lstm_batch_first_forgotten(bad):
    def data(n, seed):
        g = gen(seed)
        x = torch.randn(n, 15, 2, generator=g)
        return x, (x[:, :10, 0].sum(1) > 0).long()

    x, y = data(800, 20)
    xt, yt = data(300, 21)
    model = SeriesLSTM(not bad)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, bs=32), torch.optim.Adam(model.parameters(), lr=1e-2),
                   lambda m: acc(m(xt), yt))


class SetTransformer(nn.Module):
    def __init__(self, positions):
        super().__init__()
        self.embed = nn.Embedding(12, 32)
        self.pos = nn.Parameter(torch.randn(10, 32) * 0.5) if positions else None
        self.layer1 = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.layer2 = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.out = nn.Linear(32, 2)

    def forward(self, x):
        h = self.embed(x)
        if self.pos is not None:
            h = h + self.pos
        return self.out(self.layer2(self.layer1(h)).mean(1))


@fault("A classifier of TransformerEncoder layers without positions; the answer is which word comes first",
       rules=("order-lost",), fails=True, steps=350)
def transformer_no_positions(bad):
    x, y = before(1500, 10, 12, 22)
    xt, yt = before(300, 10, 12, 23)
    model = SetTransformer(not bad)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y, bs=50), torch.optim.Adam(model.parameters(), lr=2e-3),
                   lambda m: acc(m(xt), yt))


class TimeMajorTagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(30, 20)
        self.enc = nn.GRU(20, 24)
        self.tag = nn.Linear(24, 5)

    def forward(self, x):  # (batch, time) -> (time, batch, tags)
        return self.tag(self.enc(self.word(x.t()))[0])


@fault("Logits are (time, batch, tags), tags (batch, time); both are flattened and paired wrongly",
       rules=("output-loss-mismatch",), fails=True, steps=150)
def flattened_in_different_orders(bad):
    kind = torch.randint(0, 5, (30,), generator=gen(26))
    x = torch.randint(0, 30, (640, 11), generator=gen(27))
    xt = torch.randint(0, 30, (200, 11), generator=gen(28))
    model = TimeMajorTagger()

    def loss(logits, tags):
        tags = tags if bad else tags.t()
        return F.cross_entropy(logits.reshape(-1, 5), tags.reshape(-1))

    return Program(model, loss, loader(x, kind[x]), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: acc(m(xt).transpose(0, 1), kind[xt]))


def ar_series(n, seed, length=16):
    g = gen(seed)
    a = torch.rand(n, 1, generator=g) * 6.28
    f = 0.2 + 0.3 * torch.rand(n, 1, generator=g)
    s = torch.sin(a + f * torch.arange(length + 1)) + 0.05 * torch.randn(n, length + 1, generator=g)
    return s[:, :-1, None], s[:, -1]


class Forecast(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.gru = nn.GRU(1, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.fc(self.gru(x)[1][-1])


class StatefulLM(nn.Module):
    def __init__(self, keep):
        super().__init__()
        self.emb = nn.Embedding(12, 16)
        self.rnn = nn.GRU(16, 32, batch_first=True)
        self.fc = nn.Linear(32, 12)
        self.state = None
        self.keep = keep

    def forward(self, x):
        h0 = self.state if self.training else None
        out, h = self.rnn(self.emb(x), h0)
        if self.training:
            self.state = h if self.keep else h.detach()
        return self.fc(out)


@fault("The state is passed on from piece to piece of a long text without detach: the second backward raises",
       rules=("model-fails",), fails=True, steps=150)
def state_kept_with_its_graph(bad):
    text = chain(16, 961, 12, 33)
    held = chain(100, 12, 12, 34)
    pieces = [(text[:, i:i + 12], text[:, i + 1:i + 13]) for i in range(0, 948, 12)]
    model = StatefulLM(bad)
    return Program(model, lambda o, y: F.cross_entropy(o.transpose(1, 2), y), pieces,
                   torch.optim.Adam(model.parameters(), lr=5e-3), lambda m: acc(m(held[:, :-1]), held[:, 1:]))


@fault("Reviews are read folder by folder and the loader does not shuffle: each batch has one class",
       rules=("sorted-batches",), fails=False, steps=160)
def folders_not_shuffled(bad):
    x, y, _ = keyword(640, 10, 30, 4, 35)
    xt, yt, _ = keyword(300, 10, 30, 4, 36)
    order = y.argsort(stable=True)
    model = nn.Sequential(nn.EmbeddingBag(30, 24, mode="mean"), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 4))
    return Program(model, nn.CrossEntropyLoss(), loader(x[order], y[order], bs=16, shuffle=not bad),
                   torch.optim.Adam(model.parameters(), lr=5e-3), lambda m: acc(m(xt), yt))
