"""One look at a problem: data, outputs, signals, gradients and weights, also where the loss is NaN."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from wellcond.diagnosis.inspection.attention import Attention
from wellcond.diagnosis.inspection.data import TensorFacts, facts_of
from wellcond.diagnosis.inspection.outputs import OutputFacts, output_facts
from wellcond.diagnosis.inspection.signals import Signal, Signals
from wellcond.diagnosis.inspection.weights import Weight, weights_of
from wellcond.network.calling import logits_of, one_line, tensors_in
from wellcond.network.graph import turned_views
from wellcond.network.isolation import isolation
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.network.taps import tapped
from wellcond.problem.batches import examples_in
from wellcond.problem.problem import Problem, merged

T = TypeVar("T")

EXAMPLES = 512
"""Batches are read until there are as many examples."""
PASSED, MOST_PASSES = 128, 4
"""And passed through the model until there are as many, or as many batches."""
MOST_SAID = 400
"""Letters of what an exception says."""
FEW = 8
"""Examples that are passed through alone, to see whether they depend on the others of their batch."""


@dataclass(frozen=True)
class Mixing:
    """What the last few examples of a batch give alone, beside what they gave among the others.

    Attributes:
        difference: ‖f − f'‖/‖f‖ of the outputs.
        layer: The first module whose output differs.
        is_symmetric: Whether the order of the examples makes no difference, as to statistics over them.
    """

    difference: float
    layer: str
    is_symmetric: bool = False


@dataclass(frozen=True)
class Standardized:
    """The first batch once more, with every input feature shifted and scaled to mean 0 and standard deviation 1.

    Attributes:
        loss: What it is then.
        gradient: ‖∇L‖ then.
        gradient_as_is: ‖∇L‖ of the same batch as it is.
    """

    loss: float
    gradient: float
    gradient_as_is: float


@dataclass(frozen=True)
class Inspection:
    """What one or two passes show. What could not be seen is None or empty.

    Attributes:
        examples: How many were passed through the model; `inputs` and `targets` may be of more.
        batch_size: Of the first batch.
        inputs: Facts about every tensor of the inputs.
        targets: Facts about every tensor of the targets.
        output: The first batch's outputs against its targets and the loss.
        signals: Of every module and nonlinearity, in the order of the forward pass.
        attention: Softmaxes and attention kernels inside the network.
        weights: Every parameter.
        loss: The mean over the batches; NaN if one's is.
        loss_depends: Whether the loss depends on any trainable parameter; None if there was none to see.
        forward_error: Why the model could not be called, if it could not.
        loss_error: Why the loss could not be computed, if it could not.
        gradient_error: Why there are no gradients, if there are none.
        gradient_over_time: (steps,), ‖∂ℓ/∂x_t‖ of sequences that recurrent layers or cells read; None for others.
        mixing: Whether an example's output depends on others of its batch; None where a BatchNorm makes it so.
        standardized: What scaled inputs would change; None where the inputs are of ordinary size.
        outputs: Facts about every tensor of numbers that the model returns for the first batch.
        returned: How many there are.
        is_summed: Whether the loss of a batch is the sum of those of its halves, and not their mean.
        turned: (before, after) of the views that put dimensions in another order without moving the numbers.
        held_elsewhere: Parameters in the optimizer that are none of the model's.
    """

    examples: int = 0
    batch_size: int = 0
    inputs: tuple[TensorFacts, ...] = ()
    targets: tuple[TensorFacts, ...] = ()
    output: OutputFacts | None = None
    signals: tuple[Signal, ...] = ()
    attention: tuple[Attention, ...] = ()
    weights: tuple[Weight, ...] = ()
    loss: float | None = None
    loss_depends: bool | None = None
    forward_error: str = ""
    loss_error: str = ""
    gradient_error: str = ""
    gradient_over_time: Tensor | None = None
    mixing: Mixing | None = None
    standardized: Standardized | None = None
    outputs: tuple[TensorFacts, ...] = ()
    returned: int = 1
    is_summed: bool = False
    turned: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    held_elsewhere: int = 0

    def weighted(self) -> list[Signal]:
        """Signals of the layers with weights, in the order of the forward pass."""
        return [signal for signal in self.signals if signal.is_weighted]


@own_arithmetic()
def inspect(problem: Problem, optimizer: Optimizer | None = None) -> Inspection:
    """Look at a problem, in at most three passes; it works whatever the loss is, and never raises.

    Args:
        problem: What to look at.
        optimizer: The one that trains it, if there is one.
    """
    inspecting = _Inspecting(problem, optimizer)
    with contextlib.suppress(Exception):  # what there is until then is what can be said
        inspecting.run()
    return inspecting.found()


class _Inspecting:
    """The state of one look."""

    def __init__(self, problem: Problem, optimizer: Optimizer | None) -> None:
        self.problem, self.optimizer = problem, optimizer
        self.signals = Signals(problem.model)
        self.batches: list[tuple[Any, Any]] = []
        self.read = self.examples = 0
        self.losses: list[float] = []
        self.gradients: list[Tensor | None] = []
        self.leaves: list[Tensor] = []
        self.over_time: Tensor | None = None
        self.returned = 1
        self.is_summed = False
        self.outputs: list[TensorFacts] = []
        self.turned: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self.output: OutputFacts | None = None
        self.depends: bool | None = None
        self.errors = {"forward": "", "loss": "", "gradient": ""}
        self.mixing: Mixing | None = None
        self.standardized: Standardized | None = None

    def found(self) -> Inspection:
        """What has been seen so far."""
        model, optimizer, signals = self.problem.model, self.optimizer, self.signals
        own = {id(p) for p in model.parameters()}
        held = [p for group in ([] if optimizer is None else optimizer.param_groups) for p in group["params"]]
        gradients = dict(zip(self.problem.params, self.gradients, strict=False))
        return Inspection(
            examples=self.examples,
            batch_size=examples_in(self.batches[0]) if self.batches else 0,
            inputs=tuple(_tried(lambda: self._facts(0)) or ()),
            targets=tuple(_tried(lambda: self._facts(1)) or ()),
            output=self.output,
            signals=tuple(_tried(self.signals.found) or ()),
            attention=tuple(_tried(self.signals.attention) or ()),
            weights=tuple(
                _tried(lambda: weights_of(model, gradients, signals.started, signals.without_graph, optimizer)) or ()
            ),
            loss=sum(self.losses) / len(self.losses) if self.losses else None,
            loss_depends=self.depends,
            forward_error=self.errors["forward"],
            loss_error=self.errors["loss"],
            gradient_error=self.errors["gradient"],
            gradient_over_time=self.over_time,
            mixing=self.mixing,
            standardized=self.standardized,
            outputs=tuple(self.outputs),
            returned=self.returned,
            is_summed=self.is_summed,
            turned=tuple(self.turned),
            held_elsewhere=sum(id(p) not in own for p in held),
        )

    def run(self) -> None:
        problem = self.problem
        with problem.measuring(), contextlib.closing(problem.data()) as data:
            for index, batch in data:
                self.batches.append(batch)
                is_passed = self.examples < PASSED and index < MOST_PASSES
                self.read += examples_in(batch)
                self.examples += examples_in(batch) if is_passed else 0
                outputs = self._pass(index, batch) if is_passed else None
                if index == 0 and outputs is not None:
                    self.is_summed = bool(_tried(functools.partial(self._is_summed, batch, outputs)))
                    self.mixing = _tried(functools.partial(self._mixing, batch, outputs))
                    self.standardized = _tried(functools.partial(self._standardized, batch))
                if self.read >= EXAMPLES:
                    return

    def _facts(self, part: int) -> list[TensorFacts]:
        channels_first = any(isinstance(m, nn.Conv1d) for m in self.problem.model.modules())
        return facts_of([batch[part] for batch in self.batches], ("inputs", "targets")[part], channels_first)

    # the pass

    def _pass(self, index: int, batch: Any) -> Any:
        """Forward and backward over one batch; as far as it goes."""
        problem = self.problem
        self.leaves = []
        try:
            with self.signals.watched(examples_in(batch)):
                raw = problem.forward(index, self._differentiable(batch[0]))
        except Exception as error:  # the user's model may raise anything
            self.errors["forward"] = self.errors["forward"] or one_line(error)[:MOST_SAID]
            return None
        loss = None
        try:
            loss = problem.raw_loss(raw, batch[1], index)
            loss = loss if loss.numel() == 1 else loss.mean()
            self.losses.append(float(loss.detach()))
        except Exception as error:  # and so may the loss
            self.errors["loss"] = self.errors["loss"] or one_line(error)[:MOST_SAID]
        if index == 0:
            self.output = _tried(lambda: self._outputs(raw, batch, loss))
            ends = [t.grad_fn for t in (loss, *tensors_in(raw)) if t is not None]
            self.turned = _tried(lambda: turned_views(ends)) or []
        if loss is not None:
            self.depends = bool(self.depends)
            if loss.requires_grad and math.isfinite(self.losses[-1]):
                self._backward(loss)
        return raw

    def _differentiable(self, inputs: Any) -> Any:
        """Sequences whose gradient over time is to be seen; the model may write into them."""
        if not any(isinstance(m, (nn.RNNBase, nn.RNNCellBase)) for m in self.problem.model.modules()):
            return inputs

        def watched(t: Any) -> Any:
            if not isinstance(t, Tensor) or not t.is_floating_point() or t.dim() != 3:
                return t
            self.leaves.append(t.detach().requires_grad_())
            return self.leaves[-1].clone()

        return tree_map(watched, inputs)

    def _backward(self, loss: Tensor) -> None:
        params = list(self.problem.params.values())
        try:
            found = self.problem.gradient(loss, [*params, *self.leaves], allow_unused=True)
        except Exception as error:  # a custom backward may raise anything
            self.errors["gradient"] = self.errors["gradient"] or one_line(error)[:MOST_SAID]
            return
        gradients, of_inputs = found[: len(params)], found[len(params) :]
        self.depends = self.depends or any(g is not None for g in gradients)
        share = 1 / len(self.losses)
        self.gradients = merged(self.gradients, gradients, share) if self.gradients else list(gradients)
        if of_inputs and of_inputs[0] is not None:
            self.over_time = of_inputs[0].double().norm(dim=(0, 2)).cpu()

    def _outputs(self, raw: Any, batch: Any, loss: Tensor | None) -> OutputFacts | None:
        problem = self.problem
        outputs = logits_of(raw)
        floating = [t for t in tensors_in(raw) if t.is_floating_point() and t.dim()]
        self.returned = len(floating)
        self.outputs = facts_of([floating], "outputs", channels_first=False)
        if outputs is None:
            outputs = floating[0] if len(floating) == 1 else None
        if outputs is None or not outputs.dim():
            return None
        with contextlib.suppress(Exception):  # a loss that is no mean, or that is not finite
            problem.evaluate_outputs(0, batch, raw)

        def loss_of(other: Tensor, targets: Any) -> Tensor:
            if not isinstance(raw, Tensor):
                raise TypeError("only a tensor can be exchanged for another")
            value: Tensor = problem.raw_loss(other, targets)
            return value

        known = [*problem.model.parameters(), *self.leaves]
        is_divergence = isinstance(problem.loss, nn.KLDivLoss)
        return output_facts(outputs, batch[1], loss, loss_of, known, problem.likelihood, is_divergence=is_divergence)

    # other passes

    def _mixing(self, batch: Any, raw: Any) -> Mixing | None:
        """Pass the last few examples through alone.

        Only where every tensor has the examples in front, and the targets are one per example: sequences may lie with
        their steps in front.
        """
        problem, n = self.problem, examples_in(batch)
        outputs = logits_of(raw)
        given = tensors_in(batch[0])
        labels = tensors_in(batch[1])
        few = min(FEW, n // 2)
        if outputs is None or not few or not labels or problem.couples_examples:
            return None
        if not all(t.dim() and len(t) == n for t in (*given, outputs, labels[0])):
            return None
        if math.prod(labels[0].shape[1:]) > outputs[0].numel():
            return None
        if any(isinstance(m, nn.RNNBase) for m in problem.model.modules()) and labels[0].dim() > 1:
            return None
        with torch.no_grad():
            alone = logits_of(problem.forward(0, tree_map(lambda t: _last(t, few), batch[0])))
        after = isolation.generator_states(problem.device)
        isolation.seed_generators(problem.dropout or 0, problem.device)
        if alone is None or not after.is_same_as(isolation.generator_states(problem.device)):
            return None  # fewer examples draw other numbers
        among = outputs.detach()[-few:].double()
        size = float(among.norm())
        difference = float((alone.double() - among).norm()) / size if size else 0.0
        tolerance = 1e3 * torch.finfo(outputs.dtype).eps
        if not math.isfinite(difference):
            return None
        if difference <= tolerance:
            return Mixing(difference, "")
        seen: list[dict[str, Tensor]] = []
        for count in (2 * few, few):
            seen.append({})
            with torch.no_grad(), tapped(self.signals.modules, _keeper(seen[-1])):
                problem.forward(0, tree_map(lambda t, count=count: _last(t, count), batch[0]))
        first = next((name for name in seen[1] if _differ(seen[0].get(name), seen[1][name], tolerance)), "")
        with torch.no_grad():
            flipped = tree_map(lambda t: t.flip(0) if isinstance(t, Tensor) else t, batch[0])
            turned = logits_of(problem.forward(0, flipped))
        change = math.inf if turned is None else float((turned.double().flip(0) - outputs.detach().double()).norm())
        return Mixing(difference, first, change <= 0.01 * difference * float(outputs.detach().double().norm()))

    def _is_summed(self, batch: Any, raw: Any) -> bool:
        """Whether losses of two halves of the outputs add up; not where something does not count examples."""
        n, whole = examples_in(batch), self.losses[0]
        half = n // 2
        if not half or not all(t.dim() and len(t) == n for t in (*tensors_in(raw), *tensors_in(batch[1]))):
            return False

        def loss_of(part: slice) -> float:
            outputs, targets = (
                tree_map(lambda t: t[part] if isinstance(t, Tensor) else t, of) for of in (raw, batch[1])
            )
            return float(self.problem.raw_loss(outputs, targets).detach())

        with torch.no_grad():
            both = loss_of(slice(half)) + loss_of(slice(half, None))
        return abs(whole) > 0 and math.isclose(both, whole, rel_tol=1e-4)

    def _standardized(self, batch: Any) -> Standardized | None:
        facts = facts_of([batch[0]], "inputs", any(isinstance(m, nn.Conv1d) for m in self.problem.model.modules()))
        if not any(is_far_from_standard(fact) for fact in facts) or not self.gradients:
            return None
        waiting = list(facts)

        def scaled(t: Any) -> Any:
            if not isinstance(t, Tensor) or not t.dim():
                return t
            fact = waiting.pop(0)
            if not t.is_floating_point() or not fact.features or t.dim() == 1:
                return t
            shape = [1] * t.dim()
            shape[fact.feature_dim] = fact.features
            std = torch.where(fact.feature_std > 0, fact.feature_std, 1.0)
            mean, std = (of.to(t).view(shape) for of in (fact.feature_mean, std))
            return (t - mean) / std

        problem = self.problem
        loss = problem.raw_loss(problem.forward(0, tree_map(scaled, batch[0])), batch[1])
        found = problem.gradient(loss, list(problem.params.values()), allow_unused=True)
        return Standardized(float(loss.detach()), _norm(found), _norm(self.gradients))


def is_far_from_standard(fact: TensorFacts) -> bool:
    """Whether a tensor of inputs is of another scale than the initializations of weights are made for, E x² = 1."""
    if fact.is_index or not fact.features or fact.is_one_hot:
        return False
    largest = float(fact.feature_rms.max())
    return fact.rms > 5 or largest > 5 or 0 < max(abs(fact.low), abs(fact.high)) < 0.05


def _norm(gradients: Sequence[Tensor | None]) -> float:
    return math.sqrt(sum(float(g.double().square().sum()) for g in gradients if g is not None))


def _last(t: Any, count: int) -> Any:
    return t[-count:] if isinstance(t, Tensor) else t


def _keeper(kept: dict[str, Tensor]) -> Callable[..., None]:
    def keep(name: str, _module: nn.Module, _x: Any, output: Any) -> None:
        tensor = next(iter(tensors_in(output)), None)
        if tensor is not None and tensor.dim() and name not in kept:
            kept[name] = tensor.detach()

    return keep


def _differ(among: Tensor | None, alone: Tensor, tolerance: float) -> bool:
    if among is None or len(among) != 2 * len(alone):
        return among is not None and among.shape != alone.shape
    other = among[-len(alone) :]
    return float((other - alone).double().norm()) > tolerance * float(other.double().norm())


def _tried(ask: Callable[[], T]) -> T | None:
    """What it gives, or None if it raises: what cannot be seen is left out."""
    try:
        return ask()
    except Exception:  # any part may meet something that it was not made for
        return None
