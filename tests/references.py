"""Slow, dense float64 references: autograd.functional on `functional_call`, loops over terms, enumerated labels.

Nothing of wellcond is used here. A *term* is one summand of the mean loss: an example, or a token that counts.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.functional import hessian, jacobian
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

Batch = tuple[Any, Any]


@dataclass(frozen=True)
class Term:
    """ℓ of one summand as a function of its label; the data's label; all labels of the model with probabilities."""

    loss: Callable[[Tensor], Tensor]
    label: Tensor
    labels: list[tuple[float, Tensor]]


Terms = Callable[[Tensor, Tensor], Iterator[Term]]


def categorical(class_dim: int = 1, ignore_index: int = -100) -> Terms:
    """−Σ_c y_c log softmax(f)_c at every position that is not ignored."""

    def terms(outputs: Tensor, targets: Tensor) -> Iterator[Term]:
        classes = outputs.shape[class_dim]
        logits = outputs.movedim(class_dim, -1).reshape(-1, classes)
        if targets.is_floating_point():
            expected = list(targets.movedim(class_dim, -1).reshape(-1, classes))
        else:
            expected = [None if int(y) == ignore_index else one_hot(int(y), classes) for y in targets.reshape(-1)]
        for z, y in zip(logits, expected, strict=True):
            if y is None:
                continue
            p = z.detach().exp() / z.detach().exp().sum()
            labels = [(float(p[c]), one_hot(c, classes)) for c in range(classes)]
            yield Term(lambda label, z=z: -(label * (z - z.exp().sum().log())).sum(), y, labels)

    return terms


def gaussian(scale: float) -> Terms:
    """scale · Σ_c (f_c − y_c)². Its gradient is linear in y, so y = f ± σ gives the second moment exactly."""

    def terms(outputs: Tensor, targets: Tensor) -> Iterator[Term]:
        for f, y in zip(outputs, targets, strict=True):
            f, y = f.reshape(-1), y.reshape(-1)
            signs = list(itertools.product([-1.0, 1.0], repeat=len(f)))
            sigma = 1 / math.sqrt(2 * scale)
            labels = [(1 / len(signs), f.detach() + sigma * torch.tensor(s, dtype=f.dtype)) for s in signs]
            yield Term(lambda label, f=f: scale * ((f - label) ** 2).sum(), y, labels)

    return terms


def bernoulli(scale: float) -> Terms:
    """−scale · Σ_c [y_c log σ(f_c) + (1 − y_c) log(1 − σ(f_c))], all 2^C joint labels enumerated."""

    def terms(outputs: Tensor, targets: Tensor) -> Iterator[Term]:
        for f, y in zip(outputs, targets, strict=True):
            f, y = f.reshape(-1), y.reshape(-1)
            p = 1 / (1 + (-f.detach()).exp())
            labels = []
            for bits in itertools.product([0.0, 1.0], repeat=len(f)):
                label = torch.tensor(bits, dtype=f.dtype)
                labels.append((float(torch.where(label > 0, p, 1 - p).prod()), label))

            def loss(label: Tensor, f: Tensor = f) -> Tensor:
                q = 1 / (1 + (-f).exp())
                return -scale * (label * q.log() + (1 - label) * (1 - q).log()).sum()

            yield Term(loss, y, labels)

    return terms


def one_hot(index: int, size: int) -> Tensor:
    row = torch.zeros(size, dtype=torch.float64)
    row[index] = 1.0
    return row


# the network as a function of its flat parameter vector


def in_state(model: nn.Module, batchnorm: str) -> nn.Module:
    """A copy without dropout, and with BatchNorm in the asked meaning."""
    model = copy.deepcopy(model).eval()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.train(batchnorm == "batch")
        # how a gradient is stored and where an output is written: neither is what it is
        if isinstance(module, nn.Embedding):
            module.sparse = False
        if isinstance(module, nn.ReLU):
            module.inplace = False
    return model


def flat_parameters(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters() if p.requires_grad])


def network(model: nn.Module, inputs: Any, batchnorm: str = "batch") -> Callable[[Tensor], Any]:
    """θ ↦ the model's outputs on one batch."""
    model = in_state(model, batchnorm)
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    args, kwargs = (inputs if isinstance(inputs, tuple) else (inputs,)), {}
    if isinstance(inputs, dict):
        args, kwargs = (), inputs

    def outputs(theta: Tensor) -> Any:
        parts = torch.split(theta, [p.numel() for p in named.values()])
        values = {name: part.view_as(p) for (name, p), part in zip(named.items(), parts, strict=True)}
        with sdpa_kernel(SDPBackend.MATH):
            result = functional_call(model, values, args, kwargs)
        return getattr(result, "logits", result)

    return outputs


def dense_hessian(model: nn.Module, loss: Any, batch: Batch, batchnorm: str = "batch") -> Tensor:
    outputs = network(model, batch[0], batchnorm)
    return hessian(lambda theta: loss(outputs(theta), batch[1]), flat_parameters(model))


def hessian_products(model: nn.Module, loss: Any, batch: Batch, columns: Tensor, batchnorm: str = "batch") -> Tensor:
    """The Hessian times some columns."""
    theta = flat_parameters(model).requires_grad_()
    value = loss(network(model, batch[0], batchnorm)(theta), batch[1])
    (gradient,) = torch.autograd.grad(value, theta, create_graph=True)
    return torch.stack([torch.autograd.grad(gradient, theta, v, retain_graph=True)[0] for v in columns.T], 1)


def dense_jacobian(model: nn.Module, inputs: Any, batchnorm: str = "batch") -> Tensor:
    """(outputs, P)."""
    rows = jacobian(network(model, inputs, batchnorm), flat_parameters(model))
    return rows.reshape(-1, rows.shape[-1])


def dense_ggn(model: nn.Module, loss: Any, batch: Batch, batchnorm: str = "batch") -> Tensor:
    outputs = network(model, batch[0], batchnorm)(flat_parameters(model))
    curvature = hessian(lambda f: loss(f, batch[1]), outputs)
    jac = dense_jacobian(model, batch[0], batchnorm)
    return jac.T @ curvature.reshape(len(jac), len(jac)) @ jac


def dense_fisher(
    model: nn.Module, terms: Terms, batch: Batch, labels: Literal["model", "data"], batchnorm: str = "batch"
) -> Tensor:
    """(1/terms) Σ_terms E_y [∇ℓ ∇ℓᵀ], one backward pass for every term and label."""
    theta = flat_parameters(model).requires_grad_()
    outputs = network(model, batch[0], batchnorm)(theta)
    total, count = torch.zeros(len(theta), len(theta), dtype=theta.dtype), 0
    for term in terms(outputs, batch[1]):
        for probability, label in term.labels if labels == "model" else [(1.0, term.label)]:
            (gradient,) = torch.autograd.grad(term.loss(label), theta, retain_graph=True)
            total += probability * torch.outer(gradient, gradient)
        count += 1
    return total / count


def assert_same(actual: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    """The true relative error, in the Frobenius norm, is at most `tolerance`; zero against zero proves nothing."""
    assert actual.shape == expected.shape
    actual, expected = actual.detach().double(), expected.detach().double()
    size = float(expected.norm())
    assert size > 0
    error = float((actual - expected).norm()) / size
    assert error <= tolerance, f"relative error {error:.2e} > {tolerance:.0e}"
