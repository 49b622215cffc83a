"""The loss of one batch with its graph, and the likelihood that the loss is recognized as."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.errors import InvalidProblem, NonFinite
from wellcond.network.calling import dtype_name, logits_of, one_line, tensors_in
from wellcond.network.isolation.arithmetic import HALF, passes, precision_now, trained_in
from wellcond.network.isolation.copies import Fingerprint
from wellcond.network.isolation.isolation import generator_states, gradient_hooks_off, rng_kept, seed_generators
from wellcond.network.isolation.snapshot import Snapshot, kept
from wellcond.problem.batches import Several, examples_in, own_copies
from wellcond.problem.loss.likelihoods import CrossEntropy, Likelihood
from wellcond.problem.loss.losses import (
    adds_up,
    agrees,
    check_reduction,
    check_targets,
    explains,
    is_taken_sum,
    recognize,
    sums_are_taken,
)
from wellcond.problem.loss.output_batches import OutputBatch, compared_with_gradients
from wellcond.problem.loss.outputs import (
    Loss,
    SeenOutputs,
    differentiable,
    named_tensors,
    picked,
    seen_outputs,
    terms_in,
)
from wellcond.problem.loss.terms import TermCounter, Terms, of_logits
from wellcond.problem.training_step import ONLY_A_LOSS, TrainingStep

PLAIN_ERRORS = (RuntimeError, IndexError, ValueError)
"""Exceptions of torch when shapes, dtypes or indices do not fit; subclasses of these mean something else."""
APART = 1_000_003
"""Distance between the seeds of a model and of its loss, so that the two do not draw the same numbers."""
LAMBDA = "loss=lambda outputs, targets: …"


@dataclass(frozen=True)
class Evaluation:
    """One batch's outputs and mean loss, with their graph.

    Attributes:
        index: Place of the batch among the batches.
        outputs: The tensor that the loss depends on, if there is one.
        targets: Targets of the batch.
        loss: Mean loss.
        examples: Size of the batch.
        terms: Number of summands in the mean: with it autograd's gradients become those of single terms.
        weight: Weight of the batch in the mean over batches. It is `terms` unless the mean is a weighted one.
        term_dims: Dimensions of the outputs that belong to one term.
        loss_at: The loss as a function of other outputs or labels of the same batch.
        why_no_outputs: Reason why `outputs` is None.
    """

    index: int
    outputs: Tensor | None
    targets: Any
    loss: Tensor
    examples: int
    terms: float
    weight: float
    term_dims: tuple[int, ...]
    loss_at: Loss
    why_no_outputs: str = ""


class RecognizedLoss:
    """A user's loss, with what its values show: what it is the mean over, and of which likelihood it is the logarithm.

    Attributes:
        likelihood: Likelihood of the loss; None before the first batch, and for a loss that is not recognized.
        is_known: Whether a batch has been evaluated.
        draws: Whether the loss draws random numbers; every call for a batch draws the same ones.
        summed: Names of the terms that the loss returns and that are summed, such as `['kl']`; empty for one number.
    """

    def __init__(self, loss: Loss, model: nn.Module, seed: int = 0) -> None:
        self.loss = loss
        self._model = model
        self._seed = seed
        self._device = next(model.parameters()).device
        self.draws: bool | None = None
        self.summed: list[str] = []
        self._fingerprint: Fingerprint | None = None
        self.likelihood: Likelihood | None = None
        self.is_known = False
        self._terms = TermCounter()
        self._recognized_on: set[int] = set()
        self._names: list[str] | None = None
        self._inside: dict[int, float] = {}

    def evaluate(
        self, index: int, raw: Any, batch: Any, why_not_finite: Callable[[], str], *, is_one_batch: bool = True
    ) -> Evaluation:
        """The loss of a batch (inputs, targets), for which the model returned `raw`.

        The first batch shows what kind of loss it is.
        """
        self._forget_if_changed()
        targets = batch[1]
        check_targets(self.loss, logits_of(raw), targets)
        call = functools.partial(self._call, index)
        with explained(lambda error: why_loss_failed(index, raw, targets, error)):
            loss, takes_logits = self._called(index, raw, targets)
            _check(loss, why_not_finite)
            seen = self._seen(call, raw, targets, takes_logits)
            with trained_in(None):  # what kind of loss it is does not depend on the precision of training
                wide = _in_float32(seen, targets)
                if wide.only is not None:
                    self._recognize(index, wide.loss_at, wide.only, targets, loss)
                terms = self._count(index, wide, raw, batch, loss, is_one_batch)
        self.is_known = True
        loss_at: Loss = seen.loss_at
        outputs = seen.only
        if self.likelihood is not None:
            loss_at = self.likelihood.mean
        elif outputs is None and (logits := logits_of(raw)) is not None and logits.dim():
            outputs = logits
            loss_at = picked(call, raw, [name for name, t in named_tensors(raw).items() if t is outputs]).loss_at
        return Evaluation(
            index,
            outputs,
            targets,
            loss.reshape(()),
            examples_in(outputs, batch[1], batch[0]),
            terms.count,
            terms.weight,
            terms.dims,
            loss_at,
            self._why_no_outputs(raw, seen) if outputs is None else "",
        )

    def value(self, index: int, raw: Any, targets: Any, why_not_finite: Callable[[], str]) -> Tensor:
        """The loss () of a batch that has been evaluated before."""
        if not self.is_known:
            check_targets(self.loss, logits_of(raw), targets)
        loss = self.raw(index, raw, targets)
        _check(loss, why_not_finite)
        one_number: Tensor = loss.reshape(())
        return one_number

    def raw(self, index: int, raw: Any, targets: Any) -> Any:
        """What the loss returns, or the sum of its terms, unchecked."""
        with explained(lambda error: why_loss_failed(index, raw, targets, error)):
            return self._called(index, raw, targets)[0]

    def adds_up(self, index: int, raw: Any, targets: Any) -> bool:
        """Whether the loss is a sum over the examples and not a mean; False if that cannot be seen."""
        loss, takes_logits = self._called(index, raw, targets)
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not bool(loss.isfinite().all()):
            return False
        seen = self._seen(functools.partial(self._call, index), raw, targets, takes_logits)
        if not any(t.dim() for t in seen.tensors):
            return False
        batch = OutputBatch(seen.loss_of, [t.detach() for t in seen.tensors], targets)
        return adds_up(*compared_with_gradients(batch))

    def _call(self, index: int, outputs: Any, targets: Any) -> Any:
        """The loss itself. Its state and random numbers are the same before every call, and are restored after it."""
        modules = self.loss.modules() if isinstance(self.loss, nn.Module) else ()
        with kept(self._held()), gradient_hooks_off(modules), self._same_draws(index):
            own = own_copies(targets)
            labels = own if isinstance(own, Several) else (own,)
            with passes(self._device):
                loss = self.loss(outputs, *labels)
            if isinstance(loss, Tensor):
                return loss
            if not self.summed and not torch.is_grad_enabled():
                with torch.enable_grad(), passes(self._device):
                    self._sum(self.loss(differentiable(outputs), *labels))
        return self._sum(loss)

    @contextlib.contextmanager
    def _same_draws(self, index: int) -> Iterator[None]:
        if self.draws is False:
            yield
            return
        with rng_kept(self._device):
            seed_generators(self._seed + APART + index, self._device)
            before = None if self.draws else generator_states(self._device)
            yield
            self.draws = before is None or not generator_states(self._device).is_same_as(before)

    def _sum(self, returned: Any) -> Any:
        """The sum of the terms that a loss returned, without those that have no gradient: they are for printing."""
        terms = terms_in(returned)
        if any(t.requires_grad for t in terms.values()):
            terms = {name: t for name, t in terms.items() if t.requires_grad}
            self.summed = list(terms)
        elif self.summed:
            terms = {name: t for name, t in terms.items() if name in self.summed}
        return sum(t.reshape(()) for t in terms.values()) if terms else returned

    def _held(self) -> Snapshot:
        code = self.loss.function if isinstance(self.loss, TrainingStep) else self.loss
        return Snapshot([code], known=self._model.modules())

    def _forget_if_changed(self) -> None:
        """Recognize the loss again after a change: with another class weight, say, it is another likelihood.

        In another precision too: what is measured in full precision depends on nothing that was seen in half of it.
        And where sums are no longer taken, one is refused.
        """
        held, precision = self._held(), precision_now()
        autocast = None if precision is None else precision.autocast
        now = Fingerprint([*held.values, autocast, sums_are_taken()], [*held.parameters, *held.tensors])
        if self._fingerprint is not None and not now.is_same_as(self._fingerprint):
            self.is_known, self.likelihood = False, None
            self._terms, self._names, self._recognized_on = TermCounter(), None, set()
        self._fingerprint = now

    def _called(self, index: int, raw: Any, targets: Any) -> tuple[Any, bool]:
        """The loss of one batch, and whether it takes the `.logits` of what a Hugging Face model returned."""
        try:
            return self._call(index, raw, targets), False
        except (TypeError, AttributeError) as error:
            if not isinstance(raw, Tensor):
                if (logits := logits_of(raw)) is not None:
                    return self._call(index, logits, targets), True
                hint = f"The model returns a {type(raw).__name__}; let the loss pick what it compares: {LAMBDA}"
            elif isinstance(targets, (tuple, dict)):
                hint = f"The targets are a {type(targets).__name__}; let the loss pick what it needs: {LAMBDA}"
            else:
                raise
            raise InvalidProblem(f"{why_loss_failed(index, raw, targets, error)} {hint}") from error

    def _seen(self, call: Loss, raw: Any, targets: Any, takes_logits: bool) -> SeenOutputs:
        """The tensors that the loss depends on; determined on the first batch, and again for one of another form."""
        if takes_logits:
            return SeenOutputs(["logits"], [raw.logits], lambda tensors, labels: call(tensors[0], labels))
        if isinstance(raw, Tensor):
            return seen_outputs(call, raw, targets)
        if self._names is None or not set(self._names) <= named_tensors(raw).keys():
            try:
                self._names = seen_outputs(call, raw, targets).names
            except Exception:  # a loss may not take a copy of the outputs
                self._names = []
        return picked(call, raw, self._names)

    def _recognize(self, index: int, loss_at: Loss, outputs: Tensor, targets: Any, loss: Tensor) -> None:
        """Find the likelihood on the first batch, and again if a later one contradicts it."""
        is_new = index not in self._recognized_on
        self._recognized_on.add(index)
        if not self.is_known:
            check_reduction(self.loss)
        elif self.likelihood is None or (
            explains(self.likelihood, loss, outputs, targets)
            and (not is_new or agrees(self.likelihood, loss_at, outputs, targets))
        ):
            return
        self.likelihood = recognize(self.loss, loss_at, outputs, targets)

    def _why_no_outputs(self, raw: Any, seen: SeenOutputs) -> str:
        if isinstance(self.loss, TrainingStep):
            return ONLY_A_LOSS
        if len(seen.names) > 1:
            names = ", ".join(f"outputs{name}" for name in seen.names)
            return f"the loss looks at several tensors of the model's output ({names})"
        return f"the model returns a {type(raw).__name__} and the loss looks at no tensor with examples in it"

    def _count(self, index: int, seen: SeenOutputs, raw: Any, pair: Any, loss: Tensor, is_one_batch: bool) -> Terms:
        if not any(t.dim() for t in seen.tensors):  # the model computed its loss itself
            inside = [] if isinstance(raw, Tensor) else [t for t in named_tensors(raw).values() if t.dim() > 1]
            if loss.requires_grad or index not in self._inside:  # without a graph, what it was with one
                tokens = next((n for t in inside if (n := of_logits(loss, t)) is not None), None)
                self._inside[index] = tokens or float(examples_in(inside[:1], pair[1], pair[0]))
            return Terms(self._inside[index], self._inside[index], ())
        batch = OutputBatch(seen.loss_of, [t.detach() for t in seen.tensors], pair[1])
        if self.likelihood is not None:
            is_sum = False
            if not self.is_known and not isinstance(self.likelihood, CrossEntropy):
                is_sum = is_taken_sum(*compared_with_gradients(batch))
            terms = None if is_sum else self._terms.of_likelihood(self.likelihood, batch, is_one_batch)
            if terms is not None:
                return terms
            self.likelihood = None
        return self._terms.of(index, batch, is_one_batch)


def _in_float32(seen: SeenOutputs, targets: Any) -> SeenOutputs:
    """The outputs in float32 if they are in half precision; as they are if the loss takes no others."""
    if not any(t.dtype in HALF for t in seen.tensors):
        return seen
    wide = [t.detach().float() if t.dtype in HALF else t.detach() for t in seen.tensors]
    try:
        with torch.no_grad():
            seen.loss_of(wide, targets)
    except Exception:  # as a loss with a class weight in half precision
        return seen
    return replace(seen, tensors=wide)


def why_loss_failed(index: int, outputs: Any, targets: Any, error: Exception) -> str:
    """One sentence: the error, and the outputs and targets that the loss was called with."""
    tensors = (f"{dtype_name(t.dtype)} of shape {tuple(t.shape)}{_range(t)}" for t in tensors_in([outputs, targets]))
    return f"the loss fails on batch {index}: {one_line(error)}. Outputs and targets: {'; '.join(tensors)}."


def _range(tensor: Tensor) -> str:
    is_index = not tensor.is_floating_point() and tensor.numel()
    return f" from {int(tensor.min())} to {int(tensor.max())}" if is_index else ""


@contextlib.contextmanager
def explained(why: Callable[[Exception], str]) -> Iterator[None]:
    """Turn torch's plain errors into `InvalidProblem`; out of memory, or the user's own exceptions, pass unchanged."""
    try:
        yield
    except PLAIN_ERRORS as error:
        if type(error) not in PLAIN_ERRORS:
            raise
        raise InvalidProblem(why(error)) from error


def _check(loss: Any, why_not_finite: Callable[[], str]) -> None:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        form = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"type {type(loss).__name__}"
        raise InvalidProblem(
            f'the loss must be one number, a tensor, but has {form}. Write reduction="mean", without .item().'
        )
    if not torch.isfinite(loss.detach()):
        raise NonFinite(why_not_finite())
    if torch.is_grad_enabled() and not loss.requires_grad:
        raise InvalidProblem(
            "the loss does not depend on the trainable parameters: is there a detach(), a no_grad() or an "
            "argmax in the model or the loss?"
        )
