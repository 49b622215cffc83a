"""`Inspection`: what one or two passes show of the data, the outputs, the layers and the parameters; and its rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from torch import Tensor

from wellcond.diagnosis.inspection.attention import Attention, OfOne
from wellcond.diagnosis.inspection.comparisons import Broadcast, Sizes
from wellcond.diagnosis.inspection.data import TensorFacts
from wellcond.diagnosis.inspection.failures import InspectionFailure
from wellcond.diagnosis.inspection.in_training import Refused
from wellcond.diagnosis.inspection.log_probabilities import LogArgument
from wellcond.diagnosis.inspection.outputs import OutputFacts
from wellcond.diagnosis.inspection.rounding import Rounding
from wellcond.diagnosis.inspection.scaled_inputs import Standardized
from wellcond.diagnosis.inspection.signal import Signal
from wellcond.diagnosis.inspection.weights import Weight
from wellcond.network.unregistered import Stray
from wellcond.results import Row
from wellcond.results import quantities as q
from wellcond.results.text import WHOLE_MODEL

T = TypeVar("T")

OUTPUTS = ("all batches", "the outputs", "the outputs and the loss")
"""Parts of an inspection without which the outputs are not known."""
INPUT = "input"
"""Name of a nonlinearity that comes before all layers."""

Numbers = Mapping[str, float | None]
"""By quantity; None for what does not apply."""


class NanState(NamedTuple):
    """A tensor with NaN that is no parameter: running statistics, or what the optimizer remembers.

    Attributes:
        name: What it is, in words.
        layer: Module that it belongs to.
        values: Number of values that are NaN.
    """

    name: str
    layer: str
    values: int


TurnedView = tuple[tuple[int, ...], tuple[int, ...]]
"""Shape before and after a view that names dimensions in another order without moving the numbers."""


@dataclass(frozen=True)
class Inspection:
    """What one or two passes show. A field is None or empty if there is nothing to see or `failures` says why.

    Attributes:
        examples: Number of examples passed through the model; `inputs` and `targets` may describe more.
        batch_size: Examples in the first batch.
        inputs: Facts about every tensor of the inputs.
        targets: Facts about every tensor of the targets.
        labels_of_step: Facts about whole numbers, one for each example, in the batch of a training step that is not
            taken apart.
        output: Outputs of the first batch compared with its targets and the loss.
        signals: Signal of every module and nonlinearity, in the order of the forward pass.
        attention: Softmaxes and attention kernels inside the network.
        hides_all: Attention whose mask shows only values that are all the same, and hides what differs.
        all_masked: Attention in which rows have all their entries masked, and the share of these rows.
        softmaxes_of_one: Softmaxes over a dimension of size one.
        weights: Facts about every parameter.
        loss: Mean loss over batches; NaN if any batch's is.
        loss_shape: Shape of the first batch's loss: () or (1,), unless it is no single number; None without a loss.
        loss_depends: Whether the loss depends on any trainable parameter; None if no loss was computed.
        reached_in_training: Names of the parameters that it depends on in training mode; empty if as measured it
            depends on all.
        broadcasts: Comparisons in a training step of N numbers with N others, each with all.
        compared_sizes: How large predictions and targets are that a training step compares.
        log_arguments: What torch's losses get where they take logarithms of probabilities.
        refused: A later batch on which training fails, in the model's own modes.
        forward_error: Why the model could not be called, if it could not.
        failing_layer: Name of the layer that raised then; "" if it is the model itself.
        loss_error: Why the loss could not be computed, if it could not.
        gradient_error: Why there are no gradients, if the backward pass failed.
        gradient_over_time: (steps,), ‖∂ℓ/∂x_t‖ of sequences that recurrent layers or cells read; None for others.
        standardized: What standardized inputs would change; None where the inputs are of ordinary scale.
        outputs: Facts about every floating-point tensor that the model returns for the first batch.
        returned: Number of these tensors.
        is_summed: Whether the loss of a batch is the sum of those of its halves, and not their mean.
        turned: Views that name dimensions in another order without moving the numbers.
        normalizes_twice: Whether a softmax is taken of what a softmax has made, on the way to the loss.
        strays: Trainable tensors that the outputs depend on and that are not among the model's parameters.
        held_strays: Paths of those unregistered tensors that the optimizer holds.
        held_elsewhere: Number of parameters in the optimizer that do not belong to the model.
        rounding: What half precision changes; None if no layer computes in it.
        nan_states: Buffers of the model and states of the optimizer that hold NaN.
        failures: What could not be checked, and why.
    """

    examples: int = 0
    batch_size: int = 0
    inputs: tuple[TensorFacts, ...] = ()
    targets: tuple[TensorFacts, ...] = ()
    labels_of_step: tuple[TensorFacts, ...] = ()
    output: OutputFacts | None = None
    signals: tuple[Signal, ...] = ()
    attention: tuple[Attention, ...] = ()
    all_masked: tuple[tuple[str, float], ...] = ()
    hides_all: tuple[str, ...] = ()
    softmaxes_of_one: tuple[OfOne, ...] = ()
    weights: tuple[Weight, ...] = ()
    loss: float | None = None
    loss_shape: tuple[int, ...] | None = None
    loss_depends: bool | None = None
    reached_in_training: frozenset[str] = frozenset()
    broadcasts: tuple[Broadcast, ...] = ()
    compared_sizes: tuple[Sizes, ...] = ()
    log_arguments: tuple[LogArgument, ...] = ()
    refused: Refused | None = None
    forward_error: str = ""
    failing_layer: str = ""
    loss_error: str = ""
    gradient_error: str = ""
    gradient_over_time: Tensor | None = None
    standardized: Standardized | None = None
    outputs: tuple[TensorFacts, ...] = ()
    returned: int = 1
    is_summed: bool = False
    turned: tuple[TurnedView, ...] = ()
    normalizes_twice: bool = False
    strays: tuple[Stray, ...] = ()
    held_strays: frozenset[str] = frozenset()
    held_elsewhere: int = 0
    rounding: Rounding | None = None
    nan_states: tuple[NanState, ...] = ()
    failures: tuple[InspectionFailure, ...] = ()

    @property
    def is_finite(self) -> bool:
        """Whether there is no NaN or infinity in the data, the weights, the layers' outputs, the loss or a gradient."""
        is_loss_finite = self.loss is None or math.isfinite(self.loss)
        counts = [
            *(fact.not_finite for fact in (*self.inputs, *self.targets)),
            *(weight.not_finite or weight.gradient_not_finite for weight in self.weights),
            *(signal.not_finite for signal in self.signals),
            *(state.values for state in self.nan_states),
        ]
        return is_loss_finite and not any(counts)

    @property
    def can_step(self) -> bool:
        """Whether a training step can be taken: there is one number, with a gradient."""
        return self.loss_shape in ((), (1,)) and bool(self.loss_depends) and not self.gradient_error

    def weighted(self) -> list[Signal]:
        """Signals of the layers with weights, in the order of the forward pass."""
        return [signal for signal in self.signals if signal.is_weighted]

    def rows(self, dead_units: Callable[[Signal], Tensor], step: int | None = None) -> Iterator[Row]:
        """The numbers of the network first, then those of its signals, attention, parameters and data tensors.

        Args:
            dead_units: (units,), whether each ReLU of a signal is dead.
            step: The training step they were measured at.
        """
        yield from _rows(step, "", _of_network(self))
        for name, signal in _numbered(self.signals, [(_name_of(s), s.kind) for s in self.signals]):
            yield from _rows(step, name, _of_signal(signal, dead_units))
        for name, attention in _numbered(self.attention, [(a.name or WHOLE_MODEL, "") for a in self.attention]):
            yield from _rows(step, name, _of_attention(attention))
        for weight in self.weights:
            yield from _rows(step, weight.name, _of_parameter(weight))
        rounded = () if self.rounding is None else self.rounding.layers
        for name, layer in _numbered(rounded, [(each.layer or WHOLE_MODEL, "") for each in rounded]):
            yield from _rows(step, name, {q.ROUNDING_ERROR: layer.after if math.isfinite(layer.after) else None})
        for state in self.nan_states:
            yield from _rows(step, state.name, {q.NOT_FINITE_VALUES: state.values})
        for fact in (*self.inputs, *self.targets, *self.outputs):
            yield from _rows(step, fact.name, _of_data(fact))


def _rows(step: int | None, layer: str, numbers: Numbers) -> Iterator[Row]:
    for quantity, value in numbers.items():
        if value is not None:
            yield Row(step, layer, quantity, float(value), "")


def _numbered(items: Sequence[T], keys: Sequence[tuple[str, str]]) -> Iterator[tuple[str, T]]:
    """Each item with its name; a second one of the same name and kind is `name[1]`, as in `neurons`."""
    counts: Counter[tuple[str, str]] = Counter()
    for item, key in zip(items, keys, strict=True):
        yield f"{key[0]}[{counts[key]}]" if counts[key] else key[0], item
        counts[key] += 1


def _name_of(signal: Signal) -> str:
    return signal.name or (INPUT if signal.is_nonlinearity else WHOLE_MODEL)


def _of_network(inspection: Inspection) -> Numbers:
    output, standardized, over_time = inspection.output, inspection.standardized, inspection.gradient_over_time
    numbers: dict[str, float | None] = {
        q.BATCH_SIZE: inspection.batch_size or None,
        q.INSPECTED_EXAMPLES: inspection.examples,
        q.INSPECTED_LOSS: inspection.loss,
        q.EARLY_GRADIENT_SHARE: None if over_time is None else float(over_time[0] / over_time.max().clamp_min(1e-300)),
    }
    if output is not None:
        numbers |= {
            q.CONSTANT_LOSS: output.best_constant,
            q.UNINFORMED_LOSS: output.uninformed_loss,
            q.UNIFORM_LOSS: output.uniform_loss,
            q.LOSS_AT_TARGETS: output.loss_at_targets,
            q.PERFECT_LOSS: output.perfect_loss,
            q.OUTPUT_VARIATION: output.variation,
            q.OUTPUT_SATURATED_SHARE: output.saturated,
            q.OUTPUT_ACCURACY: output.accuracy,
            q.CLAMPED_SHARE: output.clamped,
            q.TARGETS_OUTSIDE_SHARE: output.share_outside,
        }
    if inspection.rounding is not None:
        numbers |= {
            q.GRADIENT_ROUNDING_ERROR: inspection.rounding.gradient_error,
            q.GRADIENT_UNDERFLOW: inspection.rounding.lost,
        }
    if standardized is not None:
        numbers |= {
            q.STANDARDIZED_LOSS: standardized.loss,
            q.STANDARDIZED_GRADIENT_NORM: standardized.gradient,
            q.UNSTANDARDIZED_GRADIENT_NORM: standardized.gradient_as_is,
        }
    return numbers


def _of_signal(signal: Signal, dead_units: Callable[[Signal], Tensor]) -> Numbers:
    if signal.is_nonlinearity:
        return {
            q.DEAD_SHARE: _share(dead_units(signal)),
            q.FULL_SHARE: _share(signal.full),
            q.SATURATED_SHARE: signal.saturated,
        }
    numbers: dict[str, float | None] = {q.NOT_FINITE_SHARE: signal.not_finite or None, q.VARIATION: signal.variation}
    if signal.is_weighted:
        numbers |= {
            q.SIGNAL_RMS: signal.rms,
            q.SIGNAL_GRADIENT: signal.gradient,
            q.SENSITIVITY: signal.sensitivity,
        }
    return numbers


def _of_attention(attention: Attention) -> Numbers:
    return {
        q.ATTENTION_ENTROPY: attention.entropy,
        q.ATTENTION_LARGEST: attention.largest,
        q.ATTENTION_SATURATED_SHARE: attention.saturated,
        q.ATTENTION_LOGIT_STD: attention.logit_std,
    }


def _of_parameter(weight: Weight) -> Numbers:
    return {
        q.PARAMETER_RMS: weight.rms,
        q.PARAMETER_GAIN: weight.gain,
        q.PARAMETER_GRADIENT_RMS: weight.gradient,
        q.PARAMETER_OUTLIER: weight.outlier,
        q.DISTINCT_UNITS: weight.distinct,
        q.PARAMETER_LR: weight.lr,
        q.PARAMETER_WEIGHT_DECAY: weight.weight_decay,
        q.NOT_FINITE_VALUES: weight.not_finite or None,
        q.NOT_FINITE_GRADIENTS: weight.gradient_not_finite or None,
    }


def _of_data(fact: TensorFacts) -> Numbers:
    numbers: dict[str, float | None] = {
        q.DATA_RMS: fact.rms,
        q.DATA_MEAN: fact.mean,
        q.DATA_STD: fact.std,
        q.DATA_LOW: fact.low,
        q.DATA_HIGH: fact.high,
        q.NOT_FINITE_VALUES: fact.not_finite or None,
        q.BATCH_PURITY: None if math.isnan(fact.purity) else fact.purity,
        q.BATCH_GROUPING: None if math.isnan(fact.grouping) else fact.grouping,
    }
    if fact.features:
        numbers |= {
            q.LARGEST_FEATURE_RMS: float(fact.feature_rms.max()),
            q.MEDIAN_FEATURE_RMS: float(fact.feature_rms.median()),
            q.CONSTANT_FEATURES: len(fact.constant),
        }
    return numbers


def _share(units: Tensor) -> float | None:
    return float(units.double().mean()) if len(units) else None
