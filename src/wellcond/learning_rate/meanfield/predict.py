"""How large the learning rate may be, predicted for a network at initialization."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from wellcond.errors import NonFinite, Unsupported
from wellcond.learning_rate.limits.limits import heavy_ball_limit
from wellcond.learning_rate.meanfield.architecture import Architecture, Parameters
from wellcond.learning_rate.meanfield.feature_maps import input_moments
from wellcond.learning_rate.meanfield.moments import Kernel, Moments, Number, check_number, float64, grid_of
from wellcond.learning_rate.meanfield.prediction import (
    LayerContribution,
    Loss,
    Prediction,
    cautions,
    contributions_at_width,
)
from wellcond.learning_rate.meanfield.reader import check_finite, read
from wellcond.learning_rate.meanfield.stages import (
    Affine,
    Nonlinearity,
    Stage,
    Variant,
    has_batchnorm,
    mapped,
    with_means,
)
from wellcond.network.calling import tensors_in, unwrapped
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.network.isolation.isolation import isolated
from wellcond.problem.arguments import as_whole
from wellcond.problem.loss.likelihoods import CrossEntropy, Gaussian
from wellcond.problem.problem import Problem
from wellcond.problem.training_step import ONLY_A_LOSS, WRITE_APART, TrainingStep
from wellcond.results import Cost
from wellcond.training.optimizers import DEFAULT_MOMENTUM


@own_arithmetic()
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
    """Predict λ_max of the Fisher matrix F = E ∇f∇fᵀ and the largest rate 2(1 + μ)/λ_max of a network as initialized.

        λ_max = Σ_l f_l        f_l = fan_in · q̂_xy · q̃_xy        (wei2019, claim 3.1)

    for ½‖f − y‖² and any number C of outputs, whose F has that eigenvalue C times. It is a lower bound, from the
    direction that the gradients of all examples share. If they share little, as after an odd activation without bias,
    many directions are alike. For dense layers without BatchNorm and real inputs, λ_max is then that of layers of
    finite width, and a note says so; otherwise a note says that it is a lower bound. It takes milliseconds; with
    padding, or if widths matter, tenths of a second per network.

    Args:
        network: Module, line such as "fc 784-1000-10", `Architecture`, or `Problem`, whose first batch, loss and use of
            BatchNorm are then used.
        gamma: γ of all norms, instead of the network's own. Like `width`, `sigma_w2` and `sigma_b2` it may be a tensor;
            they broadcast to a grid of networks.
        momentum: Momentum μ.
        variant: Whether BatchNorm's statistics are differentiated, as in training ("batch"), or constants ("detached").
            By default "batch", or the setting of the problem.
        inputs: Examples (N, ...), or for a module the shape of one. By default, inputs are independent and normalized.
        examples: Number of examples if there are no inputs; very many by default.
        loss: Loss, "half-squared" by default. "mse" is also a mean over outputs and has 2/C of its λ_max.
            "cross-entropy" has 1/C of it while all classes are about equally likely; for a module with inputs, the
            curvature at its own outputs is used.
        parameters: Parameters that count: "weights" as in wei2019, or "all" that are trained. By default "weights" for
            an architecture and "all" for a module.
        width: Width of all hidden layers of an architecture.
        sigma_w2: σ_w², fan_in times the variance of a weight.
        sigma_b2: σ_b², the variance of a bias.

    Returns:
        λ_max, the largest rate, and the contribution of each layer.

    Raises:
        Unsupported: A part of the module has no rule; the message names it.
        NonFinite: There is no finite λ_max; the message says why.
        ValueError: An argument is out of range.

    Example:
        >>> prediction = predict("fc 784-1000-1000-1000-10", variant="detached")
        >>> round(prediction.lambda_max, 1), round(prediction.max_lr, 4)
        (361.5, 0.0105)
        >>> [round(layer.term, 1) for layer in prediction.layers]
        [0.0, 85.6, 116.7, 159.2]
    """
    _check_options(momentum, examples, variant=variant, loss=loss, parameters=parameters)
    logits, cost, notes = None, Cost(), list[str]()
    if isinstance(network, Problem):
        before = network.cost
        variant = variant or ("batch" if network.batchnorm == "batch" else "detached")
        if inputs is None or loss is None:
            first, outputs = _first_batch(network)
            loss = loss or _loss_name(network, outputs.shape[-1])
        if inputs is None:
            inputs, logits = first, outputs
            notes += [] if network.is_one_batch else ["only the first batch is used"]
        cost = network.cost - before
        network = network.model
    variant, loss = variant or "batch", loss or "half-squared"
    arguments = {"gamma": gamma, "width": width, "sigma_w2": sigma_w2, "sigma_b2": sigma_b2}
    numbers = {name: value for name, value in arguments.items() if value is not None}
    if isinstance(network, nn.Module):
        subject = _of_module(network, numbers, inputs, examples, parameters or "all")
    else:
        subject = _of_architecture(network, numbers, inputs, examples, parameters or "weights")
    stages, start = subject.networks[0], subject.start
    if examples == 1 and has_batchnorm(stages):
        raise ValueError("examples is 1, and BatchNorm needs 2 or more to have a variance.")
    if loss == "cross-entropy" and subject.outputs == 1:
        raise ValueError("loss is 'cross-entropy', which is constant for one output; it needs two or more.")
    results = [contributions_at_width(stages, start, variant) for stages in subject.networks]
    factor = {"half-squared": 1.0, "mse": 2 / subject.outputs, "cross-entropy": 1 / subject.outputs}[loss]
    if loss == "cross-entropy" and isinstance(network, nn.Module) and isinstance(inputs, Tensor):
        if logits is None:
            logits, cost = _logits(network, inputs, variant), cost + Cost(forwards=1)
        factor = _softmax_curvature(logits)
        notes.append("the curvature of the cross-entropy is that of the network's own outputs")
    elif loss == "cross-entropy":
        notes.append("all classes are assumed to be equally likely, as they are at first if outputs are small")
    if has_batchnorm(stages):
        meaning = "differentiated, as in training" if variant == "batch" else "constants"
        notes.insert(0, f"BatchNorm's statistics are {meaning} (variant {variant!r})")
    lambda_max = subject.joined([factor * largest for largest, *_ in results])
    max_lr = heavy_ball_limit(lambda_max, momentum)
    layers = (subject.joined_layer(same, factor) for same in zip(*(layers for _, layers, _ in results), strict=True))
    of_widths = dict.fromkeys(note for *_, note in results if note is not None)
    all_notes = (*subject.notes, *notes, *of_widths, *cautions(stages, start))
    return Prediction(subject.name, lambda_max, max_lr, tuple(layers), variant, momentum, loss, all_notes, cost)


def _check_options(momentum: Any, examples: Any, **words: Any) -> None:
    for (name, value), allowed in zip(words.items(), map(get_args, (Variant, Loss, Parameters)), strict=True):
        if value is not None and value not in allowed:
            raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, allowed))}.")
    if not isinstance(momentum, (int, float)):
        raise TypeError(f"momentum is of type {type(momentum).__name__}; it must be a number.")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum is {momentum}; it must be 0 or above, and below 1.")
    if examples is not None:
        as_whole("examples", examples, 1)


# what is predicted for


@dataclass(frozen=True)
class _Subject:
    """The network to predict for, or a grid: one network whose numbers are grids, or all of them one by one."""

    name: str
    networks: list[list[Stage]]
    start: Kernel
    outputs: int
    grid: torch.Size
    notes: tuple[str, ...] = ()

    def joined(self, values: Sequence[Number]) -> Number:
        """One quantity of all networks, as a float, or as a tensor for a grid."""
        tensors = [float64(value) for value in values]
        if not self.grid:
            return float(tensors[0])
        return tensors[0].expand(self.grid) if len(tensors) == 1 else torch.stack(tensors).view(self.grid)

    def joined_layer(self, same_layer: Sequence[LayerContribution], factor: float) -> LayerContribution:
        """One layer of all networks; `factor` is that of the loss."""
        quantities = [f.name for f in fields(LayerContribution)[1:]]
        joined = {name: self.joined([getattr(layer, name) for layer in same_layer]) for name in quantities}
        return LayerContribution(same_layer[0].name, **joined | {"term": factor * joined["term"]})


def _of_architecture(
    network: Any, numbers: dict[str, Any], inputs: Any, examples: int | None, parameters: Parameters
) -> _Subject:
    if not isinstance(network, str | Architecture):
        kind, line = type(network).__name__, "a line such as 'fc 784-1000-10'"
        raise TypeError(f"network is of type {kind}; pass an nn.Module, a Problem, {line}, or an Architecture.")
    architecture = Architecture.parse(network) if isinstance(network, str) else network
    if "width" in numbers:
        numbers["hidden"] = (numbers.pop("width"),) * len(architecture.hidden)
    architecture = replace(architecture, **numbers)
    if inputs is not None:
        shape = "×".join(map(str, ("N", *architecture.input)))
        if not isinstance(inputs, Tensor):
            kind = type(inputs).__name__
            raise TypeError(f"inputs is of type {kind}; for an architecture it must be a tensor, {shape}.")
        if inputs.shape[1:] != architecture.input or len(inputs) < 2:
            raise ValueError(f"inputs is {'×'.join(map(str, inputs.shape))}; it must be {shape} with N > 1.")
        check_finite(inputs)
    start = input_moments(architecture.stages(), architecture.input if inputs is None else inputs, examples)
    # moments of positions are large: one network of a grid at a time
    networks = architecture.each() if isinstance(start, Moments) and start.positions > 1 else [architecture]
    stages = [one.stages(parameters) for one in networks]
    return _Subject(str(architecture), stages, start, architecture.outputs, architecture.grid)


def _of_module(
    module: nn.Module, numbers: dict[str, Any], inputs: Any, examples: int | None, parameters: Parameters
) -> _Subject:
    if "width" in numbers:
        raise ValueError(f"width is {numbers['width']}, but a module has its own widths; pass an architecture.")
    for name, value in numbers.items():
        check_number(name, value)
    grid = grid_of(numbers)
    variances: dict[str, Any] = {name: float64(value) for name, value in numbers.items()}
    gamma: dict[str, Any] = {"gamma": variances.pop("gamma")} if "gamma" in numbers else {}

    def changed(stage: Stage) -> Stage:
        """The stage with other numbers, and with only its weights as parameters if requested."""
        if isinstance(stage, Affine):
            return replace(stage, trains_bias=stage.trains_bias and parameters == "all", **variances)
        if isinstance(stage, Nonlinearity) and stage.norm != "none":
            return replace(stage, trains_affine=stage.trains_affine and parameters == "all", **gamma)
        return stage

    reading = read(module, inputs)
    start = reading.input_moments
    stages = with_means(mapped(reading.stages, changed), start)
    if examples is not None:
        start = start.among(examples) if isinstance(inputs, Tensor) else input_moments(stages, inputs, examples)
    return _Subject(type(module).__name__, [stages], start, reading.outputs, grid, reading.notes)


# problems and losses


def _first_batch(problem: Problem) -> tuple[Tensor, Tensor]:
    """Inputs of the first batch, and the network's outputs on them."""
    with problem.measuring(), torch.no_grad(), contextlib.closing(problem.data()) as data:
        index, batch = next(data)
        outputs = problem.evaluate(index, batch).outputs
    if isinstance(problem.loss, TrainingStep):
        raise Unsupported(f"a prediction needs outputs, and {ONLY_A_LOSS}. {WRITE_APART}")
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


def _logits(module: nn.Module, inputs: Tensor, variant: Variant) -> Tensor:
    module = unwrapped(module)
    first = next(module.parameters())
    batchnorm: Literal["batch", "running"] = "batch" if variant == "batch" else "running"
    with isolated(module, first.device, batchnorm=batchnorm, dropout=False), torch.no_grad():
        return tensors_in(module(inputs.to(first.device, first.dtype)))[0]


def _softmax_curvature(logits: Tensor) -> float:
    """λ_max of E_x[diag(p) − p pᵀ]: times F, the Gauss-Newton matrix in the direction that all gradients share."""
    p = logits.double().softmax(1)
    if not bool(p.isfinite().all()):
        raise NonFinite("the network's outputs on these inputs are NaN or inf; check their scale and the weights.")
    return float(torch.linalg.eigvalsh(p.mean(0).diag() - p.T @ p / len(p))[-1])
