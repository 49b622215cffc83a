"""Table 1 of zhang2018: test accuracy of four methods on VGG-11, 13, 16 and 19."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from wellcond.report.figures.style import COLORS, GRAY, bare_axes, legend_below
from wellcond.results.quantities import DIVERGED_AT, TEST_ACCURACY
from wellcond_papers.experiments.claims import END, Outcome, claim, judged
from wellcond_papers.experiments.experiment import Experiment
from wellcond_papers.experiments.pictures import panels
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.zhang2018.methods import (
    ARMS,
    CHOSEN,
    DEPTHS,
    METHODS,
    PAPER,
    POOLED,
    POOLS,
    PRINTED,
    RIVALS,
    TRUSTED,
    pool,
)
from wellcond_papers.papers.zhang2018.ranking import (
    accuracies,
    best,
    in_words,
    is_ahead,
    is_ahead_of_all,
    judged_of,
    middle,
    ours,
    ran,
)
from wellcond_papers.papers.zhang2018.training import AMENDED, DATA, DEPARTURES, SETTINGS, SILENT, measure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@claim(
    "scale-amended SGD achieves a higher test accuracy than its three competitors on CIFAR-100, on all four VGGs: the "
    "median is higher by more than the choice of the test images explains",
    paper='"with margins": 73.39, 75.32, 74.68, 72.82 %, ahead of SGD by 1.25 to 1.82 points',
    needs=END,
)
def _best_on_cifar100(table: Table) -> Outcome:
    return judged_of(len(DEPTHS), best(table, "CIFAR-100", RIVALS), in_words(table, "CIFAR-100"))


@claim(
    "so it does on CIFAR-10, with the exception of VGG-11 in the table itself",
    paper='"with margins": 94.11, 93.90, 93.88 %, ahead of the next by 0.21, 0.18 and 0.40 points; VGG-11: 92.45 '
    "against 92.58 % of LSALR",
    needs=END,
)
def _best_on_cifar10(table: Table) -> Outcome:
    return judged_of(len(DEPTHS) - 1, best(table, "CIFAR-10", RIVALS, DEPTHS[1:]), in_words(table, "CIFAR-10"))


@claim(
    "scale-amended SGD is ahead of SGD everywhere, by more than the choice of the test images explains",
    paper="by 0.11, 0.21, 0.18 and 0.41 points on CIFAR-10, 1.25 to 1.82 on CIFAR-100",
    needs=END,
)
def _ahead_of_sgd(table: Table) -> Outcome:
    cases, words = [], []
    for data in DATA:
        cases += best(table, data, ("SGD",))
        for depth, runs in ran(table, data):
            own, other = ours(runs), runs.get("SGD")
            if own and other:
                words.append(f"VGG-{depth}, {data}: {median(own) - median(other):+.1f} points")
    return judged_of(len(DATA) * len(DEPTHS), cases, "; ".join(words))


@claim(
    "LARS trains with η = 2, by the rule as printed",
    paper="it prints the rule and the rate, and reaches 67.26 to 93.48 %",
    is_ours=True,
)
def _lars(table: Table) -> Outcome:
    cases, words = [], []
    for arm in table.arms:
        if arm.endswith(", LARS"):
            runs = table.arm(arm)
            stopped, worst = runs.lasts(DIVERGED_AT), min(runs.lasts(TEST_ACCURACY), default=0.0)
            chance = 0.01 if "CIFAR-100" in arm else 0.1
            cases.append(not stopped and worst > 2 * chance)
            steps = ", ".join(f"{step:.0f}" for step in stopped)
            end = f"diverged at step{'s' * (len(stopped) > 1)} {steps}" if stopped else f"{100 * worst:.1f} %"
            words.append(f"{arm.removesuffix(', LARS')} {end}")
    return judged(cases, "; ".join(words))


@claim(
    "scale-amended SGD works better with η = 0.005 than with 0.1 on CIFAR-10",
    paper='"small learning rate η = 0.005 works better for CIFAR10"; the table has 0.1',
    needs=END,
)
def _small_rate(table: Table) -> Outcome:
    pairs = {
        depth: (runs[AMENDED], runs[PRINTED])
        for depth, runs in ran(table, "CIFAR-10")
        if {AMENDED, PRINTED} <= runs.keys()
    }
    words = [f"VGG-{depth} {middle(small)} against {middle(large)} %" for depth, (small, large) in pairs.items()]
    return judged([is_ahead(*pair) for pair in pairs.values()], "; ".join(words))


@claim(
    "the rate of every baseline is the best of its pool",
    paper="LSALR 0.1 of 0.006, 0.05, 0.1, 0.2, 0.5 and LARS 2 of 0.1, 1, 2, 5, 10, which achieve best performance; SGD "
    "0.1, which is “chosen” of 0.01, 0.05, 0.1, 0.2, 0.5",
    needs=END,
)
def _best_of_its_pool(table: Table) -> Outcome:
    cases: list[bool | None] = []
    words = []
    for method, chosen in CHOSEN.items():
        ends = {rate: accuracies(table, arm) for rate, arm in pool(method).items() if arm in table.arms}
        if chosen in ends and len(ends) == len(POOLS[method]):
            others = [other for rate, other in ends.items() if rate != chosen]
            cases.append(is_ahead_of_all(ends[chosen], others))
            each = [f"{middle(values)} ({rate:g})" for rate, values in ends.items()]
            words.append(f"{method} {', '.join(each)}")
    return judged_of(len(CHOSEN), cases, f"{POOLED}, in percent: {'; '.join(words)}" if words else "")


def draw(table: Table) -> Figure:
    """Accuracy less that of SGD, by depth and method: a point for each run, a cross for the paper's medians."""
    figure, panel = panels([f"Table 1, {data}" for data in DATA if any(ran(table, data))])
    shown = [
        method
        for method in METHODS[1:]
        if method in PAPER["CIFAR-10"] or any(arm.endswith(f", {method}") for arm in table.arms)
    ]
    for title, axes in panel.items():
        data = title.removeprefix("Table 1, ")
        depths = [depth for depth, _ in ran(table, data)]
        axes.axhline(0.0, color=GRAY, linewidth=1)
        for place, method in enumerate(shown):
            at = [k + (place - (len(shown) - 1) / 2) / (len(shown) + 2) for k in range(len(depths))]
            axes.plot([], [], "o", color=COLORS[place], label=method)
            for x, (_, runs) in zip(at, ran(table, data), strict=True):
                base, values = runs.get("SGD"), runs.get(method)
                if base and values:
                    axes.plot([x] * len(values), [value - median(base) for value in values], "o", color=COLORS[place])
                elif values == []:
                    label = axes.text(x, 0.5, "diverged", transform=axes.get_xaxis_transform(), rotation=90, fontsize=8)
                    label.set(color=COLORS[place], horizontalalignment="center", verticalalignment="center")
            if method in PAPER[data]:
                published = [PAPER[data][method][k] - PAPER[data]["SGD"][k] for k in map(DEPTHS.index, depths)]
                axes.plot(at, published, "x", color=COLORS[place], markersize=8)
        axes.plot([], [], "x", color=GRAY, label="paper")
        axes.set_xticks(range(len(depths)), [f"VGG-{depth}" for depth in depths])
        bare_axes(axes, y="test accuracy less that of SGD, points")
    legend_below(figure, next(iter(panel.values())), columns=3)
    return figure


RECOVERING = "In 6 of 300 epochs the order is that in which methods recover from their first steps."
EXPERIMENT = Experiment(
    name="zhang2018-table1",
    title="Test accuracy of SGD, LARS, LSALR and scale-amended SGD",
    says="VGG-11 to 19 on CIFAR-10 and CIFAR-100: scale-amended SGD is best on CIFAR-100 at every depth, and on "
    "CIFAR-10 at every depth but 11.",
    arms=ARMS,
    scales={
        "smoke": SETTINGS
        | {"width": 4, "count": 256, "test_images": 50, "epochs": 1, "half": False, "schedule": "cosine"}
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
                f"VGG-{depth}, {data}, {method}"
                for data in DATA
                for depth, methods in ((11, (*RIVALS, TRUSTED, AMENDED)), (13, (*RIVALS, AMENDED)))
                for method in methods
            ]
        },
        "paper": SETTINGS
        | {"width": 64, "test_images": None, "epochs": 300, "half": False, "schedule": "plateau", "seeds": 3},
    },
    measure=measure,
    claims=[
        _best_on_cifar100.because(
            "gpu", "too short to tell", f"{RECOVERING} LARS with its coefficient leads by 6 points."
        ),
        _best_on_cifar10.because(
            "gpu", "too short to tell", f"{RECOVERING} Scale-amended SGD ran at 0.005, not at 0.1."
        ),
        _ahead_of_sgd.because(
            "gpu",
            "too short to tell",
            "Leads of 6 to 17 points after 6 of 300 epochs are not the paper's of 0.1 to 1.8: SGD at 0.1 has lost its "
            "first epoch, with a mean loss of 2.9 to 3.1 on CIFAR-10, where chance is 2.3.",
        ),
        _lars.because(
            "gpu",
            "depends on a setting that differs here, or that the source does not name",
            "As printed, every step moves a weight by twice its norm. With the coefficient of 0.001 that its authors "
            "use, LARS trains (VGG-11: 84.4 and 56.6 % in 6 epochs); most likely the source had one too.",
        ).because(
            "paper",
            "depends on a setting that differs here, or that the source does not name",
            "As at `gpu`: every step moves a weight by twice its norm, and VGG-11 and VGG-13 diverge within 48 steps.",
        ),
        _small_rate,
        _best_of_its_pool,
    ],
    draw=draw,
    minutes={"smoke": 0.02, "laptop": 2, "gpu": 0.7, "paper": 700},
    contrast=[(f"VGG-{depth}, {data}, SGD", f"VGG-{depth}, {data}, {AMENDED}") for data in DATA for depth in DEPTHS],
    departures=(
        *DEPARTURES,
        "LARS with a coefficient of 0.001, as its authors use it, is not in the source's table, and is not counted "
        "when methods are ranked.",
        "The source prints two rates of scale-amended SGD on CIFAR-10: 0.1 for the table, 0.005 for figure 1. Both are "
        "arms at `paper`, where that of the table is judged; the smaller scales ran 0.005. So far that of the table "
        "has diverged within the first epoch, at step 76 with VGG-11 and at step 88 with VGG-13, one run each.",
        "The pools of rates are compared on VGG-11 and CIFAR-10; the source does not name the network.",
        "Medians that differ by less than the standard deviation that the choice of the 10,000 test images leaves are "
        "level; at the source's accuracies on CIFAR-10 that is 0.24 to 0.27 points. So are the source's own leads over "
        "SGD there, 0.11 points for VGG-11, 0.21 for VGG-13 and 0.18 for VGG-16: its own numbers would make claims 2 "
        "and 3 hold in part. The first check asked for 0.2 points; no run had been long enough to be judged by it.",
    ),
    silent=SILENT,
)
