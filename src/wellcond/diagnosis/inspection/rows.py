"""The numbers of an inspection as rows: of the data, the outputs, the layers, the parameters and the attention."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from torch import Tensor

from wellcond.diagnosis.inspection.attention import Attention
from wellcond.diagnosis.inspection.data import TensorFacts
from wellcond.diagnosis.inspection.inspect import Inspection
from wellcond.diagnosis.inspection.signals import Signal
from wellcond.diagnosis.inspection.weights import Weight
from wellcond.results import Row
from wellcond.results import quantities as q
from wellcond.results.text import WHOLE_MODEL

T = TypeVar("T")

INPUT = "input"
"""Name of a nonlinearity that comes before all layers."""

Numbers = Mapping[str, float | None]
"""By quantity; None for what does not apply."""


def inspection_rows(
    inspection: Inspection, dead_units: Callable[[Signal], Tensor], step: int | None = None
) -> Iterator[Row]:
    """Rows of the network, then of its layers, parameters and data tensors, by the names of these.

    Args:
        inspection: What was seen.
        dead_units: Which ReLUs of a signal are dead.
        step: The training step it was measured at.
    """
    yield from _rows(step, "", _of_network(inspection))
    for name, signal in _numbered(inspection.signals, [(_name_of(s), s.kind) for s in inspection.signals]):
        yield from _rows(step, name, _of_signal(signal, dead_units))
    for name, attention in _numbered(inspection.attention, [(a.name or WHOLE_MODEL, "") for a in inspection.attention]):
        yield from _rows(step, name, _of_attention(attention))
    for weight in inspection.weights:
        yield from _rows(step, weight.name, _of_parameter(weight))
    for state in inspection.nan_states:
        yield from _rows(step, state.name, {q.NOT_FINITE_VALUES: state.values})
    for fact in (*inspection.inputs, *inspection.targets, *inspection.outputs):
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
