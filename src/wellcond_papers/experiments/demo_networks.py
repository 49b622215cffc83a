"""The demo's experiment: a deep network that cannot train, what is wrong with it, and what helps."""

from __future__ import annotations

import warnings

from torch import nn
from torch.optim import SGD

from wellcond.diagnosis.diagnose import diagnose
from wellcond.diagnosis.diagnosis import Diagnosis
from wellcond.problem.problem import Problem
from wellcond.results import Progress
from wellcond.treatment.treat import treat
from wellcond.treatment.treatment import Treatment
from wellcond_papers.data import digits
from wellcond_papers.models import mlp

EXAMPLES = 512
BATCH = 64
LR = 0.1
STEPS = 80
SEEDS = (0, 1, 2)
REMEDIES = ("rate", "he-init", "batchnorm", "layernorm", "bnp", "adam")
"""Those that are tried, so that the demo takes no longer than half a minute."""
SHARE_OF_DIAGNOSIS = 0.1
"""Of the progress bar."""


def setup(depth: int, width: int) -> tuple[Problem, SGD]:
    """A plain ReLU network on handwritten digits, from LeCun's initialization, with SGD.

    LeCun's weights, N(0, 1/fan_in), halve the square of the signal at every ReLU: 19 of them leave 2⁻¹⁹ of it.

    Args:
        depth: Linear layers.
        width: Units of each hidden layer.
    """
    inputs, labels = digits(train=True).tensors(flatten=True)
    model = mlp([inputs.shape[1], *[width] * (depth - 1), 10], norm="none", init="lecun", seed=0)
    batches = [(inputs[i : i + BATCH], labels[i : i + BATCH]) for i in range(0, EXAMPLES, BATCH)]
    return Problem(model, nn.CrossEntropyLoss(), batches), SGD(model.parameters(), lr=LR)


def diagnosed_and_treated(depth: int, width: int, progress: Progress) -> tuple[Diagnosis, Treatment]:
    """What is wrong with the network, and what the remedies do for it.

    Args:
        depth: Linear layers.
        width: Units of each hidden layer.
        progress: Called as (what is being done, share of all work done).
    """
    problem, optimizer = setup(depth, width)
    diagnosis = diagnose(problem, optimizer, progress=lambda what, share: progress(what, SHARE_OF_DIAGNOSIS * share))

    def later(what: str, share: float) -> None:
        progress(what, SHARE_OF_DIAGNOSIS + (1 - SHARE_OF_DIAGNOSIS) * share)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a remedy asks of its users is not for this page
        found = diagnosis.findings
        treatment = treat(
            problem, optimizer, steps=STEPS, seeds=SEEDS, remedies=REMEDIES, findings=found, progress=later
        )
    return diagnosis, treatment
