import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader
from corpora import G, acc, chain, loader, padded, r2, tones, waves
from faults_a import CharGRU, TinyGPT
from faults_b import Forecaster
from program import Program, sound


def flat(o, y):
    return F.cross_entropy(o.flatten(0, 1), y.flatten())


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(21, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 24, batch_first=True)
        self.fc = nn.Linear(24, 2)

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.emb(ids), lengths, batch_first=True, enforce_sorted=False)
        return self.fc(self.lstm(packed)[1][0][-1])


@sound("ordinary: a packed LSTM reads sentiment", steps=150, least=0.85)
def packed_sentiment():
    x, y, n = padded(800)
    vx, vy, vn = padded(300, seed=1)
    m = Packed()
    return Program(m, None, loader(x, n, y), torch.optim.Adam(m.parameters(), lr=5e-3), lambda m: acc(m(vx, vn), vy),
                   step=lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2]))


@sound("ordinary: a GRU language model", steps=150, least=0.85)
def gru_language_model():
    x, v = chain(512, 17, seed=20), chain(200, 17, seed=21)
    m = CharGRU()
    return Program(m, flat, loader(x[:, :-1], x[:, 1:]), torch.optim.Adam(m.parameters(), lr=5e-3), lambda m: acc(m(v[:, :-1]), v[:, 1:]))


@sound("ordinary: a small GPT, half trained", trained=80, steps=200, least=0.85)
def gpt_half_trained():
    x, v = chain(512, 17, seed=22), chain(200, 17, seed=23)
    m = TinyGPT()
    return Program(m, flat, loader(x[:, :-1], x[:, 1:]), torch.optim.AdamW(m.parameters(), lr=2e-3), lambda m: acc(m(v[:, :-1]), v[:, 1:]))


@sound("ordinary: convolutions and BatchNorm on sound", steps=150, least=0.85)
def tone_classifier():
    (x, y), (vx, vy) = tones(800), tones(200, seed=1)
    m = nn.Sequential(nn.Conv1d(1, 16, 9, stride=2, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 16, 5, bias=False), nn.BatchNorm1d(16), nn.ReLU(),
                      nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 4))
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), lr=3e-3), lambda m: acc(m(vx), vy))


@sound("ordinary: a GRU forecasts the next value", steps=200, least=0.85)
def wave_forecast():
    (x, y), (vx, vy) = waves(600, 16), waves(200, 16, seed=1)
    m = Forecaster()
    return Program(m, nn.SmoothL1Loss(), loader(x, y[:, None]), torch.optim.Adam(m.parameters(), lr=1e-2), lambda m: max(0.0, r2(m(vx), vy)))


@sound("a bag of words needs no order", steps=150, least=0.85)
def bag_of_words():
    x, y, _ = padded(800)
    vx, vy, _ = padded(300, seed=1)
    m = nn.Sequential(nn.EmbeddingBag(21, 16, padding_idx=0), nn.Linear(16, 2))
    return Program(m, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(m.parameters(), lr=1e-2), lambda m: acc(m(vx), vy))


class Both(nn.Module):
    def __init__(self, tags=5):
        super().__init__()
        self.emb = nn.Embedding(15, 16)
        self.rnn = nn.GRU(16, 16, batch_first=True, bidirectional=True)
        self.out = nn.Linear(32, tags)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


@sound("a tagger whose tags depend on the following word sees the future", steps=250, least=0.85)
def tagger_looks_ahead():
    def make(n, s):
        x = torch.randint(0, 15, (n, 9), generator=G(s))
        nxt = torch.cat([x[:, 1:], x[:, :1] * 0], 1)
        return x, (x % 2) * 2 + (nxt > 7)
    x, y = make(800, 0)
    vx, vy = make(200, 1)
    m = Both()
    return Program(m, lambda o, y: F.cross_entropy(o.mT, y), loader(x, y), torch.optim.Adam(m.parameters(), lr=1e-2), lambda m: acc(m(vx), vy))


@sound("a masked language model: no causal mask, labels are the ids themselves, -100 elsewhere", steps=300, least=0.8)
def masked_words():
    def make(n, s):
        x = chain(n, 12, seed=s)
        hide = torch.rand(n, 12, generator=G(s + 50)) < 0.2
        return x.masked_fill(hide, 12), x.masked_fill(~hide, -100)
    x, y = make(1200, 30)
    vx, vy = make(300, 31)
    m = Both(13)
    at = vy >= 0
    return Program(m, lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten(), ignore_index=-100), loader(x, y, bs=48), torch.optim.AdamW(m.parameters(), lr=1e-2),
                   lambda m: acc(m(vx)[at], vy[at]))


@sound("output and embedding share a weight on purpose", steps=200, least=0.85)
def tied_embeddings():
    x, v = chain(512, 17, seed=24), chain(200, 17, seed=25)
    m = CharGRU()
    m.head.weight = m.embed.weight
    nn.init.normal_(m.embed.weight, std=0.3)
    return Program(m, flat, loader(x[:, :-1], x[:, 1:]), torch.optim.Adam(m.parameters(), lr=5e-3), lambda m: acc(m(v[:, :-1]), v[:, 1:]))


@sound("time comes first, from a collate function, and the LSTM is told nothing", steps=150, least=0.85)
def time_first():
    x, y, lens = padded(640)
    vx, vy, vl = padded(300, seed=1)
    data = [(x[i, : lens[i]], y[i]) for i in range(len(x))]

    def collate(rows):
        return (pad_sequence([r[0] for r in rows]), torch.tensor([len(r[0]) for r in rows])), torch.stack([r[1] for r in rows])

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(21, 16)
            self.lstm = nn.LSTM(16, 24)
            self.fc = nn.Linear(24, 2)

        def forward(self, xl):
            ids, n = xl
            out, _ = self.lstm(self.emb(ids))
            return self.fc(out[n - 1, torch.arange(ids.shape[1])])
    m = Net()
    return Program(m, nn.CrossEntropyLoss(), DataLoader(data, 32, shuffle=True, collate_fn=collate, generator=G(4)), torch.optim.Adam(m.parameters(), lr=5e-3),
                   lambda m: acc(m((vx.T, vl)), vy))


@sound("the hidden state is carried on, detached, over batches in order", steps=160, least=0.85)
def state_carried_on():
    text = chain(16, 16 * 40 + 1, seed=26)
    v = chain(200, 17, seed=27)
    m = CharGRU()
    state = {"h": None}
    pieces = [(text[:, i : i + 16], text[:, i + 1 : i + 17]) for i in range(0, 640, 16)]

    def step(m, b):
        h = state["h"]
        o, h = m.rnn(m.embed(b[0]), h)
        state["h"] = h.detach()
        return flat(m.head(o), b[1])
    return Program(m, None, pieces, torch.optim.Adam(m.parameters(), lr=5e-3), lambda m: acc(m(v[:, :-1]), v[:, 1:]), step=step)
