"""`wellcond predict-lr file.py:build`, and `wellcond predict-lr --arch "fc 784-1000-10"`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import torch
import typer
from rich.text import Text
from torch import Tensor

from wellcond.cli.commands.suggest_lr import show_suggestion
from wellcond.cli.output import INTERRUPTED, TARGET, AsJson, Momentum, Out, Output, as_usage_errors
from wellcond.errors import Interrupted, WellcondError
from wellcond.learning_rate.limits.max_lr import max_lr
from wellcond.learning_rate.meanfield import Architecture, Prediction, predict
from wellcond.learning_rate.meanfield.moments import float64
from wellcond.learning_rate.race.suggest_lr import heavy_ball_momentum, suggest_lr
from wellcond.learning_rate.race.suggested_rate import SuggestedRate
from wellcond.problem.problem import Problem
from wellcond.report.figures.rates import gamma_figure
from wellcond.results import Result, Row, number, text_table
from wellcond.results.quantities import MOMENTUM, PREDICTED_MAX_LR
from wellcond.training.optimizers import DEFAULT_MOMENTUM

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAMMAS_SHOWN = 7


@dataclass(frozen=True)
class RatesByGamma(Result):
    """The largest stable learning rate of an architecture with BatchNorm, against γ.

    Attributes:
        architecture: Line that describes the architecture.
        gammas: Values of γ, (n,).
        as_trained: Prediction with BatchNorm, whose statistics are differentiated.
        detached: Prediction with BatchNorm, whose statistics are constants for the gradient.
        plain: Prediction without BatchNorm.
    """

    architecture: str
    gammas: Tensor
    as_trained: Prediction
    detached: Prediction
    plain: Prediction

    def rows(self, step: int | None = None) -> list[Row]:
        """The limit without BatchNorm, and the momentum; those with BatchNorm are arrays over γ."""
        limit = Row(step, "", PREDICTED_MAX_LR, float(self.plain.max_lr), "lr")
        return [limit, Row(step, "", MOMENTUM, self.plain.momentum, "")]

    def figure(self) -> Figure:
        """λ_max and the largest rate against γ."""
        named = {
            "BatchNorm, as trained": self.as_trained,
            "BatchNorm, statistics constant": self.detached,
            "without BatchNorm": self.plain,
        }
        lines = {name: (self._over_gamma(p.lambda_max), self._over_gamma(p.max_lr)) for name, p in named.items()}
        return gamma_figure(self.gammas.tolist(), {self.architecture: lines})

    def _over_gamma(self, value: float | Tensor) -> list[float]:
        """A number at every γ; without BatchNorm it is the same at each."""
        values: list[float] = float64(value).expand(self.gammas.shape).tolist()
        return values

    def __str__(self) -> str:
        columns = [self._over_gamma(each.max_lr) for each in (self.as_trained, self.detached)]
        shown = sorted({round(i * (len(self.gammas) - 1) / (GAMMAS_SHOWN - 1)) for i in range(GAMMAS_SHOWN)})
        body = [[f"{float(self.gammas[i]):.3g}", *(number(column[i]) for column in columns)] for i in shown]
        return "\n".join(
            [
                f"{self.architecture}: largest stable rate 2(1 + μ)/λ_max, μ = {self.plain.momentum:g}",
                text_table(["γ", "as trained", "statistics constant"], body),
                f"without BatchNorm: {number(float(self.plain.max_lr))}",
            ]
        )


def predict_lr(
    target: Annotated[str | None, TARGET] = None,
    arch: Annotated[str | None, typer.Option(help="Architecture instead of a file: theory only.")] = None,
    gamma: Annotated[
        str | None,
        typer.Option(help="With --arch: γ of BatchNorm, a number or a range LOW:HIGH.", show_default="0.1:3"),
    ] = None,
    momentum: Momentum = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """How far can the learning rate go?

    For your network: the limit that theory predicts from its architecture, the
    one measured from the curvature at its weights, and a race of rates. Nothing
    of yours is changed. FUNCTION is that of [bold]wellcond diagnose[/bold].

    For an architecture: the largest rate against γ, before there is any network.

    [bold]Examples[/bold]

    [cyan]wellcond predict-lr train.py:build[/cyan]
    [cyan]wellcond predict-lr train.py:build --momentum 0.9 --out layers.png[/cyan]
    [cyan]wellcond predict-lr --arch "fc 784-1000-1000-1000-10" --gamma 0.1:3[/cyan]
    [cyan]wellcond predict-lr --arch "conv 1x28x28 30-60-90 k3 s2 10" --out figure.png[/cyan]
    """
    if (target is None) == (arch is None):
        raise typer.BadParameter("give either FILE.py:FUNCTION or --arch.")
    if arch is None and gamma is not None:
        raise typer.BadParameter("--gamma goes with --arch; that of a network is read from it.")
    output = Output(out, as_json)
    if target is None:
        assert arch is not None
        with as_usage_errors():
            predicted = _of_architecture(arch, _gammas(gamma or "0.1:3"), momentum)
        output.finish(predicted, lambda console: console.print(Text(str(predicted)), soft_wrap=True))
        return
    with output.problem(target, momentum) as (problem, optimizer, progress):
        try:
            suggested = suggest_lr(problem, optimizer, momentum=momentum, progress=progress)
        except Interrupted as interrupt:
            known: SuggestedRate = interrupt.result
            output.finish(known, lambda console: show_suggestion(known, console, limits=True))
            raise typer.Exit(INTERRUPTED) from None
        if suggested.limit is not None:  # compared with theory it is to be exact, so it is measured on all batches
            suggested = replace(suggested, limit=max_lr(problem, optimizer, momentum=momentum, progress=progress))
        if optimizer is not None and heavy_ball_momentum(optimizer) is None:
            suggested = _with_prediction_of_sgd(suggested, problem)
    output.finish(suggested, lambda console: show_suggestion(suggested, console, limits=True))


def _with_prediction_of_sgd(suggested: SuggestedRate, problem: Problem) -> SuggestedRate:
    """Add the prediction for SGD, the only optimizer that theory knows, and a note about it."""
    momentum = DEFAULT_MOMENTUM if suggested.limit is None else suggested.limit.momentum
    try:
        predicted = predict(problem, momentum=momentum)
    except (WellcondError, ValueError) as error:
        return replace(suggested, unpredicted=f"nothing: {error}")
    note = f"the prediction is for SGD with momentum {momentum:g} and one learning rate"
    return replace(suggested, predicted=predicted, notes=(*suggested.notes, note))


def _of_architecture(line: str, gammas: Tensor, momentum: float | None) -> Prediction | RatesByGamma:
    network = Architecture.parse(line)
    momentum = DEFAULT_MOMENTUM if momentum is None else momentum
    if network.norm != "batch":
        return predict(network, None, momentum)
    if len(gammas) == 1:
        return predict(network, float(gammas[0]), momentum)
    network = replace(network, gamma=1.0)  # the range of γ is what is asked for
    return RatesByGamma(
        line,
        gammas,
        as_trained=predict(network, gammas, momentum, "batch"),
        detached=predict(network, gammas, momentum, "detached"),
        plain=predict(replace(network, norm="none"), None, momentum),
    )


def _gammas(text: str) -> Tensor:
    """One γ, or 61 of a range."""
    try:
        ends = [float(part) for part in text.split(":")]
    except ValueError:
        ends = []
    if len(ends) not in (1, 2):
        raise typer.BadParameter(f"gamma is {text!r}; write a number or a range, as 0.1:3.")
    return torch.linspace(ends[0], ends[-1], 61 if len(ends) == 2 else 1, dtype=torch.float64, device="cpu")
