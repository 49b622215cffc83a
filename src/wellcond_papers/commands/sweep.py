"""`wellcond sweep TARGET --grid lr=0.1,0.01`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.text import Text

from wellcond.cli.output import AsJson, Output
from wellcond.treatment.launching.by_name import launcher_of
from wellcond_papers.commands.reproduce import Address, Data, Device, Gpus, LauncherOption, Workers, running
from wellcond_papers.experiments.scales import Scale
from wellcond_papers.experiments.sweep import sweep as run

DIGITS = 12
"""Digits of the values of a range: 0.1:0.5:5 contains 0.3, not 0.30000000000000004."""


def sweep(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="An experiment, or FILE.py:FUNCTION.")],
    grid: Annotated[
        list[str],
        typer.Option(metavar="NAME=VALUES", help="A setting and its values, a list or a range; repeat it for several."),
    ],
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Seeds of each point, from 0.", show_default="those of the scale, or 1")
    ] = None,
    scale: Annotated[Scale, typer.Option(help="Of an experiment.")] = "laptop",
    x: Annotated[
        str | None, typer.Option(help="The setting along the picture.", show_default="a rate, or first")
    ] = None,
    y: Annotated[str | None, typer.Option(help="The setting upwards.", show_default="the next")] = None,
    quantity: Annotated[str | None, typer.Option(help="What is drawn.", show_default="a loss, or the first")] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Results go to DIR/sweeps/NAME.")] = Path("runs"),
    data: Data = None,
    device: Device = "cpu",
    launcher: LauncherOption = "in-process",
    workers: Workers = None,
    address: Address = None,
    gpus: Gpus = 1.0,
    as_json: AsJson = False,
) -> None:
    """Run an experiment, or a function of yours, at every point of a grid.

    TARGET is an experiment of [bold]wellcond reproduce[/bold], whose settings the grid
    overrides; or a function in a file, which is called with the values of a
    point and, if it has such a parameter, seed, and returns a mapping of names
    to numbers, or rows.

    Values: a list (0.1,0.01), a range FROM:TO:COUNT (0.5:2:4), or a range in
    equal ratios log:FROM:TO:COUNT (log:0.001:1:7).

    All rows go to one table.parquet, with the settings of their cell. Two
    settings with several numbers make a heat map, one makes curves. Where the
    rows hold max_lr or predicted_max_lr and lr is swept, they are drawn as
    lines. Finished cells are never run again; failed ones are.

    [bold]Example[/bold], in train.py:

    [cyan]def train(lr, width=64, seed=0):[/cyan]
    [cyan]    ...[/cyan]
    [cyan]    return {"test_loss": loss}[/cyan]

    and then:

    [cyan]wellcond sweep train.py:train --grid lr=log:0.001:1:7 --grid width=32,64 --seeds 3[/cyan]
    [cyan]wellcond sweep train.py:train --grid lr=0.1,0.01 --launcher processes --workers 4[/cyan]
    [cyan]wellcond sweep lange2022-fig8 --scale smoke --grid lr=0.05,0.1,0.2[/cyan]
    [cyan]wellcond sweep train.py:train --grid lr=0.1,0.01 --launcher ray --address auto[/cyan]
    """
    output = Output(None, as_json)
    axes: dict[str, list[Any]] = {}
    for name, values in map(axis, grid):
        if name in axes:
            raise typer.BadParameter(f"--grid names {name} twice; write all its values in one: {name}=1,2,3.")
        axes[name] = values
    used = launcher_of(launcher, workers, address=address, gpus=gpus)
    with running(output) as progress:
        result = run(
            target, axes, seeds, scale=scale, out=out, device=device, data=data, launcher=used,
            x=x, y=y, quantity=quantity, progress=progress,
        )  # fmt: skip
    if as_json:
        typer.echo(result.to_json(), nl=False)
    else:
        output.console.print(Text(str(result)), soft_wrap=True)
        folder = out / "sweeps" / result.name
        files = [name for name in ("table.parquet", "figure.png", "sweep.json") if (folder / name).is_file()]
        output.console.print(f"written: {', '.join(files)} in {folder}", soft_wrap=True)
    if result.failures:
        raise typer.Exit(1)


def axis(text: str) -> tuple[str, list[Any]]:
    """The name and the values of a setting.

    Example:
        >>> axis("lr=0.1,0.01"), axis("width=32:64:3"), axis("lr=log:0.01:1:3"), axis("norm=none,batch")
        (('lr', [0.1, 0.01]), ('width', [32, 48, 64]), ('lr', [0.01, 0.1, 1.0]), ('norm', ['none', 'batch']))
    """
    name, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not name or not values.strip(","):
        raise typer.BadParameter(f"--grid {text!r}; write NAME=VALUES, as in lr=0.1,0.01 or gamma=0.5:2:4.")
    if ":" not in values:
        return name, [_value(part.strip()) for part in values.split(",") if part.strip()]
    parts = values.split(":")
    is_log = parts[0] == "log"
    try:
        low, high, count = (float(part) for part in (parts[1:] if is_log else parts))
        if not (np.isfinite([low, high]).all() and count >= 1 and count.is_integer()) or (is_log and low * high <= 0):
            raise ValueError
        values_in_range = np.geomspace(low, high, int(count)) if is_log else np.linspace(low, high, int(count))
    except ValueError:
        hint = "FROM:TO:COUNT or log:FROM:TO:COUNT, with a whole COUNT; log: does not cross 0"
        raise typer.BadParameter(f"--grid {text!r}; a range is {hint}.") from None
    rounded = [float(f"{value:.{DIGITS}g}") for value in values_in_range]
    is_whole = not any(mark in values for mark in ".e") and all(value.is_integer() for value in rounded)
    return name, [int(value) for value in rounded] if is_whole else rounded


def _value(text: str) -> Any:
    """A number, true, false or null; else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text
