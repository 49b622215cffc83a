import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ti_data import acc, clusters, gen, r2, surface


@fault("The network returns a rate (softplus), and PoissonNLLLoss is left at its default that takes the logarithm of the rate",
       rules=("output-loss-mismatch",), fails=True, steps=250)
def poisson_of_rate_as_log_rate(bad):
    g = gen(11)
    x = torch.randn(1500, 6, generator=g)
    rate = torch.exp(0.8 + 0.7 * x[:, 0] + 0.5 * torch.sin(2 * x[:, 1]))
    y = torch.poisson(rate, generator=g)
    net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1), nn.Softplus(), nn.Flatten(0))
    loss = nn.PoissonNLLLoss() if bad else nn.PoissonNLLLoss(log_input=False)
    return Program(net, loss, DataLoader(TensorDataset(x[:1200], y[:1200]), 50, shuffle=True),
                   torch.optim.Adam(net.parameters(), 5e-3), lambda n: r2(n(x[1200:]), rate[1200:]))


class TabNet(nn.Module):
    def __init__(self, shared):
        super().__init__()
        self.inp = nn.Linear(10, 32)
        self.mid = nn.Linear(32, 32)
        self.out = nn.Linear(32, 4)
        norm = nn.BatchNorm1d(32)
        self.norm1 = norm
        self.norm2 = norm if shared else nn.BatchNorm1d(32)

    def forward(self, x):
        x = F.relu(self.norm1(self.inp(x)))
        x = self.norm2(4 * self.mid(x) + 3)
        return self.out(F.relu(x))


@fault("One BatchNorm object is used after two layers whose outputs differ in scale",
       rules=("shared-weight", "batchnorm-mode-gap"), layers=("norm1", "norm2"), fails=False, steps=250)
def one_norm_for_two_layers(bad):
    x, y = clusters(1500, seed=12)
    net = TabNet(bad)
    return Program(net, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x[:1200], y[:1200]), 50, shuffle=True),
                   torch.optim.Adam(net.parameters(), 3e-3), lambda n: acc(n(x[1200:]), y[1200:]))


@fault("momentum of BatchNorm is set to 0.001 (the complement of another framework's 0.999): evaluation uses statistics near their start",
       rules=("batchnorm-mode-gap",), layers=("0",), fails=True, steps=200)
def norm_momentum_of_another_framework(bad):
    x, y = surface(1500, seed=13)
    x = x * 12 + 40
    net = nn.Sequential(nn.BatchNorm1d(8, momentum=0.001 if bad else 0.1), nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1), nn.Flatten(0))
    return Program(net, nn.MSELoss(), DataLoader(TensorDataset(x[:1200], y[:1200]), 50, shuffle=True),
                   torch.optim.Adam(net.parameters(), 5e-3), lambda n: r2(n(x[1200:]), y[1200:]))


class Dense(nn.Module):
    def __init__(self, keep):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 48), nn.Linear(48, 48), nn.Linear(48, 1)
        self.drop1, self.drop2 = nn.Dropout(keep), nn.Dropout(keep)

    def forward(self, x):
        x = self.drop1(torch.relu(self.a(x)))
        x = self.drop2(torch.relu(self.b(x)))
        return self.c(x).squeeze(-1)


@fault("0.95, meant as the share that is kept, is passed to Dropout as the share that is dropped",
       rules=("dropout-too-strong",), layers=("drop1", "drop2"), fails=True, steps=300)
def keep_probability(bad):
    x, y = surface(1500, seed=14)
    net = Dense(0.95 if bad else 0.05)
    return Program(net, nn.MSELoss(), DataLoader(TensorDataset(x[:1200], y[:1200]), 50, shuffle=True),
                   torch.optim.Adam(net.parameters(), 4e-3), lambda n: r2(n(x[1200:]), y[1200:]))


class WithFunctionalDropout(nn.Module):
    def __init__(self, always):
        super().__init__()
        self.always = always
        self.a, self.b = nn.Linear(8, 96), nn.Linear(96, 1)

    def forward(self, x):
        h = torch.tanh(self.a(x))
        h = F.dropout(h, 0.3) if self.always else F.dropout(h, 0.3, self.training)
        return self.b(h)[:, 0]


@fault("F.dropout is called without training=self.training, so that predictions are noisy too",
       rules=("dropout-in-eval",), fails=False, steps=400)
def functional_dropout_always_on(bad):
    x, y = surface(1500, seed=15)
    net = WithFunctionalDropout(bad)
    return Program(net, nn.MSELoss(), DataLoader(TensorDataset(x[:1200], y[:1200]), 50, shuffle=True),
                   torch.optim.Adam(net.parameters(), 2e-2), lambda n: r2(n(x[1200:]), y[1200:]))


@fault("weight_decay of SGD is 0.5 (a lost factor of a thousand)",
       rules=("weight-decay-dominates",), fails=True, steps=200)
def decay_without_exponent(bad):
    x, y = clusters(1500, k=5, seed=16)
    net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 5))
    opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=0.5 if bad else 5e-4)
    return Program(net, nn.CrossEntropyLoss(), DataLoader(TensorDataset(x[:1200], y[:1200]), 50, shuffle=True), opt,
                   lambda n: acc(n(x[1200:]), y[1200:]))


@fault("relu is called and its result thrown away, so that the layers are one linear one",
       rules=("no-nonlinearity",), layers=("layers.0", "layers.1", "layers.2", "layers"), fails=True, steps=250)
def relu_result_dropped(bad):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(8, 48), nn.Linear(48, 48), nn.Linear(48, 1)])

        def forward(self, x):
            for layer in self.layers[:-1]:
                x = layer(x)
                if bad:
                    F.relu(x)
                else:
                    x = F.relu(x)
            return self.layers[-1](x).flatten()

    x, y = surface(1500, seed=18)
    net = Net()
    return Program(net, nn.MSELoss(), DataLoader(TensorDataset(x[:1200], y[:1200]), 50, shuffle=True),
                   torch.optim.Adam(net.parameters(), 4e-3), lambda n: r2(n(x[1200:]), y[1200:]))
