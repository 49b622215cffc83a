"""How far the learning rate can go, told from the architecture alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.errors import NonFinite
from wellcond.meanfield.architecture import Architecture, Number, Parameters, check_number, grid_of
from wellcond.meanfield.arguments import check_batch, check_examples, check_options
from wellcond.meanfield.cautions import cautions, check_inputs_differ, has_batchnorm, why_not_finite
from wellcond.meanfield.contributions import LayerContribution, contributions
from wellcond.meanfield.convolution import Convolution
from wellcond.meanfield.field import Field
from wellcond.meanfield.gram import Gram
from wellcond.meanfield.means import with_means
from wellcond.meanfield.moments import Kernel, Moments
from wellcond.meanfield.output_curvature import softmax_curvature
from wellcond.meanfield.prediction import Loss, Prediction
from wellcond.meanfield.reader import read
from wellcond.meanfield.signals import every
from wellcond.meanfield.stages import Affine, Nonlinearity, Residual, Stage, Variant

MEANING = {
    "source": "constants, with s² = q as wei2019 prints it",
    "detached": "constants",
    "batch": "differentiated, as training does",
}
"""What BatchNorm's statistics are to the gradient."""


def predict(
    network: nn.Module | Architecture | str,
    gamma: Number | None = None,
    momentum: float = 0.9,
    variant: Variant | None = None,
    *,
    inputs: Any = None,
    examples: int | None = None,
    loss: Loss = "half-squared",
    parameters: Parameters | None = None,
    width: Number | None = None,
    sigma_w2: Number | None = None,
    sigma_b2: Number | None = None,
) -> Prediction:
    """Predict λ_max of the Fisher matrix F = E ∇f∇fᵀ and the largest rate 2(1 + μ)/λ_max of a network as initialised.

    λ_max = Σ_l f_l with f_l = fan_in · q̂_xy · q̃_xy (wei2019, claim 3.1) for ½‖f − y‖² and any number C of outputs,
    whose F has that eigenvalue C times. "mse" is a mean over outputs too and has 2/C of it; "cross-entropy" has 1/C as
    long as all classes are about equally likely; of a module with inputs, what its own outputs say (a forward pass).

    network: a module, a line such as "fc 784-1000-10", or an `Architecture`. gamma, width (of all hidden layers),
    sigma_w2 and sigma_b2 replace its own, and may be tensors that broadcast: a grid of networks at once. variant: what
    BatchNorm's statistics are to the gradient; "batch" as in training, "detached", or "source" as printed. inputs:
    examples (N, ...); without, very many independent normalised ones, or as many as `examples` says. parameters:
    "weights" alone as in the source, or "all" that train, as of a module unless told. Cost: milliseconds, and no pass;
    with padding tenths of a second a network.

    It is a lower bound, from the direction that the gradients of all examples share; where they share little, as behind
    an odd activation and with few examples, others may be as large.

    >>> prediction = predict("fc 784-1000-1000-1000-10", variant="detached")
    >>> round(prediction.lambda_max, 1), round(prediction.max_lr, 4)
    (361.5, 0.0105)
    >>> {layer.name: round(layer.term, 1) for layer in prediction.layers}
    {'fc1': 0.0, 'fc2': 85.6, 'fc3': 116.7, 'head': 159.2}
    """
    check_options(momentum, variant, loss, parameters, examples)
    variant = variant or "batch"
    replaced = {"gamma": gamma, "sigma_w2": sigma_w2, "sigma_b2": sigma_b2}
    changes: dict[str, Any] = {name: value for name, value in replaced.items() if value is not None}
    if isinstance(network, nn.Module):
        if width is not None:
            raise ValueError(f"width is {width}, but that of a module cannot be changed; give an architecture.")
        subject = _of_module(network, changes, inputs, examples, parameters or "all")
    else:
        if not isinstance(network, str | Architecture):
            kind = type(network).__name__
            raise TypeError(
                f"network is of type {kind}; pass an nn.Module, a line such as 'fc 784-1000-10', or an Architecture."
            )
        architecture = Architecture.parse(network) if isinstance(network, str) else network
        widths: dict[str, Any] = {} if width is None else {"hidden": (width,) * len(architecture.hidden)}
        architecture = replace(architecture, **changes, **widths)
        subject = _of_architecture(architecture, variant, inputs, examples, parameters or "weights")
    stages, start = subject.networks[0], subject.start(variant)
    check_examples(examples, has_batchnorm(stages))
    check_inputs_differ(stages, start)
    factor = _factor(loss, subject.outputs)
    found = [contributions(stages, start, variant) for stages in subject.networks]
    if not all(bool(largest.isfinite().all()) for largest, _ in found):
        raise NonFinite(f"no finite λ_max: {why_not_finite(stages, start)}.")
    is_run = False
    if isinstance(network, nn.Module) and isinstance(inputs, Tensor) and loss == "cross-entropy":
        is_run = True
        factor = softmax_curvature(network, inputs, batch_statistics=variant == "batch")
    layers = []
    for same_layer in zip(*(layers for _, layers in found), strict=True):
        columns = [[layer.values()[name] for layer in same_layer] for name in same_layer[0].values()]
        term, *order_parameters = map(subject.joined, columns)
        layers.append(LayerContribution(same_layer[0].name, factor * term, *order_parameters))
    lambda_max = subject.joined([factor * largest for largest, _ in found])
    max_lr = 2 * (1 + momentum) / lambda_max if isinstance(lambda_max, Tensor) or lambda_max > 0 else math.inf
    notes = (*subject.notes, *_notes(subject, variant, loss, is_run), *cautions(stages, subject.input_moments))
    return Prediction(subject.name, lambda_max, max_lr, tuple(layers), variant, momentum, loss, notes)


@dataclass(frozen=True)
class _Subject:
    """What is predicted for. networks: one, whose numbers may be grids, or all of the grid one by one."""

    name: str
    networks: list[list[Stage]]
    input_moments: Kernel
    outputs: int
    grid: torch.Size
    notes: tuple[str, ...] = ()

    def start(self, variant: Variant) -> Kernel:
        """The source knows of no positions that differ."""
        moments = self.input_moments
        return moments.average() if variant == "source" and isinstance(moments, Field) else moments

    def joined(self, values: Sequence[Number]) -> Number:
        """One quantity of all networks: a float, or a tensor for a grid."""
        tensors = [torch.as_tensor(value) for value in values]
        if not self.grid:
            return float(tensors[0])
        return tensors[0].expand(self.grid) if len(tensors) == 1 else torch.stack(tensors).view(self.grid)


def _of_architecture(
    architecture: Architecture, variant: Variant, inputs: Tensor | None, examples: int | None, parameters: Parameters
) -> _Subject:
    start = _moments(architecture, variant, inputs, examples)
    # moments of positions are large: one network of a grid at a time
    networks = architecture.each() if isinstance(start, Field) else [architecture]
    stages = [one.stages(parameters) for one in networks]
    return _Subject(str(architecture), stages, start, architecture.outputs, architecture.grid)


def _of_module(
    module: nn.Module, changes: dict[str, Number], inputs: Any, examples: int | None, parameters: Parameters
) -> _Subject:
    for name, value in changes.items():
        check_number(name, value)
    grid = grid_of(changes)
    reading = read(module, inputs)
    stages = with_means(list(_changed(reading.stages, changes, parameters)), reading.input_moments)
    start = reading.input_moments
    if examples is not None and isinstance(start, Moments) and any(isinstance(s, Convolution) for s in every(stages)):
        start = Field.independent(math.prod(inputs[1:]))  # as in `_moments`
    start = _among(start, examples)
    return _Subject(type(module).__name__, [stages], start, reading.outputs, grid, reading.notes)


def _changed(stages: Sequence[Stage], changes: dict[str, Number], parameters: Parameters) -> Iterator[Stage]:
    """The stages with other numbers, or with weights alone among the parameters."""
    numbers: dict[str, Any] = {name: torch.as_tensor(value).double() for name, value in changes.items()}
    for stage in stages:
        if isinstance(stage, Residual):
            paths = (list(_changed(path, changes, parameters)) for path in (stage.branch, stage.shortcut))
            yield Residual(*paths)
        elif isinstance(stage, Affine):
            trains = stage.trains_bias and parameters == "all"
            yield replace(stage, trains_bias=trains, **{k: v for k, v in numbers.items() if k != "gamma"})
        elif isinstance(stage, Nonlinearity) and stage.norm != "none":
            trains = stage.trains_affine and parameters == "all"
            yield replace(stage, trains_affine=trains, gamma=numbers.get("gamma", stage.gamma))
        else:
            yield stage


def _moments(architecture: Architecture, variant: Variant, inputs: Tensor | None, examples: int | None) -> Kernel:
    """Those of the inputs: by position where positions differ, by example where examples are given."""
    if inputs is not None:
        check_batch(inputs, architecture.input)
        return _among(Field.of(inputs) if architecture.is_convolutional else Gram.of(inputs), examples)
    # what positions of one example share counts where examples are few, and is not in two numbers
    positions_differ = architecture.padding > 0 or examples is not None
    if architecture.is_convolutional and positions_differ and variant != "source":
        return _among(Field.independent(math.prod(architecture.input[1:])), examples)
    one = torch.tensor(1.0, dtype=torch.float64)
    return _among(Moments(one, torch.zeros_like(one)), examples)


def _among(moments: Kernel, examples: int | None) -> Kernel:
    """Of N examples instead of very many; those that are given are as many as they are."""
    if examples is None or not isinstance(moments, Moments | Field):
        return moments
    return replace(moments, examples=float(examples))


def _factor(loss: Loss, outputs: int) -> float:
    """The curvature of the loss in its outputs, over that of ½‖f − y‖²."""
    if loss == "cross-entropy" and outputs == 1:
        raise ValueError(
            "loss is 'cross-entropy', which is constant for one output; give the architecture two or more."
        )
    return {"half-squared": 1.0, "mse": 2 / outputs, "cross-entropy": 1 / outputs}[loss]


def _notes(subject: _Subject, variant: Variant, loss: Loss, is_run: bool) -> Iterator[str]:
    stages = list(every(subject.networks[0]))
    if has_batchnorm(stages):
        yield f"BatchNorm's statistics are {MEANING[variant]} (variant {variant!r})"
    if any(isinstance(stage, Convolution) for stage in stages) and variant == "source":
        yield "convolutions as printed, where positions are counted twice: far too high"
    if is_run:
        yield "the curvature of the cross-entropy is that of the network's own outputs, by one forward pass"
    elif loss == "cross-entropy":
        yield "all classes are taken to be equally likely, as they are at first where outputs are small"
