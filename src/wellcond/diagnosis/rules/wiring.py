"""Rules about wiring: what a gradient reaches, who moves it, what is shared, and what mixes examples."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import nn

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding, Severity
from wellcond.diagnosis.inspection.inspect import Inspection
from wellcond.diagnosis.inspection.weights import Weight
from wellcond.diagnosis.rule import UNRELATED, has_learned, rule
from wellcond.training.optimizers import current_lr

NAME = "no-gradient"
FROM_WIRING = (
    "loss-not-decreasing", "labels-unrelated", "learning-rate-too-low", "vanishing-gradient", "rank-collapse",
    "weight-domination", "batchnorm-mode-gap", "last-layer-drift",
)  # fmt: skip
"""What layers that are not trained make."""
UNUSED_SHARE = 0.1
"""Of all weights that a pass computes with and the loss never sees. One spare layer, as BERT's pooler behind a head of
one's own, is less; a branch that is never added is more."""
MANY_ENTRIES = 64
"""Of a weight, to tell how they are distributed."""
FLAT = 0.95
"""Share of a nonlinearity's values that are where it is flat."""
NEVER_CALLED_SHARE = 0.5
"""Of all weights in layers that are never called: spare heads are ordinary, half of a network is not."""


def _weights(inspection: Inspection) -> list[Weight]:
    """Those that carry a network: no biases, norms or single parameters."""
    return [w for w in inspection.weights if w.role in ("weight", "recurrent", "embedding")]


def _layers(weights: list[Weight]) -> list[str]:
    return list(dict.fromkeys(w.layer for w in weights))


def _listed(names: list[str]) -> str:
    return ", ".join(names) if len(names) < 5 else f"{names[0]}, {names[1]} … {names[-1]} ({len(names)})"


@rule(NAME, explains=FROM_WIRING)
def loss_without_graph(evidence: Evidence) -> Iterator[Finding]:
    """A loss that depends on no trainable parameter: a detach, an argmax, a no_grad or a round trip through NumPy."""
    inspection = evidence.inspection
    if (
        inspection is None
        or inspection.loss_depends is not False
        or inspection.gradient_error
        or inspection.loss is None
    ):
        return
    if inspection.loss != inspection.loss or abs(inspection.loss) == float("inf"):
        return
    yield Finding(
        rule=NAME,
        layer="",
        severity="severe",
        confidence=0.98,
        summary="the loss depends on none of the trainable parameters, so no step changes anything.",
        evidence={"loss": inspection.loss},
        reason="Between the weights and the loss the graph is cut: by detach(), .data, no_grad(), argmax, round or NumPy.",
        remedy="print(outputs.requires_grad, loss.requires_grad)  # the first that is False comes after the cut",
    )


@rule(NAME, explains=FROM_WIRING)
def reached_by_none(evidence: Evidence) -> Iterator[Finding]:
    """Trainable weights that no gradient reaches although the loss has one.

    Severe where layers that are called hold a tenth of all weights or are two or more: their outputs are computed and
    thrown away, as a residual branch that is never added, or cut off by a detach. One layer alone may be spare. Layers
    that are never called are a note unless they hold half of all weights. Layers under `no_grad` that the optimizer
    holds are severe where they hold half of all weights and these are as an initialization leaves them; what has been
    trained before may be fixed so.
    """
    inspection = evidence.inspection
    if inspection is None or not inspection.loss_depends:
        return
    weights = _weights(inspection)
    total = sum(w.numel for w in weights) or 1
    unreached = [w for w in weights if w.is_trainable and w.gradient is None]
    called = [w for w in unreached if w.order is not None]
    cut = [w for w in unreached if w.order is None and w.is_called_without_graph]
    idle = [w for w in unreached if w.order is None and not w.is_called_without_graph]
    if called:
        share, layers = sum(w.numel for w in called) / total, _layers(_by_order(called))
        # what the model returns beside what the loss looks at may be meant for something else
        is_much = share >= NEVER_CALLED_SHARE or (
            inspection.returned < 2 and (share >= UNUSED_SHARE or len(layers) > 1)
        )
        yield Finding(
            rule=NAME,
            layer=layers[0],
            severity="severe" if is_much else "warning",
            confidence=0.95 if is_much else 0.7,
            summary=f"no gradient reaches {_listed(layers)}, {share:.0%} of all weights, although a pass calls "
            f"{'them' if len(layers) > 1 else 'it'}: what is computed there is not used, or cut off.",
            evidence={"share of weights": share, "layers without a gradient": float(len(layers))},
            reason="A weight without a gradient stays as it was initialized: its output is never added, or detached.",
            remedy=f"x = x + {layers[0].rpartition('.')[0] or 'self.branch'}(x)  # use what it returns, without detach()",
        )
    if cut:
        share, layers = sum(w.numel for w in cut) / total, _layers(cut)
        is_held = any(w.is_held for w in cut)
        is_lost = share >= NEVER_CALLED_SHARE and _are_fresh(evidence.problem.model, layers)
        state = ", still as they were initialized" if is_lost else ""
        yield Finding(
            rule=NAME,
            layer=layers[0],
            severity="severe" if is_lost and is_held is not False else "warning" if is_held else "note",
            confidence=0.9 if is_lost else 0.7,
            summary=f"{_listed(layers)}, {share:.0%} of all weights{state}, run under no_grad and are not trained.",
            evidence={"share of weights": share},
            reason="Nothing that is computed under no_grad gets a gradient, though the optimizer may hold it.",
            remedy=f"model.{layers[0]}.requires_grad_(False)  # if it is meant so; else take the no_grad() away",
        )
    if idle:
        share, layers = sum(w.numel for w in idle) / total, _layers(idle)
        is_routed = any("expert" in layer.lower() for layer in layers)
        yield Finding(
            rule=NAME,
            layer=layers[0],
            severity="severe" if share >= NEVER_CALLED_SHARE and not is_routed else "note",
            confidence=0.8,
            summary=f"{_listed(layers)}, {share:.0%} of all weights, {'are' if len(layers) > 1 else 'is'} never called.",
            evidence={"share of weights": share, "layers never called": float(len(layers))},
            reason="A layer that forward() leaves out is not trained.",
            remedy=f"x = self.{layers[0]}(x)  # in forward(), or delete it",
        )


def _are_fresh(model: nn.Module, layers: list[str]) -> bool:
    """Whether layers are as they were initialized: weights that fill an interval evenly, or biases that are all zero.

    The largest of many even numbers is √3 times their RMS, of normal ones three times or more, and training leaves
    neither even weights nor zero biases.
    """
    modules = [model.get_submodule(name) for name in layers]
    params = [(name, p.detach()) for module in modules for name, p in module.named_parameters(recurse=False)]
    weights = [p for name, p in params if "weight" in name and p.dim() > 1 and p.numel() >= MANY_ENTRIES]
    biases = [p for name, p in params if "bias" in name]
    even = [float(p.abs().max()) < 1.1 * math.sqrt(3) * float(p.square().mean().sqrt()) for p in weights]
    return bool(even and all(even)) or bool(biases and all(not bool(p.any()) for p in biases))


def _by_order(weights: list[Weight]) -> list[Weight]:
    return sorted(weights, key=lambda w: (w.order is None, w.order or 0))


@rule(NAME, explains=FROM_WIRING)
def not_registered(evidence: Evidence) -> Iterator[Finding]:
    """Trainable tensors in the model's graph that are no parameters of it.

    They are layers in a plain list or dict, which `parameters()` does not find, and no optimizer, `.to()` or checkpoint
    knows.
    """
    inspection = evidence.inspection
    if inspection is None or inspection.output is None or not inspection.output.strays:
        return
    shapes = inspection.output.strays
    is_much = any(len(shape) > 1 for shape in shapes)
    yield Finding(
        rule=NAME,
        layer="",
        severity="severe" if is_much else "warning",
        confidence=0.9,
        summary=f"{len(shapes)} trainable tensors take part that are no parameters of the model, the first of shape "
        f"{list(shapes[0])}: no optimizer made from model.parameters() moves them.",
        evidence={"tensors": float(len(shapes)), "shape of the first": str(list(shapes[0]))},
        reason="Modules in a plain list or dict are not registered.",
        remedy="self.layers = nn.ModuleList(layers)  # instead of a list; nn.Parameter(t) for a tensor",
    )


@rule(NAME, explains=FROM_WIRING)
def not_held(evidence: Evidence) -> Iterator[Finding]:
    """Trainable parameters with a gradient that the optimizer does not hold, so that no step moves them.

    Severe where they hold a tenth of all weights, or where the optimizer holds others instead: it was made before the
    model, or one of its layers, was exchanged. Deliberately fixed layers are to be frozen by requires_grad_(False).
    """
    inspection = evidence.inspection
    if inspection is None or evidence.optimizer is None:
        return
    every = [w for w in inspection.weights if w.is_trainable and w.gradient is not None]
    missing = [w for w in every if w.is_held is False]
    if not missing:
        return
    total = sum(w.numel for w in every) or 1
    share, layers = sum(w.numel for w in missing) / total, _layers(_by_order(missing))
    is_much = share >= UNUSED_SHARE or inspection.held_elsewhere > 0 or any(w.role == "weight" for w in missing)
    instead = f", but {inspection.held_elsewhere} that are none of the model's" if inspection.held_elsewhere else ""
    yield Finding(
        rule=NAME,
        layer=layers[0],
        severity="severe" if is_much else "warning",
        confidence=0.95,
        summary=f"the optimizer does not hold the parameters of {_listed(layers)}, {share:.0%} of all{instead}: no step moves "
        "them.",
        evidence={"share of parameters": share, "held but not the model's": float(inspection.held_elsewhere)},
        reason="An optimizer moves what it was given when it was made, and nothing that was added or exchanged since.",
        remedy=f"optimizer = torch.optim.{type(evidence.optimizer).__name__}(model.parameters(), "
        f"lr={current_lr(evidence.optimizer.param_groups[0]):g})  # after the model is complete",
    )


@rule(NAME, explains=FROM_WIRING)
def frozen(evidence: Evidence) -> Iterator[Finding]:
    """Everything but norms and biases frozen, or the last layer frozen while that before it is trained.

    A frozen backbone under a head that is trained is ordinary fine-tuning, and a frozen network behind one that is
    trained judges it, as a discriminator.
    """
    inspection = evidence.inspection
    if inspection is None:
        return
    weights = _by_order([w for w in _weights(inspection) if w.order is not None])
    fixed = [w for w in weights if not w.is_trainable]
    if not weights or not fixed:
        return
    layers = _layers(fixed)
    if len(fixed) == len(weights):
        left = sorted({w.role for w in inspection.weights if w.is_trainable})
        yield Finding(
            rule=NAME,
            layer=layers[-1],
            severity="note" if "other" in left else "severe",
            confidence=0.95,
            summary=f"all {len(weights)} weights are frozen, {_listed(layers)}; only parameters of the kind "
            f"{' and '.join(left) or 'none'} are trained.",
            evidence={"frozen weights": float(len(fixed))},
            reason="Scales and shifts alone cannot fit what random features do not hold.",
            remedy="model.requires_grad_(True)  # or at least the last layer's",
        )
    elif len(weights) > 1 and weights[-2].is_trainable and not (last := weights[-1]).is_trainable:
        yield Finding(
            rule=NAME,
            layer=last.layer,
            severity="severe",
            confidence=0.75,
            summary=f"the last layer, {last.layer or 'the model'}, is frozen while layers before it are trained.",
            evidence={"frozen weights": float(len(fixed))},
            reason="The outputs stay a fixed combination of the features, which the new task did not choose.",
            remedy=f"model.{last.layer}.requires_grad_(True)",
        )


@rule(NAME, explains=FROM_WIRING)
def zero_gradient(evidence: Evidence) -> Iterator[Finding]:
    """Gradients of exactly zero, in all weights or in those before some operation, while the loss is not at its best.

    A step function, round() or sign() passes zeros on. A network that fits its data, or whose margins are all kept, has
    none to pass; and parameters of zeros, as in zero-initialized branches, stop gradients until their first step.
    Gates, tanhs and ReLUs that are flat are another matter: they have a slope, but not at these inputs.
    """
    inspection = evidence.inspection
    if inspection is None or (found := _still(inspection)) is None:
        return
    still, moved = found
    layers = _layers(still)
    if _flat_behind(inspection, layers[-1]):
        return
    share = sum(w.numel for w in still) / sum(w.numel for w in moved)
    yield Finding(
        rule=NAME,
        layer=layers[-1] if len(layers) < len(_layers(moved)) else "",
        severity="severe" if share >= UNUSED_SHARE else "warning",
        confidence=0.85,
        summary=f"the gradient is exactly zero in {_listed(layers)}, {share:.0%} of all parameters, though the loss is "
        f"{inspection.loss:.3g}.",
        evidence={"loss": inspection.loss or 0.0, "share of parameters": share},
        reason="A step, round(), sign() or a comparison has slope zero everywhere, so nothing passes it.",
        remedy="print(torch.autograd.grad(loss, outputs))  # zero: it is the loss; else an operation of the model",
    )


@rule("vanishing-gradient", explains=("learning-rate-too-low", "loss-not-decreasing", "labels-unrelated"))
def flat_gates(evidence: Evidence) -> Iterator[Finding]:
    """Gradients of exactly zero before gates, tanhs, sigmoids or ReLUs that are flat on all examples.

    The gates of a recurrent layer are, where a gradient comes back to its output and none to its weights. What has made
    their arguments so large, or so negative, is to blame: inputs, weights or biases.
    """
    inspection = evidence.inspection
    if inspection is None or (found := _still(inspection)) is None:
        return
    still, moved = found
    layers = _layers(still)
    what = _flat_behind(inspection, layers[-1])
    if not what:
        return
    share = sum(w.numel for w in still) / sum(w.numel for w in moved)
    yield Finding(
        rule="vanishing-gradient",
        layer=layers[-1],
        severity="severe" if share >= UNUSED_SHARE else "warning",
        confidence=0.85,
        summary=f"the gradient is exactly zero in {_listed(layers)}, {share:.0%} of all parameters: {what} {layers[-1]} are "
        "flat on all examples.",
        evidence={"loss": inspection.loss or 0.0, "share of parameters": share},
        reason="A gate, tanh, sigmoid or ReLU whose argument is far from 0, or below it, has slope 0 in float32.",
        remedy="inputs = (inputs - mean) / std  # of the training set; and weights and biases as torch starts them",
    )


def _still(inspection: Inspection) -> tuple[list[Weight], list[Weight]] | None:
    """Weights with a gradient of zero, in the order of the forward pass, and all that have one; None where it is right.

    It is where the network fits its data, and where weights of zeros stop gradients until their first step.
    """
    if inspection.output is None or not inspection.loss:
        return None
    moved = [w for w in inspection.weights if w.is_trainable and w.gradient is not None and w.order is not None]
    still = _by_order([w for w in moved if w.gradient == 0 and w.role in ("weight", "recurrent")])
    right = inspection.output.perfect_loss
    is_fitted = right is not None and inspection.loss <= right + 1e-6 * abs(right) + 1e-9
    is_blocked = any(w.role != "bias" and w.rms == 0 for w in inspection.weights)
    if not still or is_fitted or is_blocked or (right is None and not any(w.gradient for w in moved)):
        return None
    return still, moved


def _flat_behind(inspection: Inspection, layer: str) -> str:
    """What is flat in a layer, or right behind it, in words; nothing if that is not seen."""
    for signal in inspection.signals:
        if signal.name != layer:
            continue
        if signal.kind in ("LSTM", "GRU", "RNN") and signal.gradient:
            return "the gates of"
        if (signal.saturated or 0.0) > FLAT:
            return f"the {signal.kind}s behind"
        if len(signal.dead) and bool(signal.dead.all()):
            return "the ReLUs behind"
    return ""


@rule("shared-weight", explains=("loss-not-decreasing", "symmetric-initialisation"))
def shared_weight(evidence: Evidence) -> Iterator[Finding]:
    """One weight in two layers that are both called, or two weights in the same memory.

    An embedding and a decoder may share theirs, and one module may be called again and again; two layers of one kind
    that hold the same tensor are one layer that was assigned or listed twice.
    """
    inspection = evidence.inspection
    if inspection is None:
        return
    modules: dict[str, nn.Module] = dict(evidence.problem.model.named_modules(remove_duplicate=False))
    again = {s.name for s in inspection.weighted() if s.calls > 1}
    listed = {one: names for one in again if (names := [n for n in modules if modules[n] is modules[one] and n != one])}
    for w in inspection.weights:
        if w.role not in ("weight", "recurrent"):
            continue
        others = [name.rpartition(".")[0] for name in w.also]
        kinds = {type(modules[name]) for name in others if name in modules}
        if w.shares_memory_with is not None:
            others = [w.shares_memory_with.rpartition(".")[0]]
        elif w.layer in listed:
            others = listed[w.layer]
        elif not others or any(issubclass(kind, (nn.Embedding, nn.EmbeddingBag)) for kind in kinds):
            continue
        yield Finding(
            rule="shared-weight",
            layer=w.layer,
            severity="severe",
            confidence=0.8,
            summary=f"{w.layer} and {_listed(others)} hold the same weight, of shape {list(w.shape)}: what one learns, the "
            "other has to do as well.",
            evidence={"shape": str(list(w.shape)), "shared with": _listed(others)},
            reason="Their gradients add up in one tensor. Only an embedding and its decoder are usually meant so.",
            remedy=f"{others[0]} = copy.deepcopy({w.layer})  # a layer of its own; [make() for _ in …], not [layer] * n",
        )


@rule(
    "no-nonlinearity",
    explains=("loss-not-decreasing", "labels-unrelated", "ill-conditioned-input", "learning-rate-too-low"),
)
def no_nonlinearity(evidence: Evidence) -> Iterator[Finding]:
    """Two or more layers with nothing nonlinear between them: the network is one affine map, told by its graph.

    Severe where a trial does not learn, and where a linear fit tells no more of the targets than chance (or the loss
    stands still at every rate); a warning where that is not known; a note where an affine map is enough. The last
    operation may be a softmax or a sigmoid. A BatchNorm is affine in use. Layers narrower than both ends, as of a
    linear autoencoder, are a product of low rank, which one layer is not.
    """
    inspection = evidence.inspection
    if inspection is None or inspection.output is None or not inspection.output.is_affine:
        return
    layers = [s for s in inspection.weighted() if s.kind not in ("Embedding", "EmbeddingBag")]
    is_bottleneck = len(layers) > 1 and min(s.units for s in layers[:-1]) < min(layers[-1].units, _features(inspection))
    if len(layers) < 2 or any(s.is_nonlinearity for s in inspection.signals[: inspection.signals.index(layers[-1])]):
        return
    yield Finding(
        rule="no-nonlinearity",
        layer=layers[0].name,
        severity="note" if is_bottleneck else _of_affine(evidence),
        confidence=0.9,
        summary=f"there is no nonlinearity between {_listed([s.name for s in layers])}: together they are one linear layer.",
        evidence=_probes(evidence) | {"layers": float(len(layers))},
        reason="A product of matrices is a matrix: depth without a nonlinearity adds nothing that can be represented.",
        remedy=f"x = torch.relu({layers[0].name}(x))  # after every layer but the last",
    )


def _of_affine(evidence: Evidence) -> Severity:
    """How much an affine map lacks."""
    trial = evidence.trial
    if has_learned(evidence):
        return "note"
    if trial is None:
        return "warning"
    if trial.is_learned or any(trial.learns(each) for each in trial.attempts):
        return "note"
    if trial.relation is None:
        return "severe" if trial.fails else "warning"
    is_linear = trial.relation.linear > max(UNRELATED, trial.relation.neighbor)
    return "note" if is_linear else "severe" if trial.relation.linear < UNRELATED else "warning"


def _probes(evidence: Evidence) -> dict[str, float | str]:
    found = None if evidence.trial is None else evidence.trial.relation
    return {} if found is None else {"nearest neighbor, in σ": found.neighbor, "linear fit, in σ": found.linear}


def _features(inspection: Inspection) -> int:
    """How many numbers an example has."""
    return sum(math.prod(fact.shape[1:]) for fact in inspection.inputs)


@rule("mixed-examples", explains=("labels-unrelated", "batchnorm-mode-gap", "loss-not-decreasing"))
def mixed_examples(evidence: Evidence) -> Iterator[Finding]:
    """Outputs of an example that depend on the others of its batch, without a BatchNorm.

    The last few examples are passed through once more, alone. Severe behind a recurrent or attention layer that is not
    `batch_first`, which has taken the examples for steps of a sequence; else a warning. Where the order of the examples
    does not matter it is a note: statistics over a batch, as a BatchNorm's, are meant so.
    """
    inspection = evidence.inspection
    if inspection is None or inspection.mixing is None or inspection.mixing.difference < 1e-3:
        return
    mixing = inspection.mixing
    module = dict(evidence.problem.model.named_modules()).get(mixing.layer)
    is_turned = getattr(module, "batch_first", True) is False
    call = f"nn.{type(module).__name__}(…, batch_first=True)" if is_turned else "print(x.shape)"
    yield Finding(
        rule="mixed-examples",
        layer=mixing.layer,
        severity="severe" if is_turned else "note" if mixing.is_symmetric else "warning",
        confidence=0.9 if is_turned else 0.6,
        summary=f"the outputs of an example change by {mixing.difference:.0%} with the others of its batch, first at "
        f"{mixing.layer or 'the model'}"
        + (", which takes the batch for the steps of a sequence (batch_first=False)." if is_turned else "."),
        evidence={"relative change": mixing.difference},
        reason="Statistics over a batch are others in use, one example at a time, unless they are kept as a BatchNorm's are."
        if mixing.is_symmetric and not is_turned
        else "The loss of example i has to depend on input i alone: a dimension has been taken for another.",
        remedy="x = self.norm(x)  # an nn.BatchNorm1d, which keeps running statistics for use"
        if mixing.is_symmetric and not is_turned
        else f"{call}  # which dimension counts the examples?",
    )
