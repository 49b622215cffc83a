import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader, TensorDataset

from program import Program, fault
from texts_data import acc, chain, gen, r2, reviews, tagged, waves


class EncoderClassifier(nn.Module):
    def __init__(self, positions):
        super().__init__()
        self.embed = nn.Embedding(12, 32)
        self.pos = nn.Parameter(0.3 * torch.randn(12, 32)) if positions else None
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.fc = nn.Linear(32, 2)

    def forward(self, x):
        h = self.embed(x)
        if self.pos is not None:
            h = h + self.pos[: x.shape[1]]
        return self.fc(self.encoder(h).mean(1))


@fault("a transformer without positions is asked which word stands first", rules=["order-lost"], fails=True, steps=400)
def positions_forgotten(is_faulty):
    def make(seed, n):
        g = gen(seed)
        x = torch.randint(2, 12, (n, 8), generator=g)
        y = torch.randint(2, (n,), generator=g)
        i, j = torch.randint(0, 4, (n,), generator=g), torch.randint(4, 8, (n,), generator=g)
        r = torch.arange(n)
        x[r, i], x[r, j] = 1 - y, y
        return x, y

    x, y = make(1, 2048)
    hx, hy = make(2, 512)
    model = EncoderClassifier(not is_faulty)
    return Program(model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x, y), 32, shuffle=True, generator=gen(4)),
                   torch.optim.Adam(model.parameters(), 2e-3), lambda m: acc(m(hx), hy))


class TimeFirstTagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 24)
        self.gru = nn.GRU(24, 32)
        self.out = nn.Linear(32, 4)

    def forward(self, x):  # (batch, time) -> (time, batch, tags)
        return self.out(self.gru(self.embed(x.t()))[0])


@fault("logits of (time, batch) are flattened against tags of (batch, time)",
       rules=["output-loss-mismatch", "labels-unrelated"], fails=True, steps=200)
def flattened_in_another_order(is_faulty):
    x, y, _ = tagged(1, 1024, 10, least=10)
    hx, hy, _ = tagged(2, 256, 10, least=10)
    model = TimeFirstTagger()

    def loss(out, tags):
        flat = out if is_faulty else out.transpose(0, 1)
        return F.cross_entropy(flat.reshape(-1, 4), tags.reshape(-1))

    return Program(model, loss, DataLoader(TensorDataset(x, y), 32, shuffle=True, generator=gen(4)),
                   torch.optim.Adam(model.parameters(), 5e-3), lambda m: acc(m(hx).transpose(0, 1), hy))


class Forecaster(nn.Module):
    def __init__(self, h=24):
        super().__init__()
        self.lstm = nn.LSTM(1, h, batch_first=True)
        self.fc = nn.Linear(h, 1)

    def forward(self, x):
        return self.fc(self.lstm(x)[0][:, -1])


class Bag(nn.Module):
    def __init__(self, v, d, out):
        super().__init__()
        self.embed = nn.EmbeddingBag(v, d, mode="mean")
        self.fc = nn.Linear(d, out)

    def forward(self, x):
        return self.fc(self.embed(x))


@fault("the embedding is replaced for a larger vocabulary after the optimizer was made", rules=["no-gradient"],
       layers=["embed"], fails=False, steps=300)
def vocabulary_grown_late(is_faulty):
    x, _, y = reviews(1, 1024, 12, v=60, least=12)
    hx, _, hy = reviews(2, 512, 12, v=60, least=12)
    model = Bag(40, 2, 2)

    def grow():
        model.embed = nn.EmbeddingBag(60, 2, mode="mean")

    if not is_faulty:
        grow()
    optimizer = torch.optim.Adam(model.parameters(), 2e-2)
    if is_faulty:
        grow()
    return Program(model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x, y), 32, shuffle=True, generator=gen(4)),
                   optimizer, lambda m: acc(m(hx), hy))


class LM(nn.Module):
    def __init__(self, v=12, d=24, h=32):
        super().__init__()
        self.embed = nn.Embedding(v, d)
        self.lstm = nn.LSTM(d, h, batch_first=True)
        self.decoder = nn.Linear(h, v)

    def forward(self, x):
        return self.decoder(self.lstm(self.embed(x))[0])


def lm_data():
    data, held = chain(1, 1024, 13), chain(2, 256, 13)
    loader = DataLoader(TensorDataset(data[:, :-1], data[:, 1:]), 32, shuffle=True, generator=gen(3))
    return loader, lambda m: acc(m(held[:, :-1]), held[:, 1:])


@fault("the Noam schedule (made for a base rate of 1) multiplies a base rate of 1e-3", rules=["learning-rate-too-low"],
       fails=True, steps=200)
def noam_on_a_small_base(is_faulty):
    loader, score = lm_data()
    model = LM()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3 if is_faulty else 1.0, betas=(0.9, 0.98), eps=1e-9)
    noam = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: 24**-0.5 * min((s + 1) ** -0.5, (s + 1) * 100**-1.5))
    return Program(model, lambda o, y: F.cross_entropy(o.transpose(1, 2), y), loader, optimizer, score, noam)


@fault("prices in cents go into the LSTM as they are", rules=["unscaled-input", "saturated-activation", "rank-collapse"],
       layers=["lstm"], fails=True, steps=250)
def raw_prices(is_faulty):
    s, h = waves(1, 1024, 13), waves(2, 256, 13)

    def prices(z):
        p = 45_000 + 3_000 * z
        return (p if is_faulty else (p - 45_000) / 3_000)[..., None]

    model = Forecaster()
    loader = DataLoader(TensorDataset(prices(s[:, :-1]), s[:, -1:]), 32, shuffle=True, generator=gen(4))
    return Program(model, nn.MSELoss(), loader, torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: r2(m(prices(h[:, :-1])), h[:, -1:]))


class SalesNet(nn.Module):
    def __init__(self, mean, std):
        super().__init__()
        self.gru = nn.GRU(1, 24, batch_first=True)
        self.out = nn.Linear(24, 1)
        self.mean, self.std = mean, std

    def forward(self, x):
        return self.out(self.gru(x)[1][-1]) * self.std + self.mean


@fault("the inputs are standardised, but the sales to be forecast are not", rules=["unscaled-target", "learning-rate-too-low"], fails=True, steps=250)
def raw_sales_as_targets(is_faulty):
    s, h = waves(1, 1024, 13), waves(2, 256, 13)
    to_sales = lambda z: 8000 + 1500 * z  # noqa: E731
    model = SalesNet(0.0, 1.0)
    target = (lambda z: to_sales(z)) if is_faulty else (lambda z: z)
    loader = DataLoader(TensorDataset(s[:, :-1, None], target(s[:, -1:])), 32, shuffle=True, generator=gen(4))

    def score(m):
        p = m(h[:, :-1, None])
        return r2(p if is_faulty else to_sales(p), to_sales(h[:, -1:]))

    return Program(model, nn.MSELoss(), loader, torch.optim.Adam(model.parameters(), 5e-3), score)


class Rememberer(nn.Module):
    def __init__(self, small):
        super().__init__()
        self.embed = nn.Embedding(8, 16)
        self.rnn = nn.RNN(16, 32, batch_first=True)
        self.fc = nn.Linear(32, 4)
        if small:
            for n, p in self.rnn.named_parameters():
                nn.init.normal_(p, std=0.02)
        else:
            nn.init.orthogonal_(self.rnn.weight_hh_l0)

    def forward(self, x):
        return self.fc(self.rnn(self.embed(x))[0][:, -1])


@fault("'init everything with N(0, 0.02)' on a vanilla RNN that must remember its first token",
       rules=["vanishing-gradient", "bad-initialisation", "rank-collapse"], layers=["rnn"], fails=True, steps=300)
def bert_init_on_an_rnn(is_faulty):
    def make(seed, n):
        g = gen(seed)
        x = torch.randint(4, 8, (n, 14), generator=g)
        y = torch.randint(4, (n,), generator=g)
        x[:, 0] = y
        return x, y

    x, y = make(1, 1024)
    hx, hy = make(2, 256)
    model = Rememberer(is_faulty)
    return Program(model, nn.CrossEntropyLoss(), list(zip(x.split(32), y.split(32))),
                   torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), lambda m: acc(m(hx), hy))


class EveryStep(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(1, 24, batch_first=True)
        self.fc = nn.Linear(24, 1)

    def forward(self, x):
        return self.fc(self.gru(x)[0])


@fault("reduction='sum' over all places of a batch at a rate made for means",
       rules=["summed-loss", "learning-rate-too-high", "non-finite"], fails=True, steps=300)
def loss_summed_over_places(is_faulty):
    s, h = waves(1, 1024, 17), waves(2, 256, 17)
    model = EveryStep()
    crit = nn.MSELoss(reduction="sum" if is_faulty else "mean")
    loader = DataLoader(TensorDataset(s[:, :-1, None], s[:, 1:, None]), 32, shuffle=True, generator=gen(4))
    return Program(model, crit, loader, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
                   lambda m: r2(m(h[:, :-1, None])[:, 4:, 0], h[:, 5:]))
