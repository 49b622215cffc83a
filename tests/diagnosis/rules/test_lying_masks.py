"""labels-unrelated where masks lie on other places than their images show, and masks that only seem to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import wellcond as wc
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.lying_masks import lying
from wellcond.diagnosis.rules.labels_unrelated import lie_elsewhere
from wellcond.diagnosis.trial_result import Trial
from wellcond.problem.apart import taken_apart

SIDE = 16
GRID = torch.stack(torch.meshgrid(torch.arange(float(SIDE)), torch.arange(float(SIDE)), indexing="ij"))
Pairs = tuple[Tensor, Tensor]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def masks(count: int = 128, seed: int = 1) -> Tensor:
    """Discs (N, h, w) of several sizes at several places."""
    g = torch.Generator().manual_seed(seed)
    centers, sizes = 3 + (SIDE - 6) * torch.rand(count, 2, 1, 1, generator=g), torch.rand(count, 1, 1, generator=g)
    return ((GRID - centers).square().sum(1).sqrt() < 2 + 2 * sizes).float()


def images(of: Tensor, noise: float = 0.3) -> Tensor:
    """Masks (N, h, w) as bright objects on noise."""
    return of[:, None] + noise * torch.randn(len(of), 1, SIDE, SIDE, generator=generator())


def finding_of(pairs: Pairs, problem: wc.Problem | None = None) -> Finding | None:
    problem = problem or wc.Problem(
        nn.Conv2d(pairs[0].shape[1], 1, 3), nn.BCEWithLogitsLoss(), [*zip(*(t.split(32) for t in pairs), strict=True)]
    )
    trial = Trial((0.7, 0.7), 0.5, masks=lying(problem))
    return next(iter(lie_elsewhere(Evidence(problem, trial=trial))), None)


def mirrored_at_random() -> Pairs:
    m = masks()
    side = torch.rand(len(m), 1, 1, generator=generator()) < 0.5
    return images(torch.where(side, m.flip(-1), m)), m[:, None]


def turned_at_random() -> Pairs:
    m = masks()
    ways = torch.randint(4, (len(m),), generator=generator()).tolist()
    return images(torch.stack([each.rot90(k) for each, k in zip(m, ways, strict=True)])), m.long()


def moved_at_random() -> Pairs:
    m = masks()
    by = torch.randint(SIDE, (len(m), 2), generator=generator()).tolist()
    return images(torch.stack([each.roll(k, (0, 1)) for each, k in zip(m, by, strict=True)])), m


def of_others() -> Pairs:
    m = masks()
    return images(m.roll(1, 0)), m


@pytest.mark.parametrize("pairs", [mirrored_at_random, turned_at_random, moved_at_random, of_others])
def test_masks_that_do_not_lie_on_their_images(pairs: Callable[[], Pairs]) -> None:
    finding = finding_of(pairs())
    assert finding is not None
    assert finding.severity == "warning"
    assert "do not lie on their images" in finding.summary


def as_they_are() -> Pairs:
    return images(masks()), masks()[:, None]


def all_mirrored() -> Pairs:
    return images(masks()), masks().flip(-1)


def on_noise() -> Pairs:
    return images(masks(), noise=4.0), masks()


def faint_beside_bright() -> Pairs:
    own, other = masks(), masks(seed=2)
    return images(0.4 * own + other * (1 - own)), own


def colors_of_its_own() -> Pairs:
    """Sky and ground, each with another color in every image."""
    g = generator()
    ground = (GRID[0] > SIDE * (0.3 + 0.4 * torch.rand(128, 1, 1, generator=g))).long()
    colors = torch.rand(128, 3, 2, generator=g)
    return colors.gather(2, ground.flatten(1)[:, None].expand(-1, 3, -1)).view(128, 3, SIDE, SIDE), ground


def slopes() -> Pairs:
    """Where a smooth picture rises."""
    phase, wave = 6.3 * torch.rand(128, 1, 1, generator=generator()), 0.8 * (GRID[1] + 0.3 * GRID[0])
    return (wave + phase).sin()[:, None], ((wave + phase).cos() > 0).float()


def next_frame() -> Pairs:
    start, speed = SIDE / 2 + torch.zeros(128, 2, 1, 1), 4 * torch.rand(128, 2, 1, 1, generator=generator()) - 2
    frames = [((GRID - start - k * speed).square().sum(1) < 6).float() for k in range(3)]
    return torch.stack(frames[:2], 1), frames[2]


@pytest.mark.parametrize(
    "pairs", [as_they_are, all_mirrored, on_noise, faint_beside_bright, colors_of_its_own, slopes, next_frame]
)
def test_masks_that_belong_to_their_images(pairs: Callable[[], Pairs]) -> None:
    assert finding_of(pairs()) is None


def test_a_step_that_turns_image_and_mask_together() -> None:
    pairs = as_they_are()
    model = nn.Conv2d(1, 1, 3, padding=1)
    g = generator()

    def step(model: nn.Module, batch: Pairs) -> Tensor:
        way = int(torch.randint(1, 4, (), generator=g))
        image, mask = (t.rot90(way, (-2, -1)) for t in batch)
        return nn.functional.binary_cross_entropy_with_logits(model(image), mask)

    problem = wc.Problem.from_step(model, step, [*zip(*(t.split(32) for t in pairs), strict=True)])
    assert finding_of(pairs, taken_apart(problem)) is None


def test_a_network_that_has_learned_is_not_asked() -> None:
    trial = Trial((0.1,), 0.5, masks=lying(wc.Problem(nn.Conv2d(1, 1, 3), nn.MSELoss(), [mirrored_at_random()])))
    problem = wc.Problem(nn.Conv2d(1, 1, 3), nn.MSELoss(), [mirrored_at_random()])
    assert not list(lie_elsewhere(Evidence(problem, trial=trial)))
