"""What pictures are drawn from: something for every network, by the network's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wellcond.results import Row


def check_series(series: Any, example: str, holds: type = Row, alone: type | tuple[()] = ()) -> None:
    """Raise `ValueError`, with what to pass instead, unless every name has some rows.

    holds: what there is in place of rows. alone: what may stand for them all.
    """
    if not isinstance(series, Mapping) or not series:
        found = "an empty mapping" if isinstance(series, Mapping) else f"a {type(series).__name__}"
        raise ValueError(f"{found} cannot be drawn; pass {example}, by the names of networks.")
    for name, held in series.items():
        if isinstance(held, alone):
            continue
        items = list(held.values()) if isinstance(held, Mapping) else held
        if not isinstance(items, Sequence) or not all(isinstance(item, holds) for item in items):
            raise ValueError(f"{name!r} is a {type(held).__name__} of another kind; pass {example}.")
        if not items:
            raise ValueError(f"{name!r} is empty; pass {example}.")
