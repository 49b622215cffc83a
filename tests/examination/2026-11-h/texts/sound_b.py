"""Sound set-ups that look like faults of steps, states, losses."""
import math
import torch
from torch import nn
from torch.nn import functional as F
from program import Program, fault, sound  # noqa: F401
from textdata import acc, before, chain, gen, keyword, loader, r2, waves  # noqa: F401


@sound("reduction='sum', divided by the number of real words of the batch", steps=200, least=0.85)
def summed_over_real_words():
    kind = torch.randint(0, 5, (30,), generator=gen(204))

    def data(n, seed):
        g = gen(seed)
        x = torch.randint(1, 30, (n, 18), generator=g)
        x[torch.arange(18)[None] >= torch.randint(4, 19, (n, 1), generator=g)] = 0
        return x, kind[x]

    x, y = data(640, 205)
    xt, yt = data(200, 206)
    model = nn.Sequential(nn.Embedding(30, 24, padding_idx=0), nn.Linear(24, 32), nn.GELU(), nn.Linear(32, 5))

    def step(m, batch):
        ids, tags = batch
        real = (ids != 0).flatten()
        each = F.cross_entropy(m(ids).flatten(0, 1), tags.flatten(), reduction="none")
        return (each * real).sum() / real.sum()

    return Program(model, None, loader(x, y), torch.optim.Adam(model.parameters(), lr=5e-3),
                   lambda m: acc(m(xt)[xt != 0], yt[xt != 0]), step=step)


@sound("Truncated backpropagation: batches in order, the state detached and passed on", steps=200, least=0.7, trained=50)
def truncated_backpropagation():
    text, held = chain(20, 1201, 12, 207), chain(100, 12, 12, 208)
    pieces = [(text[:, i:i + 12], text[:, i + 1:i + 13]) for i in range(0, 1188, 12)]

    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(12, 16)
            self.rnn = nn.LSTM(16, 32, batch_first=True)
            self.fc = nn.Linear(32, 12)

        def forward(self, x, state=None):
            out, state = self.rnn(self.emb(x), state)
            return self.fc(out), tuple(s.detach() for s in state)

    model = LM()
    carried = {"state": None}

    def step(m, batch):
        x, y = batch
        logits, carried["state"] = m(x, carried["state"])
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())

    return Program(model, None, pieces, torch.optim.Adam(model.parameters(), lr=1e-2),
                   lambda m: acc(m(held[:, :-1])[0], held[:, 1:]), step=step)


@sound("Contrastive pairs of sentences: the other examples of a batch are the negatives, the targets are 0, 1, 2, ...",
       steps=300, least=0.7)
def contrastive_pairs():
    perm = torch.randperm(40, generator=gen(209))

    def data(n, seed):
        x = torch.randint(0, 40, (n, 6), generator=gen(seed))
        order = torch.rand(n, 6, generator=gen(seed + 1)).argsort(1)
        return x, perm[x].gather(1, order)

    a, b = data(1500, 210)
    at, bt = data(60, 220)

    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.left = nn.Sequential(nn.EmbeddingBag(40, 32), nn.Linear(32, 32))
            self.right = nn.Sequential(nn.EmbeddingBag(40, 32), nn.Linear(32, 32))

        def forward(self, left, right):
            u, v = F.normalize(self.left(left), dim=1), F.normalize(self.right(right), dim=1)
            return u @ v.t() / 0.1

    model = Towers()

    def step(m, batch):
        s = m(*batch)
        t = torch.arange(len(s))
        return (F.cross_entropy(s, t) + F.cross_entropy(s.t(), t)) / 2

    return Program(model, None, loader(a, b, bs=50), torch.optim.Adam(model.parameters(), lr=1e-2),
                   lambda m: acc(m(at, bt), torch.arange(60)), step=step)


@sound("SGD with rate 2 and clipped gradients on a small LSTM, as language models of 2015 were trained", steps=300, least=0.7)
def sgd_rate_two_clipped():
    ids, held = chain(800, 15, 12, 232), chain(200, 15, 12, 233)

    class LM(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(12, 24)
            self.rnn = nn.LSTM(24, 32, batch_first=True)
            self.fc = nn.Linear(32, 12)
            for p in self.parameters():
                p.register_hook(lambda g: g.clamp(-0.25, 0.25))

        def forward(self, x):
            return self.fc(self.rnn(self.emb(x))[0])

    model = LM()
    return Program(model, lambda o, y: F.cross_entropy(o.transpose(1, 2), y), loader(ids[:, :-1], ids[:, 1:]),
                   torch.optim.SGD(model.parameters(), lr=2.0), lambda m: acc(m(held[:, :-1]), held[:, 1:]))


@sound("An echo state network: the recurrent weights are frozen, only the readout learns", steps=300, least=0.7)
def echo_state_network():
    g = gen(234)
    t = torch.arange(2500) * 0.2
    s = torch.sin(t) * torch.sin(0.31 * t) + 0.02 * torch.randn(2500, generator=g)
    w = s.unfold(0, 21, 1)
    x, y = w[:, :20, None], w[:, 20:]

    class ESN(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.RNN(1, 64, batch_first=True)
            self.rnn.requires_grad_(False)
            self.rnn.weight_ih_l0.uniform_(-0.5, 0.5)
            self.rnn.weight_hh_l0.copy_(0.9 * nn.init.orthogonal_(torch.empty(64, 64)))
            self.read = nn.Linear(64, 1)

        def forward(self, x):
            return self.read(self.rnn(x)[1][0])

    model = ESN()
    return Program(model, nn.MSELoss(), loader(x[:2000], y[:2000]), torch.optim.Adam(model.read.parameters(), lr=1e-2),
                   lambda m: r2(m(x[2000:]), y[2000:]))
