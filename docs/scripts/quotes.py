"""Numbers that written text quotes from the reproduction book: each stands in a link to the run that it is from.

`smaller in [1206 of 1216](huang2020.md#huang2020-fig6-paper)` quotes the run of figure 6 at the scale `paper`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

LINK = re.compile(r"\[([^\]]+)\]\([\w./]*#([\w-]+)\)")
NUMBER = re.compile(r"(?<![\w.^-])(?<!eq\. )(?<!figure )(?:10\^)?\d+(?:[.,]\d+)*(?:e[+-]\d+)?(?: of \d+)?(?: ?%)?")
"""The numbers of equations and figures are names."""
ANCHOR = re.compile(r'<a id="([\w-]+)"></a>')


def numbers(text: str) -> set[str]:
    """The numbers of a text; "3 of 4" is one, and so is a percentage.

    Example:
        >>> sorted(numbers("smaller in 3 of 4 layers, 1.5 to 2e+03 times; κ50 at 12 %, by eq. 7"))
        ['1.5', '12%', '2e+03', '3 of 4']
    """
    return {number.replace(" %", "%") for number in NUMBER.findall(text)}


def runs_of(page: str) -> dict[str, str]:
    """The parts of a page by their anchors.

    Example:
        >>> runs_of('<a id="a"></a> one <a id="b-paper"></a> two')
        {'a': ' one ', 'b-paper': ' two'}
    """
    _, *parts = ANCHOR.split(page)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def unsupported(text: str, runs: Mapping[str, str]) -> Iterator[str]:
    """The numbers that are not in the run they are linked to, or that are linked to none.

    Example:
        >>> runs = {"fig1-paper": "found 3 of 4 and 2.5"}
        >>> list(unsupported("It is so in [3 of 4](#fig1-paper), [2.6](#fig1-paper) times; 7 were run.", runs))
        ['2.6 in fig1-paper', '7 in no link']
    """
    for quoted, anchor in LINK.findall(text):
        for number in sorted(numbers(quoted) - numbers(runs.get(anchor, ""))):
            yield f"{number} in {anchor}"
    for number in sorted(numbers(LINK.sub("", text))):
        yield f"{number} in no link"
