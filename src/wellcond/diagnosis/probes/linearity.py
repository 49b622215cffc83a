"""Whether a network, and each stretch between two of its layers, is affine on this data, whatever it calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from wellcond.diagnosis.probes.exchanged import rms
from wellcond.diagnosis.probes.subject import Subject
from wellcond.errors import InvalidProblem
from wellcond.network.calling import logits_of, tensors_in
from wellcond.network.layers import has_own_forward, is_affine, weighted_layers
from wellcond.network.norms import is_norm
from wellcond.network.taps import bracketed
from wellcond.problem.batches import share_examples

ENDS = 16
"""Examples that are passed through, and their midpoints."""
ENDS_OF_BATCH = 4
"""One example in this number at most on a GPU: what is stored of an example is several times what a step holds."""
AFFINE = 1e-5
"""Distance of f((x + x')/2) from (f(x) + f(x'))/2, over ‖f(x) − f(x')‖, below which it is rounding. Of inputs of size
one, ReLU, GELU, tanh, sin, a square or a LayerNorm make 0.15 to 0.6, and float32's rounding 1e-8 to 2e-6."""
ALIKE = 0.5
"""RMS of what differs between examples, over that of all, below which it is spread out."""


@dataclass(frozen=True)
class Linearity:
    """How far midpoints are from being mapped to midpoints, over the distance of their ends; 0 for an affine map.

    Every layer gives the midpoint of its two outputs, whatever it is given, so that each stretch between layers is
    measured by itself. Outputs smaller than one are scaled up to one, where a tanh is no longer straight, and what
    differs between examples to the size of what they share, where a ReLU that is on for all of them is off for some.

    Attributes:
        before: Of the stretch before each layer: from the inputs and the outputs of earlier layers to its own input. In
            the order of the forward pass. Infinity where the data are all mapped alike, so that nothing is known.
        layers: Layers that are affine themselves.
        outputs: Of the stretch from the last layers to the outputs, before a softmax, a sigmoid or a tanh at their end.
    """

    before: dict[str, float]
    layers: frozenset[str]
    outputs: float

    def is_straight(self, layer: str) -> bool:
        """Whether the stretch before a layer is affine."""
        return self.before.get(layer, 1.0) < AFFINE

    @property
    def is_affine(self) -> bool:
        """Whether everything from the first layer to the outputs is affine."""
        after_the_first = list(self.before)[1:]
        are_straight = all(map(self.is_straight, after_the_first))
        return self.layers.issuperset(self.before) and are_straight and self.outputs < AFFINE


def linearity(subject: Subject) -> Linearity | None:
    """Pass a few examples, the same in another order, and the midpoints of both: three passes.

    Returns:
        None without layers, or unless all inputs are dense and have the examples in front.
    """
    if any(t.layout is not torch.strided for t in tensors_in(subject.inputs)):
        return None
    few = min(ENDS, subject.examples)
    if subject.problem.device.type == "cuda":
        few = min(few, max(subject.examples // ENDS_OF_BATCH, 2))
    one = subject.last(few)
    watch = _Watch(subject.problem.model, set(subject.problem.norms()[0]))
    if few < 2 or not watch.layers or not share_examples(one):
        return None
    if any(len(t) != few for t in tensors_in(one) if t.dim()):
        return None
    other = tree_map(lambda t: t.roll(1, 0) if isinstance(t, Tensor) and t.dim() else t, one)
    between = tree_map(_midpoint, one, other)
    try:
        ends = [watch.outputs_of(subject, inputs, watch.record) for inputs in (one, other)]
        middle = watch.outputs_of(subject, between, watch.compare)
    except InvalidProblem:  # the order may matter, as for lengths that have to be sorted
        return None
    if not watch.before or len({len(calls) for calls in (*ends, middle)}) > 1:
        return None
    # a training step may call the model several times, of which the least straight call counts
    distance = max((_from_last_layers(*three) for three in zip(*ends, middle, strict=True)), default=float("inf"))
    return Linearity(watch.before, frozenset(watch.affine - watch.bent), distance)


class _Watch:
    """Records what layers take and return in two passes, and compares their midpoints with a third."""

    def __init__(self, model: nn.Module, norms: set[str]) -> None:
        weighted = weighted_layers(model)
        inside = tuple(f"{name}." for name, module in weighted.items() if name and any(module.children()))
        own = {
            name: module
            for name, module in model.named_modules()
            if _holds_a_matrix(module)
            and not any(map(_holds_a_matrix, list(module.modules())[1:]))
            and not (inside and name.startswith(inside))
        }
        self.layers = {module: name for name, module in (own | weighted).items()}
        self.norms = {m: n for n, m in model.named_modules() if n in norms or isinstance(m, _BatchNorm)}
        self.before: dict[str, float] = {}
        self.affine = {name for module, name in self.layers.items() if _is_known(module)}
        self.bent: set[str] = set()
        self._ends: dict[tuple[nn.Module, int], list[tuple[Tensor | None, Any]]] = {}
        self._spreads: dict[tuple[nn.Module, int], _Spread] = {}
        self._calls: dict[nn.Module, int] = {}
        self._inputs: list[Tensor | None] = []

    def outputs_of(self, subject: Subject, inputs: Any, on_exit: Callable[[nn.Module, Any], Any]) -> list[Any]:
        """The outputs of all calls of the model in a pass whose layers are watched."""
        self._calls.clear()
        model = subject.problem.model
        watched = {model, *self.layers, *self.norms}
        returned: list[Any] = []

        def exited(module: nn.Module, output: Any) -> Any:
            changed = None
            if module in self.layers or module in self.norms:
                changed = on_exit(module, output)
            else:
                self._inputs.pop()
            if module is model:
                returned.append(output if changed is None else changed)
            return changed

        with torch.no_grad(), bracketed(watched, self._enter, exited):
            subject.problem.forward(0, inputs)
        return returned

    def _enter(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._inputs.append(
            next((t.detach().clone() for t in tensors_in((args, kwargs)) if t.is_floating_point()), None)
        )

    def _called(self, module: nn.Module) -> tuple[tuple[nn.Module, int], Tensor | None]:
        nth = self._calls.get(module, 0)
        self._calls[module] = nth + 1
        return (module, nth), self._inputs.pop()

    def record(self, module: nn.Module, output: Any) -> Any:
        """Store a call of one of the first two passes; both are spread alike."""
        key, x = self._called(module)
        if module in self.layers and key not in self._spreads:
            self._spreads[key] = _Spread(output)
        spread = self._spreads[key](output) if module in self.layers else output
        self._ends.setdefault(key, []).append((x, tree_map(_copied, spread)))
        return spread

    def compare(self, module: nn.Module, output: Any) -> Any:
        """Compare a call of the third pass with the midpoints, and return those of the outputs."""
        key, x = self._called(module)
        if len(self._ends.get(key, ())) != 2:
            return None
        (x1, y1), (x2, y2) = self._ends[key]
        known = x is not None and x1 is not None and x2 is not None
        curvature = _curvature(x1, x2, x) if known else 0.0  # type: ignore[arg-type]
        midpoint = tree_map(_midpoint, y1, y2)
        if module in self.norms:  # affine in use, by its running statistics
            return midpoint if curvature < AFFINE else None
        name = self.layers[module]
        self.before[name] = max(self.before.get(name, 0.0), curvature)
        if known and curvature < AFFINE and name not in self.affine:
            three = [tensors_in(y)[0].detach() for y in (y1, y2, self._spreads[key](output))]
            (self.affine if _curvature(*three) < AFFINE else self.bent).add(name)
        return midpoint


class _Spread:
    """An affine map of a layer's outputs to a size of one or more, of what differs between examples too.

    Args:
        output: What the layer returns in its first pass.
    """

    def __init__(self, output: Any) -> None:
        first = next((t.detach() for t in tensors_in(output) if t.is_floating_point() and t.numel()), None)
        size = 0.0 if first is None else rms(first)
        self._scale = max(1.0, 1 / size) if size > 0 else 1.0
        self._center, self._factor = None, 1.0
        if first is not None and first.dim() > 1:
            self._center = first.mean(0, keepdim=True)
            differs = rms(first - self._center)
            self._factor = size / differs if 0 < differs < ALIKE * size else 1.0

    def __call__(self, output: Any) -> Any:
        """The same map of the floating-point tensors of any pass; those of another shape are only scaled."""
        return tree_map(self._mapped, output)

    def _mapped(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        center = self._center
        if center is not None and self._factor > 1 and value.shape[1:] == center.shape[1:]:
            value = center.lerp(value, self._factor)
        return value * self._scale if self._scale > 1 else value


def _from_last_layers(one: Any, other: Any, between: Any) -> float:
    """How far what the model returns is from the midpoint of two calls, before a softmax or the like at its end."""
    outputs = [logits_of(each) for each in (one, other, between)]
    known = [t.detach() for t in outputs if t is not None and t.dim()]
    return min((_curvature(*three) for three in _inverted(known)), default=float("inf"))


def _holds_a_matrix(module: nn.Module) -> bool:
    return any(p.dim() > 1 for p in module.parameters(recurse=False)) and not is_norm(module)


def _is_known(module: nn.Module) -> bool:
    """Whether a layer is affine by its type; tables are affine in one-hot rows."""
    return (is_affine(module) or isinstance(module, (nn.Embedding, nn.EmbeddingBag))) and not has_own_forward(module)


def _curvature(one: Tensor, other: Tensor, between: Tensor) -> float:
    """Distance of a value from the midpoint, over that of the ends; infinity where rounding would hide it."""
    if not one.shape == other.shape == between.shape:
        return float("inf")
    eps = torch.finfo(between.dtype).eps
    one, other, between = one.double(), other.double(), between.double()
    distance = float((one - other).norm())
    precision = eps * float(one.norm() + other.norm()) / 2
    if not distance > precision / AFFINE:
        return float("inf")
    return float((between - (one + other) / 2).norm()) / distance


def _inverted(outputs: list[Tensor]) -> Iterator[list[Tensor]]:
    """The outputs, and what a sigmoid, a tanh, a softmax or a log-softmax at their end was given, up to a constant."""
    if len(outputs) < 3:
        return
    yield outputs
    doubled = [t.double() for t in outputs]
    low, high = min(float(t.min()) for t in doubled), max(float(t.max()) for t in doubled)
    if low > -1 and high < 1:
        yield [t.atanh() for t in doubled]
    if low > 0 and high < 1:
        yield [t.logit() for t in doubled]
    logarithms = [t.log() for t in doubled] if low > 0 else doubled
    for dim in range(1, doubled[0].dim()):
        yield [t - t.mean(dim, keepdim=True) for t in logarithms]


def _midpoint(one: Any, other: Any) -> Any:
    """Of floating-point tensors; of anything else, the first."""
    is_number = isinstance(one, Tensor) and one.is_floating_point() and one.shape == other.shape
    return (one + other) / 2 if is_number else one


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value
