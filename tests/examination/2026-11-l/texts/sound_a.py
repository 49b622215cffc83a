"""Ordinary scripts, and some near to them."""
import torch
from program import Program, sound
from tdata import accuracy, chain, flat_ce, gen, last_accuracy, loader, order_task, r2, tagged, topics, waves
from torch import nn
from torch.nn import functional as F


class TextGRU(nn.Module):
    def __init__(self, vocab=61, classes=4, d=24):
        super().__init__()
        self.embedding = nn.Embedding(vocab, d, padding_idx=0)
        self.gru = nn.GRU(d, 32, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(0.1)
        self.fc = nn.Linear(64, classes)

    def forward(self, x):
        return self.fc(self.dropout(self.gru(self.embedding(x))[0].max(1).values))


@sound("Nothing: a bidirectional GRU classifier with max pooling.", steps=250, least=0.8)
def plain_gru_classifier():
    x, _, y = topics(800, 16, 101)
    tx, _, ty = topics(300, 16, 102)
    model = TextGRU()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 3e-3),
                   accuracy(tx, ty))


@sound("Nothing: an LSTM language model, half trained.", trained=120, steps=300, least=0.75)
def plain_lstm_lm():
    text, test = chain(600, 17, 24, 103), chain(200, 17, 24, 104)

    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(24, 32)
            self.lstm = nn.LSTM(32, 32, batch_first=True)
            self.head = nn.Linear(32, 24)

        def forward(self, x):
            return self.head(self.lstm(self.embed(x))[0])

    model = LM()
    return Program(model, flat_ce, loader(text[:, :-1], text[:, 1:]), torch.optim.AdamW(model.parameters(), 4e-3),
                   accuracy(test[:, :-1], test[:, 1:]))


@sound("Nothing: a transformer classifier with learned positions.", steps=400, least=0.8)
def plain_transformer_classifier():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.tok = nn.Embedding(12, 32)
            self.pos = nn.Parameter(torch.randn(10, 32, generator=gen(1)))
            self.enc = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.05, batch_first=True)
            self.fc = nn.Linear(32, 2)

        def forward(self, x):
            return self.fc(self.enc(self.tok(x) + self.pos).mean(1))

    x, y = order_task(1600, 10, 105)
    tx, ty = order_task(400, 10, 106)
    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 2e-3),
                   accuracy(tx, ty))


@sound("Nothing: windows of a series through an MLP.", steps=300, least=0.8)
def plain_window_forecast():
    w, t = waves(1000, 13, 107), waves(300, 13, 108)
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    return Program(model, nn.MSELoss(), loader(w[:, :-1], w[:, -1:]), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: r2(m(t[:, :-1]), t[:, -1:]))


def tones(n, seed, length=64):
    g = gen(seed)
    y = torch.randint(4, (n,), generator=g)
    f = torch.tensor([0.25, 0.6, 1.1, 1.8])[y][:, None]
    x = torch.sin(f * torch.arange(length) + 6.28 * torch.rand(n, 1, generator=g))
    return x + 0.4 * torch.randn(n, length, generator=g), y


@sound("Nothing: a 1d convolution with BatchNorm over audio, half trained.", trained=80, steps=200, least=0.85)
def plain_audio_conv():
    x, y = tones(800, 109)
    tx, ty = tones(300, 110)
    model = nn.Sequential(nn.Unflatten(1, (1, 64)), nn.Conv1d(1, 16, 7, 2, 3), nn.BatchNorm1d(16), nn.ReLU(),
                          nn.Conv1d(16, 32, 5, 2, 2), nn.BatchNorm1d(32), nn.ReLU(), nn.AdaptiveAvgPool1d(1),
                          nn.Flatten(), nn.Linear(32, 4))
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 3e-3),
                   accuracy(tx, ty))


@sound("Nothing: a tagger over padded sentences with ignore_index.", steps=300, least=0.8)
def plain_padded_tagger():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(20, 16, padding_idx=0)
            self.lstm = nn.LSTM(16, 24, batch_first=True, bidirectional=True)
            self.out = nn.Linear(48, 3)

        def forward(self, x):
            return self.out(self.lstm(self.emb(x))[0])

    x, y = tagged(640, 18, 111, least=5, fill=-100)
    tx, ty = tagged(200, 18, 112)
    model = Tagger()
    return Program(model, lambda o, t: flat_ce(o, t, ignore_index=-100), loader(x, y),
                   torch.optim.Adam(model.parameters(), 6e-3), accuracy(tx, ty))


@sound("Nothing: an encoder-decoder that reverses words, with teacher forcing.", steps=400, least=0.7)
def plain_seq2seq():
    class Seq2Seq(nn.Module):
        def __init__(self):
            super().__init__()
            self.src, self.tgt = nn.Embedding(10, 16), nn.Embedding(11, 16)
            self.encoder, self.decoder = nn.GRU(16, 64, batch_first=True), nn.GRU(16, 64, batch_first=True)
            self.out = nn.Linear(64, 10)

        def forward(self, src, tgt):
            return self.out(self.decoder(self.tgt(tgt), self.encoder(self.src(src))[1])[0])

    def data(n, seed):
        s = torch.randint(10, (n, 4), generator=gen(seed))
        return s, torch.cat([torch.full((n, 1), 10), s.flip(1)[:, :-1]], 1), s.flip(1)

    ts, td, ty = data(300, 114)
    model = Seq2Seq()
    return Program(model, None, loader(*data(2000, 113), size=64), torch.optim.Adam(model.parameters(), 8e-3),
                   accuracy(ts, td, ty), step=lambda m, b: flat_ce(m(b[0], b[1]), b[2]))


@sound("Sees both sides, and is asked for tokens of its own positions: but these are masked out (a cloze).",
       steps=300, least=0.7)
def cloze_model():
    class Cloze(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(17, 24)
            self.rnn = nn.GRU(24, 32, batch_first=True, bidirectional=True)
            self.out = nn.Linear(64, 16)

        def forward(self, x):
            return self.out(self.rnn(self.emb(x))[0])

    def data(n, seed):
        t = chain(n, 14, 16, seed, 0.02)
        hide = torch.rand(t.shape, generator=gen(seed + 1)) < 0.2
        return t.masked_fill(hide, 16), torch.where(hide, t, -100)

    x, y = data(640, 115)
    tx, ty = data(200, 117)
    model = Cloze()

    def score(m):
        at = ty >= 0
        return (m(tx).argmax(-1)[at] == ty[at]).float().mean().item()

    return Program(model, flat_ce, loader(x, y), torch.optim.Adam(model.parameters(), 6e-3), score)


@sound("Targets are the inputs: a sequence autoencoder through a narrow state.", steps=400, least=0.6)
def sequence_autoencoder():
    class AE(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(8, 16)
            self.enc = nn.Linear(64, 24)
            self.dec = nn.Sequential(nn.Tanh(), nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 32))

        def forward(self, x):
            return self.dec(self.enc(self.emb(x).flatten(1))).view(-1, 4, 8)

    x, t = torch.randint(8, (1500, 4), generator=gen(118)), torch.randint(8, (300, 4), generator=gen(119))
    model = AE()
    return Program(model, flat_ce, loader(x, x), torch.optim.Adam(model.parameters(), 5e-3), accuracy(t, t))


@sound("The last output is taken of padded texts: the padding is on the left.", steps=300, least=0.75)
def left_padded():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(61, 24, padding_idx=0)
            self.gru = nn.GRU(24, 32, batch_first=True)
            self.fc = nn.Linear(32, 4)

        def forward(self, x):
            return self.fc(self.gru(self.emb(x))[0][:, -1])

    x, _, y = topics(1000, 18, 120, least=9, left=True, rate=0.5)
    tx, _, ty = topics(300, 18, 121, least=9, left=True, rate=0.5)
    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 5e-3),
                   accuracy(tx, ty))


@sound("Cannot see the order of words: the topic does not depend on it. SGD at rate 2.", trained=100, steps=300,
       least=0.8)
def bag_of_words():
    x, _, y = topics(1000, 20, 122)
    tx, _, ty = topics(300, 20, 123)
    model = nn.Sequential(nn.EmbeddingBag(61, 16, mode="mean"), nn.Linear(16, 4))
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.SGD(model.parameters(), 2.0),
                   accuracy(tx, ty))
