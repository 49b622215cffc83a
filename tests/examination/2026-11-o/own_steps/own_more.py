"""More regressions, codes and predictors, mostly with a plain loss."""

import torch
from own_generative import ae_score, blobs, curved, explained
from program import Program, fault
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def autoencoding(n=4000, size=64):
    x = curved(n)
    return DataLoader(TensorDataset(x, x), batch_size=size, shuffle=True)


@fault(
    "`Dropout(0.9)`, where 0.9 was the share to keep in the code that was translated",
    rules=["dropout-too-strong"],
    layers=["2", "5"],
    fails=False,
    steps=500,
)
def ae_keep_probability(is_faulty):
    p = 0.9 if is_faulty else 0.1
    net = nn.Sequential(
        nn.Linear(32, 96), nn.ReLU(), nn.Dropout(p), nn.Linear(96, 96), nn.ReLU(), nn.Dropout(p), nn.Linear(96, 32)
    )
    return Program(net, nn.MSELoss(), autoencoding(), torch.optim.Adam(net.parameters(), lr=2e-3), ae_score)


@fault(
    "`nn.init.normal_(m.weight)` in the usual function for `apply`, of which the 0.02 has been lost",
    rules=["bad-initialisation", "activation-drift", "exploding-gradient"],
    fails=True,
    steps=500,
)
def ae_normal_without_std(is_faulty):
    def weights_init(m):
        if isinstance(m, nn.Linear):
            if is_faulty:
                nn.init.normal_(m.weight)
            else:
                nn.init.normal_(m.weight, 0.0, 1 / m.in_features**0.5)
            nn.init.zeros_(m.bias)

    net = nn.Sequential(
        nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Linear(64, 32), nn.LeakyReLU(0.2), nn.Linear(32, 8),
        nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Linear(64, 32),
    )
    net.apply(weights_init)
    return Program(net, F.mse_loss, autoencoding(), torch.optim.Adam(net.parameters(), lr=1e-3), ae_score)


@fault(
    "the betas of Adam are given the wrong way round, (0.999, 0.9)",
    rules=["optimizer-setting", "learning-rate-too-high", "diverging"],
    fails=False,
    steps=400,
)
def betas_swapped(is_faulty):
    class Predictor(nn.Module):
        """The lower half of a picture from the upper one."""

        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(
                nn.Flatten(), nn.Linear(40, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 24)
            )

        def forward(self, top):
            return self.body(top).view(-1, 1, 3, 8)

    x = blobs(3000)
    net = Predictor()

    def score(model):
        held = blobs(400, 2)
        return explained(model(held[:, :, :5]), held[:, :, 5:])

    betas = (0.999, 0.9) if is_faulty else (0.9, 0.999)
    loader = DataLoader(TensorDataset(x[:, :, :5], x[:, :, 5:]), batch_size=64, shuffle=True)
    return Program(net, nn.MSELoss(), loader, torch.optim.Adam(net.parameters(), lr=3e-3, betas=betas), score)


@fault(
    "a dynamics model unrolled for 40 steps, whose recurrent weight starts as it comes from torch.randn, over 4",
    rules=["exploding-gradient", "bad-initialisation", "activation-drift", "saturated-activation"],
    layers=["recurrent"],
    fails=False,
    steps=400,
)
def dynamics_unrolled(is_faulty):
    class Dynamics(nn.Module):
        def __init__(self, width=48):
            super().__init__()
            self.read = nn.Linear(3, width)
            scale = 0.25 if is_faulty else 0.9 / width**0.5
            self.recurrent = nn.Parameter(scale * torch.randn(width, width))
            self.out = nn.Linear(width, 2)

        def forward(self, actions):
            h = actions.new_zeros(len(actions), self.recurrent.shape[0])
            for t in range(actions.shape[1]):
                h = torch.tanh(self.read(actions[:, t]) + h @ self.recurrent.T)
            return self.out(h)

    def drive(n, seed=None):
        g = None if seed is None else torch.Generator().manual_seed(seed)
        a = torch.randn(n, 40, 3, generator=g) * 0.5
        pos, speed = torch.zeros(n, 2), torch.zeros(n, 2)
        for t in range(40):
            speed = 0.8 * speed + a[:, t, :2]
            pos = 0.9 * pos + 0.2 * speed * torch.sigmoid(a[:, t, 2:])
        return a, pos

    net = Dynamics()
    a, pos = drive(3000)

    def score(model):
        a, pos = drive(500, 3)
        return explained(model(a), pos)

    loader = DataLoader(TensorDataset(a, pos), batch_size=64, shuffle=True)
    return Program(net, nn.MSELoss(), loader, torch.optim.Adam(net.parameters(), lr=1e-3), score)
