"""Tables: what goes wrong before and after the network."""

import torch
import torch.nn.functional as F
from program import Program, fault
from ti_data import accuracy, clusters, curve, r2
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@fault("features are shuffled with one permutation, labels with another", rules=["labels-unrelated"], fails=True, steps=250)
def frame_shuffled_without_its_labels(is_faulty):
    x, y, xt, yt = clusters(1500, 10, 4, 11)
    g = torch.Generator().manual_seed(3)
    order = torch.randperm(len(x), generator=g)
    x = x[order]
    y = y[torch.randperm(len(y), generator=g)] if is_faulty else y[order]
    model = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 4))
    return Program(
        model,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=2e-3),
        lambda m: accuracy(m, xt, yt),
    )


@fault("(N, 1) predictions against (N,) targets: the error is taken over all pairs", rules=["output-loss-mismatch"], fails=True, steps=250)
def column_against_row(is_faulty):
    x, y, xt, yt = curve(1200, 6, 31)
    net = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 1))
    batches = [(x[i : i + 40], y[i : i + 40] if is_faulty else y[i : i + 40, None]) for i in range(0, 1200, 40)]
    return Program(
        net,
        lambda out, target: ((out - target) ** 2).mean(),
        batches,
        torch.optim.Adam(net.parameters(), lr=5e-3),
        lambda m: r2(m(xt), yt),
    )


class Experts(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gate = nn.Linear(6, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1)) for _ in range(4))
        self.dim = dim

    def forward(self, x):
        g = F.softmax(self.gate(x), dim=self.dim)
        return (g * torch.cat([e(x) for e in self.experts], 1)).sum(1)


@fault(
    "the gate of a mixture of experts is normalised over the batch, not over the experts",
    rules=["wrong-softmax-dimension", "mixed-examples"],
    layers=["gate"],
    fails=True,
    steps=300,
)
def gate_over_the_batch(is_faulty):
    x, y, xt, yt = curve(1500, 6, 41)
    model = Experts(0 if is_faulty else 1)
    return Program(
        model,
        nn.MSELoss(),
        DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=5e-3),
        lambda m: r2(m(xt), yt),
    )


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.kind_head = nn.Linear(48, 3)
        self.value_head = nn.Sequential(nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 1))

    def forward(self, x):
        h = self.trunk(x)
        return self.kind_head(h), self.value_head(h)[:, 0]


@fault(
    "one of two task losses goes into the total as a number, without its graph",
    rules=["no-gradient"],
    layers=["value_head"],
    fails=False,
    steps=300,
)
def second_task_as_a_number(is_faulty):
    x, v, xt, vt = curve(1500, 8, 51)
    k, kt = [(a[:, 4] + 0.5 * a[:, 5] > 0).long() + (a[:, 6] > 0.5).long() for a in (x, xt)]
    model = TwoHeads()

    def step(m, batch):
        rows, kind, value = batch
        a, b = m(rows)
        total = F.cross_entropy(a, kind)
        second = F.mse_loss(b, value)
        return total + (second.item() if is_faulty else second)

    def score(m):
        a, b = m(xt)
        return 0.5 * (a.argmax(1) == kt).float().mean().item() + 0.5 * r2(b, vt)

    return Program(
        model,
        None,
        DataLoader(TensorDataset(x, k, v), batch_size=64, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=3e-3),
        score,
        step=step,
    )


@fault("a column that is the same in all rows is standardised by its standard deviation of 0", rules=["non-finite", "constant-feature"], fails=True, steps=200)
def scaler_divides_by_zero(is_faulty):
    x, y, xt, yt = clusters(1200, 9, 3, 71)
    x, xt = [torch.cat([a * 3 + 10, torch.full((len(a), 1), 2019.0)], 1) for a in (x, xt)]
    mean, std = x.mean(0), x.std(0, correction=0)
    mean[-1] = 2019.0
    if is_faulty:
        std[-1] = 0.0
    else:
        std = torch.where(std < 1e-3, torch.ones_like(std), std)
    x, xt = (x - mean) / std, (xt - mean) / std
    net = nn.Sequential(nn.Linear(10, 32), nn.ELU(), nn.Linear(32, 3))
    return Program(
        net,
        nn.CrossEntropyLoss(),
        DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True),
        torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
        lambda m: accuracy(m, xt, yt) if m(xt).isfinite().all() else 0.0,
    )
