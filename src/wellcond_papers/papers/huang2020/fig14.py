"""Figure XIV of huang2020: ResNet and ResNet-LastBN on ImageNet."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from wellcond.results import Row, number
from wellcond.results.quantities import TEST_ACCURACY, TRAINING_LOSS
from wellcond_papers.experiments.claims import END, Outcome, claim, is_greater, judged
from wellcond_papers.experiments.experiment import Experiment, Job
from wellcond_papers.experiments.pictures import draw_over_training, panels
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.huang2020.networks import (
    IMAGENET,
    ITS_DROPS,
    ON_IMAGENET,
    SMOKE,
    STAND_IN,
    build,
    noise_of_a_test,
    percent_wrong,
    trained,
)

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
    places = {
        f"({letter}) {title}, {depth} layers": (depth, quantity)
        for letter, depth in zip("ab", DEPTHS, strict=True)
        for title, quantity in PANELS.items()
    }
    figure, axes = panels(list(places))
    for title, (depth, quantity) in places.items():
        panel = axes[title]
        draw_over_training(panel, table.where(depth=depth), quantity)
        panel.legend(frameon=False)
    return figure


@claim(
    "ResNet-LastBN has a better optimization efficiency than ResNet, at both depths",
    paper="“ResNetLastBN has a better optimization efficiency than ResNet, at both depths”",
)
def trains_faster(table: Table) -> Outcome:
    """By the training loss at every look after the first."""
    cases: list[bool | None] = []
    details = []
    for depth in DEPTHS:
        plain, last = ([record.series(TRAINING_LOSS) for record in each] for each in pair(table, depth))
        steps = sorted(set(table.where(depth=depth).steps(TRAINING_LOSS)) - {0})
        seen = [([run[s] for run in plain if s in run], [run[s] for run in last if s in run]) for s in steps]
        lower = [is_greater(*values) for values in seen if all(values)]
        cases += lower
        if lower:
            ends = [number(fmean(values)) for values in seen[-1]]
            details.append(
                f"{depth} layers: lower at {sum(map(bool, lower))} of {len(lower)} looks, in the end {ends[1]} with "
                f"LastBN and {ends[0]} without"
            )
    return judged(cases, "; ".join(details))


@claim(
    "ResNet-LastBN ends with a slightly lower test error, at both depths, beyond the standard error of the test",
    paper="“a slightly improved performance”: 29.38 against 29.78 %; 23.76 against 23.97 %",
    needs=END,
)
def tests_better(table: Table) -> Outcome:
    """By the test error at the end."""
    cases, words = [], []
    for depth in DEPTHS:
        plain, last = ([percent_wrong(record) for record in each] for each in pair(table, depth))
        if plain and last:
            cases.append(is_greater(plain, last, at_least=noise_of_a_test(table.where(depth=depth))))
            words.append(f"{depth} layers: {fmean(last):.2f} against {fmean(plain):.2f} %")
    return judged(cases, "; ".join(words))


def pair(table: Table, depth: int) -> tuple[Table, Table]:
    """The runs without and with LastBN."""
    return table.arm(f"ResNet-{depth}"), table.arm(f"ResNet-{depth}-LastBN")


EXPERIMENT = Experiment(
    name="huang2020-fig14",
    title="ResNet and ResNet-LastBN on ImageNet",
    says="ResNet-LastBN, with one BN before the last linear layer, is optimized more efficiently than ResNet, with 18 "
    "and with 50 layers.",
    arms=ARMS,
    scales={
        "smoke": SMOKE | NETWORK | {"images": 128, "epochs": 1},
        "stand-in": STAND_IN | NETWORK,
        "paper": IMAGENET | NETWORK,
    },
    measure=measure,
    claims=[
        trains_faster.because(
            "stand-in",
            "depends on a setting that differs here, or that the source does not name",
            "Other data and a tenth of the epochs. With 18 layers LastBN does not help: over the three seeds of Table "
            "A its last training loss is 1.78 to 1.85 against 1.74 to 1.78. With 50 layers it starts higher (7.0 "
            "against 5.0) and is lower from the third look on, in one seed, with both at errors above 83 %.",
        ),
        tests_better.because(
            "stand-in",
            "seeds",
            "With 18 layers the errors differ by less than the standard error of the test, 0.5 points, as over the "
            "three seeds of Table A (51.21 against 51.20 %). With 50 layers LastBN is 5 points better, in one seed, "
            "with both hardly trained.",
        ),
    ],
    draw=draw,
    minutes={"smoke": 0.05, "stand-in": 1.5, "paper": 1800.0},
    contrast=[("ResNet-18", "ResNet-18-LastBN")],
    departures=["The training loss stands for the training error.", *ON_IMAGENET, *ITS_DROPS],
    silent=["half", "tests"],
    stand_in="The same networks are trained on CIFAR-100, enlarged to 64×64, for 10 epochs, with one seed. That shows "
    "whether LastBN helps at the beginning of training with 100 classes; it says nothing about errors on ImageNet.",
)
