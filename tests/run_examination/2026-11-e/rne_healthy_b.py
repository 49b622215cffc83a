import copy
import math

import torch
import torch.nn.functional as F
from program import healthy
from rne_data import digits, teacher
from torch import nn


@healthy("batches of three examples: very noisy losses", steps=2000)
def tiny_batches(record):
    torch.manual_seed(609)
    xtr, ytr, _, _ = digits()
    model = nn.Sequential(nn.Linear(64, 160), nn.LayerNorm(160), nn.ReLU(), nn.Linear(160, 160), nn.ReLU(),
                          nn.Linear(160, 10))
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 2000, eta_min=2e-3)
    loss_fn = nn.CrossEntropyLoss()
    rec = record(model, opt, loss_fn)
    for _ in range(2000):
        i = torch.randint(0, 1400, (3,))
        x, y = xtr[i], ytr[i]
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        sched.step()
        rec.step(loss.item(), (x, y))


@healthy("a plateau at log 2 for some hundred steps, then a fall: the parity of three bits among twelve", steps=2000)
def parity_plateau(record):
    torch.manual_seed(610)
    model = nn.Sequential(nn.Linear(12, 200), nn.ReLU(), nn.Linear(200, 1))
    opt = torch.optim.Adam(model.parameters(), lr=6e-4)
    loss_fn = nn.BCEWithLogitsLoss()
    rec = record(model, opt, loss_fn)
    for _ in range(2000):
        x = torch.randint(0, 2, (96, 12)).float() * 2 - 1
        y = (x[:, [1, 4, 9]].prod(1, keepdim=True) > 0).float()
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        rec.step(loss.item(), (x, y))


@healthy("gradients of four micro-batches are added on purpose before each step", steps=1000)
def accumulation(record):
    torch.manual_seed(611)
    f = teacher(12, 2, seed=31)
    model = nn.Sequential(nn.Linear(12, 48), nn.ELU(), nn.Linear(48, 48), nn.ELU(), nn.Linear(48, 2))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_fn = nn.MSELoss()
    rec = record(model, opt, loss_fn)
    for _ in range(1000):
        xs = torch.randn(4, 12, 12)
        ys = f(xs) + 0.1 * torch.randn(4, 12, 2)
        total = 0.0
        opt.zero_grad()
        for x, y in zip(xs, ys):
            loss = loss_fn(model(x), y) / 4
            loss.backward()
            total += loss.item()
        opt.step()
        rec.step(total, (xs.flatten(0, 1), ys.flatten(0, 1)))


@healthy("temporal differences with a target network: targets move, and the loss rises before it falls", steps=1500)
def moving_targets(record):
    torch.manual_seed(612)
    q = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    slow = copy.deepcopy(q).requires_grad_(False)
    opt = torch.optim.Adam(q.parameters(), lr=1e-3)
    loss_fn = nn.SmoothL1Loss()
    rec = record(q, opt, loss_fn)
    mix = torch.linalg.qr(torch.randn(4, 4))[0] * 0.95
    for _ in range(1500):
        s = torch.randn(64, 4)
        nxt = s @ mix + 0.3 * torch.randn(64, 4)
        reward = torch.tanh(s[:, :1]) + 0.5 + 0.1 * torch.randn(64, 1)
        target = reward + 0.8 * slow(nxt)
        loss = loss_fn(q(s), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            for a, b in zip(slow.parameters(), q.parameters()):
                a.lerp_(b, 0.01)
        rec.step(loss.item(), (s, target))
    moving_targets.parts = (q, mix)


def _soft_loss(out, target):
    return -(target * F.log_softmax(out, 1)).sum(1).mean()


@healthy("mixup with soft targets: the training loss stays high, with BatchNorm, and validation is far lower", steps=1200)
def mixup(record):
    torch.manual_seed(613)
    xtr, ytr, xva, yva = digits()
    yva = F.one_hot(yva, 10).float()
    model = nn.Sequential(nn.Linear(64, 96, bias=False), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 64, bias=False),
                          nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=1200)
    rec = record(model, opt, _soft_loss)
    for step in range(1200):
        model.train()
        i = torch.randint(0, 1400, (48,))
        j = i[torch.randperm(48)]
        lam = torch.distributions.Beta(0.8, 0.8).sample((48, 1))
        x = lam * xtr[i] + (1 - lam) * xtr[j]
        y = lam * F.one_hot(ytr[i], 10) + (1 - lam) * F.one_hot(ytr[j], 10)
        opt.zero_grad()
        loss = _soft_loss(model(x), y)
        loss.backward()
        opt.step()
        sched.step()
        rec.step(loss.item(), (x, y))
        if step % 60 == 59:
            model.eval()
            with torch.no_grad():
                rec.validation(_soft_loss(model(xva), yva).item())
    model.train()


@healthy("few examples, many epochs, each in a new order: batches are made of the same 192 examples", steps=1500)
def many_epochs(record):
    torch.manual_seed(614)
    f = teacher(5, 1, hidden=6, seed=34)
    xs, xv = torch.randn(192, 5), torch.randn(400, 5)
    ys, yv = f(xs) + 0.02 * torch.randn(192, 1), f(xv)
    model = nn.Sequential(nn.Linear(5, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    loss_fn = nn.MSELoss()
    rec = record(model, opt, loss_fn)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(xs, ys), batch_size=32, shuffle=True)
    for _ in range(250):
        for x, y in loader:
            opt.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            opt.step()
            rec.step(loss.item(), (x, y))
        with torch.no_grad():
            rec.validation(loss_fn(model(xv), yv).item())


class _Chars(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 16)
        self.rnn = nn.LSTM(16, 40, batch_first=True)
        self.head = nn.Linear(40, 16)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


def _token_loss(out, target):
    return F.cross_entropy(out.flatten(0, 1), target.flatten())


@healthy("an LSTM whose gradients are clipped at nearly every step, with a stepped rate", steps=1200)
def clipped_lstm(record):
    torch.manual_seed(615)
    model = _Chars()
    opt = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    sched = torch.optim.lr_scheduler.MultiStepLR(opt, [500, 900], 0.3)
    rec = record(model, opt, _token_loss)
    for _ in range(1200):
        start, jump = torch.randint(0, 16, (24, 1)), torch.randint(1, 5, (24, 1))
        ids = (start + jump * torch.arange(11)) % 16
        flip = torch.rand(ids.shape) < 0.05
        ids = torch.where(flip, torch.randint(0, 16, ids.shape), ids)
        x, y = ids[:, :-1], ids[:, 1:]
        opt.zero_grad()
        loss = _token_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        opt.step()
        sched.step()
        rec.step(loss.item(), (x, y))


@healthy("a denoising autoencoder with an L1 prior on its code: sparse units, and a loss that ends far above 0", steps=1400)
def sparse_autoencoder(record):
    torch.manual_seed(616)
    xtr, _, xva, _ = digits()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.Sequential(nn.Linear(64, 96), nn.ReLU())
            self.dec = nn.Linear(96, 64)

        def forward(self, x):
            code = self.enc(x)
            return torch.cat([self.dec(code), code], 1)

    def loss_fn(out, target):
        return F.mse_loss(out[:, :64], target) + 0.02 * out[:, 64:].abs().mean()

    model = Net()
    opt = torch.optim.Adam(model.parameters(), lr=1.5e-3)
    rec = record(model, opt, loss_fn)
    for step in range(1400):
        y = xtr[torch.randint(0, 1400, (40,))]
        x = y + 0.5 * torch.randn_like(y)
        opt.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        opt.step()
        rec.step(loss.item(), (x, y))
        if step % 70 == 69:
            with torch.no_grad():
                rec.validation(loss_fn(model(xva), xva).item())
