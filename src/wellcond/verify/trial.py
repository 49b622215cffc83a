"""A trial: copies of one network, from the same weights on the same batches, under plain SGD and the remedies."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count, islice, product
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD, Optimizer

from wellcond.errors import InvalidProblem, NonFinite, WellcondError
from wellcond.network.isolation import seed_generators
from wellcond.nn.last_batchnorm import with_last_batchnorm
from wellcond.nn.replace import copied
from wellcond.optim.bnp import BNP
from wellcond.optim.scale_amended import ScaleAmendedSGD
from wellcond.problem.parts import Progress
from wellcond.problem.problem import Batch, Problem
from wellcond.verify.trial_result import Run, Trial

LEARNING_RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
READS_THE_MODEL = (
    "the loss reads the weights of the model itself, so no copy of the model can be trained by it. Let it depend on "
    "its arguments (outputs, targets) alone."
)

Start = tuple[nn.Module, Optimizer]
"""A copy of the network that is to be trained, and its optimizer."""


def _sgd(model: nn.Module, _inputs: Any, lr: float, momentum: float) -> Start:
    model = copied(model)
    return model, SGD(model.parameters(), lr, momentum)


def _bnp(model: nn.Module, inputs: Any, lr: float, momentum: float) -> Start:
    model, optimizer = _sgd(model, inputs, lr, momentum)
    BNP(model, optimizer)
    return model, optimizer


def _last_batchnorm(model: nn.Module, inputs: Any, lr: float, momentum: float) -> Start:
    model = with_last_batchnorm(model, inputs)
    return model, SGD(model.parameters(), lr, momentum)


def _scale_amended(model: nn.Module, inputs: Any, lr: float, momentum: float) -> Start:
    model = copied(model)
    return model, ScaleAmendedSGD(model, lr, momentum=momentum, inputs=inputs)


METHODS: dict[str, Callable[[nn.Module, Any, float, float], Start]] = {
    "sgd": _sgd,
    "bnp": _bnp,
    "last-bn": _last_batchnorm,
    "scale-amended": _scale_amended,
}
"""Called with the user's model, the inputs of one batch, lr and momentum."""


@torch.inference_mode(False)  # what is copied in inference mode cannot be trained
def trial(
    problem: Problem,
    methods: Iterable[str] = tuple(METHODS),
    learning_rates: Iterable[float] = LEARNING_RATES,
    steps: int = 200,
    *,
    momentum: float = 0.0,
    seed: int = 0,
    progress: Progress | None = None,
    on_run: Callable[[Run], None] | None = None,
) -> Trial:
    """Train copies of a problem's model, one for each method and learning rate; the model itself is not changed.

    ============= ============================================================
    method
    ============= ============================================================
    sgd           plain SGD
    bnp           `BNP` over SGD
    last-bn       SGD, and a BatchNorm before the last layer of the network
    scale-amended `ScaleAmendedSGD`, where the network is a chain of layers
    ============= ============================================================

    All start from the same weights and see the same batches, over and over in their order, in training mode: batch
    statistics, and dropout with the same random numbers. A loader may shuffle or augment if it draws from the global
    generators or its own. There is no weight decay. A method that cannot work on the network is in `.refused`, with
    the reason, and the others go on.

    progress: called as (what is being trained, share of the work that is done).
    on_run: called with every run as it ends, so that an interrupted trial is not lost.

    Before the runs, one forward pass of the batches that will be used tells bad data from bad training.

    >>> layer = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.ones_(layer.weight)
    >>> problem = Problem(layer, nn.MSELoss(), (torch.ones(2, 1), torch.zeros(2, 1)))    # the loss is w²
    >>> trial(problem, ["sgd"], [0.25], steps=3).runs[0].losses                          # w ← w − 2w/4
    [1.0, 0.25, 0.0625]
    """
    methods, rates = list(dict.fromkeys(methods)), sorted(set(learning_rates))
    check_settings(methods, rates, steps, momentum)
    training = _Training(problem, *_looked_through(problem, seed, steps), steps, momentum, seed)
    # all methods at one rate, then at the next: what there is after an interrupt can be compared
    planned = list(product(rates, methods))

    def part(i: int) -> Progress:
        return lambda what, share: None if progress is None else progress(what, (i + share) / len(planned))

    runs = []
    for i, (lr, method) in enumerate(planned):
        runs.append(training.run(method, lr, part(i)))
        if on_run is not None:
            on_run(runs[-1])
    return Trial(runs)


def check_settings(methods: Collection[str], learning_rates: Collection[float], steps: int, momentum: float) -> None:
    """Raise `ValueError` for settings with which nothing could be trained."""
    for method in methods:
        if method not in METHODS:
            raise ValueError(f"a method must be one of {', '.join(METHODS)}, not {method!r}")
    for lr in learning_rates:
        if not 0 < lr < math.inf:
            raise ValueError(f"a learning rate must be > 0 and finite, not {lr:g}")
    if not methods or not learning_rates:
        raise ValueError("there must be at least one method and one learning rate")
    if steps < 1:
        raise ValueError(f"steps must be ≥ 1, not {steps}")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must be ≥ 0 and < 1, not {momentum:g}")


@dataclass(frozen=True)
class _Training:
    """What all runs have in common."""

    problem: Problem
    inputs: Any
    outsiders: list[Tensor]
    steps: int
    momentum: float
    seed: int

    def run(self, method: str, lr: float, progress: Progress) -> Run:
        progress(what := f"{method} at lr {lr:g}", 0.0)
        losses: list[float] = []
        try:
            model, optimizer = METHODS[method](self.problem.model, self.inputs, lr, self.momentum)
            copy = _in_training(self.problem, model, self.seed)
            norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
            with copy.measuring(), _gradients_kept(self.outsiders), closing(_cycled(copy, self.seed)) as batches:
                for norm in norms:
                    norm.track_running_stats = True  # a measurement holds running statistics still; training does not
                for step, batch in enumerate(islice(batches, self.steps)):
                    loss = copy.evaluate(step, batch).loss
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    losses.append(float(loss.detach()))
                    progress(what, len(losses) / self.steps)
        except NonFinite:
            return Run(method, lr, losses, diverged_at=len(losses) + 1)
        except WellcondError as error:
            return Run(method, lr, losses, refused=str(error))
        return Run(method, lr, losses)


def _looked_through(problem: Problem, seed: int, steps: int) -> tuple[Any, list[Tensor]]:
    """The inputs of the first batch, and the tensors outside the model to which the loss would give gradients.

    Raises if the plain network cannot be trained on the batches to come.
    """
    copy = _in_training(problem, copied(problem.model), seed)
    inputs, outsiders = None, list[Tensor]()
    with copy.measuring(), closing(copy.data()) as data:
        for index, batch in islice(data, steps):
            loss = copy.evaluate(index, batch).loss
            if index == 0:
                inputs, own = batch[0], set(copy.params.values())
                outsiders = [leaf for leaf in _leaves(loss) if leaf not in own]
    if not set(problem.params.values()).isdisjoint(outsiders):
        raise InvalidProblem(READS_THE_MODEL)
    return inputs, outsiders


def _leaves(loss: Tensor) -> Iterator[Tensor]:
    """The tensors that a backward pass from the loss gives gradients to."""
    seen, left = set[Node](), [loss.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            left += [before for before, _ in node.next_functions]
            if node.name() == "torch::autograd::AccumulateGrad":
                yield node.variable  # type: ignore[attr-defined]


@contextmanager
def _gradients_kept(tensors: Iterable[Tensor]) -> Iterator[None]:
    """The `.grad` of parameters of the loss, or of inputs, is as before afterwards."""
    kept = [(tensor, tensor.grad) for tensor in tensors]
    for tensor, _ in kept:
        tensor.grad = None
    try:
        yield
    finally:
        for tensor, gradient in kept:
            tensor.grad = gradient


def _in_training(problem: Problem, model: nn.Module, seed: int) -> Problem:
    """The problem with a copy of its model, which `measuring()` puts into training mode."""
    return Problem(model, problem.loss, problem.batches, batchnorm="batch", dropout=seed)


def _cycled(problem: Problem, seed: int) -> Generator[Batch, None, None]:
    """The batches, over and over. A loader that shuffles draws the order of an epoch from the seed."""
    for epoch in count():
        seed_generators(seed + epoch, problem.device)
        with closing(problem.data()) as data:
            for _, batch in data:
                yield batch
