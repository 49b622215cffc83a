"""Series, sounds, memory, documents."""
import torch
from torch import nn
from texts_data import accuracy, first_matters, loader, r2, tones, waves, reviews

from program import Program, fault


class Remember(nn.Module):
    def __init__(self, cell, vocab=8, hidden=32, detach=False):
        super().__init__()
        self.detach = detach
        self.embed = nn.Embedding(vocab, 16)
        self.rnn = cell(16, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 4)

    def forward(self, x):
        h = self.rnn(self.embed(x))[0][:, -1]
        return self.head(h.detach() if self.detach else h)


@fault("the state is detached before the head", rules=["no-gradient"], layers=["embed", "rnn"], fails=True, steps=300)
def encoder_detached(is_faulty):
    x, y = first_matters(1000, 10, 8, 41)
    model = Remember(nn.GRU, detach=is_faulty)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 1e-2), accuracy(*first_matters(400, 10, 8, 42)))


class TextEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.classifier = nn.Linear(32, 2)

    def forward(self, ids):
        return self.classifier(self.encoder(self.embed(ids)).mean(1))


@fault("the warm-up of a long run is kept in a short one", rules=["learning-rate-too-low"], fails=True, steps=200)
def warmup_of_another_run(is_faulty):
    x, y = reviews(1200, 12, 30, 45)
    model = TextEncoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warmup = 200_000 if is_faulty else 20
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / warmup))
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), optimizer, accuracy(*reviews(400, 12, 30, 46)), scheduler=schedule)


class Forecaster(nn.Module):
    def __init__(self, norm=None):
        super().__init__()
        self.norm = norm if norm is not None else nn.Identity()
        self.gru = nn.GRU(1, 24, batch_first=True)
        self.head = nn.Linear(24, 1)

    def forward(self, x):
        return self.head(self.gru(self.norm(x))[0][:, -1])


@fault("a series of prices is forecast in its raw units", rules=["unscaled-target", "unscaled-input", "saturated-activation"], fails=True, steps=250)
def prices_raw(is_faulty):
    def data(n, seed):
        x, y = waves(n, 20, seed)
        x, y = 5000 + 800 * x, 5000 + 800 * y
        return (x, y) if is_faulty else ((x - 5000) / 600, (y - 5000) / 600)

    model = Forecaster()
    return Program(model, nn.MSELoss(), loader(*data(1000, 47)), torch.optim.Adam(model.parameters(), 5e-3), r2(*data(300, 48)))


@fault("LayerNorm over the only feature makes every value zero", rules=["rank-collapse", "no-gradient", "loss-not-decreasing"],
       layers=["norm"], fails=True, steps=250)
def layernorm_of_one(is_faulty):
    model = Forecaster(nn.LayerNorm(1) if is_faulty else nn.LayerNorm([20, 1]))
    return Program(model, nn.MSELoss(), loader(*waves(1000, 20, 49)), torch.optim.Adam(model.parameters(), 5e-3), r2(*waves(300, 20, 50)))


class SoundNet(nn.Module):
    def __init__(self, act=nn.ReLU, momentum=0.1):
        super().__init__()
        self.conv1 = nn.Conv1d(1, 12, 9, stride=2)
        self.bn1 = nn.BatchNorm1d(12, momentum=momentum)
        self.act1 = act()
        self.conv2 = nn.Conv1d(12, 16, 9, stride=2)
        self.bn2 = nn.BatchNorm1d(16, momentum=momentum)
        self.act2 = act()
        self.fc = nn.Linear(16, 4)

    def forward(self, x):
        x = self.act1(self.bn1(self.conv1(x)))
        return self.fc(self.act2(self.bn2(self.conv2(x))).mean(-1))


@fault("running statistics move by a ten-thousandth a step", rules=["batchnorm-mode-gap"], layers=["bn1", "bn2"], fails=False, steps=200)
def tones_slow_statistics(is_faulty):
    x, y = tones(800, 96, 53)
    hx, hy = tones(300, 96, 54)
    model = SoundNet(momentum=1e-4 if is_faulty else 0.1)
    return Program(model, nn.CrossEntropyLoss(), loader(80 * x + 60, y), torch.optim.Adam(model.parameters(), 3e-3), accuracy(80 * hx + 60, hy))


class BagClassifier(nn.Module):
    def __init__(self, vocab=30, width=24):
        super().__init__()
        self.embed = nn.Embedding(vocab, width, padding_idx=0)
        self.hidden = nn.Linear(width, 32)
        self.out = nn.Linear(32, 2)

    def forward(self, ids):
        n = (ids != 0).sum(1, keepdim=True).clamp(min=1)
        return self.out(torch.relu(self.hidden(self.embed(ids).sum(1) / n)))


@fault("truncation keeps the instruction that all prompts begin with, and cuts off the text", rules=["constant-feature", "labels-unrelated"], fails=True, steps=150)
def prompt_truncated(is_faulty):
    x, y = reviews(1000, 10, 30, 35)
    hx, hy = reviews(400, 10, 30, 36)
    instruction = torch.tensor([30, 31, 32, 33, 34, 35])

    def encode(ids, max_length=6 if is_faulty else 16):
        return torch.cat([instruction.expand(len(ids), -1), ids], 1)[:, :max_length]

    model = BagClassifier(36)
    return Program(model, nn.CrossEntropyLoss(), loader(encode(x), y), torch.optim.Adam(model.parameters(), 1e-2), accuracy(encode(hx), hy))


class ScoredPool(nn.Module):
    def __init__(self, fill):
        super().__init__()
        self.fill = fill
        self.emb = nn.Embedding(30, 24)
        self.score = nn.Linear(24, 1)
        self.fc = nn.Linear(24, 2)

    def forward(self, ids):
        h = self.emb(ids)
        s = self.score(h).squeeze(-1).masked_fill(ids == 0, self.fill)
        return self.fc((s.softmax(1).unsqueeze(-1) * h).sum(1))


@fault("some documents are empty, and their scores all filled with minus infinity", rules=["non-finite"], fails=True, steps=200)
def empty_documents(is_faulty):
    x, y = reviews(1000, 12, 30, 37, shortest=3)
    x[::25] = 0
    model = ScoredPool(float("-inf") if is_faulty else -1e4)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 1e-2),
                   accuracy(*reviews(400, 12, 30, 38, shortest=3)))
