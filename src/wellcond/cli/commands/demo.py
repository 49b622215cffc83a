"""`wellcond demo`: a network that cannot train, why, what helps, and the proof."""

from __future__ import annotations

import contextlib
import time
import warnings
import webbrowser
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch
import typer
from rich.console import Console
from rich.text import Text
from torch import nn
from torch.optim import SGD

from wellcond.cli.output import AsJson, Out, Output
from wellcond.diagnosis.diagnose import diagnose
from wellcond.diagnosis.diagnosis import Diagnosis
from wellcond.problem.digits import digits
from wellcond.problem.problem import Problem
from wellcond.report.html.page import page
from wellcond.report.terminal import show_failures, show_findings, show_treatment
from wellcond.results import Progress, Result, Row
from wellcond.treatment.treat import treat
from wellcond.treatment.treatment import Treatment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = Path("wellcond-demo.html")
EXAMPLES = 512
BATCH = 64
LR = 0.1
STEPS = 80
SEEDS = (0, 1, 2)
REMEDIES = ("rate", "he-init", "batchnorm", "layernorm", "bnp", "adam")
"""The remedies that are tried: few, so that the demo takes no longer than half a minute."""
SHARE_OF_DIAGNOSIS = 0.1
"""The diagnosis's share of the progress bar."""


def setup(depth: int, width: int) -> tuple[Problem, SGD]:
    """A plain ReLU network on handwritten digits, from LeCun's initialization, with SGD.

    LeCun's weights, N(0, 1/fan_in), halve the mean square of the activations at every ReLU: 19 of them leave 2⁻¹⁹ of
    it.

    Args:
        depth: Linear layers.
        width: Units of each hidden layer.
    """
    inputs, labels = digits()
    generator = torch.Generator().manual_seed(0)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for k, (fan_in, fan_out) in enumerate(pairwise([inputs.shape[1], *[width] * (depth - 1), 10]), start=1):
        layers[f"fc{k}"] = linear = nn.Linear(fan_in, fan_out)
        nn.init.normal_(linear.weight, std=fan_in**-0.5, generator=generator)
        nn.init.zeros_(linear.bias)
        if k < depth:
            layers[f"act{k}"] = nn.ReLU()
    model = nn.Sequential(layers)
    batches = [(inputs[i : i + BATCH], labels[i : i + BATCH]) for i in range(0, EXAMPLES, BATCH)]
    return Problem(model, nn.CrossEntropyLoss(), batches), SGD(model.parameters(), lr=LR)


def diagnosed_and_treated(depth: int, width: int, progress: Progress) -> tuple[Diagnosis, Treatment]:
    """The diagnosis of the network, and how much the remedies help it.

    Args:
        depth: Linear layers.
        width: Units of each hidden layer.
        progress: Called as (what is being done, share of all work done).
    """
    problem, optimizer = setup(depth, width)
    diagnosis = diagnose(problem, optimizer, progress=lambda what, share: progress(what, SHARE_OF_DIAGNOSIS * share))

    def later(what: str, share: float) -> None:
        progress(what, SHARE_OF_DIAGNOSIS + (1 - SHARE_OF_DIAGNOSIS) * share)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice on using a remedy in a script is not for this page
        treatment = treat(
            problem, optimizer, steps=STEPS, seeds=SEEDS, remedies=REMEDIES, findings=diagnosis.findings, progress=later
        )
    return diagnosis, treatment


@dataclass(frozen=True)
class Demo(Result):
    """A network before and after treatment.

    Attributes:
        title: The network, in words.
        diagnosis: What is wrong with it.
        treatment: What helps.
    """

    title: str
    diagnosis: Diagnosis
    treatment: Treatment

    def rows(self, step: int | None = None) -> list[Row]:
        """Rows of the diagnosis, then of the best remedy."""
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

    Takes a plain ReLU network on handwritten digits; says what is wrong with
    it and in which layer; trains copies of it with and without remedies, each
    at its own learning rate; prints the loss before and after and the lines
    to write; and writes one HTML file that opens offline, wellcond-demo.html
    unless --out names another. Takes about half a minute and downloads
    nothing.

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
        show_findings(diagnosis.assessment(), diagnosis.findings, console)
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
