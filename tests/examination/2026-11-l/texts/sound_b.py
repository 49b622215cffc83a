"""Unusual, but right."""
import torch
from program import Program, sound
from sound_a import tones
from tdata import accuracy, chain, flat_ce, gen, last_accuracy, loader, order_task, r2, tagged, topics, waves
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence


@sound("Embedding and output layer are one and the same parameter.", steps=300, least=0.75)
def tied_head():
    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(24, 32)
            nn.init.normal_(self.embed.weight, std=0.2)
            self.rnn = nn.GRU(32, 32, batch_first=True)
            self.head = nn.Linear(32, 24)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(self.rnn(self.embed(x))[0])

    text, test = chain(600, 15, 24, 131), chain(200, 15, 24, 132)
    model = LM()
    return Program(model, flat_ce, loader(text[:, :-1], text[:, 1:]), torch.optim.Adam(model.parameters(), 5e-3),
                   accuracy(test[:, :-1], test[:, 1:]))


@sound("One block is applied three times, on purpose.", steps=250, least=0.75)
def albert_like():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(61, 24)
            self.block = nn.TransformerEncoderLayer(24, 2, 48, dropout=0.0, batch_first=True, norm_first=True)
            self.norm = nn.LayerNorm(24)
            self.fc = nn.Linear(24, 4)

        def forward(self, x):
            h = self.emb(x)
            for _ in range(3):
                h = self.block(h)
            return self.fc(self.norm(h).mean(1))

    x, _, y = topics(800, 12, 133, rate=0.5)
    tx, _, ty = topics(300, 12, 134, rate=0.5)
    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 3e-3),
                   accuracy(tx, ty))


@sound("A reservoir: the recurrent network is frozen, and random; only the readout learns.", steps=300, least=0.7)
def echo_state():
    class Echo(nn.Module):
        def __init__(self):
            super().__init__()
            self.reservoir = nn.RNN(1, 64, batch_first=True)
            nn.init.orthogonal_(self.reservoir.weight_hh_l0)
            with torch.no_grad():
                self.reservoir.weight_hh_l0 *= 0.9
                self.reservoir.weight_ih_l0 *= 4
            for p in self.reservoir.parameters():
                p.requires_grad_(False)
            self.readout = nn.Linear(64, 1)

        def forward(self, x):
            return self.readout(self.reservoir(x[..., None])[0][:, -1])

    w, t = waves(1000, 16, 137), waves(300, 16, 138)
    model = Echo()
    return Program(model, nn.MSELoss(), loader(w[:, :-1], w[:, -1:]),
                   torch.optim.Adam(model.readout.parameters(), 1e-2), lambda m: r2(m(t[:, :-1]), t[:, -1:]))


@sound("The state is kept from batch to batch and detached; the batches come in order.", steps=300, least=0.7)
def stateful_lm():
    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(20, 24)
            self.rnn = nn.GRU(24, 32, batch_first=True)
            self.out = nn.Linear(32, 20)

        def forward(self, x, state=None):
            h, state = self.rnn(self.emb(x), state)
            return self.out(h), state

    text, test = chain(32, 301, 20, 139), chain(100, 21, 20, 140)
    pieces = [(i == 0, text[:, i:i + 10], text[:, i + 1:i + 11]) for i in range(0, 300, 10)]
    kept = {"state": None}

    def step(m, batch):
        first, x, y = batch
        out, state = m(x, None if first else kept["state"])
        kept["state"] = state.detach()
        return flat_ce(out, y)

    model = LM()
    return Program(model, None, pieces, torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: (m(test[:, :-1])[0].argmax(-1) == test[:, 1:]).float().mean().item(), step=step)


@sound("No batch_first: the data are (time, batch) from the collate function on.", steps=300, least=0.8)
def time_first():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(20, 16)
            self.gru = nn.GRU(16, 32)
            self.out = nn.Linear(32, 3)

        def forward(self, x):
            return self.out(self.gru(self.emb(x))[0])

    def collate(rows):
        return torch.stack([a for a, _ in rows], 1), torch.stack([b for _, b in rows], 1)

    x, y = tagged(640, 12, 141)
    tx, ty = tagged(200, 12, 142)
    model = Tagger()
    return Program(model, flat_ce, loader(x, y, collate_fn=collate), torch.optim.Adam(model.parameters(), 6e-3),
                   accuracy(tx.T, ty.T))


@sound("In-batch contrastive loss over pairs of texts: the loss couples examples, the outputs do not.", steps=300,
       least=0.6)
def paired_texts():
    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.EmbeddingBag(40, 24), nn.EmbeddingBag(40, 24)
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, a, b):
            return F.normalize(self.left(a), dim=1), F.normalize(self.right(b), dim=1)

    table = torch.randperm(40, generator=gen(8))

    def data(n, seed):
        a = torch.randint(40, (n, 6), generator=gen(seed))
        return a, table[a].flip(1)

    ta, tb = data(32, 146)

    def step(m, batch):
        p, q = m(*batch)
        logits = m.scale.exp() * p @ q.T
        want = torch.arange(len(p))
        return (F.cross_entropy(logits, want) + F.cross_entropy(logits.T, want)) / 2

    def score(m):
        p, q = m(ta, tb)
        return ((p @ q.T).argmax(1) == torch.arange(32)).float().mean().item()

    model = Towers()
    return Program(model, None, loader(*data(1280, 145), drop_last=True), torch.optim.Adam(model.parameters(), 1e-2),
                   score, step=step)


@sound("Batches are made of texts of one length (sorted by length, not by class) and packed.", steps=250, least=0.75)
def buckets_of_length():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(61, 24, padding_idx=0)
            self.lstm = nn.LSTM(24, 32, batch_first=True)
            self.fc = nn.Linear(32, 4)

        def forward(self, ids, lengths):
            packed = pack_padded_sequence(self.emb(ids), lengths, batch_first=True, enforce_sorted=False)
            return self.fc(self.lstm(packed)[1][0][-1])

    x, n, y = topics(960, 16, 147, least=6, rate=0.55)
    tx, tn, ty = topics(300, 16, 148, least=6, rate=0.55)
    by = n.argsort(stable=True).split(32)
    batches = [({"ids": x[i][:, :int(n[i].max())], "lengths": n[i]}, y[i]) for i in
               [by[j] for j in torch.randperm(30, generator=gen(3)).tolist()]]
    model = Net()
    return Program(model, nn.CrossEntropyLoss(), batches, torch.optim.Adam(model.parameters(), 6e-3),
                   accuracy(tx, tn, ty))


@sound("The last layer begins at zero, and so do the gates of the residual branches.", steps=300, least=0.75)
def zero_gates():
    class Block(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.conv = nn.Conv1d(d, d, 3, padding=1)
            self.gate = nn.Parameter(torch.zeros(1))

        def forward(self, h):
            return h + self.gate * F.relu(self.conv(h))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv1d(1, 24, 7, 2)
            self.blocks = nn.Sequential(*[Block(24) for _ in range(3)])
            self.fc = nn.Linear(24, 4)
            nn.init.zeros_(self.fc.weight)
            nn.init.zeros_(self.fc.bias)

        def forward(self, x):
            return self.fc(self.blocks(F.relu(self.stem(x[:, None]))).mean(2))

    x, y = tones(800, 149)
    tx, ty = tones(300, 150)
    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 3e-3),
                   accuracy(tx, ty))


@sound("The end-of-text token is also the padding; the loss counts one of them, by a mask.", trained=100, steps=300,
       least=0.7)
def pad_is_end():
    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(16, 24)
            self.rnn = nn.GRU(24, 32, batch_first=True)
            self.out = nn.Linear(32, 16)

        def forward(self, x):
            return self.out(self.rnn(self.emb(x))[0])

    def data(n, seed):
        t = chain(n, 15, 15, seed, 0.05) + 1
        lengths = torch.randint(5, 15, (n,), generator=gen(seed + 1))
        t = t.masked_fill(torch.arange(15) >= lengths[:, None], 0)
        x, y = t[:, :-1], t[:, 1:]
        return x, torch.where(torch.arange(14) >= lengths[:, None], -100, y)

    x, y = data(640, 151)
    tx, ty = data(200, 153)
    model = LM()

    def score(m):
        at = ty > 0
        return (m(tx).argmax(-1)[at] == ty[at]).float().mean().item()

    return Program(model, flat_ce, loader(x, y), torch.optim.Adam(model.parameters(), 5e-3), score)


@sound("log_softmax in the model and NLLLoss; a ReLU RNN that begins as the identity.", steps=300, least=0.75)
def identity_rnn():
    class IRNN(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(8, 16)
            self.rnn = nn.RNN(16, 32, nonlinearity="relu", batch_first=True)
            nn.init.eye_(self.rnn.weight_hh_l0)
            nn.init.zeros_(self.rnn.bias_hh_l0)
            nn.init.normal_(self.rnn.weight_ih_l0, std=0.1)
            self.out = nn.Linear(32, 4)

        def forward(self, x):
            return self.out(self.rnn(self.emb(x))[1][0]).log_softmax(-1)

    def data(n, seed):
        g = gen(seed)
        y = torch.randint(4, (n,), generator=g)
        x = torch.randint(4, 8, (n, 12), generator=g)
        x[torch.arange(n), torch.randint(4, (n,), generator=g)] = y
        return x, y

    x, y = data(800, 155)
    tx, ty = data(300, 156)
    model = IRNN()
    return Program(model, nn.NLLLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 2e-3), accuracy(tx, ty))
