"""`wellcond reproduce NAME`: the figures and tables of the papers."""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from wellcond.cli.output import INTERRUPTED, AsJson, Output
from wellcond.errors import DataNotFound
from wellcond.report.terminal import new_table
from wellcond.results import Progress
from wellcond.treatment.launching.by_name import LauncherName, launcher_of
from wellcond_papers.data.download import download
from wellcond_papers.data.locate import PUBLISHED, data_root
from wellcond_papers.experiments import catalog as catalog
from wellcond_papers.experiments.reproduce import missing_data
from wellcond_papers.experiments.reproduce import reproduce as run
from wellcond_papers.experiments.reproduction import Reproduction
from wellcond_papers.experiments.scales import SCALES, Scale
from wellcond_papers.training.distributed import is_writer, join_processes

COLORS = {
    "holds": "green",
    "holds in part": "yellow",
    "does not hold": "red",
    "too short to tell": "dim",
    "not tested": "dim",
}
EMBEDDED = "digits"
"""The data set that needs no files."""
LIST_WIDTH = 82
"""Columns that the list needs in addition to its titles."""
SHORTEST_TITLE = 30
"""Titles are left out if they would have to be shortened to less."""

HOW_TO_GO_ON = """Nothing was run. --data DIR names another folder; --download fetches what can be fetched."""

Device = Annotated[str, typer.Option(help="Where to train and measure: cpu, cuda, cuda:1.")]
Data = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="The folder with the data sets.", show_default="$WELLCOND_DATA, or ./data"),
]
LauncherOption = Annotated[
    LauncherName,
    typer.Option(help="Where cells are run: one by one in this process, in several processes, or on a Ray cluster."),
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Cells at once, with processes or ray.", show_default="one per core")
]
Address = Annotated[
    str | None,
    typer.Option(help="With ray: the cluster, such as auto on one of its machines.", show_default="started here"),
]
Gpus = Annotated[float, typer.Option(min=0, help="With ray on cuda: the share of a GPU that a cell gets.")]


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Experiments; wei2019 for all of a paper, all for all. None: a list."),
    ] = None,
    scale: Annotated[
        Scale,
        typer.Option(
            help="Seconds on embedded data; minutes on two cores; minutes on one GPU; CIFAR-100 in place of ImageNet; "
            "the paper's own."
        ),
    ] = "laptop",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Results go to DIR/NAME/SCALE.")] = Path("runs"),
    data: Data = None,
    device: Device = "cpu",
    launcher: LauncherOption = "in-process",
    workers: Workers = None,
    address: Address = None,
    gpus: Gpus = 1.0,
    fetch: Annotated[bool, typer.Option("--download", help="First fetch the data sets that are missing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run figures and tables of the papers, and see which of their claims hold.

    Without a NAME: lists all experiments, what each scale takes, and whether
    the data is there. With names: runs their cells (one network or method
    with one seed each), all in one queue, and prints every claim with the
    paper's number, the measured one and the verdict. Rows, table, picture and
    verdict are written to DIR/NAME/SCALE.

    A second run continues where the first stopped: finished cells are never
    run again, failed ones are. If data is missing, nothing is run, and what to
    fetch and where to put it is printed.

    [bold]Examples[/bold]

    [cyan]wellcond reproduce[/cyan]
    [cyan]wellcond reproduce santurkar2018-fig9 --scale smoke[/cyan]
    [cyan]wellcond reproduce wei2019 --launcher processes --data ~/data[/cyan]
    [cyan]wellcond reproduce all --scale gpu --device cuda --launcher processes --workers 8[/cyan]
    [cyan]wellcond reproduce huang2020-fig9 --scale paper --device cuda --launcher ray --address auto[/cyan]
    [cyan]torchrun --nproc-per-node 8 --no-python wellcond reproduce huang2020-fig14 --scale paper --device cuda[/cyan]
    """
    output = Output(None, as_json)
    if not names:
        _list(output, data)
        return
    if fetch:
        _download(names, scale, data, output)
    used = launcher_of(launcher, workers, address=address, gpus=gpus)
    join_processes()
    output.console.quiet = not is_writer()
    try:
        with running(output) as progress:
            runs = run(names, scale, out=out, device=device, data=data, launcher=used, progress=progress)
    except DataNotFound as error:
        raise DataNotFound(f"{error}\n{HOW_TO_GO_ON}") from error
    if not is_writer():
        return
    folders = [out / each.experiment.name / scale for each in runs]
    if as_json:
        content = [each.judgment() | {"folder": str(folder)} for each, folder in zip(runs, folders, strict=True)]
        typer.echo(json.dumps(content, indent=1, ensure_ascii=False))
    else:
        for each, folder in zip(runs, folders, strict=True):
            _show(each, folder, output.console)
    if any(each.failures for each in runs):
        raise typer.Exit(1)


@contextlib.contextmanager
def running(output: Output) -> Iterator[Progress]:
    """A progress bar; warnings are printed at the end, and after Ctrl-C how to continue."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        quiet = contextlib.redirect_stdout(sys.stderr) if output.as_json else contextlib.nullcontext()
        try:
            with quiet, output.progress() as progress:  # output of the cells is not JSON
                yield progress
        except KeyboardInterrupt:
            typer.secho(
                "interrupted: finished cells are saved; run the same command again to continue",
                err=True,
                fg="red",
                bold=True,
            )
            raise typer.Exit(INTERRUPTED) from None
        finally:
            for text in dict.fromkeys(str(each.message) for each in caught if each.category is UserWarning):
                typer.secho(f"warning: {text}", err=True, fg="yellow")


def _download(names: list[str], scale: Scale, data: Path | None, output: Output) -> None:
    """Download the data sets that the experiments need, if they are freely available."""
    root = data_root(data).absolute()
    needed = sorted({name for each in catalog.chosen(names, scale) for name in each.data(scale)})
    with output.progress() as progress:
        for name in needed:
            if name in PUBLISHED and missing_data(name, root):
                download(name, root, progress)


def _list(output: Output, data: Path | None) -> None:
    """Print all experiments, the time they take, and the data they need."""
    root = data_root(data).absolute()
    experiments = [catalog.experiment(name) for name in catalog.names()]
    needs = {e.name: sorted({d for s in e.scales for d in e.data(s)} - {EMBEDDED}) for e in experiments}
    missing = {name: missing_data(name, root) for name in sorted({d for sets in needs.values() for d in sets})}
    if output.as_json:
        content = [
            {
                "name": each.name,
                "title": each.title,
                "minutes": {scale: each.minutes[scale] for scale in each.scales},
                "data": {name: not missing[name] for name in needs[each.name]},
            }
            for each in experiments
        ]
        typer.echo(json.dumps(content, indent=1, ensure_ascii=False))
        return
    table = new_table(show_edge=False)
    room = output.console.width - LIST_WIDTH
    has_titles = room >= SHORTEST_TITLE
    table.add_column("experiment", no_wrap=True)
    if has_titles:
        table.add_column("what it shows", no_wrap=True, max_width=room)
    for scale in SCALES:
        table.add_column(scale, justify="right", no_wrap=True)
    table.add_column("data", no_wrap=True)
    for each in experiments:
        costs = [_cost(each.minutes[scale]) if scale in each.scales else "–" for scale in SCALES]
        needed = Text(", ").join(Text(name, "red" if missing[name] else "green") for name in needs[each.name])
        table.add_row(each.name, *([Text(each.title)] if has_titles else []), *costs, needed)
    output.console.print(table)
    output.console.print("Times are approximate, for the machine that a scale is meant for; 5 s to start.")
    there = ", ".join(f"{name} {'missing' if text else '✓'}" for name, text in missing.items())
    output.console.print(f"Data: {there}; in {root}", soft_wrap=True)
    output.console.print("Run one: wellcond reproduce NAME --scale smoke; more: wellcond reproduce --help")


def _cost(minutes: float) -> str:
    """An approximate time.

    Example:
        >>> [_cost(minutes) for minutes in (0.03, 4.2, 150, 5000)]
        ['2 s', '4 min', '2.5 h', '3.5 d']
    """
    if minutes < 1:
        return f"{max(60 * minutes, 1):.0f} s"
    if minutes < 100:
        return f"{minutes:.0f} min"
    hours = minutes / 60
    return f"{hours:.2g} h" if hours < 48 else f"{hours / 24:.2g} d"


def _show(run: Reproduction, folder: Path, console: Console) -> None:
    """Print the claims and the verdict, and where the files are."""
    judged = run.judgment()
    title = f"\n{run.experiment.name}: {run.experiment.title} ({run.scale} scale, {judged['made_with'].get('device')})"
    console.print(Text(title, style="bold"))
    console.print(Text(run.experiment.says, style="dim"))
    table = new_table()
    for heading in ("claim", "paper", "found", "verdict"):
        table.add_column(heading, no_wrap=heading == "verdict")
    for claim in judged["claims"]:
        verdict = Text(claim["verdict"], COLORS[claim["verdict"]])
        table.add_row(Text(claim["says"]), Text(claim["paper"]), Text(claim["found"]), verdict)
    console.print(table)
    for failure in run.failures:
        cell = f"{failure.settings.get('arm')}, seed {failure.settings.get('seed')}"
        console.print(Text(f"failed: {cell}: {failure.error}", style="red"), soft_wrap=True)
    console.print(Text.assemble("verdict: ", (judged["verdict"], f"bold {COLORS[judged['verdict']]}")))
    if run.caveat:
        console.print(Text(run.caveat, style="yellow"))
    files = [name for name in ("rows.json", "table.parquet", "figure.png") if (folder / name).is_file()]
    console.print(f"written: {', '.join(files)} in {folder}", soft_wrap=True)
