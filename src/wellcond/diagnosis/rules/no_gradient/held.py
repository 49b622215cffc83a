"""Weights that the optimizer does not move: not passed to it, frozen, or not registered."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.weights import Weight
from wellcond.diagnosis.reading import (
    are_fresh,
    in_order,
    is_trained,
    layers_of,
    listed,
    matrices,
)
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.rules.no_gradient.shares import NEVER_CALLED, UNUSED, share_of
from wellcond.problem.training_step import TrainingStep


@rule("no-gradient")
def not_held(evidence: Evidence) -> Iterator[Finding]:
    """Trainable parameters with a gradient that the optimizer does not hold, so that no step moves them.

    Severe if they hold a tenth of all weights, or if the optimizer holds others instead: it was created before the
    model, or one of its layers, was exchanged. Layers that are fixed on purpose need requires_grad_(False). A note if
    they judge what the others give, as a critic or a discriminator does, and another optimizer may hold them: a step
    calls them more often, or nothing but what the others give decides on its loss.
    """
    inspection, optimizer = evidence.inspection, evidence.optimizer
    if inspection is None or optimizer is None:
        return
    every = [w for w in inspection.weights if w.is_trainable and w.gradient is not None]
    missing = [w for w in every if w.is_held is False]
    if not missing:
        return
    share, layers = share_of(missing, every), layers_of(in_order(missing))
    is_much = share >= UNUSED.severe or inspection.held_elsewhere > 0 or any(w.role == "weight" for w in missing)
    instead = f", but holds {inspection.held_elsewhere} of another model" if inspection.held_elsewhere else ""
    yield Finding(
        rule="no-gradient",
        layer=layers[0],
        severity="note" if _judge(evidence, layers) else "severe" if is_much else "warning",
        basis="proven",
        summary=f"the optimizer does not hold the parameters of {listed(layers)}, {share:.0%} of all{instead}: no "
        "step moves them.",
        evidence={"share of parameters": share, "held, of another model": float(inspection.held_elsewhere)},
        reason="An optimizer moves the parameters it was created with, and none that were added or exchanged since.",
        treatment="unfreeze",
        remedy="# make the optimizer over model.parameters() once the model is complete",
    )


@rule("no-gradient")
def frozen(evidence: Evidence) -> Iterator[Finding]:
    """Everything but norms and biases frozen, the last layer frozen while the one before it is trained, or fresh ones.

    A frozen backbone under a head that is trained is ordinary fine-tuning, and a frozen network after one that is
    trained judges it, like a discriminator. Layers before a trained one that hold a tenth of all weights, as they were
    initialized, are a warning, and severe if they hold half and the trial does not show that the others learn.
    """
    inspection = evidence.inspection
    if inspection is None:
        return
    weights = in_order(w for w in matrices(inspection) if w.order is not None)
    fixed = [w for w in weights if not w.is_trainable]
    if not weights or not fixed:
        return
    layers = layers_of(fixed)
    if len(fixed) == len(weights):
        if inspection.reached_in_training:
            return  # these are an average of the weights, or another network that is used in evaluation alone
        left = sorted({w.role for w in inspection.weights if w.is_trainable})
        yield Finding(
            rule="no-gradient",
            layer=layers[-1],
            severity="note" if "other" in left else "severe",
            basis="proven",
            summary=f"all {len(weights)} weights are frozen ({listed(layers)}); only parameters of the kind "
            f"{' and '.join(left) or 'none'} are trained.",
            evidence={"frozen weights": float(len(fixed))},
            reason="Scales and shifts alone cannot fit what random features do not contain.",
            treatment="unfreeze",
            remedy="model.requires_grad_()",
        )
    elif len(weights) > 1 and weights[-2].is_trainable and not (last := weights[-1]).is_trainable:
        if _judge(evidence, [last.layer]):
            return
        yield Finding(
            rule="no-gradient",
            layer=last.layer,
            severity="severe",
            basis="proven",
            summary=f"the last layer, {last.layer or 'the model'}, is frozen while layers before it are trained.",
            evidence={"frozen weights": float(len(fixed))},
            reason="The outputs remain a fixed combination of the features, which the new task did not choose.",
            treatment="unfreeze",
            remedy=f"model.get_submodule({last.layer!r}).requires_grad_()",
        )
    elif fresh := _fresh_before_trained(evidence.problem.model, weights):
        share, names = share_of(fresh, weights), layers_of(fresh)
        is_lost = share >= NEVER_CALLED.severe and evidence.trial is not None and not evidence.trial.trains
        if share < UNUSED.severe:
            return
        yield Finding(
            rule="no-gradient",
            layer=names[0],
            severity="severe" if is_lost else "warning",
            basis="proven",
            summary=f"{listed(names)}, {share:.0%} of all weights, {'are' if len(names) > 1 else 'is'} frozen, but "
            "still as initialized.",
            evidence={"share of weights": share, "frozen weights": float(len(fresh))},
            reason="Layers are frozen to keep what they have learned; these have learned nothing yet.",
            treatment="unfreeze",
            remedy="model.requires_grad_(True)  # or load the weights that were to be kept",
        )


def _judge(evidence: Evidence, layers: list[str]) -> bool:
    """Whether a training step calls layers on what all others give alone, or more often than these: on data too."""
    calls = {s.name: s.calls for s in evidence.inspection.weighted()} if evidence.inspection is not None else {}
    judging = [count for name, count in calls.items() if name in layers]
    others = [count for name, count in calls.items() if name not in layers]
    is_own_step = isinstance(evidence.problem.loss, TrainingStep)
    judged = None if evidence.behavior is None else evidence.behavior.judged_part
    if judged is not None and not any(f"{name}.".startswith(f"{judged}.") for name in layers):
        return True
    return is_own_step and bool(judging and others) and min(judging) > max(others)


def _fresh_before_trained(model: nn.Module, weights: list[Weight]) -> list[Weight]:
    """Frozen layers, before one that is trained, whose weights are as they were initialized."""
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and not m.training]
    if any(norm.running_mean is not None and bool(norm.running_mean.any()) for norm in norms):
        return []  # statistics of data that were seen before
    last = max((i for i, w in enumerate(weights) if w.is_trainable), default=0)
    fixed = [w for w in weights[:last] if not w.is_trainable and w.role != "embedding"]
    if any(map(is_trained, fixed)):
        return []
    return [w for w in fixed if are_fresh(model, [w.layer])]


@rule("no-gradient")
def not_registered(evidence: Evidence) -> Iterator[Finding]:
    """Trainable tensors in the model's graph that are not parameters of the model.

    They are in layers of a plain list, a dict or a closure, or are plain tensors, which `parameters()` does not find,
    and no `.to()` or checkpoint knows them. Severe if weights are among them that hold a tenth of all, or of which it
    is not known where they are; a note if the optimizer holds all of them.
    """
    inspection = evidence.inspection
    if inspection is None or not inspection.strays:
        return
    strays = inspection.strays
    size = sum(math.prod(stray.shape) for stray in strays)
    share = size / (size + sum(w.numel for w in inspection.weights))
    owners = list(dict.fromkeys(stray.owner for stray in strays if stray.path))
    are_held = all(stray.path in inspection.held_strays for stray in strays)
    is_much = any(len(stray.shape) > 1 for stray in strays) and (share >= UNUSED.severe or not owners)
    shape = str(list(max((stray.shape for stray in strays), key=math.prod)))
    several = (
        f"{len(strays)} trainable tensors take part that are"
        if len(strays) > 1
        else "a trainable tensor takes part that is"
    )
    yield Finding(
        rule="no-gradient",
        layer=owners[0] if owners else "",
        severity="note" if are_held else "severe" if is_much else "warning",
        basis="proven",
        summary=f"{several} not registered in the model, {share:.0%} of all parameters "
        f"({f'{listed(owners)}, ' if owners else ''}of shape {shape}): "
        + ("a checkpoint or .to() does not know them." if are_held else "model.parameters() does not have them."),
        evidence={"tensors": float(len(strays)), "share of parameters": share, "shape of the largest": shape},
        reason="Modules in a plain list, dict or closure are not registered, nor is a tensor that is no nn.Parameter, "
        "or a parameter that is multiplied or moved before it is assigned."
        if owners
        else "Nothing in the model holds them: layers that forward creates anew in every call, or layers from outside.",
        remedy="# keep layers in an nn.ModuleList or nn.ModuleDict, and a tensor of one's own as an nn.Parameter",
    )
