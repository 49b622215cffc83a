"""Numbers, sentences and tables as plain text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

WHOLE_MODEL = "(model)"
"""Name shown for a layer without a name: the model itself."""


def number(value: float) -> str:
    """A number to three digits; NaN and infinity as words or signs.

    Example:
        >>> number(1234.5), number(math.inf)
        ('1.23e+03', '∞')
    """
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:.3g}"


def sentence(text: str) -> str:
    """With a capital letter, and a full stop unless it is a question.

    Example:
        >>> sentence("look at the labels"), sentence("are they shuffled?")
        ('Look at the labels.', 'Are they shuffled?')
    """
    text = text.strip().rstrip(".")
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('?') else '.'}"


def duration(seconds: float) -> str:
    """A time to two or three digits.

    Example:
        >>> duration(0.0042), duration(1.234), duration(179.8)
        ('4.2 ms', '1.2 s', '3 min 0 s')
    """
    if seconds < 0.1:
        return f"{1000 * seconds:.2g} ms"
    if seconds < 10:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{seconds:.0f} s" if seconds < 120 else f"{minutes} min {rest} s"


def text_table(header: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """Columns aligned for a fixed-width font: the first to the left, the others to the right.

    Example:
        >>> print(text_table(["layer", "units"], [["fc1", "64"]]))
        layer  units
        fc1       64
    """
    lines = [list(header), *(list(line) for line in body)]
    first, *others = (max(map(len, column)) for column in zip(*lines, strict=True))
    return "\n".join(
        "  ".join([line[0].ljust(first), *(cell.rjust(w) for cell, w in zip(line[1:], others, strict=True))])
        for line in lines
    )


def named(layer: str) -> str:
    """A layer's name, after the word "layer" if it is only a number, as in a `Sequential`.

    Example:
        >>> named("3"), named("fc3")
        ('layer 3', 'fc3')
    """
    return f"layer {layer}" if layer.isdecimal() else layer


def shortened(name: str, width: int = 24) -> str:
    """The end of a long layer name, which distinguishes it from its neighbors.

    Example:
        >>> shortened("encoder.layers.11.attention.query", 20)
        '….11.attention.query'
    """
    return name if len(name) <= width else "…" + name[len(name) - width + 1 :]


def grouped(reasons: dict[str, str]) -> dict[str, str]:
    """The names that share a reason, by reason; a long list is shown by its ends.

    Example:
        >>> grouped({"bn1": "has none", "bn2": "has none", "bn3": "has none", "bn4": "has none"})
        {'has none': 'bn1 … bn4 (4)'}
    """
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name or WHOLE_MODEL)
    return {
        reason: ", ".join(each) if len(each) < 4 else f"{each[0]} … {each[-1]} ({len(each)})"
        for reason, each in names.items()
    }
