"""`wellcond demo`: a network that cannot train, and why."""

from __future__ import annotations

import contextlib
import time
import webbrowser
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch
import typer
from rich.console import Console
from rich.text import Text

from wellcond.cli.output import AsJson, Out, Output
from wellcond.experiments.demo_networks import LEARNING_RATES, Compared, compare
from wellcond.report.facts import facts
from wellcond.report.terminal import facts_table, show_failures
from wellcond.results import Result, Row, text_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = Path("wellcond-demo.html")


@dataclass(frozen=True)
class Demo(Result):
    """Two networks side by side.

    Attributes:
        title: What they are.
        networks: By name.
    """

    title: str
    networks: dict[str, Compared]

    def series(self) -> dict[str, list[Row]]:
        """The rows of each network."""
        return {name: each.rows() for name, each in self.networks.items()}

    def rows(self, step: int | None = None) -> list[Row]:
        """The rows of both; the name of the network stands before that of the layer."""
        return [
            row._replace(layer=f"{name}: {row.layer}" if row.layer else name)
            for name, rows in self.series().items()
            for row in rows
        ]

    def figure(self) -> Figure:
        """λ_max and κ_50% of every layer."""
        from wellcond.report.curves import layers_figure

        return layers_figure(self.series())

    def page(self) -> str:
        """Both networks on one page."""
        from wellcond.report.page import page

        return page(
            {name: each.diagnosis for name, each in self.networks.items()},
            title=self.title,
            rows={name: each.training for name, each in self.networks.items()},
            densities={name: each.density for name, each in self.networks.items()},
        )

    def __str__(self) -> str:
        body = [[line.title, *line.texts.values()] for line in facts(self.series())]
        return f"{self.title}\n{text_table(['', *self.networks], body)}"


def demo(
    out: Out = None,
    depth: Annotated[int, typer.Option(min=2, help="Linear layers of each network.")] = 20,
    width: Annotated[int, typer.Option(min=1, help="Units of each hidden layer.")] = 64,
    open_report: Annotated[bool, typer.Option("--open/--no-open", help="Show the report in the browser.")] = False,
    as_json: AsJson = False,
) -> None:
    """See why a deep network does not train, and what BatchNorm changes.

    Diagnoses a plain ReLU network on scikit-learn's handwritten digits, and
    the same network with BatchNorm; trains both for 100 steps at several
    learning rates; prints what is where; and writes one HTML file that opens
    offline, wellcond-demo.html unless --out names another. Takes about 15
    seconds and downloads nothing.

    [bold]Examples[/bold]

    [cyan]wellcond demo --open[/cyan]
    [cyan]wellcond demo --depth 50 --out deep.html --out deep.png[/cyan]
    """
    started = time.perf_counter()
    output = Output(out or [PAGE], as_json)
    with output.progress() as progress, _one_thread():
        networks = compare(depth, width, progress)
    result = Demo(f"A {depth}-layer network on handwritten digits, without and with BatchNorm", networks)

    def print_all(console: Console) -> None:
        rates = ", ".join(f"{lr:g}" for lr in LEARNING_RATES)
        console.print(Text(result.title, style="bold"))
        console.print(f"{width} ReLUs per layer, LeCun initialisation, before training; then the best of lr {rates}.")
        console.print(facts_table(result.series()))
        for name, each in networks.items():
            show_failures(each.diagnosis, console, name)
        console.print(f"{time.perf_counter() - started:.0f} s; layer by layer in the report.")
        console.print("Your own network: wellcond diagnose --help; what helps it: wellcond treat --help")

    written = output.finish(result, print_all)
    if open_report:
        for path in written:
            if path.suffix == ".html":
                webbrowser.open(path.as_uri())


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Matrices this small are no faster on several threads, and far slower where the cores are shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
