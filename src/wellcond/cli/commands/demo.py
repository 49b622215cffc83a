"""`wellcond demo`: a network that cannot train, why, what helps, and the proof."""

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
from wellcond.diagnosis.diagnosis import Diagnosis
from wellcond.report.html.page import page
from wellcond.report.terminal import show_failures, show_findings, show_treatment
from wellcond.results import Result, Row
from wellcond.treatment.treatment import Treatment
from wellcond_papers.experiments.demo_networks import LR, diagnosed_and_treated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = Path("wellcond-demo.html")


@dataclass(frozen=True)
class Demo(Result):
    """A network before and after.

    Attributes:
        title: What it is.
        diagnosis: What is wrong with it.
        treatment: What helps.
    """

    title: str
    diagnosis: Diagnosis
    treatment: Treatment

    def rows(self, step: int | None = None) -> list[Row]:
        """Those of the diagnosis, then those of the best remedy."""
        return [*self.diagnosis.rows(step), *self.treatment.rows(step)]

    def figure(self) -> Figure:
        """The loss with and without each remedy."""
        return self.treatment.figure()

    def page(self) -> str:
        """The verdict, the findings, what helps, and the numbers."""
        return page({self.diagnosis.about["model"]: self.diagnosis}, title=self.title, treatment=self.treatment)

    def __str__(self) -> str:
        return f"{self.title}\n\n{self.diagnosis}\n\n{self.treatment}"


def demo(
    out: Out = None,
    depth: Annotated[int, typer.Option(min=2, help="Linear layers of the network.")] = 20,
    width: Annotated[int, typer.Option(min=1, help="Units of each hidden layer.")] = 64,
    open_report: Annotated[bool, typer.Option("--open/--no-open", help="Show the report in the browser.")] = False,
    as_json: AsJson = False,
) -> None:
    """See what is wrong with a deep network that does not train, and what helps.

    Takes a plain ReLU network on scikit-learn's handwritten digits; says what
    is wrong with it and in which layer; trains copies of it with and without
    remedies, each at its own learning rate; prints the loss before and after
    and the lines to write; and writes one HTML file that opens offline,
    wellcond-demo.html unless --out names another. Takes about half a minute
    and downloads nothing.

    [bold]Examples[/bold]

    [cyan]wellcond demo --open[/cyan]
    [cyan]wellcond demo --depth 50 --out deep.html --out deep.png[/cyan]
    """
    started = time.perf_counter()
    output = Output(out or [PAGE], as_json)
    with output.progress() as progress, _one_thread():
        diagnosis, treatment = diagnosed_and_treated(depth, width, progress)
    result = Demo(f"A {depth}-layer network on handwritten digits that does not train", diagnosis, treatment)

    def print_all(console: Console) -> None:
        console.print(Text(result.title, style="bold"))
        console.print(f"{width} ReLUs per layer, LeCun initialization, SGD with lr {LR:g}\n")
        console.print(Text("What is wrong: wc.diagnose(problem, optimizer)", style="bold"))
        show_findings(diagnosis, console)
        show_failures(diagnosis, console)
        console.print(Text("\nWhat helps: wc.treat(problem, optimizer)", style="bold"))
        show_treatment(treatment, console)
        console.print(f"\n{time.perf_counter() - started:.0f} s; layer by layer in the report.")
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
