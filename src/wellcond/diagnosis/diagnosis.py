"""`Diagnosis`: everything measured about one problem."""

from __future__ import annotations

from dataclasses import dataclass, field

from wellcond.curvature.spectra.eigenvalues import Eigenvalues
from wellcond.curvature.spectra.trace import Trace
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.magnitudes import Gradients
from wellcond.diagnosis.parts import Part
from wellcond.diagnosis.trial_result import Trial
from wellcond.diagnosis.verdict import assessment, verdict
from wellcond.learning_rate.limits.limits import MaxLearningRate
from wellcond.measurements.layers.conditioning import ConditioningTable
from wellcond.measurements.layers.neurons import NeuronTable
from wellcond.results import Cost, Result, Row
from wellcond.results.quantities import (
    CONVOLUTIONS,
    COST,
    EXAMPLES,
    GRADIENT_NORM,
    HESSIAN,
    LOSS,
    LR,
    MAX_LR,
    MAX_LR_HIGH,
    MAX_LR_LOW,
    MOMENTUM,
    PARAMETERS,
    PART_COST,
    PART_ESTIMATE,
    WEIGHT_NORM,
)
from wellcond.results.text import WHOLE_MODEL

FROM_ROWS = "from the products of rows, which are fewer than features"


@dataclass(frozen=True)
class Diagnosis(Result):
    """What was measured. A part is None if it failed, and `failed` says why.

    Attributes:
        findings: What is wrong: worst first, causes before what they cause, which is below them.
        parameters: How many numbers are trained.
        conditioning: Σx and Σ∇h of every layer.
        neurons: Dead and always-on ReLUs of every layer.
        hessian: Both ends of its spectrum.
        trace: The trace of the Hessian.
        trial: What short runs of copies do.
        gradients: The loss, and ‖∂L/∂θ‖ by layer.
        weights: ‖θ‖ by layer.
        max_lr: The largest stable learning rate.
        lr: The optimizer's largest learning rate now, or None without one.
        about: What the numbers hold for, in words, by title.
        failed: Why a part could not be measured, by its name.
        cost: What it took.
        parts: What each part was to cost, what it took, and how it ended, in the order in which they were measured.
        only: The layers that are listed; None for all.
        modules: The class of every module of the model, by name.
    """

    findings: tuple[Finding, ...]
    parameters: int
    conditioning: ConditioningTable | None
    neurons: NeuronTable | None
    hessian: Eigenvalues | None
    trace: Trace | None
    trial: Trial | None
    gradients: Gradients | None
    weights: dict[str, float]
    max_lr: MaxLearningRate | None
    lr: float | None
    about: dict[str, str]
    failed: dict[str, str]
    cost: Cost
    parts: tuple[Part, ...] = ()
    only: tuple[str, ...] | None = None
    modules: dict[str, str] = field(default_factory=dict)

    def verdict(self) -> str:
        """In one or two sentences: the worst thing, where it is and what to write; or a clean bill."""
        return verdict(self)

    def assessment(self) -> str:
        """The verdict without what to write."""
        return assessment(self)

    @property
    def measured(self) -> tuple[str, ...]:
        """The parts that gave a result."""
        return tuple(part.name for part in self.parts if part.outcome in ("measured", "cut short"))

    @property
    def not_covered(self) -> dict[str, str]:
        """Layers without conditioning numbers, and why."""
        return {} if self.conditioning is None else self.conditioning.not_covered

    @property
    def notes(self) -> dict[str, str]:
        """What to know about a layer, or about one of its matrices, such as what its spectrum was computed from."""
        notes = {"data": self.about["held fixed"]} if "held fixed" in self.about else {}
        for name, layer in ({} if self.conditioning is None else self.conditioning).items():
            shown = name or WHOLE_MODEL
            notes |= {shown: layer.note} if layer.note else {}
            for symbol, matrix in (("Σx", layer.x), ("Σ∇h", layer.g)):
                if matrix is not None and (matrix.note or matrix.side == "rows"):
                    notes[f"{symbol} of {shown}"] = matrix.note or FROM_ROWS
        return notes

    @property
    def left_out(self) -> dict[str, str]:
        """What the budget did not reach, and how it is measured."""
        return {part.name: part.note for part in self.parts if part.outcome == "left out"}

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C ended the work."""
        return any(part.outcome in ("cut short", "interrupted") for part in self.parts)

    def rows(self, step: int | None = None) -> list[Row]:
        """The numbers of the network, then those of its layers; a model that is itself a layer is "(model)".

        Args:
            step: The training step they were measured at.
        """
        layers = [row for part in (self.conditioning, self.neurons) if part is not None for row in part.rows(step)]
        norms = {WEIGHT_NORM: self.weights} | ({GRADIENT_NORM: self.gradients.norms} if self.gradients else {})
        layers += [
            Row(step, layer, name, norm, "")
            for name, by in norms.items()
            for layer, norm in by.items()
            if self.only is None or layer in self.only
        ]
        return [*self._network_rows(step), *(row._replace(layer=row.layer or WHOLE_MODEL) for row in layers)]

    def _network_rows(self, step: int | None) -> list[Row]:
        values: dict[str, tuple[float, str]] = {PARAMETERS: (float(self.parameters), "parameters")}
        if self.gradients is not None:
            values[LOSS] = self.gradients.loss, ""
        if self.neurons is not None:
            values[EXAMPLES] = float(self.neurons.examples), "examples"
        if self.hessian is not None:
            if self.hessian.which == "both":
                values[HESSIAN.lambda_min] = float(self.hessian.values[0]), ""
                values[HESSIAN.lambda_min_error] = float(self.hessian.errors[0]), ""
            values[HESSIAN.lambda_max] = float(self.hessian.values[-1]), ""
            values[HESSIAN.lambda_max_error] = float(self.hessian.errors[-1]), ""
        if self.trace is not None:
            values |= {HESSIAN.trace: (self.trace.value, ""), HESSIAN.trace_error: (self.trace.error, "")}
        if self.max_lr is not None:
            values[MAX_LR] = self.max_lr.value, "lr"
            values[MAX_LR_LOW] = self.max_lr.low, "lr"
            values[MAX_LR_HIGH] = self.max_lr.high, "lr"
            values[MOMENTUM] = self.max_lr.momentum, ""
        if self.lr is not None:
            values[LR] = self.lr, "lr"
        # beside other layers, each position of a convolution has a small share of the gradient
        if self.conditioning is not None and self.conditioning.convolution == "position":
            count = sum(layer.kind.startswith("Conv") for layer in self.conditioning.values())
            values |= {CONVOLUTIONS: (float(count), "layers")} if count else {}
        values[COST] = self.cost.u, "u"
        for part in self.parts:  # their seconds are in `parts` alone: a seed fixes every row
            if part.outcome != "left out":
                values[PART_ESTIMATE[part.name]] = part.estimate, "u"
                values[PART_COST[part.name]] = part.cost.u, "u"
        return [Row(step, "", quantity, *value) for quantity, value in values.items()]
