"""Whether masks lie on their images: how well they fit as they are, and how well if each may be turned or moved."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves

from wellcond.problem.apart import StepLoss
from wellcond.problem.problem import Problem

IMAGES_READ = 256
LEAST_IMAGES = 64
LEAST_SIDE, MOST_SIDE = 8, 32
"""Pixels along a side of the masks: on fewer anything fits anything, and more are put together."""
MOST_CLASSES = 8
MOST_CHANNELS = 3
"""Channels of an image that masks are moved on: in more, as in frames of a film, they may belong to a later one."""
IN_DOUBT = 0.3
"""Fit of masks as they are, below which they are also moved."""
ROUNDS = 4
RIDGE, OWN_RIDGE = 1e-3, 1e-2


@dataclass(frozen=True)
class Lying:
    """Fit of masks to images: the cosine of a mask and what a linear function of an image's local values makes of it.

    Attributes:
        examples: Number of examples.
        as_they_are: The fit of masks as they are, by the function that fits these best.
        by_one: The fit if one change that is the same for all is made, the best one.
        by_each: The fit if each mask is changed in the way that is best for it.
        of_others: The same for the masks of other examples.
        left_by_own: What a linear function made for one image leaves of the variance of its mask, over what it leaves
            of that of another one.
        are_moved: Whether masks were moved across the images; otherwise they were turned and mirrored.
    """

    examples: int
    as_they_are: float
    by_one: float
    by_each: float
    of_others: float
    left_by_own: float
    are_moved: bool = False


def lying(problem: Problem) -> Lying | None:
    """How masks lie on their images: turned or mirrored, and, if they hardly fit as they are, moved across them.

    No pass through the model is made.

    Args:
        problem: Problem whose loader is read, up to 256 examples.

    Returns:
        The one of both in which masks fit better; None if inputs are no images, targets are no classes of pixels, or a
        training step does something to the images before the model gets them.
    """
    with problem.measuring():
        pairs = list(_read(problem))
    if not pairs or len({(x.shape[1:], y.shape[1:]) for x, y in pairs}) > 1:
        return None
    images, labels = (torch.cat(parts)[:IMAGES_READ] for parts in zip(*pairs, strict=True))
    classes, counts = torch.unique(labels, return_counts=True)
    if not 2 <= len(classes) <= MOST_CLASSES:
        return None
    # with two classes the mask of one says everything
    chosen = classes[counts.argsort()][: 1 if len(classes) == 2 else None]
    values = _local(images)
    masks = torch.cat([(labels == each).float() for each in chosen], 1)
    turned = _turned(values, masks)
    if turned is None or turned.as_they_are >= IN_DOUBT or images.shape[1] > MOST_CHANNELS or labels.shape[1] > 1:
        return turned
    moved = _moved(values, (labels != classes[counts.argmax()]).float())
    if moved is None or moved.by_each <= turned.by_each:
        return turned
    return replace(moved, as_they_are=turned.as_they_are)


def _read(problem: Problem) -> Iterator[tuple[Tensor, Tensor]]:
    """Images (N, C, H, W) and labels (N, K, h, w) of every batch; nothing if they are something else."""
    seen = 0
    with contextlib.closing(problem.data()) as data:
        for index, (inputs, targets) in data:
            x = [t for t in tree_leaves(inputs) if isinstance(t, Tensor)]
            y = [t for t in tree_leaves(targets) if isinstance(t, Tensor)]
            if len(x) != 1 or len(y) != 1 or x[0].dim() != 4 or not x[0].is_floating_point():
                return
            if isinstance(problem.loss, StepLoss) and index == 0 and not problem.loss.takes(x[0]):
                return
            image, label = x[0].detach().cpu(), y[0].detach().cpu()
            label = label[:, None] if label.dim() == 3 else label
            sides = label.shape[-2:]
            if label.dim() != 4 or len(label) != len(image) or not _fits(image.shape[-2:], sides):
                return
            step = -(-max(sides) // MOST_SIDE)
            height, width = (side // step for side in sides)
            middle = slice(step // 2, None, step)
            yield (
                F.adaptive_avg_pool2d(image.float(), (height, width)),
                label[..., middle, middle][..., :height, :width],
            )
            seen += len(image)
            if seen >= IMAGES_READ:
                return


def _fits(image: torch.Size, label: torch.Size) -> bool:
    """Whether labels are as large as images, or a whole number of times smaller."""
    return min(label) >= LEAST_SIDE and all(i % k == 0 for i, k in zip(image, label, strict=True))


def _local(images: Tensor) -> Tensor:
    """Local values: of the pixel, of its surroundings, how they vary, and squares; standardized, with mean 0 each."""
    near, around = _mean(images, 3), _mean(images, 5)
    spread = (_mean(images.square(), 5) - around.square()).clamp_min(0).sqrt()
    values = _centered(torch.cat([images, near, around, spread, images.square()], 1))
    return values / values.std((0, 2, 3), keepdim=True).clamp_min(1e-9)


def _mean(images: Tensor, size: int) -> Tensor:
    return F.avg_pool2d(F.pad(images, (size // 2,) * 4, mode="replicate"), size, 1)


def _centered(t: Tensor) -> Tensor:
    return t - t.mean((2, 3), keepdim=True)


def _turned(values: Tensor, masks: Tensor) -> Lying | None:
    """Fit of masks that are turned and mirrored. The function is fitted anew to masks that are turned as it says."""
    masks = _centered(masks)
    varies = masks.flatten(1).any(1)
    values, masks = values[varies], masks[varies]
    if len(masks) < LEAST_IMAGES:
        return None
    turns = range(4) if masks.shape[-1] == masks.shape[-2] else (0, 2)
    changed = [t for k in turns for t in (masks.rot90(k, (-2, -1)), masks.rot90(k, (-2, -1)).flip(-1))]
    best, as_they_are = masks, 0.0
    for place in range(ROUNDS):
        predicted = _fitted(values, best)
        fits = torch.stack([_cosine(predicted, each) for each in changed], 1)
        as_they_are = as_they_are if place else float(fits[:, 0].mean())
        best = torch.stack(changed, 1)[torch.arange(len(masks)), fits.argmax(1)]
    of_others = torch.stack([_cosine(predicted, each.roll(1, 0)) for each in changed], 1)
    return Lying(
        len(masks),
        as_they_are,
        float(fits.mean(0).max()),
        float(fits.amax(1).mean()),
        float(of_others.amax(1).mean()),
        _left_by_own(values, masks) / _left_by_own(values, masks.roll(1, 0)),
    )


def _moved(values: Tensor, masks: Tensor) -> Lying | None:
    """Fit of masks (N, 1, h, w) that are moved across their images, as if these went on at the other side.

    The function is at first that one of the local values which fits best, and is fitted anew to masks that are moved.
    """
    masks = _centered(masks)
    varies = masks.flatten(1).any(1)
    values, masks = values[varies], masks[varies]
    if len(masks) < LEAST_IMAGES:
        return None
    alone = [sign * values[:, [i]] for i in range(values.shape[1]) for sign in (1, -1)]
    predicted = max(alone, key=lambda each: float(_at_all_places(each, masks).amax((1, 2)).mean()))
    width = masks.shape[-1]
    for _ in range(ROUNDS):
        places = _at_all_places(predicted, masks).flatten(1).argmax(1).tolist()
        moved = [m.roll(divmod(at, width), (-2, -1)) for m, at in zip(masks, places, strict=True)]
        predicted = _fitted(values, torch.stack(moved))
    fits, of_others = (_at_all_places(predicted, each) for each in (masks, masks.roll(1, 0)))
    return Lying(
        len(masks),
        float(fits[:, 0, 0].mean()),
        float(fits.mean(0).max()),
        float(fits.amax((1, 2)).mean()),
        float(of_others.amax((1, 2)).mean()),
        _left_by_own(values, masks) / _left_by_own(values, masks.roll(1, 0)),
        are_moved=True,
    )


def _fitted(values: Tensor, masks: Tensor) -> Tensor:
    """What the linear function of the values that fits masks best makes of the values, over all pixels."""
    x, y = (t.movedim(1, -1).flatten(0, 2) for t in (values, masks))
    gram = x.T @ x
    ridge = RIDGE * gram.diagonal().mean() * torch.eye(len(gram))
    weights: Tensor = torch.linalg.solve(gram + ridge, x.T @ y)
    return (values.movedim(1, -1) @ weights).movedim(-1, 1)


def _left_by_own(values: Tensor, masks: Tensor) -> float:
    """Share of the variance of masks that a linear function of the values leaves, if each image has one of its own."""
    x, y = values.flatten(2).double(), masks.flatten(2).double()
    gram = x @ x.mT
    sizes = gram.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-9)
    ridge = OWN_RIDGE * sizes[:, None, None] * torch.eye(gram.shape[1], dtype=gram.dtype)
    predicted = torch.linalg.solve(gram + ridge, x @ y.mT).mT @ x
    return 1.0 + OWN_RIDGE - float(_cosine(predicted, y).square().mean())


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    cosines: Tensor = F.cosine_similarity(a.flatten(1), b.flatten(1), eps=1e-9)
    return cosines


def _at_all_places(predicted: Tensor, masks: Tensor) -> Tensor:
    """Cosines (N, h, w) of predictions and masks that are moved by every number of pixels, across the edges."""
    spectra = torch.fft.rfft2(predicted) * torch.fft.rfft2(masks).conj()
    products = torch.fft.irfft2(spectra.sum(1), s=masks.shape[-2:])
    sizes = predicted.flatten(1).norm(dim=1) * masks.flatten(1).norm(dim=1)
    cosines: Tensor = products / sizes.clamp_min(1e-9)[:, None, None]
    return cosines
