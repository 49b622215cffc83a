import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ti_data import acc, clusters, gen, r2, surface


@fault("A scheduler meant for epochs (factor 0.5) is stepped after each batch: the rate is gone after some twenty steps",
       rules=("learning-rate-too-low",), fails=True, steps=250)
def epoch_schedule_per_batch(bad):
    x, y = surface(1500, seed=21)
    net = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1), nn.Flatten(0))
    opt = torch.optim.Adam(net.parameters(), 3e-3)
    sch = torch.optim.lr_scheduler.StepLR(opt, step_size=1 if bad else 96, gamma=0.5)
    return Program(net, nn.MSELoss(), DataLoader(TensorDataset(x[:1200], y[:1200]), 50, shuffle=True), opt,
                   lambda n: r2(n(x[1200:]), y[1200:]), scheduler=sch)


@fault("The loss is a sum over a batch of 128 with the rate for a mean",
       rules=("summed-loss", "learning-rate-too-high", "non-finite"), fails=True, steps=200)
def sum_over_batch(bad):
    x, y = surface(1600, seed=23)
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
    loss = nn.MSELoss(reduction="sum" if bad else "mean")
    return Program(net, loss, DataLoader(TensorDataset(x[:1280], y[:1280]), 128, shuffle=True),
                   torch.optim.SGD(net.parameters(), 0.05, momentum=0.9), lambda n: r2(n(x[1280:]), y[1280:]))


@fault("Batches of two (memory was short) with BatchNorm in each layer",
       rules=("small-batch-batchnorm", "batchnorm-mode-gap"), layers=("1", "4"), fails=True, steps=400)
def batches_of_two(bad):
    x, y = surface(1600, seed=24)
    net = nn.Sequential(nn.Linear(8, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 1), nn.Flatten(0))
    return Program(net, nn.MSELoss(), DataLoader(TensorDataset(x[:1280], y[:1280]), 2 if bad else 64, shuffle=True),
                   torch.optim.Adam(net.parameters(), 4e-3), lambda n: r2(n(x[1280:]), y[1280:]))


@fault("Columns are divided by their standard deviation, which is 0 for one of them: 0/0",
       rules=("non-finite",), fails=True, steps=200)
def standardised_constant_column(bad):
    x, y = clusters(1500, seed=27)
    x[:, 7] = 3.0
    mean, std = x[:1200].mean(0), x[:1200].std(0, unbiased=False)
    std = torch.where(x[:1200].amax(0) == x[:1200].amin(0), torch.zeros_like(std), std)
    mean[7] = 3.0
    x = (x - mean) / (std if bad else std.clamp(min=1e-6))
    net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 4))
    return Program(net, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x[:1200], y[:1200]), 50, shuffle=True),
                   torch.optim.Adam(net.parameters(), 5e-3), lambda n: acc(n(x[1200:]).nan_to_num(), y[1200:]))


@fault("Up to six measurements a patient, filled up with zeros; the zeros count as targets",
       rules=("padding-in-loss",), fails=False, steps=300)
def filled_measurements_count(bad):
    g = gen(29)
    x = torch.randn(1500, 5, generator=g)
    t = torch.arange(6.0)
    y = 2 + x[:, :1] + 0.8 * torch.sin(x[:, 1:2] * 2) + 0.15 * t * x[:, 2:3]
    there = t[None] < torch.randint(1, 7, (1500, 1), generator=g)
    y = (y + 0.1 * torch.randn(1500, 6, generator=g)) * there
    net = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 6))

    def step(net, batch):
        a, b, m = batch
        err = (net(a) - b) ** 2
        return err.mean() if bad else (err * m).sum() / m.sum()

    return Program(net, None, DataLoader(TensorDataset(x[:1200], y[:1200], there[:1200].float()), 50, shuffle=True),
                   torch.optim.Adam(net.parameters(), 5e-3), lambda n: r2(n(x[1200:])[there[1200:]], y[1200:][there[1200:]]), step=step)


@fault("All weights are set to one constant 'for reproducibility'",
       rules=("symmetric-initialisation", "bad-initialisation"), layers=("0", "2", "4"), fails=False, steps=250)
def constant_weights(bad):
    x, y = clusters(1500, k=5, seed=30)
    net = nn.Sequential(nn.Linear(10, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 5))
    if bad:
        for p in net.parameters():
            nn.init.constant_(p, 0.02)
    return Program(net, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x[:1200], y[:1200]), 50, shuffle=True),
                   torch.optim.Adam(net.parameters(), 4e-3), lambda n: acc(n(x[1200:]), y[1200:]))
