"""Table 1 of zhang2018: test accuracy of four methods on VGG-11, 13, 16 and 19."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING, Any

from wellcond.report.figures.style import COLORS, GRAY, bare_axes, legend_below
from wellcond.results.quantities import DIVERGED_AT, TEST_ACCURACY
from wellcond_papers.experiments.claims import Outcome, claim, judged
from wellcond_papers.experiments.experiment import Experiment
from wellcond_papers.experiments.pictures import panels
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.zhang2018.training import DATA, OWN_RATE, SETTINGS, measure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEPTHS = (11, 13, 16, 19)
PAPER = {
    "CIFAR-10": {
        "SGD": (92.34, 93.90, 93.72, 93.47),
        "LARS": (91.81, 93.40, 93.47, 93.48),
        "LSALR": (92.58, 93.68, 93.35, 93.46),
        "scale-amended": (92.45, 94.11, 93.90, 93.88),
    },
    "CIFAR-100": {
        "SGD": (71.84, 74.07, 72.86, 71.35),
        "LARS": (67.26, 70.35, 69.90, 69.52),
        "LSALR": (71.14, 73.74, 73.14, 70.76),
        "scale-amended": (73.39, 75.32, 74.68, 72.82),
    },
}
"""Per cent, the median of three runs, at each depth."""
AMENDED = "scale-amended"
TRUSTED = "LARS, coefficient 0.001"
"""LARS as its authors use it; as zhang2018 prints it, every step moves a weight by twice its norm."""


def settings(method: str, data: str) -> dict[str, Any]:
    """The settings of a method on one of the data sets."""
    if method == AMENDED:
        return {"method": AMENDED, "lr": OWN_RATE[data], "weight_decay": 5e-3}
    if method in ("LARS", TRUSTED):
        return {"method": "LARS", "lr": 2.0, "weight_decay": 1e-3, "trust": 1.0 if method == "LARS" else 1e-3}
    return {"method": method, "lr": 0.1, "weight_decay": 1e-3}


METHODS = ("SGD", "LARS", TRUSTED, "LSALR", AMENDED)
ARMS = {
    f"VGG-{depth}, {data}, {method}": {"depth": depth, "data": DATA[data], **settings(method, data)}
    for data in DATA
    for depth in DEPTHS
    for method in METHODS
}


def accuracy(table: Table, depth: int, data: str, method: str) -> float | None:
    """Per cent at the end, the median of the seeds; None if the cell was not run or a run diverged."""
    runs = table.arm(f"VGG-{depth}, {data}, {method}")
    if not runs or any(record.has_diverged for record in runs):
        return None
    return 100 * median(runs.lasts(TEST_ACCURACY))


def ran(table: Table, data: str) -> Iterator[tuple[int, dict[str, float | None]]]:
    """The accuracies of all methods at each depth that was run."""
    for depth in DEPTHS:
        methods = [method for method in METHODS if f"VGG-{depth}, {data}, {method}" in table.arms]
        if methods:
            yield depth, {method: accuracy(table, depth, data, method) for method in methods}


def in_words(table: Table, data: str) -> str:
    """The accuracies, as text."""
    parts = []
    for depth, runs in ran(table, data):
        each = [f"{method} {'diverged' if value is None else f'{value:.1f}'}" for method, value in runs.items()]
        parts.append(f"VGG-{depth}: {', '.join(each)}")
    return "in percent, " + "; ".join(parts) if parts else ""


def best(table: Table, data: str, rivals: tuple[str, ...], depths: tuple[int, ...] = DEPTHS) -> list[bool]:
    """Whether scale-amended SGD is ahead of these methods at each depth."""
    cases = []
    for depth, runs in ran(table, data):
        if depth not in depths:
            continue
        own = runs.get(AMENDED)
        others = [runs[method] for method in rivals if method in runs]
        if AMENDED in runs and others:
            cases.append(own is not None and all(other is None or own > other for other in others))
    return cases


@claim(
    "scale-amended SGD is the best of the paper's four methods on CIFAR-100",
    paper="73.39, 75.32, 74.68, 72.82 %: ahead of SGD by 1.2 to 1.8 points",
)
def _best_on_cifar100(table: Table) -> Outcome:
    return judged(best(table, "CIFAR-100", ("SGD", "LARS", "LSALR")), in_words(table, "CIFAR-100"))


@claim("so it is on CIFAR-10, but for VGG-11", paper="94.11, 93.90, 93.88 %; VGG-11: LSALR 92.58 %")
def _best_on_cifar10(table: Table) -> Outcome:
    return judged(best(table, "CIFAR-10", ("SGD", "LARS", "LSALR"), DEPTHS[1:]), in_words(table, "CIFAR-10"))


@claim(
    "scale-amended SGD is ahead of SGD everywhere", paper="by 0.1 to 0.4 points on CIFAR-10, 1.3 to 1.8 on CIFAR-100"
)
def _ahead_of_sgd(table: Table) -> Outcome:
    cases, words = [], []
    for data in DATA:
        cases += best(table, data, ("SGD",))
        for depth, runs in ran(table, data):
            own, other = runs.get(AMENDED), runs.get("SGD")
            if own is not None and other is not None:
                words.append(f"VGG-{depth}, {data}: {own - other:+.1f} points")
    return judged(cases, "; ".join(words))


@claim("LARS trains with lr 2 as printed", paper="67.26 to 93.48 %")
def _lars(table: Table) -> Outcome:
    cases, words = [], []
    for arm in table.arms:
        if arm.endswith(", LARS"):
            runs = table.arm(arm)
            stopped, worst = runs.lasts(DIVERGED_AT), min(runs.lasts(TEST_ACCURACY), default=0.0)
            chance = 0.01 if "CIFAR-100" in arm else 0.1
            cases.append(not stopped and worst > 2 * chance)
            words.append(f"{arm}: {f'diverged at step {min(stopped):.0f}' if stopped else f'{100 * worst:.1f} %'}")
    return judged(cases, "; ".join(words))


def draw(table: Table) -> Figure:
    """Accuracy by depth and method, one panel per data set: a point for each run, a cross for the paper's median."""
    figure, panel = panels([data for data in DATA if any(ran(table, data))])
    for data, axes in panel.items():
        depths = [depth for depth, _ in ran(table, data)]
        for place, method in enumerate(METHODS):
            at = [k + (place - len(METHODS) // 2) / (len(METHODS) + 2) for k in range(len(depths))]
            axes.plot([], [], "o", color=COLORS[place], label=method)
            for x, depth in zip(at, depths, strict=True):
                for record in table.arm(f"VGG-{depth}, {data}, {method}"):
                    face = "none" if record.has_diverged else COLORS[place]
                    for value in record.series(TEST_ACCURACY) and [record.last(TEST_ACCURACY)]:
                        axes.plot([x], [100 * value], "o", color=COLORS[place], markerfacecolor=face)
            if method in PAPER[data]:
                published = [PAPER[data][method][DEPTHS.index(depth)] for depth in depths]
                axes.plot(at, published, "x", color=COLORS[place])
        axes.plot([], [], "o", color=GRAY, markerfacecolor="none", label="diverged")
        axes.plot([], [], "x", color=GRAY, label="paper")
        axes.set_xticks(range(len(depths)), [f"VGG-{depth}" for depth in depths])
        bare_axes(axes, y="test accuracy, %")
    legend_below(figure, next(iter(panel.values())), columns=4)
    return figure


EXPERIMENT = Experiment(
    name="zhang2018-table1",
    title="Test accuracy of SGD, LARS, LSALR and scale-amended SGD",
    says="VGG-11 to 19 on CIFAR-10 and CIFAR-100: scale-amended SGD is best on CIFAR-100 at every depth, and on "
    "CIFAR-10 at every depth but 11.",
    arms=ARMS,
    scales={
        "smoke": SETTINGS
        | {"width": 4, "count": 512, "test_images": 100, "epochs": 1, "half": False, "schedule": "cosine"}
        | {"arms": {f"VGG-11, CIFAR-10, {method}": {"data": "digits"} for method in METHODS}},
        "laptop": SETTINGS
        | {
            "width": 16,
            "count": 5120,
            "test_images": 1000,
            "epochs": 4,
            "half": False,
            "schedule": "cosine",
            "seeds": 2,
        }
        | {"arms": [f"VGG-11, CIFAR-10, {method}" for method in METHODS]},
        "gpu": SETTINGS
        | {"width": 64, "test_images": None, "epochs": 6, "half": True, "schedule": "cosine", "seeds": 2}
        | {
            "arms": [
                arm for arm, own in ARMS.items() if own["depth"] <= 13 and (own["depth"] == 11 or TRUSTED not in arm)
            ]
        },
        "paper": SETTINGS
        | {"width": 64, "test_images": None, "epochs": 300, "half": False, "schedule": "plateau", "seeds": 3}
        | {"arms": [arm for arm in ARMS if TRUSTED not in arm]},
    },
    measure=measure,
    claims=[_best_on_cifar100, _best_on_cifar10, _ahead_of_sgd, _lars],
    draw=draw,
    minutes={"smoke": 0.02, "laptop": 2, "gpu": 0.7, "paper": 12000},
    contrast=[(f"VGG-{depth}, {data}, SGD", f"VGG-{depth}, {data}, {AMENDED}") for data in DATA for depth in DEPTHS],
    departures=(
        "The source names neither the batch size (128 here) nor the angle of the rotations (up to 15 degrees).",
        "All methods use Nesterov momentum, which the source names for SGD.",
        "LARS with a coefficient of 0.001, as its authors use it, is not in the source's table, and is not counted "
        "when methods are ranked.",
    ),
)
