"""More trainings that nothing is wrong with: losses with several terms, tasks, phases or players."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import CyclicLR

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
def a_variational_autoencoder_whose_kl_term_is_raised(record: Record) -> None:
    class Autoencoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = mlp(64, 64, 16), mlp(8, 64, 64)
            self.weight = 0.0

        def forward(self, x: Tensor) -> Tensor:
            mean, log_std = self.encoder(x).chunk(2, 1)
            self.kl = (mean**2 + (2 * log_std).exp() - 1 - 2 * log_std).sum(1).mean() / 2
            return self.decoder(mean + log_std.exp() * torch.randn_like(mean))

    model = Autoencoder()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return mse_loss(outputs, targets) + model.weight * model.kl / 64

    def anneal(step: int) -> None:
        model.weight = min(1.0, step / 1000)

    x, _ = data()[0]
    train(record, model, Adam(model.parameters(), 1e-3), sampled(32, (x, x)), loss, before=anneal)


@healthy
def two_tasks_in_turn(record: Record) -> None:
    x, y = data()[0]
    draw = sampled(32, (x, y))

    def batches(step: int) -> Batch:
        inputs, labels = draw(step)
        return inputs, labels if step % 2 else labels % 2

    model = mlp(64, 64, 10)
    train(record, model, Adam(model.parameters(), 1e-3), batches)


@healthy
def denoising_at_random_levels(record: Record) -> None:
    x, _ = data()[0]
    draw = sampled(16, (x, x))

    def batches(step: int) -> Batch:
        clean, _ = draw(step)
        noise, level = torch.randn_like(clean), torch.rand(len(clean), 1)
        return (1 - level).sqrt() * clean + level.sqrt() * noise, noise

    model = mlp(64, 128, 128, 64)
    train(record, model, AdamW(model.parameters(), 2e-3), batches, mse_loss)


@healthy
def values_of_rewards_that_grow(record: Record) -> None:
    """A value network whose targets grow as a policy gets better: its loss rises with them."""
    x, y = regression()
    state = {"step": 0}
    draw = sampled(32, (x, y))

    def batches(step: int) -> Batch:
        state["step"] = step
        inputs, targets = draw(step)
        return inputs, targets * (1 + step / 400) + 0.3 * torch.randn_like(targets) * (1 + step / 400)

    model = mlp(8, 64, 1)
    train(record, model, Adam(model.parameters(), 3e-3), batches, mse_loss)


@healthy
def a_triangular_rate(record: Record) -> None:
    model = convnet()
    optimizer = SGD(model.parameters(), 0.01, momentum=0.9)
    schedule = CyclicLR(optimizer, 0.01, 0.3, step_size_up=250)
    train(record, model, optimizer, sampled(32, data()[0]), scheduler=schedule, validation=data()[1])


@healthy
def fine_tuning_with_frozen_statistics(record: Record) -> None:
    model = convnet()
    x, y = data()[0]
    warm = Adam(model.parameters(), 1e-3)
    for _ in range(400):
        rows = torch.randint(700, (64,))
        warm.zero_grad()
        cross_entropy(model(x[rows]), y[rows]).backward()
        warm.step()

    def freeze(_: int) -> None:
        model.bn1.eval()
        model.bn2.eval()

    train(record, model, SGD(model.parameters(), 1e-3, momentum=0.9), sampled(32, (x, y)), before=freeze)


@healthy
def mixed_up_examples(record: Record) -> None:
    x, y = data()[0]
    draw = sampled(64, (x, nn.functional.one_hot(y, 10).float()))

    def batches(step: int) -> Batch:
        inputs, targets = draw(step)
        share, other = float(torch.distributions.Beta(0.4, 0.4).sample()), torch.randperm(len(inputs))
        return share * inputs + (1 - share) * inputs[other], share * targets + (1 - share) * targets[other]

    model = mlp(64, 128, 10, norm=True)
    train(record, model, Adam(model.parameters(), 1e-3), batches, nn.CrossEntropyLoss(label_smoothing=0.1))


@healthy
def a_contrastive_loss(record: Record) -> None:
    x, _ = data()[0]
    draw = sampled(64, (x, x))

    def batches(step: int) -> Batch:
        inputs, _ = draw(step)
        pair = torch.cat((inputs, inputs)) + 0.3 * torch.randn(2 * len(inputs), 64)
        return pair, torch.arange(len(inputs))

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        a, b = nn.functional.normalize(outputs, dim=1).chunk(2)
        return cross_entropy(a @ b.T / 0.1, targets)

    model = mlp(64, 128, 32)
    train(record, model, Adam(model.parameters(), 1e-3), batches, loss)


@healthy
def a_plateau_and_then_a_fall(record: Record) -> None:
    """A deep narrow tanh network without a skip: nothing for hundreds of steps, then everything."""
    x = torch.randn(1024, 2)
    y = (x[:, :1] * x[:, 1:] > 0).float()
    model = mlp(2, 16, 16, 1, act=nn.Tanh)
    train(record, model, SGD(model.parameters(), 0.3), sampled(64, (x, y)), nn.BCEWithLogitsLoss())


@healthy
def longer_and_longer_sequences(record: Record) -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.LSTM(1, 32, batch_first=True), nn.Linear(32, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0][:, -1])

    def batches(step: int) -> Batch:
        x = torch.rand(32, 4 + 4 * (step // 500), 1)
        return x, x.sum(1) / 4

    model = Last()
    train(record, model, Adam(model.parameters(), 3e-3), batches, mse_loss)


@healthy
def dropout_that_is_switched_on(record: Record) -> None:
    model = named(
        fc1=nn.Linear(64, 128), act1=nn.ReLU(), drop=nn.Dropout(0.0), fc2=nn.Linear(128, 64), act2=nn.ReLU(),
        fc3=nn.Linear(64, 10),
    )  # fmt: skip

    def switch(step: int) -> None:
        model.drop.p = 0.5 if step > 1000 else 0.0

    train(record, model, SGD(model.parameters(), 0.05), sampled(32, data()[0]), before=switch, validation=data()[1])


@healthy
def a_teacher_that_moves(record: Record) -> None:
    """Self-distillation from an average of the weights: the loss starts at zero and rises."""
    x, _ = data()[0]
    model, teacher = mlp(64, 64, 32), mlp(64, 64, 32)
    optimizer = Adam(model.parameters(), 1e-3)
    rec, draw = record(model, optimizer, mse_loss), sampled(64, (x, x))
    teacher.load_state_dict(model.state_dict())
    for step in range(STEPS):
        inputs, _ = draw(step)
        with torch.no_grad():
            target = teacher(inputs + 0.5 * torch.randn_like(inputs)).tanh() * 2
        value = mse_loss(model(inputs + 0.5 * torch.randn_like(inputs)), target)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        rec.step(value)
        with torch.no_grad():
            for old, new in zip(teacher.parameters(), model.parameters(), strict=True):
                old.lerp_(new, 0.01)
