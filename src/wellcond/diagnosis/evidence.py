"""`Evidence`: everything that was measured about a problem, which is what rules judge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean

from torch import Tensor
from torch.optim import Optimizer

from wellcond.curvature.spectra.eigenvalues import Eigenvalues
from wellcond.curvature.spectra.trace import Trace
from wellcond.diagnosis.inspection.inspection import Inspection
from wellcond.diagnosis.inspection.signal import Signal
from wellcond.diagnosis.magnitudes import Gradients
from wellcond.diagnosis.probes.behavior import Behavior
from wellcond.diagnosis.trial_result import Trial
from wellcond.learning_rate.limits.limits import MaxLearningRate
from wellcond.measurements.layers.conditioning import ConditioningTable
from wellcond.measurements.layers.neurons import NeuronTable
from wellcond.problem.problem import Problem
from wellcond.results import Result, Row
from wellcond.results import quantities as q
from wellcond.results.text import WHOLE_MODEL, text_table
from wellcond.training.optimizers import peak_lr
from wellcond.training.schedule import Schedule

VARIANTS = {
    "no weight decay": q.TRIAL_UNDECAYED_LOSS,
    "no dropout": q.TRIAL_UNDROPPED_LOSS,
    "running statistics": q.TRIAL_RUNNING_STATISTICS_LOSS,
}
"""Quantity of the final loss of each ablation run of a trial."""


@dataclass(frozen=True)
class Evidence(Result):
    """What is known so far. A field is None if it has not been measured, or could not be.

    Attributes:
        problem: Problem that is judged.
        optimizer: Optimizer that trains it, if there is one.
        inspection: Data, outputs, signals, gradients and weights from one pass; it exists also where the loss is NaN.
        behavior: What the probes show: what outputs and loss depend on.
        conditioning: Σx and Σ∇h of every layer.
        neurons: Dead and always-on ReLUs of every layer.
        trial: Short runs of copies.
        hessian: Largest eigenvalue of the Hessian, or both ends of its spectrum.
        max_lr: Largest stable learning rate.
        gradients: Loss, and ‖∂L/∂θ‖ by layer.
        trace: Trace of the Hessian.
        weights: ‖θ‖ by layer.
        only: Names of the layers that are listed; None for all.
        scheduled_lr: Highest rate that the schedule which was passed comes to; 0 without one.
        schedule: Its rates, where they can be computed.
    """

    problem: Problem = field(repr=False)
    optimizer: Optimizer | None = field(default=None, repr=False)
    inspection: Inspection | None = None
    behavior: Behavior | None = None
    conditioning: ConditioningTable | None = None
    neurons: NeuronTable | None = None
    trial: Trial | None = None
    hessian: Eigenvalues | None = None
    max_lr: MaxLearningRate | None = None
    gradients: Gradients | None = None
    trace: Trace | None = None
    weights: dict[str, float] = field(default_factory=dict)
    only: tuple[str, ...] | None = None
    scheduled_lr: float = 0.0
    schedule: Schedule | None = None

    @property
    def highest_lr(self) -> float:
        """The highest rate that the optimizer's groups, or the schedule, are known to come to."""
        if self.schedule is not None:
            return self.schedule.highest
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        return max([self.scheduled_lr, *map(peak_lr, groups)])

    def dead_units(self, signal: Signal) -> Tensor:
        """(units,), whether each ReLU of a signal is dead: over all data if that was measured, else as inspected."""
        if self.neurons is not None and signal.name in self.neurons:
            return self.neurons[signal.name].is_dying
        return signal.dead

    def rows(self, step: int | None = None, quantity: str | None = None) -> list[Row]:
        """The numbers of the network, then those of its layers, parameters and data tensors, by their names.

        A model that is itself a layer is "(model)".

        Args:
            step: The training step they were measured at.
            quantity: One that is asked for: matrices of layers that do not have it are left out.
        """
        layers = [] if self.conditioning is None else self.conditioning.rows(step, quantity)
        layers += [] if self.neurons is None else self.neurons.rows(step)
        norms = {q.WEIGHT_NORM: self.weights, q.GRADIENT_NORM: {} if self.gradients is None else self.gradients.norms}
        others = [Row(step, layer, name, norm, "") for name, by in norms.items() for layer, norm in by.items()]
        inspected = [] if self.inspection is None else list(self.inspection.rows(self.dead_units, step))
        inspected += [] if self.behavior is None else self.behavior.rows(step)
        layers += [row for row in (*others, *(row for row in inspected if row.layer)) if self._is_listed(row.layer)]
        network = [Row(step, "", quantity, value, unit) for quantity, value, unit in self._numbers()]
        network += [row for row in inspected if not row.layer]
        return [*network, *(row._replace(layer=row.layer or WHOLE_MODEL) for row in layers)]

    def rows_of(self, quantity: str) -> tuple[Row, ...]:
        """The rows of one quantity: of every layer, or of the trial's own run by step."""
        return tuple(row for row in (*self.rows(quantity=quantity), *self._losses()) if row.quantity == quantity)

    def _losses(self) -> Iterator[Row]:
        """The losses of the trial's run with the optimizer as it is, by step."""
        own = None if self.trial is None else self.trial.own
        for step, loss in enumerate(() if own is None else own.run.losses, start=1):
            yield Row(step, "", q.TRAINING_LOSS, loss, "")

    def _is_listed(self, layer: str) -> bool:
        """Whether a layer is among those to list, or a parameter belongs to one."""
        return self.only is None or any(f"{layer}.".startswith((f"{name}.", f"{name}[")) for name in self.only)

    def _numbers(self) -> Iterator[tuple[str, float, str]]:
        """Quantity, value and unit of each number of the whole network, but for the inspection's."""
        if self.gradients is not None:
            yield q.LOSS, self.gradients.loss, ""
        if self.neurons is not None:
            yield q.EXAMPLES, float(self.neurons.examples), "examples"
        if self.hessian is not None:
            if self.hessian.which == "both":
                yield q.HESSIAN.lambda_min, float(self.hessian.values[0]), ""
                yield q.HESSIAN.lambda_min_error, float(self.hessian.errors[0]), ""
            yield q.HESSIAN.lambda_max, float(self.hessian.values[-1]), ""
            yield q.HESSIAN.lambda_max_error, float(self.hessian.errors[-1]), ""
        if self.trace is not None:
            yield q.HESSIAN.trace, self.trace.value, ""
            yield q.HESSIAN.trace_error, self.trace.error, ""
        if self.max_lr is not None:
            yield q.MAX_LR, self.max_lr.value, "lr"
            yield q.MAX_LR_LOW, self.max_lr.low, "lr"
            yield q.MAX_LR_HIGH, self.max_lr.high, "lr"
            groups = [] if self.optimizer is None else self.optimizer.param_groups
            if not any("betas" in group for group in groups):  # β₁ is no momentum of SGD's
                yield q.MOMENTUM, self.max_lr.momentum, ""
        # compared with other layers, each position of a convolution has a small share of the gradient
        if self.conditioning is not None and self.conditioning.convolution == "position":
            convolutions = sum(layer.kind.startswith("Conv") for layer in self.conditioning.values())
            if convolutions:
                yield q.CONVOLUTIONS, float(convolutions), "layers"
        if self.trial is not None:
            yield from _trial_numbers(self.trial)

    def __str__(self) -> str:
        body = [[row.layer, row.quantity, f"{row.value:.4g}", row.unit] for row in self.rows()]
        return text_table(["layer", "quantity", "value", "unit"], body)


def _trial_numbers(trial: Trial) -> Iterator[tuple[str, float, str]]:
    yield q.TRIAL_LOSS, trial.loss, ""
    if trial.constant is not None:
        yield q.TRIAL_CONSTANT_LOSS, trial.constant, ""
    if trial.trains is not None:
        yield q.TRIAL_TRAINS, float(trial.trains), ""
    if trial.own is not None:
        fall, error = trial.fall(trial.own)
        yield q.TRIAL_LR, trial.own.lr, "lr"
        yield q.TRIAL_STEPS, float(len(trial.own.run.losses)), "steps"
        yield q.TRIAL_FINAL_LOSS, trial.own.loss, ""
        yield q.TRIAL_FALL, fall, ""
        yield q.TRIAL_FALL_ERROR, error, ""
        yield q.TRIAL_SPIKE, trial.spike, ""
        yield q.LOST_UPDATES, trial.own.lost, ""
    finished = [each for each in trial.others if each.loss == each.loss]
    if finished:
        best = min(finished, key=lambda each: each.loss)
        yield q.TRIAL_OTHER_LR, best.lr, "lr"
        yield q.TRIAL_OTHER_FINAL_LOSS, best.loss, ""
        yield q.TRIAL_OTHER_FALL, trial.fall(best)[0], ""
    for name, attempt in trial.variants.items():
        yield VARIANTS[name], fmean(attempt.after), ""
    if trial.few is not None:
        if trial.few.examples is not None:
            yield q.HANDFUL_EXAMPLES, float(trial.few.examples), "examples"
        if trial.few.constant is not None:
            yield q.HANDFUL_CONSTANT_LOSS, trial.few.constant, ""
        yield q.HANDFUL_LOSS, trial.few.before, ""
        yield q.HANDFUL_FINAL_LOSS, trial.few.after, ""
    if trial.modes is not None:
        yield q.BATCH_STATISTICS_LOSS, trial.modes[0], ""
        yield q.RUNNING_STATISTICS_LOSS, trial.modes[1], ""
    if (relation := trial.relation) is not None:
        yield q.NEIGHBOR_RELATION, relation.neighbor, "standard deviations"
        yield q.LINEAR_RELATION, relation.linear, "standard deviations"
        yield q.SMOOTH_RELATION, relation.smooth, "standard deviations"
        yield q.INPUT_STRUCTURE, relation.structure, ""
        if relation.slow is not None:
            yield q.SLOW_SHARE, relation.slow.rest, ""
            yield q.SLOW_CONDITION, relation.slow.condition, ""
