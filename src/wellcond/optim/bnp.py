"""Batch normalization preconditioning (lange2022): the plain network, trained as if its inputs were normalized."""

from __future__ import annotations

import functools
import math
import operator
import warnings
from collections.abc import Collection
from typing import Any, get_args

import torch
from torch import Tensor, nn

from wellcond.errors import Unsupported
from wellcond.network.calling import unwrapped
from wellcond.network.taps import watched
from wellcond.optim.input_statistics import Means, is_capturing, measure_for
from wellcond.optim.layer_calls import LayerCalls
from wellcond.optim.preconditioned_layer import PreconditionedLayer, find_layers, not_preconditioned
from wellcond.optim.processes import SharedStatistics
from wellcond.optim.running_statistics import RunningStatistics

NOTHING_TO_DO = """\
there is nothing to precondition: {optimizer} does not hold the weight of any of these Linear and convolution layers.
Instead of  BNP(model, SGD(other_model.parameters(), …))  write  BNP(model, SGD(model.parameters(), …)).
Not preconditioned: {others}."""
UNWATCHED = """\
{name!r} has a gradient, but no forward pass in training mode since the last step led to it: it is not preconditioned.
Is the model in eval mode (call model.train()), is the gradient an old one (call optimizer.zero_grad()), or did you set
it yourself? To exclude the layer: BNP(…, exclude=[{name!r}])."""
OUT_OF_PLACE = """\
{name!r} is not preconditioned any more: {why}. Let the optimizer hold the parameters that the model has now; after a
layer was replaced or got a parametrization, also call bnp.remove() and write BNP(model, optimizer) again."""
CAME_LATER = """\
{names} was added to the model after BNP was created, and is not preconditioned. Call bnp.remove() and write
BNP(model, optimizer) again; bnp.load_state_dict() restores the statistics of layers that are the same."""
ALREADY = """\
{name!r} is preconditioned already, by another BNP over this optimizer. Call its remove() first."""
NOT_COPIED = """\
BNP hooks one model and one optimizer, so it cannot be copied or pickled. Save bnp.state_dict(), and for the copy write
BNP(model, optimizer).load_state_dict(state)."""


class BNP(SharedStatistics):
    """Precondition the gradients of Linear and convolution layers just before an optimizer steps.

    With μ and σ² the running mean and variance of a layer's inputs, its gradient becomes (1/q²) P Pᵀ ∇:

        G_w ← (G_w − G_b μᵀ)/(q² σ̃²),   G_b ← G_b/q² − G_w μ,   σ̃² = σ² + ε₁ max σ² + ε₂

    This is gradient descent in the variables that BatchNorm would give the layer (lange2022, Algorithms 2 and 3). The
    network does not change, and any batch size works: q² = max(n_in/N, 1) for a dense layer, max(c_in k²/N, √(rs)) for
    a convolution with r·s output positions.

    Write the training loop as usual: accumulation, GradScaler, autocast, checkpointing, DDP, `torch.compile` with
    `fullgraph=True` and CUDA graphs of whole steps all work, and so does `with Join([ddp, bnp])` for processes that run
    out of inputs at different times. If parameters are replaced, as by `load_state_dict(assign=True)`, BNP continues
    once the optimizer holds the new ones. A copy of model and optimizer is not preconditioned: create a BNP for it.

    Clip gradients before `step()`; weight decay is the optimizer's and is not preconditioned. Start from a learning
    rate 5 to 10 times the plain one.

    Args:
        model: The model.
        optimizer: Any `torch.optim.Optimizer`; only layers whose weight it holds are preconditioned.
        rho: ρ, the decay of the running statistics.
        eps1: ε₁, relative to the largest variance of a layer.
        eps2: ε₂, absolute.
        means: Statistics of a convolution: one mean and variance per input channel (eqs. 21, 22), or with `"kernel"`
            the exact ones of every kernel entry (eqs. 19, 20).
        layers: Names of layers, or of modules that hold them; all by default.
        exclude: Names of layers, or of modules that hold them, that are not preconditioned.
        process_group: The processes whose batches belong together; that of a DDP-wrapped model by default.
        fused: Whether to use fused kernels, which compute the same numbers: Triton's on a GPU, and on a CPU some in C,
            which take a fraction of a second to compile. By default they are used if available, on a CPU only under
            Linux; True warns if they are not available, and False uses plain operations.

    Attributes:
        layers: Preconditioned layers by name, each with its running `mean` and `variance` and the `q2` of the last
            step.

    Raises:
        Unsupported: The optimizer holds no layer that can be preconditioned, or another BNP has one of them already.
        UnknownLayer: A name in `layers` or `exclude` is not in the model.
        ValueError: A setting is out of range.

    Example:
        >>> layer = nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
        >>> bnp = BNP(layer, optimizer, rho=0.0, eps1=0.0, eps2=0.0)  # ρ = 0: the statistics of this batch alone
        >>> loss = layer(torch.tensor([[1.0], [3.0]])).sum()  # mean 2, variance 1, G_w = 4, G_b = 2
        >>> loss.backward()
        >>> optimizer.step()
        >>> layer.weight.grad.item(), layer.bias.grad.item()  # (4 − 2·2)/1 and 2 − 0·2
        (0.0, 2.0)
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        rho: float = 0.99,
        eps1: float = 1e-2,
        eps2: float = 1e-4,
        *,
        means: Means = "channel",
        layers: str | Collection[str] | None = None,
        exclude: str | Collection[str] = (),
        process_group: Any = None,
        fused: bool | None = None,
    ) -> None:
        _check(model, optimizer, rho, eps1, eps2, means)
        self.rho, self.eps1, self.eps2, self.means = rho, eps1, eps2, means
        self.optimizer = optimizer
        self._model = unwrapped(model)
        self._find_layers = functools.partial(find_layers, self._model, means, layers, exclude)
        super().__init__(model, process_group, self._find_layers())
        self._running = _running(list(self.layers.values()), fused)
        self._others = not_preconditioned(self._model, self.layers.values())
        self._held: set[str] = set()
        self._parameters: list[Tensor] = []
        self._warned: set[str] = set()
        self._find_held()
        if not self._held:
            others = ", ".join(self._others) or "none"
            raise Unsupported(NOTHING_TO_DO.format(optimizer=type(optimizer).__name__, others=others))
        for hook in optimizer._optimizer_step_pre_hooks.values():
            other = getattr(hook, "__self__", None)
            if isinstance(other, BNP) and (twice := self._held & other._held):
                raise Unsupported(ALREADY.format(name=min(twice)))

        modules = {name: module for layer in self.layers.values() for name, module in layer.modules.items()}
        calls = {
            name: LayerCalls(name, module, layer, measure_for(module, means, fused), self, self._follow)
            for layer in self.layers.values()
            for name, module in layer.modules.items()
        }
        if _is_compiled(model):
            torch.compiler.reset()  # existing graphs would not call the hooks
        step_hook = optimizer.register_step_pre_hook(self._before_step)
        self._removals = [watched(modules, calls), step_hook.remove]

    def __repr__(self) -> str:
        settings = f"rho={self.rho}, eps1={self.eps1}, eps2={self.eps2}, means={self.means!r}"
        lines = [f"BNP over {type(self.optimizer).__name__} ({settings})", *map(repr, self.layers.values())]
        others = [f"not preconditioned: {', '.join(self._others)}"] if self._others else []
        return "\n  ".join([*lines, *others])

    def __reduce__(self) -> Any:
        raise TypeError(NOT_COPIED)

    @torch.no_grad()
    def precondition(self) -> None:
        """Update the running statistics and precondition `.grad`; the optimizer's step calls this itself."""
        self._find_held()
        taken = self.take()
        found_inf = getattr(self.optimizer, "found_inf", None)  # a fused optimizer will skip this step for GradScaler
        if found_inf is not None and not is_capturing(found_inf):
            if found_inf.item():
                return
            found_inf = None
        batches = [batch if name in self._held else None for name, batch in zip(self.layers, taken, strict=True)]
        for (name, layer), batch in zip(self.layers.items(), batches, strict=True):
            if batch is not None:
                layer.q2 = max(layer.fan_in / batch.examples, math.sqrt(batch.positions / batch.examples))
            elif name not in self._warned and (text := self._why_unseen(name)):
                self._warned.add(name)
                warnings.warn(text, stacklevel=2)
        for running, indices in self._running:
            running.precondition([batches[index] for index in indices], self.rho, self.eps1, self.eps2, found_inf)

    def state_dict(self) -> dict[str, Any]:
        """The running statistics and settings, as tensors, numbers and strings for `torch.load(weights_only=True)`."""
        moments = {name: (layer.mean.clone(), layer.variance.clone()) for name, layer in self.layers.items()}
        layers = {name: {"mean": mean, "variance": variance} for name, (mean, variance) in moments.items()}
        return {"rho": self.rho, "eps1": self.eps1, "eps2": self.eps2, "means": self.means, "layers": layers}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from saved statistics, on whatever device the model is now.

        Args:
            state_dict: What `state_dict()` returned.

        Raises:
            Unsupported: The state belongs to another network, or is not the state of a BNP.
        """
        if missing := {"layers", "rho", "eps1", "eps2", "means"} - state_dict.keys():
            raise Unsupported(f"this is not the state of a BNP: {sorted(missing)} missing; save bnp.state_dict()")
        layers = state_dict["layers"]
        if layers.keys() != self.layers.keys():
            missing, unknown = self.layers.keys() - layers.keys(), layers.keys() - self.layers.keys()
            raise Unsupported(f"the saved state has other layers: {sorted(missing)} missing, {sorted(unknown)} unknown")
        for name, layer in self.layers.items():
            if layers[name]["mean"].shape != layer.mean.shape:
                shapes = f"{tuple(layers[name]['mean'].shape)} saved, {tuple(layer.mean.shape)} here"
                raise Unsupported(f"{name}: statistics of other sizes ({shapes}); was means={state_dict['means']!r}?")
        self.rho, self.eps1, self.eps2 = state_dict["rho"], state_dict["eps1"], state_dict["eps2"]
        for name, layer in self.layers.items():
            layer.mean.copy_(layers[name]["mean"])
            layer.variance.copy_(layers[name]["variance"])

    def remove(self) -> None:
        """Remove all hooks: the optimizer steps as it did before."""
        while self._removals:
            self._removals.pop()()

    def _before_step(self, _optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self.precondition()
            return None

        def preconditioned() -> Any:  # there are no gradients before the optimizer calls the closure
            loss = closure()
            self.precondition()
            return loss

        return (args[0], preconditioned, *args[2:]), {k: v for k, v in kwargs.items() if k != "closure"}

    # parameters and layers may be replaced, and groups added, at any time

    def _find_held(self) -> None:
        """Update which layers the optimizer holds."""
        now = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        if len(now) == len(self._parameters) and all(map(operator.is_, now, self._parameters)):
            return
        is_first, self._parameters, held = not self._parameters, now, set(map(id, now))
        self._held = {name for name, layer in self.layers.items() if layer.follow(held) or layer.is_held(held)}
        if not is_first:
            known = {id(layer.weight) for layer in self.layers.values()}
            weights = {name: id(layer.weight) for name, layer in self._find_layers().items()}
            if new := [name for name, weight in weights.items() if weight in held - known]:
                warnings.warn(CAME_LATER.format(names=", ".join(map(repr, new))), stacklevel=4)

    def _follow(self, layer: PreconditionedLayer) -> bool:
        self._find_held()
        return layer.follow(set(map(id, self._parameters)))

    def _why_unseen(self, name: str) -> str | None:
        """Why a layer has no statistics; None if that is expected, as for a layer that was not called."""
        layer = self.layers[name]
        modules = dict(self._model.named_modules())
        for path, module in layer.modules.items():
            if modules.get(path) is not module:
                return OUT_OF_PLACE.format(name=path, why="the model has another module in its place")
            if not isinstance(module.weight, nn.Parameter):
                return OUT_OF_PLACE.format(name=path, why="its weight is computed from others now")
            if not layer.is_used_by(path):
                return OUT_OF_PLACE.format(
                    name=path, why="its parameters were replaced, and the optimizer holds the old ones"
                )
        return UNWATCHED.format(name=name) if name in self._held and layer.has_gradient() else None


def _running(layers: list[PreconditionedLayer], fused: bool | None) -> list[tuple[RunningStatistics, list[int]]]:
    """One set of statistics per device and dtype, and the indices of its layers."""
    places: dict[Any, list[int]] = {}
    for index, layer in enumerate(layers):
        places.setdefault((layer.weight.device, layer.weight.dtype), []).append(index)
    return [(RunningStatistics([layers[index] for index in indices], fused), indices) for indices in places.values()]


def _is_compiled(model: nn.Module) -> bool:
    return any("_orig_mod" in m._modules or m._compiled_call_impl is not None for m in model.modules())


def _check(model: Any, optimizer: Any, rho: float, eps1: float, eps2: float, means: str) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"BNP needs the model itself, a torch.nn.Module, not {type(model).__name__}")
    if not hasattr(optimizer, "register_step_pre_hook"):
        kind = type(optimizer).__name__
        raise TypeError(f"BNP needs a torch.optim.Optimizer, not {kind}; derive it from torch.optim.Optimizer")
    if not 0 <= rho < 1:
        raise ValueError(f"rho must be in [0, 1), not {rho}")
    if not (eps1 >= 0 and eps2 >= 0):
        raise ValueError(f"eps1 and eps2 must not be negative: {eps1}, {eps2}")
    if means not in get_args(Means):
        raise ValueError(f"means must be one of {get_args(Means)}, not {means!r}")
