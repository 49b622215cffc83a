"""Figures VIII to X of huang2020: the conditioning of every layer of a network with and without BN, over training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from wellcond.results import Row, number
from wellcond.results.quantities import FINAL_LOSS, GRADIENT, INPUT, LOSS, TEST_ACCURACY, TRAINING_LOSS
from wellcond_papers.experiments.claims import END, Outcome, claim, is_greater, judged
from wellcond_papers.experiments.experiment import Job
from wellcond_papers.experiments.pictures import panels
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.huang2020.conditioning import LABELS, layer_rows
from wellcond_papers.papers.huang2020.deep_mlp import spread
from wellcond_papers.papers.huang2020.equal_loss import better_conditioned_at_equal_loss
from wellcond_papers.papers.huang2020.fig6 import better_conditioned
from wellcond_papers.papers.huang2020.layer_pictures import draw_loss, draw_networks
from wellcond_papers.papers.huang2020.networks import build, first_images, trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ARMS: dict[str, dict[str, Any]] = {
    "BN": {"norm": "batch", "lr": 0.1},
    "plain": {"norm": "none", "lr": 0.01},
    "plain, lr 0.1": {"norm": "none", "lr": 0.1},
}
KEPT = (INPUT.kappa[0.5], GRADIENT.kappa[0.5], INPUT.lambda_max, GRADIENT.lambda_max)
DRAWN = ("plain", "BN", "plain, lr 0.1")
"""The order of colors, as in the pictures of the MLP."""
NAMES = {"Σx": INPUT, "Σ∇h": GRADIENT}
PAIR = [("plain", "BN")]
SAME_OBSERVATION = "“the same observations as those made for the MLP for MNIST classification”"
LOOKS = (0.0, 0.1, 0.5, 1.0)
"""When layers are measured, as shares of the training."""
OFTEN = [0.0, 0.002, 0.005, 0.015, 0.04, 0.1, 0.25, 0.5, 0.52, 0.75, 1.0]
"""Looks that are close enough in loss to compare networks when they have the same one."""
SILENT = ("measured", "looks", "half")
DEPARTURES = (
    "Layers are measured with weights in float64: at the start and after a tenth, half and all of the training, or at "
    "`looks`. `measured` is the number of images that they are measured on.",
    "Images that layers are measured on are not augmented.",
    "The check of the magnitudes leaves out the first and the last layer and compares the networks look by look; it "
    "was chosen after seeing a small run of the residual network.",
)

RATES = (
    "Rates differ tenfold, as in the paper: 0.1 with BN, and 0.01 without, where 0.1 diverges. What BN does and what "
    "the rate does are not separated by this; figure X, on a network that trains without BN at 0.1 too, has both."
)


def measure(job: Job) -> list[Row]:
    """Train one network and measure its layers on the way."""
    model, batch = build(job), first_images(job, job["measured"])
    return trained(job, model, lambda step: layer_rows(model, batch, step, keep=(*KEPT, LOSS)), LOOKS)


def draw(table: Table) -> Figure:
    """Condition numbers against the layer, and the loss, (a) to (c) as in the source; below, magnitudes and accuracy.

    The plain network with the large rate, which does not converge, is shown by its curves alone.
    """
    of_layers = {
        f"(a) {LABELS[KEPT[0]]}": KEPT[0],
        f"(b) {LABELS[KEPT[1]]}": KEPT[1],
        "(c) training loss": TRAINING_LOSS,
        LABELS[KEPT[2]]: KEPT[2],
        LABELS[KEPT[3]]: KEPT[3],
        "test accuracy": TEST_ACCURACY,
    }
    figure, axes = panels(list(of_layers), columns=3)
    for title, quantity in of_layers.items():
        if quantity in KEPT:
            draw_networks(axes[title], table, DRAWN[:2], quantity)
        else:
            draw_loss(axes[title], table, DRAWN, quantity)
    return figure


@claim(
    "with BN the magnitudes of the convolutions but the first lie closer together",
    paper="shows condition numbers alone, and says that they give the MLP's observations",
    is_ours=True,
)
def even_magnitudes(table: Table) -> Outcome:
    """The greatest over the least λ_max among the convolutions but the first, of Σx and of Σ∇h, look by look.

    The last layer is left out: what it gets back is not spread over positions.
    """
    cases, details = [], []
    for name, matrix in NAMES.items():
        quantity, arms = matrix.lambda_max, [table.arm(arm) for arm in ("BN", "plain")]
        looks = [
            [spread(dict(list(cells.mean_by_layer(quantity, step).items())[1:-1])) for cells in arms]
            for step in sorted(set.intersection(*(set(cells.steps(quantity)) for cells in arms)))
        ]
        cases += [bn < plain for bn, plain in looks]
        if looks:
            ends = [f"{number(bn)} against {number(plain)}" for bn, plain in (looks[0], looks[-1])]
            details.append(f"{name} {ends[0]} at the start, {ends[1]} at the end")
    summary = (
        f"closer in {sum(cases)} of {len(cases)} cases; greatest over least, BN against plain: {'; '.join(details)}"
    )
    return judged(cases, summary if cases else "")


@claim(
    "the network without BN does not converge with the rate of 0.1: it diverges, or its loss stays within 5 % of "
    "guessing",
    paper="“the unnormalized networks … do not converge with the large learning rate of 0.1”",
)
def needs_a_small_rate(table: Table) -> Outcome:
    """In every seed."""
    cases, details = [], []
    for record in table.arm("plain, lr 0.1"):
        guessing = math.log(record.settings.get("classes", 10))
        cases.append(record.has_diverged or record.last(FINAL_LOSS) > 0.95 * guessing)
        ended = "diverged" if record.has_diverged else f"loss {number(record.last(FINAL_LOSS))}"
        details.append(f"{ended} (guessing: {number(guessing)})")
    return judged(cases, "; ".join(details))


@claim(
    "BN trains to the lower loss", paper="shows the loss in panel (c), without a word on it", is_ours=True, needs=END
)
def lower_loss(table: Table) -> Outcome:
    """The mean training loss of the last tenth."""
    bn, plain, fast = (table.arm(arm).lasts(FINAL_LOSS) for arm in ("BN", "plain", "plain, lr 0.1"))
    details = f"{', '.join(map(number, bn))} with BN, at a rate of 0.1; "
    details += f"{', '.join(map(number, plain)) or 'diverged'} without, at 0.01"
    if fast:
        details += f"; {', '.join(map(number, fast))} without, at 0.1"
    return judged([is_greater(plain, bn) if plain else True] if bn else [], details)


CLAIMS = (
    *(
        better_conditioned(name, matrix, PAIR, [0.5], at_start=False, paper=SAME_OBSERVATION)
        for name, matrix in NAMES.items()
    ),
    needs_a_small_rate,
    lower_loss,
    even_magnitudes,
    *(better_conditioned_at_equal_loss(name, matrix, PAIR, [0.5]) for name, matrix in NAMES.items()),
)
