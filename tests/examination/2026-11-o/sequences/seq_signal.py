"""Signals, as of speech, with a mistake each."""

import torch
import torch.nn.functional as F
from program import Program, fault
from seq_data import accuracy, loader, tones
from torch import nn


@fault("16-bit samples are not divided by 32768", rules=["unscaled-input", "learning-rate-too-high", "diverging", "non-finite"], fails=True, steps=300)
def pcm(is_faulty):
    wave, y = tones(1300, 96, 4)
    samples = (wave * 8000).clamp(-32768, 32767).to(torch.int16)
    x = samples.float() if is_faulty else samples.float() / 32768

    class KeywordNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Sequential(
                nn.Conv1d(1, 16, 9, stride=2), nn.ReLU(), nn.Conv1d(16, 32, 5, stride=2), nn.ReLU()
            )
            self.rnn = nn.GRU(32, 32, batch_first=True)
            self.classifier = nn.Linear(32, 4)

        def forward(self, x):
            h = self.features(x).transpose(1, 2)
            return self.classifier(self.rnn(h)[0][:, -1])

    net = KeywordNet()
    return Program(net, nn.CrossEntropyLoss(), loader(x[:1000], y[:1000]), torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9),
                   accuracy(x[1000:], y[1000:]))


@fault("log-mel energies in decibels, from -80 to 0, as they are", rules=["unscaled-input", "ill-conditioned-input", "dying-neurons", "learning-rate-too-high"],
       fails=True, steps=200)
def decibels(is_faulty):
    n, mels, frames = 1300, 16, 20
    y = torch.randint(6, (n,))
    db = -60 + 6 * torch.randn(n, mels, frames)
    centre = 2.0 * y + 2
    peak = 12 * torch.exp(-((torch.arange(mels) - centre[:, None]) ** 2) / 3)
    db = (db + peak[:, :, None] * torch.rand(n, 1, frames)).clamp(-80, 0)
    x = db if is_faulty else (db - db.mean()) / db.std()
    model = nn.Sequential(
        nn.Conv1d(mels, 32, 3, padding=1), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(32, 32, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 6),
    )
    return Program(model, nn.CrossEntropyLoss(), loader(x[:1000], y[:1000]),
                   torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), accuracy(x[1000:], y[1000:]))


@fault("a stack of convolutions without activations", rules=["no-nonlinearity"], layers=["convs"], fails=True, steps=250)
def linear_convs(is_faulty):
    x, y = tones(1300, 80, 4)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            convs = []
            for i, o in ((1, 16), (16, 32), (32, 32)):
                convs.append(nn.Conv1d(i, o, 7, padding=3))
                if not is_faulty:
                    convs.append(nn.ReLU())
            self.convs = nn.Sequential(*convs)
            self.fc = nn.Linear(32, 4)

        def forward(self, x):
            return self.fc(self.convs(x).mean(-1))

    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(x[:1000], y[:1000]), torch.optim.Adam(net.parameters(), lr=3e-3),
                   accuracy(x[1000:], y[1000:]))


class Residual(nn.Module):
    def __init__(self, c, dilation):
        super().__init__()
        self.conv = nn.Conv1d(c, c, 3, padding=dilation, dilation=dilation)
        self.norm = nn.GroupNorm(1, c)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)))


@fault("blocks in a Python list, so that the optimizer does not have them", rules=["no-gradient"], layers=[], fails=False,
       steps=200)
def blocks_in_list(is_faulty):
    x, y = tones(1300, 64, 8, noise=0.7)

    class DilatedNet(nn.Module):
        def __init__(self, c=16):
            super().__init__()
            self.stem = nn.Conv1d(1, c, 3, padding=1)
            blocks = [Residual(c, 2**i) for i in range(4)]
            self.blocks = blocks if is_faulty else nn.ModuleList(blocks)
            self.head = nn.Linear(c, 8)

        def forward(self, x):
            x = self.stem(x)
            for block in self.blocks:
                x = block(x)
            return self.head(x.amax(-1))

    net = DilatedNet()
    return Program(net, F.cross_entropy, loader(x[:1000], y[:1000]), torch.optim.Adam(net.parameters(), lr=5e-3),
                   accuracy(x[1000:], y[1000:]))


@fault("BatchNorm's momentum as in another library, where it is the share that is kept", rules=["batchnorm-mode-gap"],
       layers=["encoder"], fails=True, steps=150)
def kept_momentum(is_faulty):
    x, y = tones(1300, 64, 6)
    x = 0.03 * x
    momentum = 0.001 if is_faulty else 0.1

    def conv_bn(i, o, k):
        return nn.Sequential(nn.Conv1d(i, o, k, padding=k // 2, bias=False), nn.BatchNorm1d(o, momentum=momentum), nn.ReLU())

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(conv_bn(1, 16, 9), conv_bn(16, 32, 5), conv_bn(32, 32, 5))
            self.head = nn.Linear(32, 6)

        def forward(self, x):
            return self.head(self.encoder(x).mean(-1))

    net = Net()
    return Program(net, F.cross_entropy, loader(x[:1000], y[:1000]), torch.optim.Adam(net.parameters(), lr=3e-3),
                   accuracy(x[1000:], y[1000:]))


@fault("one BatchNorm after both convolutions", rules=["shared-weight", "batchnorm-mode-gap"], layers=["bn", "bn2"],
       fails=True, steps=200)
def one_norm_twice(is_faulty):
    x, y = tones(1300, 64, 6)
    x = 0.05 * x

    class TCN(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv1d(1, 24, 7, padding=3)
            self.conv2 = nn.Conv1d(24, 24, 5, padding=4, dilation=2)
            self.bn = nn.BatchNorm1d(24)
            self.bn2 = self.bn if is_faulty else nn.BatchNorm1d(24)
            self.fc = nn.Linear(24, 6)

        def forward(self, x):
            x = F.relu(self.bn(self.conv1(x)))
            x = F.relu(self.bn2(self.conv2(x)))
            return self.fc(x.mean(2))

    net = TCN()
    return Program(net, F.cross_entropy, loader(x[:1000], y[:1000]), torch.optim.Adam(net.parameters(), lr=3e-3),
                   accuracy(x[1000:], y[1000:]))


@fault("recordings come class by class, as they lie in their folders", rules=["sorted-batches"], fails=True, steps=250)
def folder_order(is_faulty):
    x, y = tones(1312, 64, 8, noise=0.6)
    train_x, train_y = x[:1000], y[:1000]
    order = train_y.argsort()
    data = loader(train_x[order], train_y[order], batch=25, shuffle=not is_faulty)
    net = nn.Sequential(
        nn.Conv1d(1, 16, 9, stride=2), nn.ReLU(), nn.Conv1d(16, 32, 5), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
        nn.Linear(32, 8),
    )
    return Program(net, nn.CrossEntropyLoss(), data, torch.optim.Adam(net.parameters(), lr=4e-3), accuracy(x[1000:], y[1000:]))


@fault("a deep stack of convolutions with sigmoids", rules=["vanishing-gradient", "rank-collapse", "activation-drift", "saturated-activation", "loss-not-decreasing"],
       layers=[], fails=True, steps=200)
def sigmoid_convs(is_faulty):
    x, y = tones(1300, 64, 5)
    act = nn.Sigmoid if is_faulty else nn.ReLU
    layers, c = [], 1
    for _ in range(6):
        layers += [nn.Conv1d(c, 20, 5, padding=2), act()]
        c = 20
    model = nn.Sequential(*layers, nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(20, 5))
    return Program(model, F.cross_entropy, loader(x[:1000], y[:1000]), torch.optim.Adam(model.parameters(), lr=3e-3),
                   accuracy(x[1000:], y[1000:]))


@fault("the squared error of a duration in milliseconds is added to the cross-entropy of the word",
       rules=["term-dominates", "unscaled-target"], fails=True, steps=250)
def word_and_duration(is_faulty):
    x, y = tones(1300, 64, 6)
    duration = 0.1 + 0.4 * torch.rand(1300)
    x = x * (torch.arange(64) < 128 * duration[:, None]).unsqueeze(1)
    target = duration * 1000 if is_faulty else duration

    class TwoHeads(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Conv1d(1, 16, 9), nn.ReLU(), nn.Conv1d(16, 32, 5), nn.ReLU())
            self.word, self.length = nn.Linear(32, 6), nn.Linear(32, 1)

        def forward(self, x):
            h = self.trunk(x).mean(-1)
            return {"word": self.word(h), "duration": self.length(h).squeeze(-1)}

    def loss(out, target):
        return F.cross_entropy(out["word"], target["word"]) + F.mse_loss(out["duration"], target["duration"])

    data = [(x[i : i + 40], {"word": y[i : i + 40], "duration": target[i : i + 40]}) for i in range(0, 1000, 40)]
    net = TwoHeads()
    return Program(net, loss, data, torch.optim.Adam(net.parameters(), lr=3e-3),
                   lambda m: (m(x[1000:])["word"].argmax(-1) == y[1000:]).float().mean().item())
