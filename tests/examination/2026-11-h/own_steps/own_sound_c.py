import torch
import torch.nn.functional as F
from own_kit import accuracy, blobs, curve, loader, r2, rng
from program import Program, sound
from torch import nn


@sound("two tasks weighted by learned log variances: the loss goes below zero", steps=400, least=0.75)
def learned_task_weights():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
            self.value, self.kind = nn.Linear(64, 1), nn.Linear(64, 3)
            self.log_var = nn.Parameter(torch.zeros(2))

        def forward(self, x):
            h = self.trunk(x)
            return self.value(h), self.kind(h)

    x, y = curve(1, 2048)
    tx, ty = curve(2, 500)
    w = torch.randn(8, 3, generator=rng(9))
    model = Two()

    def step(model, batch):
        a, b, c = batch
        value, kind = model(a)
        losses = torch.stack([F.mse_loss(value, b), F.cross_entropy(kind, c)])
        return (losses * (-model.log_var).exp() + model.log_var).sum()

    def score(m):
        value, kind = m(tx)
        return 0.5 * (r2(value, ty) + accuracy(kind, (tx @ w).argmax(-1)))

    return Program(
        model, None, loader(x, y, (x @ w).argmax(-1)), torch.optim.Adam(model.parameters(), lr=3e-3), score, step=step
    )


@sound("an implicit layer: one weight applied twelve times until it settles, gradient through the last pass only", steps=400, least=0.7)
def fixed_point_layer():
    class Implicit(nn.Module):
        def __init__(self):
            super().__init__()
            self.inp, self.rec, self.out = nn.Linear(8, 64), nn.Linear(64, 64, bias=False), nn.Linear(64, 2)
            nn.init.normal_(self.rec.weight, std=0.3 / 8)

        def forward(self, x):
            u = self.inp(x)
            z = torch.zeros_like(u)
            with torch.no_grad():
                for _ in range(12):
                    z = torch.tanh(u + self.rec(z))
            return self.out(torch.tanh(u + self.rec(z)))

    model = Implicit()
    tx, ty = curve(2, 500, 8, 2)
    return Program(
        model, F.mse_loss, loader(*curve(1, 2048, 8, 2)), torch.optim.Adam(model.parameters(), lr=4e-3),
        lambda m: r2(m(tx), ty),
    )  # fmt: skip


@sound("an ordinary classifier, half trained: DataLoader with shuffle, Adam, cross-entropy", trained=120, steps=300, least=0.85)
def plain_classifier():
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
    tx, ty = blobs(2, 600, 5, 16)
    return Program(
        model, nn.CrossEntropyLoss(), loader(*blobs(1, 2048, 5, 16)), torch.optim.Adam(model.parameters(), lr=1e-3),
        lambda m: accuracy(m(tx), ty),
    )  # fmt: skip


@sound("an ordinary regression with BatchNorm and Adam", steps=300, least=0.8)
def plain_regression_batchnorm():
    model = nn.Sequential(
        nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2)
    )
    tx, ty = curve(2, 500, 8, 2)
    return Program(
        model, nn.MSELoss(), loader(*curve(1, 2048, 8, 2)), torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: r2(m(tx), ty),
    )  # fmt: skip


@sound("an ordinary small convolutional network with OneCycleLR", steps=300, least=0.8)
def plain_cnn_one_cycle():
    def images(seed, n):
        g = rng(seed)
        y = torch.randint(4, (n,), generator=g)
        x = 0.5 * torch.randn(n, 1, 8, 8, generator=g)
        bars = torch.zeros(4, 8, 8)
        bars[0, 2], bars[1, 5], bars[2, :, 2], bars[3, :, 5] = 1, 1, 1, 1
        return x + bars[y][:, None], y

    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(256, 4),
    )  # fmt: skip
    tx, ty = images(2, 400)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=1e-2, total_steps=2000)
    return Program(
        model, nn.CrossEntropyLoss(), loader(*images(1, 1024), size=32), opt, lambda m: accuracy(m(tx), ty), scheduler=sched
    )


@sound("an ordinary autoencoder, trained with AdamW", trained=300, steps=400, least=0.8)
def plain_autoencoder():
    from own_faults_a import manifold

    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 4), nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 20))
    test, x = manifold(90, 400), manifold(1, 2048)
    return Program(
        model, nn.MSELoss(), loader(x, x), torch.optim.AdamW(model.parameters(), lr=3e-3), lambda m: r2(m(test), test)
    )


@sound("an ordinary recurrent classifier: GRU, last state, Adam", steps=300, least=0.75)
def plain_gru():
    def sequences(seed, n):
        x = torch.randn(n, 8, 3, generator=rng(seed))
        return x, (x[:, :, 0].sum(1) > x[:, :, 1].sum(1)).long()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru, self.head = nn.GRU(3, 24, batch_first=True), nn.Linear(24, 2)

        def forward(self, x):
            return self.head(self.gru(x)[0][:, -1])

    model = Net()
    tx, ty = sequences(2, 500)
    return Program(
        model, nn.CrossEntropyLoss(), loader(*sequences(1, 1024), size=32), torch.optim.Adam(model.parameters(), lr=5e-3),
        lambda m: accuracy(m(tx), ty),
    )  # fmt: skip


@sound("an ordinary linear softmax classifier with SGD and weight decay", steps=300, least=0.8)
def plain_linear_sgd():
    model = nn.Linear(16, 4)
    tx, ty = blobs(2, 600, 4, 16)
    return Program(
        model, nn.CrossEntropyLoss(), loader(*blobs(1, 2048, 4, 16)),
        torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=1e-4), lambda m: accuracy(m(tx), ty),
    )  # fmt: skip


@sound("an ordinary regression with SGD, momentum and clipping in hooks at norm-like values", steps=400, least=0.75)
def plain_sgd_clipped():
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 2))
    for p in model.parameters():
        p.register_hook(lambda g: g.clamp(-0.5, 0.5))
    tx, ty = curve(2, 500, 8, 2)
    return Program(
        model, nn.MSELoss(), loader(*curve(1, 2048, 8, 2)), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        lambda m: r2(m(tx), ty),
    )  # fmt: skip
