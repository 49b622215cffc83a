"""Signals: the output of every module and every nonlinearity, and the gradient that comes back to it.

Legend: N examples, a *row* is one example at one position (pixel, token), a unit is a feature or channel.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import Node

from wellcond.diagnosis.inspection.attention import Attention, OfOne, SeenAttention
from wellcond.diagnosis.inspection.failures import Failures
from wellcond.network.calling import tensors_in
from wellcond.network.graph import leaves_of, nearest_before
from wellcond.network.layers import feature_dim, rule_for, weighted_layers
from wellcond.network.module_names import ModuleNames
from wellcond.network.norms import is_norm, unit_dim
from wellcond.network.rectified import FUNCTIONS as PERHAPS_RELU
from wellcond.network.rectified import is_rectified
from wellcond.network.taps import WatchedFunctions, WatchedRelu, bracketed, tapped

MOST_ROWS, MOST_FEATURES = 256, 4096
"""Examples, and entries of each, over which the variation is computed."""
CELLS = ("RNNCell", "LSTMCell", "GRUCell")
MANY_CALLS = 10
"""Calls in one pass from which a layer counts as one in a loop over steps."""
ROUNDED = 1e-5
"""RMS of what differs between examples, over that of all, below which inputs are the same but for rounding."""
BLANK = 1e-3
"""RMS of what differs between examples in a norm's outputs, over its weights': 1 by its definition, and 1e-7 to 6e-5,
which is rounding, where it normalizes single values."""
FLAT = 0.1
"""A nonlinearity is saturated where its slope is below this share of its largest one."""


@dataclass(frozen=True)
class Signal:
    """Output of one module, or of a nonlinearity, and the gradient with respect to it.

    Attributes:
        name: Name of the module; for a nonlinearity, that of the last weighted layer, norm or module with a matrix of
            its own before it, or around it.
        kind: Type of the module, or name of the function.
        is_weighted: Whether it is a layer with a weight: linear, convolutional, recurrent, attention or embedding.
        is_nonlinearity: Whether it is a function such as ReLU.
        units: Units of its output.
        rows: Rows seen.
        calls: Calls in one pass.
        rms: √(mean h²) of its output.
        variation: E‖h − E h‖² / E‖h‖² over examples, for a layer with a weight: 0 if all are mapped alike.
        dead: (units,), whether a ReLU's output is 0 in every row; empty for others, and where values are not finite.
        full: (units,), whether a ReLU's output is positive in every row; empty for others, and where values are not
            finite.
        saturated: Share of values at which a bounded nonlinearity is flat; None for others, and where values are not
            finite.
        not_finite: Share of values that are NaN or infinite.
        has_finite_input: Whether its input was finite.
        gradient: RMS over the examples of ‖∂ℓ/∂h‖, ℓ the example's own loss; None if no gradient came back.
        sensitivity: RMS over the examples of ‖∂ℓ/∂h‖·‖h‖: effect of a relative change of h on the loss. A norm or a
            pooling after the layer leaves it as it is.
        gradient_over_time: (steps,), ‖∂ℓ/∂x_t‖ for every step t of a recurrent layer, or ‖∂ℓ/∂h_t‖ of the outputs of
            a layer that is called again and again, such as a cell in a loop; None for others.
        after: Layers with weights that are the last ones before it, by the graph; several where paths meet.
        is_after_parameters: Whether trainable parameters other than a layer's come before it, as those of a recurrence
            that the model writes out; False where another layer comes before it.
        is_blank: Whether it gives every example the same although its inputs differ, as a norm over single values does.
        taken: RMS of what differs between the examples in its input, for a layer with a weight.
        phase: The same of the argument of a sine or cosine after it; None if there is none.
    """

    name: str
    kind: str
    is_weighted: bool
    is_nonlinearity: bool
    units: int
    rows: int
    calls: int
    rms: float
    variation: float | None
    dead: Tensor
    full: Tensor
    saturated: float | None
    not_finite: float
    has_finite_input: bool
    gradient: float | None = None
    sensitivity: float | None = None
    gradient_over_time: Tensor | None = None
    after: tuple[str, ...] = ()
    is_after_parameters: bool = False
    is_blank: bool = False
    taken: float | None = None
    phase: float | None = None


FUNCTIONS: dict[Any, str] = WatchedRelu.FUNCTIONS | {
    function: name
    for name, functions in {
        "tanh": (torch.tanh, torch.tanh_, F.tanh, Tensor.tanh, Tensor.tanh_),
        "sigmoid": (torch.sigmoid, torch.sigmoid_, F.sigmoid, Tensor.sigmoid, Tensor.sigmoid_, torch.special.expit),
        "hardtanh": (F.hardtanh,),
        "relu6": (F.relu6,),
        "gelu": (F.gelu,),
        "silu": (F.silu,),
        "elu": (F.elu,),
        "selu": (F.selu, torch.selu),
        "leaky_relu": (F.leaky_relu,),
        "softplus": (F.softplus,),
    }.items()
    for function in functions
}
SLOPES: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": lambda y: 1 - y.square(),
    "sigmoid": lambda y: 4 * y * (1 - y),
}
"""Slopes of bounded functions as functions of their output, relative to the largest slope."""
RECTIFIERS = ("relu", "relu6")


def is_flat(function: str, output: Tensor) -> Tensor:
    """Where a bounded function is saturated, by its output.

    >>> is_flat("tanh", torch.tensor([0.0, 0.9, 0.99]))
    tensor([False, False,  True])
    """
    return SLOPES[function](output) < FLAT


_UNNAMED = "perhaps a ReLU"
_NORMS: dict[Any, str] = dict.fromkeys((F.layer_norm, F.group_norm, F.instance_norm), "norm")
_SINES: dict[Any, str] = dict.fromkeys(
    (torch.sin, torch.cos, torch.sin_, torch.cos_, Tensor.sin, Tensor.cos, Tensor.sin_, Tensor.cos_), "sine"
)
_WATCHED = _NORMS | _SINES | dict.fromkeys(PERHAPS_RELU, _UNNAMED) | FUNCTIONS | SeenAttention.FUNCTIONS


class Signals:
    """Records the signals of forward passes that are watched, and of the backward passes through their graphs.

    Args:
        model: Model whose modules are watched.
        failures: Where an error in the recording goes: it must not look like one of the user's model.

    Attributes:
        modules: Modules whose signals are recorded, by name.
        without_graph: Names of modules that are called under `no_grad`.
        started: Place in the forward pass of every module that is called, by name.
        dtypes: Dtypes of what modules return.
    """

    def __init__(self, model: nn.Module, failures: Failures) -> None:
        self._failures = failures
        self.without_graph: set[str] = set()
        self.started: dict[str, int] = {}
        self.dtypes: set[torch.dtype] = set()
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._nodes: dict[str, list[Node]] = {}
        self._after: dict[str, tuple[str, ...]] = {}
        self._after_parameters: set[str] = set()
        self._phases: dict[str, float] = {}
        self._attention = SeenAttention()
        self._last: str = ""
        self._inside: list[str] = []
        self._calls: dict[tuple[str, str], int] = {}
        self._examples = 1
        self._names = ModuleNames(model)
        self._weighted = weighted_layers(model)
        inside = tuple(f"{name}." for name, module in self._weighted.items() if name and any(module.children()))
        leaves = {
            name: module
            for name, module in model.named_modules()
            if not any(module.children()) and not (inside and name.startswith(inside))
        }
        self.modules = leaves | self._weighted
        self._owners = {
            name: module
            for name, module in model.named_modules()
            if name not in self.modules and any(True for _ in module.parameters(recurse=False))
        }

    @contextlib.contextmanager
    def watched(self, examples: int) -> Iterator[None]:
        """Context of a forward pass of one batch."""
        self._last, self._examples = "", examples
        self._calls.clear()
        self._inside.clear()
        self._attention.begin()
        recurrent = {name: m for name, m in self.modules.items() if isinstance(m, nn.RNNBase)}
        with contextlib.ExitStack() as stack:
            stack.enter_context(tapped(self.modules, self._on_call, self._on_gradient))
            stack.enter_context(tapped(self._owners, self._note_start))
            stack.enter_context(bracketed(self._names, self._on_entry, self._on_exit))
            if recurrent:
                stack.enter_context(tapped(recurrent, _nothing, None, self._on_input_gradient))
            stack.enter_context(WatchedFunctions(_WATCHED, self._on_function))
            yield
        with self._failures.recording("the order of the layers"):
            self._after = self._after or nearest_before(self._nodes)
            self._after_parameters |= {name for name, after in self._after.items() if not after and self._is_fed(name)}
        self._nodes.clear()

    def signals(self) -> list[Signal]:
        """All signals, in the order of the forward pass."""
        signals = [seen.signal() for seen in self._seen.values() if seen.rows]
        signals = [
            each if each.is_nonlinearity else replace(each, phase=self._phases.get(each.name)) for each in signals
        ]
        return [
            replace(
                each,
                after=self._after.get(each.name, ()),
                is_after_parameters=each.name in self._after_parameters,
            )
            if each.is_weighted
            else each
            for each in signals
        ]

    def attention(self) -> list[Attention]:
        """All softmaxes and attention kernels, in the order of the forward pass."""
        return self._attention.calls()

    def hides_all(self) -> list[str]:
        """Attention whose mask shows only values that are all the same."""
        return list(self._attention.hides_all)

    def all_masked(self) -> list[tuple[str, float]]:
        """Attention in which rows have all their entries masked, and the share of these rows."""
        return list(self._attention.all_masked.items())

    def softmaxes_of_one(self) -> list[OfOne]:
        """All softmaxes over a dimension of size one."""
        return self._attention.of_one()

    def _is_fed(self, name: str) -> bool:
        """Whether parameters other than a layer's own lead to its outputs."""
        leaves = {leaf for leaf in leaves_of(self._nodes.get(name, ())) if isinstance(leaf, nn.Parameter)}
        return not leaves <= set(self._weighted[name].parameters())

    def _on_entry(self, module: nn.Module, _args: Any, _kwargs: Any) -> None:
        name = self._names[module]
        self._inside.append(name)
        if name not in self._weighted and any(p.dim() > 1 for p in module.parameters(recurse=False)):
            self._last = name
        if not torch.is_grad_enabled():
            self.without_graph.add(name)

    def _on_exit(self, _module: nn.Module, _output: Any) -> None:
        self._inside.pop()

    def _caller(self) -> str:
        """The module whose forward is running, unless it is a plain function; the last layer if it is the model."""
        names = [name for name in self._inside if name not in self.modules or name in self._weighted]
        return names[-1] if names and names[-1] else self._last

    def _note_start(self, name: str, _module: nn.Module, _x: Any, _output: Any) -> None:
        self.started.setdefault(name, len(self.started))

    def _on_call(self, name: str, module: nn.Module, x: Any, output: Any) -> tuple[_Seen, int] | None:
        # the calls in here are not the model's
        with self._failures.recording(f"the signal of {name or 'the model'}"), torch._C.DisableTorchFunction():
            return self._see(name, module, x, output)
        return None

    def _see(self, name: str, module: nn.Module, x: Any, output: Any) -> tuple[_Seen, int] | None:
        self._note_start(name, module, x, output)
        if name in self._weighted or is_norm(module):
            self._last = name
        tensor = next((t for t in tensors_in(output) if t.is_floating_point()), None)
        if tensor is None or not tensor.numel() or not tensor.dim():  # a loss or a metric is one number
            return None
        self.dtypes.add(tensor.dtype)
        if name in self._weighted and tensor.grad_fn is not None:
            self._nodes.setdefault(name, []).append(tensor.grad_fn)
        rule = rule_for(module)
        is_batch_second = isinstance(module, (nn.RNNBase, nn.MultiheadAttention)) and not module.batch_first
        if is_batch_second and tensor.dim() == 3:
            tensor = tensor.transpose(0, 1)
        dim = rule.unit_dim(tensor) if rule is not None else unit_dim(module, tensor) if is_norm(module) else None
        dim = feature_dim(tensor) if dim is None else dim
        seen = self._of(name, type(module).__name__, name in self._weighted, None)
        nth = self._calls[name, type(module).__name__] - 1
        seen.calls = max(seen.calls, nth + 1)
        seen.add(tensor, dim, x if isinstance(x, Tensor) else None, self._examples)
        if name not in self._weighted:
            params = list(module.parameters())
            seen.is_blank |= _is_blank(x, tensor, params, self._examples, is_norm=is_norm(module))
        return seen, nth

    def _on_function(self, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if kind == _UNNAMED:
            with self._failures.recording("functions that are a ReLU"), torch._C.DisableTorchFunction():
                if self._inside and is_rectified((args, kwargs), output):  # in a loss it is no unit
                    self._on_nonlinearity("relu", output)
            return
        if kind == "sine":
            x = args[0] if args else None
            if isinstance(x, Tensor) and x.requires_grad and x is not output and len(x) == self._examples:
                with torch._C.DisableTorchFunction():
                    self._phases[self._last] = max(_spread(x), self._phases.get(self._last, 0.0))
            return
        if kind == "norm":
            running = self._inside[-1] if self._inside else None
            if running is not None and running not in self.modules:  # a module's own call is seen with it
                with self._failures.recording("a norm"), torch._C.DisableTorchFunction():
                    blank = _is_blank(args[0], output, tensors_in((args[1:], kwargs)), self._examples, is_norm=True)
                    seen = self._of(self._caller(), kind, False, None)
                    seen.add(output, feature_dim(output), None, self._examples)
                    seen.is_blank |= blank
            return
        if kind in FUNCTIONS.values():
            with self._failures.recording(f"the {kind} after {self._last or 'the input'}"):
                self._on_nonlinearity(kind, output)
            return
        caller = self._caller()
        with self._failures.recording(f"the attention in {caller or 'the model'}"), torch.no_grad():
            self._attention.add(caller, kind, args, kwargs, output)

    def _on_nonlinearity(self, kind: str, output: Any) -> None:
        if not isinstance(output, Tensor) or not output.numel() or not output.dim():
            return
        layer = self._weighted.get(self._last)
        rule = None if layer is None else rule_for(layer)
        dim = min(rule.unit_dim(output) if rule is not None else feature_dim(output), output.dim() - 1)
        self._of(self._last, kind, False, kind).add(output, dim, None, self._examples)

    def _of(self, name: str, kind: str, is_weighted: bool, function: str | None) -> _Seen:
        nth = self._calls.get((name, kind), 0)
        self._calls[name, kind] = nth + 1
        # a second ReLU after the same layer is another one; a module that is called again is the same
        key = (name, f"{kind}[{nth}]" if function and nth else kind)
        if key not in self._seen:
            self._seen[key] = _Seen(name, kind, is_weighted, function)
        return self._seen[key]

    def _on_gradient(self, _name: str, _module: nn.Module, call: tuple[_Seen, int] | None, gradient: Tensor) -> None:
        if call is not None:
            seen, nth = call
            with self._failures.recording(f"the gradient at {seen.name or 'the model'}"):
                seen.add_gradient(gradient, self._examples, nth)

    def _on_input_gradient(self, name: str, module: nn.Module, _seen: Any, gradient: Tensor) -> None:
        if gradient.dim() == 3:
            steps = gradient.detach().transpose(0, 1) if module.batch_first else gradient.detach()
            for (key, _), seen in self._seen.items():
                if key == name:
                    seen.over_time = steps.double().flatten(1).norm(dim=1).cpu()


def _is_blank(x: Any, output: Tensor, params: Sequence[Tensor], examples: int, *, is_norm: bool) -> bool:
    """Whether inputs that differ give outputs of their shape that do not, and not by weights of zeros.

    Those of a norm have the size of its weight, so that rounding is small against it; others are exactly the same.
    """
    if not isinstance(x, Tensor) or x.shape != output.shape or not x.dim() or len(x) != examples or examples < 2:
        return False
    if params and not any(bool(p.any()) for p in params):
        return False
    size = max((float(p.detach().square().mean().sqrt()) for p in params), default=1.0)
    least = BLANK * size if is_norm else 0.0
    return _spread(output) <= least and _spread(x) > ROUNDED * float(x.detach().square().mean().sqrt())


def _spread(t: Tensor) -> float:
    """RMS of what differs between examples."""
    return float((t.detach() - t.detach().mean(0)).square().mean().sqrt())


def _nothing(_name: str, _module: nn.Module, _x: Any, _output: Any) -> None:
    """Only the gradient of the input is recorded."""


class _Seen:
    """Sums over the calls of one module or function."""

    def __init__(self, name: str, kind: str, is_weighted: bool, function: str | None) -> None:
        self.name, self.kind, self.is_weighted, self.function = name, kind, is_weighted, function
        self.units = self.rows = self.calls = 0
        self.values = self.squares = self.flat = self.not_finite = 0.0
        self.dead: Tensor | None = None
        self.full: Tensor | None = None
        self.variations: list[float] = []
        self.has_finite_input = True
        self.is_blank = False
        self.taken: float | None = None
        self.gradients: list[Tensor] = []
        self.norms: Tensor | None = None
        self.sensitivities: list[Tensor] = []
        self.over_time: Tensor | None = None
        self.by_call: dict[int, Tensor] = {}

    def add(self, output: Tensor, dim: int, x: Tensor | None, examples: int) -> None:
        """Count one call."""
        output = output.detach()
        size = float(torch.linalg.vector_norm(output, dtype=_wide(output))) ** 2
        if not math.isfinite(size):
            bad = output.numel() - int(output.isfinite().sum())
            self.not_finite += bad
            self.has_finite_input &= x is None or bool(x.isfinite().all())
            output = output.nan_to_num(0.0, 0.0, 0.0)
            size = float(torch.linalg.vector_norm(output, dtype=torch.float64)) ** 2
        self.units, self.values, self.squares = output.shape[dim], self.values + output.numel(), self.squares + size
        self.rows += output.numel() // output.shape[dim]
        if self.function in RECTIFIERS or self.function in SLOPES:
            self._add_units(output.movedim(dim, -1).reshape(-1, output.shape[dim]))
        self.norms = None
        if self.is_weighted and len(output) == examples and examples > 1:
            if x is not None and x.is_floating_point() and len(x) == examples:
                self.taken = max(_spread(x), self.taken or 0.0)
            by_example = output.flatten(1)
            self.norms = torch.linalg.vector_norm(by_example, dim=1, dtype=_wide(output))
            some = by_example[:MOST_ROWS, :MOST_FEATURES].float()
            total = float(some.square().sum())
            if 0 < total < math.inf:
                self.variations.append(float((some - some.mean(0)).square().sum()) / total)

    def _add_units(self, rows: Tensor) -> None:
        if self.function in RECTIFIERS:
            self.dead = _both(self.dead, (rows == 0).all(0))
            self.full = _both(self.full, (rows > 0).all(0))
        elif self.function in SLOPES:
            self.flat += float(is_flat(self.function, rows).sum())

    def add_gradient(self, gradient: Tensor, examples: int, nth: int) -> None:
        """Count the gradient of the output of the nth call in a pass."""
        if len(gradient) != examples or not (self.is_weighted or self.kind in CELLS):
            return
        # the loss is a mean over the examples
        norms = torch.linalg.vector_norm(gradient.detach().flatten(1), dim=1, dtype=_wide(gradient)) * examples
        self.by_call[nth] = norms
        if self.is_weighted:
            self.gradients.append(norms)
            if self.norms is not None and len(self.norms) == len(norms):
                self.sensitivities.append(norms * self.norms)

    def signal(self) -> Signal:
        none = torch.empty(0, dtype=torch.bool)
        is_known = not self.not_finite  # what NaN makes of units and examples is no property of theirs
        return Signal(
            name=self.name,
            kind=self.function or self.kind,
            is_weighted=self.is_weighted,
            is_nonlinearity=self.function is not None,
            units=self.units,
            rows=self.rows,
            calls=self.calls,
            rms=math.sqrt(self.squares / self.values),
            variation=sum(self.variations) / len(self.variations) if self.variations and is_known else None,
            dead=self.dead.cpu() if self.dead is not None and is_known else none,
            full=self.full.cpu() if self.full is not None and is_known else none,
            saturated=self.flat / self.values if self.function in SLOPES and is_known else None,
            not_finite=self.not_finite / self.values,
            has_finite_input=self.has_finite_input,
            is_blank=self.is_blank and is_known,
            taken=self.taken,
            gradient=_rms(self.gradients),
            sensitivity=_rms(self.sensitivities),
            gradient_over_time=self._over_calls() if self.over_time is None else self.over_time,
        )

    def _over_calls(self) -> Tensor | None:
        """Gradient norms of a layer that is called in every step of a loop; 0 for a step that gets no gradient."""
        if self.calls < MANY_CALLS or not self.by_call:
            return None
        none = torch.zeros(())
        return torch.stack(
            [self.by_call[k].norm().double().cpu() if k in self.by_call else none.double() for k in range(self.calls)]
        )


def _both(earlier: Tensor | None, now: Tensor) -> Tensor:
    """Whether units were so in earlier calls and are now; a layer whose width changes begins again."""
    return now if earlier is None or len(earlier) != len(now) else earlier & now


def _wide(t: Tensor) -> torch.dtype:
    """A type in which the norm of half-precision numbers does not overflow."""
    return torch.float64 if t.dtype == torch.float64 else torch.float32


def _rms(norms: list[Tensor]) -> float | None:
    return float(torch.cat(norms).double().square().mean().sqrt()) if norms else None
