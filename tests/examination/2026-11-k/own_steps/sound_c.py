import torch
import torch.nn.functional as F
from parts import acc, blobs, curved, factors, gen, loader, mlp, r2
from program import Program, sound
from torch import nn


class TwoTasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.kind, self.size = nn.Linear(64, 5), nn.Linear(64, 1)
        self.log_vars = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        h = self.trunk(x)
        return self.kind(h), self.size(h)


@sound("two losses weighted by learned uncertainties; the sum can be negative", steps=300, least=0.6)
def learned_task_weights():
    x, y = blobs(seed=42)
    s = torch.tanh(x[:, :1] + x[:, 1:2])
    model = TwoTasks()

    def step(model, batch):
        v, t, u = batch
        k, r = model(v)
        losses = torch.stack([F.cross_entropy(k, t), F.mse_loss(r, u)])
        return (losses * torch.exp(-model.log_vars) + 0.5 * model.log_vars).sum()

    def score(m):
        k, r = m(x[1200:])
        return (acc(k, y[1200:]) + r2(r, s[1200:])) / 2

    return Program(model, None, loader(x[:1200], y[:1200], s[:1200]), torch.optim.Adam(model.parameters(), 3e-3), score, step=step)


@sound("an ordinary classifier, trained already", trained=200, steps=250, least=0.7)
def classifier_trained():
    x, y = blobs(seed=43, k=6, noise=0.7)
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 6))
    return Program(model, nn.CrossEntropyLoss(), loader(x[:1200], y[:1200]), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: acc(m(x[1200:]), y[1200:]))


@sound("an ordinary small convolutional network", steps=200, least=0.7)
def small_cnn():
    g = gen(44)
    y = torch.randint(4, (900,), generator=g)
    proto = torch.randn(4, 1, 8, 8, generator=g)
    x = proto[y] + 0.8 * torch.randn(900, 1, 8, 8, generator=g)
    model = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
                          nn.Conv2d(12, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 4))
    return Program(model, nn.CrossEntropyLoss(), loader(x[:700], y[:700]), torch.optim.AdamW(model.parameters(), 2e-3),
                   lambda m: acc(m(x[700:]), y[700:]))


@sound("an ordinary regression with momentum and a cosine schedule", steps=350, least=0.6)
def sgd_cosine_regression():
    x, y = curved(seed=45, d=5)
    model = mlp(5, 64, 1)
    opt = torch.optim.SGD(model.parameters(), 0.03, momentum=0.9, weight_decay=1e-4)
    return Program(model, nn.HuberLoss(), loader(x[:1200], y[:1200]), opt, lambda m: r2(m(x[1200:]), y[1200:]),
                   torch.optim.lr_scheduler.CosineAnnealingLR(opt, 2000))


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -0.2 * g


class Domains(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU())
        self.label, self.domain = nn.Linear(24, 4), nn.Linear(24, 1)

    def forward(self, x):
        f = self.features(x)
        return self.label(f), self.domain(Reverse.apply(f)).squeeze(1)


@sound("gradient reversal: one head is meant to fail", steps=300, least=0.6)
def domain_adversary():
    x, y = blobs(seed=46, k=4)
    d = (torch.rand(1500, generator=gen(1)) < 0.5).float()
    x = x + 0.5 * d[:, None] * torch.randn(12, generator=gen(2))
    model = Domains()

    def step(model, batch):
        v, t, s = batch
        a, b = model(v)
        return F.cross_entropy(a, t) + F.binary_cross_entropy_with_logits(b, s)

    return Program(model, None, loader(x[:1200], y[:1200], d[:1200]), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: acc(m(x[1200:])[0], y[1200:]), step=step)


@sound("masked autoencoder: three quarters of the inputs are zeroed, loss on the hidden ones only", steps=400, least=0.6)
def masked_autoencoder():
    x = factors(seed=47, d=20, k=2)
    hide = (torch.rand(300, 20, generator=gen(3)) < 0.6).float()
    model = mlp(40, 96, 20)

    def step(model, batch):
        (v,) = batch
        h = (torch.rand_like(v) < 0.6).float()
        return ((model(torch.cat([v * (1 - h), h], 1)) - v) ** 2 * h).sum() / h.sum()

    def score(m):
        v = x[1200:]
        o = m(torch.cat([v * (1 - hide), hide], 1))
        return float(1 - ((o - v) ** 2 * hide).sum() / ((v - v.mean(0)) ** 2 * hide).sum())

    return Program(model, None, loader(x[:1200], size=64), torch.optim.Adam(model.parameters(), 3e-3), score, step=step)


class GRUNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(3, 32, batch_first=True), nn.Linear(32, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[1][0])


@sound("an ordinary recurrent regressor", steps=300, least=0.6)
def gru_sum():
    x = torch.randn(1500, 8, 3, generator=gen(48))
    y = (x[:, :, :1] * torch.linspace(0.2, 1, 8)[None, :, None]).sum(1) / 2
    model = GRUNet()
    return Program(model, nn.MSELoss(), loader(x[:1200], y[:1200]), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: r2(m(x[1200:]), y[1200:]))


@sound("an ordinary autoencoder, half trained", trained=80, steps=300, least=0.6)
def autoencoder_half():
    x = factors(seed=49)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3), nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 16))
    return Program(model, None, loader(x[:1200]), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m(x[1200:]), x[1200:]), step=lambda m, b: F.mse_loss(m(b[0]), b[0]))


@sound("ordinary quantile regression: three outputs and one pinball loss", steps=300, least=0.6)
def pinball():
    x, y = curved(seed=50, d=5)
    model = mlp(5, 64, 3)
    q = torch.tensor([0.1, 0.5, 0.9])

    def loss(o, t):
        e = t - o
        return torch.maximum(q * e, (q - 1) * e).mean()

    return Program(model, loss, loader(x[:1200], y[:1200]), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: r2(m(x[1200:])[:, 1:2], y[1200:]))
