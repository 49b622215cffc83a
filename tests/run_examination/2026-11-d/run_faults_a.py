"""Faults of the optimizer and of its schedule."""

import torch
import torch.nn.functional as F
from program import fault
from run_common import classes, gen, loader, mlp, pictures, surface, tokens
from torch import nn


@fault(
    "The branch that clears the gradients is no longer reached after the run is resumed at step 400.",
    rules=("gradients-not-cleared", "exploding-gradient", "diverging"),
    step=400,
    steps=1000,
)
def resumed_without_clearing(record, broken=True):
    torch.manual_seed(0)
    x, y = classes(24000, 20, 5, 1)
    xv, yv = classes(800, 20, 5, 2)
    model = mlp(20, 256, 256, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    rec = record(model, optimizer, F.cross_entropy)
    batches = loader(24000, 96, 3)
    for step in range(1000):
        i = next(batches)
        resumed = step >= 400
        if not (broken and resumed):
            optimizer.zero_grad()
        loss = F.cross_entropy(model(x[i]), y[i])
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (x[i], y[i]))
        if step % 50 == 49:
            with torch.no_grad():
                rec.validation(F.cross_entropy(model(xv), yv).item())


class Counter(nn.Module):
    """A rectified recurrent network that begins as an integrator."""

    def __init__(self, width=40):
        super().__init__()
        self.rnn = nn.RNN(2, width, nonlinearity="relu", batch_first=True)
        self.out = nn.Linear(width, 1)
        with torch.no_grad():
            self.rnn.weight_hh_l0.copy_(torch.eye(width))
            self.rnn.bias_hh_l0.zero_()
            self.rnn.bias_ih_l0.zero_()
            self.rnn.weight_ih_l0.normal_(0, 0.1)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])


def marked_sums(n, length, seed):
    g = gen(seed)
    value = torch.rand(n, length, generator=g)
    mark = torch.zeros(n, length)
    half = length // 2
    mark[torch.arange(n), torch.randint(half, (n,), generator=g)] = 1
    mark[torch.arange(n), half + torch.randint(half, (n,), generator=g)] = 1
    return torch.stack([value, mark], -1), (value * mark).sum(1, keepdim=True)


@fault(
    "The gradient clipping that a rectified recurrent network needs is lost at step 500.",
    rules=("exploding-gradient", "diverging", "learning-rate-too-high", "loss-spike", "non-finite"),
    step=500,
    steps=1000,
)
def clipping_lost(record, broken=True):
    torch.manual_seed(1)
    x, y = marked_sums(6000, 16, 1)
    xv, yv = marked_sums(500, 16, 2)
    model = Counter()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    rec = record(model, optimizer, F.mse_loss)
    batches = loader(6000, 32, 3)
    clip = 0.5
    for step in range(1000):
        if broken and step == 500:
            clip = None
        i = next(batches)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x[i]), y[i])
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        rec.step(loss.item(), (x[i], y[i]))
        if step % 50 == 49:
            with torch.no_grad():
                rec.validation(F.mse_loss(model(xv), yv).item())


@fault(
    "From step 400 on, a decay that is meant for every epoch of 50 steps is applied at every step: learning stops.",
    rules=("learning-rate-too-low", "lost-updates"),
    step=400,
    steps=1500,
)
def decay_at_every_step(record, broken=True):
    torch.manual_seed(2)
    x, y = classes(6400, 30, 8, 1, teacher=9)
    xv, yv = classes(800, 30, 8, 2, teacher=9)
    model = mlp(30, 224, 192, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.93)
    rec = record(model, optimizer, F.cross_entropy)
    batches = loader(6400, 80, 3)
    for step in range(1500):
        i = next(batches)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[i]), y[i])
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (x[i], y[i]))
        if step % 50 == 49 or (broken and step >= 400):
            schedule.step()
        if step % 50 == 49:
            with torch.no_grad():
                rec.validation(F.cross_entropy(model(xv), yv).item())


class Words(nn.Module):
    def __init__(self, vocabulary=400, width=96, k=6):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.hidden = nn.Linear(width, 192)
        self.head = nn.Linear(192, k)

    def forward(self, t):
        return self.head(torch.relu(self.hidden(self.embedding(t).mean(1) * 3)))


def topics(n, seed, vocabulary=400, k=6, length=12):
    t = gen(21)
    table = torch.softmax(1.0 * torch.randn(k, vocabulary, generator=t), -1)
    g = gen(seed)
    y = torch.randint(k, (n,), generator=g)
    return torch.multinomial(table[y], length, replacement=True, generator=g), y


@fault(
    "The groups of the optimizer are rebuilt at step 350, without the embedding, which learns no more.",
    rules=("no-gradient",),
    layers=("embedding",),
    step=350,
    steps=1200,
)
def embedding_left_out(record, broken=True):
    torch.manual_seed(3)
    x, y = topics(16000, 1)
    xv, yv = topics(1000, 2)
    model = Words()
    optimizer = torch.optim.Adam(model.parameters(), lr=2.5e-4)
    rec = record(model, optimizer, F.cross_entropy)
    batches = loader(16000, 96, 3)
    for step in range(1200):
        if step == 350:
            kept = [p for name, p in model.named_parameters() if not (broken and name.startswith("emb"))]
            optimizer.param_groups[0]["params"] = kept
        i = next(batches)
        model.zero_grad()
        loss = F.cross_entropy(model(x[i]), y[i])
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (x[i], y[i]))
        if step % 50 == 49:
            with torch.no_grad():
                rec.validation(F.cross_entropy(model(xv), yv).item())


@fault(
    "The loss scale of half precision is halved where it should be kept, from step 500 on, until all gradients are 0.",
    rules=("gradient-underflow", "vanishing-gradient", "no-gradient"),
    step=500,
    steps=1200,
)
def loss_scale_collapses(record, broken=True):
    torch.manual_seed(4)
    x, y = tokens(3000, 13, 16, 1), None
    v = tokens(300, 13, 16, 2)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(16, 24)
            self.gru = nn.GRU(24, 48, batch_first=True)
            self.head = nn.Linear(48, 16)

        def forward(self, t):
            return self.head(self.gru(self.embedding(t))[0])

    def criterion(outputs, targets):
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    rec = record(model, optimizer, criterion)
    batches = loader(3000, 32, 3)
    scale = 1024.0
    for step in range(1200):
        i = next(batches)
        inputs, targets = x[i][:, :-1], x[i][:, 1:]
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        (loss * scale).backward()
        overflow = False
        for p in model.parameters():
            p.grad = p.grad.half().float()
            overflow = overflow or not bool(p.grad.isfinite().all())
            p.grad /= scale
        if not overflow:
            optimizer.step()
        if overflow != (broken and step >= 500):
            scale = max(scale / 2, 2.0**-40)
        rec.step(loss.item(), (inputs, targets))
        if step % 50 == 49:
            with torch.no_grad():
                rec.validation(criterion(model(v[:, :-1]), v[:, 1:]).item())


@fault(
    "The second cycle of a schedule with restarts begins at step 600 at a rate a hundred times that of the first; most "
    "rectified units never come back.",
    rules=("dying-neurons", "learning-rate-too-high", "rank-collapse", "loss-spike"),
    step=600,
    steps=1500,
)
def restart_kills_units(record, broken=True):
    torch.manual_seed(5)
    x, y = pictures(16000, 6, 1, side=10, noise=2.0)
    xv, yv = pictures(600, 6, 2, side=10, noise=2.0)
    model = nn.Sequential(nn.Flatten(), *mlp(100, 144, 144, 144, 6))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rec = record(model, optimizer, F.cross_entropy)
    batches = loader(16000, 64, 3)
    for step in range(1500):
        rate = 1e-3 * (0.02 + 0.98 * (1 - (step % 600) / 600))
        if broken and 600 <= step < 606:
            rate *= 100
        for group in optimizer.param_groups:
            group["lr"] = rate
        i = next(batches)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[i]), y[i])
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (x[i], y[i]))
        if step % 50 == 49:
            with torch.no_grad():
                rec.validation(F.cross_entropy(model(xv), yv).item())


@fault(
    "The decay of the second phase, from step 700 on, is entered in percent: 8 in place of 0.08.",
    rules=("weight-decay-dominates", "rank-collapse", "vanishing-gradient"),
    step=700,
    steps=1400,
)
def decay_in_percent(record, broken=True):
    torch.manual_seed(6)
    x, y = surface(20000, 10, 1)
    xv, yv = surface(800, 10, 2)
    model = mlp(10, 208, 208, 1, act=nn.SiLU)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    rec = record(model, optimizer, F.mse_loss)
    batches = loader(20000, 80, 3)
    for step in range(1400):
        if step == 700:
            optimizer.param_groups[0]["weight_decay"] = 8 if broken else 0.08
        i = next(batches)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x[i]), y[i])
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (x[i], y[i]))
        if step % 50 == 49:
            with torch.no_grad():
                rec.validation(F.mse_loss(model(xv), yv).item())
