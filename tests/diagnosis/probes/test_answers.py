"""Hidden places of the inputs that a network can see, and reconstructions that are sound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import wellcond as wc
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.probes.answers import Answers
from wellcond.diagnosis.probes.behavior import behavior
from wellcond.diagnosis.rules.constant_target import overwritten_targets
from wellcond.diagnosis.rules.future_seen import answer_seen

G = torch.Generator().manual_seed(3)
ROWS = torch.randn(96, 4, generator=G) @ torch.randn(4, 20, generator=G)
HIDDEN = torch.rand(ROWS.shape, generator=G) < 0.25
TOKENS = torch.randint(2, 30, (48, 12), generator=G)
CHOSEN = torch.rand(TOKENS.shape, generator=G) < 0.2
IMAGES = F.avg_pool2d(torch.randn(32, 1, 14, 14, generator=G), 3, 1)
MASK_TOKEN = 1
SYSTEM = np.random.default_rng(0).random


def network(inputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 48), nn.GELU(), nn.Linear(48, 20))


def masked_l1(outputs: Tensor, targets: tuple[Tensor, Tensor]) -> Tensor:
    rows, hidden = targets
    return ((outputs - rows).abs() * hidden).sum() / hidden.sum()


def rows(seen: Tensor) -> wc.Problem:
    return wc.Problem(network(20), masked_l1, [(seen, (ROWS, HIDDEN.float()))])


def drawn(hides: bool) -> wc.Problem:
    def step(model: nn.Module, batch: Tensor) -> Tensor:
        mask = torch.rand_like(batch) < 0.4
        rebuilt = model(torch.cat([mask.float(), batch * ~mask if hides else batch], 1))
        return F.smooth_l1_loss(rebuilt[mask], batch[mask])

    return wc.Problem.from_step(network(40), step, [ROWS])


class Hiding(nn.Module):
    """Hides the places of its second argument, and sees which they are."""

    def __init__(self, hides: bool) -> None:
        super().__init__()
        self.net, self.hides = network(40), hides

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        out: Tensor = self.net(torch.cat([x * ~hidden if self.hides else x, hidden.float()], 1))
        return out


def hidden_by_a_generator(hides: bool, own: Any) -> wc.Problem:
    """The step draws which places are hidden by a generator of its own, of torch or of something else."""

    def step(model: nn.Module, batch: Tensor) -> Tensor:
        hidden = own(batch.shape) < 0.4
        return F.mse_loss(model(batch, hidden)[hidden], batch[hidden])

    return wc.Problem.from_step(Hiding(hides), step, [ROWS])


def of_torch() -> Any:
    generator = torch.Generator().manual_seed(7)
    return lambda shape: torch.rand(shape, generator=generator)


def stacked(hides: bool) -> wc.Problem:
    """Rows and their masks are two channels, and outputs have none."""

    def step(model: nn.Module, batch: Tensor) -> Tensor:
        mask = torch.rand_like(batch) < 0.4
        rebuilt = model(torch.stack([batch * ~mask if hides else batch, mask.float()], 2))
        return (((rebuilt - batch) ** 2) * mask).sum() / mask.sum()

    return wc.Problem.from_step(nn.Sequential(nn.Flatten(), network(40)), step, [ROWS])


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(30, 16), nn.GRU(16, 16, 1, True, True), nn.Linear(16, 30)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.mix(self.embed(x))[0])
        return out


class Painter(nn.Module):
    """Fills holes; it may cut them out of the picture itself."""

    def __init__(self, cuts: bool) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
        self.cuts = cuts

    def forward(self, both: Tensor) -> Tensor:
        picture, hole = both.chunk(2, 1)
        out: Tensor = self.net(torch.cat([picture * (1 - hole) if self.cuts else picture, hole], 1))
        return out


def words(seen: Tensor) -> wc.Problem:
    torch.manual_seed(0)
    labels = TOKENS.masked_fill(~CHOSEN, -100)
    return wc.Problem(Words(), lambda o, y: F.cross_entropy(o.transpose(1, 2), y), [(seen, labels)])


def painted(cuts: bool) -> wc.Problem:
    torch.manual_seed(0)
    hole = torch.zeros_like(IMAGES)
    for k, image in enumerate(hole):
        image[0, k % 6 : k % 6 + 5, k % 5 : k % 5 + 5] = 1
    targets = IMAGES, hole
    return wc.Problem(
        Painter(cuts),
        lambda o, t: ((o - t[0]).square() * t[1]).sum() / t[1].sum(),
        [(torch.cat([IMAGES, hole], 1), targets)],
    )


def as_bert_does() -> Tensor:
    """A tenth of the chosen tokens stay, a tenth are random, the others are hidden."""
    lot = torch.rand(TOKENS.shape, generator=torch.Generator().manual_seed(5))
    seen = TOKENS.masked_fill(CHOSEN & (lot < 0.8), MASK_TOKEN)
    return torch.where(CHOSEN & (lot >= 0.9), TOKENS.roll(1, 0), seen)


def filled_up() -> wc.Problem:
    """An autoencoder of rows of different lengths, whose padding does not count."""
    real = torch.arange(20) < torch.randint(5, 20, (96, 1), generator=torch.Generator().manual_seed(1))
    seen = ROWS * real
    return wc.Problem(network(20), masked_l1, [(seen, (seen, real.float()))])


def ratings() -> wc.Problem:
    """An autoencoder of ratings, of which most are missing: zero, and without a share in the loss."""
    return wc.Problem(network(20), masked_l1, [(ROWS * HIDDEN, (ROWS * HIDDEN, HIDDEN.float()))])


def reconstruction(loss: Callable[[Tensor, Tensor], Tensor], rows: Tensor = ROWS) -> wc.Problem:
    """An autoencoder whose loss counts some places only, but by the outputs."""
    return wc.Problem(network(20), loss, [(rows, rows)])


FAULTY: dict[str, Callable[[], wc.Problem]] = {
    "rows": lambda: rows(ROWS),
    "a mask that a step draws": lambda: drawn(hides=False),
    "tokens": lambda: words(TOKENS),
    "a hole that is not cut": lambda: painted(cuts=False),
    "a generator of one's own": lambda: hidden_by_a_generator(False, of_torch()),
    "channels": lambda: stacked(hides=False),
}
SOUND: dict[str, Callable[[], wc.Problem]] = {
    "rows": lambda: rows(ROWS * ~HIDDEN),
    "a mask that a step draws": lambda: drawn(hides=True),
    "tokens": lambda: words(TOKENS.masked_fill(CHOSEN, MASK_TOKEN)),
    "BERT": lambda: words(as_bert_does()),
    "a hole that the model cuts": lambda: painted(cuts=True),
    "a generator of one's own": lambda: hidden_by_a_generator(True, of_torch()),
    "channels": lambda: stacked(hides=True),
    "other places every time": lambda: hidden_by_a_generator(True, lambda shape: torch.tensor(SYSTEM(shape))),
    "an autoencoder": lambda: wc.Problem(network(20), nn.MSELoss(), [(ROWS, ROWS)]),
    "a denoising one": lambda: rows(ROWS + 0.3 * torch.randn(ROWS.shape, generator=torch.Generator().manual_seed(2))),
    "padding": filled_up,
    "ratings": ratings,
    "a tolerance": lambda: reconstruction(lambda o, x: F.relu((o - x).abs() - 0.5).mean()),
    "the largest errors": lambda: reconstruction(lambda o, x: (o - x).square().flatten().topk(500).values.mean()),
    "a ReLU at the end": lambda: reconstruction(lambda o, x: (F.relu(o) - x.abs()).square().mean(), ROWS.abs()),
}


def seen_in(problem: wc.Problem) -> Answers | None:
    return behavior(problem).answers


@pytest.mark.parametrize("make", FAULTY.values(), ids=FAULTY)
def test_answers_that_can_be_seen(make: Callable[[], wc.Problem]) -> None:
    answers = seen_in(make())
    assert answers is not None
    assert answers.share == 1
    assert answers.change > 0.01


@pytest.mark.parametrize("make", SOUND.values(), ids=SOUND)
def test_sound_reconstructions(make: Callable[[], wc.Problem]) -> None:
    answers = seen_in(make())
    assert answers is None or answers.change == 0


@pytest.mark.parametrize(("problem", "expected"), [(rows(ROWS), ["warning"]), (rows(ROWS * ~HIDDEN), [])])
def test_the_finding(problem: wc.Problem, expected: list[Any]) -> None:
    optimizer = torch.optim.Adam(problem.model.parameters(), 1e-3)
    findings = wc.diagnose(problem, optimizer, select=["future-seen"]).findings
    assert [each.severity for each in findings] == expected


def overwritten(copies: bool) -> wc.Problem:
    def step(model: nn.Module, batch: Tensor) -> Tensor:
        rows = batch.clone()
        mask = torch.rand_like(rows) < 0.4
        seen = rows.clone() if copies else rows
        seen[mask] = 0.5
        return F.mse_loss(model(seen)[mask], rows[mask])

    return wc.Problem.from_step(network(20), step, [ROWS])


def test_targets_that_are_overwritten_with_the_inputs() -> None:
    problem = overwritten(copies=False)
    probed = behavior(problem)
    assert probed.answers is not None
    assert probed.answers.constant == 0.5
    (finding,) = overwritten_targets(Evidence(problem, None, behavior=probed))
    assert finding.severity == "warning"
    assert not [*answer_seen(Evidence(problem, None, behavior=probed))]
    assert behavior(overwritten(copies=True)).answers is None
