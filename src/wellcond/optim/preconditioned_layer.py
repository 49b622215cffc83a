"""A layer that BNP preconditions, and its gradients in the shapes of Algorithms 2 and 3 of lange2022."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import Tensor, nn

from wellcond.errors import UnknownLayer, Unsupported
from wellcond.network.layers import as_stored, by_site, is_affine, weighted_layers
from wellcond.optim.algorithm import precondition_
from wellcond.optim.input_statistics import Means, StatisticsCollector

NOT_THE_SAME = """\
the weight of {name} was replaced by one of another shape, or is no longer shared. Call bnp.remove() and write
BNP(model, optimizer) again."""


class PreconditionedLayer:
    """A weight, the modules that use it, their biases, and μ and σ² of their inputs.

    Attributes:
        modules: Modules by name; several share a tied weight.
        weight: Weight of the modules.
        biases: Biases that the optimizer holds; any other is treated as frozen.
        mean: Running μ, one value per column of Ĥ: a feature, an input channel, or a kernel entry.
        variance: Running σ², of the same shape.
        q2: q² of the last step.
        groups: Number of groups of a grouped convolution.
        fan_in: Number of entries in a row of the weight.
        repeats: Number of entries of a row that share the statistics of one column.
        row_shape: (1, fan-in), or with groups (groups, 1, fan-in).
        columns: Number of columns of Ĥ, over all groups.
        collected: Statistics that belong to the gradient in `.grad`.
    """

    mean: Tensor
    variance: Tensor
    q2: float = 1.0

    def __init__(self, name: str, module: nn.Module, means: Means) -> None:
        self.modules: dict[str, nn.Module] = {}
        self.weight: nn.Parameter = module.weight  # type: ignore[assignment]
        self.biases: list[nn.Parameter] = []
        self._biases_of: dict[str, Any] = {}
        self._module = module
        rows = by_site(module, self.weight)
        self._is_stored_by_rows = rows.is_contiguous()
        self.groups, self.outputs, inputs, sites = rows.shape
        self.fan_in = inputs * sites
        self.repeats = sites if means == "channel" else 1
        self.row_shape = (1, self.fan_in) if self.groups == 1 else (self.groups, 1, self.fan_in)
        self.columns = self.groups * self.fan_in // self.repeats
        self.collected = StatisticsCollector(self.anchor)
        self.add(name, module)

    def add(self, name: str, module: nn.Module) -> None:
        """Add a module that uses the same weight; its bias may be its own."""
        self.modules[name] = module
        self._biases_of[name] = module.bias

    def is_used_by(self, name: str) -> bool:
        """Whether a module still computes with the parameters that the layer knows."""
        parameters = self.modules[name]._parameters  # looking them up by attribute would cost as much as the statistics
        return parameters.get("weight") is self.weight and parameters.get("bias") is self._biases_of[name]

    def follow(self, held: Collection[int]) -> bool:
        """Adopt the current parameters of the modules, if the optimizer holds them.

        Args:
            held: Ids of the parameters that the optimizer holds.

        Returns:
            Whether the optimizer trains the layer.

        Raises:
            Unsupported: Modules no longer share their weight, or it has another shape.
        """
        weights = {name: module.weight for name, module in self.modules.items()}
        biases = {name: module.bias for name, module in self.modules.items()}
        are_parameters = all(isinstance(weight, nn.Parameter) for weight in weights.values())
        if not are_parameters or not any(id(p) in held for p in (*weights.values(), *biases.values())):
            return False
        weight = next(iter(weights.values()))
        if any(other is not weight for other in weights.values()) or weight.shape != self.weight.shape:
            raise Unsupported(NOT_THE_SAME.format(name=" = ".join(weights)))
        self.weight = weight  # type: ignore[assignment]
        self._biases_of = biases
        return self.is_held(held)

    def is_held(self, held: Collection[int]) -> bool:
        """Whether an optimizer that holds the parameters with these ids trains the layer."""
        biases = {id(bias): bias for bias in self._biases_of.values() if isinstance(bias, nn.Parameter)}
        self.biases = [bias for key, bias in biases.items() if key in held]
        return id(self.weight) in held or (not self.weight.requires_grad and bool(self.biases))

    def __repr__(self) -> str:
        kinds = ", ".join(dict.fromkeys(type(module).__name__ for module in self.modules.values()))
        groups = f" in each of {self.groups} groups" if self.groups > 1 else ""
        return f"{' = '.join(self.modules)}: {kinds}, {self.fan_in} → {self.outputs}{groups}"

    def anchor(self) -> nn.Parameter | None:
        """The parameter whose gradient shows that a backward pass has reached the layer; None if all are frozen."""
        if self.weight.requires_grad:
            return self.weight
        return next((bias for bias in self.biases if bias.requires_grad), None)

    def has_gradient(self) -> bool:
        """Whether a backward pass, or the user, has left a gradient."""
        anchor = self.anchor()
        return anchor is not None and anchor.grad is not None

    def gradient_rows(self) -> tuple[Tensor, Tensor | None] | None:
        """G_w and G_b, if a kernel can overwrite them: stored by rows, in the dtype of the statistics."""
        gradient, dtype = self.weight.grad, self.mean.dtype
        if gradient is None or not self._is_stored_by_rows or len(self.biases) > 1 or not self.weight.requires_grad:
            return None
        bias = self.biases[0].grad if self.biases and self.biases[0].requires_grad else None
        fits = gradient.dtype == dtype and gradient.is_contiguous()
        return (gradient, bias) if fits and (bias is None or bias.dtype == dtype) else None

    def precondition_gradients(self, mean: Tensor, scale: Tensor) -> None:
        """Steps 4 and 5 on the gradients of the layer, with μ and 1/(q² σ̃²) in the shape of a row."""
        gradients = [bias.grad for bias in self.biases if bias.requires_grad and bias.grad is not None]
        biases = [gradient.to(mean.dtype).view(*self.row_shape[:-2], -1, 1) for gradient in gradients]
        gradient = self.weight.grad if self.weight.requires_grad else None
        if gradient is None:  # P is the identity on the biases of a frozen weight
            for bias in biases:
                bias.div_(self.q2)
        elif self._is_stored_by_rows and gradient.is_contiguous() and gradient.dtype == mean.dtype:
            if gradient.dim() != mean.dim():
                gradient = gradient.view(*self.row_shape[:-2], -1, self.fan_in)
            precondition_(gradient, biases, mean, scale, self.q2)
        else:
            sites = by_site(self._module, gradient)
            weight = sites.to(mean.dtype).flatten(2)
            shaped = weight if mean.dim() == 3 else weight[0]
            precondition_(shaped, biases, mean, scale, self.q2)
            if weight.data_ptr() != gradient.data_ptr():  # it is a copy, in another dtype or layout
                gradient.copy_(as_stored(self._module, weight.view(sites.shape)))
        for bias, gradient in zip(biases, gradients, strict=True):
            if gradient.dtype != mean.dtype:
                gradient.copy_(bias.view_as(gradient))


def find_layers(
    model: nn.Module, means: Means, names: str | Collection[str] | None, exclude: str | Collection[str]
) -> dict[str, PreconditionedLayer]:
    """The layers to precondition, by the name of the first module that uses their weight."""
    names = (names,) if isinstance(names, str) else names
    exclude = (exclude,) if isinstance(exclude, str) else exclude
    modules = dict(model.named_modules())
    for name in (*(names or ()), *exclude):
        if name not in modules:
            raise UnknownLayer(name, modules)
    layers: dict[int, tuple[str, PreconditionedLayer]] = {}
    for name, module in weighted_layers(model).items():
        is_chosen = (names is None or _is_inside(name, names)) and not _is_inside(name, exclude)
        weight = getattr(module, "weight", None)
        if not is_chosen or not is_affine(module) or not isinstance(weight, nn.Parameter):
            continue  # such a weight is computed from others, as by weight normalization
        if isinstance(weight, nn.parameter.UninitializedParameter):
            raise Unsupported(f"{name} has no sizes yet: run one batch through the model first")
        if hasattr(weight, "device_mesh"):
            raise Unsupported(f"{name} is sharded over devices; BNP needs whole weights, as DDP keeps them")
        if not weight.is_floating_point():
            raise Unsupported(f"{name} has weights of {weight.dtype}; exclude it: exclude=[{name!r}]")
        if id(weight) in layers:
            layers[id(weight)][1].add(name, module)
        else:
            layers[id(weight)] = name, PreconditionedLayer(name, module, means)
    return dict(layers.values())


def _is_inside(name: str, modules: Collection[str]) -> bool:
    return any(module in ("", name) or name.startswith(f"{module}.") for module in modules)


def not_preconditioned(model: nn.Module, layers: Collection[PreconditionedLayer]) -> list[str]:
    """Modules with a weight matrix that is in none of the layers, each with its type."""
    covered = {id(layer.weight) for layer in layers}
    return [
        f"{name or 'the model'} ({type(module).__name__})"
        for name, module in model.named_modules()
        if any(p.dim() > 1 and id(p) not in covered for p in module.parameters(recurse=False))
    ]
