"""`Evidence`: all that is known of a problem, which is what rules judge."""

from __future__ import annotations

from dataclasses import dataclass

from torch.optim import Optimizer

from wellcond.curvature.spectra.eigenvalues import Eigenvalues
from wellcond.diagnosis.inspection.inspect import Inspection
from wellcond.diagnosis.trial_result import Trial
from wellcond.learning_rate.limits.limits import MaxLearningRate
from wellcond.measurements.layers.conditioning import ConditioningTable
from wellcond.measurements.layers.neurons import NeuronTable
from wellcond.problem.problem import Problem


@dataclass(frozen=True)
class Evidence:
    """What is known so far. What has not been measured, or could not be, is None.

    Attributes:
        problem: What is judged.
        optimizer: The one that trains it, if there is one.
        look: Data, outputs, signals, gradients and weights, from one pass; it exists also where the loss is NaN.
        conditioning: Σx and Σ∇h of every layer.
        neurons: Dead and always-on ReLUs of every layer.
        trial: What short runs of a copy do.
        hessian: Its largest eigenvalue.
        max_lr: The largest stable learning rate.
    """

    problem: Problem
    optimizer: Optimizer | None = None
    inspection: Inspection | None = None
    conditioning: ConditioningTable | None = None
    neurons: NeuronTable | None = None
    trial: Trial | None = None
    hessian: Eigenvalues | None = None
    max_lr: MaxLearningRate | None = None
