"""Figure 1 of zhang2018: learning curves of VGG-13 with SGD and with scale-amended SGD."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import correlation, fmean
from typing import TYPE_CHECKING, Any

from wellcond.results import Row
from wellcond.results.quantities import TEST_ACCURACY, TRAINING_LOSS
from wellcond_papers.experiments.claims import END, CauseKind, Outcome, claim, is_greater, judged
from wellcond_papers.experiments.experiment import Experiment
from wellcond_papers.experiments.pictures import draw_over_training, panels
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.percentages import TEST_IMAGES, error_of_test
from wellcond_papers.papers.zhang2018.training import AMENDED, DATA, DEPARTURES, OWN_RATE, SETTINGS, SILENT, measure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMMON: dict[str, Any] = SETTINGS | {"depth": 13, "weight_decay": 5e-3}
ARMS = {
    f"{data}, {method}": {"data": name, "method": method, "lr": OWN_RATE[data] if method == AMENDED else 0.1}
    for data, name in DATA.items()
    for method in ("SGD", AMENDED)
}
GPU = COMMON | {"width": 64, "test_images": None, "epochs": 7, "half": True, "schedule": "cosine", "seeds": 2}
PAPER = COMMON | {"width": 64, "test_images": None, "epochs": 300, "half": True, "schedule": "plateau"}
IN_BFLOAT16 = "At `paper` passes are in bfloat16, and weights in float32; the source does not name its precision."
POINT = 0.01
ALMOST_ALWAYS = 0.9
"""The share of the epochs in which a curve is "almost always" the lower one."""
SIMILAR = 0.9
"""The correlation of the logarithms of two curves with "similar trend"."""
NOT_HERE: CauseKind = "the paper's claim does not hold here"
CONSIDERABLY = (
    "The source does not say how much is “considerably” lower: errors on the test images that differ by less than the "
    "standard deviation that the choice of these images leaves, 0.27 points on CIFAR-10 and 0.45 on CIFAR-100, are "
    "level. The first check asked for 0.2 points; it was changed after seeing results, and is the stricter one."
)


def curves(table: Table, data: str, quantity: str) -> tuple[dict[int, float], dict[int, float]] | None:
    """The curves of SGD and of scale-amended SGD, means of the seeds, at the steps that both reached."""
    curves = [table.arm(f"{data}, {method}").mean_series(quantity) for method in ("SGD", AMENDED)]
    shared = sorted(curves[0].keys() & curves[1].keys())
    if not shared:
        return None
    sgd, amended = ({step: curve[step] for step in shared} for curve in curves)
    return sgd, amended


def percent_wrong(table: Table) -> Table:
    """The table with the test error in percent, which the source draws, in place of the test accuracy."""

    def changed(row: Row) -> Row:
        return row._replace(value=100 * (1 - row.value)) if row.quantity == TEST_ACCURACY else row

    return Table([replace(record, rows=[changed(row) for row in record.rows]) for record in table])


SHOWN = {"training loss": TRAINING_LOSS, "test error, %": TEST_ACCURACY}
"""The panels, of a table with errors in place of accuracies."""


def in_words(errors: list[float]) -> str:
    """The mean of the seeds and their range, in percent."""
    return f"{fmean(errors):.1f} %" + (f" ({min(errors):.1f} to {max(errors):.1f})" if len(errors) > 1 else "")


def sampling_error(table: Table, accuracies: list[float]) -> float:
    """The standard deviation of an accuracy that comes from the choice of the test images alone."""
    return error_of_test(accuracies, table[0].settings.get("test_images") or TEST_IMAGES)


@claim(
    "the learning curves of both, of the training loss and of the test error, have a similar trend: their logarithms "
    "correlate by more than 0.9",
    paper='"have similar trend"',
    needs=END,
)
def similar_trend(table: Table) -> Outcome:
    """A weak test: most pairs of falling curves pass it."""
    alike = {}
    for data in DATA:
        for title, quantity in SHOWN.items():
            if (pair := curves(percent_wrong(table), data, quantity)) and len(pair[0]) > 2:
                sgd, amended = ([math.log(value) for value in curve.values()] for curve in pair)
                alike[f"{data}, {title.removesuffix(', %')}"] = correlation(sgd, amended)
    words = [f"{curve} {value:.2f}" for curve, value in alike.items()]
    return judged([each > SIMILAR for each in alike.values()], f"correlation: {'; '.join(words)}" if words else "")


@claim(
    "the training loss of scale-amended SGD is almost always, in nine epochs of ten, the lower one",
    paper='"almost always lower"',
    needs=END,
)
def lower_loss(table: Table) -> Outcome:
    """On each data set, in nine epochs of ten; a tie if only epochs that are too close to tell stand against it."""
    cases: list[bool | None] = []
    words = []
    for data in DATA:
        if pair := curves(table, data, TRAINING_LOSS):
            seeds = [[r.series(TRAINING_LOSS) for r in table.arm(f"{data}, {name}")] for name in ("SGD", AMENDED)]
            lower = [is_greater(*([own[step] for own in each if step in own] for each in seeds)) for step in pair[0]]
            sure, possible = (lower.count(True) / len(lower), 1 - lower.count(False) / len(lower))
            cases.append(True if sure >= ALMOST_ALWAYS else None if possible >= ALMOST_ALWAYS else False)
            ties = f", too close to tell in {lower.count(None)}" if None in lower else ""
            words.append(f"{data}: lower in {lower.count(True)} of {len(lower)} epochs{ties}")
    return judged(cases, "; ".join(words))


@claim(
    "scale-amended SGD ends with a lower test error, by more than the choice of the test images explains",
    paper='"a considerably lower number", which is not named',
    needs=END,
)
def lower_error(table: Table) -> Outcome:
    """On each data set, by the means of the seeds."""
    cases, words = [], []
    for data in DATA:
        ends = {method: table.arm(f"{data}, {method}").lasts(TEST_ACCURACY) for method in ("SGD", AMENDED)}
        if all(ends.values()):
            cases.append(is_greater(ends[AMENDED], ends["SGD"], at_least=sampling_error(table, ends["SGD"])))
            errors = {method: [100 * (1 - share) for share in shares] for method, shares in ends.items()}
            lead = fmean(errors["SGD"]) - fmean(errors[AMENDED])
            gap = f"{abs(lead):.2f} points {'lower' if lead > 0 else 'higher'}"
            words.append(f"{data}: {in_words(errors[AMENDED])}, SGD {in_words(errors['SGD'])}: {gap}")
    return judged(cases, "; ".join(words))


@claim(
    "scale-amended SGD is faster: it is the first to come within a point of the lower of both final test errors",
    paper="speed is not named",
    is_ours=True,
    needs=END,
)
def faster(table: Table) -> Outcome:
    """On each data set, by the means of the seeds; a run that does not come there counts with its length."""
    cases, words = [], []
    for data in DATA:
        runs = {
            method: [list(run.series(TEST_ACCURACY).values()) for run in table.arm(f"{data}, {method}")]
            for method in ("SGD", AMENDED)
        }
        if all(runs.values()):
            goal = max(fmean(run[-1] for run in own) for own in runs.values()) - POINT
            epochs = {method: [_first(run, goal) for run in own] for method, own in runs.items()}
            cases.append(is_greater(epochs["SGD"], epochs[AMENDED]))
            words.append(f"{data}: after {fmean(epochs[AMENDED]):.0f} epochs, SGD after {fmean(epochs['SGD']):.0f}")
    return judged(cases, "; ".join(words))


def _first(accuracies: list[float], goal: float) -> int:
    """The first epoch with such an accuracy; their number if there is none."""
    return next((epoch for epoch, each in enumerate(accuracies) if each >= goal), len(accuracies))


def draw(table: Table) -> Figure:
    """Training loss and test error of both methods, for each data set."""
    present = [data for data in DATA if any(arm.startswith(f"{data},") for arm in table.arms)]
    figure, axes = panels([f"{data}: {title}" for data in present for title in SHOWN], columns=2)
    for data in present:
        own = percent_wrong(Table([record for record in table if record.arm.startswith(f"{data},")]))
        for title, quantity in SHOWN.items():
            panel = axes[f"{data}: {title}"]
            draw_over_training(panel, own, quantity)
            panel.legend(frameon=False, fontsize=8)
    return figure


EXPERIMENT = Experiment(
    name="zhang2018-fig1",
    title="Learning curves of SGD and scale-amended SGD",
    says="VGG-13 from the same weights on the same batches: the curves of both have a similar trend; scale-amended SGD "
    "has almost always the lower training loss and ends with a considerably lower test error.",
    arms=ARMS,
    scales={
        "smoke": COMMON
        | {"depth": 11, "width": 4, "count": 256, "test_images": 50, "epochs": 2, "half": False, "schedule": "cosine"}
        | {"arms": {f"CIFAR-10, {method}": {"data": "digits"} for method in ("SGD", AMENDED)}},
        "laptop": COMMON
        | {
            "width": 16,
            "count": 5120,
            "test_images": 1000,
            "epochs": 5,
            "half": False,
            "schedule": "cosine",
            "seeds": 2,
        }
        | {"arms": [f"CIFAR-10, {method}" for method in ("SGD", AMENDED)]},
        "gpu": GPU,
        "paper": PAPER,
    },
    measure=measure,
    claims=[
        similar_trend.because(
            "paper",
            NOT_HERE,
            "On CIFAR-10 scale-amended SGD is within a point of the lower final test error after 68 epochs, and SGD "
            "after 161: both curves fall to the same level, one long before the other.",
        ),
        lower_loss.because(
            "gpu",
            "too short to tell",
            "In 7 of 300 epochs SGD is still recovering from its first steps: its mean loss over the first epoch on "
            "CIFAR-10 is 3.0 and 3.1, above the 2.3 of chance.",
        ).because(
            "paper",
            NOT_HERE,
            "It is the lower one in each of the first 218 epochs on CIFAR-10 and 157 on CIFAR-100. By then both "
            "methods have fitted the images; over the last 50 it stays 2 to 21 % above that of SGD, below 0.001 and "
            "0.008.",
        ),
        lower_error.because(
            "gpu",
            "too short to tell",
            "The 3.7 points on CIFAR-10 show how soon each method recovers from its first steps, not where it ends: "
            "after 300 epochs, with another rate and weight decay, the source's Table 1 has 0.2 points. On CIFAR-100 "
            "the seeds disagree.",
        ).because(
            "paper",
            NOT_HERE,
            "One run each: 0.38 points higher on CIFAR-10 and 0.25 lower on CIFAR-100, where the choice of the 10,000 "
            "test images alone leaves 0.27 and 0.45. What is left of the lead is speed.",
        ),
        faster,
    ],
    draw=draw,
    minutes={"smoke": 0.02, "laptop": 2, "gpu": 0.9, "paper": 8.5},
    contrast=[(f"{data}, SGD", f"{data}, {AMENDED}") for data in DATA],
    departures=(*DEPARTURES, IN_BFLOAT16, CONSIDERABLY),
    silent=SILENT,
)
