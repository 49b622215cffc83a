"""What the rows say, in numbers and names of layers: extremes and where they are. To judge them is for findings."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from wellcond.diagnosis.finding import Finding
from wellcond.report.runs import ShortRuns
from wellcond.report.table import MATRICES, READING, Pivot, layer_text
from wellcond.report.words import clipped, findings_text
from wellcond.results import Cost, Row, number
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
from wellcond.results.text import duration, grouped, named

WIDTH = 80
"""Characters per line of plain text; the table of layers is as wide as its numbers."""
INDENT = 22


class Priced(Protocol):
    """One part, with what it was to cost and what it took. A `wellcond.diagnosis.parts.Part` is one."""

    @property
    def name(self) -> str: ...
    @property
    def estimate(self) -> float: ...
    @property
    def cost(self) -> Cost: ...
    @property
    def seconds(self) -> float: ...


class Subject(Protocol):
    """What a report describes: the rows of one network, and what numbers cannot say. A `Diagnosis` is one."""

    def verdict(self) -> str: ...
    @property
    def findings(self) -> Sequence[Finding]: ...
    def rows(self) -> list[Row]: ...
    @property
    def modules(self) -> Mapping[str, str]: ...
    @property
    def trial(self) -> ShortRuns | None: ...
    @property
    def not_covered(self) -> dict[str, str]: ...
    @property
    def notes(self) -> dict[str, str]: ...
    @property
    def failed(self) -> dict[str, str]: ...
    @property
    def left_out(self) -> dict[str, str]: ...
    @property
    def parts(self) -> Sequence[Priced]: ...
    @property
    def about(self) -> dict[str, str]: ...


class Fact(NamedTuple):
    """One headline: the answers of all networks to one question.

    Attributes:
        title: The question.
        meaning: How to read the answers.
        texts: The answer by the network's name; empty where it has none.
    """

    title: str
    meaning: str
    texts: dict[str, str]


def facts(series: Mapping[str, Iterable[Row]]) -> list[Fact]:
    """The headlines of networks side by side; what was measured of none of them is left out.

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


def plain_text(subject: Subject) -> str:
    """The verdict, the findings, and the numbers."""
    parts = [textwrap.fill(clipped(subject.verdict()), WIDTH), findings_text(subject.findings), numbers_text(subject)]
    return "\n\n".join(part for part in parts if part)


def numbers_text(subject: Subject) -> str:
    """The table of layers, headlines, what is missing from them, and what they took."""
    rows = subject.rows()
    missing = [_entry("note", f"{names}: {what}") for what, names in grouped(subject.notes).items()]
    missing += [_entry("not covered", f"{names}: {why}") for why, names in grouped(subject.not_covered).items()]
    missing += [_entry("failed", f"{part}: {why}") for why, part in grouped(subject.failed).items()]
    missing += [_entry("left out", f"{part}: {why}") for why, part in grouped(subject.left_out).items()]
    missing += [_entry("took", text) for text in [took(subject.parts)] if text]
    headlines = [_entry(title, texts[""]) for title, _, texts in facts({"": rows})]
    table = layer_text(rows)
    parts = [f"{table}\n{textwrap.fill(READING, WIDTH)}" if table else "", "\n".join(headlines), "\n".join(missing)]
    return "\n\n".join(part for part in parts if part)


def took(parts: Sequence[Priced]) -> str:
    """What all parts took together; empty where there are none.

    Example:
        >>> from types import SimpleNamespace
        >>> took([SimpleNamespace(name="gradients", cost=Cost(3, 3), estimate=5.0, seconds=0.012)])
        '3 u and 12 ms, where u is one forward and backward pass; planned for 5 u at most'
    """
    done = [part for part in parts if part.seconds]
    if not done:
        return ""
    u, estimate, seconds = (sum(each) for each in zip(*((p.cost.u, p.estimate, p.seconds) for p in done), strict=True))
    spent = f"{number(u)} u and {duration(seconds)}, where u is one forward and backward pass"
    return f"{spent}; planned for {number(estimate)} u at most"


def fold(factor: float) -> str:
    """A ratio to two digits, as it is read aloud.

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


def _entry(title: str, text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=f"{title:<{INDENT}}", subsequent_indent=" " * INDENT)


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
    # an averaging head leaves each of P positions 1/P of the gradient, which is no illness
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
        momentum = f"with momentum {number(network[MOMENTUM])}" if network.get(MOMENTUM) else "without momentum"
        parts.append(f"{number(network[MAX_LR])} {momentum}")
    if TRAINED_MAX_LR in network:
        parts.append(f"{number(network[TRAINED_MAX_LR])} after the training below")
    if LR in network:
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
