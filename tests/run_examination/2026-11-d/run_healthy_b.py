"""Healthy runs: generative, fine-tuned, sparse, noisy, and of unusual make."""

import torch
import torch.nn.functional as F
from program import healthy
from run_common import classes, gen, loader, mlp, pictures, surface
from torch import nn


class Variational(nn.Module):
    def __init__(self, side=64, width=128, code=6):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(side, width), nn.ReLU(), nn.Linear(width, 2 * code))
        self.decoder = nn.Sequential(nn.Linear(code, width), nn.ReLU(), nn.Linear(width, side))

    def forward(self, x):
        mean, spread = self.encoder(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * torch.exp(spread / 2) if self.training else mean
        return torch.cat([self.decoder(z), mean, spread], 1)


@healthy("A variational autoencoder, whose second term is brought in over 600 steps: the loss rises on the way.", steps=1600)
def variational_warmup(record):
    torch.manual_seed(110)
    x = pictures(8000, 8, 1, side=8, noise=0.2)[0].flatten(1)
    xv = pictures(500, 8, 2, side=8, noise=0.2)[0].flatten(1)
    share = {"prior": 0.0}

    def criterion(outputs, targets):
        picture, mean, spread = outputs[:, :64], outputs[:, 64:70], outputs[:, 70:]
        divergence = 0.5 * (mean.square() + spread.exp() - 1 - spread).sum(1).mean()
        return F.mse_loss(picture, targets) * 8 + share["prior"] * divergence

    model = Variational()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rec = record(model, optimizer, criterion)
    batches = loader(8000, 64, 3)
    for step in range(1600):
        share["prior"] = 0.25 * min(1.0, step / 600)
        i = next(batches)
        optimizer.zero_grad()
        loss = criterion(model(x[i]), x[i])
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (x[i], x[i]))
        if step % 50 == 49:
            model.eval()
            with torch.no_grad():
                rec.validation(F.mse_loss(model(xv)[:, :64], xv).item())
            model.train()


@healthy("A generator and its critic, whose losses hover and trade places; two recorders.", steps=1500)
def generator_and_critic(record):
    torch.manual_seed(111)
    g = gen(1)
    generator = mlp(4, 128, 128, 2)
    critic = mlp(2, 96, 96, 1, act=lambda: nn.LeakyReLU(0.2))
    first = torch.optim.Adam(generator.parameters(), lr=5e-4, betas=(0.5, 0.9))
    second = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))

    def fools(outputs, targets):
        return F.binary_cross_entropy_with_logits(critic(outputs), targets)

    rec_generator = record(generator, first, fools)
    rec_critic = record(critic, second, F.binary_cross_entropy_with_logits)
    for _ in range(1500):
        angle = 6.28 * torch.rand(128, 1, generator=g)
        real = torch.cat([angle.cos(), angle.sin()], 1) * 1.5 + 0.5 + 0.1 * torch.randn(128, 2, generator=g)
        z = torch.randn(128, 4, generator=g)
        with torch.no_grad():
            fake = generator(z)
        points = torch.cat([real, fake])
        which = torch.cat([torch.full((128, 1), 0.9), torch.zeros(128, 1)])
        second.zero_grad()
        loss = F.binary_cross_entropy_with_logits(critic(points), which)
        loss.backward()
        second.step()
        rec_critic.step(loss.item(), (points, which))
        z = torch.randn(128, 4, generator=g)
        wanted = torch.ones(128, 1)
        first.zero_grad()
        loss = fools(generator(z), wanted)
        loss.backward()
        first.step()
        rec_generator.step(loss.item(), (z, wanted))


@healthy("Ordinary: the head of a pretrained network with BatchNorm is tuned; its body is frozen for good.", steps=1500)
def frozen_body(record):
    torch.manual_seed(112)
    body = nn.Sequential(nn.Linear(24, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 128), nn.ReLU())
    model = nn.Sequential(body, nn.Linear(128, 6))
    x, y = classes(8000, 24, 6, 1, teacher=41)
    early = torch.optim.Adam(model.parameters(), lr=2e-3)
    batches = loader(8000, 64, 2)
    for _ in range(250):
        i = next(batches)
        early.zero_grad()
        F.cross_entropy(model(x[i]), y[i]).backward()
        early.step()
    body.requires_grad_(False).eval()
    model[1].reset_parameters()
    group = torch.tensor([0, 1, 2, 0, 1, 2])
    xv, yv = classes(1000, 24, 6, 3, teacher=41)
    y, yv = group[y], group[yv]
    model[1] = nn.Linear(128, 3)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.01, momentum=0.9)
    rec = record(model, optimizer, F.cross_entropy)
    batches = loader(8000, 96, 4)
    for step in range(1500):
        i = next(batches)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[i]), y[i])
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (x[i], y[i]))
        if step % 50 == 49:
            with torch.no_grad():
                rec.validation(F.cross_entropy(model(xv), yv).item())


@healthy("Smoothed labels, whose loss cannot fall below 0.8, and a rate that falls by ten, and the loss with it.", steps=1600)
def smoothed_steps(record):
    torch.manual_seed(113)
    x, y = pictures(8000, 8, 1, side=10, noise=0.8)
    xv, yv = pictures(600, 8, 2, side=10, noise=0.8)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.2)
    model = nn.Sequential(
        nn.Conv2d(1, 10, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(250, 64), nn.ReLU(), nn.Linear(64, 8)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.08, momentum=0.9, nesterov=True, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [800, 1200], 0.1)
    rec = record(model, optimizer, criterion)
    batches = loader(8000, 32, 3)
    for step in range(1600):
        i = next(batches)
        optimizer.zero_grad()
        loss = criterion(model(x[i]), y[i])
        loss.backward()
        optimizer.step()
        schedule.step()
        rec.step(loss.item(), (x[i], y[i]))
        if step % 50 == 49:
            with torch.no_grad():
                rec.validation(criterion(model(xv), yv).item())


class Bag(nn.Module):
    def __init__(self, vocabulary=1500, width=24):
        super().__init__()
        self.words = nn.EmbeddingBag(vocabulary, width, mode="mean")
        self.hidden = nn.Linear(width, 128)
        self.out = nn.Linear(128, 4)

    def forward(self, t):
        return self.out(torch.relu(self.hidden(self.words(t))))


@healthy("Adagrad on a bag of words: its steps shrink, and most rows of the table get no gradient in a step.", steps=1800)
def rare_words(record):
    torch.manual_seed(114)
    table = torch.softmax(1.2 * torch.randn(4, 1500, generator=gen(1)) - 2.5 * torch.arange(1500) / 1500, -1)

    def texts(n, seed):
        g = gen(seed)
        y = torch.randint(4, (n,), generator=g)
        return torch.multinomial(table[y], 10, replacement=True, generator=g), y

    x, y = texts(20000, 2)
    xv, yv = texts(1000, 3)
    model = Bag()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.03)
    rec = record(model, optimizer, F.cross_entropy)
    batches = loader(20000, 96, 4)
    for step in range(1800):
        i = next(batches)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[i]), y[i])
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (x[i], y[i]))
        if step % 60 == 59:
            with torch.no_grad():
                rec.validation(F.cross_entropy(model(xv), yv).item())


def walk(state, action):
    """A ring of 12 places with a prize at place 0."""
    after = (state + torch.where(action == 1, 1, -1)) % 12
    return after, (after == 0).float()


@healthy("Values of actions, learned by RMSprop from a target network that is renewed now and then: the loss jumps at each renewal.", steps=1800)
def values_of_actions(record):
    torch.manual_seed(115)
    g = gen(1)
    eye = torch.eye(12)
    model, target = mlp(12, 160, 160, 2), mlp(12, 160, 160, 2)
    target.load_state_dict(model.state_dict())

    def criterion(outputs, targets):
        chosen = outputs.gather(1, targets[:, :1].long())
        return F.smooth_l1_loss(chosen, targets[:, 1:])

    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    rec = record(model, optimizer, criterion)
    for step in range(1800):
        state = torch.randint(12, (64,), generator=g)
        action = torch.randint(2, (64,), generator=g)
        after, prize = walk(state, action)
        prize = prize + 0.1 * torch.randn(64, generator=g)
        with torch.no_grad():
            wanted = prize + 0.95 * target(eye[after]).max(1).values
        inputs, targets = eye[state], torch.stack([action.float(), wanted], 1)
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (inputs, targets))
        if step % 120 == 119:
            target.load_state_dict(model.state_dict())


class Recall(nn.Module):
    def __init__(self, vocabulary=12, width=32, length=10):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.place = nn.Parameter(0.1 * torch.randn(length, width))
        self.block = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, t):
        return self.head(self.norm(self.block(self.token(t) + self.place)))


@healthy("A transformer with a long warm-up that sorts: a plateau first, then a fast fall.", steps=1500)
def transformer_plateau(record):
    torch.manual_seed(116)
    g = gen(1)

    def criterion(outputs, targets):
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    model = Recall()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min((s + 1) / 400, (400 / (s + 1)) ** 0.5))
    rec = record(model, optimizer, criterion)
    held = torch.randint(12, (300, 10), generator=gen(2))
    for step in range(1500):
        inputs = torch.randint(12, (24, 10), generator=g)
        targets = inputs.sort(1).values
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        rec.step(loss.item(), (inputs, targets))
        if step % 75 == 74:
            with torch.no_grad():
                rec.validation(criterion(model(held), held.sort(1).values).item())


@healthy("Ordinary: noise is taken off points of a spiral; the loss falls a little, then only jitters.", steps=1600)
def noise_from_spiral(record):
    torch.manual_seed(117)

    def draw(n, g):
        t = 3 * torch.rand(n, 1, generator=g) ** 0.5
        clean = torch.cat([t * torch.cos(3 * t), t * torch.sin(3 * t)], 1) * 0.6
        level = torch.rand(n, 1, generator=g)
        noise = torch.randn(n, 2, generator=g)
        return torch.cat([(1 - level).sqrt() * clean + level.sqrt() * noise, level], 1), noise

    g = gen(1)
    xv, yv = draw(2000, gen(2))
    model = mlp(3, 128, 128, 128, 2, act=nn.SiLU)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rec = record(model, optimizer, F.mse_loss)
    for step in range(1600):
        inputs, targets = draw(64, g)
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (inputs, targets))
        if step % 50 == 49:
            with torch.no_grad():
                rec.validation(F.mse_loss(model(xv), yv).item())


@healthy("Targets with heavy tails: every few steps a batch has a loss ten times that of others; gradients are clipped.", steps=1600)
def heavy_tails(record):
    torch.manual_seed(118)

    def table(n, seed):
        x, y = surface(n, 8, seed, teacher=43)
        g = gen(seed + 50)
        wild = torch.rand(n, 1, generator=g) < 0.005
        return x, torch.where(wild, y + 6 * torch.randn(n, 1, generator=g), y)

    x, y = table(30000, 1)
    xv, yv = surface(1000, 8, 2, teacher=43)
    model = mlp(8, 224, 224, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    rec = record(model, optimizer, F.mse_loss)
    batches = loader(30000, 64, 3)
    for step in range(1600):
        i = next(batches)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x[i]), y[i])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        rec.step(loss.item(), (x[i], y[i]))
        if step % 50 == 49:
            with torch.no_grad():
                rec.validation(F.mse_loss(model(xv), yv).item())


@healthy("Few clean data, all of them in each batch: every step sees the same examples, and they suffice.", steps=2000)
def all_at_once(record):
    torch.manual_seed(119)
    x, y = surface(256, 2, 1, teacher=45, noise=0.02)
    xv, yv = surface(300, 2, 2, teacher=45, noise=0.02)
    model = mlp(2, 128, 128, 1, act=nn.Tanh)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rec = record(model, optimizer, F.mse_loss)
    for step in range(2000):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (x, y))
        if step % 50 == 49:
            with torch.no_grad():
                rec.validation(F.mse_loss(model(xv), yv).item())
