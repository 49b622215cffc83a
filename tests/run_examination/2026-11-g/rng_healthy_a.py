"""Healthy runs that may be mistaken for faulty ones."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from program import healthy


def _token_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _markov(count: int, length: int, vocabulary: int, scale: float) -> torch.Tensor:
    table = torch.softmax(torch.randn(vocabulary, vocabulary, vocabulary) * scale, -1)
    text = torch.randint(vocabulary, (count, 2))
    for _ in range(length - 2):
        text = torch.cat([text, torch.multinomial(table[text[:, -2], text[:, -1]], 1)], 1)
    return text


class _Decoder(nn.Module):
    def __init__(self, vocabulary: int, width: int, length: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.randn(length, width) * 0.1)
        block = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)
        self.register_buffer("mask", torch.triu(torch.full((length, length), -math.inf), 1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(tokens) + self.position, mask=self.mask))


@healthy("A rate that starts at 0, warms up for 200 steps and ends at 0 along a cosine; dropout in a small decoder", steps=1300)
def rng_warm_cosine(record):
    torch.manual_seed(61)
    text = _markov(4000, 13, 10, 2.5)
    train, held = text[:3600], text[3600:]
    model = _Decoder(10, 32, 12)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.05)

    def rate(step):
        if step < 200:
            return step / 200
        return 0.5 * (1 + math.cos(math.pi * (step - 200) / 1100))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    recorder = record(model, optimizer, _token_loss)
    for step in range(1300):
        rows = train[torch.randint(len(train), (32,))]
        inputs, targets = rows[:, :-1], rows[:, 1:]
        optimizer.zero_grad(set_to_none=True)
        loss = _token_loss(model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        recorder.step(loss.item(), (inputs, targets))
        if (step + 1) % 100 == 0:
            model.eval()
            with torch.no_grad():
                recorder.validation(_token_loss(model(held[:, :-1]), held[:, 1:]).item())
            model.train()


@healthy(
    "Half of the units dropped and labels smoothed by 0.2: the training loss stays high and above that of validation",
    steps=1500,
)
def rng_smooth_half(record):
    torch.manual_seed(62)
    centres = torch.randn(6, 2, 20)

    def draw(count):
        labels = torch.randint(6, (count,))
        return centres[labels, torch.randint(2, (count,))] + 1.0 * torch.randn(count, 20), labels

    points, labels = draw(5000)
    held_points, held_labels = draw(1000)
    model = nn.Sequential(
        nn.Linear(20, 96), nn.ReLU(), nn.Dropout(0.5), nn.Linear(96, 96), nn.ReLU(), nn.Dropout(0.5), nn.Linear(96, 6)
    )
    criterion = nn.CrossEntropyLoss(label_smoothing=0.2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.5e-3)
    recorder = record(model, optimizer, criterion)
    step = 0
    while step < 1500:
        for inputs, targets in DataLoader(TensorDataset(points, labels), batch_size=50, shuffle=True):
            model.train()
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            recorder.step(loss.item(), (inputs, targets))
            step += 1
            if step % 100 == 0:
                model.eval()
                with torch.no_grad():
                    recorder.validation(criterion(model(held_points), held_labels).item())


@healthy("Gradients of four small batches are gathered before each step, on purpose, each divided by four", steps=1000)
def rng_gathered(record):
    torch.manual_seed(63)
    points = torch.randn(24000, 12)
    teacher = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 3))
    with torch.no_grad():
        labels = (teacher(points) * 5 + 0.3 * torch.randn(24000, 3)).argmax(1)
    held_points, held_labels = points[22000:], labels[22000:]
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    recorder = record(model, optimizer, F.cross_entropy)
    gather, done, total = 4, 0, 0.0
    optimizer.zero_grad()
    for micro in range(4000):
        rows = torch.randint(22000, (16,))
        inputs, targets = points[rows], labels[rows]
        loss = F.cross_entropy(model(inputs), targets)
        (loss / gather).backward()
        total += loss.item() / gather
        if (micro + 1) % gather == 0:
            optimizer.step()
            optimizer.zero_grad()
            recorder.step(total, (inputs, targets))
            total = 0.0
            done += 1
            if done % 100 == 0:
                with torch.no_grad():
                    recorder.validation(F.cross_entropy(model(held_points), held_labels).item())


@healthy("Batches of four: the loss of a step jumps up and down by far more than it falls", steps=2000)
def rng_four_at_once(record):
    torch.manual_seed(64)
    centres = torch.randn(5, 2, 10)

    def draw(count):
        labels = torch.randint(5, (count,))
        return centres[labels, torch.randint(2, (count,))] + 0.9 * torch.randn(count, 10), labels

    points, labels = draw(8000)
    held_points, held_labels = draw(1000)
    model = nn.Sequential(nn.Linear(10, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
    recorder = record(model, optimizer, F.cross_entropy)
    order = torch.randperm(8000)
    for step in range(2000):
        rows = order[4 * step : 4 * step + 4]
        inputs, targets = points[rows], labels[rows]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (inputs, targets))
        if step % 200 == 199:
            with torch.no_grad():
                recorder.validation(F.cross_entropy(model(held_points), held_labels).item())


@healthy(
    "A discriminator of a GAN: its loss falls a little, rises back to log 2 and stays there, as it should when the "
    "generator learns",
    steps=1800,
)
def rng_ring_judge(record):
    torch.manual_seed(65)
    maker = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))
    judge = nn.Sequential(nn.Linear(2, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1))
    maker_optimizer = torch.optim.Adam(maker.parameters(), lr=1e-3, betas=(0.5, 0.999))
    judge_optimizer = torch.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.5, 0.999))
    recorder = record(judge, judge_optimizer, F.binary_cross_entropy_with_logits)
    kinds = torch.cat([torch.ones(32, 1), torch.zeros(32, 1)])
    for _ in range(1800):
        angle = 2 * math.pi * torch.rand(32)
        real = torch.stack([angle.cos(), angle.sin()], 1) * 1.5 + 0.15 * torch.randn(32, 2)
        fake = maker(torch.randn(32, 4))
        inputs = torch.cat([real, fake.detach()])
        judge_optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(judge(inputs), kinds)
        loss.backward()
        judge_optimizer.step()
        recorder.step(loss.item(), (inputs, kinds))

        maker_optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(judge(maker(torch.randn(32, 4))), torch.ones(32, 1)).backward()
        maker_optimizer.step()
    with torch.no_grad():
        made = maker(torch.randn(2000, 4))
    radius = made.norm(dim=1)
    rng_ring_judge.score = {
        "mean_distance_to_ring": (radius - 1.5).abs().mean().item(),
        "spread_of_samples": made.std(0).tolist(),
        "real_spread": 1.5 / math.sqrt(2),
    }


@healthy(
    "Q learning from a buffer with a target network that is copied every 100 steps: targets move, and the loss rises "
    "after each copy while values grow",
    steps=1500,
)
def rng_grid_values(record):
    torch.manual_seed(66)
    size, discount = 5, 0.9
    moves = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])
    cells = torch.stack([torch.arange(25) // size, torch.arange(25) % size], 1)
    after = (cells[:, None] + moves[None]).clamp(0, size - 1)
    following = after[..., 0] * size + after[..., 1]
    goal = 18
    reward = (following == goal).float()
    truth = torch.zeros(25, 4)
    for _ in range(300):
        truth = reward + discount * truth.max(1).values[following] * (following != goal)

    def code(cell, move):
        return torch.cat([F.one_hot(cell, 25).float() * 3 - 0.12, F.one_hot(move, 4).float() * 2 - 0.5], -1)

    everything = code(torch.arange(25).repeat_interleave(4), torch.arange(4).repeat(25))
    online = nn.Sequential(nn.Linear(29, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    lagged = nn.Sequential(nn.Linear(29, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    lagged.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
    recorder = record(online, optimizer, F.smooth_l1_loss)
    for step in range(1500):
        if step % 100 == 0:
            lagged.load_state_dict(online.state_dict())
        cell, move = torch.randint(25, (48,)), torch.randint(4, (48,))
        inputs = code(cell, move)
        to = following[cell, move]
        with torch.no_grad():
            best = lagged(everything).view(25, 4).max(1).values[to]
            targets = (reward[cell, move] + discount * best * (to != goal)).unsqueeze(1)
        optimizer.zero_grad()
        loss = F.smooth_l1_loss(online(inputs), targets)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (inputs, targets))
    with torch.no_grad():
        found = online(everything).view(25, 4)
    keep = torch.arange(25) != goal
    chosen = truth.gather(1, found.argmax(1, keepdim=True))[:, 0]
    rng_grid_values.score = {
        "greedy_move_is_optimal": ((chosen > truth.max(1).values - 1e-4) & keep).sum().item() / 24,
        "mean_error_of_values": (found - truth)[keep].abs().mean().item(),
    }


@healthy("Warm restarts: every 300 steps the rate jumps back to its peak, and the loss jumps with it", steps=1500)
def rng_restarts(record):
    torch.manual_seed(67)
    points = torch.randn(3600, 2)
    values = torch.sin(2.5 * points[:, :1]) * torch.cos(2 * points[:, 1:]) + 0.15 * torch.randn(3600, 1)
    train_points, train_values, held_points, held_values = points[:3000], values[:3000], points[3000:], values[3000:]
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=300, eta_min=1e-5)
    recorder = record(model, optimizer, F.mse_loss)
    for step in range(1500):
        rows = torch.randint(3000, (64,))
        inputs, targets = train_points[rows], train_values[rows]
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        schedule.step()
        recorder.step(loss.item(), (inputs, targets))
        if step % 50 == 49:
            with torch.no_grad():
                recorder.validation(F.mse_loss(model(held_points), held_values).item())


class _Transfer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(64, 8)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(images))


@healthy(
    "A pretrained backbone with BatchNorm, frozen and in eval mode from the first to the last step; only the head learns",
    steps=1000,
)
def rng_head_only(record):
    torch.manual_seed(68)
    patterns = torch.randn(8, 8, 8)

    def draw(count):
        labels = torch.randint(8, (count,))
        return (patterns[labels] + 1.0 * torch.randn(count, 8, 8)).unsqueeze(1), labels

    images, labels = draw(5000)
    model = _Transfer()
    first = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(300):
        rows = torch.randint(5000, (64,))
        first.zero_grad()
        F.cross_entropy(model(images[rows]), labels[rows]).backward()
        first.step()

    new_labels = torch.tensor([2, 0, 1, 3, 3, 0, 2, 1])
    images, labels = draw(3000)
    held_images, held_labels = draw(600)
    labels, held_labels = new_labels[labels], new_labels[held_labels]
    model.head = nn.Linear(64, 4)
    model.backbone.requires_grad_(False)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.02, momentum=0.9)
    recorder = record(model, optimizer, F.cross_entropy)
    for step in range(1000):
        model.train()
        model.backbone.eval()
        rows = torch.randint(3000, (32,))
        inputs, targets = images[rows], labels[rows]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (inputs, targets))
        if step % 50 == 49:
            model.eval()
            with torch.no_grad():
                recorder.validation(F.cross_entropy(model(held_images), held_labels).item())


@healthy("A small curve fit by full batches: each step sees all 300 measurements again, by design", steps=1200)
def rng_whole_set(record):
    torch.manual_seed(69)
    time = torch.rand(450, 1) * 4 - 2
    values = torch.exp(-0.5 * (time + 2)) * torch.cos(3 * time) + 0.05 * torch.randn(450, 1)
    values = values / values[:300].std()
    inputs, targets, held_inputs, held_targets = time[:300], values[:300], time[300:], values[300:]
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.998)
    recorder = record(model, optimizer, F.mse_loss)
    for step in range(1200):
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        schedule.step()
        recorder.step(loss.item(), (inputs, targets))
        if step % 50 == 49:
            with torch.no_grad():
                recorder.validation(F.mse_loss(model(held_inputs), held_targets).item())


@healthy("Targets with heavy tails and a Huber loss: now and then a batch holds an outlier and its loss stands out", steps=1400)
def rng_heavy_tails(record):
    torch.manual_seed(70)
    points = torch.randn(9000, 8)
    clean = torch.sin(points[:, :1] * 2) + points[:, 1:2] * points[:, 2:3] - 0.5 * points[:, 3:4]
    noise = torch.distributions.StudentT(1.6).sample((9000, 1)) * 0.2
    values = clean + noise
    held_points, held_values = points[8000:], values[8000:]
    model = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
    criterion = nn.HuberLoss(delta=1.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    recorder = record(model, optimizer, criterion)
    for step in range(1400):
        rows = torch.randint(8000, (32,))
        inputs, targets = points[rows], values[rows]
        loss = criterion(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (inputs, targets))
        if step % 100 == 99:
            with torch.no_grad():
                recorder.validation(criterion(model(held_points), held_values).item())
    with torch.no_grad():
        rng_heavy_tails.score = {
            "error_to_noise_free_targets": F.mse_loss(model(held_points), clean[8000:]).item(),
            "variance_of_them": clean[8000:].var().item(),
        }


class _Adder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 40, batch_first=True)
        self.head = nn.Linear(40, 1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(rows)[0][:, -1])


@healthy(
    "An LSTM that adds two marked numbers: a plateau near the variance of the targets at first, then a fall; clipping is "
    "active in many steps",
    steps=1800,
)
def rng_add_marked(record):
    torch.manual_seed(71)
    length = 24

    def draw(count):
        numbers = torch.rand(count, length) * 2 - 1
        first = torch.randint(0, length // 2, (count, 1))
        second = torch.randint(length // 2, length, (count, 1))
        marks = torch.zeros(count, length).scatter(1, first, 1.0).scatter(1, second, 1.0)
        return torch.stack([numbers, marks], 2), (numbers * marks).sum(1, keepdim=True)

    model = _Adder()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    recorder = record(model, optimizer, F.mse_loss)
    held_inputs, held_targets = draw(500)
    for step in range(1800):
        inputs, targets = draw(48)
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        recorder.step(loss.item(), (inputs, targets))
        if step % 100 == 99:
            with torch.no_grad():
                recorder.validation(F.mse_loss(model(held_inputs), held_targets).item())


class _Vae(nn.Module):
    def __init__(self, features: int, latent: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(features, 48), nn.ReLU())
        self.mean = nn.Linear(48, latent)
        self.spread = nn.Linear(48, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, 48), nn.ReLU(), nn.Linear(48, features))

    def forward(self, inputs: torch.Tensor):
        hidden = self.encoder(inputs)
        mean, spread = self.mean(hidden), self.spread(hidden)
        return self.decoder(mean + torch.randn_like(mean) * torch.exp(0.5 * spread)), mean, spread


@healthy(
    "A variational autoencoder whose KL term is phased in over 500 steps: its loss rises meanwhile, as planned",
    steps=1500,
)
def rng_phase_in(record):
    torch.manual_seed(72)
    mix = torch.randn(3, 20)
    points = torch.tanh(torch.randn(5000, 3) @ mix * 0.6) * 1.4 + 0.2 * torch.randn(5000, 20)
    train, held = points[:4500], points[4500:]
    model = _Vae(20, 3)
    weight = {"beta": 0.0}

    def loss_function(outputs, targets):
        rebuilt, mean, spread = outputs
        error = ((rebuilt - targets) ** 2).sum(1).mean()
        divergence = 0.5 * (mean**2 + spread.exp() - 1 - spread).sum(1).mean()
        return error + weight["beta"] * divergence

    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    recorder = record(model, optimizer, loss_function)
    for step in range(1500):
        weight["beta"] = min(1.0, step / 500) * 0.5
        inputs = train[torch.randint(4500, (48,))]
        optimizer.zero_grad()
        loss = loss_function(model(inputs), inputs)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (inputs, inputs))
        if step % 100 == 99:
            with torch.no_grad():
                recorder.validation(((model(held)[0] - held) ** 2).sum(1).mean().item())


@healthy("A diffusion model: the loss of a step depends on the drawn noise level and soon looks flat", steps=1600)
def rng_noise_levels(record):
    torch.manual_seed(73)
    angle = torch.rand(6000) * 3 * math.pi
    points = torch.stack([angle * angle.cos(), angle * angle.sin()], 1) / 5 + 0.05 * torch.randn(6000, 2)
    points = (points - points.mean(0)) / points.std(0)
    levels = torch.cumprod(1 - torch.linspace(1e-3, 0.12, 60), 0)
    model = nn.Sequential(nn.Linear(2 + 8, 96), nn.SiLU(), nn.Linear(96, 96), nn.SiLU(), nn.Linear(96, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    recorder = record(model, optimizer, F.mse_loss)
    waves = torch.arange(1, 5) * 0.5

    def noisy(rows):
        level = torch.randint(60, (len(rows),))
        noise = torch.randn(len(rows), 2)
        keep = levels[level].unsqueeze(1)
        phase = (level.unsqueeze(1) / 60 * 2 * math.pi) * waves
        return torch.cat([keep.sqrt() * points[rows] + (1 - keep).sqrt() * noise, phase.sin(), phase.cos()], 1), noise

    held_inputs, held_noise = noisy(torch.arange(5000, 6000))
    for step in range(1600):
        inputs, targets = noisy(torch.randint(5000, (64,)))
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (inputs, targets))
        if step % 100 == 99:
            with torch.no_grad():
                recorder.validation(F.mse_loss(model(held_inputs), held_noise).item())
