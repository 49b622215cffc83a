"""How large the learning rate may be, predicted from a network as initialised."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from wellcond.errors import NonFinite, Unsupported
from wellcond.meanfield.architecture import Architecture, Parameters
from wellcond.meanfield.feature_maps import Convolution
from wellcond.meanfield.gram import Gram
from wellcond.meanfield.moments import Kernel, Moments, Number, check_number, float64, grid_of
from wellcond.meanfield.prediction import (
    LayerContribution,
    Loss,
    Prediction,
    cautions,
    check_inputs_differ,
    contributions,
    why_not_finite,
)
from wellcond.meanfield.reader import check_finite, read
from wellcond.meanfield.stages import (
    Affine,
    Nonlinearity,
    Stage,
    Variant,
    every,
    has_batchnorm,
    mapped,
    with_means,
)
from wellcond.network.calling import tensors_in, unwrapped
from wellcond.network.isolation import isolated
from wellcond.problem.likelihoods import CrossEntropy, Gaussian
from wellcond.problem.problem import Problem
from wellcond.results import Cost
from wellcond.stability.limits import DEFAULT_MOMENTUM, heavy_ball_limit

MEANING: dict[Variant, str] = {"detached": "constants", "batch": "differentiated, as in training"}
"""What BatchNorm's statistics are to the gradient."""


def predict(
    network: nn.Module | Architecture | str | Problem,
    gamma: Number | None = None,
    momentum: float = DEFAULT_MOMENTUM,
    variant: Variant | None = None,
    *,
    inputs: Any = None,
    examples: int | None = None,
    loss: Loss | None = None,
    parameters: Parameters | None = None,
    width: Number | None = None,
    sigma_w2: Number | None = None,
    sigma_b2: Number | None = None,
) -> Prediction:
    """Predict λ_max of the Fisher matrix F = E ∇f∇fᵀ and the largest rate 2(1 + μ)/λ_max of a network as initialised.

        λ_max = Σ_l f_l        f_l = fan_in · q̂_xy · q̃_xy        (wei2019, claim 3.1)

    for ½‖f − y‖² and any number C of outputs, whose F has that eigenvalue C times. It is a lower bound, from the
    direction that the gradients of all examples share. Where they share little, as after an odd activation and with few
    examples, other directions may be as large. It takes milliseconds; with padding, tenths of a second per network.

    Args:
        network: A module, a line such as "fc 784-1000-10", an `Architecture`, or a `Problem`, whose first batch, loss
            and use of BatchNorm are then taken.
        gamma: γ of all norms, instead of the network's own. Like `width`, `sigma_w2` and `sigma_b2` it may be a tensor;
            they broadcast to a grid of networks.
        momentum: μ.
        variant: What BatchNorm's statistics are to the gradient: "batch", differentiated as in training, or "detached",
            constants. By default "batch", or what the problem says.
        inputs: Examples (N, ...), or for a module the shape of one. Without, inputs are independent and normalised.
        examples: Their number, where they are not given; very many by default.
        loss: "half-squared" by default. "mse" is a mean over outputs too and has 2/C of its λ_max. "cross-entropy" has
            1/C of it while all classes are about equally likely; for a module with inputs, what its own outputs say.
        parameters: Which ones count: "weights" as in wei2019, or "all" that are trained. By default "weights" for an
            architecture and "all" for a module.
        width: Of all hidden layers of an architecture.
        sigma_w2: σ_w², fan_in times the variance of a weight.
        sigma_b2: σ_b², the variance of a bias.

    Returns:
        λ_max, the largest rate, and what each layer adds.

    Raises:
        Unsupported: A part of the module has no rule; the message names it.
        NonFinite: There is no finite λ_max; the message says why.
        ValueError: An argument is out of range.

    Example:
        >>> prediction = predict("fc 784-1000-1000-1000-10", variant="detached")
        >>> round(prediction.lambda_max, 1), round(prediction.max_lr, 4)
        (361.5, 0.0105)
        >>> {layer.name: round(layer.term, 1) for layer in prediction.layers}
        {'fc1': 0.0, 'fc2': 85.6, 'fc3': 116.7, 'head': 159.2}
    """
    _check_options(momentum, variant, loss, parameters, examples)
    logits, cost, notes = None, Cost(), list[str]()
    if isinstance(network, Problem):
        before = network.cost
        variant = variant or ("batch" if network.batchnorm == "batch" else "detached")
        if inputs is None or loss is None:
            first, outputs = _first_batch(network)
            loss = loss or _loss_name(network, outputs.shape[-1])
        if inputs is None:
            inputs, logits = first, outputs
            notes += [] if network.is_one_batch else ["of the batches the first one counts"]
        cost = network.cost - before
        network = network.model
    variant, loss = variant or "batch", loss or "half-squared"
    numbers = {"gamma": gamma, "sigma_w2": sigma_w2, "sigma_b2": sigma_b2}
    changes: dict[str, Any] = {name: value for name, value in numbers.items() if value is not None}
    subject = _subject(network, changes, width, inputs, examples, parameters)
    stages, start = subject.networks[0], subject.start
    if examples == 1 and has_batchnorm(stages):
        raise ValueError("examples is 1, and BatchNorm needs 2 or more to have a variance.")
    check_inputs_differ(stages, start)
    if loss == "cross-entropy" and subject.outputs == 1:
        raise ValueError("loss is 'cross-entropy', which is constant for one output; it needs two or more.")
    found = [contributions(stages, start, variant) for stages in subject.networks]
    if not all(bool(largest.isfinite().all()) for largest, _ in found):
        raise NonFinite(f"no finite λ_max: {why_not_finite(stages, start)}.")
    factor = {"half-squared": 1.0, "mse": 2 / subject.outputs, "cross-entropy": 1 / subject.outputs}[loss]
    if loss == "cross-entropy" and isinstance(network, nn.Module) and isinstance(inputs, Tensor):
        if logits is None:
            logits, cost = _logits(network, inputs, batch_statistics=variant == "batch"), cost + Cost(forwards=1)
        factor = softmax_curvature(logits)
        notes.append("the curvature of the cross-entropy is that of the network's own outputs")
    elif loss == "cross-entropy":
        notes.append("all classes are taken to be equally likely, as they are at first where outputs are small")
    if has_batchnorm(stages):
        notes.insert(0, f"BatchNorm's statistics are {MEANING[variant]} (variant {variant!r})")
    lambda_max = subject.joined([factor * largest for largest, _ in found])
    return Prediction(
        subject.name,
        lambda_max,
        heavy_ball_limit(lambda_max, momentum),
        tuple(subject.layers([layers for _, layers in found], factor)),
        variant,
        momentum,
        loss,
        (*subject.notes, *notes, *cautions(stages, start)),
        cost,
    )


def _check_options(momentum: Any, variant: Any, loss: Any, parameters: Any, examples: Any) -> None:
    for name, value, allowed in (
        ("variant", variant, get_args(Variant)),
        ("loss", loss, get_args(Loss)),
        ("parameters", parameters, get_args(Parameters)),
    ):
        if value is not None and value not in allowed:
            raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, allowed))}.")
    if not isinstance(momentum, (int, float)):
        raise TypeError(f"momentum is of type {type(momentum).__name__}; it must be a number.")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum is {momentum}; it must be 0 or above, and below 1.")
    if examples is not None and (not isinstance(examples, int) or examples < 1):
        raise ValueError(f"examples is {examples!r}; it must be a whole number, 1 or above.")


# what is predicted for


@dataclass(frozen=True)
class _Subject:
    """A network, or a grid of networks: one whose numbers are grids, or all of them one by one."""

    name: str
    networks: list[list[Stage]]
    start: Kernel
    outputs: int
    grid: torch.Size
    notes: tuple[str, ...] = ()

    def joined(self, values: Sequence[Number]) -> Number:
        """One quantity of all networks: a float, or a tensor for a grid."""
        tensors = [torch.as_tensor(value) for value in values]
        if not self.grid:
            return float(tensors[0])
        return tensors[0].expand(self.grid) if len(tensors) == 1 else torch.stack(tensors).view(self.grid)

    def layers(self, found: Sequence[Sequence[LayerContribution]], factor: float) -> Iterator[LayerContribution]:
        """The layers of all networks joined; `factor` is that of the loss."""
        quantities = [f.name for f in fields(LayerContribution)[1:]]
        for same_layer in zip(*found, strict=True):
            columns = {name: self.joined([getattr(layer, name) for layer in same_layer]) for name in quantities}
            columns["term"] = factor * columns["term"]
            yield LayerContribution(same_layer[0].name, **columns)


def _subject(
    network: Any,
    changes: dict[str, Any],
    width: Number | None,
    inputs: Any,
    examples: int | None,
    parameters: Parameters | None,
) -> _Subject:
    if isinstance(network, nn.Module):
        if width is not None:
            raise ValueError(f"width is {width}, but that of a module cannot be changed; give an architecture.")
        return _of_module(network, changes, inputs, examples, parameters or "all")
    if not isinstance(network, str | Architecture):
        raise TypeError(
            f"network is of type {type(network).__name__}; pass an nn.Module, a Problem, a line such as "
            "'fc 784-1000-10', or an Architecture."
        )
    architecture = Architecture.parse(network) if isinstance(network, str) else network
    changed: dict[str, Any] = {} if width is None else {"hidden": (width,) * len(architecture.hidden)}
    architecture = replace(architecture, **changes, **changed)
    start = _start(architecture, inputs, examples)
    start = start if examples is None else start.among(examples)
    # moments of positions are large: one network of a grid at a time
    networks = architecture.each() if isinstance(start, Moments) and start.positions > 1 else [architecture]
    stages = [one.stages(parameters or "weights") for one in networks]
    return _Subject(str(architecture), stages, start, architecture.outputs, architecture.grid)


def _start(architecture: Architecture, inputs: Any, examples: int | None) -> Kernel:
    """The moments of the inputs: by position where positions differ, by example where examples are given."""
    if inputs is not None:
        shape = "×".join(map(str, ("N", *architecture.input)))
        if not isinstance(inputs, Tensor):
            kind = type(inputs).__name__
            raise TypeError(f"inputs is of type {kind}; for an architecture it must be a tensor, {shape}.")
        if inputs.shape[1:] != architecture.input or len(inputs) < 2:
            raise ValueError(f"inputs is {'×'.join(map(str, inputs.shape))}; it must be {shape} with N > 1.")
        check_finite(inputs)
        return Moments.of(inputs) if architecture.is_convolutional else Gram.of(inputs)
    # what positions of one example share counts where examples are few, and is not in two numbers
    if architecture.is_convolutional and (architecture.padding > 0 or examples is not None):
        return Moments.independent(math.prod(architecture.input[1:]))
    return Moments.independent()


def _of_module(
    module: nn.Module, changes: dict[str, Number], inputs: Any, examples: int | None, parameters: Parameters
) -> _Subject:
    for name, value in changes.items():
        check_number(name, value)
    grid = grid_of(changes)
    reading = read(module, inputs)
    start = reading.input_moments
    numbers = {name: float64(value) for name, value in changes.items()}
    stages = with_means(mapped(reading.stages, lambda stage: _changed(stage, numbers, parameters)), start)
    if (
        examples is not None
        and not isinstance(inputs, Tensor)
        and any(isinstance(s, Convolution) for s in every(stages))
    ):
        start = Moments.independent(math.prod(inputs[1:]))  # as in `_start`
    start = start if examples is None else start.among(examples)
    return _Subject(type(module).__name__, [stages], start, reading.outputs, grid, reading.notes)


def _changed(stage: Stage, numbers: dict[str, Any], parameters: Parameters) -> Stage:
    """A stage with other numbers, or with only weights among the parameters."""
    if isinstance(stage, Affine):
        trains = stage.trains_bias and parameters == "all"
        return replace(stage, trains_bias=trains, **{k: v for k, v in numbers.items() if k != "gamma"})
    if isinstance(stage, Nonlinearity) and stage.norm != "none":
        trains = stage.trains_affine and parameters == "all"
        return replace(stage, trains_affine=trains, gamma=numbers.get("gamma", stage.gamma))
    return stage


# problems and losses


def _first_batch(problem: Problem) -> tuple[Tensor, Tensor]:
    """Its inputs, and the network's outputs on them."""
    with problem.measuring(), torch.no_grad(), contextlib.closing(problem.data()) as data:
        index, batch = next(data)
        outputs = problem.evaluate(index, batch).outputs
    if not isinstance(batch[0], Tensor) or outputs is None:
        raise Unsupported("a prediction is for networks with one tensor as input and one as output.")
    return batch[0], outputs


def _loss_name(problem: Problem, outputs: int) -> Loss:
    likelihood = problem.likelihood
    if isinstance(likelihood, CrossEntropy):
        return "cross-entropy"
    if isinstance(likelihood, Gaussian):
        scales: dict[Loss, float] = {"half-squared": 0.5, "mse": 1 / outputs}
        for name, scale in scales.items():
            if math.isclose(likelihood.scale, scale, rel_tol=1e-3):
                return name
    raise Unsupported("a prediction is for cross-entropy or squared error, and the loss is neither. Pass loss=.")


def _logits(module: nn.Module, inputs: Tensor, *, batch_statistics: bool) -> Tensor:
    module = unwrapped(module)
    first = next(module.parameters())
    with isolated(module, first.device, batch_statistics=batch_statistics, dropout=False), torch.no_grad():
        return tensors_in(module(inputs.to(first.device, first.dtype)))[0]


def softmax_curvature(logits: Tensor) -> float:
    """λ_max of E_x[diag(p) − p pᵀ] with the probabilities p(x) of logits (N, C); 1/C where all are equal.

    The gradients of all examples have one direction in common, and in it the Gauss-Newton matrix is F ⊗ this mean.

    Example:
        >>> softmax_curvature(torch.zeros(3, 2))
        0.5
    """
    p = logits.double().softmax(1)
    if not bool(p.isfinite().all()):
        raise NonFinite("the network's outputs on these inputs are NaN or inf; look at their scale and at the weights.")
    mean = p.mean(0).diag() - p.T @ p / len(p)
    return float(torch.linalg.eigvalsh(mean)[-1])
