"""One layer under BNP, and its gradients as Algorithms 2 and 3 of lange2022 see them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from wellcond.errors import UnknownLayer, WellcondError
from wellcond.layers import BlockRule, ConvRule, EmbeddingRule, rule_for, weighted_layers
from wellcond.optim.input_statistics import Means


class CannotPrecondition(WellcondError, ValueError):
    """The model and the optimizer give BNP nothing to work on, or something that it cannot work on."""


class Gradients(NamedTuple):
    """Of one layer, with g groups, o outputs and c columns a group. They share memory with `.grad` where they can."""

    weight: Tensor | None
    """(g, o, c); None if the weight is frozen."""
    biases: list[Tensor]
    """(g, o, 1) each. More than one if modules with biases of their own share a weight; none: it is not centred."""


def precondition_(
    gradients: Sequence[Gradients], means: Sequence[Tensor], scales: Sequence[Tensor], q2: Sequence[float]
) -> None:
    """Replace the gradients of layers by (1/q²) P Pᵀ ∇, in place: steps 4 and 5, with means and scales (g, 1, c).

    .. math:: G_w ← (G_w − G_b μᵀ) · scale,   G_b ← G_b/q² − G_w μ,   scale = 1/(q² σ̃²)

    >>> layer = Gradients(torch.tensor([[[2.0]]]), [torch.tensor([[[1.0]]])])
    >>> precondition_([layer], means=[torch.tensor([[[0.5]]])], scales=[torch.tensor([[[0.25]]])], q2=[1.0])
    >>> layer.weight.item(), layer.biases[0].item()         # (2 − 1·½)/4 and 1 − ⅜·½
    (0.375, 0.8125)
    """
    weighted = [
        (gradient.weight, gradient.biases, mean, scale, q)
        for gradient, mean, scale, q in zip(gradients, means, scales, q2, strict=True)
        if gradient.weight is not None
    ]
    centred = [(weight, bias, mean, q) for weight, biases, mean, _, q in weighted for bias in biases]
    if centred:
        of_weights, of_biases, of_means, _ = zip(*centred, strict=True)
        torch._foreach_addcmul_(of_weights, of_biases, of_means, value=-1)
    if weighted:
        torch._foreach_mul_([weight for weight, *_ in weighted], [scale for *_, scale, _ in weighted])
    for weight, bias, mean, q in centred:
        bias.baddbmm_(weight, mean.mT, beta=1 / q, alpha=-1)
    if len(weighted) < len(gradients):
        for gradient, q in zip(gradients, q2, strict=True):
            if gradient.weight is None and gradient.biases:  # P is the identity on what a frozen weight leaves
                torch._foreach_div_(gradient.biases, q)


class Layer:
    """A weight, the modules that use it, their biases, and μ and σ² of what they receive."""

    mean: Tensor
    """Running μ, one value a column of Ĥ: a feature, an input channel, or a kernel entry."""
    variance: Tensor
    """Running σ², of the same shape."""
    q2: float = 1.0
    """q² of the last step."""

    def __init__(self, name: str, module: nn.Module, means: Means) -> None:
        rule = rule_for(module)
        self.modules: dict[str, nn.Module] = {}
        self.weight: nn.Parameter = module.weight  # type: ignore[assignment]
        self.biases: list[nn.Parameter] = []
        self.groups: int = module.groups if isinstance(rule, ConvRule) else 1  # type: ignore[assignment]
        self._is_input_major = rule is not None and rule.weight_is_input_major
        _, self.outputs, inputs, sites = self._by_site(self.weight).shape
        self.fan_in = inputs * sites
        self.repeats = sites if means == "channel" else 1
        """How many entries of a row of W share the statistics of one column."""
        self.columns = self.groups * self.fan_in // self.repeats
        self.add(name, module)

    def add(self, name: str, module: nn.Module) -> None:
        """Another module that uses the same weight; its bias may be its own."""
        self.modules[name] = module
        if isinstance(module.bias, nn.Parameter) and not any(bias is module.bias for bias in self.biases):
            self.biases.append(module.bias)

    def __repr__(self) -> str:
        kinds = ", ".join(dict.fromkeys(type(module).__name__ for module in self.modules.values()))
        groups = f" in each of {self.groups} groups" if self.groups > 1 else ""
        return f"{' = '.join(self.modules)}: {kinds}, {self.fan_in} → {self.outputs}{groups}"

    @property
    def anchor(self) -> nn.Parameter | None:
        """The parameter whose gradient says that a backward pass has been here; None if all are frozen."""
        if self.weight.requires_grad:
            return self.weight
        return next((bias for bias in self.biases if bias.requires_grad), None)

    def gradients(self) -> Gradients:
        """Those that are there, in the precision of the statistics."""
        biases = [self._precise(gradient).view(self.groups, -1, 1) for gradient in self._bias_gradients()]
        gradient = self.weight.grad if self.weight.requires_grad else None
        if gradient is None:
            return Gradients(None, biases)
        if gradient.is_contiguous() and not self._is_input_major:
            return Gradients(self._precise(gradient).view(self.groups, -1, self.fan_in), biases)
        return Gradients(self._precise(self._by_site(gradient)).flatten(2), biases)

    def put_back(self, gradients: Gradients) -> None:
        """Copy to `.grad` what cannot share its memory, being of another dtype or layout."""
        gradient = self.weight.grad
        if gradients.weight is not None and gradient is not None and gradients.weight.data_ptr() != gradient.data_ptr():
            by_site = self._by_site(gradient)
            by_site.copy_(gradients.weight.view_as(by_site))
        for bias, gradient in zip(gradients.biases, self._bias_gradients(), strict=True):
            if bias.dtype != gradient.dtype:
                gradient.copy_(bias.view_as(gradient))

    def _bias_gradients(self) -> list[Tensor]:
        return [bias.grad for bias in self.biases if bias.requires_grad and bias.grad is not None]

    def _precise(self, gradient: Tensor) -> Tensor:
        return gradient if gradient.dtype == self.mean.dtype else gradient.to(self.mean.dtype)

    def _by_site(self, weight: Tensor) -> Tensor:
        """A weight or its gradient as (groups, outputs, inputs, kernel sites), sharing memory."""
        weight = weight.flatten(2) if weight.dim() > 2 else weight.unsqueeze(-1)
        weight = weight.view(self.groups, -1, *weight.shape[1:])
        return weight.transpose(1, 2) if self._is_input_major else weight


def find_layers(
    model: nn.Module, means: Means, include: Collection[str] | None, exclude: Collection[str]
) -> dict[str, Layer]:
    """The layers to precondition, by the name of the first module that uses their weight."""
    modules = dict(model.named_modules())
    for name in (*(include or ()), *exclude):
        if name not in modules:
            raise UnknownLayer(name, modules)
    layers: dict[int, tuple[str, Layer]] = {}
    for name, module in weighted_layers(model).items():
        wanted = (include is None or _is_inside(name, include)) and not _is_inside(name, exclude)
        weight = getattr(module, "weight", None)
        if (
            not wanted
            or isinstance(rule_for(module), (EmbeddingRule, BlockRule))
            or not isinstance(weight, nn.Parameter)
        ):
            continue  # a weight that is no parameter is computed from others, as by weight normalization
        if isinstance(weight, nn.parameter.UninitializedParameter):
            raise CannotPrecondition(f"{name} has no sizes yet: run one batch through the model first")
        if hasattr(weight, "device_mesh"):
            raise CannotPrecondition(f"{name} is sharded over devices; BNP needs whole weights, as DDP keeps them")
        if id(weight) in layers:
            layers[id(weight)][1].add(name, module)
        else:
            layers[id(weight)] = name, Layer(name, module, means)
    return dict(layers.values())


def _is_inside(name: str, modules: Collection[str]) -> bool:
    return any(module in ("", name) or name.startswith(f"{module}.") for module in modules)
