import math
import torch
import torch.nn.functional as F
from torch import nn
from program import Program, fault
from sqs_data import *


class Forecaster(nn.Module):
    def __init__(self, f=1, h=24):
        super().__init__()
        self.lstm = nn.LSTM(f, h, batch_first=True)
        self.head = nn.Linear(h, 1)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


@fault("prices to be forecast stay in dollars", rules=["unscaled-target"], fails=True, steps=250)
def sqs_coin_price(is_faulty):
    (x, y), (tx, ty) = series(600, 20, 1), series(200, 20, 2)
    mean, std = 31000.0, 2500.0
    price = lambda z: mean + std * z
    target = price(y) if is_faulty else y
    m = Forecaster()

    def score(m):
        out = m(tx)
        out = out if is_faulty else price(out)
        return max(0.0, (1 - (out - price(ty)).square().mean() / price(ty).var()).item())
    return Program(m, nn.MSELoss(), loader(x, target), torch.optim.Adam(m.parameters(), 5e-3), score)


def plant(n, seed):
    g = gen(seed)
    y = torch.randint(0, 2, (n,), generator=g)
    x = torch.randn(n, 15, 4, generator=g)
    x[..., 1] += torch.where(y == 1, 0.5, -0.5)[:, None] * torch.linspace(0, 2, 15)
    return x, y


@fault("one channel is a pressure in pascal", rules=["unscaled-input", "saturated-activation", "ill-conditioned-input"], fails=True, steps=200)
def sqs_pump_sensors(is_faulty):
    (x, y), (tx, ty) = plant(600, 1), plant(200, 2)
    if is_faulty:
        for z in (x, tx):
            z[..., 0] = 101325 + 3000 * z[..., 0]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(4, 20, batch_first=True)
            self.fc = nn.Linear(20, 2)

        def forward(self, x):
            return self.fc(self.gru(x)[0][:, -1])
    m = Net()
    return Program(m, F.cross_entropy, loader(x, y), torch.optim.Adam(m.parameters(), 3e-3), accuracy(tx, ty))


class Gestures(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv1d(1, 64, 9), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.LayerNorm(64))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.enc(x.transpose(1, 2)))


@fault("the optimizer is made before the head is replaced, over the old head only", rules=["no-gradient"], layers=["head"], fails=True, steps=250)
def sqs_new_gestures(is_faulty):
    (x, y), (tx, ty) = waves(600, 48, 5, 1), waves(200, 48, 5, 2)
    m = Gestures()
    m.enc.requires_grad_(False)
    if is_faulty:
        opt = torch.optim.Adam(m.parameters(), 2e-2)
        m.head = nn.Linear(64, 5)
    else:
        m.head = nn.Linear(64, 5)
        opt = torch.optim.Adam(m.parameters(), 2e-2)
    return Program(m, F.cross_entropy, loader(x, y), opt, accuracy(tx, ty))


class Drift(nn.Module):
    def __init__(self, stop):
        super().__init__()
        self.cell = nn.GRUCell(4, 32)
        self.out = nn.Linear(32, 4)
        self.stop = stop

    def forward(self, x):
        h = x.new_zeros(len(x), 32)
        for t in range(x.shape[1]):
            if self.stop:
                h = h.detach()
            h = self.cell(x[:, t], h)
        return self.out(h)


def recall(n, T, seed):
    g = gen(seed)
    x = torch.randint(0, 4, (n, T), generator=g)
    return F.one_hot(x, 4).float(), x[:, 1]


@fault("the hidden state is detached in every step of the recurrence", rules=["vanishing-gradient", "no-gradient"], layers=["cell"], fails=True, steps=300)
def sqs_second_word(is_faulty):
    (x, y), (tx, ty) = recall(800, 9, 1), recall(300, 9, 2)
    m = Drift(is_faulty)
    return Program(m, F.cross_entropy, loader(x, y), torch.optim.Adam(m.parameters(), 1e-2), accuracy(tx, ty))


class PosNet(nn.Module):
    def __init__(self, V, T, use_pos=True, d=32, p=0.0, layers=2):
        super().__init__()
        self.emb, self.pos = nn.Embedding(V, d), nn.Parameter(torch.randn(T, d) * 0.5)
        layer = nn.TransformerEncoderLayer(d, 4, 64, dropout=p, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(d, 2)
        self.use_pos = use_pos

    def forward(self, ids):
        x = self.emb(ids)
        if self.use_pos:
            x = x + self.pos
        return self.out(self.enc(x).mean(1))


def which_first(n, T, seed):
    g = gen(seed)
    x = torch.randint(2, 12, (n, T), generator=g)
    y = torch.randint(0, 2, (n,), generator=g)
    for i in range(n):
        a, b = torch.randperm(T, generator=g)[:2].sort().values
        x[i, a], x[i, b] = (0, 1) if y[i] else (1, 0)
    return x, y


class Orders(nn.Module):
    def __init__(self, use_pos):
        super().__init__()
        self.emb = nn.Embedding(12, 32)
        t, f = torch.arange(10.0)[:, None], torch.arange(16.0)[None]
        a = t / 20.0 ** (f / 16)
        self.register_buffer("pe", torch.cat([a.sin(), a.cos()], 1) if use_pos else torch.zeros(10, 32))
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(32, 2)

    def forward(self, ids):
        return self.out(self.enc(self.emb(ids) + self.pe).mean(1))


@fault("no positional encoding where the order decides", rules=["order-lost"], fails=True, steps=300)
def sqs_event_order(is_faulty):
    (x, y), (tx, ty) = which_first(1500, 10, 1), which_first(300, 10, 2)
    m = Orders(not is_faulty)
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 3e-3), accuracy(tx, ty))


@fault("Adam at 0.1 on a transformer", rules=["learning-rate-too-high"], fails=False, steps=250)
def sqs_review_transformer(is_faulty):
    (x, y), (tx, ty) = which_first(1500, 10, 3), which_first(300, 10, 4)
    m = Orders(True)
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 0.1 if is_faulty else 3e-3), accuracy(tx, ty))


@fault("a Noam schedule multiplied onto a base rate of 1e-3", rules=["learning-rate-too-low"], fails=True, steps=250)
def sqs_noam_reviews(is_faulty):
    (x, _, y), (tx, _, ty) = chats(800, 16, 60, 3, 16), chats(300, 16, 60, 4, 16)
    m = PosNet(60, 16, layers=1)
    opt = torch.optim.Adam(m.parameters(), 1e-3 if is_faulty else 1.0, betas=(0.9, 0.98), eps=1e-9)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: 32 ** -0.5 * min((s + 1) ** -0.5, (s + 1) * 1000 ** -1.5))
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), opt, accuracy(tx, ty), scheduler=sched)


@fault("recordings sorted by class, and no shuffling", rules=["sorted-batches"], fails=False, steps=300)
def sqs_machine_states(is_faulty):
    (x, y), (tx, ty) = ecg(1900, 24, 23), ecg(200, 24, 24)
    order = y.argsort()
    m = Gestures3()
    return Program(m, nn.CrossEntropyLoss(), loader(x[order], y[order], shuffle=not is_faulty),
                   torch.optim.Adam(m.parameters(), 5e-3), accuracy(tx, ty))


class Imu(nn.Module):
    def __init__(self, keep):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(1, 16, 5), nn.ReLU(), nn.Conv1d(16, 24, 5, dilation=2), nn.ReLU())
        self.drop = nn.Dropout(keep)
        self.fc1, self.fc2 = nn.Linear(24, 24), nn.Linear(24, 5)

    def forward(self, x):
        h = self.conv(x.transpose(1, 2)).mean(2)
        return self.fc2(self.drop(self.fc1(self.drop(h)).relu()))


@fault("keep probability given to nn.Dropout, twice", rules=["dropout-too-strong"], layers=["drop"], fails=True, steps=350)
def sqs_watch_motion(is_faulty):
    (x, y), (tx, ty) = waves(800, 40, 5, 5), waves(200, 40, 5, 6)
    m = Imu(0.95 if is_faulty else 0.05)
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 1e-2), accuracy(tx, ty))


class BagWords(nn.Module):
    def __init__(self, always):
        super().__init__()
        self.emb = nn.Embedding(60, 16, padding_idx=0)
        self.fc = nn.Linear(16, 2)
        self.always = always

    def forward(self, ids):
        h = F.dropout(self.emb(ids), 0.8, self.always or self.training)
        return self.fc(F.dropout(h.sum(1) / 4, 0.5, self.always or self.training))


@fault("F.dropout without training=self.training", rules=["dropout-in-eval", "dropout-too-strong"], fails=False, steps=350)
def sqs_support_bot(is_faulty):
    (x, _, y), (tx, _, ty) = chats(800, 14, 60, 7), chats(400, 14, 60, 8)
    m = BagWords(is_faulty)
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 1e-2), accuracy(tx, ty))


@fault("weight decay of 0.3 in Adam's gradient", rules=["weight-decay-dominates"], fails=True, steps=300)
def sqs_decayed_beats(is_faulty):
    (x, y), (tx, ty) = ecg(600, 24, 3), ecg(200, 24, 4)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(1, 24, batch_first=True, bidirectional=True)
            self.fc = nn.Linear(48, 3)

        def forward(self, x):
            return self.fc(self.lstm(x)[0].mean(1))
    m = Net()
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 1e-2, weight_decay=0.3 if is_faulty else 1e-5), accuracy(tx, ty))


class TagNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(30, 24)
        self.conv = nn.Conv1d(24, 32, 3, padding=1)
        self.fc = nn.Linear(32, 6)

    def forward(self, ids):
        return self.fc(self.conv(self.emb(ids).transpose(1, 2)).relu().transpose(1, 2))


@fault("logits (B, T, C) viewed as (B, C, T) for the loss", rules=["output-loss-mismatch"], fails=True, steps=250)
def sqs_part_of_speech(is_faulty):
    def data(n, seed):
        x = torch.randint(0, 30, (n, 12), generator=gen(seed))
        t = torch.randint(0, 6, (30,), generator=gen(56))
        return x, (t[x] + (F.pad(x, (1, 0))[:, :-1] > 15).long()) % 6
    (x, y), (tx, ty) = data(600, 1), data(200, 2)
    m = TagNet()
    shape = (lambda o: o.reshape(o.shape[0], 6, -1)) if is_faulty else (lambda o: o.permute(0, 2, 1))
    return Program(m, lambda o, t: F.cross_entropy(shape(o), t), loader(x, y), torch.optim.Adam(m.parameters(), 1e-2), accuracy(tx, ty))


@fault("targets of shape (B,) against outputs of (B, 1)", rules=["output-loss-mismatch"], fails=True, steps=250)
def sqs_power_load(is_faulty):
    (x, y), (tx, ty) = series(600, 20, 3), series(200, 20, 4)
    m = Forecaster()
    import warnings
    warnings.filterwarnings("ignore", message="Using a target size")
    return Program(m, nn.MSELoss(), loader(x, y[:, 0] if is_faulty else y), torch.optim.Adam(m.parameters(), 5e-3), r2(tx, ty))


class SpeechNet(nn.Module):
    def __init__(self, wrong):
        super().__init__()
        self.rnn = nn.GRU(1, 24)
        self.fc = nn.Linear(24, 4)
        self.wrong = wrong

    def forward(self, x):
        B, T, D = x.shape
        x = x.reshape(T, B, D) if self.wrong else x.transpose(0, 1)
        return self.fc(self.rnn(x)[0].mean(0))


@fault("reshape to (T, B, D) where a transpose is meant", rules=["mixed-examples"], fails=True, steps=300)
def sqs_vibration_gru(is_faulty):
    (x, y), (tx, ty) = waves(640, 24, 4, 7, 0.1), waves(200, 24, 4, 8, 0.1)
    m = SpeechNet(is_faulty)
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 1e-2), accuracy(tx, ty))


@fault("no activation between the convolutions, and a mean over time", rules=["no-nonlinearity"], fails=True, steps=250)
def sqs_plain_tcn(is_faulty):
    (x, y), (tx, ty) = waves(640, 48, 4, 9), waves(200, 48, 4, 10)
    act = nn.Identity if is_faulty else nn.ReLU
    m = nn.Sequential(nn.Flatten(1), nn.Unflatten(1, (1, 48)), nn.Conv1d(1, 16, 7), act(), nn.Conv1d(16, 16, 5, dilation=2), act(),
                      nn.Conv1d(16, 16, 3, dilation=2), act(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 4))
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 5e-3), accuracy(tx, ty))


@fault("deep stack of sigmoid convolutions", rules=["vanishing-gradient"], fails=True, steps=250)
def sqs_sigmoid_tcn(is_faulty):
    (x, y), (tx, ty) = waves(640, 32, 4, 11), waves(200, 32, 4, 12)
    act = nn.Sigmoid if is_faulty else nn.ReLU
    parts = [nn.Flatten(1), nn.Unflatten(1, (1, 32))]
    for i in range(7):
        parts += [nn.Conv1d(1 if i == 0 else 16, 16, 5, padding=2), act()]
    m = nn.Sequential(*parts, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 4))
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 3e-3), accuracy(tx, ty))


class DiagSSM(nn.Module):
    def __init__(self, sign, n=16):
        super().__init__()
        self.log_rate = nn.Parameter(torch.linspace(-3, 0, n))
        self.B, self.C = nn.Linear(1, n), nn.Linear(n, 4)
        self.mix = nn.Linear(n, 24)
        self.out = nn.Linear(24, 4)
        self.sign = sign

    def forward(self, u):
        a = torch.exp(self.sign * self.log_rate.exp())
        h = u.new_zeros(len(u), len(a))
        out = []
        for t in range(u.shape[1]):
            h = a * h + self.B(u[:, t])
            out.append(self.mix(h).relu())
        return self.out(torch.stack(out).mean(0))


@fault("the state grows: exp(+rate) for exp(-rate)", rules=["exploding-gradient", "activation-drift", "diverging", "non-finite"], fails=True, steps=300)
def sqs_state_space(is_faulty):
    (x, y), (tx, ty) = waves(640, 40, 4, 13, 0.1), waves(200, 40, 4, 14, 0.1)
    m = DiagSSM(1.0 if is_faulty else -1.0)
    del m.C
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 1e-2), accuracy(tx, ty))


@fault("reduction='sum' at a rate that was meant for a mean", rules=["summed-loss", "learning-rate-too-high", "diverging"], fails=True, steps=300)
def sqs_summed_tags(is_faulty):
    def data(n, seed):
        x = torch.randint(0, 30, (n, 12), generator=gen(seed))
        t = torch.randint(0, 6, (30,), generator=gen(57))
        return x, t[x]
    (x, y), (tx, ty) = data(600, 1), data(200, 2)
    m = TagNet()
    crit = nn.CrossEntropyLoss(reduction="sum" if is_faulty else "mean")
    return Program(m, lambda o, t: crit(o.flatten(0, 1), t.flatten()), loader(x, y), torch.optim.SGD(m.parameters(), 0.2, momentum=0.9), accuracy(tx, ty))


@fault("Adam with an ε of 1", rules=["optimizer-setting", "learning-rate-too-low"], fails=True, steps=250)
def sqs_adam_eps(is_faulty):
    (x, y), (tx, ty) = ecg(600, 24, 5), ecg(200, 24, 6)
    m = Gestures3()
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), 3e-3, eps=1.0 if is_faulty else 1e-8), accuracy(tx, ty))


class Gestures3(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(1, 12)
        self.gru = nn.GRU(12, 20, batch_first=True)
        self.fc = nn.Linear(20, 3)

    def forward(self, x):
        return self.fc(self.gru(self.proj(x).tanh())[0].mean(1))
