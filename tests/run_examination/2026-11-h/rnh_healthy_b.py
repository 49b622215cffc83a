"""Training loops with nothing wrong: second half."""

from __future__ import annotations

import copy
import math

import torch
from program import Record, healthy
from rnh_data import accuracy, digits, evaluated, phrases, ratings, seeded, shapes, shuffled, signals
from torch import Tensor, nn
from torch.nn import functional as F


class Masks(nn.Module):
    """A small network with a skip from the picture to its mask."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.deep = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
                                  nn.Upsample(scale_factor=2))
        self.out = nn.Conv2d(24, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.down(x)
        return self.out(torch.cat([h, self.deep(h)], 1))


def dice(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy and overlap."""
    p = outputs.sigmoid()
    overlap = (2 * (p * targets).sum((1, 2, 3)) + 1) / (p.sum((1, 2, 3)) + targets.sum((1, 2, 3)) + 1)
    return F.binary_cross_entropy_with_logits(outputs, targets) + 1 - overlap.mean()


def one_cycle(record: Record) -> dict[str, float]:
    """One cycle up to a very high rate, and down to nearly nothing."""
    torch.manual_seed(211)
    rng = seeded(41)
    x, y = shapes(1200, rng)
    hx, hy = shapes(200, rng)
    model = Masks()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.04, total_steps=1000)
    recorder = record(model, optimizer, dice)
    for step, (a, b) in enumerate(shuffled(x, y, 16, 1000, 41)):
        if step % 2:
            a, b = a.flip(3), b.flip(3)
        optimizer.zero_grad()
        value = dice(model(a), b)
        value.backward()
        optimizer.step()
        schedule.step()
        recorder.step(value, (a, b))
        if step % 50 == 49:
            recorder.validation(evaluated(model, dice, hx, hy))
    model.eval()
    with torch.no_grad():
        guess = (model(hx) > 0).float()
    return {"intersection_over_union": ((guess * hy).sum() / ((guess + hy) > 0).sum()).item()}


@healthy("One cycle: the rate climbs to 0.04, the held-out loss wobbles, and the rate ends near nothing",
         steps=1000)
def rnh_one_cycle_masks(record: Record) -> None:
    """Segmentation of discs."""
    one_cycle(record)


def averaged(record: Record) -> dict[str, float]:
    """Averaged weights from a constant high rate; statistics of BatchNorm are made anew at the end."""
    torch.manual_seed(212)
    x, y, hx, hy = digits(42)
    model = nn.Sequential(nn.Linear(64, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 48), nn.BatchNorm1d(48),
                          nn.ReLU(), nn.Linear(48, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    mean = torch.optim.swa_utils.AveragedModel(model)
    schedule = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.2, anneal_epochs=100)
    loss = nn.CrossEntropyLoss()
    recorder = record(model, optimizer, loss)
    for step, (a, b) in enumerate(shuffled(x, y, 32, 1300, 42)):
        optimizer.zero_grad()
        value = loss(model(a), b)
        value.backward()
        optimizer.step()
        recorder.step(value, (a, b))
        if step >= 700:
            schedule.step()
            if step % 20 == 0:
                mean.update_parameters(model)
        if step % 50 == 49:
            recorder.validation(evaluated(model, loss, hx, hy))
    torch.optim.swa_utils.update_bn([(x, y)], mean)
    return {"held_out_accuracy": accuracy(model, hx, hy), "averaged_accuracy": accuracy(mean, hx, hy)}


@healthy("Averaging of weights: the rate goes up in the second half and the loss gets noisier, on purpose", steps=1300)
def rnh_weight_averaging(record: Record) -> None:
    """Digits."""
    averaged(record)


class Speaker(nn.Module):
    """A recurrent language model with one table for words in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 32)
        self.rnn = nn.GRU(32, 32, batch_first=True)
        self.out = nn.Linear(32, 20)
        self.out.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(self.words(x))[0])


def flat(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy over all places."""
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def accumulated(record: Record) -> dict[str, float]:
    """Gradients of two small batches for each step."""
    torch.manual_seed(213)
    rng = seeded(43)
    held = phrases(300, rng)
    model = Speaker()
    nn.init.normal_(model.words.weight, std=0.3)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    recorder = record(model, optimizer, flat)
    for step in range(1000):
        optimizer.zero_grad()
        total, texts = torch.zeros(()), []
        for _ in range(2):
            text = phrases(12, rng)
            part = flat(model(text[:, :-1]), text[:, 1:]) / 2
            part.backward()
            total = total + part.detach()
            texts.append(text)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        both = torch.cat(texts)
        recorder.step(total, (both[:, :-1], both[:, 1:]))
        if step % 50 == 49:
            recorder.validation(evaluated(model, flat, held[:, :-1], held[:, 1:]))
    return {"held_out_loss": evaluated(model, flat, held[:, :-1], held[:, 1:]), "loss_of_guessing": math.log(20)}


@healthy("Gradients of two batches add up on purpose before each step; words share one table in and out", steps=1000)
def rnh_accumulation_tied_words(record: Record) -> None:
    """A recurrent language model."""
    accumulated(record)


class Adder(nn.Module):
    """A recurrent network that reads to the end."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(2, 32, batch_first=True)
        self.out = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0][:, -1])


def curriculum(record: Record) -> dict[str, float]:
    """Sums of the marked numbers in ever longer sequences."""
    torch.manual_seed(214)
    rng = seeded(44)

    def draw(n: int, length: int) -> tuple[Tensor, Tensor]:
        numbers = torch.rand(n, length, generator=rng)
        marks = (torch.rand(n, length, generator=rng) < 3 / length).float()
        return torch.stack([numbers, marks], 2), (numbers * marks).sum(1, keepdim=True)

    hx, hy = draw(500, 20)
    model = Adder()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = nn.MSELoss()
    recorder = record(model, optimizer, loss)
    for step in range(1200):
        a, b = draw(48, (5, 8, 12, 20)[min(3, step // 250)])
        optimizer.zero_grad()
        value = loss(model(a), b)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recorder.step(value, (a, b))
        if step % 50 == 49:
            recorder.validation(evaluated(model, loss, hx, hy))
    return {"held_out_loss": evaluated(model, loss, hx, hy), "loss_of_mean": hy.var().item()}


@healthy("A curriculum: sequences get longer at three steps, and the loss goes up each time for a while", steps=1200)
def rnh_longer_and_longer(record: Record) -> None:
    """Sums of marked numbers."""
    curriculum(record)


def adversarial(record: Record) -> dict[str, float]:
    """A generator of points on a ring; the recorder watches the generator."""
    torch.manual_seed(215)
    rng = seeded(45)

    def ring(n: int) -> Tensor:
        turn = torch.rand(n, generator=rng) * 2 * math.pi
        return torch.stack([turn.cos(), turn.sin()], 1) * 1.5 + 0.05 * torch.randn(n, 2, generator=rng)

    maker = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))
    judge = nn.Sequential(nn.Linear(2, 48), nn.LeakyReLU(0.2), nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1))
    first = torch.optim.Adam(maker.parameters(), lr=1e-3, betas=(0.5, 0.9))
    second = torch.optim.Adam(judge.parameters(), lr=2e-3, betas=(0.5, 0.9))

    def fooled(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.softplus(-judge(outputs)).mean()

    recorder = record(maker, first, fooled)
    for _ in range(1500):
        real, noise = ring(64), torch.randn(64, 4, generator=rng)
        with torch.no_grad():
            made = maker(noise)
        second.zero_grad()
        real.requires_grad_(True)
        verdict = judge(real)
        slope = torch.autograd.grad(verdict.sum(), real, create_graph=True)[0]
        cost = F.softplus(-verdict).mean() + F.softplus(judge(made)).mean() + 0.1 * (slope**2).sum(1).mean()
        cost.backward()
        second.step()
        noise = torch.randn(64, 4, generator=rng)
        first.zero_grad()
        value = fooled(maker(noise), real.detach())
        value.backward()
        first.step()
        recorder.step(value, (noise, real.detach()))
    with torch.no_grad():
        made = maker(torch.randn(2000, 4, generator=rng))
    turn = torch.atan2(made[:, 1], made[:, 0])
    share = torch.histc(turn, 12, -math.pi, math.pi) / 2000
    return {"mean_distance_from_ring": (made.norm(dim=1) - 1.5).abs().mean().item(),
            "least_share_of_12_sectors": share.min().item(), "largest_share": share.max().item()}


@healthy("A generator against a judge: its loss stays near the logarithm of two and swings, without falling on",
         steps=1500)
def rnh_ring_generator(record: Record) -> None:
    """Points on a ring."""
    adversarial(record)


def late_rise(record: Record) -> dict[str, float]:
    """A classifier whose held-out loss bends up a little at the end while its accuracy holds."""
    torch.manual_seed(216)
    x, y, hx, hy = digits(46)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss = nn.CrossEntropyLoss()
    recorder = record(model, optimizer, loss)
    held = []
    for step, (a, b) in enumerate(shuffled(x, y, 64, 1100, 46)):
        optimizer.zero_grad()
        value = loss(model(a), b)
        value.backward()
        optimizer.step()
        recorder.step(value, (a, b))
        if step % 25 == 24:
            held.append(evaluated(model, loss, hx, hy))
            recorder.validation(held[-1])
    return {"held_out_accuracy": accuracy(model, hx, hy), "least_held_out_loss": min(held),
            "last_held_out_loss": held[-1]}


@healthy("Training loss goes to nearly nothing while the held-out loss is flat or a trifle above its least at the end",
         steps=1100)
def rnh_flat_held_out_tail(record: Record) -> None:
    """Digits without any regularisation."""
    late_rise(record)


class Variational(nn.Module):
    """A variational autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 16))
        self.decoder = nn.Sequential(nn.Linear(8, 96), nn.ReLU(), nn.Linear(96, 64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.encoder(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (spread / 2).exp() if self.training else mean
        return self.decoder(z), mean, spread


class Bound(nn.Module):
    """Reconstruction, and a divergence whose weight is warmed up."""

    weight = 0.0

    def forward(self, outputs: tuple[Tensor, Tensor, Tensor], targets: Tensor) -> Tensor:
        made, mean, spread = outputs
        far = 0.5 * (mean**2 + spread.exp() - 1 - spread).sum(1).mean()
        return ((made - targets) ** 2).sum(1).mean() / 2 + self.weight * far


def annealed(record: Record) -> dict[str, float]:
    """The weight of the divergence goes from 0 to 1 in the first half."""
    torch.manual_seed(217)
    x, _, hx, _ = digits(47)
    model, loss = Variational(), Bound()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    recorder = record(model, optimizer, loss)
    for step, (a, b) in enumerate(shuffled(x, x, 64, 1400, 47)):
        loss.weight = min(1.0, max(0.0, (step - 200) / 500))
        optimizer.zero_grad()
        value = loss(model(a), b)
        value.backward()
        optimizer.step()
        recorder.step(value, (a, b))
        if step % 50 == 49:
            recorder.validation(evaluated(model, loss, hx, hx))
    model.eval()
    with torch.no_grad():
        made, mean, spread = model(hx)
        used = ((mean**2 + spread.exp() - 1 - spread).mean(0) / 2 > 0.1).sum().item()
    return {"error_per_pixel": ((made - hx) ** 2).mean().item(), "variance_per_pixel": hx.var(0).mean().item(),
            "latents_in_use_of_8": used}


@healthy("The divergence of a variational autoencoder is warmed up: the loss rises for hundreds of steps, on purpose",
         steps=1400)
def rnh_divergence_warmed_up(record: Record) -> None:
    """Digits."""
    annealed(record)


class Factors(nn.Module):
    """Factors and biases of users and items."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(200, 8)
        self.items = nn.Embedding(120, 8)
        self.bias = nn.Embedding(120, 1)
        nn.init.normal_(self.users.weight, std=0.3)
        nn.init.normal_(self.items.weight, std=0.3)
        nn.init.zeros_(self.bias.weight)

    def forward(self, pairs: Tensor) -> Tensor:
        return (self.users(pairs[:, 0]) * self.items(pairs[:, 1])).sum(1) + self.bias(pairs[:, 1]).squeeze(1)


def factors(record: Record) -> dict[str, float]:
    """Matrix factors; most rows have no gradient in a batch."""
    torch.manual_seed(218)
    rng = seeded(48)
    hx, hy = ratings(3000, rng)
    model = Factors()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.15)
    loss = nn.SmoothL1Loss()
    recorder = record(model, optimizer, loss)
    for step in range(1600):
        a, b = ratings(64, rng)
        optimizer.zero_grad()
        value = loss(model(a), b)
        value.backward()
        optimizer.step()
        recorder.step(value, (a, b))
        if step % 80 == 79:
            recorder.validation(evaluated(model, loss, hx, hy))
    return {"held_out_loss": evaluated(model, loss, hx, hy),
            "loss_of_mean": F.smooth_l1_loss(hy.mean().expand_as(hy), hy).item()}


@healthy("Embeddings of which a batch touches few rows, some items hardly ever", steps=1600)
def rnh_matrix_factors(record: Record) -> None:
    """A recommender."""
    factors(record)


def bfloat(record: Record) -> dict[str, float]:
    """Autocast to bfloat16 with weights in full precision, and a mean of weights for evaluation."""
    torch.manual_seed(219)
    rng = seeded(49)
    hx, hy = signals(500, rng)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
    mean = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1200)
    loss = nn.MSELoss()
    recorder = record(model, optimizer, loss)
    for step in range(1200):
        a, b = signals(32, rng)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(a)
        value = loss(out.float(), b)
        value.backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            for p, q in zip(mean.parameters(), model.parameters(), strict=True):
                p.lerp_(q, 0.02)
        recorder.step(value, (a, b))
        if step % 50 == 49:
            recorder.validation(evaluated(mean, loss, hx, hy))
    return {"held_out_loss": evaluated(mean, loss, hx, hy), "loss_of_mean": hy.var().item()}


@healthy("Autocast to bfloat16, and validation by a moving mean of weights that lags behind at first", steps=1200)
def rnh_bfloat16_autocast(record: Record) -> None:
    """A forecast of oscillations."""
    bfloat(record)


def values(record: Record) -> dict[str, float]:
    """Values of states on a walk, learned from a target network that is renewed every 150 steps."""
    torch.manual_seed(220)
    rng = seeded(51)
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 1))
    target = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss = nn.SmoothL1Loss()
    recorder = record(model, optimizer, loss)

    def reward(s: Tensor) -> Tensor:
        return torch.cos(2 * s[:, :1]) * s[:, 1:] + 0.5

    for step in range(2000):
        if step % 150 == 0:
            target.load_state_dict(model.state_dict())
        s = torch.rand(64, 2, generator=rng) * 2 - 1
        with torch.no_grad():
            after = (0.9 * s + 0.1 * torch.randn(64, 2, generator=rng)).clamp(-1, 1)
            goal = reward(s) + 0.8 * target(after) + 0.1 * torch.randn(64, 1, generator=rng)
        optimizer.zero_grad()
        value = loss(model(s), goal)
        value.backward()
        optimizer.step()
        recorder.step(value, (s, goal))
    hs = torch.rand(300, 2, generator=rng) * 2 - 1
    total = torch.zeros(300, 1)
    for _ in range(64):
        s = hs.clone()
        for t in range(40):
            total += 0.8**t * reward(s) / 64
            s = (0.9 * s + 0.1 * torch.randn(300, 2, generator=rng)).clamp(-1, 1)
    with torch.no_grad():
        error = F.mse_loss(model(hs), total).item()
    return {"error_of_values": error, "variance_of_values": total.var().item(), "mean_value": total.mean().item()}


@healthy("Targets move whenever the target network is renewed: the loss jumps every 150 steps and rises slowly",
         steps=2000)
def rnh_values_with_target_network(record: Record) -> None:
    """Values of states on a random walk."""
    values(record)


CASES = {
    "rnh_one_cycle_masks": one_cycle,
    "rnh_weight_averaging": averaged,
    "rnh_accumulation_tied_words": accumulated,
    "rnh_longer_and_longer": curriculum,
    "rnh_ring_generator": adversarial,
    "rnh_flat_held_out_tail": late_rise,
    "rnh_divergence_warmed_up": annealed,
    "rnh_matrix_factors": factors,
    "rnh_bfloat16_autocast": bfloat,
    "rnh_values_with_target_network": values,
}
