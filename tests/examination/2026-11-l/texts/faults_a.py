import math

import torch
from program import Program, fault
from tdata import accuracy, chain, flat_ce, gen, last_accuracy, loader, order_task, r2, tagged, topics, waves
from torch import nn
from torch.nn import functional as F


class GRULM(nn.Module):
    def __init__(self, vocab=24, d=32, both=False):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.rnn = nn.GRU(d, d, batch_first=True, bidirectional=both)
        self.head = nn.Linear(2 * d if both else d, vocab)

    def forward(self, x):
        return self.head(self.rnn(self.embed(x))[0])


@fault("The training step compares the logits with the input tokens themselves: nobody shifts.",
       rules=["label-shift", "future-seen"], fails=True, steps=200)
def char_lm_without_shift(bad):
    text, test = chain(512, 17, 24, 1), chain(256, 17, 24, 2)

    def step(model, batch):
        (ids,) = batch
        logits = model(ids)
        if bad:
            return F.cross_entropy(logits.flatten(0, 1), ids.flatten())
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    model = GRULM()
    return Program(model, None, loader(text), torch.optim.Adam(model.parameters(), 5e-3), last_accuracy(test, 12),
                   step=step)


@fault("The dataset already gives labels one further, and the loss shifts once more.",
       rules=["label-shift"], fails=True, steps=200)
def labels_shifted_in_dataset_and_loss(bad):
    text, test = chain(512, 18, 24, 3), chain(256, 18, 24, 4)

    def causal_loss(logits, labels):
        if bad:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return flat_ce(logits, labels)

    model = GRULM()
    return Program(model, causal_loss, loader(text[:, :-1], text[:, 1:]), torch.optim.AdamW(model.parameters(), 5e-3),
                   last_accuracy(test, 10))


class SmallGPT(nn.Module):
    def __init__(self, vocab, causal=True, d=32, longest=32):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(longest, d)
        layer = nn.TransformerEncoderLayer(d, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(d, vocab)
        self.causal = causal

    def forward(self, x):
        n = x.shape[1]
        h = self.tok(x) + self.pos(torch.arange(n))
        mask = torch.full((n, n), -math.inf).triu(1) if self.causal else None
        return self.out(self.blocks(h, mask=mask))


@fault("A decoder-only transformer whose encoder layers are called without a causal mask.",
       rules=["future-seen"], layers=[], fails=True, steps=300)
def gpt_from_encoder_layers(bad):
    text, test = chain(512, 17, 20, 5), chain(256, 17, 20, 6)
    model = SmallGPT(20, causal=not bad)
    return Program(model, flat_ce, loader(text[:, :-1], text[:, 1:]), torch.optim.Adam(model.parameters(), 3e-3),
                   last_accuracy(test, 9))


class MeanPool(nn.Module):
    def __init__(self, inverted, vocab=61, classes=4):
        super().__init__()
        self.embedding = nn.Embedding(vocab, 24, padding_idx=0)
        self.mix = nn.Sequential(nn.Conv1d(24, 32, 3, padding=1), nn.ReLU())
        self.fc = nn.Linear(32, classes)
        self.inverted = inverted

    def forward(self, ids):
        h = self.mix(self.embedding(ids).transpose(1, 2)).transpose(1, 2)
        mask = (ids == 0) if self.inverted else (ids != 0)
        mask = mask.unsqueeze(-1).float()
        return self.fc((h * mask).sum(1) / mask.sum(1).clamp(min=1))


@fault("The pooling mask is 1 at the padding, so the average is taken over the padding.",
       rules=["wrong-mask"], fails=True, steps=250)
def pooled_over_the_padding(bad):
    x, _, y = topics(800, 24, 9, least=8)
    tx, _, ty = topics(400, 24, 10, least=8)
    model = MeanPool(bad)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 3e-3),
                   accuracy(tx, ty))


@fault("Right-padded texts are classified from the last output of the LSTM, after a long tail of padding.",
       rules=["wrong-mask", "rank-collapse", "vanishing-gradient"], layers=["lstm"], fails=True, steps=250)
def last_output_after_padding(bad):
    def data(n, seed):
        g = gen(seed)
        lengths = torch.randint(3, 10, (n,), generator=g)
        x = torch.randint(1, 17, (n, 50), generator=g)
        y = (x.gather(1, lengths[:, None] - 1).squeeze(1) - 1) // 2
        return x.masked_fill(torch.arange(50) >= lengths[:, None], 0), lengths, y

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(17, 16)
            self.lstm = nn.LSTM(16, 24, batch_first=True)
            self.cls = nn.Linear(24, 8)

        def forward(self, tokens, lengths):
            out, _ = self.lstm(self.emb(tokens))
            if bad:
                return self.cls(out[:, -1])
            return self.cls(out[torch.arange(len(out)), lengths - 1])

    x, n, y = data(640, 11)
    tx, tn, ty = data(300, 12)
    batches = [({"tokens": x[i:i + 32], "lengths": n[i:i + 32]}, y[i:i + 32]) for i in range(0, 640, 32)]
    model = Net()
    return Program(model, F.cross_entropy, batches, torch.optim.Adam(model.parameters(), 5e-3), accuracy(tx, tn, ty))


@fault("nn.GRU without batch_first gets batches of shape (batch, time, features).",
       rules=["mixed-examples", "order-lost"], layers=["gru"], fails=False, steps=300)
def tagger_without_batch_first(bad):
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(20, 16)
            self.gru = nn.GRU(16, 32, batch_first=not bad)
            self.tag = nn.Linear(32, 3)

        def forward(self, x):
            return self.tag(self.gru(self.emb(x))[0])

    x, y = tagged(640, 16, 13)
    tx, ty = tagged(200, 16, 14)
    model = Tagger()
    return Program(model, flat_ce, loader(x, y), torch.optim.Adam(model.parameters(), 5e-3), accuracy(tx, ty))


@fault("view() in place of transpose() to bring the time to the front: examples are cut and mixed.",
       rules=["mixed-examples"], fails=True, steps=300)
def view_for_transpose(bad):
    class Forecaster(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(2, 24)
            self.fc = nn.Linear(24, 1)

        def forward(self, x):
            b, t, c = x.shape
            x = x.view(t, b, c) if bad else x.transpose(0, 1)
            out, _ = self.rnn(x)
            return self.fc(out[-1])

    def data(n, seed):
        w = waves(n, 22, seed)
        return torch.stack([w[:, :20], w[:, 1:21]], 2), w[:, 21:]

    x, y = data(800, 15)
    tx, ty = data(256, 16)
    model = Forecaster()
    return Program(model, nn.MSELoss(), loader(x, y), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: r2(m(tx), ty))


@fault("Self-attention over a bag of embeddings: the positional encoding was forgotten.",
       rules=["order-lost"], fails=True, steps=400)
def no_positions(bad):
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.token = nn.Embedding(12, 32)
            self.position = nn.Parameter(torch.randn(10, 32, generator=gen(0)))
            self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
            self.out = nn.Linear(32, 2)
            if bad:
                del self.position

        def forward(self, x):
            h = self.token(x)
            if not bad:
                h = h + self.position
            return self.out(self.layer(h).mean(1))

    x, y = order_task(1024, 10, 17)
    tx, ty = order_task(400, 10, 18)
    model = Classifier()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: 2 * accuracy(tx, ty)(m) - 1)
