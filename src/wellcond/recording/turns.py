"""What is done between two steps of the run, and when: samples, probes, judging and writing take turns."""

from __future__ import annotations

import functools
import statistics
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from wellcond.problem.batches import examples_in
from wellcond.recording.allowance import HANDED_OUT_ON_GPU, Activity, Allowance, Purse
from wellcond.recording.logbook import Logbook
from wellcond.recording.mishaps import Mishaps
from wellcond.recording.probes.noise import NoiseScale
from wellcond.recording.probes.probing import (
    CONDITIONING,
    CURVATURE,
    GRADIENT_OF_FEW,
    INSPECTION,
    PASS,
    SHIFT,
    Probing,
    probe_parts,
)
from wellcond.recording.ranks import RecorderRanks
from wellcond.recording.watching.readings import Readings
from wellcond.recording.watching.sampling import EVERYTHING, GRADIENTS, NOTHING, Depth, Sampling
from wellcond.results import Row
from wellcond.results import quantities as q

SECONDS_BETWEEN_FILES = 10.0
"""Rows are written so often: what a run that is killed has lost at most."""
LOOKS, LOOKS_ON_GPU, LONGEST_LOOK = 25, 12, 25
"""What is due is looked for at every step, then 25 times while steps grow e-fold, then every 25 steps. Between kernels
a look takes 0.1 ms, in which a GPU has done the tenth part of a small network's step: there it is 12 times."""
AFTERWARDS = 20, 60
"""Steps after an alarming loss at which everything is read again: what a jump has done to the network shows then."""
FEWEST_EXCESSES, MOST_EXCESSES = 5, 25
"""Steps of which everything was read whose median excess over usual steps is charged too."""
JUDGING = "judging"
REHEARSED = (CURVATURE, CONDITIONING, SHIFT, PASS, GRADIENT_OF_FEW)
"""Probes that run at the first step on a GPU."""
INSPECTION_OVER_CONDITIONING = 12.0
"""Seconds of the first inspection over those of the conditioning of some layers, where launches of kernels take most of
both: 12 to 16 for ResNet-20 and a small GPT on an H200."""


def all_parts() -> dict[str, Activity]:
    """The parts of recording, with their shares of the budget and guesses of their prices, in steps."""
    return {
        GRADIENTS: Activity(Purse(0.08), price=0.05, most_spacing=50),
        EVERYTHING: Activity(Purse(0.2), price=0.3),
        JUDGING: Activity(Purse(0.07), price=0.1, least_spacing=10),
        **probe_parts(),
    }


class Turns:
    """Does what the allowance pays for.

    Args:
        sampling: Reads training steps.
        probing: Measures between them.
        logbook: Takes rows, and judges them.
        readings: Numbers that are still on a device.
        allowance: Says what may be done.
        mishaps: Guards every part.
        clock: Returns seconds.
        ranks: The processes of the training.

    Attributes:
        rows: New rows, which the logbook does not have yet.
        own: Seconds of recording since the last look, without those in hooks.
        next_look: The step at which to look for what is due.
        last_batch: The batch of the step before, if its loss is known at once.
    """

    def __init__(
        self,
        sampling: Sampling,
        probing: Probing,
        logbook: Logbook,
        readings: Readings,
        allowance: Allowance,
        mishaps: Mishaps,
        clock: Callable[[], float],
        ranks: RecorderRanks,
    ) -> None:
        self.rows: list[Row] = []
        self.own = 0.0
        self.next_look = 0
        self.last_batch: Any = None
        self._sampling, self._probing, self._logbook, self._readings = sampling, probing, logbook, readings
        self._allowance, self._mishaps, self._clock = allowance, mishaps, clock
        self._ranks = ranks
        self.noise = NoiseScale()
        self._charged = 0.0
        self._excess: deque[float] = deque(maxlen=MOST_EXCESSES)
        self._looked_at: float | None = None
        self._looked_step = 0
        self._written = clock()
        self._expects_gradients = False
        self._afterwards: list[int] = []
        self._has_traced = False
        self._is_to_rehearse = sampling.device.type == "cuda"
        self._looks = LOOKS
        if sampling.device.type == "cuda":
            self._looks = LOOKS_ON_GPU
            allowance.handed_out = HANDED_OUT_ON_GPU
        else:  # on a GPU launches make them too expensive
            allowance.gifted = (GRADIENTS, EVERYTHING, JUDGING, PASS)

    def look(self, step: int, batch: Any, passes: int, is_alarming: bool, is_lost: bool, now: float) -> None:
        """Pay for the time since the last look, and do what is due after a step.

        Args:
            step: The step that was just taken.
            batch: Its batch; None if it is not known.
            passes: Micro-batches of the step.
            is_alarming: Whether its loss stands out, so that it is judged now if that can be paid.
            is_lost: Whether its loss is not finite, so that it is judged now in any case.
            now: The time at which recording of the step began.
        """
        self.rows += self._mishaps.attempt("settings", lambda: self._sampling.changes(step)) or []
        unseen = self._unseen_in_hooks()
        in_hooks, self._mishaps.seconds = self._mishaps.seconds + unseen, 0.0
        ran = self._pass_time(step, in_hooks, unseen, now)
        if depth := self._sampling.depth:
            self._charge(depth, step, lambda: self._collect(step, ran), already=in_hooks)
        if batch is not None and self._is_to_rehearse:
            self._is_to_rehearse = False
            self._rehearse(step, batch)
        elif batch is not None:
            self._probe(step, batch, passes)
        if is_lost and batch is not None and not self._has_traced:
            self._trace(step, batch)
        can_judge = is_alarming and not self._allowance.owes(JUDGING)
        if is_lost or can_judge or self._allowance.is_turn(JUDGING, step):
            self._charge(JUDGING, step, lambda: self.judge(step))
        if self._clock() - self._written > SECONDS_BETWEEN_FILES:
            self._logbook.write()
            self._written = self._clock()
        self._plan(step + 1, is_alarming)
        self._look_again(step)
        self._mishaps.seconds = 0.0

    def follow(self, step: int) -> None:
        """In a process that does not record: help to read steps of a sharded model, as rank 0 plans them."""
        if self._sampling.depth:
            self._sampling.collect(step)
            self._readings.fetch()
        self._sampling.plan(self._ranks.agreed(NOTHING))
        self._look_again(step)

    def _look_again(self, step: int) -> None:
        """The next step to look at: all processes come to the same, since it depends on no clock."""
        self.next_look = step + max(1, min(LONGEST_LOOK, step // self._looks))

    def judge(self, step: int, *, wait: bool = False) -> None:
        """Fetch all numbers, and apply the rules."""
        self.fetch(wait=wait)
        self._logbook.judge(step)

    def fetch(self, *, wait: bool = True) -> None:
        """Give the logbook all numbers; without waiting, those that have arrived from the device."""
        rows, self.rows = self.rows, []
        rows += self._readings.fetch(wait=wait)
        norms = {row.step: row.value for row in rows if row.quantity == q.GRADIENT_NORM and not row.layer}
        norms |= {row.step: row.value for row in rows if row.quantity == q.UNCLIPPED_GRADIENT_NORM}
        squared = {step: norm**2 for step, norm in norms.items() if step is not None}
        self._logbook.add([*rows, *self.noise.rows(squared)])

    def _pass_time(self, step: int, in_hooks: float, unseen: float, now: float) -> float | None:
        """Pay the allowance for the steps since the last look; returns the seconds that each took."""
        last, steps = self._looked_at, step - self._looked_step
        own, charged, self.own, self._charged = self.own, self._charged, 0.0, 0.0
        self._looked_at, self._looked_step = now, step
        if last is None or steps < 1:  # the first step is not timed: what comes before it is no training
            return None
        ran = now - last - own - in_hooks
        if self._sampling.depth == EVERYTHING and steps == 1 and self._allowance.usual_step:
            self._excess.append(ran + unseen - self._allowance.usual_step)
        self._allowance.pass_time(ran, steps)
        self._allowance.spend(max(0.0, own - charged))
        return ran / steps

    def _unseen_in_hooks(self) -> float:
        """Seconds that a step takes longer than others when everything is read of it, beyond what its hooks measure."""
        if self._sampling.depth != EVERYTHING or len(self._excess) < FEWEST_EXCESSES:
            return 0.0
        return max(0.0, statistics.median(self._excess))

    def _collect(self, step: int, ran: float | None) -> None:
        self.rows += self._sampling.collect(step)
        if self._sampling.depth == EVERYTHING:
            self.rows.append(Row(step, "", q.RECORDING_SHARE, self._allowance.share, ""))
            if ran is not None:
                self.rows.append(Row(step, "", q.STEP_TIME, ran, "s"))

    def _rehearse(self, step: int, batch: Any) -> None:
        """Run every probe twice, which no purse pays: on a GPU the first run loads kernels and takes far longer.

        An inspection, which is rare, is not worth it: its price is estimated. And rules are applied, since what their
        last time takes, at the end of the run, has to be saved for from now on.
        """
        began = self._clock()
        before = self._weights_before()
        for part in REHEARSED if before else [part for part in REHEARSED if part != SHIFT]:
            rows: list[Row] = []
            for _ in range(2):
                self._wait()
                run_began = self._clock()
                rows = self._run(part, step, batch, before)
            self._wait()
            if rows:
                self._allowance.parts[part].know_price(self._clock() - run_began, step)
                self.rows += self._sampling.unseen(rows) if part == PASS else rows
        conditioning = self._allowance.parts[CONDITIONING]
        if conditioning.turns:
            inspection = self._allowance.parts[INSPECTION]
            inspection.know_price(INSPECTION_OVER_CONDITIONING * conditioning.price, step)
        judging_began = self._clock()
        self.judge(step, wait=True)
        self._allowance.reserve(max(0.0, self._clock() - judging_began))
        seconds = max(0.0, self._clock() - began)
        self._charged += seconds
        self._allowance.start_up(seconds)

    def _weights_before(self) -> dict[Tensor, Tensor]:
        """All weights before the step that was taken; empty if they are not known."""
        return self._sampling.before if self._sampling.depth == EVERYTHING else {}

    def _wait(self) -> float:
        """Let a GPU finish what was begun, which is not to be counted as part of a probe; the seconds that took."""
        if self._sampling.device.type != "cuda":
            return 0.0
        began = self._clock()
        torch.cuda.synchronize(self._sampling.device)
        return max(0.0, self._clock() - began)

    def _run(self, part: str, step: int, batch: Any, before: dict[Tensor, Tensor]) -> list[Row]:
        """Rows of a probe; none if it fails."""
        run = functools.partial(self._probing.run, part, step, batch, before, self._sampling.order)
        return self._mishaps.attempt(part, run) or []

    def _probe(self, step: int, batch: Any, passes: int) -> None:
        before = self._weights_before()
        part = self._probing.due(step, has_moved=bool(before))
        if part is None:
            return
        was_poor = self._allowance.is_poor(part, step)
        waited = self._wait()
        self._charged += waited
        self._allowance.pass_pause(waited)
        rows: list[Row] = []
        self._charge(part, step, lambda: rows.extend(self._run(part, step, batch, before)))
        if not rows:
            return
        self._probing.adapt(part, step, batch, was_poor)
        if part in (CURVATURE, GRADIENT_OF_FEW):
            examples, size = self._probing.examples, passes * examples_in(batch)
            self.noise.expect(step + 1, self._probing.gradient_norm**2, examples, size)
            self._expects_gradients = size > examples
        elif part == PASS:
            rows = self._sampling.unseen(rows)
            if len(rows) <= 1:  # hooks see all of it
                self._allowance.close(PASS)
                return
        elif self._probing.findings is not None:
            self._logbook.inspected, self._logbook.inspected_at = self._probing.findings, step
            self._probing.findings = None
        self.rows += rows

    def _trace(self, step: int, batch: Any) -> None:
        """Once in a run, at whatever price: see where a loss that is not finite comes from."""
        self._has_traced, began = True, self._clock()
        batches = [each for each in (batch, self.last_batch) if each is not None]
        self.rows += self._mishaps.attempt("source of NaN", lambda: self._probing.trace(step, batches)) or []
        seconds = max(0.0, self._clock() - began)
        self._charged += seconds
        self._allowance.spend(seconds)

    def _plan(self, step: int, is_alarming: bool) -> None:
        """Decide what is read of the coming step."""
        expects_gradients, self._expects_gradients = self._expects_gradients, False
        depth: Depth = NOTHING
        is_afterwards = bool(self._afterwards) and step >= self._afterwards[0]
        if is_alarming or is_afterwards:
            self._afterwards = [step + later for later in AFTERWARDS] if is_alarming else self._afterwards[1:]
        if is_afterwards:
            self._allowance.hasten(PASS)
        is_wanted = is_alarming or is_afterwards or self._probing.wants_copy
        if is_wanted or self._allowance.is_turn(EVERYTHING, step):
            depth = EVERYTHING
        elif expects_gradients or self._allowance.is_turn(GRADIENTS, step):
            depth = GRADIENTS
        depth = self._ranks.agreed(depth)
        if depth or self._sampling.depth:
            self._sampling.plan(depth)

    def _charge(self, part: str, step: int, function: Callable[[], Any], already: float = 0.0) -> None:
        """Run a part, and charge it for the time it takes, and for what it took in hooks."""
        began = self._clock()
        function()
        seconds = max(0.0, self._clock() - began)
        self._charged += seconds
        self._allowance.charge(part, seconds + already, step)

    def state_dict(self) -> dict[str, Any]:
        """What the next turns depend on."""
        return {
            "allowance": self._allowance.state_dict(),
            "probing": self._probing.state_dict(),
            "noise": self.noise.state_dict(),
            "next_look": self.next_look,
            "looked_step": self._looked_step,
            "since": None if self._looked_at is None else self._clock() - self._looked_at,
            "own": self.own,
            "charged": self._charged,
            "excess": list(self._excess),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self._allowance.load_state_dict(state["allowance"])
        self._probing.load_state_dict(state["probing"])
        self.noise.load_state_dict(state["noise"])
        self.next_look, self._looked_step = state["next_look"], state["looked_step"]
        self.own, self._charged = state["own"], state["charged"]
        self._excess = deque(state["excess"], maxlen=MOST_EXCESSES)
        self._looked_at = None if state["since"] is None else self._clock() - state["since"]
