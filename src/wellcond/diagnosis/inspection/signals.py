"""Signals: the output of every module and every nonlinearity, and the gradient that comes back to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import Node

from wellcond.diagnosis.inspection.attention import Attention, OfOne, SeenAttention
from wellcond.diagnosis.inspection.failures import Failures
from wellcond.diagnosis.inspection.nonlinearities import FUNCTIONS
from wellcond.diagnosis.inspection.seen import Seen, SeenCalls, spread
from wellcond.diagnosis.inspection.signal import Signal
from wellcond.network.calling import tensors_in
from wellcond.network.graph import leaves_of, nearest_before
from wellcond.network.isolation.arithmetic import HALF
from wellcond.network.layers import feature_dim, rule_for, weighted_layers
from wellcond.network.module_names import ModuleNames
from wellcond.network.norms import is_norm, unit_dim
from wellcond.network.rectified import FUNCTIONS as PERHAPS_RELU
from wellcond.network.rectified import is_rectified
from wellcond.network.taps import WatchedFunctions, bracketed, tapped

ROUNDED = 1e-5
"""RMS of what differs between examples, over that of all, below which inputs are the same but for rounding."""
BLANK = 1e-3
"""RMS of what differs between examples in a norm's outputs, over its weights': 1 by its definition, and 1e-7 to 6e-5,
which is rounding, where it normalizes single values."""

_UNNAMED = "perhaps a ReLU"
_NORMS: dict[Any, str] = dict.fromkeys((F.layer_norm, F.group_norm, F.instance_norm), "norm")
_SINES: dict[Any, str] = dict.fromkeys(
    (torch.sin, torch.cos, torch.sin_, torch.cos_, Tensor.sin, Tensor.cos, Tensor.sin_, Tensor.cos_), "sine"
)
_CASTS: dict[Any, str] = dict.fromkeys((Tensor.half, Tensor.bfloat16, Tensor.to, Tensor.type), "cast")
_WATCHED = _CASTS | _NORMS | _SINES | dict.fromkeys(PERHAPS_RELU, _UNNAMED) | FUNCTIONS | SeenAttention.FUNCTIONS


class Signals:
    """Records the signals of forward passes that are watched, and of the backward passes through their graphs.

    Args:
        model: Model whose modules are watched.
        failures: Where an error in the recording goes: it must not look like one of the user's model.

    Attributes:
        modules: Modules whose signals are recorded, by name.
        without_graph: Names of modules that are called under `no_grad`.
        started: Place in the forward pass of every module that is called, by name.
        dtypes: Dtypes of what modules return, and the half precision that their own code casts to.
    """

    def __init__(self, model: nn.Module, failures: Failures) -> None:
        self._failures = failures
        self.without_graph: set[str] = set()
        self.started: dict[str, int] = {}
        self.dtypes: set[torch.dtype] = set()
        self._seen = SeenCalls()
        self._nodes: dict[str, list[Node]] = {}
        self._after: dict[str, tuple[str, ...]] = {}
        self._after_parameters: set[str] = set()
        self._phases: dict[str, float] = {}
        self._attention = SeenAttention()
        self._last: str = ""
        self._inside: list[str] = []
        self._in_modules: set[tuple[str, str]] = set()
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
        self._seen.begin()
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
        signals = [seen.signal() for seen in self._seen if seen.rows]
        signals = [each for each in signals if not self._is_of_loss(each)]
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

    def _is_of_loss(self, signal: Signal) -> bool:
        """Whether a nonlinearity acts on the outputs outside of all modules, as a hinge does: it has no units."""
        if not signal.is_nonlinearity or (signal.name, signal.kind) in self._in_modules:
            return False
        return signal.name in self._after and not any(signal.name in before for before in self._after.values())

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

    def _on_call(self, name: str, module: nn.Module, x: Any, output: Any) -> tuple[Seen, int] | None:
        # the calls in here are not the model's
        with self._failures.recording(f"the signal of {name or 'the model'}"), torch._C.DisableTorchFunction():
            return self._see(name, module, x, output)
        return None

    def _see(self, name: str, module: nn.Module, x: Any, output: Any) -> tuple[Seen, int] | None:
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
        seen, nth = self._seen.call_of(name, type(module).__name__, name in self._weighted, None)
        seen.calls = max(seen.calls, nth + 1)
        seen.add(tensor, dim, x if isinstance(x, Tensor) else None, self._examples)
        if name not in self._weighted:
            params = list(module.parameters())
            _, *others = (t for t in tensors_in(output) if t.is_floating_point())
            blank = [_is_blank(x, t, params, self._examples, is_norm=is_norm(module)) for t in (tensor, *others)]
            seen.add_blank(False if False in blank else blank[0])  # a state that differs tells examples apart, too
        return seen, nth

    def _on_function(self, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if kind in (_UNNAMED, "mul"):  # a product may be a ReLU, x · (x > 0), or weigh coordinates
            with self._failures.recording("functions that are a ReLU"), torch._C.DisableTorchFunction():
                if self._inside and is_rectified((args, kwargs), output):  # in a loss it is no unit
                    self._on_nonlinearity("relu", output)
        if kind == _UNNAMED:
            return
        if kind == "cast":
            if (
                self._inside and isinstance(output, Tensor) and output.dtype in HALF
            ):  # and its module may return float32
                self.dtypes.add(output.dtype)
            return
        if kind == "sine":
            x = args[0] if args else None
            if isinstance(x, Tensor) and x.requires_grad and x is not output and len(x) == self._examples:
                with torch._C.DisableTorchFunction():
                    self._phases[self._last] = max(spread(x), self._phases.get(self._last, 0.0))
            return
        if kind == "norm":
            running = self._inside[-1] if self._inside else None
            if running is not None and running not in self.modules:  # a module's own call is seen with it
                with self._failures.recording("a norm"), torch._C.DisableTorchFunction():
                    blank = _is_blank(args[0], output, tensors_in((args[1:], kwargs)), self._examples, is_norm=True)
                    seen, _ = self._seen.call_of(self._caller(), kind, False, None)
                    seen.add(output, feature_dim(output), None, self._examples)
                    seen.add_blank(blank)
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
        if self._inside:
            self._in_modules.add((self._last, kind))
        seen, _ = self._seen.call_of(self._last, kind, False, kind)
        seen.add(output, dim, None, self._examples)

    def _on_gradient(self, _name: str, _module: nn.Module, call: tuple[Seen, int] | None, gradient: Tensor) -> None:
        if call is not None:
            seen, nth = call
            with self._failures.recording(f"the gradient at {seen.name or 'the model'}"):
                seen.add_gradient(gradient, self._examples, nth)

    def _on_input_gradient(self, name: str, module: nn.Module, _seen: Any, gradient: Tensor) -> None:
        if gradient.dim() == 3:
            steps = gradient.detach().transpose(0, 1) if module.batch_first else gradient.detach()
            for seen in self._seen:
                if seen.name == name:
                    seen.over_time = steps.double().flatten(1).norm(dim=1).cpu()


def _is_blank(x: Any, output: Tensor, params: Sequence[Tensor], examples: int, *, is_norm: bool) -> bool | None:
    """Whether inputs that differ give outputs of their shape that do not, and not by weights of zeros.

    Those of a norm have the size of its weight, so that rounding is small against it; others are exactly the same.
    None where it cannot be seen, as where the inputs are the same for all examples.
    """
    if not output.dim() or len(output) != examples or examples < 2:
        return None
    size = max((float(p.detach().square().mean().sqrt()) for p in params), default=1.0)
    if spread(output) > (BLANK * size if is_norm else 0.0):
        return False
    if not isinstance(x, Tensor) or x.shape != output.shape or (params and not any(bool(p.any()) for p in params)):
        return None
    return True if spread(x) > ROUNDED * float(x.detach().square().mean().sqrt()) else None


def _nothing(_name: str, _module: nn.Module, _x: Any, _output: Any) -> None:
    """Only the gradient of the input is recorded."""
