"""`wellcond predict-lr file.py:build`, and `wellcond predict-lr --arch "fc 784-1000-10"`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.text import Text

from wellcond.cli.progress import progress_bar
from wellcond.cli.target import built
from wellcond.cli.usage import as_usage_errors
from wellcond.meanfield.architecture import Architecture
from wellcond.meanfield.predictor import predict
from wellcond.meanfield.stages import Variant
from wellcond.results import number, text_table
from wellcond.results.files import check_writable
from wellcond.verify.first_rate import FirstRate, first_rate

GAMMAS_SHOWN = 7


def predict_lr(
    target: Annotated[
        str | None,
        typer.Argument(metavar="FILE.py:FUNCTION", help="A function that returns a Problem, or (Problem, optimizer)."),
    ] = None,
    arch: Annotated[str | None, typer.Option(help="An architecture instead of a file: theory alone.")] = None,
    gamma: Annotated[
        str | None,
        typer.Option(help="With --arch: γ of BatchNorm, a number or a range LOW:HIGH.", show_default="0.1:3"),
    ] = None,
    momentum: Annotated[
        float | None, typer.Option(help="Heavy-ball momentum.", show_default="the optimizer's, 0; with --arch 0.9")
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps of each trial run.")] = 20,
    plot: Annotated[Path | None, typer.Option(help="Also draw it, as a PNG.")] = None,
) -> None:
    """How far can the learning rate go, and with which one to start?

    Of your network: what theory predicts from its architecture, what the curvature
    of the loss says, and the loss after a few trial steps at rates around it.
    Nothing of yours is changed. FUNCTION is that of [bold]wellcond diagnose[/bold].

    Of an architecture: λ_max and the largest rate against γ, before there is any network.

    [bold]Examples[/bold]

    [cyan]wellcond predict-lr train.py:build[/cyan]
    [cyan]wellcond predict-lr train.py:build --momentum 0.9 --plot rates.png[/cyan]
    [cyan]wellcond predict-lr --arch "fc 784-1000-1000-1000-10" --gamma 0.1:3[/cyan]
    [cyan]wellcond predict-lr --arch "conv 1x28x28 30-60-90 k3 s2 10" --plot figure.png[/cyan]
    """
    if (target is None) == (arch is None):
        raise typer.BadParameter("give either FILE.py:FUNCTION or --arch.")
    if arch is None and gamma is not None:
        raise typer.BadParameter("--gamma goes with --arch; that of a network is read from it.")
    if plot is not None:
        import wellcond.report.prediction  # noqa: F401  a missing matplotlib is said before the work

        check_writable(plot)
    console = Console()
    if arch is not None:
        with as_usage_errors():
            _of_architecture(arch, _gammas(gamma or "0.1:3"), 0.9 if momentum is None else momentum, plot, console)
        return
    assert target is not None
    with built(target) as (problem, optimizer), progress_bar(console) as report, as_usage_errors():
        own = optimizer if momentum is None else None
        found = first_rate(problem, momentum or 0.0, optimizer=own, steps=steps, progress=report)
    console.print(f"{target}: {problem!r}", style="bold", markup=False, highlight=False)
    _show(found, console)
    if plot is not None:
        _draw(found, plot, console)


def _show(found: FirstRate, console: Console) -> None:
    console.print(Text("\nMeasured, from the curvature at these weights", style="bold cyan"))
    console.print(Text(str(found.measured)), soft_wrap=True)
    if found.predicted is not None:
        console.print(Text("\nPredicted, from the architecture", style="bold cyan"))
        console.print(Text(str(found.predicted)), soft_wrap=True)
    if found.trial is not None:
        console.print(Text("\nTried, from these weights", style="bold cyan"))
        console.print(Text(str(found.trial)), soft_wrap=True)
    for note in found.notes:
        console.print(Text(f"note: {note}", style="dim"), soft_wrap=True)
    console.print(Text(f"\n{found.verdict()}", style="bold"), soft_wrap=True)


def _draw(found: FirstRate, path: Path, console: Console) -> None:
    if found.trial is None:
        console.print("no picture: there are no trial steps to draw", style="dim")
        return
    from wellcond.report.rates import save_rates

    limits = {"largest rate, measured": found.measured.value, "start with": found.start}
    if found.predicted is not None:
        limits["largest rate, predicted"] = float(found.predicted.max_lr)
    saved = save_rates(found.trial, limits, path)
    console.print(f"rates: {saved}", markup=False, highlight=False, soft_wrap=True)


def _of_architecture(line: str, gammas: torch.Tensor, momentum: float, plot: Path | None, console: Console) -> None:
    network = Architecture.parse(line)
    if network.norm != "batch":
        console.print(Text(str(predict(network, None, momentum))), soft_wrap=True)
        if plot is not None:
            from wellcond.report.prediction import save_prediction

            _saved(save_prediction(predict(network, None, momentum), plot), console)
        return
    network = replace(network, gamma=1.0)  # the range of γ is what is asked for
    variants: tuple[Variant, ...] = ("batch", "detached", "source")
    columns = [torch.as_tensor(predict(network, gammas, momentum, variant).max_lr).tolist() for variant in variants]
    plain = predict(replace(network, norm="none"), None, momentum)
    shown = sorted({round(i * (len(gammas) - 1) / (GAMMAS_SHOWN - 1)) for i in range(GAMMAS_SHOWN)})
    body = [[f"{float(gammas[i]):.3g}", *(number(column[i]) for column in columns)] for i in shown]
    console.print(f"{network}: largest stable rate 2(1 + μ)/λ_max, μ = {momentum:g}", style="bold", markup=False)
    console.print(Text(text_table(["γ", "as trained", "statistics constant", "as wei2019 prints it"], body)))
    console.print(f"without BatchNorm: {number(float(plain.max_lr))}", markup=False, highlight=False)
    if plot is not None and len(gammas) > 1:
        from wellcond.report.prediction import save_figure_1

        _saved(save_figure_1(plot, {line: line}, gammas, momentum), console)
    elif plot is not None:
        from wellcond.report.prediction import save_prediction

        _saved(save_prediction(predict(network, float(gammas[0]), momentum), plot), console)


def _saved(path: Path, console: Console) -> None:
    console.print(f"figure: {path}", markup=False, highlight=False, soft_wrap=True)


def _gammas(text: str) -> torch.Tensor:
    """One γ, or 61 of a range."""
    try:
        ends = [float(part) for part in text.split(":")]
    except ValueError:
        ends = []
    if len(ends) not in (1, 2):
        raise typer.BadParameter(f"gamma is {text!r}; write a number or a range, as 0.1:3.")
    return torch.linspace(ends[0], ends[-1], 61 if len(ends) == 2 else 1, dtype=torch.float64)
