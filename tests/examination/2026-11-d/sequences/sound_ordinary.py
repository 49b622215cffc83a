"""Ordinary programs over sequences, nothing odd about them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn

from data import accuracy, loader, motifs, order, r2, ratings, tags, text, waves


@sound("Nothing: an LSTM that classifies texts.", steps=300, least=0.9)
def lstm_classifier():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(10, 24)
            self.lstm = nn.LSTM(24, 32, batch_first=True)
            self.dropout = nn.Dropout(0.2)
            self.fc = nn.Linear(32, 2)

        def forward(self, ids):
            _, (h, _) = self.lstm(self.embedding(ids))
            return self.fc(self.dropout(h[-1]))

    x, y = order()
    tx, ty = order(seed=1)
    net = Net()
    return Program(
        net, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(net.parameters(), lr=5e-3), accuracy(tx, ty)
    )


@sound("Nothing: a GRU that forecasts the next value.", steps=250, least=0.9)
def gru_forecaster():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(1, 32, batch_first=True)
            self.out = nn.Linear(32, 1)

        def forward(self, x):
            return self.out(self.gru(x)[0][:, -1])

    x, y = waves()
    tx, ty = waves(seed=2)
    net = Net()
    return Program(net, nn.MSELoss(), loader(x, y), torch.optim.Adam(net.parameters(), lr=5e-3), r2(tx, ty))


@sound("Nothing: a small causal transformer that predicts the next token.", steps=300, least=0.85)
def small_gpt():
    from language import TinyGPT, ce, next_token

    data = text()
    model = TinyGPT()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    return Program(model, ce, loader(data[:, :-1], data[:, 1:], batch=16), opt, next_token())


@sound("Nothing: a transformer classifier with a padding mask.", steps=500, least=0.9)
def masked_tagger():
    from attention import Padded

    x, y, _ = tags()
    tx, ty, _ = tags(seed=9)
    model = Padded(lambda ids: ids == 0)
    crit = nn.CrossEntropyLoss(ignore_index=0)
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    score = accuracy(tx, ty.masked_fill(ty == 0, -1))
    return Program(model, lambda o, t: crit(o.transpose(1, 2), t), loader(x, y), opt, score)


@sound("Nothing: a 1-d convolutional network on recordings.", steps=200, least=0.9)
def conv1d_recordings():
    x, y = motifs()
    tx, ty = motifs(seed=4)
    net = nn.Sequential(
        nn.Conv1d(3, 16, 5, padding=2), nn.BatchNorm1d(16), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(16, 32, 5, padding=2), nn.BatchNorm1d(32), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(32, 4),
    )  # fmt: skip
    return Program(net, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(net.parameters(), 2e-3), accuracy(tx, ty))


@sound("Nothing: matrix factorization with biases.", steps=500, least=0.85)
def matrix_factorization():
    from recommend import Factors

    ids, y, tids, ty = ratings()
    model = Factors()
    return Program(
        model, nn.MSELoss(), loader(ids, y, batch=64), torch.optim.Adam(model.parameters(), 1e-2), r2(tids, ty)
    )


@sound("Nothing: a bidirectional LSTM tags every token of packed sequences.", steps=200, least=0.9)
def packed_bilstm_tagger():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(16, 16, padding_idx=0)
            self.lstm = nn.LSTM(16, 20, batch_first=True, bidirectional=True)
            self.out = nn.Linear(40, 5)

        def forward(self, ids):
            lengths = (ids != 0).sum(1)
            packed = nn.utils.rnn.pack_padded_sequence(self.emb(ids), lengths, batch_first=True, enforce_sorted=False)
            h, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=ids.shape[1])
            return self.out(h)

    x, y, _ = tags(length=12, longest=12)
    tx, ty, _ = tags(length=12, longest=12, seed=9)
    y = y.masked_fill(y == 0, -100)
    net = Tagger()
    opt = torch.optim.Adam(net.parameters(), 1e-2)
    score = accuracy(tx, ty.masked_fill(ty == 0, -1))
    return Program(net, lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten()), loader(x, y, batch=16), opt, score)


@sound("Nothing: an encoder and a decoder with teacher forcing and a start token.", steps=400, least=0.9)
def teacher_forcing():
    from language import decoder_fed_its_answer

    return decoder_fed_its_answer(False)


@sound("Nothing: a causal convolutional forecaster, dilated, which predicts each next value.", steps=250, least=0.85)
def dilated_tcn():
    class TCN(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList([nn.Conv1d(1 if i == 0 else 16, 16, 2, dilation=2**i) for i in range(4)])
            self.out = nn.Conv1d(16, 1, 1)

        def forward(self, x):
            h = x.transpose(1, 2)
            for i, conv in enumerate(self.convs):
                h = F.elu(conv(F.pad(h, (2**i, 0))))
            return self.out(h).transpose(1, 2)

    x, _ = waves(length=33)
    tx, _ = waves(length=33, seed=2)

    def score(model):
        out, want = model(tx[:, :-1])[:, 15:], tx[:, 16:]
        return max(0.0, 1 - ((out - want).square().mean() / want.var()).item())

    net = TCN()
    return Program(net, nn.MSELoss(), loader(x[:, :-1], x[:, 1:]), torch.optim.Adam(net.parameters(), 3e-3), score)


@sound("Nothing: an MLP on embedded tokens with dropout and weight decay.", steps=250, least=0.9)
def embedded_mlp():
    x, y = order(n=2048)
    tx, ty = order(seed=1)
    net = nn.Sequential(
        nn.Embedding(10, 12), nn.Flatten(), nn.Linear(144, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2)
    )
    opt = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.05)
    return Program(net, nn.CrossEntropyLoss(), loader(x, y, batch=64), opt, accuracy(tx, ty))


@sound("Nothing: an attention layer that looks values up by key.", steps=600, least=0.9)
def key_value_lookup():
    from attention import Lookup, lookup_program

    return lookup_program(Lookup())


@sound("Nothing: inputs in a dict (ids and a mask), mean pooling over what is not masked.", steps=300, least=0.9)
def ids_and_mask():
    class Encoder(nn.Module):
        def __init__(self, d=24):
            super().__init__()
            self.word_embeddings = nn.Embedding(16, d)
            self.gru = nn.GRU(d, d, batch_first=True)
            self.classifier = nn.Linear(d, 2)

        def forward(self, input_ids, attention_mask):
            h, _ = self.gru(self.word_embeddings(input_ids))
            m = attention_mask.unsqueeze(-1)
            return self.classifier((h * m).sum(1) / m.sum(1))

    def collate(seed):
        x, _, lengths = tags(length=14, shortest=6, longest=14, seed=seed)
        y = ((x == 3).any(1)).long()
        return {"input_ids": x, "attention_mask": (x != 0).float()}, y

    full, y = collate(0)
    test, ty = collate(9)

    class Batches:
        def __iter__(self):
            for i in torch.randperm(len(y)).split(32):
                yield {k: v[i] for k, v in full.items()}, y[i]

    net = Encoder()
    return Program(net, nn.CrossEntropyLoss(), Batches(), torch.optim.Adam(net.parameters(), 1e-2), accuracy(test, ty))
