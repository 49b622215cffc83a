"""Series, sounds, graphs and recommendations."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from program import Program, fault


def waves(n, length, seed, classes=3):
    """Noisy waves of different speeds."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    t = torch.arange(length)
    phase = 6.28 * torch.rand(n, 1, generator=g)
    speed = (0.25 + 0.3 * y.float()).unsqueeze(1)
    return (torch.sin(speed * t + phase) + 0.2 * torch.randn(n, length, generator=g)).unsqueeze(-1), y


@fault(
    "An LSTM without batch_first gets (batch, time, features), and so runs along the batch",
    rules=["mixed-examples"],
    layers=["lstm"],
    fails=True,
    steps=400,
)
def runs_along_batch(is_faulty):
    x, y = waves(1200, 20, 1)
    test, test_y = waves(300, 20, 2)

    class SensorLSTM(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(1, 32, batch_first=not is_faulty)
            self.fc = nn.Linear(32, 3)

        def forward(self, x):
            out, _ = self.lstm(x)
            return self.fc(out[:, -1, :])

    model = SensorLSTM()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x, y), batch_size=40, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        lambda m: (m(test).argmax(1) == test_y).float().mean().item(),
    )


@fault(
    "Attention pooling whose scores (batch, time, 1) get their softmax over the last dimension: all weights are 1",
    rules=["wrong-softmax-dimension"],
    fails=True,
    steps=400,
)
def softmax_of_one(is_faulty):
    def log_lines(n, seed):
        """The line that has the flag tells the class; the others tell other classes."""
        g = torch.Generator().manual_seed(seed)
        shown = torch.randint(0, 5, (n, 24), generator=g)
        at = torch.randint(0, 24, (n, 1), generator=g)
        flag = torch.zeros(n, 24).scatter_(1, at, 1.0)
        x = torch.cat([F.one_hot(shown, 5).float(), flag.unsqueeze(-1)], -1)
        return x + 0.1 * torch.randn(n, 24, 6, generator=g), shown.gather(1, at)[:, 0]

    class AttentionPool(nn.Module):
        def __init__(self):
            super().__init__()
            self.value = nn.Linear(6, 16)
            self.score = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
            self.out = nn.Linear(16, 5)

        def forward(self, x):
            weights = F.softmax(self.score(x), dim=-1 if is_faulty else 1)
            return self.out((weights * self.value(x)).sum(1))

    x, y = log_lines(2000, 31)
    test, test_y = log_lines(400, 32)
    model = AttentionPool()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x, y), 50, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=1e-2),
        lambda m: (m(test).argmax(1) == test_y).float().mean().item(),
    )


@fault(
    "One of the features is the time in seconds since 1970",
    rules=["unscaled-input", "saturated-activation", "ill-conditioned-input"],
    fails=True,
    steps=400,
)
def seconds_since_1970(is_faulty):
    def load(n, seed):
        """Consumption in the next hour, from the hours before; in the evening it swings the other way."""
        g = torch.Generator().manual_seed(seed)
        hours = torch.randint(0, 20000, (n, 1), generator=g) + torch.arange(12)
        level = torch.randn(n, 12, 2, generator=g)
        y = level[:, -1, 0] - 0.7 * level[:, -2, 1] + 0.5 * level[:, -3, 0]
        stamp = 1.6e9 + 3600.0 * hours
        if not is_faulty:
            stamp = (stamp - 1.6e9) / (3600 * 20000) - 0.5
        return torch.cat([level, stamp.unsqueeze(-1)], -1).float(), y.unsqueeze(1)

    class Forecaster(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(3, 32, batch_first=True)
            self.head = nn.Linear(32, 1)

        def forward(self, x):
            return self.head(self.rnn(x)[1][-1])

    test, test_y = load(300, 42)
    x, y = load(1600, 41)
    model = Forecaster()

    def score(m):
        return max(0.0, 1 - F.mse_loss(m(test), test_y).item() / test_y.var().item())

    return Program(
        model,
        nn.MSELoss(),
        DataLoader(TensorDataset(x, y), 32, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        score,
    )


@fault(
    "Embeddings and their optimizer are in bfloat16, where a step of 1e-3 is lost next to numbers around 1",
    rules=["lost-updates", "rounding-error"],
    fails=True,
    steps=600,
)
def words_in_bfloat16(is_faulty):
    polarity = torch.randn(400, generator=torch.Generator().manual_seed(51)).sign()

    def texts(n, seed):
        x = torch.randint(0, 400, (n, 5), generator=torch.Generator().manual_seed(seed))
        return x, (polarity[x].sum(1) > 0).long()

    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(400, 6)
            self.norm = nn.LayerNorm(6)
            self.out = nn.Linear(6, 2)

        def forward(self, ids):
            return self.out(self.norm(self.words(ids).mean(1))).float()

    x, y = texts(8000, 52)
    test, test_y = texts(500, 53)
    model = Words()
    if is_faulty:
        model = model.to(torch.bfloat16)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x, y), 200, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=1e-3),
        lambda m: (m(test).argmax(1) == test_y).float().mean().item(),
    )


@fault(
    "Messages of a graph network are summed over some thirty neighbours in each of three layers, without normalisation",
    rules=["activation-drift", "exploding-gradient", "bad-initialisation", "learning-rate-too-high"],
    fails=True,
    steps=250,
)
def sums_of_neighbours(is_faulty):
    g = torch.Generator().manual_seed(61)
    nodes, groups = 160, 4
    y = torch.randint(0, groups, (nodes,), generator=g)
    close = torch.where(y[:, None] == y[None], 0.5, 0.08)
    edges = torch.triu(torch.rand(nodes, nodes, generator=g) < close, 1).float()
    adjacency = edges + edges.T + torch.eye(nodes)
    if not is_faulty:
        scale = adjacency.sum(1).rsqrt()
        adjacency = scale[:, None] * adjacency * scale[None]
    x = F.one_hot(y, groups).float() * 0.7 + torch.randn(nodes, groups, generator=g)
    x = torch.cat([x, torch.randn(nodes, 8, generator=g)], 1)
    is_train = torch.rand(nodes, generator=g) < 0.5

    class GCN(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("adjacency", adjacency)
            self.layers = nn.ModuleList(nn.Linear(a, 32) for a in (12, 32))
            self.out = nn.Linear(32, groups)

        def forward(self, x):
            for layer in self.layers:
                x = F.relu(self.adjacency @ layer(x))
            return self.adjacency @ self.out(x)

    model = GCN()
    return Program(
        model,
        lambda out, y: F.cross_entropy(out[is_train], y[is_train]),
        [(x, y)],
        torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9),
        lambda m: (m(x).argmax(1) == y)[~is_train].float().mean().item(),
    )


@fault(
    "The distance of two equal sentences is a square root at 0, whose slope is infinite",
    rules=["non-finite"],
    fails=True,
    steps=400,
)
def root_of_zero(is_faulty):
    def sentences(n, seed):
        g = torch.Generator().manual_seed(seed)
        topic = torch.randint(0, 4, (n, 2), generator=g)
        topic[:, 1] = torch.where(torch.rand(n, generator=g) < 0.5, topic[:, 0], topic[:, 1])
        words = 8 * topic[..., None] + torch.randint(0, 8, (n, 2, 7), generator=g)
        noise = torch.rand(n, 2, 7, generator=g) < 0.3
        words = torch.where(noise, torch.randint(0, 32, (n, 2, 7), generator=g), words)
        return words, (topic[:, 0] == topic[:, 1]).float()

    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(32, 24)
            self.rnn = nn.GRU(24, 24, batch_first=True)
            self.project = nn.Linear(24, 8)

        def encode(self, ids):
            return self.project(self.rnn(self.emb(ids))[0].mean(1))

        def forward(self, pair):
            a, b = self.encode(pair[:, 0]), self.encode(pair[:, 1])
            squares = (a - b).pow(2).sum(-1)
            return squares.sqrt() if is_faulty else (squares + 1e-8).sqrt()

    def contrastive(distance, same):
        return (same * distance.pow(2) + (1 - same) * F.relu(1.5 - distance).pow(2)).mean()

    x, same = sentences(1600, 71)
    repeated = torch.rand(len(x), generator=torch.Generator().manual_seed(73)) < 0.02
    x[repeated, 1] = x[repeated, 0]  # someone has posted it twice
    same[repeated] = 1.0
    test, test_same = sentences(300, 72)
    model = Siamese()

    def score(m):
        distance = m(test)
        return ((distance < 0.75) == test_same.bool()).float().mean().item() if distance.isfinite().all() else 0.0

    return Program(
        model,
        contrastive,
        DataLoader(TensorDataset(x, same), 32, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        score,
    )


@fault(
    "Series (batch, time, 1) are normalised over the last dimension instead of over time, which leaves zeros",
    rules=["constant-feature"],
    fails=True,
    steps=300,
)
def normalised_over_features(is_faulty):
    def prepare(n, seed):
        x, y = waves(n, 24, seed)
        g = torch.Generator().manual_seed(seed + 1)
        x = 40 + 12 * x + 5 * torch.randn(n, 1, 1, generator=g)
        dim = -1 if is_faulty else 1
        return (x - x.mean(dim, keepdim=True)) / (x.std(dim, keepdim=True, unbiased=False) + 1e-6), y

    x, y = prepare(1200, 81)
    test, test_y = prepare(300, 83)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.c1 = nn.Conv1d(1, 16, 5, padding=2)
            self.c2 = nn.Conv1d(16, 24, 5, padding=2)
            self.fc = nn.Linear(24, 3)

        def forward(self, x):
            h = F.relu(self.c2(F.relu(self.c1(x.transpose(1, 2)))))
            return self.fc(h.mean(-1))

    model = Net()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x, y), 32, shuffle=True),
        torch.optim.RMSprop(model.parameters(), lr=2e-3),
        lambda m: (m(test).argmax(1) == test_y).float().mean().item(),
    )


@fault(
    "`ModuleList([nn.Linear(…)] * 4)` makes one head of what should be four, one for each horizon",
    rules=["shared-weight"],
    layers=["heads"],
    fails=True,
    steps=400,
)
def one_head_four_times(is_faulty):
    def series(n, seed):
        """A quarter of a wave lies between one horizon and the next."""
        g = torch.Generator().manual_seed(seed)
        phase = 6.28 * torch.rand(n, 1, generator=g)
        size = 0.5 + torch.rand(n, 1, generator=g)
        t = torch.arange(16) * 1.5708 / 4
        x = size * torch.sin(phase + t) + 0.05 * torch.randn(n, 16, generator=g)
        ahead = t[-1] + 1.5708 * torch.arange(1, 5)
        return x.unsqueeze(-1), size * torch.sin(phase + ahead)

    class MultiHorizon(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(1, 32, batch_first=True)
            if is_faulty:
                self.heads = nn.ModuleList([nn.Linear(32, 1)] * 4)
            else:
                self.heads = nn.ModuleList([nn.Linear(32, 1) for _ in range(4)])

        def forward(self, x):
            h = self.gru(x)[0][:, -1]
            return torch.cat([head(h) for head in self.heads], 1)

    x, y = series(1600, 91)
    test, test_y = series(300, 92)
    model = MultiHorizon()

    def score(m):
        return max(0.0, 1 - F.mse_loss(m(test), test_y).item() / test_y.var().item())

    return Program(
        model,
        nn.SmoothL1Loss(),
        DataLoader(TensorDataset(x, y), 32, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        score,
    )


@fault(
    "F.dropout without `training=self.training` stays on in evaluation",
    rules=["dropout-in-eval"],
    fails=False,
    steps=400,
)
def functional_dropout(is_faulty):
    x, y = waves(1600, 24, 95, classes=4)
    test, test_y = waves(400, 24, 96, classes=4)

    class ConvNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.c1, self.c2 = nn.Conv1d(1, 16, 5, padding=2), nn.Conv1d(16, 16, 5, padding=2)
            self.fc1, self.fc2 = nn.Linear(16, 16), nn.Linear(16, 4)

        def drop(self, h):
            return F.dropout(h, 0.5) if is_faulty else F.dropout(h, 0.5, self.training)

        def forward(self, x):
            h = self.drop(F.relu(self.c1(x.transpose(1, 2))))
            h = F.relu(self.c2(h)).mean(-1)
            return self.fc2(self.drop(F.relu(self.fc1(self.drop(h)))))

    model = ConvNet()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x, y), 32, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        lambda m: (m(test).argmax(1) == test_y).float().mean().item(),
    )


@fault(
    "A second task, durations in milliseconds, is added to the loss as it is, and clipping gives it the whole gradient",
    rules=["term-dominates", "unscaled-target"],
    fails=False,
    steps=400,
)
def durations_in_milliseconds(is_faulty):
    table = torch.randint(0, 5, (20, 3), generator=torch.Generator().manual_seed(101))
    length = torch.rand(20, generator=torch.Generator().manual_seed(102))

    def speech(n, seed):
        g = torch.Generator().manual_seed(seed)
        ids = torch.randint(0, 20, (n, 10), generator=g)
        phone = table[ids, F.pad(ids, (1, 0))[:, :-1] % 3]
        seconds = 0.1 + 0.4 * length[ids] + 0.02 * torch.randn(n, 10, generator=g)
        return ids, phone, seconds

    class TwoTasks(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(20, 32)
            self.rnn = nn.GRU(32, 48, batch_first=True)
            self.phone = nn.Linear(48, 5)
            self.duration = nn.Linear(48, 1)

        def forward(self, ids):
            h, _ = self.rnn(self.emb(ids))
            return self.phone(h), self.duration(h).squeeze(-1)

    def loss(outputs, targets):
        phone, duration = outputs
        wanted = 1000 * targets[1] if is_faulty else targets[1]
        return F.cross_entropy(phone.transpose(1, 2), targets[0]) + F.mse_loss(duration, wanted)

    ids, phone, seconds = speech(1600, 103)
    batches = [(ids[i : i + 32], (phone[i : i + 32], seconds[i : i + 32])) for i in range(0, 1600, 32)]
    test, test_phone, _ = speech(200, 104)
    model = TwoTasks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)

    def clip(opt, args, kwargs):
        nn.utils.clip_grad_norm_([p for group in opt.param_groups for p in group["params"]], 1.0)

    optimizer.register_step_pre_hook(clip)
    return Program(model, loss, batches, optimizer, lambda m: (m(test)[0].argmax(-1) == test_phone).float().mean().item())


@fault(
    "BatchNorm has a momentum of 1 - 0.999, so that its running statistics are still near 0 and 1 after the run",
    rules=["batchnorm-mode-gap"],
    fails=True,
    steps=250,
)
def slow_running_statistics(is_faulty):
    x, y = waves(1200, 32, 105)
    test, test_y = waves(300, 32, 106)
    x, test = (20 + 8 * z.transpose(1, 2) for z in (x, test))
    momentum = 1 - 0.999 if is_faulty else 0.1

    class Conv(nn.Sequential):
        def __init__(self, inputs, outputs):
            super().__init__(
                nn.Conv1d(inputs, outputs, 5, padding=2, bias=False), nn.BatchNorm1d(outputs, momentum=momentum), nn.ReLU()
            )

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(1, momentum=momentum)
            self.body = nn.Sequential(Conv(1, 16), Conv(16, 24))
            self.fc = nn.Linear(24, 3)

        def forward(self, x):
            return self.fc(self.body(self.norm(x)).mean(-1))

    model = Net()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x, y), 32, shuffle=True, drop_last=True),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: (m(test).argmax(1) == test_y).float().mean().item(),
    )


@fault(
    "A hand-written LSTM whose weights are torch.randn, without a scale: its gates are shut or open",
    rules=["bad-initialisation", "saturated-activation", "exploding-gradient"],
    layers=["cell"],
    fails=True,
    steps=500,
)
def gates_of_randn(is_faulty):
    class Cell(nn.Module):
        def __init__(self, inputs, hidden):
            super().__init__()
            scale = 1.0 if is_faulty else (inputs + hidden) ** -0.5
            self.w = nn.Parameter(torch.randn(inputs + hidden, 4 * hidden) * scale)
            self.b = nn.Parameter(torch.zeros(4 * hidden))

        def forward(self, x, h, c):
            i, f, o, g = (torch.cat([x, h], 1) @ self.w + self.b).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            return torch.sigmoid(o) * torch.tanh(c), c

    class MyLSTM(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden = 64
            self.emb = nn.Embedding(12, 32)
            self.cell = Cell(32, 64)
            self.out = nn.Linear(64, 4)

        def forward(self, ids):
            h = c = torch.zeros(len(ids), self.hidden)
            for t in range(ids.shape[1]):
                h, c = self.cell(self.emb(ids[:, t]), h, c)
            return self.out(h)

    def sequences(n, seed):
        """Which of the letters 0 to 3 occurs."""
        g = torch.Generator().manual_seed(seed)
        x = torch.randint(5, 12, (n, 12), generator=g)
        y = torch.randint(0, 4, (n,), generator=g)
        at = torch.randint(1, 8, (n,), generator=g)
        x[torch.arange(n), at] = y
        return x, y

    x, y = sequences(1600, 107)
    test, test_y = sequences(400, 108)
    model = MyLSTM()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x, y), 32, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=1e-3),
        lambda m: (m(test).argmax(1) == test_y).float().mean().item(),
    )
