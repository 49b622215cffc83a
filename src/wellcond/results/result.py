"""`Result`: the base of everything a measurement returns."""

from __future__ import annotations

import csv
import io
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np
import torch

from wellcond.errors import MissingExtra, OutputError, UnknownLayer
from wellcond.results.files import check_writable, write_atomically
from wellcond.results.rendering import is_rendered, rendered

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

Entry = TypeVar("Entry")

Progress = Callable[[str, float], None]
"""Called as (description of the current work, share of all work done)."""

PICTURES = ("png", "svg", "pdf")
FORMS = ("html", *PICTURES, "csv", "json")
"""Suffixes of the files that a result can be saved in."""
SARIF: Final = "sarif"
"""Suffix of a file for those that have findings."""


class Row(NamedTuple):
    """One measured number. Everything that is shown, saved or logged is made from rows.

    Attributes:
        step: Training step, or None outside training.
        layer: Name of the layer, or "" for the whole network.
        quantity: Name of the quantity, one of the constants in `wellcond.results.quantities`.
        value: Number.
        unit: Unit of the number, or "".
    """

    step: int | None
    layer: str
    quantity: str
    value: float
    unit: str


@dataclass(frozen=True)
class Cost:
    """What a measurement took. One u is one training step: forward and backward of one mini-batch.

    Attributes:
        forwards: Forward passes of one mini-batch; a pass over a problem of four batches counts four.
        backwards: Backward passes of one mini-batch.
        matvecs: Products with a curvature matrix.
        product_passes: Cost of these products, in u.

    Example:
        >>> print(Cost(forwards=4, backwards=4))
        cost: 4 u (4 forward and 4 backward passes; u: one training step, forward and backward of one mini-batch)
    """

    forwards: float = 0.0
    backwards: float = 0.0
    matvecs: int = 0
    product_passes: float = 0.0

    @property
    def u(self) -> float:
        """The cost in training steps, of which the forward pass is a third."""
        return self.forwards / 3 + 2 * self.backwards / 3 + self.product_passes

    def __sub__(self, earlier: Cost) -> Cost:
        return Cost(*(getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)))

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __truediv__(self, pieces: float) -> Cost:
        """The cost in mini-batches that are larger by this factor."""
        return Cost(self.forwards / pieces, self.backwards / pieces, self.matvecs, self.product_passes / pieces)

    def __str__(self) -> str:
        parts = [f"{self.forwards:.3g} forward and {self.backwards:.3g} backward passes"]
        if self.matvecs:
            parts.append(f"{self.matvecs} matrix-vector products")
        parts[-1] += "; u: one training step, forward and backward of one mini-batch"
        return f"cost: {self.u:.3g} u ({', '.join(parts)})"


class Result(ABC):
    """What a measurement returns: rows of numbers, arrays as attributes, text, and forms to save it in."""

    # must define

    @abstractmethod
    def rows(self, step: int | None = None) -> list[Row]:
        """The scalars of the result.

        Args:
            step: The training step it was measured at.
        """

    # may override

    def verdict(self) -> str:
        """The answer in a sentence or two; empty if the result is only a measurement."""
        return ""

    # common to all; the forms in which a type is shown are registered in `rendering`

    def __str__(self) -> str:
        return str(rendered("text", self)) if is_rendered("text", type(self)) else repr(self)

    def figure(self) -> Figure:
        """The result as a matplotlib figure; needs `wellcond[plots]`.

        Raises:
            OutputError: The result has no figure, or there is nothing to draw.
        """
        figure: Figure = rendered("figure", self)
        return figure

    def page(self) -> str:
        """The result as one HTML page that opens offline."""
        if is_rendered("page", type(self)):
            return str(rendered("page", self))
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{type(self).__name__}</title>\n</head>\n<body>\n{self._repr_html_()}\n</body>\n</html>\n"
        )

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a data frame with the columns step, layer, quantity, value and unit."""
        try:
            import pandas
        except ImportError as error:
            raise MissingExtra("pandas", "pandas") from error
        return pandas.DataFrame(self.rows(), columns=list(Row._fields))

    def to_json(self) -> str:
        """The verdict, rows and arrays as JSON, as `save("x.json")` writes them."""
        rows = [as_json(row._asdict()) for row in self.rows()]
        verdict = {"verdict": self.verdict()} if self.verdict() else {}
        content = {"result": type(self).__name__, **verdict, "rows": rows, "values": as_json(self)}
        return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def save(self, path: str | Path) -> Path:
        """Write the result to a file, in the form that its suffix names.

        Args:
            path: `.csv` for the rows; `.json` for rows and arrays; `.png`, `.svg` or `.pdf` for a picture (needs
                `wellcond[plots]`); `.html` for a page; `.sarif` for the findings of a diagnosis, as code scanning
                reads them.

        Returns:
            The file that was written, whole or not at all.

        Raises:
            OutputError: The result has no such form, or the file cannot be written.
        """
        target = check_writable(path)
        forms = (*FORMS, SARIF) if is_rendered(SARIF, type(self)) else FORMS
        form = form_of(Path(path), forms)  # a link's own name counts, not that of the file it points to
        if form in PICTURES:
            return write_atomically(target, picture(self.figure(), form))
        forms_of_text: dict[str, Callable[[], str]] = {"csv": self._csv, "json": self.to_json, "html": self.page}
        text = str(rendered(SARIF, self)) if form == SARIF else forms_of_text[form]()
        return write_atomically(target, text.encode())

    def _repr_html_(self) -> str:
        """HTML for notebooks: the text and the figure, or what is registered for this type of result."""
        return str(rendered("fragment", self))

    def _csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(self.rows())
        return text.getvalue()


class ByLayer(Result, Mapping[str, Entry]):
    """A result with one entry per layer: `result["layer"]`; an unknown name is refused with the closest ones."""

    layers: dict[str, Entry]

    def __getitem__(self, name: str) -> Entry:
        if name not in self.layers:
            raise UnknownLayer(name, self.layers)
        return self.layers[name]

    def __contains__(self, name: object) -> bool:
        return name in self.layers  # without a search for the closest names

    def __iter__(self) -> Iterator[str]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)


def form_of(path: Path, forms: Sequence[str] = FORMS) -> str:
    """The one of these forms that the suffix of a file names; raises `OutputError` for any other suffix."""
    form = path.suffix.removeprefix(".").lower()
    if form not in forms:
        raise OutputError(f"{path} has no known form; end it in one of .{', .'.join(forms)}.")
    return form


def picture(figure: Figure, form: str = "png", *, dpi: int = 160) -> bytes:
    """A matplotlib figure as the content of a file."""
    content = io.BytesIO()
    figure.savefig(content, format=form, dpi=dpi)
    return content.getvalue()


def as_json(value: Any) -> Any:
    """A value as JSON has it: arrays as lists, and "nan" and "inf" as words, for which it has no numbers."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return as_json(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: as_json(getattr(value, f.name)) for f in fields(value) if f.repr}
    if isinstance(value, Mapping):
        return {str(key): as_json(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(entry) for entry in value]
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
