"""Whether the similarity of two examples, of which a contrastive loss takes a softmax, depends on other examples."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from wellcond.diagnosis.probes.reach import STAYS, WEIGHT_CHANGES, larger_weights
from wellcond.diagnosis.probes.subject import Subject, relative_change
from wellcond.problem.batches import examples_in
from wellcond.problem.problem import Problem

FEWEST_EXAMPLES = 4
"""With fewer, there are no two examples left besides those that are exchanged."""


CLEAR = 1e-3
"""Relative change of a loss that is no rounding."""


class SeenSimilarities(TorchFunctionMode):
    """Keeps the last square matrix that a softmax is taken of, also one without its diagonal.

    Its rows and columns are examples, or several views of each.
    """

    FUNCTIONS: ClassVar = frozenset((
        F.cross_entropy, F.softmax, torch.softmax, Tensor.softmax, F.log_softmax, torch.log_softmax,
        Tensor.log_softmax, torch.logsumexp, Tensor.logsumexp,
    ))  # fmt: skip

    def __init__(self, examples: int) -> None:
        super().__init__()
        self.examples = examples
        self.last: Tensor | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        logits = args[0] if args else None
        if func in self.FUNCTIONS and isinstance(logits, Tensor) and logits.dim() == 2:
            rows, columns = logits.shape
            if rows % self.examples == 0 and columns in (rows, rows - 1):
                self.last = logits.detach().clone()
        return func(*args, **(kwargs or {}))


def mixed_similarities(subject: Subject) -> float | None:
    """Exchange the second half of the examples for the first one, and see how similarities of the others change.

    That of examples i and j is theirs alone if vectors are compared as the model gives them, or each is normalized.
    Statistics over the batch, as of a BatchNorm, are intended, and do not change if all vectors are shifted; those of
    PyTorch's own are running ones here.

    Returns:
        The relative change in the quarter of the rows and of their entries where it is least, which are among those of
        the first half, however views are ordered; None where no softmax of similarities is taken.
    """
    problem = subject.problem
    if subject.examples < FEWEST_EXAMPLES:
        return None
    if not problem.couples_examples:
        return _mixed(subject)
    norms = [problem.model.get_submodule(name) for name in problem.norms()[0]]
    if any(not isinstance(norm, _BatchNorm) or norm.running_mean is None for norm in norms):
        return None
    running = Problem(problem.model, problem.loss, problem.source, "running", dropout=problem.dropout)
    with running.measuring():
        change = _mixed(replace(subject, problem=running))
    problem.count_copies(running.cost)
    return change


def _mixed(subject: Subject) -> float | None:
    n = subject.examples
    before = _similarities(subject, subject.inputs)
    if before is None:
        return None
    after = _similarities(subject, tree_map(lambda t: _half_exchanged(t, n), subject.inputs))
    with _Shifted(subject.problem.model):
        shifted = _similarities(subject, subject.inputs)
    if after is None or shifted is None or after.shape != before.shape or shifted.shape != before.shape:
        return None
    if relative_change(_open(before), _open(shifted)) <= subject.tolerance:
        return 0.0
    change = (_open(after) - _open(before)).abs().sort(1).values[:, : before.shape[1] // 4]
    return float(change.square().mean(1).sqrt().quantile(0.25) / _open(before).square().mean().sqrt())


def first_is_special(subject: Subject) -> bool | None:
    """Exchange two examples of a batch: which of them comes first is to make no difference to a contrastive loss.

    Returns:
        Whether the loss changes if the first example is exchanged with another, but not if two others are: all are
        compared with the first, as by labels of zeros where those of a matrix of pairs are 0, 1, 2, …. None where no
        softmax of similarities is taken, or random numbers decide.
    """
    n = subject.examples
    if n < 2 * FEWEST_EXAMPLES or subject.problem.couples_examples or subject.draws:
        return None
    if _similarities(subject, subject.inputs) is None:
        return None
    before = _loss_of(subject, 0, 0)
    others, first = (
        [abs(_loss_of(subject, *pair) - before) for pair in pairs]
        for pairs in ([(n // 3, n - 1), (n // 2, n - 2)], [(0, n // 2), (0, n - 1)])
    )
    return max(others) <= subject.tolerance * abs(before) and min(first) > CLEAR * max(abs(before), *others)


def similarity_floor(subject: Subject) -> float | None:
    """The lowest loss that bounded similarities leave, over that of equal ones: log(1 + (C − 1) e^(−2s)) / log C.

    Weights 3, 10 and 100 times as large, and other single numbers, such as a temperature, show the bound s.

    Returns:
        None where no softmax of similarities is taken, or these grow with the weights.
    """
    problem = subject.problem
    if subject.examples < FEWEST_EXAMPLES or any(not p.requires_grad for p in problem.model.parameters()):
        return None
    own = _similarities(subject, subject.inputs)
    if own is None:
        return None
    sizes = [float(_open(own).abs().max())]
    for change in WEIGHT_CHANGES:
        with larger_weights(problem, *change):
            other = _similarities(subject, subject.inputs)
        sizes.append(math.nan if other is None else float(_open(other).abs().max()))
    if not max(sizes) <= STAYS * sizes[0]:
        return None
    candidates = own.shape[1]
    return math.log1p((candidates - 1) * math.exp(-2 * max(sizes))) / math.log(candidates)


def _loss_of(subject: Subject, one: int, other: int) -> float:
    """The loss with two examples exchanged."""
    n = subject.examples
    order = torch.arange(n)
    order[[one, other]] = order[[other, one]]

    def exchanged(value: Any) -> Any:
        has_examples = isinstance(value, Tensor) and value.dim() and examples_in(value) == n
        return value[order.to(value.device)] if has_examples else value

    with torch.no_grad():
        return float(subject.problem.training_loss(0, tree_map(exchanged, (subject.inputs, subject.targets))))


def _similarities(subject: Subject, inputs: Any) -> Tensor | None:
    seen = SeenSimilarities(subject.examples)
    with warnings.catch_warnings(), torch.no_grad(), seen:
        warnings.simplefilter("ignore")  # the user's own, which would name this file
        subject.problem.training_loss(0, (inputs, subject.targets))
    outputs, last = subject.outputs, seen.last
    # a matrix of classes, whose number is by chance that of the examples, holds no similarities
    return None if outputs is not None and last is not None and outputs.shape == last.shape else last


def _open(similarities: Tensor) -> Tensor:
    """In float64, with masked entries, which compare an example with itself, as zero."""
    return similarities.double().masked_fill(similarities < -1e4, 0.0)


def _half_exchanged(value: Any, examples: int) -> Any:
    if not isinstance(value, Tensor) or not value.dim() or examples_in(value) != examples:
        return value
    half = examples // 2
    return torch.cat([value[:half], value[:1].expand(examples - half, *value.shape[1:])])


class _Shifted:
    """Adds one vector to all that a model returns, the same on each call, while inside."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._shifts: dict[torch.Size, Tensor] = {}

    def __enter__(self) -> None:
        self._handle = self._model.register_forward_hook(lambda _m, _x, output: tree_map(self._moved, output))

    def __exit__(self, *_: object) -> None:
        self._handle.remove()

    def _moved(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() < 2:
            return value
        form = value.shape[1:]
        if form not in self._shifts:
            drawn = torch.randn(form, generator=torch.Generator().manual_seed(0)).to(value)
            self._shifts[form] = drawn * value.square().mean().sqrt()
        return value + self._shifts[form]
