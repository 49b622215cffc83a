"""Sound programs on series, graphs and recommendations."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from program import Program, sound
from texts_series import waves


def accuracy(x, y):
    return lambda m: (m(x).argmax(-1) == y).float().mean().item()


def explained(x, y):
    return lambda m: max(0.0, 1 - F.mse_loss(m(x).float(), y.float()).item() / y.var().item())


@sound("Outputs of a node depend on other nodes, as they should in a graph network; one batch, most labels unused", steps=200, least=0.8)
def graph_of_papers():
    g = torch.Generator().manual_seed(301)
    nodes, fields = 200, 4
    y = torch.randint(0, fields, (nodes,), generator=g)
    close = torch.where(y[:, None] == y[None], 0.1, 0.01)
    edges = torch.triu(torch.rand(nodes, nodes, generator=g) < close, 1).float()
    a = edges + edges.T + torch.eye(nodes)
    scale = a.sum(1).rsqrt()
    a = scale[:, None] * a * scale
    x = (torch.rand(nodes, 40, generator=g) < 0.05 + 0.15 * (torch.arange(40) // 10 == y[:, None])).float()
    known = torch.rand(nodes, generator=g) < 0.4

    class GCN(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("a", a)
            self.l1, self.l2 = nn.Linear(40, 16), nn.Linear(16, fields)
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            h = F.relu(self.a @ self.l1(self.drop(x)))
            return self.a @ self.l2(self.drop(h))

    labels = y.masked_fill(~known, -100)
    model = GCN()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        [(x, labels)],
        torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4),
        lambda m: (m(x).argmax(1) == y)[~known].float().mean().item(),
    )


@sound("Two towers with negatives from the batch: logits (batch, batch) and targets 0, 1, 2, …", steps=400, least=0.7)
def negatives_from_batch():
    def pairs(n, seed):
        g = torch.Generator().manual_seed(seed)
        question = torch.randint(0, 30, (n, 4), generator=g)
        answer = (question[:, torch.randperm(4, generator=g)] * 7 + 3) % 30
        return question, answer

    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.question = nn.Sequential(nn.EmbeddingBag(30, 32), nn.Linear(32, 32))
            self.answer = nn.Sequential(nn.EmbeddingBag(30, 32), nn.Linear(32, 32))
            self.scale = nn.Parameter(torch.tensor(2.5))

        def forward(self, batch):
            a, b = F.normalize(self.question(batch[:, 0]), dim=-1), F.normalize(self.answer(batch[:, 1]), dim=-1)
            return self.scale.exp() * a @ b.T

    def loss(logits, target):
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2

    def gather(rows):
        return torch.stack(rows), torch.arange(len(rows))

    data = DataLoader(torch.stack(pairs(2000, 311), 1), 32, shuffle=True, collate_fn=gather)
    test = torch.stack(pairs(100, 312), 1)
    model = Towers()
    return Program(model, loss, data, torch.optim.Adam(model.parameters(), lr=5e-3), accuracy(test, torch.arange(100)))


@sound("The recurrent weights are random and frozen: an echo state network, of which the readout alone is trained", steps=400, least=0.8)
def echo_state_network():
    class Echo(nn.Module):
        def __init__(self):
            super().__init__()
            self.reservoir = nn.RNN(1, 100, batch_first=True)
            weight = torch.randn(100, 100)
            weight *= 0.9 / torch.linalg.eigvals(weight).abs().max()
            self.reservoir.weight_hh_l0.data.copy_(weight)
            self.reservoir.weight_ih_l0.data.uniform_(-0.5, 0.5)
            for p in self.reservoir.parameters():
                p.requires_grad_(False)
            self.readout = nn.Linear(100, 1)

        def forward(self, x):
            return self.readout(self.reservoir(x)[0][:, 5:])

    def series(n, seed):
        u = torch.rand(n, 20, 1, generator=torch.Generator().manual_seed(seed)) - 0.5
        return u, u[:, 3:-2] + 0.5 * u[:, 2:-3]  # what came two and three steps before

    x, y = series(800, 321)
    model = Echo()
    return Program(
        model,
        nn.MSELoss(),
        DataLoader(TensorDataset(x, y), 32, shuffle=True),
        torch.optim.Adam(model.readout.parameters(), lr=1e-2),
        explained(*series(200, 322)),
    )


@sound("Nothing: a convolutional network with BatchNorm for waves of sensors", steps=300, least=0.9)
def sensor_convolutions():
    x, y = waves(1200, 32, 331, classes=4)
    test, test_y = waves(300, 32, 332, classes=4)
    model = nn.Sequential(
        nn.Conv1d(1, 16, 5, padding=2, bias=False),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Conv1d(16, 32, 5, padding=2, bias=False),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(32, 4),
    )
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x.transpose(1, 2), y), 32, shuffle=True),
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True),
        accuracy(test.transpose(1, 2), test_y),
    )


@sound("Nothing nonlinear: factors of users and items with their biases, and ratings around their mean", steps=500, least=0.7)
def matrix_factors():
    users, items, known = 60, 80, 4200
    g = torch.Generator().manual_seed(341)
    taste, kind = torch.randn(users, 2, generator=g), torch.randn(items, 2, generator=g)
    at = torch.randperm(users * items, generator=g)
    pair = torch.stack([at // items, at % items], 1)
    rating = 3.5 + 0.7 * (taste[pair[:, 0]] * kind[pair[:, 1]]).sum(1) + 0.1 * torch.randn(len(at), generator=g)

    class Factors(nn.Module):
        def __init__(self):
            super().__init__()
            self.user, self.item = nn.Embedding(users, 6), nn.Embedding(items, 6)
            self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)
            self.mean = nn.Parameter(rating[:known].mean())
            for table in (self.user, self.item):
                nn.init.normal_(table.weight, std=0.1)
            for table in (self.user_bias, self.item_bias):
                nn.init.zeros_(table.weight)

        def forward(self, pair):
            u, i = pair.T
            return self.mean + self.user_bias(u)[:, 0] + self.item_bias(i)[:, 0] + (self.user(u) * self.item(i)).sum(-1)

    model = Factors()
    return Program(
        model,
        nn.MSELoss(),
        DataLoader(TensorDataset(pair[:known], rating[:known]), 128, shuffle=True),
        torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.05),
        explained(pair[known:], rating[known:]),
    )


@sound("Raw measurements in the thousands, which a BatchNorm in front of the GRU brings to scale", steps=400, least=0.85)
def raw_units_behind_batchnorm():
    def station(n, seed):
        g = torch.Generator().manual_seed(seed)
        z = torch.randn(n, 10, 3, generator=g).cumsum(1) / 2
        x = torch.tensor([101300.0, 290.0, 0.004]) + z * torch.tensor([900.0, 8.0, 0.001])
        return x, (z[:, -1, 0] - z[:, -3, 1] + 0.5 * z[:, :, 2].mean(1)).unsqueeze(1)

    class Weather(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.BatchNorm1d(3, affine=False)
            self.gru = nn.GRU(3, 32, batch_first=True)
            self.head = nn.Linear(32, 1)

        def forward(self, x):
            x = self.scale(x.transpose(1, 2)).transpose(1, 2)
            return self.head(self.gru(x)[1][0])

    x, y = station(1600, 351)
    model = Weather()
    return Program(
        model,
        nn.HuberLoss(),
        DataLoader(TensorDataset(x, y), 32, shuffle=True, drop_last=True),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        explained(*station(300, 352)),
    )


@sound("Nothing: CTC with blanks, of frames of sound", steps=400, least=0.8)
def frames_to_symbols():
    symbols, frames, words = 6, 20, 4

    def spoken(n, seed):
        g = torch.Generator().manual_seed(seed)
        y = torch.randint(1, symbols, (n, words), generator=g)
        sounds = torch.randn(symbols, 8, generator=torch.Generator().manual_seed(7))
        frame = torch.zeros(n, frames, dtype=torch.long)
        for k in range(words):
            begin = 5 * k + torch.randint(0, 2, (n,), generator=g)
            for d in range(3):
                frame[torch.arange(n), begin + d] = y[:, k]
        return sounds[frame] + 0.3 * torch.randn(n, frames, 8, generator=g), y

    class Acoustic(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(8, 24, bidirectional=True, batch_first=True)
            self.out = nn.Linear(48, symbols)

        def forward(self, x):
            return self.out(self.gru(x)[0]).log_softmax(-1).transpose(0, 1)

    ctc = nn.CTCLoss()

    def loss(log_probs, y):
        n = len(y)
        return ctc(log_probs, y, torch.full((n,), frames), torch.full((n,), words))

    test, test_y = spoken(150, 362)

    def score(model):
        paths = model(test).argmax(-1).T
        found = [[int(s) for s in torch.unique_consecutive(path) if s] for path in paths]
        return sum(a == b for a, b in zip(found, test_y.tolist())) / len(test_y)

    model = Acoustic()
    data = DataLoader(TensorDataset(*spoken(1600, 361)), 32, shuffle=True)
    return Program(model, loss, data, torch.optim.Adam(model.parameters(), 4e-3), score)


@sound("The forward pass runs in bfloat16 by autocast, the weights stay in float32; half trained", trained=150, steps=400, least=0.85)
def autocast_dilations():
    def series(n, seed):
        g = torch.Generator().manual_seed(seed)
        phase, speed = 6.28 * torch.rand(n, 1, generator=g), 0.3 + 0.4 * torch.rand(n, 1, generator=g)
        wave = torch.sin(phase + speed * torch.arange(33))
        return wave[:, None, :-4], wave[:, 4:]  # four steps ahead, at each step

    class Causal(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList(nn.Conv1d(a, 24, 2, dilation=d) for a, d in ((1, 1), (24, 2), (24, 4)))
            self.out = nn.Conv1d(24, 1, 1)

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                for conv in self.convs:
                    x = F.gelu(conv(F.pad(x, (conv.dilation[0], 0))))
                return self.out(x).squeeze(1).float()

    x, y = series(1200, 371)
    test, test_y = series(200, 372)
    model = Causal()
    return Program(
        model,
        lambda out, y: F.l1_loss(out[:, 8:], y[:, 8:]),
        DataLoader(TensorDataset(x, y), 32, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=4e-3),
        lambda m: max(0.0, 1 - F.mse_loss(m(test)[:, 8:], test_y[:, 8:]).item() / test_y.var().item()),
    )


@sound("Counts with a Poisson loss: outputs are logarithms of rates, and the loss is negative; in float64", steps=400, least=0.6)
def counts_of_calls():
    def calls(n, seed):
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(n, 8, 2, generator=g, dtype=torch.float64)
        rate = torch.exp(1.5 + 0.7 * x[:, -1, 0] - 0.5 * x[:, -2, 1])
        return x, torch.poisson(rate, generator=g).unsqueeze(1)

    class Rate(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(2, 24, batch_first=True)
            self.log_rate = nn.Linear(24, 1)

        def forward(self, x):
            return self.log_rate(self.lstm(x)[0][:, -1])

    test, test_y = calls(500, 382)
    model = Rate().double()

    def score(m):
        """The rank correlation of rates and counts."""
        a, b = m(test)[:, 0].argsort().argsort().double(), test_y[:, 0].argsort().argsort().double()
        return torch.corrcoef(torch.stack([a, b]))[0, 1].item()

    return Program(
        model,
        nn.PoissonNLLLoss(log_input=True),
        DataLoader(TensorDataset(*calls(1600, 381)), 32, shuffle=True),
        torch.optim.RMSprop(model.parameters(), lr=3e-3),
        score,
    )
