"""One case: a problem in a state, its references, and what came of measuring it."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

import wellcond as wc
from stress.losses import Loss, random_loss, squared
from stress.models import Draw, Network, logits_of, random_network
from stress.references import Reference, call, converted, in_measured_state
from stress.states import PLAIN, State, random_state
from stress.unchanged import changes, snapshot

Kind = Literal["right", "unclear", "refused", "silent", "crash", "changed"]
FAILURES = ("silent", "crash", "changed")
"""A number that is wrong without a word, an exception that is not wellcond's own, and a change of the user's state."""
SATURATED = 20.0
"""Logits at which a softmax is 0 or 1 to rounding, and its curvature is nothing else; they get a squared error."""
OTHER_SEEDS = 5
"""Runs that tell a bound which failed by its own chance from one that does not hold."""


@dataclass(frozen=True)
class Verdict:
    """What a judge says of one result.

    Attributes:
        kind: "unclear" if rounding leaves nothing to compare.
        text: Expected and got, for what is not right.
        held: Whether a stated bound held, where one was stated; a bound may fail by chance.
    """

    kind: Kind
    text: str = ""
    held: bool | None = None


RIGHT, UNCLEAR = Verdict("right"), Verdict("unclear")


@dataclass(frozen=True)
class Check:
    """One public function.

    Attributes:
        name: Name of the function, with its options.
        measure: (problem, seed) ↦ result; called in the user's state.
        judge: result ↦ verdict; called outside of it.
        misses: Number of five other seeds that must miss their bound too for a miss to be no coincidence.
    """

    name: str
    measure: Callable[[wc.Problem, int], Any]
    judge: Callable[[Any], Verdict]
    misses: int = 2


@dataclass(frozen=True)
class Outcome:
    check: str
    kind: Kind
    text: str = ""
    held: bool | None = None

    @property
    def is_failure(self) -> bool:
        return self.kind in FAILURES


@dataclass
class Case:
    """A problem, the state it is measured in, and the references."""

    name: str
    network: Network
    loss: Loss
    batches: list[Any]
    batchnorm: str = "batch"
    dtype: torch.dtype = torch.float64
    state: State = field(default=PLAIN)

    @property
    def model(self) -> nn.Module:
        return self.network.model

    @cached_property
    def truth(self) -> Reference:
        return Reference(self.model, self.loss, self.batches, self.batchnorm)

    @cached_property
    def rounded(self) -> Reference:
        return Reference(self.model, self.loss, self.batches, self.batchnorm, self.dtype)

    def describe(self) -> str:
        sizes = "+".join(str(len(y)) for _, y in self.batches)
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.name}: {self.loss.name}, {dtype}, {sizes} examples, {self.batchnorm}, {self.state.name}"

    def run(self, checks: list[Check]) -> Iterator[Outcome]:
        # the copies are made before hooks are on the model and before autocast or inference mode
        _ = self.truth, self.rounded
        for check in checks:
            yield self._outcome(check)

    def _outcome(self, check: Check) -> Outcome:
        kind, result = self._measured(check, seed=0)
        if kind is not None:
            return Outcome(check.name, kind, str(result))
        verdict = check.judge(result)
        if verdict.held is False and verdict.kind == "right":
            misses = 0
            for seed in range(1, OTHER_SEEDS + 1):
                kind, result = self._measured(check, seed)
                misses += kind is None and check.judge(result).held is False
            if misses >= check.misses:
                return Outcome(check.name, "silent", f"{verdict.text}; {misses} of {OTHER_SEEDS} other seeds too")
        return Outcome(check.name, verdict.kind, verdict.text, verdict.held)

    def _measured(self, check: Check, seed: int) -> tuple[Kind | None, Any]:
        """(None, the result), or what became of it and why."""
        kind: Kind | None = None
        result: Any = None
        # another thread's measurement may hold settings that are back when both have ended
        is_shared = self.state.name == "second thread"
        before = self._snapshot()
        with warnings.catch_warnings(), self.state.around(self.model):
            warnings.simplefilter("ignore")
            before = before if is_shared else self._snapshot()
            try:
                problem = wc.Problem(self.model, self.loss.call, self.batches, self.batchnorm)
                result = check.measure(problem, seed)
            except wc.WellcondError as error:
                kind, result = "refused", str(error) or "no message"
            except Exception as error:
                # the user's model does not train in this mode either
                kind = "refused" if "does not have a deterministic implementation" in str(error) else "crash"
                result = f"{type(error).__name__}: {error}"
            after = None if is_shared else self._snapshot()
        changed = changes(before, after or self._snapshot())
        return ("changed", ", ".join(changed)) if changed else (kind, result)

    def _snapshot(self) -> dict[str, Any]:
        return snapshot(self.model, self.loss.call, self.batches)


def random_case(seed: int, device: str) -> Case:
    """The case of a seed, always the same on the same version of torch."""
    draw = random.Random(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        family, network = random_network(draw)
        loss = random_loss(draw)
        dtype = draw.choices([torch.float64, torch.float32, torch.bfloat16], [0.35, 0.63, 0.02])[0]
        batchnorm = draw.choice(["batch", "batch", "running"])
        count = 1 if loss.name == "stateful" else draw.choice([1, 1, 2])
        network.model.to(device, dtype)
        loss.to(device)
        if draw.random() < 0.3:
            network.model.eval()
        sizes = [network.examples or draw.randint(3, 9) for _ in range(count)]
        inputs = [converted(network.inputs(size), dtype, device) for size in sizes]
        logits = [reference_logits(network, x, batchnorm, device) for x in inputs]
        if max(float(o.abs().max()) for o in logits) > SATURATED:
            loss = squared(draw)
        batches = [(x, converted(loss.targets(o), dtype, device)) for x, o in zip(inputs, logits, strict=True)]
        return Case(f"{family} (seed {seed})", network, loss, batches, batchnorm, dtype, random_state(draw, device))


def random_batch(
    network: Network, loss: Loss, examples: int, batchnorm: str, dtype: torch.dtype, device: str
) -> tuple[Any, Any]:
    inputs = converted(network.inputs(examples), dtype, device)
    return inputs, converted(loss.targets(reference_logits(network, inputs, batchnorm, device)), dtype, device)


def reference_logits(network: Network, inputs: Any, batchnorm: str, device: str) -> Tensor:
    """In float64, on the CPU."""
    model = in_measured_state(network.model, batchnorm, torch.float64)
    with torch.no_grad():
        return logits_of(call(model, converted(inputs, torch.float64, device))).cpu()


def chosen(draw: Draw, items: list[Any], count: int) -> list[Any]:
    return draw.sample(items, min(count, len(items)))
