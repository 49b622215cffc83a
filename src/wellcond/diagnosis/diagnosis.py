"""`Diagnosis`: the findings about one problem, what they rest on, what it took, and the verdict in words."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch.nn.modules.conv import _ConvNd

from wellcond.curvature.spectra.eigenvalues import Eigenvalues
from wellcond.curvature.spectra.trace import Trace
from wellcond.diagnosis.budget import PartName
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.inspection import OUTPUTS, Inspection
from wellcond.diagnosis.magnitudes import Gradients
from wellcond.diagnosis.parts import WITH_FULL, Part
from wellcond.diagnosis.trial_result import Trial
from wellcond.learning_rate.limits.limits import MaxLearningRate
from wellcond.measurements.layers.conditioning import ConditioningTable
from wellcond.measurements.layers.neurons import NeuronTable
from wellcond.network.calling import dtype_name
from wellcond.problem.training_step import ONLY_A_LOSS, TrainingStep
from wellcond.results import Cost, Result, Row, number
from wellcond.results.quantities import COST, LR, PARAMETERS, PART_COST, PART_ESTIMATE
from wellcond.results.text import WHOLE_MODEL, sentence
from wellcond.results.version import __version__
from wellcond.training.optimizers import DEFAULT_MOMENTUM

FROM_ROWS = "from the products of rows, which are fewer than features"
CHECKED = {
    PartName.BEHAVIOR: "what the outputs depend on",
    PartName.LAYERS: "the conditioning of every layer",
    PartName.TRIAL: "short runs of copies",
    PartName.MAX_LR: "the largest stable learning rate",
}
"""What the parts after the inspection check, in the words of a clean bill."""
ESSENTIAL = (PartName.INSPECTION, PartName.GRADIENTS, PartName.TRIAL, *OUTPUTS)
"""Without one of these nobody can say that nothing is wrong."""
HIDDEN_BY_A_STEP = ("the outputs", "the targets")
"""What a training step of one's own does not show."""
ASSUMED_LR = 0.01
"""Rate of SGD with momentum, which the trial takes without an optimizer. If it does not learn, rates from a tenth to a
hundred times this are tried too."""
ASSUMED = f"no optimizer was passed: short runs took SGD at {ASSUMED_LR:g} with momentum {DEFAULT_MOMENTUM:g}"
BATCHNORM = {
    "batch": "statistics of each batch, with gradients through them, as in training",
    "running": "running statistics, as in evaluation",
}
LABELS = {
    "data": "those of the data",
    "sample": "drawn from the model's prediction",
    "model": "the model's prediction, in exact expectation",
}
CONVOLUTION = {"position": "every position is one example", "patch": "every patch (im2col) is one example"}


@dataclass(frozen=True)
class Diagnosis(Result):
    """What is wrong with a network, and everything that was measured. A part is None if `failed` says why.

    Attributes:
        findings: What is wrong: worst first, causes before their consequences, which are below them.
        evidence: Everything that was measured, as the rules judged it.
        parameters: Number of trainable parameters.
        lr: Largest learning rate of the optimizer now, or None without one.
        about: What the numbers hold for, in words, by title.
        failed: Why a part could not be measured, or something in the inspection not be checked, by its name.
        cost: What it took.
        parts: Estimate, cost and outcome of each part, in the order in which they were measured.
        modules: Class of every module of the model, by name.
    """

    findings: tuple[Finding, ...]
    evidence: Evidence
    parameters: int
    lr: float | None
    about: dict[str, str]
    failed: dict[str, str]
    cost: Cost
    parts: tuple[Part, ...] = ()
    modules: dict[str, str] = field(default_factory=dict)

    # what was measured

    @property
    def conditioning(self) -> ConditioningTable | None:
        """Σx and Σ∇h of every layer."""
        return self.evidence.conditioning

    @property
    def neurons(self) -> NeuronTable | None:
        """Dead and always-on ReLUs of every layer."""
        return self.evidence.neurons

    @property
    def hessian(self) -> Eigenvalues | None:
        """The largest eigenvalue of the Hessian, or both ends of its spectrum."""
        return self.evidence.hessian

    @property
    def trace(self) -> Trace | None:
        """The trace of the Hessian."""
        return self.evidence.trace

    @property
    def trial(self) -> Trial | None:
        """Short runs of copies."""
        return self.evidence.trial

    @property
    def gradients(self) -> Gradients | None:
        """The loss, and ‖∂L/∂θ‖ by layer."""
        return self.evidence.gradients

    @property
    def weights(self) -> dict[str, float]:
        """‖θ‖ by layer."""
        return self.evidence.weights

    @property
    def max_lr(self) -> MaxLearningRate | None:
        """The largest stable learning rate."""
        return self.evidence.max_lr

    @property
    def only(self) -> tuple[str, ...] | None:
        """Names of the layers that are listed; None for all."""
        return self.evidence.only

    def rows(self, step: int | None = None) -> list[Row]:
        """The numbers of the network and what they took, then the rows of the evidence.

        Args:
            step: The training step they were measured at.
        """
        values: dict[str, tuple[float, str]] = {PARAMETERS: (float(self.parameters), "parameters")}
        if self.lr is not None:
            values[LR] = self.lr, "lr"
        values[COST] = self.cost.u, "u"
        for part in self.parts:  # their seconds are in `parts` only: a seed fixes every row
            if part.outcome != "left out":
                values[PART_ESTIMATE[part.name]] = part.estimate, "u"
                values[PART_COST[part.name]] = part.cost.u, "u"
        return [*(Row(step, "", quantity, *value) for quantity, value in values.items()), *self.evidence.rows(step)]

    # what is missing, and what to know

    @property
    def measured(self) -> tuple[PartName, ...]:
        """The parts that gave a result."""
        return tuple(part.name for part in self.parts if part.outcome in ("measured", "cut short"))

    @property
    def not_covered(self) -> dict[str, str]:
        """Layers without conditioning numbers, and what a training step does not show, each with the reason."""
        hidden = dict.fromkeys(HIDDEN_BY_A_STEP, ONLY_A_LOSS) if self._is_step else {}
        return hidden | ({} if self.conditioning is None else self.conditioning.not_covered)

    @property
    def _is_step(self) -> bool:
        """Whether the problem is a training step that could not be taken apart."""
        return isinstance(self.evidence.problem.loss, TrainingStep)

    @property
    def notes(self) -> dict[str, str]:
        """What to know about the batches, precision, a layer or one of its matrices, such as how it is computed."""
        notes: dict[str, str] = {title: self.about[title] for title in ("batches", "precision") if title in self.about}
        notes |= {part.name: part.note for part in self.parts if part.outcome == "measured" and part.note}
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
        left_out = {f"trial: {what}": WITH_FULL for what in (() if self.trial is None else self.trial.left_out)}
        return left_out | {str(part.name): part.note for part in self.parts if part.outcome == "left out"}

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C ended the work."""
        return any(part.outcome in ("cut short", "interrupted") for part in self.parts)

    # in words

    def verdict(self) -> str:
        """The assessment, and the remedy of the worst finding: a sentence, a line of code, or a block below."""
        worst = self._worst()
        if worst is None or not worst.remedy:
            return self.assessment()
        if worst.advice:
            return f"{self.assessment()} {worst.advice}"
        code = worst.remedy.strip("\n")
        return (
            "\n".join([f"{self.assessment()} Write:", code]) if "\n" in code else f"{self.assessment()} Write: {code}"
        )

    def assessment(self) -> str:
        """The worst finding and where it is; or a clean bill, with what was checked and what could not be."""
        worst = self._worst()
        if worst is not None:
            where = f" at {worst.layer}" if worst.layer and worst.layer not in worst.summary else ""
            more = sum(finding.severity == worst.severity for finding in self.findings) - 1
            also = f", and {more} more" if more else ""
            others = [f.rule for f in worst.consequences if f.rule != worst.rule]
            follows = f" It explains {_listed(others)}." if others else ""
            assumed = self._assumed() if worst.basis == "tried" else ""
            return sentence(f"{worst.severity} ({worst.rule}{where}{also}): {worst.summary}") + follows + assumed
        checked = _inspected(self.evidence.inspection) if PartName.INSPECTION in self.measured else []
        is_probed = self.evidence.behavior is not None and self.evidence.behavior.is_known
        measured = {*self.measured} - ({PartName.BEHAVIOR} if not is_probed else set())
        checked += [text for part, text in CHECKED.items() if part in measured]
        if not checked:
            return sentence(f"nothing could be checked: {'; '.join(self.failed.values()) or 'no time was left'}")
        notes = len(self.findings)
        noted = f" ({notes} note{'s' * (notes > 1)})" if notes else ""
        essential = {*ESSENTIAL} - {*OUTPUTS} if self._is_step else {*ESSENTIAL}
        unknown = next((why for what, why in self.failed.items() if what in essential), "")
        is_one_reason = len(self.failed) > 1 and len({*self.failed.values()}) == 1
        why = f": {next(iter(self.failed.values()))}" if is_one_reason and not unknown else ""
        missing = f" {sentence(f'not covered: {_listed(HIDDEN_BY_A_STEP)}')}" if self._is_step else ""
        missing += f" {sentence(f'could not be checked: {_listed(list(self.failed))}{why}')}" if self.failed else ""
        if unknown:
            begin = f"{sentence(f'whether it trains is not known: {unknown}')} Nothing else was found in"
            return sentence(f"{begin} {_listed(checked)}{noted}") + missing + self._assumed()
        sound = sentence(f"nothing is wrong in what was checked: {_listed(checked)}{noted}")
        return sound + self._rate() + missing + self._assumed()

    def _worst(self) -> Finding | None:
        """The first finding; None if there are only notes."""
        return next((finding for finding in self.findings if finding.severity != "note"), None)

    def _assumed(self) -> str:
        """That no optimizer was passed, and what the short runs took instead."""
        assumed = self.about.get("optimizer")
        return f" {sentence(assumed)}" if assumed else ""

    def _rate(self) -> str:
        """The learning rate compared with its limit."""
        if self.max_lr is None:
            return ""
        limit = number(self.max_lr.value)
        if self.lr is None:
            return f" The largest stable rate is {limit} with momentum {self.max_lr.momentum:g}."
        share = self.lr / self.max_lr.value if self.max_lr.value else float("inf")
        goes_down = self.trial is not None and bool(self.trial.trains)
        if share > 1:  # the edge of stability: common in networks that train well
            excused = ", which is ordinary where the loss goes down, as it does in the trial" if goes_down else ""
            excused += ": the limit says from where on steps overshoot, not where training fails" if goes_down else ""
            return (
                f" The rate {number(self.lr)} is {number(share)} times the stability limit at these weights{excused}."
            )
        trains = ", and the loss goes down in the trial" if goes_down else ""
        return f" The rate {number(self.lr)} is {100 * share:.2g} % of the stability limit {limit}{trains}."


def about(evidence: Evidence, cost: Cost) -> dict[str, str]:
    """What the numbers hold for: title → sentence, in the order in which they are read.

    Args:
        evidence: What was measured.
        cost: What it took.
    """
    problem = evidence.problem
    norms, left_alone = problem.norms()
    batchnorm = BATCHNORM[problem.batchnorm] if norms else "the model has none"
    if left_alone:
        batchnorm += (
            f"; {', '.join(left_alone)}: in evaluation mode, since its outputs in training change on every pass"
        )
    sentences = {
        "model": type(problem.model).__name__,
        "parameters": f"{problem.size:,} trainable, {dtype_name(problem.dtype)}, on {problem.device}",
        "loss": getattr(problem.loss, "__name__", type(problem.loss).__name__),
        "batchnorm": batchnorm,
        "dropout": "off" if problem.dropout is None else f"on, with seed {problem.dropout}",
    }
    if precision := problem.says_precision("inspection, probes and runs of copies", "curvature and conditioning"):
        sentences["precision"] = precision
    if evidence.optimizer is None:
        sentences["optimizer"] = ASSUMED
    if problem.notes:
        sentences["batches"] = "; ".join(problem.notes)
    if (table := evidence.conditioning) is not None:
        sentences["labels of Σ∇h"] = LABELS[table.labels]
        if any(isinstance(module, _ConvNd) for module in problem.model.modules()):
            sentences["convolutions"] = CONVOLUTION[table.convolution]
    if (ends := evidence.hessian) is not None:
        status = ends.status if ends.converged else f"not known to {ends.tol:.0%} yet; see the errors"
        sentences["Hessian eigenvalues"] = f"{ends.matvecs} products; {status}"
    if (trace := evidence.trace) is not None:
        missed = "" if trace.converged else "; the requested 10 % was not reached"
        error = f"standard error {trace.error:.2g} on {trace.value:.4g}"
        sentences["Hessian trace"] = f"{trace.matvecs} products; {error}{missed}"
    sentences["cost"] = str(cost).removeprefix("cost: ")
    libraries = f"wellcond {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    return sentences | {"versions": libraries}


def _inspected(inspection: Inspection | None) -> list[str]:
    """What an inspection saw, in the words of a clean bill."""
    if inspection is None:
        return []
    seen = {
        "the data": bool(inspection.inputs),
        "the outputs": bool(inspection.outputs),
        "the gradients of every layer": any(weight.gradient is not None for weight in inspection.weights),
    }
    words = [name for name, is_seen in seen.items() if is_seen]
    return [_listed(words)] if words else []


def _listed(items: Sequence[str]) -> str:
    """Each once, with "and" before the last."""
    *first, last = [*dict.fromkeys(items)] or [""]
    return f"{', '.join(first)} and {last}" if first else last
