import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from tsq_faults_a import MF, Blocks, LookUp, recall
from tsq_kit import accuracy, community, digit_rows, first_token, g, loader, markov, normalised, r2, ratings, series
from tsq_kit import topics, waves, who_is_first


class RowLSTM(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.lstm = nn.LSTM(8, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, 10)

    def forward(self, x):
        return self.fc(self.lstm(x)[1][0][-1])


class TextCNN(nn.Module):
    def __init__(self, vocab=60, classes=5, d=24, drop=0.0):
        super().__init__()
        self.embedding = nn.Embedding(vocab, d)
        self.convs = nn.ModuleList(nn.Conv1d(d, 16, k, padding=k // 2) for k in (3, 5))
        self.dropout = nn.Dropout(drop)
        self.fc = nn.Linear(32, classes)

    def forward(self, ids):
        e = self.embedding(ids).transpose(1, 2)
        h = torch.cat([F.relu(c(e)).amax(2) for c in self.convs], 1)
        return self.fc(self.dropout(h))


@fault("The encoder of a sequence-to-vector model runs under no_grad", rules=["no-gradient"], layers=["encoder"],
       fails=True, steps=300)
def tsq_encoder_no_grad(bad):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.GRU(1, 16, batch_first=True)
            self.decoder = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))

        def encode(self, x):
            with torch.set_grad_enabled(torch.is_grad_enabled() and not bad):
                return self.encoder(x)[1][0]

        def forward(self, x):
            return self.decoder(self.encode(x))

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(*waves(1500, 24, 4, 1, 0.4)),
                   torch.optim.Adam(model.parameters(), lr=1e-2), accuracy(*waves(400, 24, 4, 2, 0.4)))


@fault("The embedding is replaced (larger vocabulary) after the optimizer was made", rules=["no-gradient"],
       layers=["embedding"], fails=False, steps=200)
def tsq_resized_vocabulary(bad):
    model = TextCNN(vocab=40, classes=8, d=3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    model.embedding = nn.Embedding(80, 3)
    if not bad:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return Program(model, nn.CrossEntropyLoss(), loader(*topics(1500, 16, 80, 8, 1, 1.3)), optimizer,
                   accuracy(*topics(400, 16, 80, 8, 3, 1.3)))


@fault("Recurrent weights with a spectral radius of three", rules=["exploding-gradient", "bad-initialisation",
       "saturated-activation"], layers=["rnn"], fails=False, steps=400)
def tsq_chaotic_rnn(bad):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.RNN(1, 64, batch_first=True)
            self.head = nn.Linear(64, 1)
            nn.init.normal_(self.rnn.weight_hh_l0, std=0.4 if bad else 0.1)

        def forward(self, x):
            return self.head(self.rnn(x)[0][:, -1])

    model = Net()
    return Program(model, nn.MSELoss(), loader(*series(1200, 30, 1)), torch.optim.Adam(model.parameters(), lr=1e-3),
                   r2(*series(300, 30, 2)))


class GCN(nn.Module):
    def __init__(self, adjacency, features, hidden, classes, depth):
        super().__init__()
        self.register_buffer("adjacency", adjacency)
        sizes = [features] + [hidden] * (depth - 1) + [classes]
        self.convs = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes[:-1], sizes[1:], strict=True))

    def forward(self, x):
        for i, conv in enumerate(self.convs):
            x = self.adjacency @ conv(x)
            if i < len(self.convs) - 1:
                x = F.relu(x)
        return x


class Masked:
    """A whole graph as one batch; nodes outside of training have the label -100."""

    def __init__(self, x, y, known):
        self.batch = x, torch.where(known, y, -100)

    def __iter__(self):
        yield self.batch

    def __len__(self):
        return 1


def on_nodes(x, y, hidden):
    return lambda m: (m(x).argmax(1) == y)[hidden].float().mean().item()


@fault("Fourteen graph convolutions in a row: all nodes become alike", rules=["rank-collapse", "vanishing-gradient",
       "activation-drift"], fails=True, steps=150)
def tsq_oversmoothed(bad):
    x, a, y = community(240, 4, 12, 1)
    known = torch.rand(240, generator=g(2)) < 0.5
    model = GCN(normalised(a), 12, 24, 4, 14 if bad else 2)
    return Program(model, nn.CrossEntropyLoss(), Masked(x, y, known),
                   torch.optim.Adam(model.parameters(), lr=1e-2), on_nodes(x, y, ~known))


@fault("The adjacency matrix is not divided by the degrees", rules=["activation-drift", "exploding-gradient",
       "learning-rate-too-high", "saturated-output"], fails=True, steps=200)
def tsq_sum_of_neighbours(bad):
    x, a, y = community(240, 4, 12, 1, inside=0.3, outside=0.04)
    known = torch.rand(240, generator=g(2)) < 0.5
    model = GCN(a + torch.eye(240) if bad else normalised(a), 12, 24, 4, 2)
    return Program(model, nn.CrossEntropyLoss(), Masked(x, y, known),
                   torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9), on_nodes(x, y, ~known))


@fault("Adam at 0.1 for a transformer", rules=["learning-rate-too-high"], fails=False, steps=300)
def tsq_adam_tenth(bad):
    model = Blocks(20, 12, out=2, pooled=True)
    return Program(model, nn.CrossEntropyLoss(), loader(*who_is_first(2000, 12, 20, 1)),
                   torch.optim.Adam(model.parameters(), lr=0.1 if bad else 2e-3),
                   accuracy(*who_is_first(400, 12, 20, 2)))


@fault("A warm-up of forty thousand steps in a short run", rules=["learning-rate-too-low"], fails=True, steps=300)
def tsq_long_warmup(bad):
    model = Blocks(12, 10, causal=True)
    text, test = markov(1200, 11, 12, 1), markov(300, 11, 12, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    warm = 40000 if bad else 40
    return Program(model, lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()),
                   loader(text[:, :-1], text[:, 1:]), optimizer, accuracy(test[:, :-1], test[:, 1:]),
                   scheduler=LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / warm)))


@fault("SGD with AdamW's decay of 0.3 on everything", rules=["weight-decay-dominates"], fails=True, steps=400)
def tsq_decay(bad):
    model = RowLSTM()
    (x, y), (xt, yt) = digit_rows()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y),
                   torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.3 if bad else 1e-4),
                   accuracy(xt, yt))


@fault("Dropout given the share to keep", rules=["dropout-too-strong"], layers=["drop"], fails=False, steps=300)
def tsq_keep_probability(bad):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(80, 16)
            self.drop = nn.Dropout(0.95 if bad else 0.05)
            self.gru = nn.GRU(16, 24, batch_first=True)
            self.fc = nn.Linear(24, 6)

        def forward(self, ids):
            h, _ = self.gru(self.drop(self.emb(ids)))
            return self.fc(h.mean(1))

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(*topics(1500, 14, 80, 6, 1, 1.4)),
                   torch.optim.Adam(model.parameters(), lr=5e-3), accuracy(*topics(400, 14, 80, 6, 3, 1.4)))


@fault("A transformer encoder without positions, asked which of two tokens is first", rules=["order-lost"],
       fails=True, steps=400)
def tsq_no_positions(bad):
    model = Blocks(20, 12, position=not bad, out=2, pooled=True)
    return Program(model, nn.CrossEntropyLoss(), loader(*who_is_first(3000, 12, 20, 1)),
                   torch.optim.Adam(model.parameters(), lr=2e-3), accuracy(*who_is_first(400, 12, 20, 2)))


@fault("Texts are shuffled, their labels are not", rules=["labels-unrelated"], fails=True, steps=250)
def tsq_shuffled_texts(bad):
    x, y = topics(1500, 16, 60, 5, 1)
    if bad:
        x = x[torch.randperm(len(x), generator=g(9))]
    model = TextCNN()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), lr=3e-3),
                   accuracy(*topics(400, 16, 60, 5, 3)))


@fault("Every token is looked up with the wrong case, so that all are unknown", rules=["constant-feature",
       "labels-unrelated", "rank-collapse"], fails=True, steps=250)
def tsq_all_unknown(bad):
    words = [f"Word{i}" for i in range(60)]
    vocabulary = {(w if not bad else w.lower()): i + 1 for i, w in enumerate(words)}

    def encode(x):
        return torch.tensor([[vocabulary.get(words[i], 0) for i in row] for row in x.tolist()])

    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(61, 16)
            self.net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 5))

        def forward(self, ids):
            return self.net(self.bag(ids))

    (x, y), (xt, yt) = topics(1200, 16, 60, 5, 1), topics(400, 16, 60, 5, 3)
    model = Bag()
    return Program(model, nn.CrossEntropyLoss(), loader(encode(x), y), torch.optim.Adam(model.parameters(), lr=1e-2),
                   accuracy(encode(xt), yt))


@fault("Batches in the order of a file that is sorted by class", rules=["sorted-batches"], fails=True, steps=440)
def tsq_sorted_file(bad):
    (x, y), (xt, yt) = digit_rows()
    order = y.argsort(stable=True)
    model = RowLSTM()
    return Program(model, nn.CrossEntropyLoss(), loader(x[order], y[order], shuffle=not bad),
                   torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), accuracy(xt, yt))


@fault("A forecaster of two layers without an activation between", rules=["no-nonlinearity"], fails=False, steps=400)
def tsq_linear_forecaster(bad):
    def logistic(n, seed):
        x = 0.1 + 0.8 * torch.rand(n, 1, generator=g(seed))
        rows = [x]
        for _ in range(12):
            rows.append(3.9 * rows[-1] * (1 - rows[-1]))
        s = 2 * torch.cat(rows, 1)[:, 4:] - 1
        return s[:, :8], s[:, 8:]

    middle = [] if bad else [nn.GELU()]
    model = nn.Sequential(nn.Linear(8, 48), *middle, nn.Linear(48, 48), *middle, nn.Linear(48, 1))
    return Program(model, nn.MSELoss(), loader(*logistic(2000, 1)), torch.optim.Adam(model.parameters(), lr=5e-3),
                   r2(*logistic(400, 2)))


@fault("The loss is a sum over all tokens of a batch, with the rate of a mean", rules=["summed-loss",
       "learning-rate-too-high"], fails=False, steps=250)
def tsq_token_sum(bad):
    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(20, 24)
            self.gru = nn.GRU(24, 32, batch_first=True)
            self.fc = nn.Linear(32, 20)

        def forward(self, x):
            return self.fc(self.gru(self.emb(x))[0]).transpose(1, 2)

    text, test = markov(1200, 17, 20, 1), markov(300, 17, 20, 2)
    model = LM()
    return Program(model, nn.CrossEntropyLoss(reduction="sum" if bad else "mean"),
                   loader(text[:, :-1], text[:, 1:]), torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9),
                   lambda m: (m(test[:, :-1]).argmax(1) == test[:, 1:]).float().mean().item())


@fault("The penalty on hidden states is weighed many times too much", rules=["term-dominates"], fails=True,
       steps=300)
def tsq_activation_penalty(bad):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(8, 32, batch_first=True)
            self.fc = nn.Linear(32, 10)

        def forward(self, x):
            h, _ = self.rnn(x)
            return self.fc(h[:, -1]), h

    alpha = 1000.0 if bad else 0.02

    def loss(output, y):
        logits, hidden = output
        return F.cross_entropy(logits, y) + alpha * hidden.pow(2).mean()

    (x, y), (xt, yt) = digit_rows()
    model = Net()
    return Program(model, loss, loader(x, y), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: (m(xt)[0].argmax(1) == yt).float().mean().item())


@fault("Baskets without items make a softmax over nothing but -inf", rules=["non-finite", "wrong-mask"],
       layers=["pool", "score"], fails=True, steps=250)
def tsq_empty_baskets(bad):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(61, 16, padding_idx=0)
            self.score = nn.Linear(16, 1)
            self.pool = nn.Softmax(dim=1)
            self.fc = nn.Linear(16, 5)

        def forward(self, ids):
            e = self.emb(ids)
            s = self.score(e).masked_fill((ids == 0)[..., None], float("-inf") if bad else -1e4)
            return self.fc((self.pool(s) * e).sum(1))

    def data(n, seed):
        x, y = topics(n, 14, 60, 5, seed)
        x = x + 1
        length = torch.randint(0, 15, (n, 1), generator=g(seed + 7))
        return x.masked_fill(torch.arange(14) >= length, 0), y

    x, y = data(500, 3)
    full = (x > 0).sum(1) > 5
    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(*data(1500, 1)),
                   torch.optim.Adam(model.parameters(), lr=1e-2), accuracy(x[full], y[full]))


@fault("Rates of a softplus go to PoissonNLLLoss, which takes them for logarithms", rules=["output-loss-mismatch"],
       fails=False, steps=300)
def tsq_poisson_log(bad):
    def data(n, seed):
        r = g(seed)
        t = torch.rand(n, 1, generator=r) * 6.28
        x = torch.sin(t + 0.3 * torch.arange(12))
        rate = torch.exp(1.2 + 1.3 * torch.sin(t + 0.3 * 12))
        return x + 0.05 * torch.randn(n, 12, generator=r), torch.poisson(rate, generator=r), rate

    x, y, _ = data(1500, 1)
    xt, _, rate = data(400, 2)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1), nn.Softplus())
    return Program(model, nn.PoissonNLLLoss(log_input=bad), loader(x, y), torch.optim.Adam(model.parameters(), lr=5e-3),
                   r2(xt, rate))


@fault("Convolutions padded on both sides in a model of the next value", rules=["future-seen"], fails=True, steps=300)
def tsq_same_padding(bad):
    class TCN(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(16, 24)
            self.convs = nn.ModuleList(nn.Conv1d(24, 24, 3, dilation=d) for d in (1, 2))
            self.head = nn.Linear(24, 16)

        def forward(self, ids):
            h = self.emb(ids).transpose(1, 2)
            for conv in self.convs:
                p = 2 * conv.dilation[0]
                h = h + F.relu(conv(F.pad(h, (p // 2, p // 2) if bad else (p, 0))))
            return self.head(h.transpose(1, 2))

    text, test = markov(1200, 17, 16, 1), markov(400, 17, 16, 2)

    def score(m):
        hits = []
        for t in (5, 9, 13):
            buffer = torch.zeros(400, 16, dtype=torch.long)
            buffer[:, :t] = test[:, :t]
            hits.append((m(buffer)[:, t - 1].argmax(-1) == test[:, t]).float().mean())
        return torch.stack(hits).mean().item()

    model = TCN()
    return Program(model, lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()),
                   loader(text[:, :-1], text[:, 1:]), torch.optim.Adam(model.parameters(), lr=3e-3), score)


@fault("NLLLoss of scores that are no log-probabilities", rules=["output-loss-mismatch", "diverging"],
       layers=["2"], fails=True, steps=300)
def tsq_nll_of_scores(bad):
    class Mean(nn.Module):
        def forward(self, e):
            return e.mean(1)

    last = [] if bad else [nn.LogSoftmax(dim=-1)]
    model = nn.Sequential(nn.Embedding(60, 24), Mean(), nn.Linear(24, 10), *last)
    x, y = topics(2500, 16, 60, 10, 1)
    keep = (y < 2) | (torch.arange(len(y)) % 3 == 0)
    return Program(model, nn.NLLLoss(), loader(x[keep], y[keep]), torch.optim.Adam(model.parameters(), lr=1e-2),
                   accuracy(*topics(500, 16, 60, 10, 3)))


@fault("Likes are ratings above five, on a scale to five", rules=["constant-target"], fails=False, steps=400)
def tsq_no_likes(bad):
    def stars(n, seed):
        x, y = ratings(n, 60, 50, seed)
        return x, (3 + 1.5 * y).round().clamp(1, 5)

    x, s = stars(4000, 1)
    xt, st = stars(800, 2)
    like = (s > (5 if bad else 3)).float()
    model = MF(d=5)
    return Program(model, nn.BCEWithLogitsLoss(), loader(x, like, batch=64),
                   torch.optim.Adam(model.parameters(), lr=2e-2),
                   lambda m: ((m(xt) > 0) == (st > 3)).float().mean().item())


@fault("Output tied to an embedding of standard deviation 1 and multiplied by the root of the width",
       rules=["bad-initialisation", "saturated-output"], layers=["tok", "head"], fails=True, steps=300)
def tsq_tied_large(bad):
    class Tied(nn.Module):
        def __init__(self, vocab=40, d=96):
            super().__init__()
            self.tok = nn.Embedding(vocab, d)
            if not bad:
                nn.init.normal_(self.tok.weight, std=d**-0.5)
            self.mix = nn.Linear(d, d)
            self.head = nn.Linear(d, vocab, bias=False)
            self.head.weight = self.tok.weight

        def forward(self, ids):
            h = self.tok(ids) * 96**0.5
            return self.head(h + torch.tanh(self.mix(h)))

    text, test = markov(1200, 13, 40, 1), markov(300, 13, 40, 2)
    model = Tied()
    return Program(model, lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()),
                   loader(text[:, :-1], text[:, 1:]), torch.optim.Adam(model.parameters(), lr=1e-3),
                   accuracy(test[:, :-1], test[:, 1:]))


@fault("BatchNorm with TensorFlow's idea of momentum turned round once too often", rules=["batchnorm-mode-gap"],
       layers=["bn"], fails=True, steps=250)
def tsq_bn_momentum(bad):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.bn = nn.BatchNorm1d(3, momentum=0.0005 if bad else 0.05)
            self.conv = nn.Conv1d(3, 16, 5, padding=2)
            self.fc = nn.Linear(16, 3)

        def forward(self, x):
            h = F.relu(self.conv(self.bn(x.transpose(1, 2))))
            return self.fc(h.mean(2))

    def data(n, seed):
        x, y = waves(n, 24, 3, seed)
        return torch.cat([12 * x + 40, 0.5 * torch.randn(n, 24, 1, generator=g(seed + 5)) - 6, 3 * x.flip(1) + 9], 2), y

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(*data(1500, 1)),
                   torch.optim.Adam(model.parameters(), lr=1e-2), accuracy(*data(400, 2)))


@fault("F.dropout without training=self.training", rules=["dropout-in-eval"], fails=False, steps=300)
def tsq_functional_dropout(bad):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(1, 12, batch_first=True)
            self.fc = nn.Linear(12, 1)

        def forward(self, x):
            h = self.gru(x)[0][:, -1]
            h = F.dropout(h, 0.65) if bad else F.dropout(h, 0.65, training=self.training)
            return self.fc(h)

    model = Net()
    return Program(model, nn.MSELoss(), loader(*series(1200, 16, 1)), torch.optim.Adam(model.parameters(), lr=5e-3),
                   r2(*series(300, 16, 2)))


@fault("Adam with an epsilon of 1", rules=["optimizer-setting", "learning-rate-too-low"], fails=False, steps=250)
def tsq_epsilon(bad):
    model = TextCNN()
    return Program(model, nn.CrossEntropyLoss(), loader(*topics(1500, 16, 60, 5, 1)),
                   torch.optim.Adam(model.parameters(), lr=2e-3, eps=1.0 if bad else 1e-8),
                   accuracy(*topics(400, 16, 60, 5, 3)))


@fault("Item table in bfloat16, whose steps round to nothing", rules=["lost-updates"], fails=True, steps=500)
def tsq_bf16_table(bad):
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(200, 5, mode="mean")
            self.bag.to(torch.bfloat16 if bad else torch.float32)

        def forward(self, ids):
            return self.bag(ids).float() * 4

    model = Half()
    with torch.no_grad():
        model.bag.weight.copy_(1 + 0.1 * torch.randn(200, 5, generator=g(2)))
    return Program(model, nn.CrossEntropyLoss(), loader(*topics(2500, 30, 200, 5, 1)),
                   torch.optim.Adam(model.parameters(), lr=5e-4), accuracy(*topics(400, 30, 200, 5, 3)))


@fault("The bias for rare classes is given to the hidden layers too", rules=["dying-neurons", "bad-initialisation"],
       layers=["hidden"], fails=True, steps=300)
def tsq_prior_bias(bad):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(60, 16)
            self.hidden = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
            self.out = nn.Linear(32, 5)
            for m in self.modules() if bad else [self.out]:
                if isinstance(m, nn.Linear):
                    nn.init.constant_(m.bias, -2.2)

        def forward(self, ids):
            return self.out(self.hidden(self.emb(ids).mean(1)))

    x, y = topics(1500, 16, 60, 5, 1)
    model = Net()
    return Program(model, nn.BCEWithLogitsLoss(), loader(x, F.one_hot(y, 5).float()),
                   torch.optim.Adam(model.parameters(), lr=5e-3), accuracy(*topics(400, 16, 60, 5, 3)))
