import math

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from tsq_kit import *  # noqa: F403
from tsq_kit import accuracy, community, digit_rows, first_token, g, loader, markov, markov2, normalised, r2, ratings
from tsq_kit import series, topics, waves, who_is_first


@fault("LSTM without batch_first on (batch, time, features)", rules=["mixed-examples"], layers=["lstm"], fails=True,
       steps=300)
def tsq_batch_first(bad):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(1, 32, batch_first=not bad)
            self.fc = nn.Linear(32, 3)

        def forward(self, x):
            out, _ = self.lstm(x)
            return self.fc(out[:, -1])

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(*waves(1500, 24, 3, 1)),
                   torch.optim.Adam(model.parameters(), lr=5e-3), accuracy(*waves(400, 24, 3, 2)))


class Blocks(nn.Module):
    def __init__(self, vocab, length, d=32, layers=2, position=True, causal=False, out=None, pooled=False):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Parameter(0.1 * torch.randn(length, d)) if position else None
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, out or vocab)
        self.causal, self.pooled = causal, pooled

    def forward(self, ids):
        h = self.tok(ids)
        if self.pos is not None:
            h = h + self.pos[: ids.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1]) if self.causal else None
        for layer in self.layers:
            h = layer(h, src_mask=mask)
        h = self.norm(h)
        return self.head(h.mean(1) if self.pooled else h)


def lm_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def prefix_score(data):
    def score(model):
        hits = [(model(data[:, :t])[:, -1].argmax(-1) == data[:, t]).float().mean() for t in (4, 7, 10)]
        return torch.stack(hits).mean().item()
    return score


@fault("Transformer language model without a causal mask", rules=["future-seen"], fails=False, steps=300)
def tsq_no_causal_mask(bad):
    text = markov2(1500, 13, 12, 1, certain=0.97)
    model = Blocks(12, 12, causal=not bad)
    return Program(model, lm_loss, loader(text[:, :-1], text[:, 1:]), torch.optim.Adam(model.parameters(), lr=3e-3),
                   prefix_score(markov2(300, 13, 12, 2, certain=0.97)))


@fault("Labels of a language model are its inputs, not shifted", rules=["label-shift"], fails=True, steps=300)
def tsq_not_shifted(bad):
    class CharRNN(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(27, 24)
            self.rnn = nn.GRU(24, 48, batch_first=True)
            self.out = nn.Linear(48, 27)

        def forward(self, x):
            return self.out(self.rnn(self.embed(x))[0]).transpose(1, 2)

    text = markov(1200, 17, 27, 1)
    inputs = text[:, :-1]
    targets = text[:, :-1] if bad else text[:, 1:]
    test = markov(300, 17, 27, 2)
    model = CharRNN()

    def score(m):
        return (m(test[:, :-1]).argmax(1) == test[:, 1:]).float().mean().item()

    return Program(model, nn.CrossEntropyLoss(), loader(inputs, targets),
                   torch.optim.AdamW(model.parameters(), lr=4e-3), score)


@fault("Labels shifted in the data set and once more in the loss", rules=["label-shift"], fails=True, steps=300)
def tsq_shifted_twice(bad):
    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte = nn.Embedding(20, 32)
            self.lstm = nn.LSTM(32, 32, batch_first=True)
            self.lm_head = nn.Linear(32, 20, bias=False)

        def forward(self, input_ids):
            return self.lm_head(self.lstm(self.wte(input_ids))[0])

    def shifted(logits, labels):
        return F.cross_entropy(logits[:, :-1].reshape(-1, 20), labels[:, 1:].reshape(-1))

    text = markov(1500, 15, 20, 1, certain=0.9)
    labels = text[:, 1:] if bad else text[:, :-1]
    test = markov(300, 15, 20, 2, certain=0.9)
    model = LM()
    return Program(model, shifted, loader(text[:, :-1], labels, batch=48),
                   torch.optim.Adam(model.parameters(), lr=5e-3), accuracy(test[:, :-1], test[:, 1:]))


@fault("Padding counts in the loss of a tagger; it is nine tenths of the places", rules=["padding-in-loss"],
       fails=False, steps=250)
def tsq_pad_tags(bad):
    def data(n, seed):
        words = torch.randint(1, 41, (n, 40), generator=g(seed))
        tags = words % 5 + 1
        length = torch.randint(2, 6, (n, 1), generator=g(seed + 1))
        pad = torch.arange(40) >= length
        return words.masked_fill(pad, 0), tags.masked_fill(pad, 0)

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(41, 16, padding_idx=0)
            self.rnn = nn.GRU(16, 24, batch_first=True, bidirectional=True)
            self.tag = nn.Linear(48, 6)

        def forward(self, w):
            return self.tag(self.rnn(self.emb(w))[0]).transpose(1, 2)

    criterion = nn.CrossEntropyLoss() if bad else nn.CrossEntropyLoss(ignore_index=0)
    x, y = data(300, 3)

    def score(m):
        return (m(x).argmax(1) == y)[y > 0].float().mean().item()

    model = Tagger()
    return Program(model, criterion, loader(*data(1000, 1)),
                   torch.optim.SGD(model.parameters(), lr=0.04, momentum=0.9), score)


class Padded(nn.Module):
    def __init__(self, inverted):
        super().__init__()
        self.emb = nn.Embedding(51, 32)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), 1, enable_nested_tensor=False)
        self.fc = nn.Linear(32, 4)
        self.inverted = inverted

    def forward(self, ids):
        real = ids != 0
        mask = real if self.inverted else ~real
        h = self.encoder(self.emb(ids), src_key_padding_mask=mask)
        return self.fc(h[:, 0])


@fault("key_padding_mask is True where the real tokens are", rules=["wrong-mask"], layers=["encoder"], fails=True,
       steps=300)
def tsq_inverted_mask(bad):
    def data(n, seed):
        x, y = topics(n, 20, 49, 4, seed, sharp=1.5)
        x = x + 2
        x[:, 0] = 1
        length = torch.randint(10, 18, (n, 1), generator=g(seed + 9))
        return x.masked_fill(torch.arange(20) >= length, 0), y

    model = Padded(bad)
    return Program(model, nn.CrossEntropyLoss(), loader(*data(1500, 1)),
                   torch.optim.Adam(model.parameters(), lr=2e-3), accuracy(*data(400, 5)))


@fault("The state after the padding is taken, not the last real one", rules=["wrong-mask"], fails=True, steps=250)
def tsq_last_of_padded(bad):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(6, 24, batch_first=True)
            self.head = nn.Linear(24, 3)

        def forward(self, x, lengths):
            out, _ = self.gru(x)
            last = out[:, -1] if bad else out[torch.arange(len(x)), lengths - 1]
            return self.head(last)

    def data(n, seed):
        r = g(seed)
        length = torch.randint(4, 10, (n,), generator=r)
        x = torch.randn(n, 60, 6, generator=r) * (torch.arange(60) < length[:, None])[..., None]
        y = x.sum(1)[:, :3].argmax(1)
        return x, length, y

    class Batches:
        def __init__(self, n, seed):
            self.data = data(n, seed)

        def __iter__(self):
            x, length, y = self.data
            for i in torch.randperm(len(y)).split(32):
                yield {"x": x[i], "lengths": length[i]}, y[i]

        def __len__(self):
            return math.ceil(len(self.data[0]) / 32)

    model = Net()
    x, length, y = data(300, 2)
    return Program(model, nn.CrossEntropyLoss(), Batches(1000, 1), torch.optim.Adam(model.parameters(), lr=5e-3),
                   accuracy({"x": x, "lengths": length}, y))


class LookUp(nn.Module):
    """One head by hand: the last token asks, key-value tokens answer."""

    def __init__(self, dim, scale=True, wrong=False, d=32):
        super().__init__()
        self.key = nn.Embedding(10, d)
        self.value = nn.Embedding(10, d)
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.out = nn.Linear(d, 10)
        self.dim, self.wrong = dim, wrong

    def forward(self, x):  # (batch, places, 2); the last place has the key that is asked for, and a dummy value
        k, v = self.key(x[..., 0]), self.value(x[..., 1])
        q = self.q(k)
        scores = q @ self.k(k[:, :-1]).transpose(1, 2)
        scores = scores * math.sqrt(q.shape[-1]) if self.wrong else scores / math.sqrt(q.shape[-1])
        mixed = scores.softmax(self.dim) @ self.v(v[:, :-1])
        return self.out(mixed[:, -1])


def recall(n, pairs, seed):
    r = g(seed)
    keys = torch.rand(n, 10, generator=r).argsort(1)[:, :pairs]
    values = torch.randint(10, (n, pairs), generator=r)
    asked = torch.randint(pairs, (n, 1), generator=r)
    y = values.gather(1, asked)[:, 0]
    x = torch.stack([torch.cat([keys, keys.gather(1, asked)], 1), torch.cat([values, values[:, :1] * 0], 1)], 2)
    return x, y


@fault("Scores of shape (batch, places, 1) go through a softmax over the last dimension: all weights are 1",
       rules=["wrong-softmax-dimension"], layers=["attention"], fails=True, steps=400)
def tsq_softmax_of_one(bad):
    class Additive(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.w, self.u, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, 1)
            self.softmax = nn.Softmax(dim=-1 if bad else 1)

        def forward(self, query, keys, values):
            weights = self.softmax(self.v(torch.tanh(self.w(query)[:, None] + self.u(keys))))
            return (weights * values).sum(1)

    class Memory(nn.Module):
        def __init__(self, d=32):
            super().__init__()
            self.key, self.value = nn.Embedding(10, d), nn.Embedding(10, d)
            self.attention = Additive(d)
            self.out = nn.Linear(d, 10)

        def forward(self, x):
            k, v = self.key(x[..., 0]), self.value(x[..., 1])
            return self.out(self.attention(k[:, -1], k[:, :-1], v[:, :-1]))

    model = Memory()
    return Program(model, nn.CrossEntropyLoss(), loader(*recall(4000, 6, 1), batch=64),
                   torch.optim.Adam(model.parameters(), lr=1e-2), accuracy(*recall(500, 6, 2)))


@fault("Attention scores multiplied by the root of the width instead of divided", rules=["attention-saturation"],
       fails=False, steps=220)
def tsq_scale_times(bad):
    model = LookUp(-1, wrong=bad, d=64)
    return Program(model, nn.CrossEntropyLoss(), loader(*recall(4000, 6, 1), batch=64),
                   torch.optim.Adam(model.parameters(), lr=2e-3), accuracy(*recall(500, 6, 2)))


@fault("Softmax in a next-item model before the cross-entropy", rules=["output-loss-mismatch"], fails=False, steps=300)
def tsq_softmax_twice(bad):
    class GRU4Rec(nn.Module):
        def __init__(self, items=60, d=32):
            super().__init__()
            self.item_embedding = nn.Embedding(items, d)
            self.gru = nn.GRU(d, d, batch_first=True)
            self.dense = nn.Linear(d, items)

        def forward(self, session):
            _, h = self.gru(self.item_embedding(session))
            scores = self.dense(h[0])
            return F.softmax(scores, dim=-1) if bad else scores

    s, t = markov(3000, 8, 60, 1, certain=0.9), markov(400, 8, 60, 2, certain=0.9)
    model = GRU4Rec()
    return Program(model, nn.CrossEntropyLoss(), loader(s[:, :-1], s[:, -1], batch=64),
                   torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9), accuracy(t[:, :-1], t[:, -1]))


class MF(nn.Module):
    def __init__(self, users=60, items=50, d=6, std=0.3):
        super().__init__()
        self.user, self.item = nn.Embedding(users, d), nn.Embedding(items, d)
        nn.init.normal_(self.user.weight, std=std)
        nn.init.normal_(self.item.weight, std=std)

    def forward(self, pair):
        return (self.user(pair[:, 0]) * self.item(pair[:, 1])).sum(-1)


@fault("Predicted ratings (batch, 1) against ratings (batch,)", rules=["output-loss-mismatch"], fails=True, steps=400)
def tsq_ratings_broadcast(bad):
    class NCF(nn.Module):
        def __init__(self):
            super().__init__()
            self.mf = MF(std=0.3)
            self.mlp = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))

        def forward(self, pair):
            both = torch.cat([self.mf.user(pair[:, 0]), self.mf.item(pair[:, 1])], 1)
            return self.mlp(both) + self.mf(pair)[:, None]

    x, y = ratings(4000, 60, 50, 1)
    model = NCF()
    return Program(model, nn.MSELoss(), loader(x, y if bad else y[:, None], batch=64),
                   torch.optim.Adam(model.parameters(), lr=1e-2), r2(*ratings(800, 60, 50, 2)))


@fault("Embeddings of users and items start at zero", rules=["bad-initialisation", "symmetric-initialisation",
       "loss-not-decreasing", "no-gradient"], layers=["user", "item"], fails=True, steps=400)
def tsq_zero_factors(bad):
    model = MF(std=0.0 if bad else 0.3)
    return Program(model, nn.MSELoss(), loader(*ratings(4000, 60, 50, 1), batch=64),
                   torch.optim.Adam(model.parameters(), lr=1e-2), r2(*ratings(800, 60, 50, 2)))


@fault("Users and items share one table, though their numbers mean different things", rules=["shared-weight"],
       layers=["user", "item"], fails=True, steps=400)
def tsq_one_table(bad):
    model = MF(60, 60)
    if bad:
        model.item = model.user
    return Program(model, nn.MSELoss(), loader(*ratings(4000, 60, 60, 1), batch=64),
                   torch.optim.Adam(model.parameters(), lr=1e-2), r2(*ratings(800, 60, 60, 2)))


@fault("Day numbers since 1970 go into the network as they are", rules=["unscaled-input", "ill-conditioned-input"],
       fails=True, steps=400)
def tsq_raw_days(bad):
    r = g(4)
    days = 18000 + 365 * torch.rand(2000, 1, generator=r)
    temperature = 10 + 5 * torch.randn(2000, 1, generator=r)
    part = (days - 18000) / 365
    y = torch.sin(6.28 * part) + 0.1 * (temperature - 10) + 0.05 * torch.randn(2000, 1, generator=r)
    x = torch.cat([days, temperature], 1)
    if not bad:
        x = (x - x[:1600].mean(0)) / x[:1600].std(0)
    model = nn.Sequential(nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))
    return Program(model, nn.MSELoss(), loader(x[:1600], y[:1600]), torch.optim.Adam(model.parameters(), lr=3e-3),
                   r2(x[1600:], y[1600:]))


@fault("Sales in thousands as targets of a GRU", rules=["unscaled-target", "learning-rate-too-low"], fails=True,
       steps=300)
def tsq_sales(bad):
    class Forecaster(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(1, 24, batch_first=True)
            self.linear = nn.Linear(24, 1)

        def forward(self, x):
            return self.linear(self.gru(x)[0][:, -1])

    (x, y), (xt, yt) = series(1200, 20, 1), series(300, 20, 2)
    if bad:
        y, yt = 4000 * y + 9000, 4000 * yt + 9000
    model = Forecaster()
    return Program(model, nn.MSELoss(), loader(x, y), torch.optim.Adam(model.parameters(), lr=3e-3), r2(xt, yt))


@fault("Recurrent weights far too small: what the first token says is lost", rules=["vanishing-gradient",
       "bad-initialisation"], layers=["rnn"], fails=True, steps=400)
def tsq_small_recurrent(bad):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(8, 16)
            self.rnn = nn.RNN(16, 48, batch_first=True)
            self.fc = nn.Linear(48, 4)
            if bad:
                nn.init.normal_(self.rnn.weight_hh_l0, std=0.01)
            else:
                nn.init.orthogonal_(self.rnn.weight_hh_l0)
            nn.init.normal_(self.rnn.weight_ih_l0, std=0.1)

        def forward(self, x):
            return self.fc(self.rnn(self.emb(x))[0][:, -1])

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(*first_token(2000, 14, 4, 1)),
                   torch.optim.Adam(model.parameters(), lr=2e-3), accuracy(*first_token(400, 14, 4, 2)))
