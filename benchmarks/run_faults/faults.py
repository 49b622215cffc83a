"""Faults that only training shows."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.run_faults.training import Batch, Record, convnet, data, fault, mlp, regression, sampled, set_lr, train


@fault("gradients-not-cleared", 2)
def missing_zero_grad(record: Record) -> None:
    model = mlp(64, 64, 64, 10)
    train(record, model, SGD(model.parameters(), 0.02), sampled(32, data()[0]), clears=lambda _: False)


@fault("gradients-not-cleared", 800)
def zero_grad_forgotten_from_step_800(record: Record) -> None:
    model = mlp(64, 64, 64, 10)
    train(record, model, Adam(model.parameters(), 1e-3), sampled(32, data()[0]), clears=lambda step: step < 800)


@fault("diverging learning-rate-too-high non-finite", 300)
def rate_times_a_hundred_at_300(record: Record) -> None:
    model = mlp(64, 64, 64, 10)
    optimizer = SGD(model.parameters(), 0.05, momentum=0.9)
    train(
        record, model, optimizer, sampled(32, data()[0]), before=lambda s: set_lr(optimizer, 0.05 if s < 300 else 5.0)
    )


@fault("diverging learning-rate-too-high non-finite", 300)
def regression_that_diverges_at_300(record: Record) -> None:
    model = mlp(8, 64, 64, 1, act=nn.Tanh)
    optimizer = SGD(model.parameters(), 0.02)
    train(
        record, model, optimizer, sampled(32, regression()), mse_loss,
        before=lambda s: set_lr(optimizer, 0.02 if s < 300 else 1.5),
    )  # fmt: skip


@fault("learning-rate-too-high diverging", None)
def warm_up_that_overshoots(record: Record) -> None:
    model = mlp(64, 64, 64, 10)
    optimizer = SGD(model.parameters(), 4.0)
    schedule = LambdaLR(optimizer, lambda s: min(1.0, s / 1000))
    train(record, model, optimizer, sampled(32, data()[0]), scheduler=schedule, limit_every=100)


@fault("learning-rate-too-high diverging", None)
def warm_up_of_adam_that_overshoots(record: Record) -> None:
    model = mlp(64, 64, 64, 10)
    optimizer = Adam(model.parameters(), 0.5)
    schedule = LambdaLR(optimizer, lambda s: 1e-3 + min(1.0, s / 800) ** 2)
    train(record, model, optimizer, sampled(32, data()[0]), scheduler=schedule)


@fault("dying-neurons", 600, "fc2")
def units_that_die_at_600(record: Record) -> None:
    model = mlp(64, 64, 64, 64, 10)

    def push(step: int) -> None:
        if step == 600:
            with torch.no_grad():
                model.fc2.bias.sub_(30.0)

    train(record, model, Adam(model.parameters(), 1e-3), sampled(64, data()[0]), before=push)


@fault("dying-neurons", None, "fc1")
def units_that_die_slowly(record: Record) -> None:
    model = mlp(64, 128, 64, 10)

    def push(step: int) -> None:
        if step >= 500:
            with torch.no_grad():
                model.fc1.bias.sub_(0.02)

    train(record, model, SGD(model.parameters(), 0.02), sampled(64, data()[0]), before=push)


@fault("layer-thawed no-gradient", 800, "fc1")
def a_frozen_layer_thawed(record: Record) -> None:
    model = mlp(64, 64, 64, 10)
    optimizer = SGD(model.parameters(), 0.05, momentum=0.9)
    model.fc1.requires_grad_(False)

    def thaw(step: int) -> None:
        if step == 800:
            model.fc1.requires_grad_(True)

    train(record, model, optimizer, sampled(32, data()[0]), before=thaw)


@fault("no-gradient", 700, "fc2")
def a_layer_that_is_cut_off_at_700(record: Record) -> None:
    model = mlp(64, 64, 64, 64, 10)
    optimizer = SGD(model.parameters(), 0.05)

    def cut(step: int) -> None:
        if step >= 700:
            for p in model.fc2.parameters():
                p.grad = torch.zeros_like(p)

    train(record, model, optimizer, sampled(32, data()[0]), after_backward=cut)


@fault("no-gradient", 1, "fc2")
def a_layer_that_the_optimizer_does_not_have(record: Record) -> None:
    model = mlp(64, 64, 64, 64, 10)
    optimizer = Adam([p for name, p in model.named_parameters() if not name.startswith("fc2")], 1e-3)
    train(record, model, optimizer, sampled(32, data()[0]))


@fault("stale-statistics", None)
def statistics_that_are_frozen_at_200(record: Record) -> None:
    model = convnet()

    def freeze(step: int) -> None:
        if step >= 200:
            model.bn1.eval()
            model.bn2.eval()

    train(record, model, SGD(model.parameters(), 0.1, momentum=0.9), sampled(64, data()[0]), before=freeze)


@fault("stale-statistics", 1)
def statistics_with_a_tiny_momentum(record: Record) -> None:
    model = convnet(momentum=1e-5)
    with torch.no_grad():
        model.conv1.weight.mul_(5)
        model.conv2.weight.mul_(8)
    train(record, model, Adam(model.parameters(), 1e-3), sampled(64, data()[0]), validation=data()[1])


@fault("overfitting", None)
def overfits_a_hundred_examples(record: Record) -> None:
    (x, y), held = data()
    y = torch.where(torch.rand(len(y)) < 0.2, torch.randint(10, y.shape), y)
    model = mlp(64, 256, 256, 10)
    train(record, model, Adam(model.parameters(), 1e-3), sampled(32, (x[:200], y[:200])), validation=held)


@fault("overfitting", None)
def overfits_a_regression(record: Record) -> None:
    x, y = regression(1024, noise=0.7)
    model = mlp(8, 128, 128, 1)
    train(
        record, model, Adam(model.parameters(), 2e-3), sampled(32, (x[:256], y[:256])), mse_loss,
        validation=(x[256:], y[256:]), validate_every=25,
    )  # fmt: skip


@fault("loss-spike", 700)
def a_bad_batch_at_700(record: Record) -> None:
    model = mlp(64, 64, 64, 10)
    draw = sampled(32, data()[0])

    def batches(step: int) -> Batch:
        x, y = draw(step)
        return (x.flip(0) * 3, y) if step == 700 else (x, y)

    train(record, model, SGD(model.parameters(), 0.02, momentum=0.9), batches)


@fault("loss-spike", 700)
def a_batch_with_wrong_labels_at_700(record: Record) -> None:
    model = convnet()
    draw = sampled(64, data()[0])

    def batches(step: int) -> Batch:
        x, y = draw(step)
        return x, ((y + 1) % 10 if step == 700 else y)

    train(record, model, Adam(model.parameters(), 1e-3), batches)


@fault("weight-decay-dominates", 1000)
def weight_decay_that_wins_at_1000(record: Record) -> None:
    model = mlp(64, 64, 64, 10)
    optimizer = SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)

    def decay(step: int) -> None:
        if step == 1000:
            optimizer.param_groups[0]["weight_decay"] = 0.1

    train(record, model, optimizer, sampled(32, data()[0]), before=decay)


@fault("weight-decay-dominates", 1200)
def decoupled_decay_that_wins_at_1200(record: Record) -> None:
    model = mlp(64, 64, 64, 10, act=nn.Tanh)
    optimizer = AdamW(model.parameters(), 1e-3, weight_decay=0.01)

    def decay(step: int) -> None:
        if step == 1200:
            optimizer.param_groups[0]["weight_decay"] = 20.0

    train(record, model, optimizer, sampled(32, data()[0]), before=decay)


@fault("lost-updates non-finite", 900)
def a_loss_scale_that_collapses(record: Record) -> None:
    """As GradScaler does it: gradients overflow from step 900 on, every step is skipped and the scale is halved."""
    model = mlp(64, 64, 64, 10)
    optimizer = SGD(model.parameters(), 0.05)
    loss = nn.CrossEntropyLoss()
    rec = record(model, optimizer, loss)
    draw, scale = sampled(32, data()[0]), 65536.0
    for step in range(1, 2001):
        batch = draw(step)
        optimizer.zero_grad()
        value = loss(model(batch[0]), batch[1])
        value.backward()
        if step >= 900:
            scale /= 2
            model.fc2.weight.grad.fill_(float("inf"))
        if hasattr(rec, "_on_change"):
            rec._on_change("loss_scale", scale)
        if step < 900:
            optimizer.step()
        rec.step(value, batch)


@fault("data-changed", 1000)
def label_noise_enters_at_1000(record: Record) -> None:
    model = mlp(64, 64, 64, 10)
    draw = sampled(32, data()[0])

    def batches(step: int) -> Batch:
        x, y = draw(step)
        return x, (torch.where(torch.rand(len(y)) < 0.4, torch.randint(10, y.shape), y) if step >= 1000 else y)

    train(record, model, Adam(model.parameters(), 1e-3), batches)


@fault("data-changed", 600)
def images_in_another_layout_from_600(record: Record) -> None:
    model = mlp(64, 64, 64, 10)
    draw = sampled(32, data()[0])

    def batches(step: int) -> Batch:
        x, y = draw(step)
        return (x.view(-1, 8, 8).transpose(1, 2).flatten(1) if step >= 600 else x), y

    train(record, model, SGD(model.parameters(), 0.05), batches)


@fault("repeated-batches", 1000)
def a_loader_that_repeats_from_1000(record: Record) -> None:
    model = mlp(64, 64, 64, 10)
    draw = sampled(32, data()[0])
    last = draw(0)

    def batches(step: int) -> Batch:
        return last if step >= 1000 else draw(step)

    train(record, model, Adam(model.parameters(), 1e-3), batches, validation=data()[1])


@fault("non-finite", 500)
def a_logarithm_of_zero_at_500(record: Record) -> None:
    model = mlp(64, 64, 64, 10)
    draw = sampled(32, data()[0])

    def batches(step: int) -> Batch:
        x, y = draw(step)
        return (torch.full_like(x, float("nan")) if step == 500 else x), y

    train(record, model, Adam(model.parameters(), 1e-3), batches)


@fault("learning-rate-too-low", None)
def a_schedule_that_decays_every_step(record: Record) -> None:
    model = mlp(64, 64, 64, 10)
    optimizer = SGD(model.parameters(), 0.01)
    schedule = LambdaLR(optimizer, lambda s: 0.97**s)
    train(record, model, optimizer, sampled(32, data()[0]), scheduler=schedule)


@fault("learning-rate-too-low lost-updates", 1)
def a_rate_of_a_millionth(record: Record) -> None:
    model = mlp(64, 64, 64, 10)
    train(record, model, SGD(model.parameters(), 1e-6), sampled(32, data()[0]))


@fault("loss-not-decreasing learning-rate-too-high", 1)
def a_rate_that_learns_nothing(record: Record) -> None:
    model = mlp(64, 64, 64, 10)
    train(record, model, Adam(model.parameters(), 1.0), sampled(32, data()[0]))


@fault("saturated-activation", 700, "fc1")
def tanhs_that_saturate_at_700(record: Record) -> None:
    model = mlp(64, 64, 64, 10, act=nn.Tanh)

    def grow(step: int) -> None:
        if step == 700:
            with torch.no_grad():
                model.fc1.weight.mul_(100)

    train(record, model, Adam(model.parameters(), 1e-3), sampled(32, data()[0]), before=grow)


@fault("loss-not-decreasing", 1)
def labels_that_are_noise(record: Record) -> None:
    model = mlp(64, 64, 64, 10)
    draw = sampled(32, data()[0])

    def batches(step: int) -> Batch:
        x, y = draw(step)
        return x, torch.randint(10, y.shape)

    train(record, model, SGD(model.parameters(), 0.01), batches)
