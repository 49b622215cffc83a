"""How far the learning rate can go, told from the architecture alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from wellcond.meanfield.architecture import Architecture, Number, Parameters
from wellcond.meanfield.contributions import LayerContribution, contributions
from wellcond.meanfield.field import Field
from wellcond.meanfield.gram import Gram
from wellcond.meanfield.moments import Kernel, Moments
from wellcond.meanfield.prediction import Loss, Prediction
from wellcond.meanfield.stages import Variant

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
    parameters: Parameters = "weights",
    width: Number | None = None,
    sigma_w2: Number | None = None,
    sigma_b2: Number | None = None,
) -> Prediction:
    """Predict λ_max of the Fisher matrix F = E ∇f∇fᵀ and the largest rate 2(1 + μ)/λ_max of a network as initialised.

    λ_max = Σ_l f_l with f_l = fan_in · q̂_xy · q̃_xy (wei2019, claim 3.1) for ½‖f − y‖² and any number C of outputs,
    whose F has that eigenvalue C times. "mse" is a mean over outputs too and has 2/C of it; "cross-entropy" has 1/C as
    long as all classes are about equally likely.

    network: a module, a line such as "fc 784-1000-10", or an `Architecture`. gamma, width (of all hidden layers),
    sigma_w2 and sigma_b2 replace its own, and may be tensors that broadcast: a grid of networks at once. variant: what
    BatchNorm's statistics are to the gradient; "batch" as in training, "detached", or "source" as printed. inputs:
    examples (N, ...); without, independent normalised ones. examples: their number N where finitely many matter, which
    add (same − pair)/N to a term. parameters: weights alone, as in the source, or biases, γ and β too. Cost:
    milliseconds, and no pass; with padding tenths of a second a network.

    >>> prediction = predict("fc 784-1000-1000-1000-10", variant="detached")
    >>> round(prediction.lambda_max, 1), round(prediction.max_lr, 4)
    (361.5, 0.0105)
    >>> {layer.name: round(layer.term, 1) for layer in prediction.layers}
    {'fc1': 0.0, 'fc2': 68.5, 'fc3': 133.8, 'head': 159.2}
    """
    _check_options(momentum, variant, loss, parameters, examples)
    variant = variant or "batch"
    if isinstance(network, nn.Module):
        raise NotImplementedError
    architecture = Architecture.parse(network) if isinstance(network, str) else network
    hidden = None if width is None else (width,) * len(architecture.hidden)
    changes: dict[str, Any] = {"gamma": gamma, "hidden": hidden, "sigma_w2": sigma_w2, "sigma_b2": sigma_b2}
    architecture = replace(architecture, **{name: value for name, value in changes.items() if value is not None})
    start = _moments(architecture, variant, inputs, examples)
    # moments of positions are large: one network of a grid at a time
    networks = list(architecture.each()) if isinstance(start, Field) else [architecture]
    found = [contributions(one.stages(parameters), start, variant, examples) for one in networks]
    factor, grid = _factor(loss, architecture.outputs), architecture.grid

    def whole(values: Sequence[Number]) -> Number:
        """One quantity of all networks."""
        tensors = [torch.as_tensor(value) for value in values]
        if not grid:
            return float(tensors[0])
        return tensors[0].expand(grid) if len(tensors) == 1 else torch.stack(tensors).view(grid)

    layers = []
    for same_layer in zip(*(layers for _, layers in found), strict=True):
        values = {name: whole([layer.values()[name] for layer in same_layer]) for name in same_layer[0].values()}
        layers.append(LayerContribution(same_layer[0].name, **values | {"term": factor * values["term"]}))
    lambda_max = whole([factor * largest for largest, _ in found])
    max_lr = 2 * (1 + momentum) / lambda_max if isinstance(lambda_max, Tensor) or lambda_max > 0 else math.inf
    notes = _notes(architecture, variant, loss)
    return Prediction(str(architecture), lambda_max, max_lr, tuple(layers), variant, momentum, loss, notes)


def _moments(architecture: Architecture, variant: Variant, inputs: Tensor | None, examples: int | None) -> Kernel:
    """Those of the inputs: by position where positions differ, by example where examples are given."""
    if inputs is not None:
        if inputs.shape[1:] != architecture.input or len(inputs) < 2:
            wanted = "×".join(map(str, ("N", *architecture.input)))
            raise ValueError(f"inputs is {'×'.join(map(str, inputs.shape))}; it must be {wanted} with N > 1.")
        return Field.of(inputs) if architecture.is_convolutional else Gram.of(inputs)
    # of a mean over positions, what one example has in common with itself is not in two numbers
    positions_differ = architecture.padding > 0 or (architecture.head == "pool" and examples is not None)
    if architecture.is_convolutional and positions_differ and variant != "source":
        return Field.independent(math.prod(architecture.input[1:]))
    one = torch.tensor(1.0, dtype=torch.float64)
    return Moments(one, torch.zeros_like(one))


def _factor(loss: Loss, outputs: int) -> float:
    """The curvature of the loss in its outputs, over that of ½‖f − y‖²."""
    if loss == "cross-entropy" and outputs == 1:
        raise ValueError(
            "loss is 'cross-entropy', which is constant for one output; give the architecture two or more."
        )
    return {"half-squared": 1.0, "mse": 2 / outputs, "cross-entropy": 1 / outputs}[loss]


def _notes(architecture: Architecture, variant: Variant, loss: Loss) -> tuple[str, ...]:
    notes = []
    if architecture.norm == "batch":
        notes.append(f"BatchNorm's statistics are {MEANING[variant]} (variant {variant!r})")
    if architecture.is_convolutional and variant == "source":
        notes.append("convolutions as printed, where positions are counted twice: far too high")
    if loss == "cross-entropy":
        notes.append("all classes are taken to be equally likely, as they are at first where outputs are small")
    return tuple(notes)


def _check_options(momentum: float, variant: str | None, loss: str, parameters: str, examples: int | None) -> None:
    for name, value, allowed in (
        ("variant", variant, (None, *get_args(Variant))),
        ("loss", loss, get_args(Loss)),
        ("parameters", parameters, get_args(Parameters)),
    ):
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, allowed))}.")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum is {momentum}; it must be 0 or above, and below 1.")
    if examples is not None and examples < 1:
        raise ValueError(f"examples is {examples}; it must be 1 or above.")
