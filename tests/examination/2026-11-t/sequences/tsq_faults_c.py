import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from tsq_faults_b import RowLSTM
from tsq_kit import accuracy, digit_rows, g, loader, markov, r2, series, topics


@fault("Every weight starts at the same constant", rules=["symmetric-initialisation", "bad-initialisation"],
       fails=True, steps=400)
def tsq_constant_weights(bad):
    (x, y), (xt, yt) = digit_rows()
    model = RowLSTM()
    if bad:
        for p in model.parameters():
            nn.init.constant_(p, 0.05)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), lr=5e-3),
                   accuracy(xt, yt))


@fault("(batch, time, classes) is brought to (batch, classes, time) by view instead of transpose",
       rules=["output-loss-mismatch"], fails=False, steps=300)
def tsq_view_logits(bad):
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(50, 24)
            self.rnn = nn.GRU(24, 24, batch_first=True, bidirectional=True)
            self.tags = nn.Linear(48, 6)

        def forward(self, ids):
            return self.tags(self.rnn(self.words(ids))[0])

    tag_of = torch.randint(6, (50,), generator=g(8))

    def data(n, seed):
        ids = torch.randint(50, (n, 11), generator=g(seed))
        return ids, tag_of[ids]

    def loss(logits, tags):
        b, t, c = logits.shape
        return F.cross_entropy(logits.view(b, c, t) if bad else logits.transpose(1, 2), tags)

    model = Tagger()
    return Program(model, loss, loader(*data(1200, 1)), torch.optim.Adam(model.parameters(), lr=5e-3),
                   accuracy(*data(300, 2)))


@fault("SGD at 1e-4 for an LSTM", rules=["learning-rate-too-low"], fails=True, steps=400)
def tsq_sgd_slow(bad):
    (x, y), (xt, yt) = digit_rows()
    model = RowLSTM()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y),
                   torch.optim.SGD(model.parameters(), lr=1e-4 if bad else 0.1, momentum=0.9), accuracy(xt, yt))


@fault("Pixels from 0 to 255 into a tanh recurrence", rules=["unscaled-input", "saturated-activation"],
       fails=False, steps=400)
def tsq_raw_pixels(bad):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.RNN(8, 48, batch_first=True)
            self.fc = nn.Linear(48, 10)

        def forward(self, x):
            return self.fc(self.rnn(x)[0][:, -1])

    (x, y), (xt, yt) = digit_rows()
    factor = 255.0 if bad else 1.0
    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(x * factor, y), torch.optim.Adam(model.parameters(), lr=3e-3),
                   accuracy(xt * factor, yt))


@fault("SGD with a momentum of 0.999", rules=["optimizer-setting", "learning-rate-too-high"], fails=False, steps=300)
def tsq_heavy_momentum(bad):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(1, 24, batch_first=True)
            self.head = nn.Linear(24, 1)

        def forward(self, x):
            return self.head(self.gru(x)[0][:, -1])

    model = Net()
    return Program(model, nn.HuberLoss(), loader(*series(1200, 20, 1)),
                   torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.999 if bad else 0.9), r2(*series(300, 20, 2)))


@fault("A ReLU after the last layer of a forecaster of returns, half of which are negative",
       rules=["output-loss-mismatch", "dying-neurons", "loss-not-decreasing"], layers=["head"], fails=True, steps=300)
def tsq_relu_last(bad):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Sequential(nn.Conv1d(1, 16, 5), nn.ReLU(), nn.Conv1d(16, 16, 5), nn.ReLU(), nn.Flatten())
            self.head = nn.Sequential(nn.Linear(16 * 12, 1), *([nn.ReLU()] if bad else []))

        def forward(self, x):
            return self.head(self.conv(x.transpose(1, 2)))

    model = Net()
    return Program(model, nn.L1Loss(), loader(*series(1200, 20, 1)), torch.optim.Adam(model.parameters(), lr=3e-3),
                   r2(*series(300, 20, 2)))
