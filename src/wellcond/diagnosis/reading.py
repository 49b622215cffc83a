"""What several rules read from an inspection: hidden layers, weights by layer, norms, sequences, zero gradients."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.inspection.inspection import Inspection
from wellcond.diagnosis.inspection.outputs import OutputFacts
from wellcond.diagnosis.inspection.signal import Signal
from wellcond.diagnosis.inspection.weights import Weight
from wellcond.network.norms import is_norm
from wellcond.problem.loss.loss_graph import PRODUCTS

GATED = ("LSTM", "GRU", "RNN")
"""Recurrent layers, whose outputs never exceed 1."""
MOSTLY_FLAT = 0.95
"""Share of a nonlinearity's values at which its slope is below a tenth of its largest."""
VANISHES = 0.01
"""Fraction of the loss: a loss that falls below it where outputs equal targets compares the two."""
FITTED = 1e-6
"""Relative difference from the loss of perfect outputs, float32's rounding of a sum: the network fits its data."""
TRAINED = 1.3
"""Largest singular value of a weight over that of independent entries. It is 1.26 at most over thirty seeds of eleven
initializations, and 1.3 to 2.9 in perceptrons and convolutional networks after 300 steps."""
MANY_ENTRIES = 64
"""Entries of a weight: the largest of 64 normal numbers is above 1.9σ in 97 % of draws."""
EVEN = 1.1
"""Largest entry over √3·RMS of a weight: 1 for numbers that fill an interval evenly, 1.5 or more for normal ones."""

MANY_BIASES, EVEN_BIASES = 16, 1.3
"""Biases of a layer from which on their RMS tells how they are spread: of 16 even numbers it is within a factor of 1.3
of that of the interval in 97 % of draws."""


def is_trained(weight: Weight) -> bool:
    """Whether training has aligned the entries of a weight, which any initialization draws independently."""
    return weight.outlier is not None and weight.outlier > TRAINED


def are_fresh(model: nn.Module, layers: list[str]) -> bool:
    """Whether layers are as they were initialized: weights that fill an interval evenly, or biases as torch draws them.

    Those are all zero, or fill the interval ±1/√fan-in. Training leaves neither.
    """
    modules = [model.get_submodule(name) for name in layers]
    params = [(name, p.detach()) for module in modules for name, p in module.named_parameters(recurse=False)]
    weights = [p for name, p in params if "weight" in name and p.dim() > 1 and p.numel() >= MANY_ENTRIES]
    biases = [p for name, p in params if "bias" in name]
    even = [float(p.abs().max()) < EVEN * math.sqrt(3) * float(p.square().mean().sqrt()) for p in weights]
    are_zero = bool(biases) and all(not bool(p.any()) for p in biases)
    return bool(even and all(even)) or are_zero or (bool(modules) and all(map(_has_drawn_biases, modules)))


def _has_drawn_biases(module: nn.Module) -> bool:
    """Whether the biases of a linear or convolutional layer fill ±1/√fan-in, and do not go beyond."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    if not isinstance(weight, Tensor) or not isinstance(bias, Tensor) or bias.numel() < MANY_BIASES:
        return False
    end = 1 / math.sqrt(weight[0].numel())
    size = float(bias.detach().double().square().mean().sqrt()) / end * math.sqrt(3)
    return 1 / EVEN_BIASES < size < EVEN_BIASES and float(bias.detach().abs().max()) <= end * (1 + 1e-5)


def is_embedding(signal: Signal) -> bool:
    """Whether a layer looks its outputs up in a table."""
    return signal.kind in ("Embedding", "EmbeddingBag")


def hidden_layers(inspection: Inspection) -> list[Signal]:
    """Layers with weights that a gradient comes back to, without embeddings and the last one."""
    layers = [s for s in inspection.weighted() if s.sensitivity is not None and not is_embedding(s)]
    return layers[:-1]


def is_blocked(inspection: Inspection) -> bool:
    """Whether a weight of zeros, as in a zero-initialized last layer, stops gradients until its first step."""
    return any(w.role == "weight" and w.rms == 0 for w in inspection.weights)


def spread(signal: Signal) -> float:
    """RMS of what differs between examples; of everything if that is not known."""
    return signal.rms * math.sqrt(1.0 if signal.variation is None else signal.variation)


def normalized_layers(evidence: Evidence, inspection: Inspection) -> set[str]:
    """Layers whose output goes straight into a norm, which removes their scale, or through a dropout."""
    modules = dict(evidence.problem.model.named_modules())
    names, last = set(), None
    for signal in inspection.signals:
        module = modules.get(signal.name)
        if isinstance(module, (nn.Identity, nn.Flatten, _DropoutNd)):
            continue
        if signal.is_weighted:
            last = signal.name
        elif last is not None and module is not None and not signal.is_nonlinearity:
            if is_norm(module):
                names.add(last)
            last = None
    return names


def only_recurrent(model: nn.Module) -> str:
    """The name of the recurrent layer of a model that has a single one; "" for others."""
    names = [name for name, module in model.named_modules() if isinstance(module, (nn.RNNBase, nn.RNNCellBase))]
    return names[0] if len(names) == 1 else ""


def matrices(inspection: Inspection) -> list[Weight]:
    """Weights of layers: no biases, norms or single parameters."""
    return [w for w in inspection.weights if w.role in ("weight", "recurrent", "embedding")]


def layers_of(weights: Iterable[Weight]) -> list[str]:
    """The layers that hold these weights, each once; a parameter that the model holds itself stands for itself."""
    return list(dict.fromkeys(w.layer or (w.name if w.role == "other" else "") for w in weights))


def in_order(weights: Iterable[Weight]) -> list[Weight]:
    """In the order of the forward pass; those that are never called last."""
    return sorted(weights, key=lambda w: (w.order is None, w.order or 0))


def layer_named(name: str) -> str:
    """A layer in a sentence, where a name such as 1 would read like a number.

    Example:
        >>> layer_named("1"), layer_named("backbone.1")
        ('layer 1', 'backbone.1')
    """
    return f"layer {name}" if name.isdigit() else name


def listed(names: list[str]) -> str:
    """Names in a sentence; of many, the first two, the last and their number.

    Example:
        >>> listed(["a", "b"]), listed(["a", "b", "c", "d", "e"])
        ('a, b', 'a, b … e (5)')
    """
    return ", ".join(names) if len(names) < 5 else f"{names[0]}, {names[1]} … {names[-1]} ({len(names)})"


def and_more(count: int) -> str:
    """How a sentence goes on after the first of several.

    Example:
        >>> and_more(1), and_more(3)
        ('', ' and 2 more')
    """
    return f" and {count - 1} more" if count > 1 else ""


def outputs_of(evidence: Evidence) -> tuple[Inspection, OutputFacts] | None:
    """The inspection and its outputs; None if there are none, or only NaN, of which nothing can be said.

    Infinite outputs with a finite loss are ordinary: logits of actions that are masked.
    """
    inspection = evidence.inspection
    if inspection is None or inspection.output is None:
        return None
    is_lost = any(fact.not_finite for fact in inspection.outputs) and not math.isfinite(inspection.output.loss or 0.0)
    return None if is_lost else (inspection, inspection.output)


def last_layer(inspection: Inspection, output: OutputFacts) -> str:
    """The module of the last operation, or the last layer with weights."""
    weighted = inspection.weighted()
    last = inspection.signals[-1] if inspection.signals else None
    is_module = last is not None and not last.is_nonlinearity
    if output.tail and is_module and last is not None and last.kind.lower() == output.tail[0].lower():
        return last.name
    return weighted[-1].name if weighted else ""


def vanishes_at_targets(output: OutputFacts) -> bool:
    """Whether the loss all but vanishes where outputs equal targets, so that it compares the two."""
    perfect, loss = output.perfect_loss, output.loss
    if perfect is None or loss is None or output.loss_operations & PRODUCTS:
        return False
    return 0 <= perfect < VANISHES * loss


def sequences(evidence: Evidence) -> Iterator[tuple[str, Tensor]]:
    """Recurrent layers, or "" for a cell in a loop, each with its gradient norm per time step."""
    inspection = evidence.inspection
    if inspection is None:
        return
    layers = [(s.name, s.gradient_over_time) for s in inspection.signals if s.gradient_over_time is not None]
    yield from ((name, over_time) for name, over_time in layers if over_time is not None)
    if not layers and inspection.gradient_over_time is not None:
        yield "", inspection.gradient_over_time


def read_sequences(evidence: Evidence) -> Iterator[tuple[str, Tensor]]:
    """The same; without any of these, how much each step of the inputs moves what is read from the last one.

    The layer that carries a state comes first, before one that reads the inputs of each step. A network that reads one
    place, such as a class token, moves with that place most: this grows for a good reason.
    """
    memory = None if evidence.behavior is None else evidence.behavior.memory
    carrier = "" if memory is None else memory.layer
    recurrent = sorted(sequences(evidence), key=lambda named: named[0] != carrier)
    yield from recurrent
    if not recurrent and memory is not None and memory.over_time is not None:
        yield memory.layer or _that_loops(evidence.inspection, memory.steps), memory.over_time


def _that_loops(inspection: Inspection | None, steps: int) -> str:
    """The module whose own code applies a tanh or another nonlinearity in each step; "" if that is not a single one."""
    applied = Counter(s.name for s in inspection.signals if s.is_nonlinearity) if inspection is not None else Counter()
    names = [name for name, count in applied.items() if count >= steps]
    return names[0] if len(names) == 1 else ""


def start_before(evidence: Evidence, signal: Signal) -> str:
    """The remedy for what an activation starts from: a norm's shifts, or weights and biases."""
    return "fresh-norms" if is_norm(evidence.problem.model.get_submodule(signal.name)) else "he-init"


def batchnorms(model: nn.Module) -> dict[str, _BatchNorm]:
    """BatchNorms with running statistics, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.track_running_stats and module.running_mean is not None
    }


def zero_gradients(inspection: Inspection, cut: Collection[str] = ()) -> tuple[list[Weight], list[Weight]] | None:
    """Weights with a gradient of exactly zero, and all with a gradient; None if zero gradients are expected here.

    They are expected if the network fits its data, and where weights of zeros stop gradients until their first step.

    Args:
        inspection: The inspection.
        cut: Names of parameters whose gradient stays zero though no weight of zeros stops it.
    """
    if inspection.output is None or not inspection.loss:
        return None
    reached = [w for w in inspection.weights if w.is_trainable and w.gradient is not None and w.order is not None]
    zero = in_order(w for w in reached if w.gradient == 0 and w.role in ("weight", "recurrent"))
    perfect = inspection.output.perfect_loss
    is_fitted = perfect is not None and inspection.loss <= perfect + FITTED * abs(perfect) + 1e-9
    if any(w.role != "bias" and w.rms == 0 for w in inspection.weights):
        zero = [w for w in zero if w.name in cut]
    if not zero or is_fitted or (perfect is None and not any(w.gradient for w in reached)):
        return None
    return zero, reached


def flat_after(inspection: Inspection, layer: str) -> str:
    """What is flat in a layer or right after it, in words; "" if nothing is."""
    for signal in inspection.signals:
        if signal.name != layer:
            continue
        if signal.kind in GATED and signal.gradient != 0:  # None where the last state is read, and not the outputs
            return "the gates of"
        if (signal.saturated or 0.0) > MOSTLY_FLAT:
            return f"the {signal.kind}s after"
        if len(signal.dead) and bool(signal.dead.all()):
            return "the ReLUs after"
    return ""
