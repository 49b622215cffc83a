"""no-gradient: trainable weights that no step moves.

Wrong: `self.layers = [nn.Linear(8, 8)]`. Right: `self.layers = nn.ModuleList([nn.Linear(8, 8)])`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import nn

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.inspect import Inspection
from wellcond.diagnosis.inspection.weights import Weight
from wellcond.diagnosis.reading import (
    are_fresh,
    flat_after,
    in_order,
    is_trained,
    layers_of,
    listed,
    matrices,
    zero_gradients,
)
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.rules.loss_not_decreasing import without_learning
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.results import number

UNUSED = Threshold(
    "share of all weights that are called and get no gradient", 0.0, 0.1,
    origin="one spare layer, such as BERT's pooler before a head of one's own, is less; a branch that is never added "
    "is more",
)  # fmt: skip
NEVER_CALLED = Threshold(
    "share of all weights that are never called, or called under no_grad", math.nan, 0.5,
    origin="spare heads are ordinary, half of a network is not",
)  # fmt: skip

FEW_STEPS = Condition(
    "last steps that a gradient reaches", 2, origin="a cut after each step; truncation on purpose leaves tens of steps"
)

LOST_SLOPE = Threshold(
    "share of the slope of the loss that its gradient does not have", 0.2, 0.5,
    origin="0 if every term has a gradient: the error of the slope is subtracted; a fifth is no small term",
)  # fmt: skip
HALVED = Condition(
    "loss of a handful of examples after training / before", 0.5, origin="the network clearly learns from the rest"
)


@rule("no-gradient")
def loss_without_graph(evidence: Evidence) -> Iterator[Finding]:
    """A loss that depends on no trainable parameter: a detach, an argmax, a no_grad or a round trip through NumPy.

    Not reported if it does so in training mode: a model may use an average of its weights where it is evaluated.
    """
    inspection = evidence.inspection
    if inspection is None or inspection.loss_depends is not False or inspection.gradient_error:
        return
    if inspection.reached_in_training:
        return
    if inspection.loss is None or not math.isfinite(inspection.loss):
        return
    yield Finding(
        rule="no-gradient",
        severity="severe",
        basis="proven",
        summary="the loss depends on no trainable parameter, so no step changes anything.",
        evidence={"loss": inspection.loss},
        reason="The graph between the weights and the loss is cut: by detach(), .data, no_grad(), argmax, round or "
        "NumPy.",
        remedy="# look for the first tensor in forward or the loss whose requires_grad is False: there is the cut",
    )


@rule("no-gradient")
def not_reached(evidence: Evidence) -> Iterator[Finding]:
    """Trainable weights that no gradient reaches although the loss has one.

    Severe if layers that are called hold a tenth of all weights or are two or more: their outputs are computed and
    thrown away, like a residual branch that is never added, or cut off by a detach. One layer alone may be spare.
    Layers that are never called are a note unless they hold half of all weights; experts that a router did not choose
    are never severe. Layers under `no_grad` that the optimizer holds are severe if they hold half of all weights and
    these are as an initialization leaves them; what has been trained before may be fixed on purpose. Weights that get a
    gradient in training mode are not reported.
    """
    inspection = evidence.inspection
    if inspection is None or not inspection.loss_depends:
        return
    weights = matrices(inspection)
    in_training = inspection.reached_in_training
    unreached = [w for w in weights if w.is_trainable and w.gradient is None and w.name not in in_training]
    if called := in_order(w for w in unreached if w.order is not None):
        yield _unused(inspection, called, weights)
    if cut := [w for w in unreached if w.order is None and w.is_called_without_graph]:
        yield _under_no_grad(evidence.problem.model, cut, weights)
    if idle := [w for w in unreached if w.order is None and not w.is_called_without_graph]:
        yield _never_called(idle, weights)


def _unused(inspection: Inspection, called: list[Weight], weights: list[Weight]) -> Finding:
    share, layers = _share(called, weights), layers_of(called)
    # a second output, which the loss does not read, may be meant for something else
    is_all_read = inspection.returned < 2 and (share >= UNUSED.severe or len(layers) > 1)
    return Finding(
        rule="no-gradient",
        layer=layers[0],
        severity="severe" if share >= NEVER_CALLED.severe or is_all_read else "warning",
        basis="proven",
        summary=f"no gradient reaches {listed(layers)}, {share:.0%} of all weights, although a pass calls "
        f"{'them' if len(layers) > 1 else 'it'}: the result is not used, or cut off.",
        evidence={"share of weights": share, "layers without a gradient": float(len(layers))},
        reason="A weight without a gradient stays as it was initialized: its output is never added, or detached.",
        remedy=f"# use what {layers[0].rpartition('.')[0] or layers[0]} returns in forward, without a detach()",
    )


def _under_no_grad(model: nn.Module, cut: list[Weight], weights: list[Weight]) -> Finding:
    share, layers = _share(cut, weights), layers_of(cut)
    is_held = any(w.is_held for w in cut)
    is_lost = share >= NEVER_CALLED.severe and are_fresh(model, layers)
    state = ", still as they were initialized" if is_lost else ""
    return Finding(
        rule="no-gradient",
        layer=layers[0],
        severity="severe" if is_lost and is_held else "warning" if is_held else "note",
        basis="proven",
        summary=f"{listed(layers)}, {share:.0%} of all weights{state}, run under no_grad and are not trained.",
        evidence={"share of weights": share},
        reason="Nothing that is computed under no_grad gets a gradient, even if the optimizer holds it.",
        remedy=f"# take {layers[0]} out of the no_grad(), or out of the optimizer if it is fixed on purpose",
    )


def _never_called(idle: list[Weight], weights: list[Weight]) -> Finding:
    share, layers = _share(idle, weights), layers_of(idle)
    # by its name alone: that other layers of the same list are called is also true of blocks that were forgotten
    is_routed = any("expert" in layer.lower() for layer in layers)
    is_much = share >= NEVER_CALLED.severe and not is_routed
    return Finding(
        rule="no-gradient",
        layer=layers[0],
        severity="severe" if is_much else "note",
        basis="proven",
        summary=f"{listed(layers)}, {share:.0%} of all weights, {'are' if len(layers) > 1 else 'is'} never called.",
        evidence={"share of weights": share, "layers never called": float(len(layers))},
        reason="A layer that forward() leaves out is not trained.",
        remedy=f"# call {layers[0]} in forward, or delete it",
    )


def _share(some: list[Weight], every: list[Weight]) -> float:
    return sum(w.numel for w in some) / (sum(w.numel for w in every) or 1)


@rule("no-gradient")
def not_held(evidence: Evidence) -> Iterator[Finding]:
    """Trainable parameters with a gradient that the optimizer does not hold, so that no step moves them.

    Severe if they hold a tenth of all weights, or if the optimizer holds others instead: it was created before the
    model, or one of its layers, was exchanged. Layers that are fixed on purpose need requires_grad_(False).
    """
    inspection, optimizer = evidence.inspection, evidence.optimizer
    if inspection is None or optimizer is None:
        return
    every = [w for w in inspection.weights if w.is_trainable and w.gradient is not None]
    missing = [w for w in every if w.is_held is False]
    if not missing:
        return
    share, layers = _share(missing, every), layers_of(in_order(missing))
    is_much = share >= UNUSED.severe or inspection.held_elsewhere > 0 or any(w.role == "weight" for w in missing)
    instead = f", but holds {inspection.held_elsewhere} of another model" if inspection.held_elsewhere else ""
    yield Finding(
        rule="no-gradient",
        layer=layers[0],
        severity="severe" if is_much else "warning",
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
        share, names = _share(fresh, weights), layers_of(fresh)
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


def _fresh_before_trained(model: nn.Module, weights: list[Weight]) -> list[Weight]:
    """Frozen layers, before one that is trained, whose weights are as they were initialized."""
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


@rule("no-gradient")
def zero_gradient(evidence: Evidence) -> Iterator[Finding]:
    """Gradients of exactly zero, in all weights or in those before some operation, while the loss is not at its best.

    A step function, round() or sign() passes zeros back. A network that fits its data, or satisfies all its margins,
    has zero gradient for a good reason; and parameters of zeros, as in zero-initialized branches, stop gradients until
    their first step: then only those count that a probe finds to be cut off otherwise. Flat gates, tanhs and ReLUs are
    reported as vanishing-gradient: they have a slope, but not at these inputs.
    """
    inspection = evidence.inspection
    factors = None if evidence.behavior is None else evidence.behavior.zero_factors
    cut = frozenset[str]() if factors is None else factors.cut
    if inspection is None or (pair := zero_gradients(inspection, cut)) is None:
        return
    zero, reached = pair
    layers = layers_of(zero)
    if flat_after(inspection, layers[-1]):
        return
    share = _share(zero, reached)
    yield Finding(
        rule="no-gradient",
        layer=layers[-1] if len(layers) < len(layers_of(reached)) else "",
        severity="severe" if share >= UNUSED.severe else "warning",
        basis="measured",
        summary=f"the gradient is exactly zero in {listed(layers)}, {share:.0%} of all parameters, although the loss "
        f"is {number(inspection.loss or 0.0)}.",
        evidence={"loss": inspection.loss or 0.0, "share of parameters": share},
        reason="A step, round(), sign() or a comparison has slope zero everywhere, so no gradient passes through it.",
        remedy="# put a smooth function in place of the step, round, sign or comparison in forward or the loss",
    )


@rule("no-gradient")
def cut_in_time(evidence: Evidence) -> Iterator[Finding]:
    """Steps of a sequence that the answer depends on, but whose gradient is exactly zero: the state is detached.

    Severe if a gradient reaches the last two steps or fewer, or if the trial does not train, unless the trial shows
    that the network trains well: then, and if it reaches further, a warning. A state that is detached between batches
    is not within a sequence, and is not reported.
    """
    memory = None if evidence.behavior is None else evidence.behavior.memory
    if memory is None or not memory.change:
        return
    trial = evidence.trial
    is_lost = memory.reached <= FEW_STEPS.at or (trial is not None and trial.fails)
    trains = trial is not None and trial.trains_well
    yield Finding(
        rule="no-gradient",
        layer=memory.layer,
        severity="severe" if is_lost and not trains else "warning",
        basis="proven",
        summary=f"of {memory.steps} steps a gradient reaches the last {memory.reached} only, although what is read at "
        f"the end changes by {memory.change:.1%} with the steps before: the state is cut off between them"
        f"{f', at {memory.layer}' if memory.layer else ''}.",
        evidence={"steps": float(memory.steps), "reached": float(memory.reached), "relative change": memory.change},
        reason="Weights are not told what to keep for later: no gradient passes a detach(), .data or no_grad().",
        remedy="# carry the state from step to step without a detach(), .data, no_grad() or a round trip through "
        "numbers; detach it between batches only",
    )


@rule("no-gradient")
def term_without_gradient(evidence: Evidence) -> Iterator[Finding]:
    """A term of the loss that moves with the weights, but from which no gradient reaches any of them.

    The graph shows the term, and moving the weights after a trial on a handful of examples shows that a fifth or more
    of the loss's slope is not in its gradient. Severe if half is missing and the trial does not halve the loss;
    otherwise a warning. A detach() of a part of a term, as of a target network or a baseline, is by design and is not
    reported.
    """
    few = None if evidence.trial is None else evidence.trial.few
    if few is None or few.lost_slope is None or not LOST_SLOPE.is_warning(few.lost_slope):
        return
    lost = few.lost_slope
    is_lost = LOST_SLOPE.is_severe(lost) and few.after > HALVED.at * few.before
    yield Finding(
        rule="no-gradient",
        severity="severe" if is_lost else "warning",
        basis="proven",
        summary="a term of the loss moves with the weights, but has no gradient: on a handful of examples the loss "
        f"goes from {number(few.before)} to {number(few.after)}, and {min(lost, 1.0):.0%} of its slope there is not "
        "in its gradient.",
        evidence={"share of the slope": lost, "loss before": few.before, "loss after": few.after},
        reason="A derivative without create_graph=True, .data, .item(), no_grad() or a round trip through NumPy makes "
        "a term a mere number.",
        remedy="# compute the term with a graph: torch.autograd.grad(…, create_graph=True), and no .item(), .data, "
        "detach() or NumPy",
    )


@rule("no-gradient")
def blocked_by_zeros(evidence: Evidence) -> Iterator[Finding]:
    """Two or more parameters of zeros in one product, which block each other's gradients for ever.

    A probe takes steps of all other parameters and differentiates again: zeros in one factor alone, as in LoRA, ReZero
    or zero-initialized branches, get a gradient then. Severe if a tenth of all trainable parameters stays without a
    gradient, or a trial shows that the network does not train; otherwise a warning.
    """
    factors = None if evidence.behavior is None else evidence.behavior.zero_factors
    if factors is None or not factors.names:
        return
    layers = list(dict.fromkeys(name.rpartition(".")[0] or name for name in factors.names))
    does_not_train = evidence.trial is not None and evidence.trial.trains is False
    shapes = {name: evidence.problem.params[name].dim() for name in factors.names}
    drawn = [name for name, dims in shapes.items() if dims > 1]
    drawn = drawn[:-1] if len(drawn) > 1 and len(drawn) == len(shapes) else drawn
    yield Finding(
        rule="no-gradient",
        layer=layers[0],
        severity="severe" if factors.without_gradient >= UNUSED.severe or does_not_train else "warning",
        basis="proven",
        summary=f"{listed(list(factors.names))} are all zero and block each other: the gradient of each is a product "
        f"with the others, so {factors.without_gradient:.0%} of all parameters get none, now and after any step.",
        evidence={"share without a gradient": factors.without_gradient, "zeros": float(len(factors.names))},
        reason="In B A x the gradient of A is a product with B, and that of B one with A: one of them may start at "
        "zero, not both.",
        remedy=f"for name in {drawn!r}:\n    torch.nn.init.xavier_normal_(model.get_parameter(name))"
        if drawn
        else f"torch.nn.init.ones_(model.get_parameter({factors.names[0]!r}))",
    )


@rule("no-gradient")
def cut_before_outputs(evidence: Evidence) -> Iterator[Finding]:
    """Layers that move an output which sends them no gradient, in a network that learns nothing of its examples.

    A code that is drawn by sample() and not by rsample(), or detached, rounded or taken by an argmax: the encoder gets
    its gradient from another term alone, such as a KL. Severe if, besides, outputs may as well be another example's
    after the trial (loss-not-decreasing), and a warning where that is known of its own run only. Where the network
    learns, a detach() is by design, as before a probe.
    """
    trial = evidence.trial
    if trial is None or trial.has_learned or not trial.cut_off:
        return
    is_lost, few = without_learning(trial) is not None, trial.few
    if not is_lost and few is not None and few.paired is not None:
        return
    yield Finding(
        rule="no-gradient",
        layer=trial.cut_off[-1],
        severity="severe" if is_lost else "warning",
        basis="proven",
        summary=f"an output changes with the weights of {listed(list(trial.cut_off))}, but sends no gradient to them, "
        "and nothing is learned of the examples.",
        evidence={"layers": float(len(trial.cut_off))},
        reason="Something between them passes values on, but no gradient: sample() where rsample() was meant, a "
        "detach(), round() or argmax.",
        remedy="# draw with rsample(), or as mean + std * torch.randn_like(std); leave out the detach() before a layer "
        "that is to be trained through",
    )
