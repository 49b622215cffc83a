"""How many mini-batches and steps the parts of a trial have, and what these cost."""

from __future__ import annotations

from wellcond.diagnosis.attempts import clamped
from wellcond.diagnosis.mini_batches import MOST_BATCHES

HANDFUL_U, HANDFUL_STEPS = 5.0, (40, 80)
"""Passes over the problem that the handful may take, and its fewest and most steps."""
FEWEST_ON_GPU = 24
"""Steps on a handful on a GPU where few steps are allowed: there each counts as a step on a whole mini-batch."""
FEW_STEPS, FEWER_BATCHES = 150.0, 4
"""Below this many steps allowed, the trial has this many mini-batches: each evaluation passes all of them."""
FEW = 8
"""Examples that any sound network can fit."""
NOISE_DRAWS = 16
"""Draws of noise over which outputs on a handful are compared: of a code that is all noise, a single one finds them
worth between −0.4 and 0.25 of the loss, and sixteen between −0.04 and 0.06."""
PLATEAU_STEPS = 160
"""Steps on a handful whose loss falls to a constant's and stays there. Attention that begins uniform leaves it after
some 100 steps of Adam; a network that sees nothing of its inputs never does. A variational autoencoder that is sound
tells eight examples apart by 0.35 of the loss and more after 160, and by 0.07 to 0.2 after 52."""


def handful_steps(in_pass: float, most: float, on_gpu: bool) -> int:
    """Steps on a handful; a pass over the problem has `in_pass` of them."""
    if on_gpu and most < FEW_STEPS:
        return FEWEST_ON_GPU
    return HANDFUL_STEPS[0] if most < FEW_STEPS else clamped(HANDFUL_U * in_pass, HANDFUL_STEPS)


def handful_price(steps: int, examples: int, on_gpu: bool) -> float:
    """The cost of a handful, also where it is trained uphill too, in steps of a mini-batch with `examples` examples."""
    return (5 * steps / 3 + 4) * (1.0 if on_gpu else min(FEW / examples, 1.0)) + 1


def run_again_price(examples: int, on_gpu: bool) -> float:
    """The most that a run in training mode, or with one term of the loss, takes, and what it has learned."""
    looks = 2 * 2 * NOISE_DRAWS / 3  # at two times, with two losses for each draw
    return (PLATEAU_STEPS + looks) * (1.0 if on_gpu else min(FEW / examples, 1.0)) + 1


def mini_batch_count(most: float) -> int:
    """Mini-batches of a trial that `most` steps are allowed."""
    return FEWER_BATCHES if most < FEW_STEPS else MOST_BATCHES
