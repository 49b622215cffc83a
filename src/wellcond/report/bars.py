"""Bars made of characters: blocks that stand in a line of text, and bars that lie in a column of a table."""

from __future__ import annotations

import math

BLOCKS = "▁▂▃▄▅▆▇█"
MOST_BLOCKS = 48
"""Characters of a sparkline."""
EIGHTHS = " ▏▎▍▌▋▊▉"


def block(share: float) -> str:
    """One character that is filled up to a share of its height, from 0 to 1; the lowest is an eighth.

    Example:
        >>> "".join(map(block, (0.0, 0.25, 0.5, 1.0)))
        '▁▂▄█'
    """
    return BLOCKS[min(max(math.ceil(share * len(BLOCKS)) - 1, 0), len(BLOCKS) - 1)]


def bar(share: float, width: int) -> str:
    """A bar that fills a share of some characters, in steps of an eighth; the shortest is one step.

    Example:
        >>> bar(0.0, 4), bar(0.5, 4), bar(1.0, 4)
        ('▏', '██▏', '████')
    """
    filled = 1 + round(share * (8 * width - 1))
    return "█" * (filled // 8) + EIGHTHS[filled % 8].strip()
