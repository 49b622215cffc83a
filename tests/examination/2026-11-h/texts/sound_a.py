"""Sound set-ups that look like faults of language models and masks."""
import math
import torch
from torch import nn
from torch.nn import functional as F
from program import Program, fault, sound  # noqa: F401
from textdata import acc, before, chain, gen, keyword, loader, r2, waves  # noqa: F401


@sound("A bidirectional tagger: each tag depends on the next word, which it may see", steps=200, least=0.85)
def bidirectional_tagger():
    def data(n, seed):
        x = torch.randint(0, 12, (n, 14), generator=gen(seed))
        nxt = torch.cat([x[:, 1:], torch.zeros(n, 1, dtype=torch.long)], 1)
        return x, (x % 2) + 2 * (nxt > 5).long()

    x, y = data(640, 101)
    xt, yt = data(200, 102)

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(12, 16)
            self.lstm = nn.LSTM(16, 24, batch_first=True, bidirectional=True)
            self.fc = nn.Linear(48, 4)

        def forward(self, x):
            return self.fc(self.lstm(self.emb(x))[0]).transpose(1, 2)

    model = Tagger()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), lr=1e-2),
                   lambda m: acc(m(xt).transpose(1, 2), yt))


class Encoder(nn.Module):
    def __init__(self, vocab, out, length, d=32, layers=1, dropout=0.0):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Parameter(0.3 * torch.randn(length, d))
        layer = nn.TransformerEncoderLayer(d, 4, 64, dropout=dropout, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(d, out)

    def forward(self, x, pad=None):
        h = self.enc(self.tok(x) + self.pos[: x.shape[1]], src_key_padding_mask=pad)
        return self.head(h)


@sound("A masked language model: no causal mask, the labels are the inputs, all but the masked ones are -100",
       steps=400, least=0.6)
def masked_lm():
    ids, held = chain(1500, 8, 8, 103, noise=0.0), chain(300, 8, 8, 104, noise=0.0)

    def hide(x, seed):
        place = torch.rand(x.shape, generator=gen(seed)).argmax(1)
        rows = torch.arange(len(x))
        masked, labels = x.clone(), torch.full_like(x, -100)
        masked[rows, place] = 8
        labels[rows, place] = x[rows, place]
        return masked, labels

    x, y = hide(ids, 105)
    xt, yt = hide(held, 106)
    model = Encoder(9, 8, 8)

    def score(m):
        keep = yt != -100
        return acc(m(xt)[keep], yt[keep])

    return Program(model, lambda o, t: F.cross_entropy(o.reshape(-1, 8), t.reshape(-1)), loader(x, y, bs=50),
                   torch.optim.AdamW(model.parameters(), lr=3e-3), score)


@sound("An autoencoder of sentences: the targets are the inputs, through a narrow code", steps=400, least=0.6)
def sentence_autoencoder():
    x, xt = (torch.randint(0, 6, (n, 5), generator=gen(s)) for n, s in ((1500, 107), (300, 108)))

    class AE(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(6, 16)
            self.enc = nn.GRU(16, 40, batch_first=True)
            self.code = nn.Linear(40, 16)
            self.dec = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 30))

        def forward(self, x):
            return self.dec(self.code(self.enc(self.emb(x))[1][0])).view(-1, 5, 6)

    model = AE()
    return Program(model, lambda o, t: F.cross_entropy(o.transpose(1, 2), t), loader(x, x, bs=50),
                   torch.optim.Adam(model.parameters(), lr=5e-3), lambda m: acc(m(xt), xt))


@sound("A transformer without positions on bags of words, whose order says nothing", steps=200, least=0.85)
def set_transformer_on_bags():
    x, y, _ = keyword(900, 12, 30, 4, 109)
    xt, yt, _ = keyword(300, 12, 30, 4, 110)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(30, 32)
            self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
            self.out = nn.Linear(32, 4)

        def forward(self, x):
            return self.out(self.block(self.embed(x)).mean(1))

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), lr=3e-3),
                   lambda m: acc(m(xt), yt))


class TiedLM(nn.Module):
    def __init__(self, vocab, d=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        nn.init.normal_(self.emb.weight, std=d ** -0.5)
        self.rnn = nn.LSTM(d, d, batch_first=True)
        self.out = nn.Linear(d, vocab)
        self.out.weight = self.emb.weight

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


@sound("Embedding and output share their weight, as in AWD-LSTM", steps=250, least=0.7, trained=60)
def tied_embedding_lm():
    ids, held = chain(800, 15, 20, 111), chain(200, 15, 20, 112)
    model = TiedLM(20)
    return Program(model, lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()), loader(ids[:, :-1], ids[:, 1:]),
                   torch.optim.Adam(model.parameters(), lr=1e-2), lambda m: acc(m(held[:, :-1]), held[:, 1:]))


@sound("Padded at the left, so that out[:, -1] is the last word", steps=200, least=0.85)
def left_padded_last_step():
    def data(n, seed):
        x, y, _ = keyword(n, 12, 20, 4, seed, shortest=5)
        return torch.stack([torch.cat([r[r == 0], r[r != 0]]) for r in x]), y

    x, y = data(700, 113)
    xt, yt = data(300, 114)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(20, 16, padding_idx=0)
            self.gru = nn.GRU(16, 32, batch_first=True)
            self.fc = nn.Linear(32, 4)

        def forward(self, x):
            out, _ = self.gru(self.emb(x))
            return self.fc(out[:, -1])

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), lr=1e-2),
                   lambda m: acc(m(xt), yt))


@sound("One transformer layer applied three times (universal transformer), 1 before 2", steps=350, least=0.7)
def universal_transformer():
    x, y = before(1500, 8, 10, 115)
    xt, yt = before(300, 8, 10, 116)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(10, 32)
            self.pos = nn.Parameter(0.5 * torch.randn(8, 32))
            self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
            self.out = nn.Linear(32, 2)

        def forward(self, x):
            h = self.embed(x) + self.pos
            for _ in range(3):
                h = self.block(h)
            return self.out(h.mean(1))

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), lr=2e-3),
                   lambda m: acc(m(xt), yt))


@sound("A decoder of prompts and answers: labels of the prompt are -100; the rest is shifted inside the loss",
       steps=300, least=0.7)
def prompt_labels_ignored():
    ids, held = chain(900, 12, 15, 117, noise=0.02), chain(200, 12, 15, 118, noise=0.02)
    labels = ids.clone()
    labels[:, :6] = -100

    class GPT(Encoder):
        def forward(self, x):
            t = x.shape[1]
            mask = torch.ones(t, t, dtype=torch.bool).triu(1)
            return self.head(self.enc(self.tok(x) + self.pos[:t], mask=mask))

    model = GPT(15, 15, 12)

    def loss(logits, labels):
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())

    return Program(model, loss, loader(ids, labels), torch.optim.AdamW(model.parameters(), lr=3e-3),
                   lambda m: acc(m(held)[:, 6:-1], held[:, 7:]))
