"""`wellcond demo`: a network that cannot train, and why."""

from __future__ import annotations

import contextlib
import time
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from wellcond.cli.progress import progress_bar
from wellcond.experiments.demo_networks import LEARNING_RATES, compare
from wellcond.report.page import save_page
from wellcond.report.terminal import facts_table, show_failures
from wellcond.results.files import check_writable


def demo(
    out: Annotated[Path, typer.Option(help="The HTML report to write.")] = Path("wellcond-demo.html"),
    depth: Annotated[int, typer.Option(min=2, help="Linear layers of each network.")] = 20,
    width: Annotated[int, typer.Option(min=1, help="Units of each hidden layer.")] = 64,
    open_report: Annotated[bool, typer.Option("--open/--no-open", help="Show the report in the browser.")] = False,
) -> None:
    """See why a deep network does not train, and what BatchNorm changes.

    Diagnoses a plain ReLU network on scikit-learn's handwritten digits, and
    the same network with BatchNorm; trains both for 100 steps at several
    learning rates; prints what is where; and writes one HTML file that opens
    offline. Takes about 15 seconds and downloads nothing.

    [bold]Examples[/bold]

    [cyan]wellcond demo --open[/cyan]
    [cyan]wellcond demo --depth 50 --out deep.html[/cyan]
    """
    started = time.perf_counter()
    check_writable(out)
    console = Console()
    with progress_bar(console) as progress, _one_thread():
        networks = compare(depth, width, progress)
    rates = ", ".join(f"{lr:g}" for lr in LEARNING_RATES)
    title = f"A {depth}-layer network on handwritten digits, without and with BatchNorm"
    console.print(f"[bold]{title}[/bold]")
    console.print(
        f"{width} ReLUs a layer, LeCun initialisation, before training; then the best of lr {rates}.", highlight=False
    )
    console.print(facts_table({name: network.rows() for name, network in networks.items()}))
    for name, network in networks.items():
        show_failures(network.diagnosis, console, name)
    path = save_page(
        {name: network.diagnosis for name, network in networks.items()},
        out,
        title=title,
        more={name: network.more for name, network in networks.items()},
    )
    seconds = time.perf_counter() - started
    console.print(f"Layer by layer: {path} ({seconds:.0f} s)", markup=False, highlight=False, soft_wrap=True)
    console.print(
        "Your own network: wellcond diagnose --help; what helps it: wellcond try --help", markup=False, highlight=False
    )
    if open_report:
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
