"""Figure XII of huang2020: VGG-16 with BN on CIFAR-10, some of whose layers are kept from changing."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import TYPE_CHECKING

from torch import nn

from wellcond.results import Row, number
from wellcond.results.quantities import FINAL_LOSS, TEST_ACCURACY, TRAINING_LOSS
from wellcond_papers.experiments.claims import END, Claim, Outcome, claim, is_greater, judged
from wellcond_papers.experiments.experiment import Experiment, Job
from wellcond_papers.experiments.pictures import panels
from wellcond_papers.experiments.table import Record, Table
from wellcond_papers.papers.huang2020.layer_pictures import draw_loss
from wellcond_papers.papers.huang2020.networks import (
    CIFAR,
    SMOKE,
    WARM_UP,
    build,
    noise_of_a_test,
    percent_wrong,
    trained,
)
from wellcond_papers.papers.percentages import percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GROUPS = (range(0, 3), range(3, 6), range(6, 9), range(9, 13))
"""The convolutions that each digit stands for."""
FREE = "1111"
BLOCKED = ("0111", "1011", "1101", "1110", "0000")
WARM = ", warm-up"
NETWORK = {"network": "VGG", "depth": 16}


def block(model: nn.Module, digits: str) -> None:
    """Keep the weights of convolutions from being trained: a group of them for every 0."""
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    for digit, group in zip(digits, GROUPS, strict=True):
        for k in group:
            convolutions[k].weight.requires_grad_(digit == "1")


def measure(job: Job) -> list[Row]:
    """Train the network with its blocked layers."""
    model = build(job)
    block(model, job["trained"])
    return trained(job, model)


def draw(table: Table) -> Figure:
    """Training loss and test accuracy over training; with warm-up below."""
    rows = {warm: [arm for arm in table.arms if arm.endswith(WARM) == bool(warm)] for warm in ("", WARM)}
    curves = {"training loss": TRAINING_LOSS, "test accuracy": TEST_ACCURACY}
    titles = {(warm, title): f"{title}{warm}" for warm, arms in rows.items() if arms for title in curves}
    figure, axes = panels(list(titles.values()), columns=2)
    for (warm, title), name in titles.items():
        draw_loss(axes[name], table, rows[warm], curves[title])
    figure.suptitle("convolutions of VGG-16 with BN, from the lowest: 1 trained, 0 blocked", fontsize=11)
    return figure


def loss_at_end(record: Record) -> float:
    """The training loss of the last tenth; infinite if it diverged."""
    return float("inf") if record.has_diverged else record.last(FINAL_LOSS)


@claim(
    "networks with blocked layers can still decrease the loss",
    paper="“the network with certain layers being in states of weight domination can still decrease the loss”",
)
def still_learns(table: Table) -> Outcome:
    """From the first look to the end, in every run with a blocked layer."""
    cases, details = [], []
    for arm in BLOCKED:
        runs = table.arm(arm)
        first = [next(iter(record.series(TRAINING_LOSS).values())) for record in runs]
        last = [loss_at_end(record) for record in runs]
        cases += [b < a for a, b in zip(first, last, strict=True)]
        details += [f"{arm} from {number(fmean(first))} to {number(fmean(last))}"] if runs else []
    return judged(cases, ", ".join(details))


def degenerates(
    what: str,
    of: Callable[[Record], float],
    in_words: Callable[[list[float]], str],
    error: Callable[[Table], float],
    *,
    warm: str = "",
) -> Claim:
    """Every blocked network ends with more of something than the free one, by the means over seeds.

    One that was not run counts as a tie.

    Args:
        what: Of what.
        of: Takes it from a run.
        in_words: Puts it into words.
        error: A difference that means nothing.
        warm: What the names of the arms end with.
    """

    @claim(
        f"with blocked layers the {what} is higher than without{', if the rate is warmed up' if warm else ''}",
        paper="“but with degenerated performance”; it does not say in what",
        is_ours=bool(warm),
        needs=END,
    )
    def check(table: Table) -> Outcome:
        runs = {digits: table.arm(f"{digits}{warm}") for digits in (FREE, *BLOCKED)}
        seeds = {digits: [of(record) for record in cells] for digits, cells in runs.items() if len(cells)}
        if FREE not in seeds:
            return judged([], "")
        details = [f"{digits} {in_words(seeds[digits])}" if digits in seeds else f"{digits} not run" for digits in runs]
        cases = [
            is_greater(seeds[digits], seeds[FREE], at_least=error(table)) if digits in seeds else None
            for digits in BLOCKED
        ]
        return judged(cases, ", ".join(details))

    return check


Measured = tuple[str, Callable[[Record], float], Callable[[list[float]], str], Callable[[Table], float]]
OF_LOSS: Measured = ("training loss", loss_at_end, lambda losses: number(fmean(losses)), lambda table: 0.0)
OF_ERROR: Measured = ("test error", percent_wrong, percent, noise_of_a_test)
BY_SEEDS = (
    "0111, 1011 and 0000 are worse in both seeds. 1101 ends at 11.7 and 12.3 %, 1111 at 11.1 and 11.6 %, less apart "
    "than 10,000 images distinguish; 1110 at 11.3 and 15.0 %."
)
WARMED_UP = (
    "Only 1011 and 0000 have a higher loss in both seeds, 0.185 or more against 0.121 and 0.182 of 1111. That of 1110 "
    "is 0.144 and 0.181: next to a warm-up, what the last convolutions learn makes no difference that two seeds show."
)
WARMED_UP_TEST = (
    "1110 is as good as 1111 in both seeds (10.6 and 11.3 %, 10.5 and 11.6 %): its last four convolutions need not "
    "learn. 0111, 1011 and 0000 are worse in both, and 1101 by more than 10,000 images distinguish."
)

EXPERIMENT = Experiment(
    name="huang2020-fig12",
    title="Weight domination, simulated by layers that are not updated",
    says="A network with certain layers in the state of weight domination can still decrease the loss, but with "
    "degenerated performance. A 0 stands for consecutive convolutions whose updates are blocked, the first digit for "
    "the first three.",
    arms={digits: {"trained": digits} for digits in (FREE, *BLOCKED)}
    | {f"{digits}{WARM}": {"trained": digits, "warm_up_steps": WARM_UP} for digits in (FREE, *BLOCKED)},
    scales={
        "smoke": SMOKE | NETWORK | {"arms": [FREE, "0000"], "size": 32, "epochs": 2},
        "gpu": CIFAR | NETWORK | {"arms": [FREE, *BLOCKED], "seeds": 2, "epochs": 6, "half": True},
        "paper": CIFAR | NETWORK | {"seeds": 2, "epochs": 40, "half": True},
    },
    measure=measure,
    claims=[
        still_learns,
        degenerates(*OF_LOSS),
        degenerates(*OF_ERROR).because("paper", "seeds", BY_SEEDS),
        degenerates(*OF_LOSS, warm=WARM).because("paper", "seeds", WARMED_UP),
        degenerates(*OF_ERROR, warm=WARM).because("paper", "our claim does not hold here", WARMED_UP_TEST),
    ],
    draw=draw,
    minutes={"smoke": 0.05, "gpu": 0.5, "paper": 8.0},
    contrast=[(FREE, "0111")],
    silent=["epochs", "drops", "lr", "weight_decay", "momentum", "batch", "augment", "half", "warm_up_steps"],
    departures=[
        "VGG-16 has 13 convolutions, and the source says of its first digit alone that it stands for three: here the "
        "last of four stands for four, the others for three. It does not say which digits it shows.",
        "Gains and shifts of BN and the last layer are trained in all networks.",
        "The source does not say how this network is trained; here as its residual networks, with Nesterov's momentum "
        "as in its published code (huangleiBuaa/LayerwiseCA on GitHub), and without weight decay. At "
        "a rate of 0.1 the loss first rises above that of guessing, so every network is also trained with 400 steps at "
        "a tenth of the rate first.",
    ],
)
