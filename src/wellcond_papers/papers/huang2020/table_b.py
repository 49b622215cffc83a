"""Table B of huang2020: networks without BN, and with one BN before the last linear layer, on CIFAR-10."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any

from wellcond.report.figures.style import GRAY, look_of
from wellcond.results import Row
from wellcond_papers.experiments.claims import END, Claim, Outcome, claim, is_greater, judged
from wellcond_papers.experiments.experiment import Experiment, Job
from wellcond_papers.experiments.pictures import panels
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.huang2020.networks import AS_PUBLISHED, CIFAR, SMOKE, build, percent_wrong, trained
from wellcond_papers.papers.percentages import error_of_test, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEPTHS = (20, 44, 56, 110)
PAPER = {
    "VGG": (14.88, 33.90, 89.93, 90.0),
    "VGG-LastBN": (12.89, 18.40, 23.40, 73.99),
    "ResNet": (11.21, 9.90, 9.48, 8.93),
    "ResNet-LastBN": (10.31, 8.99, 8.61, 8.37),
}
"""Test errors in percent, by depth."""
PAPER_SPREAD = {
    "VGG": (0.47, 7.1, 0.12, 0),
    "VGG-LastBN": (0.20, 0.90, 1.74, 16),
    "ResNet": (0.14, 0.31, 0.07, 0.22),
    "ResNet-LastBN": (0.25, 0.25, 0.05, 0.07),
}
"""Their ±."""
FAMILIES: dict[str, dict[str, Any]] = {
    "VGG": {"network": "VGG-style"},
    "ResNet": {"network": "ResNet"},
    "small ResNet": {"network": "ResNet", "init": "default"},
}
"""Without LastBN. The convolutions of "small ResNet" start as torch's own do, with a sixth of the variance."""
GUESSING = 90.0
LAST_BN = {family: f"{family}-LastBN" for family in FAMILIES}


def arm(family: str, depth: int) -> str:
    """What the network of a depth is called."""
    return f"{family}, {depth} layers"


ARMS = {
    arm(name, depth): {**settings, "last_norm": name != family, "norm": "none", "depth": depth, "lr": 0.01}
    for family, settings in FAMILIES.items()
    for name in (family, LAST_BN[family])
    for depth in DEPTHS
}
OF_SMOKE = [arm(name, 20) for name in ("VGG", "VGG-LastBN", "ResNet", "ResNet-LastBN")]


def measure(job: Job) -> list[Row]:
    """Train one network."""
    return trained(job, build(job))


def errors(table: Table, family: str) -> dict[int, list[float]]:
    """The test errors of all seeds in percent, by depth."""
    by_depth = {depth: [percent_wrong(record) for record in table.arm(arm(family, depth))] for depth in DEPTHS}
    return {depth: values for depth, values in by_depth.items() if values}


def in_words(table: Table, family: str) -> str:
    """Mean errors by depth, and how many runs diverged."""
    parts = []
    for depth, values in errors(table, family).items():
        diverged = sum(record.has_diverged for record in table.arm(arm(family, depth)))
        note = f" ({diverged} of {len(values)} diverged)" if diverged else ""
        parts.append(f"{percent(values)} at {depth}{note}")
    return f"{family}: {', '.join(parts)}"


def in_paper(family: str) -> str:
    """The paper's errors by depth."""
    published = family.removeprefix("small ")
    cells = zip(PAPER[published], PAPER_SPREAD[published], DEPTHS, strict=True)
    return f"{published}: {', '.join(f'{error:.2f} ± {spread:g} % at {depth}' for error, spread, depth in cells)}"


def draw(table: Table) -> Figure:
    """Errors against the depth, every seed a point, with the paper's in gray."""
    figure, axes = panels(list(FAMILIES))
    for family, panel in axes.items():
        for place, name in enumerate((family, LAST_BN[family])):
            look = look_of(place)
            by_depth = errors(table, name)
            panel.plot(list(by_depth), [fmean(values) for values in by_depth.values()], **look, label=name)
            for depth, values in by_depth.items():
                panel.plot([depth] * len(values), values, "o", color=look["color"], markersize=4)
            published = name.removeprefix("small ")
            theirs = {"color": GRAY, "linestyle": look["linestyle"], "linewidth": 1, "label": f"{published}, paper"}
            panel.plot(DEPTHS, PAPER[published], **theirs)
        panel.set_ylim(0, 100)
        panel.set_xticks(DEPTHS)
        panel.set_xlabel("layers")
        panel.set_ylabel("test error, %")
        panel.legend(frameon=False, fontsize=8)
    return figure


def is_guessing(seeds: Sequence[float]) -> bool:
    """Whether a network learned nothing, within a percent, in every seed."""
    return min(seeds) > GUESSING - 1


def is_above(ours: Sequence[float], theirs: Sequence[float]) -> bool | None:
    """Whether one mean error in percent is above another, by more than the choice of the test images explains."""
    return is_greater(ours, theirs, at_least=100 * error_of_test([error / 100 for error in (*ours, *theirs)]))


def improves(family: str) -> Claim:
    """LastBN has the smaller mean error at every depth."""
    both = (family, LAST_BN[family])

    @claim(
        f"for all depths, LastBN improves {family}",
        paper="; ".join(map(in_paper, both)),
        is_ours=family not in PAPER,
        needs=END,
    )
    def check(table: Table) -> Outcome:
        without, with_it = (errors(table, name) for name in both)
        depths = [depth for depth in without if depth in with_it]
        cases = [is_above(without[depth], with_it[depth]) for depth in depths]
        return judged(cases, "; ".join(in_words(table, name) for name in both) if cases else "")

    return check


def changes_with_depth(family: str, direction: str, sign: int) -> Claim:
    """The mean error rises (sign 1) or falls (−1) from each depth to the next; two that guess say nothing."""

    @claim(f"{family} gets {direction} with depth", paper=in_paper(family), is_ours=family not in PAPER, needs=END)
    def check(table: Table) -> Outcome:
        steps = [pair for pair in pairwise(errors(table, family).values()) if not all(map(is_guessing, pair))]
        cases = [is_above(*(pair if sign < 0 else pair[::-1])) for pair in steps]
        return judged(cases, in_words(table, family) if cases else "")

    return check


@claim(
    "VGG with 56 layers learns nothing without LastBN, and learns with it",
    paper="89.93 ± 0.12 % and 23.40 ± 1.74 %",
    needs=END,
)
def learns_at_all(table: Table) -> Outcome:
    """Within a percent of guessing, and better than that, in every seed."""
    without, with_it = (errors(table, name).get(56, []) for name in ("VGG", "VGG-LastBN"))
    details = f"{', '.join(f'{e:.1f} %' for e in without)} without; {', '.join(f'{e:.1f} %' for e in with_it)} with it"
    if not without or not with_it:
        return judged([], "")
    return judged([is_guessing(without), *(not is_guessing([error]) for error in with_it)], details)


@claim(
    "ResNets without BN can be trained at every depth with a rate of 0.01",
    paper=f"{in_paper('ResNet')}; no initialization is named",
)
def can_be_trained(table: Table) -> Outcome:
    """In every seed, with either initialization; a run that diverged cannot."""
    families = [family for family in FAMILIES if family != "VGG"]
    cases = [
        not record.has_diverged for family in families for depth in DEPTHS for record in table.arm(arm(family, depth))
    ]
    return judged(cases, "; ".join(in_words(table, family) for family in families) if cases else "")


EXPERIMENT = Experiment(
    name="huang2020-table-b",
    title="One BN before the last linear layer of networks without BN",
    says="For all depths, putting a BN before the last linear layer of VGG-style and residual networks without BN "
    "improves the test error.",
    arms=ARMS,
    scales={
        "smoke": SMOKE | {"arms": OF_SMOKE, "size": 8, "images": 128, "tested": 100, "epochs": 1, "width": 4},
        "gpu": CIFAR | {"seeds": 2, "epochs": 8, "half": True},
        "paper": CIFAR | {"seeds": 3},
    },
    measure=measure,
    claims=[
        *map(improves, FAMILIES),
        can_be_trained.because(
            "gpu",
            "depends on a setting that differs here, or that the source does not name",
            "With the initialization that the authors' published code has for networks with BN, every block without BN "
            "doubles the signal or more, and from 44 layers on all runs diverge; with torch's own, a sixth of its "
            "variance, all train. The source names no initialization for Table B.",
        ),
        changes_with_depth("VGG", "worse", 1),
        changes_with_depth("ResNet", "better", -1),
        changes_with_depth("small ResNet", "better", -1),
        learns_at_all,
    ],
    draw=draw,
    silent=["half", "init"],
    minutes={"smoke": 0.05, "gpu": 9.0, "paper": 300.0},
    contrast=[(arm(family, 20), arm(LAST_BN[family], 20)) for family in ("VGG", "ResNet")],
    departures=[
        "All networks have a rate of 0.01. The paper gives it for networks without BN, and none for LastBN.",
        "The authors' published code has no networks for Table B. With the initialization that it has for those with "
        "BN, every block of a residual network without BN doubles the signal or more, and deep ones cannot be trained "
        "at this rate. They are therefore also shown with a smaller initialization, as `small ResNet`.",
        AS_PUBLISHED,
    ],
)
