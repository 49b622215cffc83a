import math
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
from program import Program, fault
from sqr_tools import *


class Forecast(nn.Module):
    def __init__(self, features=1, hidden=32, cell=nn.GRU):
        super().__init__()
        self.rnn = cell(features, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1]).squeeze(-1)


@fault("volumes in millions next to returns in per cent, unscaled", rules=("unscaled-input", "saturated-activation"), fails=True,
       steps=400)
def sqr_raw_market(is_faulty):
    def part(n, seed):
        g = gen(seed)
        change = 0.02 * torch.randn(n, 12, generator=g)
        volume = 3e6 + 1e6 * torch.randn(n, 12, generator=g)
        y = change[:, -3:].sum(1) / 0.03 + 0.5 * (volume[:, -1] - 3e6) / 1e6
        x = torch.stack([change, volume], -1)
        if not is_faulty:
            x = (x - torch.tensor([0.0, 3e6])) / torch.tensor([0.02, 1e6])
        return x, y
    net = Forecast(2)
    return Program(net, nn.MSELoss(), loader(*part(1500, 1)), torch.optim.Adam(net.parameters(), 5e-3), r2(*part(400, 2)))


@fault("targets of some 20000 visitors are not scaled", rules=("unscaled-target",), layers=(), fails=True, steps=300)
def sqr_visitors(is_faulty):
    def part(n, seed):
        s = sines(n, 17, seed)
        return s[:, :-1, None], s[:, -1] * 6000 + 20000
    net = Forecast(1)
    x, y = part(1200, 3)
    x2, y2 = part(400, 4)

    def score(model):
        return r2(x2, (y2 - 20000) / 6000, get=(lambda o: (o - 20000) / 6000) if is_faulty else (lambda o: o))(model)
    return Program(net, nn.MSELoss(), loader(x, y if is_faulty else (y - 20000) / 6000),
                   torch.optim.Adam(net.parameters(), 3e-3), score)


@fault("forecasts of shape (batch, 1) against targets of shape (batch,)", rules=("output-loss-mismatch",), fails=True, steps=250)
def sqr_column_forecast(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(1, 32, batch_first=True)
            self.fc = nn.Linear(32, 1)

        def forward(self, x):
            out = self.fc(self.lstm(x)[0][:, -1])
            return out if is_faulty else out[:, 0]

    def part(n, seed):
        s = sines(n, 13, seed)
        return s[:, :-1, None], s[:, -1]
    net = Net()
    return Program(net, nn.MSELoss(), loader(*part(1200, 5)), torch.optim.Adam(net.parameters(), 5e-3), r2(*part(400, 6)))


@fault("a ReLU on forecasts of standardised values", rules=("output-loss-mismatch", "dying-neurons"), fails=False, steps=300)
def sqr_relu_forecast(is_faulty):
    def part(n, seed):
        s = sines(n, 24, seed)
        return s[:, :-4], s[:, -4:]
    layers = [nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4)]
    if is_faulty:
        layers.append(nn.ReLU())
    net = nn.Sequential(*layers)
    return Program(net, nn.SmoothL1Loss(), loader(*part(1200, 7), size=64), torch.optim.AdamW(net.parameters(), 3e-3),
                   r2(*part(400, 8)))


@fault("a stack of convolutions with no activation between them", rules=("no-nonlinearity",), fails=True, steps=300)
def sqr_linear_tcn(is_faulty):
    act = nn.Identity if is_faulty else nn.ReLU
    net = nn.Sequential(
        nn.Conv1d(1, 16, 9, stride=2), act(), nn.Conv1d(16, 24, 5, dilation=2), act(), nn.Conv1d(24, 24, 3, dilation=2), act(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(24, 4))

    def part(n, seed):
        x, y = tones(n, 96, seed)
        return x[:, None], y
    return Program(net, nn.CrossEntropyLoss(), loader(*part(1000, 9)), torch.optim.Adam(net.parameters(), 3e-3),
                   accuracy(*part(400, 10)))


@fault("alarm levels between 0 and 1 are cut to integers, all of which are 0", rules=("constant-target",), fails=True, steps=250)
def sqr_cut_levels(is_faulty):
    def part(n, seed, cut=False):
        g = gen(seed)
        x = torch.randn(n, 32, 2, generator=g)
        hit = torch.rand(n, generator=g) < 0.5
        at = torch.randint(0, 32, (n,), generator=g)
        x[torch.arange(n), at, 0] += 6.0 * hit
        level = torch.where(hit, 0.85, 0.1) + 0.1 * torch.rand(n, generator=g)
        return x, level.long() if cut else level.round().long()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(2, 24, batch_first=True)
            self.fc = nn.Linear(24, 2)

        def forward(self, x):
            return self.fc(self.rnn(x)[0].amax(1))
    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(*part(1000, 11, is_faulty)), torch.optim.Adam(net.parameters(), 3e-3),
                   lambda m, s=accuracy(*part(400, 12)): max(0.0, 2 * s(m) - 1))


@fault("the logarithm of a spectrogram with silent frames", rules=("non-finite",), fails=True, steps=200)
def sqr_log_silence(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("window", torch.hann_window(32))
            self.body = nn.Sequential(nn.Conv1d(17, 32, 3, padding=1), nn.ReLU(), nn.Conv1d(32, 32, 3), nn.ReLU())
            self.fc = nn.Linear(32, 4)

        def forward(self, wave):
            spec = torch.stft(wave, 32, 16, window=self.window, center=False, return_complex=True).abs() ** 2
            spec = torch.log(spec) if is_faulty else torch.log(spec + 1e-3)
            return self.fc(self.body(spec).mean(-1))

    def part(n, seed):
        x, y = tones(n, 160, seed)
        quiet = torch.rand(n, generator=gen(seed + 1)) < 0.3
        x[:, 100:] *= ~quiet[:, None]
        return x, y
    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(*part(800, 13)), torch.optim.Adam(net.parameters(), 2e-3),
                   accuracy(*part(300, 15)))


def speech(n, seed):
    """Three symbols of 1 to 4, each heard for 3 to 5 frames with a gap; 30 frames."""
    g = gen(seed)
    x = 0.3 * torch.randn(n, 30, 6, generator=g)
    y = torch.randint(1, 5, (n, 3), generator=g)
    for i in range(n):
        t = 1
        for s in y[i].tolist():
            span = int(torch.randint(3, 6, (1,), generator=g))
            x[i, t:t + span, s - 1] += 1.5
            t += span + int(torch.randint(1, 4, (1,), generator=g))
    return x, y


def ctc_score(x, y):
    def score(model):
        best = model(x).argmax(-1).t()
        right = 0
        for row, want in zip(best.tolist(), y.tolist()):
            said = [s for j, s in enumerate(row) if s and (j == 0 or s != row[j - 1])]
            right += sum(a == b for a, b in zip(said, want)) / max(len(said), 3)
        return right / len(y)
    return score


class Listener(nn.Module):
    def __init__(self, log):
        super().__init__()
        self.rnn = nn.GRU(6, 32, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(64, 5)
        self.log = log

    def forward(self, x):
        out = self.fc(self.rnn(x)[0]).transpose(0, 1)
        return out.log_softmax(-1) if self.log else out


def ctc(out, y):
    lens = torch.full((out.shape[1],), out.shape[0])
    return F.ctc_loss(out, y, lens, torch.full_like(lens, 3))


@fault("CTC is given logits instead of log-probabilities", rules=("output-loss-mismatch", "diverging"), fails=False, steps=300)
def sqr_ctc_logits(is_faulty):
    net = Listener(log=not is_faulty)
    return Program(net, ctc, loader(*speech(600, 16)), torch.optim.Adam(net.parameters(), 1e-2), ctc_score(*speech(200, 17)))


@fault("convolutions padded on both sides in a network that predicts the next value", rules=("future-seen",), fails=False, steps=300)
def sqr_same_padding(is_faulty):
    class Causal(nn.Module):
        def __init__(self, a, b, dilation):
            super().__init__()
            self.conv = nn.Conv1d(a, b, 3, dilation=dilation)
            self.left = dilation if is_faulty else 2 * dilation
            self.right = 2 * dilation - self.left

        def forward(self, x):
            return self.conv(F.pad(x, (self.left, self.right)))

    def part(n, seed):
        s = sines(n, 33, seed, noise=0.02)
        return s[:, None, :-1], s[:, 1:]
    net = nn.Sequential(Causal(1, 24, 1), nn.ReLU(), Causal(24, 24, 2), nn.ReLU(), Causal(24, 24, 4), nn.ReLU(),
                        nn.Conv1d(24, 1, 1), nn.Flatten())
    x, y = part(400, 19)

    def score(model):
        stale = torch.cat([x[..., :20], x.roll(1, 0)[..., 20:]], -1)
        out = model(stale)[:, 19]
        return max(0.0, 1 - ((out - y[:, 19]) ** 2).mean().item() / y[:, 19].var().item())
    return Program(net, nn.MSELoss(), loader(*part(1000, 18)), torch.optim.Adam(net.parameters(), 3e-3), score)


@fault("BatchNorm with a momentum of 0.0005, whose statistics stay where they began", rules=("batchnorm-mode-gap",),
       layers=("bn1", "bn2"), fails=True, steps=350)
def sqr_lazy_statistics(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            momentum = 0.0005 if is_faulty else 0.1
            self.conv1, self.bn1 = nn.Conv1d(2, 24, 7, stride=2), nn.BatchNorm1d(24, momentum=momentum)
            self.conv2, self.bn2 = nn.Conv1d(24, 24, 5, stride=2), nn.BatchNorm1d(24, momentum=momentum)
            self.fc = nn.Linear(24, 4)

        def forward(self, x):
            x = F.relu(self.bn1(self.conv1(x)))
            return self.fc(F.relu(self.bn2(self.conv2(x))).mean(-1))

    def part(n, seed):
        x, y = tones(n, 80, seed)
        return torch.stack([x * 0.1, x.abs() * 0.1 + 0.2], 1), y
    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(*part(1000, 20)), torch.optim.Adam(net.parameters(), 2e-3),
                   accuracy(*part(400, 21)))


@fault("positive rates given to a Poisson loss that takes logarithms of rates", rules=("output-loss-mismatch",), fails=True,
       steps=350)
def sqr_rates_as_logs(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(3, 24, batch_first=True)
            self.fc = nn.Linear(24, 1)

        def forward(self, x):
            return F.softplus(self.fc(self.rnn(x)[0])).squeeze(-1)

    def part(n, seed, exact=False):
        g = gen(seed)
        x = torch.randn(n, 10, 3, generator=g)
        rate = 0.8 * torch.sigmoid(2 * x[..., 0] + 2 * F.pad(x[:, :-1, 1], (1, 0)))
        return x, rate if exact else torch.poisson(rate, generator=g)
    net = Net()
    loss = nn.PoissonNLLLoss(log_input=is_faulty)
    return Program(net, loss, loader(*part(1500, 22), size=64), torch.optim.Adam(net.parameters(), 8e-3), r2(*part(400, 23, True)))


@fault("the log-likelihood of waiting times is minimised", rules=("output-loss-mismatch", "diverging"), fails=True, steps=300)
def sqr_waiting_sign(is_faulty):
    class Hazard(nn.Module):
        def __init__(self):
            super().__init__()
            self.kind = nn.Embedding(6, 12)
            self.cell = nn.GRU(12, 24, batch_first=True)
            self.rate = nn.Linear(24, 1)

        def forward(self, events):
            return self.rate(self.cell(self.kind(events))[0]).squeeze(-1)

    def part(n, seed, exact=False):
        g = gen(seed)
        kinds = torch.randint(0, 6, (n, 12), generator=g)
        log_rate = torch.tensor([-1.0, 0.5, 1.0, -0.5, 2.0, 0.0])[kinds] + 0.5 * (F.pad(kinds[:, :-1], (1, 0)) > 2)
        wait = -torch.log1p(-torch.rand(n, 12, generator=g)) / log_rate.exp()
        return kinds, log_rate if exact else wait

    def loss(log_rate, wait):
        likelihood = log_rate - log_rate.clamp(max=8.0).exp() * wait
        return likelihood.mean() if is_faulty else -likelihood.mean()
    net = Hazard()
    return Program(net, loss, loader(*part(1000, 24)), torch.optim.Adam(net.parameters(), 5e-3), r2(*part(300, 25, True)))


@fault("F.dropout without `training`, so that forecasts are noisy in evaluation", rules=("dropout-in-eval",), fails=False, steps=400)
def sqr_noisy_forecast(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(16, 24), nn.Linear(24, 24), nn.Linear(24, 1)

        def forward(self, x):
            h = F.relu(self.a(x))
            h = F.dropout(h, 0.5) if is_faulty else F.dropout(h, 0.5, self.training)
            h = F.relu(self.b(h))
            h = F.dropout(h, 0.5) if is_faulty else F.dropout(h, 0.5, self.training)
            return self.c(h).squeeze(-1)

    def part(n, seed):
        s = sines(n, 17, seed)
        return s[:, :-1], s[:, -1]
    net = Net()
    return Program(net, nn.MSELoss(), loader(*part(1500, 26)), torch.optim.Adam(net.parameters(), 2e-3), r2(*part(400, 27)))


class Recurrence(nn.Module):
    """An Elman network by hand, that is asked for what it saw first."""

    def __init__(self, scale, act=torch.tanh, hidden=32, out=4):
        super().__init__()
        self.inp = nn.Linear(5, hidden)
        self.rec = nn.Linear(hidden, hidden, bias=False)
        nn.init.orthogonal_(self.rec.weight)
        with torch.no_grad():
            self.rec.weight.mul_(scale)
        self.out = nn.Linear(hidden, out)
        self.act = act

    def forward(self, x):
        h = torch.zeros(len(x), self.rec.in_features)
        for t in range(x.shape[1]):
            h = self.act(self.inp(x[:, t]) + self.rec(h))
        return self.out(h)


def recall(n, length, seed):
    g = gen(seed)
    y = torch.randint(0, 4, (n,), generator=g)
    x = 0.1 * torch.randn(n, length, 5, generator=g)
    x[:, 0, :4] += F.one_hot(y, 4) * 2.0
    x[:, -1, 4] += 1
    return x, y


@fault("recurrent weights so small that the first input is forgotten", rules=("vanishing-gradient", "bad-initialisation"),
       layers=("rec",), fails=True, steps=250)
def sqr_forgets(is_faulty):
    net = Recurrence(0.3 if is_faulty else 1.0)
    return Program(net, nn.CrossEntropyLoss(), loader(*recall(800, 24, 28)), torch.optim.Adam(net.parameters(), 1e-3),
                   accuracy(*recall(300, 24, 29)))


@fault("all weights of an LSTM and its head set to one number", rules=("symmetric-initialisation",), layers=("lstm", "fc"), fails=False, steps=300)
def sqr_equal_units(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(6, 32, batch_first=True)
            self.fc = nn.Linear(32, 4)

        def forward(self, x):
            return self.fc(self.lstm(x)[0].mean(1))

    def part(n, seed):
        x, y = speech(n, seed)
        return x, y[:, -1] - 1
    net = Net()
    for p in net.parameters():
        if is_faulty:
            nn.init.constant_(p, 0.1)
        elif p.dim() > 1:
            nn.init.xavier_uniform_(p)
        else:
            nn.init.zeros_(p)
    return Program(net, nn.CrossEntropyLoss(), loader(*part(900, 32)), torch.optim.Adam(net.parameters(), 1e-2),
                   accuracy(*part(300, 33)))


class SeqVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.GRU(1, 32, batch_first=True)
        self.mu, self.logvar = nn.Linear(32, 6), nn.Linear(32, 6)
        self.dec = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 16))

    def forward(self, x):
        h = self.enc(x[..., None])[1][0]
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
        return self.dec(z), mu, logvar


def slow(n, seed):
    g = gen(seed)
    t = torch.arange(16).float()
    return torch.randn(n, 1, generator=g) * torch.sin(0.4 * t) + torch.randn(n, 1, generator=g) * torch.cos(0.25 * t)


@fault("the KL of a sequence autoencoder is summed, its reconstruction averaged", rules=("term-dominates",), fails=True, steps=400)
def sqr_kl_wins(is_faulty):
    def loss(out, x):
        rec, mu, logvar = out
        kl = -0.5 * (1 + logvar - mu ** 2 - logvar.exp()).sum()
        if not is_faulty:
            kl = kl / (len(x) * 16 * 8)
        return F.mse_loss(rec, x) + kl
    net = SeqVAE()
    x = slow(1200, 34)
    x2 = slow(300, 35)
    return Program(net, loss, loader(x, x), torch.optim.Adam(net.parameters(), 5e-3), r2(x2, x2, get=lambda o: o[0]))


@fault("weight decay of 0.5 in Adam", rules=("weight-decay-dominates",), fails=True, steps=300)
def sqr_adam_l2(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Sequential(nn.Conv1d(1, 16, 8, 2), nn.ReLU(), nn.Conv1d(16, 32, 5, 2), nn.ReLU())
            self.rnn = nn.GRU(32, 24, batch_first=True)
            self.fc = nn.Linear(24, 4)

        def forward(self, x):
            return self.fc(self.rnn(self.conv(x[:, None]).transpose(1, 2))[1][0])
    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(*tones(1000, 96, 36)),
                   torch.optim.Adam(net.parameters(), 3e-3, weight_decay=0.5 if is_faulty else 1e-5), accuracy(*tones(400, 96, 37)))


@fault("an epsilon of 1 in Adam", rules=("optimizer-setting", "learning-rate-too-low"), fails=True, steps=300)
def sqr_adam_eps(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp = nn.Linear(8, 32)
            self.pos = nn.Parameter(0.2 * torch.randn(8, 32))
            self.block = Block(32, 4)
            self.fc = nn.Linear(32, 10)

        def forward(self, x):
            return self.fc(self.block(self.inp(x) + self.pos).mean(1))
    from sklearn.datasets import load_digits
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32) / 8 - 1
    y = torch.tensor(data.target)
    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(x[:1300], y[:1300]),
                   torch.optim.Adam(net.parameters(), 3e-3, eps=1.0 if is_faulty else 1e-8), accuracy(x[1300:], y[1300:]))


@fault("recordings come class by class", rules=("sorted-batches",), fails=True, steps=256)
def sqr_class_by_class(is_faulty):
    x, y = tones(2048, 64, 38)
    if is_faulty:
        order = y.argsort(stable=True)
        x, y = x[order], y[order]
    net = nn.Sequential(nn.Unflatten(1, (1, 64)), nn.Conv1d(1, 16, 9, 2), nn.ReLU(), nn.Conv1d(16, 32, 5, 2), nn.ReLU(),
                        nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(32, 4))
    return Program(net, nn.CrossEntropyLoss(), loader(x, y, size=16, shuffle=False), torch.optim.Adam(net.parameters(), 4e-3),
                   accuracy(*tones(400, 64, 39)))


@fault("a retrieval loss that is only given pairs that match", rules=("constant-target", "rank-collapse"), fails=False, steps=300)
def sqr_only_matches(is_faulty):
    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Sequential(nn.EmbeddingBag(200, 32, mode="mean"), nn.Linear(32, 16))
            self.d = nn.Sequential(nn.EmbeddingBag(200, 32, mode="mean"), nn.Linear(32, 16))

        def forward(self, query, document):
            return torch.stack([self.q(query), self.d(document)], 1)

    def pairs(n, seed, negatives):
        g = gen(seed)
        topic = torch.randint(0, 20, (n,), generator=g)
        q = 10 * topic[:, None] + torch.randint(0, 10, (n, 5), generator=g)
        other = topic
        label = torch.ones(n)
        if negatives:
            flip = torch.rand(n, generator=g) < 0.5
            other = torch.where(flip, (topic + torch.randint(1, 20, (n,), generator=g)) % 20, topic)
            label = torch.where(flip, -1.0, 1.0)
        d = 10 * other[:, None] + torch.randint(0, 10, (n, 8), generator=g)
        return {"query": q, "document": d}, label, topic
    x, label, _ = pairs(2000, 40, not is_faulty)
    x2, _, topic = pairs(300, 41, False)

    def score(model):
        a, b = F.normalize(model(**x2), dim=-1).unbind(1)
        return (topic[(a @ b.t()).argmax(1)] == topic).float().mean().item()

    criterion = nn.CosineEmbeddingLoss(margin=0.1)
    net = Towers()
    return Program(net, lambda o, y: criterion(o[:, 0], o[:, 1], y), DataLoader(Dicts(x, label), 64, shuffle=True),
                   torch.optim.Adam(net.parameters(), 1e-2), score)


@fault("plain SGD at 1e-4", rules=("learning-rate-too-low",), fails=True, steps=300)
def sqr_sgd_slow(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.att = nn.MultiheadAttention(6, 2, batch_first=True)
            self.mlp = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))

        def forward(self, x):
            h = x + self.att(x, x, x, need_weights=False)[0]
            return self.mlp(h).mean(1).squeeze(-1)

    def part(n, seed):
        x = torch.randn(n, 10, 6, generator=gen(seed))
        return x, 3 * x[..., 0].relu().mean(1) - 2 * x[..., 1].mean(1)
    net = Net()
    return Program(net, nn.MSELoss(), loader(*part(1000, 42)), torch.optim.SGD(net.parameters(), 1e-4 if is_faulty else 0.1),
                   r2(*part(300, 43)))


@fault("eight sigmoid convolutions on top of one another", rules=("vanishing-gradient", "rank-collapse", "saturated-activation"),
       fails=True, steps=300)
def sqr_sigmoid_tower(is_faulty):
    layers, width = [], 1
    for _ in range(8):
        layers += [nn.Conv1d(width, 16, 3, padding=1), nn.Sigmoid() if is_faulty else nn.ReLU()]
        width = 16
    net = nn.Sequential(nn.Unflatten(1, (1, 64)), nn.AvgPool1d(2), *layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(),
                        nn.Linear(16, 4))
    return Program(net, nn.CrossEntropyLoss(), loader(*tones(1000, 64, 44)), torch.optim.Adam(net.parameters(), 3e-3),
                   accuracy(*tones(400, 64, 45)))
