"""Dropout by its effect: values that random numbers set to zero, by a module, a function or a mask of one's own.

A mask is known by how it is made: a call that draws random numbers, and what is computed from such numbers alone. A
call drops values if its result is one of its arguments, some of whose values are zero and the others scaled alike.
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from wellcond.network.module_names import ModuleNames
from wellcond.network.taps import bracketed

TORCH = str(Path(torch.__file__).parent)
IN_PLACE = ("dropout_", "mul_", "masked_fill_", "__imul__")
"""Functions that may drop values of their argument itself."""
SCALED_ALIKE = 1e-3
"""Relative difference of factors below which values are scaled alike; half precision rounds to that."""


class Site(NamedTuple):
    """A call in the user's code.

    Attributes:
        file: File of the code.
        line: Line that makes the call.
        function: Name of the function that is called.
    """

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class Dropped:
    """One call that sets values to zero at random.

    Attributes:
        module: Innermost module whose forward makes the call.
        after: Last layer with weights that was called before it; "" at the inputs.
        p: Share of values that are set to zero.
        draws: Number of values, or of rows or channels, that are dropped independently.
        scale: Factor on the others: 1/(1 − p) for dropout, 1 for a mask that is not made up for.
        later: Part of this factor that is a multiplication or division by a number after the call.
        site: Where the call is in the user's code.
        place: Place of what it drops among the tensors that it is called with.
    """

    module: str
    after: str
    p: float
    draws: int
    scale: float
    site: Site
    place: int = 0
    later: float = 1.0

    @property
    def least_p(self) -> float:
        """The share, less two standard errors of its measurement."""
        return self.p - 2 * math.sqrt(self.p * (1 - self.p) / max(self.draws, 1))


class DroppedValues(TorchFunctionMode):
    """Lists the calls of a forward pass that set values to zero at random.

    Args:
        model: The model; enter this before its pass.
        layers: Names of its layers with weights.
        device: Where it draws.
    """

    def __init__(self, model: nn.Module, layers: Collection[str], device: torch.device) -> None:
        super().__init__()
        self.calls: list[Dropped] = []
        self._names = ModuleNames(model)
        self._layers, self._device = layers, device
        self._running: list[str] = []
        self._last = ""
        self._noise: dict[int, Tensor] = {}
        self._dropped: tuple[Tensor, ...] = ()
        self._state = b""
        self._taps = bracketed(self._names, self._on_entry, self._on_exit)

    def __enter__(self) -> DroppedValues:
        self._taps.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._taps.__exit__(*error)
        self._noise.clear()

    def _on_entry(self, module: nn.Module, _args: Any, _kwargs: Any) -> None:
        if not self._running:
            self._state = _state_of(self._device)  # what is drawn or seeded outside of the model does not count
        self._running.append(self._names[module])

    def _on_exit(self, _module: nn.Module, _output: Any) -> None:
        name = self._running.pop()
        self._last = name if name in self._layers else self._last

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        before = [t.clone() if name in IN_PLACE or kwargs.get("inplace") else t for t in tensors]
        output = func(*args, **kwargs)
        if name == "__get__" or not self._running or not isinstance(output, Tensor):
            return output
        with torch._C.DisableTorchFunction():
            self._see(name, args, kwargs, before, output)
        return output

    def _see(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor], output: Tensor
    ) -> None:
        state = _state_of(self._device)
        draws, self._state = state != self._state or kwargs.get("generator") is not None, state
        is_noise = [id(t) in self._noise for t in tensors]
        if self._dropped and any(t is self._dropped[0] for t in tensors) and (factor := _factor(name, args)):
            last = self.calls[-1]
            self.calls[-1] = replace(last, scale=last.scale * factor, later=factor)
            self._dropped = ()
        if draws and (p := _kernels_own(name, args, kwargs)):
            self._note(name, 0, p, output.numel(), 1 / max(1 - p, 1e-9))
        elif draws or any(is_noise):
            is_mask = name.strip("_") == "bernoulli"  # of probabilities, not of data
            data = [(place, t) for place, t in enumerate(tensors) if not is_noise[place] and not is_mask]
            seen = [(place, dropped) for place, t in data if (dropped := _dropped(t, output)) is not None]
            for place, dropped in seen[:1]:
                self._note(name, place, *dropped)
                self._dropped = (output,)
            if not seen and (draws or not data):
                self._noise[id(output)] = output  # holding it ensures that its id is not reused

    def _note(self, name: str, place: int, p: float, draws: int, scale: float) -> None:
        self.calls.append(Dropped(self._running[-1], self._last, p, draws, scale, site_of(name), place))


class Undropped(TorchFunctionMode):
    """Leaves out calls that drop values, and the factors that make up for them.

    Args:
        calls: Calls that were listed by `DroppedValues`.
    """

    def __init__(self, calls: Collection[Dropped]) -> None:
        super().__init__()
        self._calls = {call.site: call for call in calls}
        self._functions = {site.function for site in self._calls}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        call = self._calls.get(site_of(name)) if name in self._functions else None
        if call is None or func is F.multi_head_attention_forward:  # which knows the mode of its module
            return func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            named = dict(zip(("dropout_p", "is_causal"), args[4:], strict=False)) | kwargs
            return func(*args[:4], **(named | {"dropout_p": 0.0}))
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        return tensors[call.place] / call.later


def site_of(function: str) -> Site:
    """The line in the nearest code outside of torch and of this file that is running."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((TORCH, __file__)):
        frame = frame.f_back
    return Site("", 0, function) if frame is None else Site(frame.f_code.co_filename, frame.f_lineno, function)


def _state_of(device: torch.device) -> bytes:
    """The state of torch's generator on a device, and of that on the CPU."""
    generators = [torch.default_generator]
    generators += [torch.cuda.default_generators[device.index or 0]] if device.type == "cuda" else []
    return b"".join(generator.get_state().numpy().tobytes() for generator in generators)


def _kernels_own(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """The share of attention weights that a kernel drops inside."""
    place = {"scaled_dot_product_attention": 4, "multi_head_attention_forward": 10}.get(name)
    if place is None:
        return 0.0
    return float(kwargs.get("dropout_p", args[place] if len(args) > place else 0.0))


def _factor(name: str, args: tuple[Any, ...]) -> float:
    """The number that a call multiplies its tensor by; 0 if it does something else."""
    numbers = [float(each) for each in args if isinstance(each, (int, float))]
    if len(args) != 2 or len(numbers) != 1 or not numbers[0]:
        return 0.0
    plain = name.strip("_")
    return numbers[0] if plain in ("mul", "rmul", "imul") else 1 / numbers[0] if plain in ("div", "truediv") else 0.0


def _dropped(x: Tensor, y: Tensor) -> tuple[float, int, float] | None:
    """Share of zeros, number of independent ones and factor on the others, if y is x with some values set to zero."""
    if x.shape != y.shape or not x.is_floating_point() or not y.is_floating_point() or not y.dim():
        return None
    there = x != 0
    lost = there & (y == 0)
    left = there & ~lost
    count = int(there.sum())
    if not count or not bool(lost.any()) or bool((y != 0)[~there].any()):
        return None
    factors = (y[left] / x[left]).detach().double()
    scale = float(factors.median()) if len(factors) else math.inf
    if len(factors) and float((factors / scale - 1).abs().max()) > SCALED_ALIKE:
        return None
    return float(lost.sum()) / count, _independent(lost, there), scale


def _independent(lost: Tensor, there: Tensor) -> int:
    """How many leading indices of a mask are drawn independently: all, or one per example or channel."""
    for dim in range(1, lost.dim()):
        rows, known = lost.flatten(dim).sum(-1), there.flatten(dim).sum(-1)
        if bool(((rows == 0) | (rows == known)).all()):
            return int((known > 0).sum())
    return int(there.sum())


def strongest(calls: Collection[Dropped]) -> Iterator[Dropped]:
    """The calls of the user's code, each line once, those that drop most first."""
    seen: set[Site] = set()
    for call in sorted(calls, key=lambda call: -call.p):
        if call.site not in seen:
            seen.add(call.site)
            yield call
