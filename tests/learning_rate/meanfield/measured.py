"""Measured λ_max, from the gradients of one output, of one network or of random ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from wei2019_recursions import SIGMA_B2, SIGMA_W2
from zoo import normal

from wellcond.learning_rate.meanfield.architecture import Architecture, activation_named
from wellcond.learning_rate.meanfield.stages import Variant


def largest(model: nn.Module, x: Tensor) -> float:
    """λ_max of J Jᵀ/N over the trained parameters, with J the gradients at N examples of one batch."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    outputs = model(x).reshape(len(x), -1)[:, 0]
    rows = [torch.autograd.grad(output, parameters, retain_graph=True) for output in outputs]
    products = torch.zeros(len(x), len(x), dtype=torch.float64)
    for gradients in zip(*rows, strict=True):
        jacobian = torch.stack(gradients).flatten(1)
        products += jacobian @ jacobian.mT
    return float(torch.linalg.eigvalsh(products)[-1]) / len(x)


@dataclass(frozen=True)
class Sample:
    """λ_max, and ‖E ∇f‖² of the weights of every layer: their term of the Gram matrix, averaged over all its pairs."""

    lambda_max: float
    terms: list[float]


def sample(net: Architecture, variant: Variant, x: Tensor, seed: int = 0) -> Sample:
    """A random network of the architecture with one output, in single precision."""

    def norm(z: Tensor) -> Tensor:
        if net.norm == "none":
            return z
        dims = (0, *range(2, z.dim())) if net.norm == "batch" else tuple(range(1, z.dim()))
        constant = z.detach() if variant == "detached" and net.norm == "batch" else z
        variance, mean = torch.var_mean(constant, dims, correction=0, keepdim=True)
        return float(net.gamma) * (z - mean) / variance.sqrt()

    phi = activation_named(net.activation)
    x, weights = x.float(), []
    z = x
    for k, units in enumerate((*net.hidden, 1)):
        is_head = k == len(net.hidden)
        h = phi(norm(z)) if k else x
        if is_head and net.is_convolutional:
            h = h.flatten(1) if net.head == "flatten" else h.mean((2, 3))
        shape = [int(units), h.shape[1], *[net.kernel] * (2 if net.is_convolutional and not is_head else 0)]
        weight = normal(*shape, seed=1000 * seed + 2 * k + 1).float()
        if is_head:  # few weights, whose mean square would scatter all that is measured below them
            weight /= weight.square().mean().sqrt()
        weights.append((math.sqrt(SIGMA_W2 / math.prod(shape[1:])) * weight).requires_grad_())
        bias = math.sqrt(SIGMA_B2) * normal(int(units), seed=1000 * seed + 2 * k + 2).float()
        layer = (
            F.conv2d(h, weights[-1], bias, net.stride, net.padding)
            if len(shape) == 4
            else F.linear(h, weights[-1], bias)
        )
        z = z + layer if net.residual and k and not is_head else layer
    rows = torch.autograd.grad(z[:, 0], weights, torch.eye(len(x)), is_grads_batched=True)
    products = [row.flatten(1) @ row.flatten(1).T for row in rows]
    gram = torch.stack(products).double().sum(0) / len(x)
    return Sample(float(torch.linalg.eigvalsh(gram)[-1]), [float(product.double().mean()) for product in products])


def mean_of_samples(line: str, variant: Variant, seeds: int, examples: int) -> Sample:
    """Mean over several draws of weights and Gaussian inputs."""
    net = Architecture.parse(line)
    inputs = [normal(examples, *net.input, seed=1000 * seed) for seed in range(seeds)]
    results = [sample(net, variant, x, seed) for seed, x in enumerate(inputs)]
    columns = zip(*(one.terms for one in results), strict=True)
    return Sample(sum(one.lambda_max for one in results) / seeds, [sum(column) / seeds for column in columns])
