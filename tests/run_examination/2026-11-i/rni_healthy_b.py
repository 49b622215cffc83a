"""Healthy training loops, second half."""

from __future__ import annotations

import copy

import torch
from program import Record, healthy
from rni_data import rni_batches, rni_clusters, rni_gen, rni_graph, rni_images, rni_masks, rni_teacher, rni_text
from rni_faults_a import RniDecoder, rni_evaluate, rni_token_loss
from torch import Tensor, nn
from torch.nn import functional as F

RNI_FLOORS: dict[str, tuple[float, float]] = {
    "rni_discriminator": (0.45, 0.72),  # log 2 = 0.693 for a generator that cannot be told from the data
}
"""Mean losses of the last hundred steps of runs that have a floor of their own."""


@healthy("the discriminator of a GAN: its loss never goes far below log 2, as the generator keeps up", steps=1500)
def rni_discriminator(record: Record) -> None:
    torch.manual_seed(11)
    g = rni_gen(1)
    generator = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))
    model = nn.Sequential(nn.Linear(2, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=7e-4, betas=(0.5, 0.999))
    other = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    loss = nn.BCEWithLogitsLoss()
    rec = record(model, optimizer, loss)
    labels = torch.cat([torch.ones(64, 1), torch.zeros(64, 1)])
    for _ in range(1500):
        angle = torch.rand(64, 1, generator=g) * 6.2832
        real = 1.5 * torch.cat([angle.cos(), angle.sin()], 1) + 0.3 * torch.randn(64, 2, generator=g)
        fake = generator(torch.randn(64, 4, generator=g))
        x = torch.cat([real, fake.detach()])
        optimizer.zero_grad()
        value = loss(model(x), labels)
        value.backward()
        optimizer.step()
        rec.step(value, (x, labels))
        other.zero_grad()
        model.requires_grad_(False)
        loss(model(fake), torch.ones(64, 1)).backward()
        model.requires_grad_(True)
        other.step()


class RniViT(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, 32, 3, stride=3)
        self.place = nn.Parameter(torch.randn(16, 32) * 0.02)
        self.blocks = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True, norm_first=True), 2, enable_nested_tensor=False
        )
        self.head = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).transpose(1, 2) + self.place
        return self.head(self.blocks(h).mean(1))


@healthy("label smoothing: the loss of a small vision transformer levels off far above zero", steps=1000)
def rni_smoothed_labels(record: Record) -> None:
    torch.manual_seed(12)
    x, y = rni_images(5000, 8, 12, 0.5, 1)
    vx, vy = rni_images(800, 8, 12, 0.5, 2)
    model = RniViT(8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 80, (1000 - s) / 600))
    loss = nn.CrossEntropyLoss(label_smoothing=0.15)
    rec = record(model, optimizer, loss)
    batches = rni_batches(len(x), 32, 2)
    for step in range(1000):
        i = next(batches)
        optimizer.zero_grad()
        value = loss(model(x[i]), y[i])
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        rec.step(value, (x[i], y[i]))
        if step % 100 == 99:
            rec.validation(rni_evaluate(model, loss, vx, vy))


class RniTagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(31, 24, padding_idx=0)
        self.lstm = nn.LSTM(24, 32, batch_first=True, bidirectional=True)
        self.out = nn.Linear(64, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.lstm(self.token(ids))[0])


def rni_masked(outputs: Tensor, tags: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), tags.flatten(), ignore_index=-100)


@healthy("a tagger whose padded places are left out of the loss", steps=1000)
def rni_padded_tagger(record: Record) -> None:
    torch.manual_seed(13)

    def sample(n: int, seed: int) -> tuple[Tensor, Tensor]:
        g = rni_gen(seed)
        ids = torch.randint(1, 31, (n, 14), generator=g)
        tags = (ids % 5 + ids.roll(1, 1) % 3 + (torch.rand(n, 14, generator=g) < 0.05)) % 5
        tags[:, 0] = -100
        lengths = torch.randint(4, 15, (n, 1), generator=g)
        pad = torch.arange(14)[None] >= lengths
        return ids.masked_fill(pad, 0), tags.masked_fill(pad, -100)

    x, y = sample(6000, 1)
    vx, vy = sample(600, 2)
    model = RniTagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    rec = record(model, optimizer, rni_masked)
    batches = rni_batches(len(x), 32, 2)
    for step in range(1000):
        i = next(batches)
        optimizer.zero_grad()
        value = rni_masked(model(x[i]), y[i])
        value.backward()
        optimizer.step()
        rec.step(value, (x[i], y[i]))
        if step % 100 == 99:
            rec.validation(rni_evaluate(model, rni_masked, vx, vy))


@healthy("an average of the weights is kept and evaluated; the trained network itself is noisier", steps=1000)
def rni_weight_average(record: Record) -> None:
    torch.manual_seed(14)
    x, y = rni_masks(2500, 14, 0.8, 1)
    vx, vy = rni_masks(300, 14, 0.8, 2)
    model = nn.Sequential(
        nn.Conv2d(1, 10, 3, padding=1), nn.GroupNorm(2, 10), nn.ReLU(), nn.Conv2d(10, 10, 3, padding=2, dilation=2),
        nn.ReLU(), nn.Conv2d(10, 1, 3, padding=1),
    )
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    loss = nn.BCEWithLogitsLoss()
    rec = record(model, optimizer, loss)
    batches = rni_batches(len(x), 12, 2)
    for step in range(1000):
        i = next(batches)
        optimizer.zero_grad()
        value = loss(model(x[i]), y[i])
        value.backward()
        optimizer.step()
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters()):
                a.lerp_(p, 0.02)
        rec.step(value, (x[i], y[i]))
        if step % 100 == 99:
            rec.validation(rni_evaluate(average, loss, vx, vy))


@healthy("gradients of four small batches are added up on purpose before each step", steps=1000)
def rni_accumulation(record: Record) -> None:
    torch.manual_seed(15)
    text, held = rni_text(8000, 12, 16, 1), rni_text(400, 12, 16, 2)
    model = RniDecoder(16, 12, width=24, depth=1, dropout=0.05)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rec = record(model, optimizer, rni_token_loss)
    batches = rni_batches(len(text), 32, 2)
    for step in range(1000):
        ids = next(batches)
        optimizer.zero_grad()
        total = torch.zeros(())
        for i in ids.split(8):
            value = rni_token_loss(model(text[i, :-1]), text[i, 1:]) / 4
            value.backward()
            total = total + value.detach()
        optimizer.step()
        rec.step(total, (text[ids, :-1], text[ids, 1:]))
        if step % 100 == 99:
            rec.validation(rni_evaluate(model, rni_token_loss, held[:, :-1], held[:, 1:]))


@healthy("a gap between training and validation that comes early, stays small and does not grow", steps=1400)
def rni_stable_gap(record: Record) -> None:
    torch.manual_seed(16)
    x, y = rni_clusters(1500, 20, 5, 1.5, 1)
    vx, vy = rni_clusters(3000, 20, 5, 1.5, 2)
    model = nn.Sequential(
        nn.Linear(20, 96), nn.ReLU(), nn.Dropout(0.3), nn.Linear(96, 96), nn.ReLU(), nn.Dropout(0.3), nn.Linear(96, 5)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 350, 0.3)
    loss = nn.CrossEntropyLoss()
    rec = record(model, optimizer, loss)
    batches = rni_batches(len(x), 50, 2)
    for step in range(1400):
        i = next(batches)
        optimizer.zero_grad()
        value = loss(model(x[i]), y[i])
        value.backward()
        optimizer.step()
        schedule.step()
        rec.step(value, (x[i], y[i]))
        if step % 50 == 49:
            rec.validation(rni_evaluate(model, loss, vx, vy))


@healthy("heavy-tailed noise in the targets: now and then a batch with a high loss, which a Huber loss bears", steps=1500)
def rni_heavy_tails(record: Record) -> None:
    torch.manual_seed(17)
    t = torch.distributions.StudentT(2.0)
    x, y = rni_teacher(15000, 10, 0.0, 1)
    vx, vy = rni_teacher(2000, 10, 0.0, 2)
    x, y = x.clone(), 2 * y + 0.25 * t.sample(y.shape)
    vy = 2 * vy + 0.25 * t.sample(vy.shape)
    model = nn.Sequential(nn.Linear(10, 64), nn.ELU(), nn.Linear(64, 64), nn.ELU(), nn.Linear(64, 1))
    optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
    loss = nn.HuberLoss(delta=1.0)
    rec = record(model, optimizer, loss)
    batches = rni_batches(len(x), 32, 2)
    for step in range(1500):
        i = next(batches)
        optimizer.zero_grad()
        value = loss(model(x[i]), y[i])
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rec.step(value, (x[i], y[i]))
        if step % 150 == 149:
            rec.validation(rni_evaluate(model, loss, vx, vy))


@healthy("L-BFGS on the whole of a small data set: the same batch each time, and steps that become very small", steps=1000)
def rni_quasi_newton(record: Record) -> None:
    torch.manual_seed(18)
    x = torch.linspace(-3, 3, 400)[:, None]
    y = torch.sin(2 * x) + 0.3 * x + 0.1 * torch.randn(400, 1, generator=rni_gen(1))
    vx = torch.linspace(-2.95, 2.95, 301)[:, None]
    vy = torch.sin(2 * vx) + 0.3 * vx + 0.1 * torch.randn(301, 1, generator=rni_gen(2))
    model = nn.Sequential(nn.Linear(1, 12), nn.Tanh(), nn.Linear(12, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=1, history_size=10)
    loss = nn.MSELoss()
    rec = record(model, optimizer, loss)

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        return value

    for step in range(1000):
        value = optimizer.step(closure)
        rec.step(value, (x, y))
        if step % 100 == 0 or step == 999:
            rec.validation(rni_evaluate(model, loss, vx, vy))


class RniBag(nn.Module):
    def __init__(self, words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 16)
        self.out = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.words(ids).mean(1))


@healthy("words with the frequencies of Zipf's law: rows of rare words get a gradient in a few steps only", steps=1500)
def rni_rare_words(record: Record) -> None:
    torch.manual_seed(19)
    words = 2000
    p = 1.0 / torch.arange(1, words + 1).float()
    mood = torch.randn(words, generator=rni_gen(1))

    def sample(n: int, seed: int) -> tuple[Tensor, Tensor]:
        g = rni_gen(seed)
        ids = torch.multinomial(p.expand(n, -1), 20, replacement=True, generator=g)
        return ids, (mood[ids].mean(1) + 0.1 * torch.randn(n, generator=g) > 0).long()

    x, y = sample(20000, 2)
    vx, vy = sample(2000, 3)
    model = RniBag(words)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    loss = nn.CrossEntropyLoss()
    rec = record(model, optimizer, loss)
    batches = rni_batches(len(x), 32, 2)
    for step in range(1500):
        i = next(batches)
        optimizer.zero_grad()
        value = loss(model(x[i]), y[i])
        value.backward()
        optimizer.step()
        rec.step(value, (x[i], y[i]))
        if step % 100 == 99:
            rec.validation(rni_evaluate(model, loss, vx, vy))


class RniGCN(nn.Module):
    def __init__(self, adjacency: Tensor, classes: int) -> None:
        super().__init__()
        self.register_buffer("adjacency", adjacency)
        self.first, self.second = nn.Linear(16, 24), nn.Linear(24, classes)
        self.drop = nn.Dropout(0.4)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.adjacency @ self.first(self.drop(x)))
        return self.adjacency @ self.second(self.drop(h))


@healthy("a graph network: the whole graph is the batch of every step, and dropout makes its loss differ", steps=1000)
def rni_whole_graph(record: Record) -> None:
    torch.manual_seed(20)
    x, adjacency, classes = rni_graph(600, 4, 1)
    train = torch.rand(600, generator=rni_gen(2)) < 0.5
    y, vy = classes.masked_fill(~train, -100), classes.masked_fill(train, -100)
    model = RniGCN(adjacency, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=2e-3)
    loss = nn.CrossEntropyLoss(ignore_index=-100)
    rec = record(model, optimizer, loss)
    for step in range(1000):
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        rec.step(value, (x, y))
        if step % 50 == 49:
            rec.validation(rni_evaluate(model, loss, x, vy))
