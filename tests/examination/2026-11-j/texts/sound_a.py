"""Ordinary scripts."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from program import Program, sound
from texts_data import acc, chain, chain2, gen, r2, reviews, tagged, waves


class LSTMClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 24)
        self.lstm = nn.LSTM(24, 32, batch_first=True)
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(32, 2)

    def forward(self, x):
        _, (h, _) = self.lstm(self.embedding(x))
        return self.fc(self.dropout(h[-1]))


@sound("an ordinary LSTM classifier of texts of one length", steps=200, least=0.75)
def plain_lstm_classifier():
    x, _, y = reviews(11, 1024, 10, least=10)
    hx, _, hy = reviews(12, 512, 10, least=10)
    model = LSTMClassifier()
    return Program(model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x, y), 32, shuffle=True, generator=gen(1)),
                   torch.optim.Adam(model.parameters(), 3e-3), lambda m: acc(m(hx), hy))


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.1)
        self.encoder = nn.Embedding(12, 32)
        self.rnn = nn.GRU(32, 32, num_layers=2, dropout=0.1, batch_first=True)
        self.decoder = nn.Linear(32, 12)

    def forward(self, x):
        return self.decoder(self.drop(self.rnn(self.drop(self.encoder(x)))[0]))


@sound("an ordinary language model of two GRU layers", trained=60, steps=250, least=0.75)
def plain_gru_lm():
    data, held = chain(11, 1024, 13), chain(12, 256, 13)
    model = RNNModel()
    return Program(model, lambda o, y: F.cross_entropy(o.reshape(-1, 12), y.reshape(-1)),
                   DataLoader(TensorDataset(data[:, :-1], data[:, 1:]), 32, shuffle=True, generator=gen(1)),
                   torch.optim.AdamW(model.parameters(), 5e-3, weight_decay=0.01),
                   lambda m: acc(m(held[:, :-1]), held[:, 1:]))


class TransformerTagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(13, 32, padding_idx=0)
        self.pos = nn.Embedding(13, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(32, 4)

    def forward(self, x):
        h = self.tok(x) + self.pos(torch.arange(x.shape[1]))
        return self.out(self.encoder(h, src_key_padding_mask=x == 0))


@sound("a transformer tagger; every text begins with the same token, which has no label", steps=300, least=0.75)
def plain_transformer_tagger():
    def make(seed, n):
        x, y, _ = tagged(seed, n, 10)
        return F.pad(x, (1, 0), value=12), F.pad(y, (1, 0), value=-100)

    (x, y), (hx, hy) = make(11, 1024), make(12, 256)
    model = TransformerTagger()
    return Program(model, lambda o, t: F.cross_entropy(o.transpose(1, 2), t, ignore_index=-100),
                   DataLoader(TensorDataset(x, y), 32, shuffle=True, generator=gen(1)),
                   torch.optim.Adam(model.parameters(), 2e-3), lambda m: acc(m(hx), hy))


def tones(seed, n, t=96):
    g = gen(seed)
    y = torch.randint(4, (n,), generator=g)
    f = 0.15 + 0.2 * y + 0.05 * torch.rand(n, generator=g)
    ph = 6.28 * torch.rand(n, generator=g)
    return (torch.sin(f[:, None] * torch.arange(t) + ph[:, None]) + 0.3 * torch.randn(n, t, generator=g))[:, None], y


@sound("an ordinary convolutional network on waveforms with BatchNorm", steps=120, least=0.85)
def plain_audio_cnn():
    (x, y), (hx, hy) = tones(11, 1024), tones(12, 512)
    model = nn.Sequential(
        nn.Conv1d(1, 16, 9, stride=2, bias=False), nn.BatchNorm1d(16), nn.ReLU(),
        nn.Conv1d(16, 32, 5, stride=2, bias=False), nn.BatchNorm1d(32), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 4))
    return Program(model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x, y), 32, shuffle=True, generator=gen(1)),
                   torch.optim.Adam(model.parameters(), 2e-3), lambda m: acc(m(hx), hy))


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 24, batch_first=True)
        self.linear = nn.Linear(24, 3)

    def forward(self, x):
        return self.linear(self.lstm(x)[0][:, -1])


@sound("an ordinary forecast of three steps", trained=40, steps=250, least=0.7)
def plain_forecast():
    s, h = waves(11, 1024, 16), waves(12, 256, 16)
    model = Forecast()
    return Program(model, nn.MSELoss(), DataLoader(TensorDataset(s[:, :13, None], s[:, 13:]), 32, shuffle=True, generator=gen(1)),
                   torch.optim.Adam(model.parameters(), 5e-3), lambda m: r2(m(h[:, :13, None]), h[:, 13:]))


@sound("a bag of words: the order does not matter here", steps=200, least=0.8)
def plain_bag():
    x, _, y = reviews(11, 1024, 12, least=12)
    hx, _, hy = reviews(12, 512, 12, least=12)
    model = nn.Sequential(nn.EmbeddingBag(30, 16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
    return Program(model, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x, y), 32, shuffle=True, generator=gen(1)),
                   torch.optim.SGD(model.parameters(), 0.5, momentum=0.9), lambda m: acc(m(hx), hy))


class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.src, self.tgt = nn.Embedding(9, 24), nn.Embedding(9, 24)
        self.encoder, self.decoder = nn.GRU(24, 48, batch_first=True), nn.GRU(24, 48, batch_first=True)
        self.out = nn.Linear(48, 9)

    def forward(self, src, tgt_in):
        _, h = self.encoder(self.src(src))
        return self.out(self.decoder(self.tgt(tgt_in), h)[0])


@sound("translation word by word, reversed; the decoder is fed the target shifted by one", steps=400, least=0.7)
def plain_teacher_forcing():
    table = torch.randperm(8, generator=gen(5)) + 1

    def make(seed, n):
        s = torch.randint(8, (n, 4), generator=gen(seed)) + 1
        return s, table[s - 1].flip(1)

    (s, t), (hs, ht) = make(11, 2048), make(12, 256)
    batches = [({"src": a, "tgt_in": F.pad(b[:, :-1], (1, 0))}, b) for a, b in zip(s.split(32), t.split(32))]
    model = Seq2Seq()

    def score(m):  # greedy decoding
        y = torch.zeros(len(hs), 1, dtype=torch.long)
        for _ in range(4):
            y = torch.cat([y, m(hs, y)[:, -1:].argmax(-1)], 1)
        return (y[:, 1:] == ht).float().mean().item()

    return Program(model, lambda o, y: F.cross_entropy(o.transpose(1, 2), y), batches,
                   torch.optim.Adam(model.parameters(), 5e-3), score)
