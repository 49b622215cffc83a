"""Headlines of the rows: extremes, and at which layers they are. They judge nothing; findings do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from wellcond.report.table import MATRICES, Pivot
from wellcond.results import Row, number
from wellcond.results.quantities import (
    CONVOLUTIONS,
    DYING,
    EXAMPLES,
    FINAL_LOSS,
    FULL,
    HESSIAN,
    LOSS,
    LR,
    MAX_LR,
    MOMENTUM,
    STEPS,
    TEST_ACCURACY,
    TRAINED_LR,
    TRAINED_MAX_LR,
    UNITS,
)
from wellcond.results.text import named


class Fact(NamedTuple):
    """One headline: the answers of all networks to one question.

    Attributes:
        title: Question.
        meaning: How to read the answers.
        texts: Answer by the network's name; empty if it was not measured.
    """

    title: str
    meaning: str
    texts: dict[str, str]


def facts(series: Mapping[str, Iterable[Row]]) -> list[Fact]:
    """The headlines of networks side by side; a question that none of them answers is left out.

    Example:
        >>> size = MATRICES["Σx"].lambda_max
        >>> facts({"net": [Row(None, "a", size, 8.0, ""), Row(None, "b", size, 0.5, "")]})[0].texts
        {'net': 'λmax of Σx from 8 at a to 0.5 at b'}
    """
    pivots = {name: Pivot.of(rows) for name, rows in series.items()}
    answered = [
        Fact(title, meaning, {name: answer(pivot) for name, pivot in pivots.items()})
        for title, meaning, answer in _QUESTIONS
    ]
    return [fact for fact in answered if any(fact.texts.values())]


def fold(factor: float) -> str:
    """A ratio to two digits.

    Example:
        >>> fold(2.34), fold(123_456), fold(3.1e9)
        ('2.3', '120,000', '3.1e9')
    """
    if factor < 100:
        return f"{factor:.2g}"
    digits, exponent = f"{factor:.1e}".split("e")
    if int(exponent) < 6:
        return f"{float(digits) * 10 ** int(exponent):,.0f}"
    return f"{digits}e{int(exponent)}"


def _loss(pivot: Pivot) -> str:
    loss, examples = pivot.network.get(LOSS), pivot.network.get(EXAMPLES)
    if loss is None:
        return ""
    return f"{loss:.4g}" if examples is None else f"{loss:.4g} on {examples:,.0f} examples"


def _range(pivot: Pivot, matrix: str, forward: bool) -> str:
    """The extremes of λ_max, in the direction in which the signal or the gradient travels."""
    column = pivot.column(MATRICES[matrix].lambda_max)
    if not column:
        return ""
    layers = list(column) if forward else list(reversed(column))
    low, high = min(layers, key=column.__getitem__), max(layers, key=column.__getitem__)
    start, end = sorted((low, high), key=layers.index)
    if column[low] == column[high]:
        where = named(low) if len(layers) == 1 else f"all {len(layers)} layers"
        return f"λmax of {matrix} is {number(column[low])} at {where}"
    ends = f"from {number(column[start])} at {named(start)} to {number(column[end])} at {named(end)}"
    # an averaging head leaves each of P positions 1/P of the gradient, which is as it should be
    positions = "" if forward or CONVOLUTIONS not in pivot.network else " (convolutions: per position)"
    return f"λmax of {matrix} {ends}{positions}"


def _worst_kappa(pivot: Pivot, matrix: str) -> str:
    column = pivot.column(MATRICES[matrix].kappa[0.5])
    if not column:
        return ""
    layer = max(column, key=column.__getitem__)
    infinite = sum(value == float("inf") for value in column.values())
    also = f", and at {infinite - 1} more" if infinite > 1 else ""
    return f"κ50 of {matrix} up to {'∞' if infinite else fold(column[layer])}, at {named(layer)}{also}"


def _units(pivot: Pivot) -> str:
    sizes = pivot.column(UNITS)
    if not sizes:
        return ""
    total = f"{sum(sizes.values()):,.0f}"
    counted = [(word, pivot.column(state)) for word, state in (("dead", DYING), ("always on", FULL))]
    if not any(sum(counts.values()) for _, counts in counted):
        return f"none of {total} dead or always on"
    return ", ".join(f"{sum(counts.values()):,.0f} {word}" for word, counts in counted) + f", of {total}"


def _sharpness(pivot: Pivot) -> str:
    value, error = pivot.network.get(HESSIAN.lambda_max), pivot.network.get(HESSIAN.lambda_max_error)
    return "" if value is None or error is None else f"λmax of the Hessian is {number(value)} ± {error:.1g}"


def _max_lr(pivot: Pivot) -> str:
    network = pivot.network
    parts = []
    if network.get(MAX_LR) == float("inf"):
        parts.append("no limit: the loss does not curve upwards here")
    elif MAX_LR in network:
        momentum = f" with momentum {number(network[MOMENTUM])}" if network.get(MOMENTUM) else " without momentum"
        parts.append(f"{number(network[MAX_LR])}{momentum if MOMENTUM in network else ''}")
    if TRAINED_MAX_LR in network:
        parts.append(f"{number(network[TRAINED_MAX_LR])} after the training below")
    if LR in network and parts:  # a rate with nothing to compare it with is no answer
        parts.append(f"the optimizer is at {number(network[LR])}")
    return "; ".join(parts)


def _training(pivot: Pivot) -> str:
    loss, steps, lr, accuracy = (pivot.network.get(q) for q in (FINAL_LOSS, STEPS, TRAINED_LR, TEST_ACCURACY))
    if loss is None:
        return ""
    text = f"loss {loss:.3g} after {steps:.0f} steps at lr {lr:g}"
    return text if accuracy is None else f"{text}; {accuracy:.0f} % of unseen examples right"


_QUESTIONS: tuple[tuple[str, str, Callable[[Pivot], str]], ...] = (
    ("loss", "the mean over the examples measured", _loss),
    (
        "signal, forward",
        "how large the layers' inputs are, from the first to the last",
        lambda pivot: _range(pivot, "Σx", forward=True),
    ),
    (
        "gradient, backward",
        "how large the gradients are, from the last layer to the first",
        lambda pivot: _range(pivot, "Σ∇h", forward=False),
    ),
    (
        "most uneven input",
        "its strongest direction over its median one; 1 is even",
        lambda pivot: _worst_kappa(pivot, "Σx"),
    ),
    (
        "ReLUs",
        "dead: zero on every example, so that they pass no gradient; always on: positive on every one, so linear",
        _units,
    ),
    ("sharpest direction", "the largest curvature of the loss", _sharpness),
    (
        "largest stable lr",
        "a longer step overshoots the sharpest direction of the loss at these weights; many networks train well above "
        "it, at weights with another limit",
        _max_lr,
    ),
    ("training", "where it got, at the best of the learning rates tried", _training),
)
