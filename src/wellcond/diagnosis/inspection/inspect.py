"""The inspection of a problem: data, outputs, signals, gradients and weights, also where the loss is NaN."""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer

from wellcond.diagnosis.inspection.data import TensorFacts, facts_of
from wellcond.diagnosis.inspection.failures import Failures
from wellcond.diagnosis.inspection.in_training import reached_in_training, refused, targets_of_epoch
from wellcond.diagnosis.inspection.inspection import Inspection, NanState, TurnedView
from wellcond.diagnosis.inspection.outputs import OutputFacts, output_facts
from wellcond.diagnosis.inspection.passes import Forward, Passes
from wellcond.diagnosis.inspection.rounding import rounding
from wellcond.diagnosis.inspection.scaled_inputs import standardized
from wellcond.diagnosis.inspection.signals import Signals
from wellcond.diagnosis.inspection.weights import Weight, weights_of
from wellcond.errors import WellcondError
from wellcond.network.calling import logits_of, tensors_in
from wellcond.network.graph import normalizes_twice, turned_views
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.network.layers import has_channels_first
from wellcond.network.unregistered import Stray, strays_in, unregistered
from wellcond.problem.batches import examples_in, first_examples, share_examples
from wellcond.problem.loss.constant import constant_loss
from wellcond.problem.loss.loss_graph import LossGraph
from wellcond.problem.loss.output_batches import compared_examples
from wellcond.problem.problem import Problem
from wellcond.problem.training_step import TrainingStep

READ_EXAMPLES = 512
"""Stop reading batches after this many examples."""


@own_arithmetic()
def inspect(problem: Problem, optimizer: Optimizer | None = None) -> Inspection:
    """Inspect a problem for the price of at most four training steps. It works whatever the loss is, and never raises.

    Args:
        problem: What to inspect.
        optimizer: Optimizer that trains it, if there is one.

    Returns:
        What was seen; `failures` says what could not be checked.
    """
    failures = Failures()
    passes = Passes(problem, failures)
    signals = passes.signals
    batches: list[Any] = []
    elsewhere = _held_elsewhere(problem, optimizer)
    held_strays = frozenset(path for tensor, path in unregistered(problem.model) if tensor in elsewhere)
    inspection = Inspection(held_elsewhere=len(elsewhere), held_strays=held_strays)
    with failures.recording("all batches"), problem.measuring():
        for index, batch in _first_batches(problem):
            batches.append(batch)
            # the comparison with float32 takes the passes of the second batch
            is_enough = passes.are_enough(index) or inspection.rounding is not None
            forward = None if is_enough else passes.forward(index, batch)
            if forward is None:
                continue
            if index == 0:
                inspection = _with_outputs(inspection, problem, batch, forward, passes.sequences, failures)
            if forward.loss is not None:
                passes.backward(forward.loss)  # which frees the graph that the outputs were read from
            if index == 0:
                inspection = _with_other_passes(inspection, problem, batch, forward, passes, failures)
                compare = functools.partial(rounding, problem, batch, signals.dtypes)
                inspection = replace(
                    inspection, rounding=failures.attempt("what half precision changes", compare, None)
                )
    gradients = dict(zip(problem.params, passes.gradients, strict=False))
    inspection = replace(
        inspection,
        examples=passes.examples,
        batch_size=examples_in(batches[0]) if batches else 0,
        inputs=failures.attempt("the inputs", lambda: _data_facts(problem, batches, "inputs"), ()),
        targets=failures.attempt("the targets", lambda: _target_facts(problem, batches), ()),
        labels_of_step=failures.attempt("labels in the batch", lambda: _labels_of_step(problem, batches), ()),
        signals=failures.attempt("the signals of the layers", lambda: tuple(signals.signals()), ()),
        attention=tuple(signals.attention()),
        all_masked=tuple(signals.all_masked()),
        hides_all=tuple(signals.hides_all()),
        softmaxes_of_one=tuple(signals.softmaxes_of_one()),
        weights=failures.attempt("the weights", lambda: _weight_facts(problem, gradients, signals, optimizer), ()),
        loss=passes.loss,
        loss_shape=passes.loss_shape,
        loss_depends=passes.loss_depends,
        broadcasts=tuple(passes.compared.broadcasts),
        compared_sizes=tuple(passes.compared.sizes),
        log_arguments=tuple(passes.log_arguments),
        forward_error=passes.forward_error,
        failing_layer=passes.failing_layer,
        loss_error=passes.loss_error,
        gradient_error=passes.gradient_error,
        gradient_over_time=passes.gradient_over_time,
        nan_states=failures.attempt("the optimizer's state", lambda: tuple(_nan_states(problem, optimizer)), ()),
    )
    if inspection.loss is not None and inspection.is_finite and not inspection.forward_error:
        inspection = _with_training(inspection, problem, gradients, failures)
    return replace(inspection, failures=failures.recorded)


def _first_batches(problem: Problem) -> Iterator[tuple[int, Any]]:
    """Batches with their numbers, until there are enough examples."""
    examples = 0
    with contextlib.closing(problem.data()) as data:
        for index, batch in data:
            yield index, batch
            examples += examples_in(batch)
            if examples >= READ_EXAMPLES:
                return


def _with_outputs(
    inspection: Inspection,
    problem: Problem,
    batch: Any,
    forward: Forward,
    sequences: list[Tensor],
    failures: Failures,
) -> Inspection:
    """What the first batch's outputs are, while their graph is there."""
    raw, loss = forward
    if loss is not None:
        with failures.recording("the likelihood of the loss"), contextlib.suppress(WellcondError):
            problem.evaluate_outputs(0, batch, raw)  # raises if the loss is not a mean, or not finite: no likelihood
    ends = [t.grad_fn for t in (loss, *tensors_in(raw)) if t is not None]
    none: tuple[TurnedView, ...] = ()
    turned = failures.attempt("views that mix up dimensions", lambda: tuple(turned_views(ends)), none)
    floating = [t for t in tensors_in(raw) if t.is_floating_point() and t.dim()]
    return replace(
        inspection,
        turned=turned,
        normalizes_twice=failures.attempt("softmaxes of softmaxes", lambda: normalizes_twice(ends), False),
        strays=failures.attempt("tensors that are no parameters", lambda: _strays(problem, raw, sequences), ()),
        output=failures.attempt(
            "the outputs and the loss", lambda: _output_facts(problem, batch, forward, floating), None
        ),
        returned=len(floating),
        outputs=failures.attempt("the outputs", lambda: tuple(facts_of([floating], "outputs", False)), ()),
    )


def _of_first_examples(problem: Problem, batch: Any, forward: Forward) -> tuple[Any, Forward]:
    """A batch and its outputs; their first examples if they are very many numbers, as over a vocabulary.

    What is read of them is compared in a dozen copies, which would hold far more memory than a training step.
    """
    raw, loss = forward
    if loss is None or not isinstance(raw, Tensor) or not share_examples((raw, batch)):
        return batch, forward
    if (examples := compared_examples(raw)) == len(raw):
        return batch, forward
    few = first_examples((raw, batch), examples)
    with contextlib.suppress(Exception):  # a loss may count its examples
        loss_of_few = problem.raw_loss(few[0], few[1][1])
        return few[1], Forward(few[0], loss_of_few.mean())
    return batch, forward


def _output_facts(problem: Problem, batch: Any, forward: Forward, floating: list[Tensor]) -> OutputFacts | None:
    batch, forward = _of_first_examples(problem, batch, forward)
    raw, loss = forward
    floating = [raw] if isinstance(raw, Tensor) else floating
    outputs = logits_of(raw)
    if outputs is None:
        outputs = floating[0] if len(floating) == 1 else None
    if outputs is None or not outputs.dim():
        return None

    def loss_of(other: Tensor, targets: Any) -> Tensor:
        if not isinstance(raw, Tensor):
            raise TypeError("only a tensor can be exchanged for another")
        value: Tensor = problem.raw_loss(other, targets)
        return value

    targets, likelihood = batch[1], problem.likelihood
    is_divergence = isinstance(problem.loss, nn.KLDivLoss)
    graph = LossGraph.of(loss, outputs, targets, likelihood, is_divergence=is_divergence)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the loss has already warned about the model's own outputs
        constant = constant_loss(loss_of, likelihood, [outputs.detach()], [targets], graph.class_dim)
    value = None if loss is None else float(loss.detach())
    return output_facts(outputs, targets, value, graph, loss_of, constant)


def _strays(problem: Problem, raw: Any, sequences: list[Tensor]) -> tuple[Stray, ...]:
    """Trainable tensors in the graph of what the model returned. A step may use other networks, by design."""
    strays = strays_in(tensors_in(raw), problem.model, sequences)
    return tuple(s for s in strays if s.path) if isinstance(problem.loss, TrainingStep) else strays


def _with_other_passes(
    inspection: Inspection,
    problem: Problem,
    batch: Any,
    forward: Forward,
    passes: Passes,
    failures: Failures,
) -> Inspection:
    """What the first batch gives in halves, and with scaled inputs."""
    raw, loss = forward
    channels_first = has_channels_first(problem.model)
    return replace(
        inspection,
        is_summed=loss is not None
        and failures.attempt(
            "whether the loss is a sum over examples",
            lambda: problem.loss_adds_up(raw, batch[1]),
            False,
        ),
        standardized=failures.attempt(
            "what standardized inputs would change",
            lambda: standardized(problem, batch, passes.losses[0], passes.gradients, channels_first=channels_first),
            None,
        ),
    )


def _with_training(
    inspection: Inspection, problem: Problem, gradients: Mapping[str, Tensor | None], failures: Failures
) -> Inspection:
    """What copies in training mode show."""
    reached: frozenset[str] = frozenset()
    if not inspection.loss_depends or any(gradient is None for gradient in gradients.values()):
        reached = failures.attempt("the loss in training mode", lambda: reached_in_training(problem), reached)
    failing = failures.attempt("the rest of the batches", lambda: refused(problem), None)
    return replace(inspection, reached_in_training=reached, refused=failing)


def _target_facts(problem: Problem, batches: list[Any]) -> tuple[TensorFacts, ...]:
    """Facts about the targets. If all that were read are the same, others may come later in the epoch."""
    facts = _data_facts(problem, batches, "targets")
    if len(facts) != 1 or not facts[0].is_constant:
        return facts
    targets, is_whole = targets_of_epoch(problem)
    if len(targets) <= len(batches):  # a few batches that were passed by hand are no epoch
        return facts
    every = facts_of(targets, "targets", has_channels_first(problem.model))
    return tuple(replace(fact, is_of_epoch=is_whole) for fact in every)


def _labels_of_step(problem: Problem, batches: list[Any]) -> tuple[TensorFacts, ...]:
    if not isinstance(problem.loss, TrainingStep) or not batches:
        return ()
    facts = facts_of([batch for batch, _ in batches], "batch", has_channels_first(problem.model))
    return tuple(fact for fact in facts if fact.is_index and math.prod(fact.shape[1:]) == 1)


def _data_facts(problem: Problem, batches: list[Any], name: Literal["inputs", "targets"]) -> tuple[TensorFacts, ...]:
    if not batches:
        return ()
    parts = [problem.model_inputs(i, batch) if name == "inputs" else batch[1] for i, batch in enumerate(batches)]
    return tuple(facts_of(parts, name, has_channels_first(problem.model), whole=batches))


def _weight_facts(
    problem: Problem, gradients: Mapping[str, Tensor | None], signals: Signals, optimizer: Optimizer | None
) -> tuple[Weight, ...]:
    return tuple(weights_of(problem.model, gradients, signals.started, signals.without_graph, optimizer))


def _held_elsewhere(problem: Problem, optimizer: Optimizer | None) -> set[int]:
    """Ids of parameters in the optimizer that do not belong to the model."""
    groups = [] if optimizer is None else optimizer.param_groups
    return {id(p) for group in groups for p in group["params"]}.difference(map(id, problem.model.parameters()))


def _nan_states(problem: Problem, optimizer: Optimizer | None) -> Iterator[NanState]:
    """Buffers and optimizer states with NaN; an infinity in a buffer is an ordinary mask."""
    names = {id(p): name for name, p in problem.model.named_parameters()}
    states = [(f"buffer {name!r}", name, buffer) for name, buffer in problem.model.named_buffers()]
    for p, of_parameter in ({} if optimizer is None else optimizer.state).items():
        name = names.get(id(p), "")
        states += [(f"the optimizer's {key!r} of {name!r}", name, state) for key, state in of_parameter.items()]
    for what, name, t in states:
        if isinstance(t, Tensor) and t.is_floating_point() and (values := int(t.isnan().sum())):
            yield NanState(what, name.rpartition(".")[0], values)
