import torch
import torch.nn.functional as F
from program import Program, fault
from seqdata import acc, gen, loader, padded, topics
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence


@fault("a transformer without positions, asked in which half a word stands", rules=["order-lost"], fails=True, steps=250)
def positions_forgotten(faulty):
    def make(n, seed):
        x = torch.randint(1, 20, (n, 12), generator=gen(seed))
        at = torch.randint(12, (n,), generator=gen(seed + 1))
        x[torch.arange(n), at] = 0
        return x, (at >= 6).long()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(20, 32)
            self.positions = None if faulty else nn.Embedding(12, 32)
            layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
            self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.classify = nn.Linear(32, 2)

        def forward(self, x):
            h = self.tokens(x)
            if self.positions is not None:
                h = h + self.positions(torch.arange(x.shape[1]))
            return self.classify(self.blocks(h).mean(1))

    x, y = make(2048, 1)
    tx, ty = make(400, 3)
    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(x, y, batch_size=32), torch.optim.Adam(net.parameters(), 2e-3),
                   lambda m: acc(m(tx), ty))


@fault("collate sorts the sentences by length for packing and forgets the labels",
       rules=["labels-unrelated", "output-loss-mismatch"], fails=True, steps=200)
def labels_not_sorted_along(faulty):
    def collate(rows):
        x, n, y = (torch.stack(c) for c in zip(*rows))
        n, order = n.sort(descending=True)
        return {"tokens": x[order], "lengths": n}, y if faulty else y[order]

    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(50, 16, padding_idx=0)
            self.lstm = nn.LSTM(16, 24, batch_first=True)
            self.out = nn.Linear(24, 4)

        def forward(self, tokens, lengths):
            p = pack_padded_sequence(self.embed(tokens), lengths, batch_first=True, enforce_sorted=False)
            return self.out(self.lstm(p)[1][0][-1])

    x, y = topics(2000, 14, 50, 4, 21, 0.6)
    x, n = padded(x, 6, 22)
    tx, ty = topics(300, 14, 50, 4, 23, 0.6)
    tx, tn = padded(tx, 6, 24)
    data = torch.utils.data.TensorDataset(x, n, y)
    model = Packed()
    return Program(model, nn.CrossEntropyLoss(),
                   torch.utils.data.DataLoader(data, batch_size=50, shuffle=True, collate_fn=collate),
                   torch.optim.Adam(model.parameters(), 1e-2), lambda m: acc(m(tx, tn), ty))


class AttentionPool(nn.Module):
    def __init__(self, dim, axis):
        super().__init__()
        self.score = nn.Linear(dim, 1)
        self.softmax = nn.Softmax(dim=axis)

    def forward(self, h):
        return (self.softmax(self.score(h)) * h).sum(1)


@fault("attention pooling with a softmax over the last dimension of (B, T, 1)", rules=["wrong-softmax-dimension"],
       layers=["pool"], fails=True, steps=300)
def pooling_softmax_axis(faulty):
    def make(n, seed):
        g = gen(seed)
        x = torch.randn(n, 20, 5, generator=g)
        at = torch.randint(20, (n,), generator=g)
        x[:, :, 4] = 0
        x[torch.arange(n), at, 4] = 3.0
        return x, x[torch.arange(n), at, :4].argmax(-1)

    x, y = make(2048, 1)
    tx, ty = make(500, 2)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.project = nn.Linear(5, 16)
            self.pool = AttentionPool(16, -1 if faulty else 1)
            self.out = nn.Linear(16, 4)

        def forward(self, x):
            return self.out(self.pool(self.project(x)))

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 1e-2),
                   lambda m: acc(m(tx), ty))


def speech(n, seed, T=18, L=4, C=6):
    """Each label sounds for three or four frames, with silence around."""
    g = gen(seed)
    labels = torch.randint(1, C, (n, L), generator=g)
    frames = torch.zeros(n, T, dtype=torch.long)
    for i in range(n):
        at = int(torch.randint(0, 3, (1,), generator=g))
        for j in range(L):
            frames[i, at:at + 3] = labels[i, j]
            at += 4
    sounds = torch.randn(C, 10, generator=gen(31))
    return sounds[frames] + 0.3 * torch.randn(n, T, 10, generator=g), labels


def ctc_score(log_probs, labels):
    """1 - edit distance / length, of greedy decodings."""
    total = 0.0
    for path, ref in zip(log_probs.argmax(-1).tolist(), labels.tolist()):
        hyp = [c for i, c in enumerate(path) if c != 0 and (i == 0 or path[i - 1] != c)]
        row = list(range(len(ref) + 1))
        for i, a in enumerate(hyp, 1):
            new = [i]
            for j, b in enumerate(ref, 1):
                new.append(min(row[j] + 1, new[-1] + 1, row[j - 1] + (a != b)))
            row = new
        total += max(0.0, 1 - row[-1] / len(ref))
    return total / len(labels)


class Acoustic(nn.Module):
    def __init__(self, classes=6):
        super().__init__()
        self.conv = nn.Conv1d(10, 32, 3, padding=1)
        self.rnn = nn.GRU(32, 24, batch_first=True, bidirectional=True)
        self.out = nn.Linear(48, classes)

    def forward(self, x):
        h = torch.relu(self.conv(x.transpose(1, 2))).transpose(1, 2)
        return self.out(self.rnn(h)[0])


@fault("CTCLoss gets softmax probabilities in place of log-probabilities", rules=["output-loss-mismatch"], fails=False,
       steps=250)
def ctc_of_probabilities(faulty):
    ctc = nn.CTCLoss(blank=0)

    def loss(logits, labels):
        lp = logits.softmax(-1) if faulty else logits.log_softmax(-1)
        b, t, _ = lp.shape
        return ctc(lp.transpose(0, 1), labels, torch.full((b,), t), torch.full((b,), labels.shape[1]))

    x, y = speech(800, 1)
    tx, ty = speech(150, 2)
    model = Acoustic()
    return Program(model, loss, loader(x, y, batch_size=32), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: ctc_score(m(tx), ty))


@fault("logits (B, T, C) are brought to (B, C, T) with view in place of transpose", rules=["output-loss-mismatch"],
       fails=True, steps=200)
def logits_viewed(faulty):
    def make(n, seed):
        x = torch.randint(30, (n, 11), generator=gen(seed))
        y = (x + x.roll(1, 1)) % 2 + 2 * (x % 3)
        return x, y

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.e = nn.Embedding(30, 16)
            self.r = nn.GRU(16, 24, batch_first=True, bidirectional=True)
            self.o = nn.Linear(48, 6)

        def forward(self, x):
            return self.o(self.r(self.e(x))[0])

    def loss(logits, tags):
        b, t, c = logits.shape
        return F.cross_entropy(logits.view(b, c, t) if faulty else logits.transpose(1, 2), tags)

    x, y = make(2000, 1)
    tx, ty = make(200, 2)
    m = Tagger()
    return Program(m, loss, loader(x, y, batch_size=40), torch.optim.Adam(m.parameters(), 1e-2),
                   lambda m: acc(m(tx), ty))
