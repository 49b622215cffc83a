"""A classifier is trained as a plain loop would train it, and looking at it changes nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from itertools import pairwise
from statistics import fmean
from typing import Any

import pytest
import torch
from killed_run import DATA, network
from torch import Tensor, nn
from torch.nn import functional

import wellcond as wc
from wellcond.errors import InvalidProblem, NonFinite
from wellcond.results import Row
from wellcond.results.quantities import (
    DIVERGED_AT,
    FINAL_LOSS,
    STEPS,
    TEST_ACCURACY,
    TEST_LOSS,
    TRAINING_LOSS,
)  # fmt: skip
from wellcond.results.run import Run
from wellcond_papers.data.batches import Batches
from wellcond_papers.models import resnet
from wellcond_papers.training import schedules
from wellcond_papers.training.classifier import train_classifier
from wellcond_papers.training.loop import READ_EVERY, Loop

TEST = DATA.tensors(torch.float32, count=50)


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr, momentum=0.9)


def trained(model: nn.Module | None = None, steps: int = 20, **options: Any) -> Run:
    model = network() if model is None else model
    optimizer = options.pop("optimizer", None) or sgd(model)
    return train_classifier(model, optimizer, Batches(DATA, 32, seed=3), steps, **{"at": (), **options})


def test_the_losses_are_those_of_a_plain_loop() -> None:
    model, batches = network(), Batches(DATA, 32, seed=3)
    optimizer, losses = sgd(model), []
    for step in range(20):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * 0.5 ** (step >= 10)
        x, y = batches(step)
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert trained(schedule=schedules.steps([10], 0.5)).losses == losses


# looks


def test_every_look_has_the_mean_loss_since_the_last_and_the_test_set() -> None:
    model, looks = network(), [0, 5, 6, 20]
    run = trained(model, at=looks, test=TEST)
    means = [fmean(run.losses[a:b]) for a, b in pairwise(looks)]
    assert run.evaluated(TRAINING_LOSS) == means
    assert [row.step for row in run.evaluations if row.quantity == TEST_LOSS] == looks
    model.eval()
    outputs = model(TEST[0])
    assert run.evaluated(TEST_LOSS)[-1] == pytest.approx(functional.cross_entropy(outputs, TEST[1]).item(), rel=1e-6)
    assert run.evaluated(TEST_ACCURACY)[-1] == pytest.approx(float((outputs.argmax(1) == TEST[1]).double().mean()))


def test_the_summary_holds_looks_and_the_end_and_no_steps() -> None:
    rows = trained(at=[20], test=TEST).summary()
    assert [row.quantity for row in rows] == [TRAINING_LOSS, TEST_LOSS, TEST_ACCURACY, FINAL_LOSS, STEPS]
    assert Run([1.0], diverged_at=2).summary() == [
        Row(None, "", DIVERGED_AT, 2.0, "steps"),
        Row(None, "", STEPS, 1.0, "steps"),
    ]
    assert trained(at=[0], test=TEST, steps=0).summary()[-1] == Row(None, "", STEPS, 0.0, "steps")


def test_looking_changes_nothing() -> None:
    def probe(step: int) -> Iterable[Row]:
        assert model.training
        model.eval()
        model.train()
        functional.cross_entropy(model(TEST[0]), TEST[1]).backward()  # gradients, running statistics, dropout's numbers
        model[2].eval()
        torch.rand(5)
        return wc.conditioning(wc.Problem(model, functional.cross_entropy, [TEST])).rows(step)[:2]

    model = network()
    looked = trained(model, at=range(0, 21, 3), test=TEST, probes=[probe])
    plain = trained(other := network())
    assert looked.losses == plain.losses
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))
    assert len({row.step for row in looked.evaluations}) == 7


def test_a_probe_may_measure_infinity_and_may_end_the_run() -> None:
    assert trained(at=[5], probes=[lambda step: [Row(step, "", "kappa", float("inf"), "")]]).diverged_at is None

    def refuse(step: int) -> Iterable[Row]:
        raise NonFinite("the weights of layer 3")

    run = trained(at=[5], probes=[refuse])
    assert (run.diverged_at, run.cause, len(run.losses)) == (5, "the weights of layer 3", 5)


def test_a_plateau_sees_what_is_evaluated() -> None:
    rates: list[float] = []
    model = network()
    optimizer = sgd(model)
    schedule = schedules.plateau("watched")
    values = iter([3.0, 4.0, 5.0, 1.0])
    trained(
        model, optimizer=optimizer, at=[0, 5, 10, 15], schedule=schedule,
        probes=[lambda step: [Row(step, "", "watched", next(values), "")]],
        progress=lambda *report: rates.append(optimizer.param_groups[0]["lr"]),
    )  # fmt: skip
    assert rates == [0.1] * 5 + [0.05] * 5 + [0.025] * 10


# divergence


class Breaks(nn.Linear):
    """Its outputs are NaN in one call."""

    def __init__(self, at: int) -> None:
        super().__init__(64, 10)
        self.at, self.calls = at, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x.flatten(1)) * (torch.nan if self.calls == self.at else 1.0)


def test_a_run_that_diverges_ends_there_with_finite_weights() -> None:
    model = Breaks(8)
    run = trained(model, at=range(0, 21, 2))
    assert (run.diverged_at, len(run.losses), model.calls) == (8, 7, 8)
    assert run.final is None
    assert bool(model.weight.isfinite().all())
    assert max(row.step or 0 for row in run.evaluations) == 6


def test_losses_that_are_read_late_are_those_of_their_steps() -> None:
    """As on a GPU, where a step returns a tensor."""

    def late(step: int, batch: int) -> Tensor:
        return torch.tensor(float("nan") if step == bad else float(step))

    for bad, read, steps in ((17, READ_EVERY, 300), (60, 70, 70), (149, 170, 300)):
        seen: list[int] = []

        def batches(step: int, seen: list[int] = seen) -> int:
            seen.append(step)
            return step

        run = Loop(sgd(network()), late, steps, at=[70]).run(batches)
        assert (run.diverged_at, run.losses) == (bad + 1, [float(k) for k in range(bad)])
        assert seen == list(range(read))


# arithmetic and layout


def test_half_precision_is_bfloat16_in_layers_and_float32_in_the_loss() -> None:
    seen = set()
    model = network()
    model[1].register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
    run = trained(model, half=True)
    assert seen == {torch.bfloat16}
    assert run.losses != trained().losses
    assert run.losses == pytest.approx(trained().losses, rel=0.05)
    assert all(p.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize("is_last", [True, False])
def test_batches_have_the_layout_of_the_model(is_last: bool) -> None:
    model = resnet(8, width=4, seed=0)
    model = model.to(memory_format=torch.channels_last) if is_last else model
    seen = set()
    model.register_forward_pre_hook(lambda module, inputs: seen.add(inputs[0].is_contiguous()))
    batch = torch.randn(4, 3, 8, 8), torch.arange(4)
    train_classifier(model, sgd(model), lambda step: batch, 2, at=[2], test=batch)
    assert seen == {not is_last}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler")
def test_a_compiled_network_takes_the_same_steps() -> None:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    compiled = trained(build(), 4, compiled=True, at=[2], test=TEST)
    assert compiled.losses == pytest.approx(trained(build(), 4).losses, rel=1e-5)


def test_lbfgs_gets_its_closure() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    batch = DATA.tensors(torch.float32, count=40)
    run = train_classifier(model, torch.optim.LBFGS(model.parameters()), lambda step: batch, 4, at=[])
    assert run.losses[-1] < 0.05 * run.losses[0]


def test_an_optimizer_that_trains_nothing_of_the_model_is_refused() -> None:
    model, other = network(), network()
    frozen = network().requires_grad_(False)
    for trained, optimizer in ((model, sgd(other)), (frozen, sgd(frozen)), (nn.Flatten(), sgd(other))):
        with pytest.raises(InvalidProblem, match="trains no parameter of this model"):
            train_classifier(trained, optimizer, Batches(DATA, 8), 1, at=())


def test_an_empty_test_set_is_refused_and_is_no_divergence() -> None:
    model = network()
    with pytest.raises(InvalidProblem, match="0 inputs and 0 labels"):
        train_classifier(model, sgd(model), Batches(DATA, 8), 1, at=[0], test=(TEST[0][:0], TEST[1][:0]))
