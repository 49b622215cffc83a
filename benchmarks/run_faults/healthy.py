"""Trainings that nothing is wrong with, though their losses jump, swing, rise or stand still."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn.functional import mse_loss
from torch.optim import SGD, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import CosineAnnealingLR, CosineAnnealingWarmRestarts, LambdaLR, OneCycleLR, StepLR

from benchmarks.run_faults.training import (
    STEPS,
    Batch,
    Record,
    convnet,
    data,
    healthy,
    mlp,
    named,
    regression,
    sampled,
    train,
)


@healthy
def plain_sgd(record: Record) -> None:
    model = mlp(64, 64, 64, 10)
    train(record, model, SGD(model.parameters(), 0.1), sampled(32, data()[0]), validation=data()[1], limit_every=200)


@healthy
def adam_with_one_cycle(record: Record) -> None:
    model = mlp(64, 64, 64, 10)
    optimizer = Adam(model.parameters(), 1e-2)
    schedule = OneCycleLR(optimizer, 1e-2, total_steps=STEPS + 1)
    train(record, model, optimizer, sampled(32, data()[0]), scheduler=schedule, validation=data()[1])


@healthy
def warm_up_and_cosine(record: Record) -> None:
    model = convnet()
    optimizer = SGD(model.parameters(), 0.2, momentum=0.9, weight_decay=5e-4)
    schedule = LambdaLR(optimizer, lambda s: min(1, s / 200) * (1 + math.cos(math.pi * min(1, s / STEPS))) / 2)
    train(record, model, optimizer, sampled(64, data()[0]), scheduler=schedule, validation=data()[1], limit_every=200)


@healthy
def cosine_restarts(record: Record) -> None:
    model = mlp(64, 64, 64, 10)
    optimizer = SGD(model.parameters(), 0.5)
    schedule = CosineAnnealingWarmRestarts(optimizer, 400)
    train(record, model, optimizer, sampled(16, data()[0]), scheduler=schedule)


@healthy
def cosine_restarts_of_a_regression(record: Record) -> None:
    model = mlp(8, 64, 64, 1)
    optimizer = Adam(model.parameters(), 2e-2)
    schedule = CosineAnnealingWarmRestarts(optimizer, 500)
    train(record, model, optimizer, sampled(32, regression()), mse_loss, scheduler=schedule)


@healthy
def step_decay(record: Record) -> None:
    model = convnet()
    optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
    train(record, model, optimizer, sampled(32, data()[0]), scheduler=StepLR(optimizer, 600), validation=data()[1])


@healthy
def the_edge_of_stability(record: Record) -> None:
    x, y = data()[0]
    model = mlp(64, 64, 64, 10, act=nn.Tanh)
    targets = nn.functional.one_hot(y[:256], 10).float()
    train(
        record, model, SGD(model.parameters(), 0.7), lambda _: (x[:256], targets), mse_loss,
        limit_every=100,
    )  # fmt: skip


@healthy
def batches_of_one(record: Record) -> None:
    model = mlp(64, 64, 10)
    train(record, model, SGD(model.parameters(), 0.01), sampled(1, data()[0]))


@healthy
def batches_of_four_with_adam(record: Record) -> None:
    model = mlp(64, 64, 64, 10)
    train(record, model, Adam(model.parameters(), 1e-3), sampled(4, data()[0]))


@healthy
def heavy_tailed_regression(record: Record) -> None:
    x, y = regression()
    y = y + 0.3 * torch.distributions.StudentT(1.5).sample(y.shape)
    model = mlp(8, 64, 64, 1)
    train(record, model, Adam(model.parameters(), 1e-3), sampled(8, (x, y)), nn.SmoothL1Loss())


def _gan(record: Record, which: str) -> None:
    generator, critic = mlp(8, 64, 64, 2), mlp(2, 64, 64, 1)
    of_generator, of_critic = (Adam(m.parameters(), 5e-4, betas=(0.5, 0.9)) for m in (generator, critic))
    loss = nn.BCEWithLogitsLoss()
    rec = record(*((generator, of_generator, loss) if which == "generator" else (critic, of_critic, loss)))
    for _ in range(STEPS):
        angle = torch.rand(64) * 2 * math.pi
        real = torch.stack((angle.cos(), angle.sin()), 1) + 0.05 * torch.randn(64, 2)
        fake = generator(torch.randn(64, 8))
        of_critic.zero_grad()
        value = loss(critic(real), torch.ones(64, 1)) + loss(critic(fake.detach()), torch.zeros(64, 1))
        value.backward()
        of_critic.step()
        if which == "critic":
            rec.step(value)
        of_generator.zero_grad()
        value = loss(critic(fake), torch.ones(64, 1))
        value.backward()
        of_generator.step()
        if which == "generator":
            rec.step(value)


@healthy
def the_generator_of_a_gan(record: Record) -> None:
    _gan(record, "generator")


@healthy
def the_critic_of_a_gan(record: Record) -> None:
    _gan(record, "critic")


@healthy
def a_wasserstein_generator(record: Record) -> None:
    generator, critic = mlp(8, 64, 64, 2), mlp(2, 64, 64, 1)
    of_generator, of_critic = RMSprop(generator.parameters(), 2e-4), RMSprop(critic.parameters(), 5e-4)
    rec = record(generator, of_generator, mse_loss)
    for _ in range(STEPS):
        angle = torch.rand(64) * 2 * math.pi
        real = 3 * torch.stack((angle.cos(), angle.sin()), 1)
        fake = generator(torch.randn(64, 8))
        of_critic.zero_grad()
        (critic(fake.detach()).mean() - critic(real).mean()).backward()
        of_critic.step()
        for p in critic.parameters():
            p.data.clamp_(-0.1, 0.1)
        of_generator.zero_grad()
        value = -critic(fake).mean()
        value.backward()
        of_generator.step()
        rec.step(value)


@healthy
def policy_gradients(record: Record) -> None:
    """A contextual bandit by REINFORCE with a baseline: the loss has no trend."""
    x, y = data()[0]
    model = mlp(64, 64, 10)
    optimizer = Adam(model.parameters(), 1e-3)
    rec, draw, baseline = record(model, optimizer, mse_loss), sampled(32, (x, y)), 0.1
    for step in range(STEPS):
        batch = draw(step)
        choice = torch.distributions.Categorical(logits=model(batch[0]))
        action = choice.sample()
        reward = (action == batch[1]).float()
        baseline += 0.05 * (float(reward.mean()) - baseline)
        value = -((reward - baseline) * choice.log_prob(action)).mean()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        rec.step(value)


@healthy
def strong_dropout(record: Record) -> None:
    model = named(
        fc1=nn.Linear(64, 128), act1=nn.ReLU(), drop1=nn.Dropout(0.5), fc2=nn.Linear(128, 64), act2=nn.ReLU(),
        drop2=nn.Dropout(0.5), fc3=nn.Linear(64, 10),
    )  # fmt: skip
    train(record, model, Adam(model.parameters(), 1e-3), sampled(32, data()[0]), validation=data()[1])


@healthy
def fine_tuning_from_a_low_loss(record: Record) -> None:
    model = mlp(64, 64, 64, 10)
    x, y = data()[0]
    warm = Adam(model.parameters(), 1e-3)
    for _step in range(600):
        rows = torch.randint(1000, (64,))
        warm.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        warm.step()
    train(record, model, AdamW(model.parameters(), 1e-4), sampled(32, (x[600:], y[600:])), validation=data()[1])


@healthy
def interpolation(record: Record) -> None:
    x, y = data()[0]
    model = mlp(64, 256, 256, 10)
    train(record, model, Adam(model.parameters(), 1e-3), sampled(32, (x[:300], y[:300])))


@healthy
def epochs_in_a_fixed_order(record: Record) -> None:
    x, y = data()[0]
    order = torch.argsort(y // 2, stable=True)
    x, y = x[order], y[order]

    def batches(step: int) -> Batch:
        rows = torch.arange(32 * step, 32 * (step + 1)) % len(x)
        return x[rows], y[rows]

    model = mlp(64, 64, 10)
    train(record, model, SGD(model.parameters(), 0.02), batches)


@healthy
def gradients_clipped_from_the_start(record: Record) -> None:
    model = mlp(64, 64, 64, 10)
    train(
        record, model, SGD(model.parameters(), 0.05), sampled(32, data()[0]),
        after_backward=lambda _: float(nn.utils.clip_grad_norm_(model.parameters(), 0.1)) and None,
    )  # fmt: skip


@healthy
def a_loss_scale_that_is_halved_now_and_then(record: Record) -> None:
    model = mlp(64, 64, 64, 10)

    def overflow(step: int) -> None:
        if step in (1, 2, 3) or step % 450 == 0:
            model.fc2.weight.grad.fill_(float("inf"))

    scaler = GradScaler("cpu", growth_interval=300)
    train(record, model, SGD(model.parameters(), 0.1), sampled(32, data()[0]), after_backward=overflow, scaler=scaler)


@healthy
def accumulated_gradients(record: Record) -> None:
    model = mlp(64, 64, 64, 10)
    train(record, model, SGD(model.parameters(), 0.1), sampled(8, data()[0]), passes=4)


@healthy
def a_curriculum(record: Record) -> None:
    x, y = data()[0]
    easy = (x[y < 3], y[y < 3])
    some = (x[y < 6], y[y < 6])
    stages = [sampled(32, easy), sampled(32, some), sampled(32, (x, y))]
    model = mlp(64, 64, 64, 10)
    train(record, model, Adam(model.parameters(), 1e-3), lambda s: stages[min(2, s // 600)](s))


@healthy
def a_frozen_backbone(record: Record) -> None:
    model = mlp(64, 64, 64, 10)
    for name in ("fc1", "fc2"):
        getattr(model, name).requires_grad_(False)
    optimizer = Adam([p for p in model.parameters() if p.requires_grad], 1e-3)
    train(record, model, optimizer, sampled(32, data()[0]))


@healthy
def full_batches(record: Record) -> None:
    x, y = data()[0]
    model = mlp(64, 32, 10)
    train(record, model, SGD(model.parameters(), 0.2, momentum=0.9), lambda _: (x, y), limit_every=200)


@healthy
def a_negative_log_density(record: Record) -> None:
    x = 0.05 * torch.randn(1024, 8)
    model = nn.Sequential()
    model.add_module("fc1", nn.Linear(8, 32))
    model.add_module("act1", nn.Tanh())
    model.add_module("fc2", nn.Linear(32, 16))

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        mean, log_std = outputs.chunk(2, 1)
        return (log_std + ((targets - mean) / log_std.exp()) ** 2 / 2).sum(1).mean()

    train(record, model, Adam(model.parameters(), 1e-3), sampled(32, (torch.zeros_like(x), x)), loss)


@healthy
def small_batches_with_batchnorm(record: Record) -> None:
    model = mlp(64, 64, 64, 10, norm=True)
    train(record, model, SGD(model.parameters(), 0.02, momentum=0.9), sampled(8, data()[0]), validation=data()[1])


@healthy
def a_small_transformer(record: Record) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    model = named(
        view=nn.Unflatten(1, (8, 8)), embed=nn.Linear(8, 16), encoder=nn.TransformerEncoder(layer, 1),
        flat=nn.Flatten(), head=nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = AdamW(model.parameters(), 2e-3, weight_decay=0.05)
    schedule = CosineAnnealingLR(optimizer, STEPS)
    train(record, model, optimizer, sampled(32, data()[0]), scheduler=schedule, validation=data()[1])


@healthy
def a_recurrent_network(record: Record) -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.GRU(8, 32, batch_first=True), nn.Linear(32, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.rnn(x.view(-1, 8, 8))[0][:, -1])

    model = Last()
    train(
        record, model, Adam(model.parameters(), 2e-3), sampled(32, data()[0]),
        after_backward=lambda _: float(nn.utils.clip_grad_norm_(model.parameters(), 1.0)) and None,
    )  # fmt: skip
