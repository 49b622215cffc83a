import math

import torch
import torch.nn.functional as F
from torch import nn

from data import accuracy, flagged, gen, loader, next_score, r2, recall, second_order, seed, sentiment, tagged, waves
from program import Program, fault


@fault("A bidirectional GRU as a language model.", rules=["future-seen"], layers=["gru"], fails=False, steps=300)
def bidirectional_language_model(is_faulty):
    seed(21)

    class CharRNN(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(9, 16)
            self.gru = nn.GRU(16, 48, batch_first=True, bidirectional=is_faulty)
            self.decoder = nn.Linear(96 if is_faulty else 48, 9)

        def forward(self, x):
            out, _ = self.gru(self.embedding(x))
            return self.decoder(out)

    x, _ = second_order(1600, 16, 9, s=21)
    model = CharRNN()
    return Program(
        model,
        lambda out, tokens: F.cross_entropy(out[:, :-1].permute(0, 2, 1), tokens[:, 1:]),
        loader(x, x),
        torch.optim.Adam(model.parameters(), 1e-2),
        lambda m: next_score(lambda p: m(p)[:, -1], 9),
    )


@fault(
    "The loader already gives inputs and next words, and the loss shifts once more: the model learns the word after the next.",
    rules=["label-shift"],
    fails=False,
    steps=300,
)
def shifted_twice(is_faulty):
    seed(22)

    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte = nn.Embedding(6, 24)
            self.rnn = nn.LSTM(24, 48, batch_first=True)
            self.lm_head = nn.Linear(48, 6)

        def forward(self, input_ids):
            return self.lm_head(self.rnn(self.wte(input_ids))[0])

    def shifting(logits, labels):
        return F.cross_entropy(logits[:, :-1].reshape(-1, 6), labels[:, 1:].reshape(-1))

    def plain(logits, labels):
        return F.cross_entropy(logits.reshape(-1, 6), labels.reshape(-1))

    x, _ = second_order(1500, 17, s=22)
    model = LM()
    return Program(
        model,
        shifting if is_faulty else plain,
        loader(x[:, :-1], x[:, 1:]),
        torch.optim.Adam(model.parameters(), 1e-2),
        lambda m: next_score(lambda p: m(p)[:, -1]),
    )


@fault(
    "Event series padded with zeros (a common real value) are labeled at every step; the padded steps count in the loss.",
    rules=["padding-in-loss"],
    fails=False,
    steps=300,
)
def padded_steps_counted(is_faulty):
    seed(23)

    def events(n, s):
        g = gen(s)
        x = torch.randint(1, 6, (n, 24), generator=g) * (torch.rand(n, 24, generator=g) < 0.2)
        y = torch.zeros(n, 24, dtype=torch.long)
        last = torch.zeros(n, dtype=torch.long)
        for t in range(24):
            last = torch.where(x[:, t] > 0, x[:, t], last)
            y[:, t] = last
        real = torch.arange(24) < torch.randint(3, 9, (n, 1), generator=g)
        return x * real, y * real, real.float()

    class Latch(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(6, 16)
            self.gru = nn.GRU(16, 32, batch_first=True)
            self.fc = nn.Linear(32, 6)

        def forward(self, x):
            return self.fc(self.gru(self.emb(x))[0])

    def criterion(out, target):
        y, mask = target
        each = F.cross_entropy(out.transpose(1, 2), y, reduction="none")
        return each.mean() if is_faulty else (each * mask).sum() / mask.sum()

    x, y, real = events(1600, 23)
    tx, ty, treal = events(400, 24)
    batches = [(a, (b, c)) for a, b, c in zip(x.split(32), y.split(32), real.split(32))]
    model = Latch()
    return Program(
        model,
        criterion,
        batches,
        torch.optim.Adam(model.parameters(), 5e-3),
        lambda m: accuracy(m(tx)[treal > 0], ty[treal > 0]),
    )


@fault(
    "A GRUCell in a loop; the hidden state is detached at every step, so that nothing learns to remember.",
    rules=["no-gradient", "vanishing-gradient"],
    layers=["cell", "embed"],
    fails=True,
    steps=400,
)
def detached_every_step(is_faulty):
    seed(24)

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(12, 16)
            self.cell = nn.GRUCell(16, 32)
            self.classify = nn.Linear(32, 6)

        def forward(self, x):
            h = torch.zeros(x.size(0), 32)
            for t in range(x.size(1)):
                if is_faulty:
                    h = h.detach()
                h = self.cell(self.embed(x[:, t]), h)
            return self.classify(h)

    x, y = recall(2000, 14, s=25)
    tx, ty = recall(500, 14, s=26)
    model = Reader()
    return Program(
        model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 5e-3), lambda m: accuracy(m(tx), ty)
    )


@fault(
    "An own gated recurrent layer whose weights are plain torch.randn, not scaled by the fan-in.",
    rules=["bad-initialisation", "saturated-activation", "exploding-gradient", "vanishing-gradient"],
    layers=["rnn"],
    fails=False,
    steps=400,
)
def recurrent_randn(is_faulty):
    seed(25)

    class MGU(nn.Module):
        def __init__(self, i, h):
            super().__init__()
            s = 1.0 if is_faulty else 1 / math.sqrt(h)
            self.wf = nn.Parameter(torch.randn(i + h, h) * s)
            self.wh = nn.Parameter(torch.randn(i + h, h) * s)
            self.bf = nn.Parameter(torch.zeros(h))
            self.bh = nn.Parameter(torch.zeros(h))

        def forward(self, x):
            h = x.new_zeros(x.size(0), self.bf.numel())
            for xt in x.unbind(1):
                f = torch.sigmoid(torch.cat([xt, h], 1) @ self.wf + self.bf)
                c = torch.tanh(torch.cat([xt, f * h], 1) @ self.wh + self.bh)
                h = (1 - f) * h + f * c
            return h

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp = nn.Linear(1, 16)
            self.rnn = MGU(16, 64)
            self.out = nn.Linear(64, 4)

        def forward(self, x):
            return self.out(self.rnn(self.inp(x)))

    x, y = waves(1500, 20, s=27)
    tx, ty = waves(400, 20, s=28)
    model = Net()
    return Program(model, F.mse_loss, loader(x, y), torch.optim.Adam(model.parameters(), 2e-3), lambda m: r2(m(tx), ty))


@fault(
    "An own tanh RNN whose recurrent matrix starts at N(0, 0.01): nothing comes back through twenty steps.",
    rules=["vanishing-gradient", "bad-initialisation"],
    layers=["recurrent"],
    fails=True,
    steps=400,
)
def tiny_recurrent_matrix(is_faulty):
    seed(26)

    class Elman(nn.Module):
        def __init__(self):
            super().__init__()
            self.lookup = nn.Embedding(12, 24)
            self.inputs = nn.Linear(24, 48)
            self.recurrent = nn.Linear(48, 48, bias=False)
            if is_faulty:
                nn.init.normal_(self.recurrent.weight, std=0.01)
            else:
                nn.init.orthogonal_(self.recurrent.weight)
            self.last = nn.Linear(48, 6)

        def forward(self, x):
            e = self.inputs(self.lookup(x)) * 0.3
            h = torch.zeros_like(e[:, 0])
            for t in range(x.shape[1]):
                h = torch.tanh(e[:, t] + self.recurrent(h))
            return self.last(h)

    x, y = recall(2000, 16, s=29)
    tx, ty = recall(500, 16, s=30)
    model = Elman()
    return Program(
        model, F.cross_entropy, loader(x, y), torch.optim.Adam(model.parameters(), 1e-3), lambda m: accuracy(m(tx), ty)
    )


@fault(
    "One head per horizon, made by [nn.Linear(...)] * 4: all four are the same module.",
    rules=["shared-weight"],
    layers=["heads"],
    fails=True,
    steps=400,
)
def heads_multiplied(is_faulty):
    seed(27)

    class Forecaster(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(1, 32, batch_first=True)
            heads = [nn.Linear(32, 1)] * 4 if is_faulty else [nn.Linear(32, 1) for _ in range(4)]
            self.heads = nn.ModuleList(heads)

        def forward(self, x):
            _, (h, _) = self.lstm(x)
            return torch.cat([head(h[-1]) for head in self.heads], 1)

    def far(n, s):
        x, y = waves(n, 16, 16, s=s)
        return x, y[:, 3::4]

    x, y = far(1500, 31)
    tx, ty = far(400, 32)
    model = Forecaster()
    return Program(model, nn.MSELoss(), loader(x, y), torch.optim.Adam(model.parameters(), 1e-2), lambda m: r2(m(tx), ty))


@fault(
    "F.dropout without training=self.training: a recurrent classifier drops half of its features when used, too.",
    rules=["dropout-in-eval"],
    fails=False,
    steps=400,
)
def functional_dropout(is_faulty):
    seed(28)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(8, 12)
            self.rnn = nn.GRU(12, 16, batch_first=True)
            self.fc = nn.Linear(16, 5)

        def forward(self, x):
            h, _ = self.rnn(self.emb(x))
            h = F.dropout(h, 0.5) if is_faulty else F.dropout(h, 0.5, self.training)
            return self.fc(h)

    x, y = tagged(1500, s=33)
    tx, ty = tagged(300, s=34)
    model = Net()
    return Program(
        model,
        lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten()),
        loader(x, y),
        torch.optim.Adam(model.parameters(), 5e-3),
        lambda m: accuracy(m(tx), ty),
    )


@fault(
    "The collate function sorts the sentences by length for pack_padded_sequence, but leaves the labels in their old order.",
    rules=["labels-unrelated"],
    fails=True,
    steps=400,
)
def sorted_without_labels(is_faulty):
    seed(29)

    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(20, 24, padding_idx=0)
            self.lstm = nn.LSTM(24, 32, batch_first=True)
            self.fc = nn.Linear(32, 3)

        def forward(self, text, lengths):
            packed = nn.utils.rnn.pack_padded_sequence(self.emb(text), lengths, batch_first=True)
            _, (h, _) = self.lstm(packed)
            return self.fc(h.squeeze(0))

    def collate(text, lengths, labels):
        lengths, order = lengths.sort(descending=True)
        return {"text": text[order], "lengths": lengths}, labels if is_faulty else labels[order]

    x, n, y = sentiment(1600, s=35)
    tx, tn, ty = sentiment(400, s=36)
    order = tn.argsort(descending=True)
    tx, tn, ty = tx[order], tn[order], ty[order]
    batches = [collate(*b) for b in zip(x.split(32), n.split(32), y.split(32))]
    model = Packed()
    return Program(
        model, nn.CrossEntropyLoss(), batches, torch.optim.Adam(model.parameters(), 5e-3), lambda m: accuracy(m(tx, tn), ty)
    )
