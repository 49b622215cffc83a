"""model-fails: a model that raises on its own data.

Wrong:
    loader = DataLoader(dataset, batch_size=64)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))  # fails on a rest of one
Right:
    loader = DataLoader(dataset, batch_size=64, drop_last=True)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.reading import only_recurrent
from wellcond.diagnosis.rule import rule
from wellcond.problem.training_step import TrainingStep
from wellcond.results import number


@rule("model-fails")
def model_fails(evidence: Evidence) -> Iterator[Finding]:
    """A model that raises on some of its own data, so that nothing else can be measured."""
    inspection = evidence.inspection
    if inspection is None or not inspection.forward_error:
        return
    called = "training step" if isinstance(evidence.problem.loss, TrainingStep) else "model"
    yield Finding(
        rule="model-fails",
        layer=inspection.failing_layer,
        severity="severe",
        basis="proven",
        summary=f"the model fails on its data: {inspection.forward_error.rstrip('.')}.",
        evidence={"examples that passed": float(sum(fact.shape[0] for fact in inspection.outputs[:1]))},
        reason="A batch does not fit the model in shape, type or range, or forward() raises after some calls.",
        remedy=f"# pass the batches through the {called} one by one, and look at shape and range of the first that "
        "fails",
    )


@rule("model-fails")
def fails_later(evidence: Evidence) -> Iterator[Finding]:
    """A model or a loss that takes the first batches and raises on a later one, in training mode.

    A copy in the model's own modes sees every batch of an epoch, as far as a second allows, whose shapes are new, or
    whose indices are outside of the range so far; and examples in the number of the last batch. BatchNorm, say, refuses
    a last batch of one example.
    """
    refused = None if evidence.inspection is None else evidence.inspection.refused
    if refused is None or not refused.error:
        return
    is_smaller = refused.examples < refused.usual
    which = "the last batch" if refused.index is None else f"batch {refused.index}"
    yield Finding(
        rule="model-fails",
        layer=refused.layer,
        severity="severe",
        basis="proven",
        summary=f"training ends at {which}, of {refused.examples} instead of {refused.usual} examples: "
        f"{refused.error.rstrip('.')}."
        if is_smaller
        else f"training ends at {which}, although it takes the first one: {refused.error.rstrip('.')}.",
        evidence={"examples in the batch": float(refused.examples), "examples in the first": float(refused.usual)},
        reason="A smaller batch is what is left at the end of an epoch; a layer that needs more examples, or a fixed "
        "number of them, fails on it."
        if is_smaller
        else "A batch does not fit the model or the loss in shape, type or range.",
        remedy="# pass drop_last=True to the DataLoader, or choose a batch size that leaves no such rest"
        if is_smaller
        else "# look at shape and range of the inputs and labels of this batch",
    )


@rule("model-fails")
def fails_after_a_step(evidence: Evidence) -> Iterator[Finding]:
    """A model or a loss that takes a first step of training and raises at a later one, at every rate that was tried.

    The weights are finite, and lower rates than its own raise too, so that it is not where the steps lead: what a step
    leaves, such as a state with its graph, does not fit the next. The only recurrent layer is named where a graph is
    gone.
    """
    trial = evidence.trial
    if trial is None or trial.own is None or not all(each.has_raised for each in trial.attempts):
        return
    lowest = min(each.lr for each in trial.attempts)
    if not lowest < trial.own.lr:
        return
    at, error = trial.own.run.diverged_at or 0, trial.own.run.cause.partition("\n")[0]
    yield Finding(
        rule="model-fails",
        layer=only_recurrent(evidence.problem.model) if "second time" in error else "",
        severity="severe",
        basis="tried",
        summary=f"training ends at step {at}, and so it does at every rate down to {number(lowest)}: "
        f"{error.rstrip('.')}.",
        evidence={"step": float(at), "lowest lr tried": lowest, "error": error},
        reason="The first step passes, so the data fit: what it leaves does not fit the next one. A state that "
        "is kept with its graph is an example, since the graph is gone after a backward pass.",
        remedy="# detach() what forward() keeps for the next call: self.state = state.detach()",
    )


@rule("model-fails")
def scaler_refuses(evidence: Evidence) -> Iterator[Finding]:
    """A `GradScaler` with weights in float16: it divides gradients in float32, and raises at the first step."""
    problem = evidence.problem
    half = [name for name, p in problem.params.items() if p.dtype == torch.float16]
    if problem.precision.scaler is None or not half:
        return
    yield Finding(
        rule="model-fails",
        layer=half[0].rpartition(".")[0] or half[0],
        severity="severe",
        basis="proven",
        summary=f"training ends at the first step: {half[0]} is float16, and GradScaler refuses its gradient.",
        evidence={"parameters in float16": float(len(half)), "loss scale": float(problem.precision.scaler["scale"])},
        reason="A scaled gradient is divided again before the step, for which float16 has too few small numbers. A "
        "GradScaler belongs to weights in float32 and passes in float16.",
        remedy="model.float()  # then recreate the optimizer; torch.autocast keeps the passes in float16",
    )
