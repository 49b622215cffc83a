"""`Scale`: how large a run of an experiment is."""

from __future__ import annotations

from typing import Literal, get_args

Scale = Literal["smoke", "laptop", "gpu", "stand-in", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
"""Seconds on embedded data; minutes on two cores; minutes on one GPU, with fewer epochs; other data in place of data
that cannot be fetched freely; the source's own settings."""
