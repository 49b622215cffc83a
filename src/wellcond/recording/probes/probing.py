"""Which probe runs after a step, and on how many examples, by what the allowance pays for."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from wellcond.diagnosis.finding import Finding
from wellcond.errors import InvalidProblem
from wellcond.measurements.landscape.points import loss_and_gradient, norm
from wellcond.network.calling import one_line
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.network.isolation.isolation import rng_kept
from wellcond.problem.batches import examples_in
from wellcond.problem.loss.outputs import Loss
from wellcond.problem.problem import Problem
from wellcond.problem.training_step import TrainingStep
from wellcond.recording.allowance import Activity, Allowance, Purse
from wellcond.recording.probes.activations import ActivationProbe
from wellcond.recording.probes.conditioning import ConditioningProbe
from wellcond.recording.probes.curvature import CurvatureProbe
from wellcond.recording.probes.inspection import inspected
from wellcond.recording.probes.not_finite import source_of_nan
from wellcond.recording.probes.shift import ShiftProbe
from wellcond.recording.probes.subject import Subject, fewest
from wellcond.recording.watching.layout import Layout
from wellcond.results import Row
from wellcond.results import quantities as q
from wellcond.results.progress import without_bars

CURVATURE, CONDITIONING, SHIFT, PASS, INSPECTION = "curvature", "conditioning", "shift", "activations", "inspection"
GRADIENT_OF_FEW = "noise"
MOST_PRODUCTS_OF_PROBE = 8
WRITE_STEP = """\
{error}. Measured is loss(model(inputs), targets) of the batch (inputs, targets); for a training step of your own, \
write  wc.Recorder.from_step(model, optimizer, training_step)"""


def probe_parts() -> dict[str, Activity]:
    """The cheap probes share a purse, so that each has its turns; the others save for themselves."""
    purse = Purse(0.24)
    return {
        CURVATURE: Activity(Purse(0.36), price=1.2, least_spacing=3),
        CONDITIONING: Activity(purse, price=0.5, least_spacing=3),
        SHIFT: Activity(purse, price=0.5, least_spacing=3),
        PASS: Activity(Purse(0.02), price=0.4, least_spacing=10),
        GRADIENT_OF_FEW: Activity(purse, price=0.3, least_spacing=10),
        INSPECTION: Activity(Purse(0.03), price=2.0, least_spacing=100, most_spacing=5000),
    }


@functools.cache
def warm_up() -> None:
    """Let every probe run once on a small network: what is loaded and chosen then does not interrupt a training."""
    with own_arithmetic(), torch.enable_grad(), rng_kept(torch.device("cpu")):
        model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        probing = Probing(model, nn.MSELoss(), [optimizer], Layout(model), Allowance(1.0, probe_parts()))
        before: dict[Tensor, Tensor] = {p: p.detach().clone() for p in model.parameters()}
        batch = torch.rand(8, 2), torch.rand(8, 1)
        for part in probe_parts():
            probing.run(part, 1, batch, before, ["0", "2"])


class Probing:
    """The probes of a run, which take turns.

    Args:
        model: The model.
        loss: Its loss; None if it returns it.
        optimizers: Those that train it.
        layout: Layers of the model.
        allowance: Holds a part for each probe.

    Attributes:
        curvature: The probe of the curvature.
        gradient_norm: ‖∇L‖ on the examples of the last probe that computed it.
        findings: What the rules of `diagnose` said at the last inspection; None if it is not newer than asked for.
        examples: Examples of the last probe.
        wants_copy: Whether the probe whose turn it is needs the weights before a step.
    """

    def __init__(
        self, model: nn.Module, loss: Loss | None, optimizers: Sequence[Optimizer], layout: Layout, allowance: Allowance
    ) -> None:
        self.curvature = CurvatureProbe(optimizers)
        self.gradient_norm = math.nan
        self.findings: tuple[Finding, ...] | None = None
        self.examples = 0
        self.wants_copy = False
        self._conditioning, self._shift, self._pass = ConditioningProbe(), ShiftProbe(layout), ActivationProbe()
        self._subject = Subject(model, loss)
        self._optimizer = optimizers[0]
        self._allowance = allowance
        self._levels = dict.fromkeys(probe_parts(), 0)

    def due(self, step: int, *, has_moved: bool) -> str | None:
        """The probe whose turn it is: of those that are due, the one that had the fewest, once the purse pays for it.

        An inspection, which is rare, comes last.

        Args:
            step: The step that has just been taken.
            has_moved: Whether the weights before it are known.
        """
        self.wants_copy = False
        parts = self._allowance.parts
        names = [name for name in self._levels if parts[name].is_open and step >= parts[name].next_step]
        firsts: dict[int, str] = {}
        for name in sorted(names, key=lambda name: (name == INSPECTION, parts[name].turns)):
            firsts.setdefault(id(parts[name].purse), name)
        for first in firsts.values():
            if self._allowance.is_turn(first, step):
                if first != SHIFT or has_moved:
                    return first
                self.wants_copy = True
        return None

    def run(self, part: str, step: int, batch: Any, before: dict[Tensor, Tensor], order: Sequence[str]) -> list[Row]:
        """Rows of one probe, after a step.

        Args:
            part: Name of the probe.
            step: The step that has just been taken.
            batch: Its batch.
            before: Weights before the step, if they are known.
            order: Layers in the order of the forward pass.

        Raises:
            InvalidProblem: The model or the loss cannot be called with the batch.
        """
        try:
            return self._rows(part, step, batch, before, order)
        except (TypeError, AttributeError, InvalidProblem) as error:
            if isinstance(self._subject.loss, TrainingStep):
                raise
            raise InvalidProblem(WRITE_STEP.format(error=f"{type(error).__name__}: {one_line(error)}")) from error

    def _rows(self, part: str, step: int, batch: Any, before: dict[Tensor, Tensor], order: Sequence[str]) -> list[Row]:
        level, whole = self._levels[part], examples_in(batch)
        # the statistics of few examples make the curvature several times what it is in training
        # and an inspection judges the batch size
        is_whole = part in (CURVATURE, INSPECTION) and self._subject.couples_examples(batch)
        self.examples = whole if is_whole else min(whole, fewest(whole) << level)
        problem = self._subject.problem(batch, self.examples)
        self.examples = examples_in(problem.batches[0])
        runs: dict[str, Callable[[], list[Row]]] = {
            CURVATURE: lambda: self._follow_curvature(problem, step, min(1 + level, MOST_PRODUCTS_OF_PROBE)),
            CONDITIONING: lambda: self._conditioning.run(problem, step, 1 << level),
            SHIFT: lambda: self._shift.run(problem, step, before, order),
            PASS: lambda: self._pass.run(problem, step),
            INSPECTION: lambda: self._inspect(problem),
            GRADIENT_OF_FEW: lambda: self._measure_gradient(problem),
        }
        with without_bars():  # the terminal and the cell are the training's
            rows = runs[part]()
        return [*rows, Row(step, "", q.PROBED_EXAMPLES, float(self.examples), "examples")]

    def trace(self, step: int, batches: Sequence[Any]) -> list[Row]:
        """Where a loss that is not finite comes from, of its batch or of the step before, if that is a layer."""
        with without_bars():
            return source_of_nan(self._subject.model, self._subject.loss, batches, step)

    def adapt(self, name: str, step: int, batch: Any, was_poor: bool) -> None:
        """After a turn: the next one is larger if nothing else needs the time, and smaller if it had to wait.

        Args:
            name: The probe.
            step: The step after which it had its turn.
            batch: The batch of that step.
            was_poor: Whether it had waited for it.
        """
        level, whole = self._levels[name], examples_in(batch)
        is_whole = fewest(whole) << level >= whole
        if self._allowance.is_rich(name) and not is_whole:
            self._levels[name] = level + 1
            self._allowance.parts[name].change_price(2.0)
        elif was_poor and level:
            self._levels[name] = level - 1
            self._allowance.parts[name].change_price(0.5)

    def _follow_curvature(self, problem: Problem, step: int, products: int) -> list[Row]:
        rows = self.curvature.run(problem, step, products)
        self.gradient_norm = self.curvature.gradient_norm
        if not problem.couples_examples:  # this gradient, of a part of the batch, shows the noise too
            self._allowance.close(GRADIENT_OF_FEW)
        return rows

    def _measure_gradient(self, problem: Problem) -> list[Row]:
        with problem.measuring():
            self.gradient_norm = norm(loss_and_gradient(problem)[1])
        return []

    def _inspect(self, problem: Problem) -> list[Row]:
        self.findings = inspected(problem, self._optimizer)
        return []

    def state_dict(self) -> dict[str, Any]:
        """What the next probes depend on."""
        places = {"conditioning": self._conditioning.next_layer, "shift": self._shift.next_layer}
        return {"levels": dict(self._levels), "places": places, "curvature": self.curvature.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self._levels.update(state["levels"])
        self._conditioning.next_layer, self._shift.next_layer = (
            state["places"]["conditioning"],
            state["places"]["shift"],
        )
        self.curvature.load_state_dict(state["curvature"])
