"""More faults that only training shows, in other networks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.run_faults.training import (
    Batch,
    Record,
    convnet,
    data,
    fault,
    mlp,
    named,
    regression,
    sampled,
    set_lr,
    train,
)


class Recurrent(nn.Module):
    """A GRU over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(8, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x.view(-1, 8, 8))[0][:, -1])


def transformer() -> nn.Sequential:
    """A small one, for the rows of an image."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return named(
        view=nn.Unflatten(1, (8, 8)), embed=nn.Linear(8, 16), encoder=nn.TransformerEncoder(layer, 1),
        flat=nn.Flatten(), head=nn.Linear(128, 10),
    )  # fmt: skip


@fault("learning-rate-too-high diverging", 1200)
def the_rate_of_a_transformer_is_raised_at_1200(record: Record) -> None:
    model = transformer()
    optimizer = AdamW(model.parameters(), 1e-3)
    train(
        record, model, optimizer, sampled(32, data()[0]), before=lambda s: set_lr(optimizer, 1e-3 if s < 1200 else 0.3)
    )


@fault("learning-rate-too-high diverging", None)
def a_transformer_that_warms_up_too_far(record: Record) -> None:
    model = transformer()
    optimizer = Adam(model.parameters(), 0.3)
    train(
        record, model, optimizer, sampled(32, data()[0]),
        scheduler=LambdaLR(optimizer, lambda s: max(1e-3, min(1.0, s / 1500) ** 3)),
    )  # fmt: skip


@fault("data-changed", 1200)
def a_fifth_of_the_labels_is_noise_from_1200(record: Record) -> None:
    model = convnet()
    draw = sampled(64, data()[0])

    def batches(step: int) -> Batch:
        x, y = draw(step)
        return x, (torch.where(torch.rand(len(y)) < 0.2, torch.randint(10, y.shape), y) if step >= 1200 else y)

    train(record, model, SGD(model.parameters(), 0.05, momentum=0.9), batches, validation=data()[1])


@fault("data-changed", 900)
def regression_targets_in_other_units_from_900(record: Record) -> None:
    draw = sampled(32, regression())

    def batches(step: int) -> Batch:
        x, y = draw(step)
        return x, (y + 3 * torch.randn_like(y) if step >= 900 else y)

    model = mlp(8, 64, 64, 1)
    train(record, model, Adam(model.parameters(), 1e-3), batches, mse_loss)


@fault("loss-spike", 1500)
def a_bad_batch_of_a_recurrent_network(record: Record) -> None:
    draw = sampled(32, data()[0])

    def batches(step: int) -> Batch:
        x, y = draw(step)
        return x, (y.flip(0) if step == 1500 else y)

    model = Recurrent()
    train(record, model, Adam(model.parameters(), 2e-3), batches)


@fault("loss-spike", 700)
def a_batch_of_outliers(record: Record) -> None:
    draw = sampled(32, regression())

    def batches(step: int) -> Batch:
        x, y = draw(step)
        return x, (y + 30 if step == 700 else y)

    model = mlp(8, 64, 64, 1, act=nn.Tanh)
    train(record, model, SGD(model.parameters(), 0.02), batches, mse_loss)


@fault("no-gradient", 800, "conv1")
def a_layer_is_frozen_by_mistake_at_800(record: Record) -> None:
    model = convnet()

    def freeze(step: int) -> None:
        if step == 800:
            for p in model.conv1.parameters():
                p.requires_grad_(False)
                p.grad = None

    train(record, model, SGD(model.parameters(), 0.05), sampled(64, data()[0]), before=freeze)


@fault("learning-rate-too-low lost-updates", 500)
def the_rate_falls_to_nothing_at_500(record: Record) -> None:
    model = mlp(64, 64, 64, 10)
    optimizer = SGD(model.parameters(), 0.02)
    train(
        record, model, optimizer, sampled(32, data()[0]), before=lambda s: set_lr(optimizer, 0.02 if s < 500 else 1e-9)
    )


@fault("non-finite", 900, "fc2")
def one_layer_gets_nan_at_900(record: Record) -> None:
    model = mlp(64, 64, 64, 10)

    def spoil(step: int) -> None:
        if step == 900:
            model.fc2.weight.grad[0, 0] = float("nan")

    train(record, model, SGD(model.parameters(), 0.05), sampled(32, data()[0]), after_backward=spoil)


@fault("dying-neurons", 1000, "conv2")
def a_convolution_dies(record: Record) -> None:
    model = named(
        view=nn.Unflatten(1, (1, 8, 8)), conv1=nn.Conv2d(1, 8, 3, padding=1), act1=nn.ReLU(),
        conv2=nn.Conv2d(8, 16, 3, padding=1), act2=nn.ReLU(), pool=nn.AdaptiveAvgPool2d(2), flat=nn.Flatten(),
        head=nn.Linear(64, 10),
    )  # fmt: skip

    def push(step: int) -> None:
        if step == 1000:
            with torch.no_grad():
                model.conv2.bias.fill_(-1000.0)

    train(record, model, Adam(model.parameters(), 2e-3), sampled(64, data()[0]), before=push)


@fault("weight-decay-dominates", 800)
def weight_decay_of_a_convnet_at_800(record: Record) -> None:
    model = convnet()
    optimizer = SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)

    def decay(step: int) -> None:
        if step == 800:
            optimizer.param_groups[0]["weight_decay"] = 0.3

    train(record, model, optimizer, sampled(64, data()[0]), before=decay)


@fault("repeated-batches", 600)
def a_loader_that_cycles_through_four_batches_from_600(record: Record) -> None:
    draw = sampled(32, data()[0])
    few = [draw(0) for _ in range(4)]
    model = convnet()
    train(record, model, Adam(model.parameters(), 1e-3), lambda s: few[s % 4] if s >= 600 else draw(s))


@fault("stale-statistics", None)
def evaluation_mode_is_left_on_at_300(record: Record) -> None:
    model = convnet()

    def leave(step: int) -> None:
        if step >= 300:
            model.eval()

    train(record, model, SGD(model.parameters(), 0.2, momentum=0.9), sampled(64, data()[0]), before=leave)


@fault("diverging learning-rate-too-high non-finite exploding-gradient", None)
def a_rate_at_the_edge_that_diverges_late(record: Record) -> None:
    model = mlp(8, 64, 64, 1)
    optimizer = SGD(model.parameters(), 0.05, momentum=0.9)
    train(
        record, model, optimizer, sampled(16, regression()), mse_loss,
        before=lambda s: set_lr(optimizer, 0.02 * (1 + (s / 500) ** 3)),
    )  # fmt: skip


@fault("gradients-not-cleared", 400)
def zero_grad_of_a_convnet_is_lost_at_400(record: Record) -> None:
    model = convnet()
    train(record, model, SGD(model.parameters(), 0.01), sampled(32, data()[0]), clears=lambda s: s < 400)
