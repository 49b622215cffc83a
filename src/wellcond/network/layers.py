"""Rules for layer types: the rows that a weight multiplies, patches, groups. One registry; unknown types are listed.

Index legend: n example, t position (pixel, token) of the output, c group, i inputs of a weight's row, o outputs.
A weighted layer computes h = W x at every position, so its weight gradient is Σ_t g_t x_tᵀ with x_t the *patch*
under position t. For a transposed convolution the roles are swapped: inputs are single positions, and on the output
side a weight is multiplied with a patch of g.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wellcond.errors import UnknownLayer

ConvolutionRows = Literal["position", "patch"]
"""One row of a convolution: a spatial position (huang2020), or a patch (im2col)."""


class Rule(ABC):
    """How to read one type of layer.

    Rows come as (groups, rows, features), or without a copy in blocks, (groups, blocks, rows of a block, features): a
    convolution's blocks are its examples.
    """

    note: str = ""
    """Note for readers of the numbers, if any."""
    weight_is_input_major: bool = False
    """Whether the weight is stored as (inputs, outputs)."""

    # must define

    @abstractmethod
    def input_blocks(self, module: Any, x: Tensor, convolution: ConvolutionRows) -> Tensor:
        """The rows that the weight is multiplied with, in blocks."""

    @abstractmethod
    def gradient_blocks(self, module: Any, g: Tensor, convolution: ConvolutionRows) -> Tensor:
        """The gradient of the weight's products, in blocks."""

    # provided

    def input_rows(self, module: Any, x: Tensor, convolution: ConvolutionRows) -> Tensor:
        """The rows that the weight is multiplied with, as (groups, rows, features)."""
        return self.input_blocks(module, x, convolution).flatten(1, 2)

    def gradient_rows(self, module: Any, g: Tensor, convolution: ConvolutionRows) -> Tensor:
        """The gradient of the weight's products, as (groups, rows, features)."""
        return self.gradient_blocks(module, g, convolution).flatten(1, 2)

    # may override

    def unit_dim(self, output: Tensor) -> int:
        """The dimension of the output that counts units."""
        return output.dim() - 1


class LinearRule(Rule):
    """(…, i) → (…, o): every token is a row."""

    def input_blocks(self, module: Any, x: Tensor, convolution: ConvolutionRows) -> Tensor:
        return _features_last(x)

    def gradient_blocks(self, module: Any, g: Tensor, convolution: ConvolutionRows) -> Tensor:
        return _features_last(g)


class InputMajorLinearRule(LinearRule):
    """A linear layer that stores its weight transposed, as GPT-2's Conv1D."""

    weight_is_input_major = True


class ConvRule(Rule):
    """Conv1d, 2d, 3d with any stride, padding, padding mode, dilation and groups."""

    def input_blocks(self, module: Any, x: Tensor, convolution: ConvolutionRows) -> Tensor:
        if convolution == "position":
            return self.gradient_blocks(module, x, convolution)
        return _grouped(patches(module, with_batch(module, x)), module.groups)

    def gradient_blocks(self, module: Any, g: Tensor, convolution: ConvolutionRows) -> Tensor:
        groups = 1 if convolution == "position" else module.groups
        return _grouped(with_batch(module, g).flatten(2).unsqueeze(2), groups)

    def unit_dim(self, output: Tensor) -> int:
        return 1


class TransposedConvRule(ConvRule):
    """ConvTranspose1d, 2d, 3d: W meets one input position and a patch of the output gradient."""

    weight_is_input_major = True

    def input_blocks(self, module: Any, x: Tensor, convolution: ConvolutionRows) -> Tensor:
        return CONV.gradient_blocks(module, x, convolution)

    def gradient_blocks(self, module: Any, g: Tensor, convolution: ConvolutionRows) -> Tensor:
        return CONV.input_blocks(module, g, convolution)


CONV = ConvRule()


class EmbeddingRule(LinearRule):
    """A linear layer on one-hot rows: Σx is diagonal and holds the frequencies of the tokens.

    The padding token is a row of zeros: it has no gradient.
    """

    weight_is_input_major = True

    def input_blocks(self, module: Any, x: Tensor, convolution: ConvolutionRows) -> Tensor:
        rows = F.one_hot(x.reshape(1, 1, -1), module.num_embeddings).to(module.weight.dtype)
        if module.padding_idx is not None:
            rows[..., module.padding_idx] = 0
        return rows

    def token_counts(self, module: Any, x: Tensor) -> Tensor:
        """The diagonal of Σ_rows x xᵀ, (1, tokens)."""
        counts = torch.bincount(x.reshape(-1), minlength=module.num_embeddings)
        if module.padding_idx is not None:
            counts[module.padding_idx] = 0
        return counts.unsqueeze(0)


class BlockRule(LinearRule):
    """A layer that computes several products inside one kernel: only its input and its output are visible."""

    def __init__(self, note: str) -> None:
        self.note = note


def patches(module: Any, x: Tensor) -> Tensor:
    """(n, channels, *space) → (n, channels, kernel sites, positions): the inputs of each kernel site (im2col)."""
    space = len(module.kernel_size)
    is_transposed = isinstance(module, nn.modules.conv._ConvTransposeNd)
    if is_transposed:  # the convolution whose transpose this is, applied to the output (gradient)
        pad = [p for size in reversed(module.padding) for p in (size, size)]
        mode, beyond = "zeros", module.output_padding
    else:
        pad, mode, beyond = module._reversed_padding_repeated_twice, module.padding_mode, (0,) * space
    x = F.pad(x, pad) if mode == "zeros" else F.pad(x, pad, mode=mode)
    for axis in range(space):
        reach, stride = (module.kernel_size[axis] - 1) * module.dilation[axis] + 1, module.stride[axis]
        positions = (x.shape[axis + 2] - reach - beyond[axis]) // stride + 1
        x = x.unfold(axis + 2, reach, stride).narrow(axis + 2, 0, positions)[..., :: module.dilation[axis]]
    kernel_first = [0, 1, *range(2 + space, 2 + 2 * space), *range(2, 2 + space)]
    return x.permute(kernel_first).flatten(2 + space).flatten(2, 1 + space)


def _grouped(x: Tensor, groups: int) -> Tensor:
    """(n, channels, sites, positions) → (groups, n, positions, channels/groups · sites)."""
    n, channels, sites, positions = x.shape
    return x.reshape(n, groups, channels // groups * sites, positions).permute(1, 0, 3, 2)


def _features_last(x: Tensor) -> Tensor:
    """(…, features) → (1, 1, rows, features)."""
    return x.reshape(1, 1, math.prod(x.shape[:-1]), x.shape[-1])


def by_site(module: Any, weight: Tensor) -> Tensor:
    """A weight, or its gradient, as (groups, outputs, inputs, kernel sites); a view where the layout allows."""
    groups = getattr(module, "groups", 1)
    return _turned(module, weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1))


def as_stored(module: Any, weight: Tensor) -> Tensor:
    """The inverse of `by_site`."""
    return _turned(module, weight).reshape(module.weight.shape)


def _turned(module: nn.Module, weight: Tensor) -> Tensor:
    rule = rule_for(module)
    return weight.transpose(1, 2) if rule is not None and rule.weight_is_input_major else weight


def with_batch(module: Any, x: Tensor) -> Tensor:
    """(channels, *space) is one example of (n, channels, *space)."""
    return x if x.dim() == len(module.kernel_size) + 2 else x.unsqueeze(0)


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: LinearRule(),
    nn.modules.conv._ConvTransposeNd: TransposedConvRule(),
    nn.modules.conv._ConvNd: CONV,
    nn.Embedding: EmbeddingRule(),
    nn.RNNBase: BlockRule("Σx of its input, Σ∇h of its output; the gates are computed inside one kernel"),
    nn.MultiheadAttention: BlockRule("Σx of its query, Σ∇h of its output projection"),
}
RULES_BY_NAME: dict[str, Rule] = {"transformers.pytorch_utils.Conv1D": InputMajorLinearRule()}
"""Rules for types of libraries that are not imported here."""


def rule_for(module: nn.Module) -> Rule | None:
    """The rule of a layer's type or of the closest of its base classes."""
    kind: Any = type(module)
    return _rule_of(kind)


@functools.lru_cache(maxsize=1024)
def _rule_of(kind: type[nn.Module]) -> Rule | None:
    rules = (RULES.get(cls) or RULES_BY_NAME.get(f"{cls.__module__}.{cls.__name__}") for cls in kind.__mro__)
    return next((rule for rule in rules if rule is not None), None)


def described_forward(module: nn.Module) -> Callable[..., Any]:
    """The `forward` that a layer's rule was written for, even if a subclass or the layer itself overrides it."""
    described: Iterator[Callable[..., Any]] = (
        vars(cls)["forward"]
        for cls in type(module).__mro__
        if "forward" in vars(cls)
        and (cls.__module__.startswith("torch.nn.modules.") or f"{cls.__module__}.{cls.__name__}" in RULES_BY_NAME)
    )
    return next(described)


def has_own_forward(module: nn.Module) -> bool:
    """Whether a layer with a rule may compute something other than its rule assumes.

    A block's rule uses only its input and output, so it holds whatever the block computes.

    >>> class Scaled(nn.Linear):
    ...     def forward(self, x):
    ...         return 2 * super().forward(x)
    >>> has_own_forward(Scaled(2, 2)), has_own_forward(nn.Linear(2, 2))
    (True, False)
    """
    if isinstance(rule_for(module), BlockRule):
        return False
    return "forward" in vars(module) or type(module).forward is not described_forward(module)


def is_affine(module: nn.Module) -> bool:
    """Whether a layer computes W x + b of its input, or of patches of it: a linear or convolutional layer.

    >>> is_affine(nn.Conv1d(1, 1, 3)), is_affine(nn.Embedding(2, 3)), is_affine(nn.LSTM(2, 3))
    (True, False, False)
    """
    rule = rule_for(module)
    return isinstance(rule, (LinearRule, ConvRule)) and not isinstance(rule, (EmbeddingRule, BlockRule))


def weighted_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers that have a rule, by name, without the parts of a block that has its own rule."""
    ruled = {name: module for name, module in model.named_modules() if rule_for(module) is not None}
    blocks = {name for name, module in ruled.items() if isinstance(rule_for(module), BlockRule)}
    return {name: module for name, module in ruled.items() if name in blocks or not _is_inside(name, blocks)}


def called_modules(model: nn.Module) -> dict[str, nn.Module]:
    """What a forward pass calls, by name: every module without children, and every weighted layer as a whole.

    >>> list(called_modules(nn.Sequential(nn.MultiheadAttention(2, 1), nn.Sequential(nn.ReLU()))))
    ['1.0', '0']
    """
    weighted = weighted_layers(model)
    inside = tuple(f"{name}." for name, module in weighted.items() if name and any(module.children()))
    leaves = {
        name: module
        for name, module in model.named_modules()
        if not any(module.children()) and not (inside and name.startswith(inside))
    }
    return leaves | weighted


def has_channels_first(model: nn.Module) -> bool:
    """Whether its inputs of three dimensions are (examples, channels, positions): it has a 1-d convolution."""
    return any(isinstance(module, (nn.Conv1d, nn.ConvTranspose1d)) for module in model.modules())


def feature_dim(tensor: Tensor, *, channels_first: bool = False) -> int:
    """The dimension that counts features, of a tensor with examples in front: channels of images, the last of tokens.

    Args:
        tensor: (N,), (N, d), (N, T, d) or (N, C, H, W, …).
        channels_first: Whether three dimensions are (N, C, T), as a 1-d convolution takes them, and not (N, T, d).

    >>> [feature_dim(torch.empty(shape)) for shape in [(8,), (8, 3), (8, 5, 3), (8, 3, 5, 5)]]
    [0, 1, 2, 1]
    """
    if tensor.dim() > 3 or (tensor.dim() == 3 and channels_first):
        return 1
    return tensor.dim() - 1


def chosen_layers(model: nn.Module, names: str | Collection[str] | None) -> dict[str, nn.Module]:
    """The weighted layers with these names, and those inside modules with these names; None for all.

    Raises:
        UnknownLayer: A name is neither that of a layer nor of a module that holds one.
    """
    every = weighted_layers(model)
    if names is None:
        return every
    modules = dict(model.named_modules(remove_duplicate=False))
    chosen: set[nn.Module] = set()
    for name in [names] if isinstance(names, str) else names:
        inside = set() if name not in modules else set(modules[name].modules()).intersection(every.values())
        if not inside:
            holders = [name for name in modules if any(layer.startswith(f"{name}.") for layer in every)]
            raise UnknownLayer(name, [*every, *holders])
        chosen |= inside
    return {name: module for name, module in every.items() if module in chosen}


def uncovered(model: nn.Module) -> Iterator[tuple[str, str]]:
    """(name, reason) of every module that has parameters of its own but no rule."""
    covered = {name for name, module in model.named_modules() if rule_for(module) is not None}
    for name, module in model.named_modules():
        owns = any(True for _ in module.parameters(recurse=False))
        if owns and rule_for(module) is None and not _is_inside(name, covered):
            kind = type(module).__name__
            norm = f"{kind} scales each feature by itself; it has no Σx ⊗ Σ∇h"
            others = f"parameters of {kind}'s own, which belong to no layer that is known"
            yield name, norm if "Norm" in kind else others


def _is_inside(name: str, modules: Collection[str]) -> bool:
    """Whether a module around it is among these; "", the model, is around all."""
    parts = name.split(".")
    return any(".".join(parts[:depth]) in modules for depth in range(len(parts)))
