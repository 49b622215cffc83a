import math

import torch
import torch.nn.functional as F
from program import Program, sound
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR
from tsq_faults_a import MF, Blocks
from tsq_faults_b import GCN, Masked, RowLSTM, TextCNN, on_nodes
from tsq_kit import accuracy, community, digit_rows, first_token, g, loader, markov, normalised, r2, ratings, series
from tsq_kit import topics, waves, who_is_first


@sound("Ordinary: an LSTM over the rows of digits", steps=400, least=0.85)
def tsq_ok_rows():
    (x, y), (xt, yt) = digit_rows()
    model = RowLSTM(48)
    return Program(model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), lr=5e-3),
                   accuracy(xt, yt))


@sound("Ordinary: a GRU that forecasts the next value", steps=300, least=0.9)
def tsq_ok_forecast():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(1, 24, batch_first=True)
            self.head = nn.Linear(24, 1)

        def forward(self, x):
            return self.head(self.gru(x)[0][:, -1])

    model = Net()
    return Program(model, nn.MSELoss(), loader(*series(1200, 20, 1)), torch.optim.Adam(model.parameters(), lr=5e-3),
                   r2(*series(300, 20, 2)))


@sound("Ordinary: convolutions over words with dropout", steps=300, least=0.85)
def tsq_ok_textcnn():
    model = TextCNN(drop=0.3)
    return Program(model, nn.CrossEntropyLoss(), loader(*topics(1500, 16, 60, 5, 1)),
                   torch.optim.Adam(model.parameters(), lr=3e-3), accuracy(*topics(400, 16, 60, 5, 3)))


@sound("Ordinary: matrix factorisation with biases, half trained", trained=150, steps=400, least=0.85)
def tsq_ok_factors():
    class Biased(nn.Module):
        def __init__(self):
            super().__init__()
            self.mf = MF(std=0.2)
            self.user_bias, self.item_bias = nn.Embedding(60, 1), nn.Embedding(50, 1)
            nn.init.zeros_(self.user_bias.weight)
            nn.init.zeros_(self.item_bias.weight)
            self.mean = nn.Parameter(torch.tensor(3.0))

        def forward(self, p):
            return self.mean + self.mf(p) + self.user_bias(p[:, 0])[:, 0] + self.item_bias(p[:, 1])[:, 0]

    (x, y), (xt, yt) = ratings(4000, 60, 50, 1), ratings(800, 60, 50, 2)
    model = Biased()
    return Program(model, nn.MSELoss(), loader(x, y + 3, batch=64), torch.optim.Adam(model.parameters(), lr=1e-2),
                   r2(xt, yt + 3))


@sound("A whole graph as one batch: nodes see each other, half of them have no label", steps=120, least=0.8)
def tsq_ok_graph():
    x, a, y = community(240, 4, 12, 1)
    known = torch.rand(240, generator=g(2)) < 0.5
    model = GCN(normalised(a), 12, 24, 4, 2)
    return Program(model, nn.CrossEntropyLoss(), Masked(x, y, known),
                   torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4), on_nodes(x, y, ~known))


@sound("SGC: powers of the adjacency and one linear layer, no activation", steps=150, least=0.8)
def tsq_ok_linear_graph():
    class SGC(nn.Module):
        def __init__(self, a):
            super().__init__()
            self.register_buffer("a", a)
            self.fc = nn.Linear(12, 4)

        def forward(self, x):
            return self.fc(self.a @ (self.a @ x))

    x, a, y = community(240, 4, 12, 1)
    known = torch.rand(240, generator=g(2)) < 0.6
    model = SGC(normalised(a))
    return Program(model, nn.CrossEntropyLoss(), Masked(x, y, known), torch.optim.Adam(model.parameters(), lr=0.05),
                   on_nodes(x, y, ~known))


@sound("Ordinary: mean of word vectors and a small network", steps=300, least=0.85)
def tsq_ok_bag():
    model = nn.Sequential(nn.EmbeddingBag(60, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 5))
    return Program(model, nn.CrossEntropyLoss(), loader(*topics(1500, 16, 60, 5, 1)),
                   torch.optim.AdamW(model.parameters(), lr=1e-2), accuracy(*topics(400, 16, 60, 5, 3)))


@sound("A transformer with positions, trained", trained=300, steps=300, least=0.9)
def tsq_ok_trained_encoder():
    model = Blocks(20, 12, out=2, pooled=True)
    return Program(model, nn.CrossEntropyLoss(), loader(*who_is_first(2000, 12, 20, 1)),
                   torch.optim.Adam(model.parameters(), lr=2e-3), accuracy(*who_is_first(400, 12, 20, 2)))


@sound("A causal language model whose output is tied to its embedding", steps=300, least=0.75)
def tsq_ok_tied():
    model = Blocks(20, 14, causal=True)
    nn.init.normal_(model.tok.weight, std=0.1)
    model.head.weight = model.tok.weight
    text, test = markov(1200, 15, 20, 1, 0.9), markov(300, 15, 20, 2, 0.9)
    return Program(model, lambda o, y: F.cross_entropy(o.flatten(0, 1), y.flatten()),
                   loader(text[:, :-1], text[:, 1:]), torch.optim.AdamW(model.parameters(), lr=3e-3),
                   accuracy(test[:, :-1], test[:, 1:]))


@sound("Masked language model: sees both sides, on purpose", steps=400, least=0.7)
def tsq_ok_masked_lm():
    def data(n, seed):
        text = markov(n, 12, 15, seed, 0.95)
        hide = torch.rand(n, 12, generator=g(seed + 3)) < 0.2
        return text.masked_fill(hide, 15), text.masked_fill(~hide, -100)

    x, y = data(400, 2)
    model = Blocks(16, 12)

    def score(m):
        return (m(x).argmax(-1) == y)[y >= 0].float().mean().item()

    return Program(model, lambda o, t: F.cross_entropy(o.flatten(0, 1), t.flatten(), ignore_index=-100),
                   loader(*data(2500, 1), batch=64), torch.optim.Adam(model.parameters(), lr=4e-3), score)


@sound("A denoising autoencoder of a series: the output sees what it is asked for", steps=400, least=0.75)
def tsq_ok_denoise():
    def data(n, seed):
        clean = series(n, 24, seed)[0]
        return clean + 0.5 * torch.randn(n, 24, 1, generator=g(seed + 1)), clean

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Conv1d(1, 24, 7, padding=3), nn.ReLU(), nn.Conv1d(24, 24, 7, padding=3),
                                     nn.ReLU(), nn.Conv1d(24, 1, 7, padding=3))

        def forward(self, x):
            return self.net(x.transpose(1, 2)).transpose(1, 2)

    model = Net()
    return Program(model, nn.MSELoss(), loader(*data(1000, 1)), torch.optim.Adam(model.parameters(), lr=4e-3),
                   r2(*data(300, 5)))


@sound("A deep set: order does not matter and is not seen", steps=400, least=0.8)
def tsq_ok_deep_set():
    class DeepSet(nn.Module):
        def __init__(self):
            super().__init__()
            self.phi = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32))
            self.rho = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

        def forward(self, x):
            return self.rho(self.phi(x).mean(1))

    def data(n, seed):
        x = torch.randn(n, 9, 2, generator=g(seed)) * (0.3 + torch.rand(n, 1, 2, generator=g(seed + 1)) * 1.5)
        return x, x.square().mean((1, 2))[:, None]

    model = DeepSet()
    return Program(model, nn.MSELoss(), loader(*data(2000, 1)), torch.optim.Adam(model.parameters(), lr=4e-3),
                   r2(*data(400, 7)))


@sound("Echo state network: a frozen random recurrence and a trained read-out", steps=400, least=0.85)
def tsq_ok_reservoir():
    class Reservoir(nn.Module):
        def __init__(self, n=100):
            super().__init__()
            self.rnn = nn.RNN(1, n, batch_first=True)
            w = torch.randn(n, n)
            with torch.no_grad():
                self.rnn.weight_hh_l0.copy_(0.9 * w / torch.linalg.eigvals(w).abs().max())
                self.rnn.weight_ih_l0.uniform_(-0.5, 0.5)
            self.rnn.requires_grad_(False)
            self.readout = nn.Linear(n, 1)

        def forward(self, x):
            return self.readout(self.rnn(x)[0][:, -1])

    model = Reservoir()
    return Program(model, nn.MSELoss(), loader(*series(1200, 30, 1)),
                   torch.optim.Adam(model.readout.parameters(), lr=5e-3), r2(*series(300, 30, 2)))


@sound("Pretrained word vectors, frozen, with a row of zeros for padding", steps=300, least=0.8)
def tsq_ok_frozen_vectors():
    table = torch.cat([torch.zeros(1, 24), torch.randn(60, 24, generator=g(31)) * 0.4])

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.vectors = nn.Embedding.from_pretrained(table, freeze=True, padding_idx=0)
            self.lstm = nn.LSTM(24, 32, batch_first=True, bidirectional=True)
            self.fc = nn.Linear(64, 4)

        def forward(self, ids):
            real = (ids > 0).float()[..., None]
            h, _ = self.lstm(self.vectors(ids))
            return self.fc((h * real).sum(1) / real.sum(1))

    def data(n, seed):
        x, y = topics(n, 16, 60, 4, seed, 1.5)
        length = torch.randint(8, 17, (n, 1), generator=g(seed + 7))
        return (x + 1).masked_fill(torch.arange(16) >= length, 0), y

    model = Net()
    return Program(model, nn.CrossEntropyLoss(), loader(*data(1500, 1)),
                   torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=5e-3), accuracy(*data(400, 3)))


@sound("Two towers with negatives from the batch and a learned temperature", steps=400, least=0.7)
def tsq_ok_two_towers():
    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.query = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 16))
            self.document = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 16))
            self.scale = nn.Parameter(torch.tensor(math.log(14.0)))

        def forward(self, query, document):
            q, d = F.normalize(self.query(query), dim=1), F.normalize(self.document(document), dim=1)
            return self.scale.exp() * q @ d.T

    def data(n, seed):
        z = torch.randn(n, 4, generator=g(seed))
        r = g(40)
        a, b = torch.randn(4, 12, generator=r), torch.randn(4, 20, generator=r)
        return z @ a / 2 + 0.1 * torch.randn(n, 12, generator=g(seed + 1)), z @ b / 2

    def loss(sim, _):
        t = torch.arange(len(sim))
        return (F.cross_entropy(sim, t) + F.cross_entropy(sim.T, t)) / 2

    class Pairs:
        def __init__(self, n):
            self.q, self.d = data(n, 1)

        def __iter__(self):
            for i in torch.randperm(len(self.q)).split(64):
                yield {"query": self.q[i], "document": self.d[i]}, i

        def __len__(self):
            return -(-len(self.q) // 64)

    q, d = data(100, 5)
    model = Towers()
    return Program(model, loss, Pairs(2000), torch.optim.Adam(model.parameters(), lr=3e-3),
                   lambda m: (m(q, d).argmax(1) == torch.arange(100)).float().mean().item())
