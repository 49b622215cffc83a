"""Σx and Σ∇h by hand: every row a Python loop away from the definition, patches read off index by index."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from references import Batch, Terms, in_state
from torch import Tensor, nn

PAD_MODES = {"zeros": "constant", "circular": "wrap", "reflect": "reflect", "replicate": "edge"}


def output_sites(module: Any, x: Tensor, position: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The places of the padded input, or for a transposed convolution of the padded output, under one position."""
    for site in itertools.product(*map(range, module.kernel_size)):
        yield tuple(p * s + k * d for p, s, k, d in zip(position, module.stride, site, module.dilation, strict=True))


def amounts(module: Any) -> list[tuple[int, int]]:
    """Padding before and after, for every axis."""
    if module.padding == "same":
        totals = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    return [(p, p) for p in module.padding]


def patch_rows(module: Any, x: Tensor, positions: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...], Tensor]]:
    """(example, position, (channels · sites,)) for every example and position; channels vary slowest."""
    widths = [(0, 0), (0, 0), *amounts(module)]
    padded = np.pad(x.detach().numpy(), widths, mode=PAD_MODES[getattr(module, "padding_mode", "zeros")])
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        # what lies beyond the output is zero; enough of it for kernels that reach over the end
        padded = np.pad(padded, [(0, 0), (0, 0), *[(0, 20)] * (x.dim() - 2)])
    for n in range(len(x)):
        for position in itertools.product(*map(range, positions)):
            columns = [padded[(n, slice(None), *place)] for place in output_sites(module, x, position)]
            yield n, position, torch.tensor(np.stack(columns, 1).reshape(-1))


def position_rows(x: Tensor) -> Iterator[Tensor]:
    """One row of channels for every example and pixel."""
    for n in range(len(x)):
        for position in itertools.product(*map(range, x.shape[2:])):
            yield x[(n, slice(None), *position)]


def second_moment(rows: Iterator[Tensor], groups: int = 1) -> Tensor:
    """(groups, d, d), the mean of the outer products of each group's part of the rows."""
    total, count = 0, 0
    for row in rows:
        total = total + torch.stack([torch.outer(part, part) for part in row.reshape(groups, -1)])
        count += 1
    return total / count


def input_moment(module: Any, x: Tensor, h: Tensor, form: str) -> Tensor:
    if form == "position":
        return second_moment(position_rows(x))
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        return second_moment(position_rows(x), module.groups)
    return second_moment((row for *_, row in patch_rows(module, x, h.shape[2:])), module.groups)


def gradient_moment(module: Any, x: Tensor, gradients: list[tuple[float, Tensor]], form: str) -> Tensor:
    """Σ over labels of probability · second moment, for a convolution's (weighted) output gradients."""
    total = 0
    for weight, g in gradients:
        if form == "position":
            moment = second_moment(position_rows(g))
        elif isinstance(module, nn.modules.conv._ConvTransposeNd):
            moment = second_moment((row for *_, row in patch_rows(module, g, x.shape[2:])), module.groups)
        else:
            moment = second_moment(position_rows(g), module.groups)
        total = total + weight * moment
    return total


def layer_gradients(
    model: nn.Module, layer: str, terms: Terms, batch: Batch, labels: Literal["data", "model"], batchnorm: str
) -> tuple[Tensor, Tensor, list[tuple[float, Tensor]]]:
    """A layer's input, its output, and the gradients at it.

    With the data's labels one gradient, of the sum of the terms. With the model's, one for each term and label with
    its probability.
    """
    model = in_state(model, batchnorm)
    seen: list[Any] = []
    handle = model.get_submodule(layer).register_forward_hook(lambda _m, args, output: seen.append((args[0], output)))
    inputs, targets = batch
    outputs = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    outputs = getattr(outputs, "logits", outputs)
    handle.remove()
    ((x, h),) = seen
    h = h[0] if isinstance(h, tuple) else h
    everything = list(terms(outputs, targets))
    if labels == "data":
        total = sum(term.loss(term.label) for term in everything)
        return x, h, [(1.0, torch.autograd.grad(total, h)[0])]
    result = []
    for term in everything:
        for probability, label in term.labels:
            (g,) = torch.autograd.grad(term.loss(label), h, retain_graph=True)
            result.append((probability, g))
    return x, h, result


def row_moment(rows: Tensor) -> Tensor:
    """(1, d, d) of a layer whose features come last."""
    return second_moment(iter(rows.reshape(-1, rows.shape[-1])))
