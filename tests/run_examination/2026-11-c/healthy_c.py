"""Healthy runs that are easily mistaken: unfreezing, L-BFGS, sparse rows, noise floors, regularization, tied weights."""

from __future__ import annotations

import torch
from program import healthy
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class _FineTuned(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(24, 320), nn.ReLU(), nn.Linear(320, 96), nn.ReLU())
        self.head = nn.Linear(96, outputs)

    def forward(self, x):
        return self.head(self.body(x))


@healthy("Unfreezing in two stages as it should be: a new parameter group with a smaller rate, enough data", steps=1500)
def staged_unfreezing(record):
    torch.manual_seed(301)
    a = torch.randn(24, 12) / 24**0.5

    def source(n):
        x = torch.randn(n, 24)
        return x, torch.tanh(2 * x @ a)

    def target(n):
        x = torch.randn(n, 24)
        z = torch.tanh(2 * x @ a)
        return x, (z[:, :3] * 2 + z[:, 3:6] * z[:, 6:9] + 0.1 * torch.randn(n, 3))

    pretrained = _FineTuned(12)
    adam = torch.optim.Adam(pretrained.parameters(), lr=1e-3)
    for _ in range(400):
        x, y = source(128)
        adam.zero_grad()
        F.mse_loss(pretrained(x), y).backward()
        adam.step()

    model = _FineTuned(3)
    model.body.load_state_dict(pretrained.body.state_dict())
    model.body.requires_grad_(False)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=1e-3)
    criterion = nn.MSELoss()
    recorder = record(model, optimizer, criterion)
    held_out = target(1000)
    for step in range(1500):
        if step == 700:
            model.body.requires_grad_(True)
            optimizer.add_param_group({"params": model.body.parameters(), "lr": 2e-4})
        x, y = target(384)
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (x, y))
        if step % 100 == 99:
            with torch.no_grad():
                recorder.validation(criterion(model(held_out[0]), held_out[1]).item())


@healthy("L-BFGS on all of the data: the same batch at every step, and several evaluations in each", steps=1000)
def lbfgs_full_batch(record):
    torch.manual_seed(302)
    x = 2 * torch.rand(256, 2) - 1
    y = torch.sin(3 * x[:, :1]) * torch.cos(4 * x[:, 1:]) + 0.02 * torch.randn(256, 1)
    model = nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3, history_size=10, line_search_fn="strong_wolfe")
    criterion = nn.MSELoss()
    recorder = record(model, optimizer, criterion)

    def closure():
        optimizer.zero_grad()
        loss = criterion(model(x), y) + 1e-5 * sum((p**2).sum() for p in model.parameters())
        loss.backward()
        return loss

    for _ in range(1000):
        loss = optimizer.step(closure)
        recorder.step(loss.item(), (x, y))


class _Factors(nn.Module):
    def __init__(self, users=1500, items=800, width=16):
        super().__init__()
        self.user = nn.Embedding(users, width, sparse=True)
        self.item = nn.Embedding(items, width, sparse=True)
        nn.init.normal_(self.user.weight, std=0.3)
        nn.init.normal_(self.item.weight, std=0.3)

    def forward(self, pairs):
        return (self.user(pairs[:, 0]) * self.item(pairs[:, 1])).sum(1)


@healthy("Sparse embeddings: at each step most rows have no gradient and stay where they are", steps=1500)
def sparse_matrix_factorisation(record):
    torch.manual_seed(303)
    true_user, true_item = torch.randn(1500, 4) / 2, torch.randn(800, 4)
    popularity = 1.0 / (torch.arange(800) + 20.0)

    def ratings(n):
        pairs = torch.stack([torch.randint(0, 1500, (n,)), torch.multinomial(popularity, n, replacement=True)], 1)
        truth = (true_user[pairs[:, 0]] * true_item[pairs[:, 1]]).sum(1)
        return pairs, truth + 0.2 * torch.randn(n)

    model = _Factors()
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.01)
    mse = nn.MSELoss()
    recorder = record(model, optimizer, mse)
    held_out = ratings(4000)
    for step in range(1500):
        pairs, scores = ratings(2560)
        optimizer.zero_grad()
        loss = mse(model(pairs), scores)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (pairs, scores))
        if step % 150 == 149:
            with torch.no_grad():
                recorder.validation(mse(model(held_out[0]), held_out[1]).item())


@healthy("Returns that are nearly all noise: the loss begins close to its floor, and 4% are to be gained; the held-out set "
         "is small, so that validation is noisy too", steps=1500)  # fmt: skip
def loss_begins_at_noise_floor(record):
    torch.manual_seed(304)

    def days(n):
        x = torch.randn(n, 20)
        signal = 0.15 * x[:, :1] - 0.1 * x[:, 1:2] + 0.1 * torch.tanh(2 * x[:, 2:3])
        return x, signal + torch.randn(n, 1)

    model = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1))
    nn.init.zeros_(model[-1].bias)
    with torch.no_grad():
        model[-1].weight.mul_(0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01)
    criterion = nn.MSELoss()
    recorder = record(model, optimizer, criterion)
    for step in range(1500):
        x, y = days(512)
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (x, y))
        if step % 50 == 49:
            x_val, y_val = days(150)
            with torch.no_grad():
                recorder.validation(criterion(model(x_val), y_val).item())


@healthy("Dropout of a half, input noise, label smoothing and weight decay on few data: the training loss stays far above "
         "the validation loss, and validation keeps falling", steps=1400)  # fmt: skip
def strongly_regularized(record):
    torch.manual_seed(305)
    centres = torch.randn(5, 32)

    def draw(n):
        y = torch.randint(0, 5, (n,))
        return (centres[y] + 1.3 * torch.randn(n, 32)) / 1.6, y

    train = TensorDataset(*draw(1500))
    x_val, y_val = draw(1000)
    model = nn.Sequential(
        nn.Linear(32, 192), nn.ReLU(), nn.Dropout(0.5), nn.Linear(192, 96), nn.ReLU(), nn.Dropout(0.5), nn.Linear(96, 5)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.1)
    smoothed = nn.CrossEntropyLoss(label_smoothing=0.1)
    recorder = record(model, optimizer, smoothed)
    step = 0
    while step < 1400:
        for x, y in DataLoader(train, batch_size=75, shuffle=True):
            model.train()
            x = x + 0.3 * torch.randn_like(x)
            optimizer.zero_grad()
            loss = smoothed(model(x), y)
            loss.backward()
            optimizer.step()
            recorder.step(loss.item(), (x, y))
            step += 1
        if step % 100 == 0:
            model.eval()
            with torch.no_grad():
                recorder.validation(smoothed(model(x_val), y_val).item())


class _TiedLM(nn.Module):
    def __init__(self, vocabulary=40, width=32):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.rnn = nn.LSTM(width, width, batch_first=True)
        self.decode = nn.Linear(width, vocabulary)
        nn.init.normal_(self.embed.weight, std=0.3)
        self.decode.weight = self.embed.weight

    def forward(self, ids):
        return self.decode(self.rnn(self.embed(ids))[0])


def _lm_loss(logits, targets):
    return F.cross_entropy(logits.reshape(-1, 40), targets.reshape(-1))


@healthy("A language model with tied embeddings, clipped SGD at a rate of 4 that is divided by 5 twice: the loss drops at "
         "each of these steps", steps=1500)  # fmt: skip
def tied_language_model_multistep(record):
    torch.manual_seed(306)
    table = torch.softmax(2.5 * torch.randn(40, 40), 1)
    ids = torch.empty(2000, 13, dtype=torch.long)
    ids[:, 0] = torch.randint(0, 40, (2000,))
    for i in range(1, 13):
        ids[:, i] = torch.multinomial(table[ids[:, i - 1]], 1)[:, 0]
    train, held_out = ids[:1800], ids[1800:]
    model = _TiedLM()
    optimizer = torch.optim.SGD(model.parameters(), lr=4.0)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [800, 1200], gamma=0.2)
    recorder = record(model, optimizer, _lm_loss)
    for step in range(1, 1501):
        rows = train[torch.randint(0, 1800, (56,))]
        x, y = rows[:, :-1], rows[:, 1:]
        optimizer.zero_grad()
        loss = _lm_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        scheduler.step()
        recorder.step(loss.item(), (x, y))
        if step % 150 == 0:
            with torch.no_grad():
                recorder.validation(_lm_loss(model(held_out[:, :-1]), held_out[:, 1:]).item())


class _AnnealedVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(50, 256), nn.SiLU(), nn.Linear(256, 16))
        self.decoder = nn.Sequential(nn.Linear(8, 256), nn.SiLU(), nn.Linear(256, 50))

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return self.decoder(z), mean, log_variance


@healthy("A VAE whose weight of the divergence is annealed from 0 to 1 on purpose: the loss rises meanwhile", steps=1500)
def annealed_vae(record):
    torch.manual_seed(307)
    loadings = 0.6 * torch.randn(3, 50)
    annealing = {"beta": 0.0}

    def loss_fn(outputs, x):
        decoded, mean, log_variance = outputs
        reconstruction = 2.0 * ((decoded - x) ** 2).sum(1).mean()
        divergence = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum(1).mean()
        return reconstruction + annealing["beta"] * divergence

    model = _AnnealedVAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    recorder = record(model, optimizer, loss_fn)
    for step in range(1500):
        annealing["beta"] = min(1.0, step / 600)
        x = torch.sin(torch.randn(192, 3) @ loadings) + 0.1 * torch.randn(192, 50)
        optimizer.zero_grad()
        loss = loss_fn(model(x), x)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (x, x))
