"""Figure XIV of huang2020: ResNet and ResNet-LastBN on ImageNet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wellcond.results import Row, number
from wellcond.results.quantities import TEST_ACCURACY, TRAINING_LOSS
from wellcond_papers.experiments.claims import Outcome, claim, judged
from wellcond_papers.experiments.experiment import Experiment, Job
from wellcond_papers.experiments.pictures import draw_over_training, panels
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.huang2020.networks import IMAGENET, ONE_SCALE, SMOKE, build, trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEPTHS = (18, 50)
ARMS = {
    f"ResNet-{depth}{suffix}": {"depth": depth, "last_norm": bool(suffix)}
    for depth in DEPTHS
    for suffix in ("", "-LastBN")
}
NETWORK = {"network": "ImageNet ResNet"}
PANELS = {"training loss": TRAINING_LOSS, "test accuracy": TEST_ACCURACY}


def measure(job: Job) -> list[Row]:
    """Train one network."""
    return trained(job, build(job))


def draw(table: Table) -> Figure:
    """Training loss and test accuracy over training, depth by depth."""
    figure, axes = panels([f"{title}, {depth} layers" for depth in DEPTHS for title in PANELS])
    for depth in DEPTHS:
        for title, quantity in PANELS.items():
            panel = axes[f"{title}, {depth} layers"]
            draw_over_training(panel, table.where(depth=depth), quantity)
            panel.legend(frameon=False)
    return figure


def is_lower(table: Table, depth: int, quantity: str, sign: int) -> tuple[list[bool], str]:
    """Whether LastBN has less (sign 1) or more (−1) of something at every look after the first, and both at the end."""
    plain, last = (table.arm(f"ResNet-{depth}{suffix}").mean_series(quantity) for suffix in ("", "-LastBN"))
    steps = [step for step in plain if step in last and step > 0]
    if not steps:
        return [], ""
    details = f"{depth} layers: {number(last[steps[-1]])} with LastBN, {number(plain[steps[-1]])} without"
    return [sign * last[step] < sign * plain[step] for step in steps], details


def compared(table: Table, title: str, sign: int) -> Outcome:
    """The same for both depths."""
    each = [is_lower(table, depth, PANELS[title], sign) for depth in DEPTHS]
    details = "; ".join(part for _, part in each if part)
    return judged([case for cases, _ in each for case in cases], f"{title} at the end: {details}" if details else "")


@claim("ResNet-LastBN is optimized more efficiently than ResNet, at both depths", paper="lower training error")
def trains_faster(table: Table) -> Outcome:
    """By the training loss, look by look."""
    return compared(table, "training loss", 1)


@claim("ResNet-LastBN has the lower test error, at both depths", paper="29.38 % and 29.78 %; 23.76 % and 23.97 %")
def tests_better(table: Table) -> Outcome:
    """By the test accuracy, look by look."""
    return compared(table, "test accuracy", -1)


EXPERIMENT = Experiment(
    name="huang2020-fig14",
    title="ResNet and ResNet-LastBN on ImageNet",
    says="ResNet-LastBN, with one BN before the last linear layer, is optimized more efficiently than ResNet, with 18 "
    "and with 50 layers.",
    arms=ARMS,
    scales={
        "smoke": SMOKE | NETWORK | {"images": 256, "epochs": 2, "width": 8},
        "paper": IMAGENET | NETWORK,
    },
    measure=measure,
    claims=[trains_faster, tests_better],
    draw=draw,
    minutes={"smoke": 0.05, "paper": 4000.0},
    contrast=[("ResNet-18", "ResNet-18-LastBN")],
    departures=["The training loss stands for the training error.", ONE_SCALE],
)
