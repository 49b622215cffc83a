"""Exact and Gauss-Newton local Hessians of every kind of block, against ℓ_b written out by hand in float64.

The reference runs a copy of the model in three parts, before, in and behind the block, and differentiates
ℓ_b = ½‖z_b^{k+½} − F_b(W_b, z_{b−1})‖² twice by autograd.functional.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from references import assert_same, dense_ggn, dense_hessian, in_state
from torch import Tensor, nn
from torch.autograd.functional import hessian, jacobian
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from zoo import ARCHITECTURES, CLASSES, Case, classifier, integers, normal, seeded

import wellcond as wc
from wellcond.local.local_hessian import LocalHessian, local_hessian


@dataclass(frozen=True)
class ByHand:
    """A block, and the three parts of its model; `behind` also gets z, which a skip connection needs."""

    case: Callable[[], Case]
    name: str
    before: Callable[[Any, Any], Any]
    block: Callable[[Any, Any], Tensor]
    behind: Callable[[Any, Tensor, Any], Tensor]
    params: tuple[str, ...] = ()


def piece(case: Callable[[], Case], name: str, start: int, stop: int) -> ByHand:
    """Children start to stop of a Sequential."""

    def run(model: Any, x: Any, begin: int, end: int) -> Any:
        for child in list(model)[begin:end]:
            x = child(x)
        return x

    params = tuple(f"{i}." for i in range(start, stop))
    return ByHand(
        case,
        name,
        lambda m, x: run(m, x, 0, start),
        lambda m, z: run(m, z, start, stop),
        lambda m, out, _z: run(m, out, stop, len(m)),
        params,
    )


def conv_case(**options: Any) -> Callable[[], Case]:
    def build() -> nn.Module:
        conv = nn.Conv2d(2, 4, **({"kernel_size": 3} | options))
        entries = conv(torch.zeros(1, 2, 5, 6)).numel()
        return nn.Sequential(conv, nn.Tanh(), nn.Flatten(), nn.Linear(entries, CLASSES))

    return lambda: classifier(build, normal(3, 2, 5, 6), 3)


class EncoderBehind:
    """nn.TransformerEncoderLayer behind its self-attention."""

    @staticmethod
    def before(model: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def block(model: Any, z: Tensor) -> Tensor:
        return model[0].self_attn(z, z, z, need_weights=False)[0]

    @staticmethod
    def behind(model: Any, out: Tensor, z: Tensor) -> Tensor:
        layer = model[0]
        x = layer.norm1(z + out)
        x = layer.norm2(x + layer.linear2(F.relu(layer.linear1(x))))
        return model[2](model[1](x))


mlp_tanh, mlp_relu = ARCHITECTURES["mlp_tanh"], ARCHITECTURES["mlp_relu"]
transformer, lstm = ARCHITECTURES["transformer"], ARCHITECTURES["lstm"]
BLOCKS: dict[str, ByHand] = {
    "linear": piece(mlp_tanh, "0", 0, 1),
    "activation": piece(mlp_tanh, "1", 1, 2),
    "range": piece(mlp_tanh, "[0:2]", 0, 2),
    "open_range": piece(mlp_relu, "[:-2]", 0, 3),
    "linear_before_inplace_relu": piece(mlp_relu, "0", 0, 1),
    "inplace_relu": piece(mlp_relu, "1", 1, 2),
    "range_that_begins_with_inplace_relu": piece(mlp_relu, "[1:4]", 1, 4),
    "strided_padded_conv": piece(conv_case(stride=2, padding=1), "0", 0, 1),
    "dilated_conv_and_tanh": piece(conv_case(dilation=2, padding=(2, 1)), "[0:2]", 0, 2),
    "grouped_conv_and_tanh": piece(conv_case(groups=2, padding="same", padding_mode="circular"), "[:2]", 0, 2),
    "conv_before_batchnorm": piece(ARCHITECTURES["cnn_batch"], "0", 0, 1),
    "batchnorm_on_the_batch": piece(ARCHITECTURES["cnn_batch"], "1", 1, 2),
    "batchnorm_on_running_statistics": piece(ARCHITECTURES["cnn_running"], "1", 1, 2),
    "conv_batchnorm_inplace_relu": piece(ARCHITECTURES["cnn_batch"], "[0:3]", 0, 3),
    "residual_batch": piece(ARCHITECTURES["resnet_batch"], "0", 0, 1),
    "residual_running": piece(ARCHITECTURES["resnet_running"], "0", 0, 1),
    "attention_layer": ByHand(
        transformer, "blocks.0", lambda m, x: m.embed(x), lambda m, z: m.blocks[0](z),
        lambda m, out, _z: m.head(m.blocks[1](out)), ("blocks.0.",),
    ),
    "range_of_a_part": ByHand(
        transformer, "blocks[1:2]", lambda m, x: m.blocks[0](m.embed(x)), lambda m, z: m.blocks[1](z),
        lambda m, out, _z: m.head(out), ("blocks.1.",),
    ),
    "multihead_attention": ByHand(
        ARCHITECTURES["multihead_attention"], "attention", lambda m, x: x,
        lambda m, z: m.attention(z, z, z, need_weights=False)[0], lambda m, out, _z: m.head(out.mean(1)),
        ("attention.",),
    ),
    "encoder_layer": piece(ARCHITECTURES["encoder_layer"], "0", 0, 1),
    "attention_inside_an_encoder_layer": ByHand(
        ARCHITECTURES["encoder_layer"], "0.self_attn", EncoderBehind.before, EncoderBehind.block, EncoderBehind.behind,
        ("0.self_attn.",),
    ),
    "lstm": ByHand(
        lstm, "cell", lambda m, x: x, lambda m, z: m.cell(z)[0], lambda m, out, _z: m.head(out[:, -1]), ("cell.",)
    ),
    "embedding": ByHand(
        transformer, "embed", lambda m, x: x, lambda m, z: m.embed(z), lambda m, out, _z: m.head(m.blocks(out)),
        ("embed.",),
    ),
}  # fmt: skip
WITH_INPUT = [name for name in BLOCKS if name != "embedding"]
WITH_PARAMETERS = [name for name in BLOCKS if name not in ("activation", "inplace_relu")]


class Part(nn.Module):
    def __init__(self, model: nn.Module, function: Callable[[Any, Any], Tensor]) -> None:
        super().__init__()
        self.model, self.function = model, function

    def forward(self, z: Any) -> Tensor:
        return self.function(self.model, z)


@dataclass(frozen=True)
class Reference:
    """Everything of one block, dense; matrices are functions, since some have no z or no W."""

    z: Any
    output: Tensor
    target: Tensor
    loss: float
    exact_z: Callable[[], Tensor]
    jacobian_z: Callable[[], Tensor]
    exact_w: Callable[[], Tensor]
    jacobian_w: Callable[[], Tensor]


@functools.cache
def reference(name: str) -> Reference:
    hand = BLOCKS[name]
    case = hand.case()
    model = in_state(case.model, case.batchnorm)
    z = hand.before(model, case.batch[0]).detach()
    part = Part(model, hand.block)
    named = {k: p for k, p in part.named_parameters() if k.removeprefix("model.").startswith(hand.params or ("-",))}
    theta = torch.cat([torch.zeros(0, dtype=torch.float64), *(p.detach().flatten() for p in named.values())])

    def block(vector: Tensor, z: Any) -> Tensor:
        pieces = torch.split(vector, [p.numel() for p in named.values()])
        values = {k: piece.view_as(p) for (k, p), piece in zip(named.items(), pieces, strict=True)}
        with sdpa_kernel(SDPBackend.MATH):
            return functional_call(part, values, (z,))

    output = block(theta, z).detach().requires_grad_()
    loss = case.loss(hand.behind(model, output, z), case.batch[1])
    target = (output - torch.autograd.grad(loss, output)[0]).detach()
    matching = lambda vector, z: (target - block(vector, z)).square().sum() / 2  # noqa: E731

    def square(h: Tensor) -> Tensor:
        return h.reshape(z.numel(), z.numel())

    return Reference(
        z,
        output.detach(),
        target,
        float(matching(theta, z)),
        lambda: square(hessian(lambda v: matching(theta, v), z)),
        lambda: jacobian(lambda v: block(theta, v), z).reshape(output.numel(), z.numel()),
        lambda: hessian(lambda v: matching(v, z), theta),
        lambda: jacobian(lambda v: block(v, z), theta).reshape(output.numel(), len(theta)),
    )


@functools.cache
def measured(name: str) -> LocalHessian:
    return local_hessian(BLOCKS[name].case().problem(), BLOCKS[name].name)


@pytest.mark.parametrize("name", BLOCKS)
def test_the_target_is_a_unit_gradient_step_and_the_loss_its_squared_distance(name: str) -> None:
    found, expected = measured(name), reference(name)
    assert not found.is_loss
    assert found.output_shape == tuple(expected.output.shape)
    assert_same(found.target, expected.target, 1e-12)
    assert_same(found.output_gradient, expected.output - expected.target, 1e-11)
    assert found.loss == pytest.approx(expected.loss, rel=1e-11)


@pytest.mark.parametrize("name", WITH_INPUT)
def test_h_z_is_the_second_derivative_in_the_input(name: str) -> None:
    found, expected = measured(name), reference(name)
    assert found.input_shape == tuple(expected.z.shape)
    assert_same(found.z.exact.dense(), expected.exact_z())
    j = expected.jacobian_z()
    assert_same(found.z.gauss_newton.dense(), j.T @ j)


@pytest.mark.parametrize("name", WITH_PARAMETERS)
def test_h_w_is_the_second_derivative_in_the_parameters(name: str) -> None:
    found, expected = measured(name), reference(name)
    assert_same(found.weight.exact.dense(), expected.exact_w())
    j = expected.jacobian_w()
    assert_same(found.weight.gauss_newton.dense(), j.T @ j)


@pytest.mark.parametrize("name", ["range", "residual_batch", "attention_layer", "lstm"])
def test_the_exact_matrix_is_not_the_gauss_newton_matrix_of_a_curved_block(name: str) -> None:
    """So that the tests above tell the two apart."""
    found = measured(name)
    for part in (found.z, found.weight):
        exact, gauss_newton = part.exact.dense(), part.gauss_newton.dense()
        assert float((exact - gauss_newton).norm()) > 1e-3 * float(exact.norm())


# the last block


def last_of_the_mlp() -> tuple[Case, Tensor, Callable[[Tensor, Tensor], Tensor]]:
    case = ARCHITECTURES["mlp_tanh"]()
    hidden = torch.tanh(case.model[0](case.batch[0])).detach()
    bias = case.model[2].bias.detach()
    return case, hidden, lambda w, z: z @ w.T + bias


def test_the_loss_of_the_last_block_is_the_loss_itself() -> None:
    case, z, block = last_of_the_mlp()
    w = case.model[2].weight.detach()
    found = local_hessian(case.problem(), "2")
    assert found.is_loss
    ell = lambda w, z: F.cross_entropy(block(w, z), case.batch[1])  # noqa: E731
    assert found.loss == pytest.approx(float(ell(w, z)), rel=1e-12)
    of_z = hessian(lambda v: ell(w, v), z).reshape(z.numel(), z.numel())
    of_w = hessian(lambda v: ell(v, z), w).reshape(w.numel(), w.numel())
    for operator, expected in (
        (found.z.exact, of_z),
        (found.z.gauss_newton, of_z),  # F is linear in each, so Jᵀ(∇²ℓ)J is the Hessian
        (found.weight.exact.layer("2.weight"), of_w),
        (found.weight.gauss_newton.layer("2.weight"), of_w),
    ):
        assert_same(operator.dense(), expected)


def test_the_last_block_can_be_judged_by_the_squared_distance_too() -> None:
    case, z, block = last_of_the_mlp()
    w = case.model[2].weight.detach()
    found = local_hessian(case.problem(), "2", last="squared")
    assert not found.is_loss
    p = block(w, z).softmax(1)
    gradient = (p - F.one_hot(case.batch[1], CLASSES)) / len(z)
    assert found.loss == pytest.approx(float(gradient.square().sum() / 2), rel=1e-11)
    assert_same(found.z.exact.dense(), torch.block_diag(*[w.T @ w] * len(z)))
    assert_same(found.target, block(w, z) - gradient, 1e-12)


@pytest.mark.parametrize("name", ["mlp_relu", "cnn_batch", "lstm", "multihead_attention"])
def test_the_whole_model_as_a_block_has_the_hessian_and_the_ggn(name: str) -> None:
    case = ARCHITECTURES[name]()
    found = local_hessian(case.problem(), "")
    assert_same(found.weight.exact.dense(), dense_hessian(case.model, case.loss, case.batch, case.batchnorm))
    assert_same(found.weight.gauss_newton.dense(), dense_ggn(case.model, case.loss, case.batch, case.batchnorm))


def test_an_inplace_activation_behind_makes_a_block_not_the_last() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(4, CLASSES), nn.ReLU(inplace=True)))
    problem = wc.Problem(model, nn.CrossEntropyLoss(), (normal(6, 4), integers(CLASSES, 6)))
    assert not local_hessian(problem, "0").is_loss
    assert local_hessian(problem, "1").is_loss


# spectra


@pytest.mark.parametrize("kind", ["exact", "gauss_newton"])
@pytest.mark.parametrize("part", ["z", "weight"])
@pytest.mark.parametrize("name", ["residual_batch", "range"])
def test_every_spectral_tool_agrees_with_numpy_on_the_dense_matrix(name: str, part: str, kind: str) -> None:
    hand = BLOCKS[name]
    operator = getattr(getattr(local_hessian(hand.case().problem(), hand.name), part), kind)
    expected = reference(name)
    if kind == "exact":
        matrix = (expected.exact_z if part == "z" else expected.exact_w)().numpy()
    else:
        j = (expected.jacobian_z if part == "z" else expected.jacobian_w)().numpy()
        matrix = j.T @ j
    values = np.linalg.eigvalsh(matrix)
    spectrum = wc.spectrum(operator)
    assert np.allclose(spectrum.values.numpy(), values, atol=1e-10 * np.abs(values).max(), rtol=0)
    ends = wc.eigenvalues(operator, which="both", tol=1e-8)
    assert float(ends.values[-1]) == pytest.approx(values[-1], rel=1e-7)
    trace = wc.trace(operator, max_matvecs=60)
    assert trace.value == pytest.approx(values.sum(), abs=5 * trace.error + 1e-10 * np.abs(values).sum())
    # two Lanczos steps make a probe's quadrature exact for the second moment, uᵀA²u of its unit vector u
    density = wc.density(operator, probes=8, steps=6)
    second = (density.weights * density.nodes**2).sum(1)
    error = float(second.std()) / len(second) ** 0.5
    assert float(second.mean()) == pytest.approx((values**2).mean(), abs=5 * error)
    assert values[0] - 1e-9 <= float(density.nodes.min()) <= float(density.nodes.max()) <= values[-1] + 1e-9


def test_the_spectrum_of_a_gauss_newton_matrix_comes_from_its_smaller_side() -> None:
    found = local_hessian(ARCHITECTURES["resnet_batch"]().problem(), "0")
    assert wc.spectrum(found.z.gauss_newton).side == "gram"  # 128 inputs, 32 outputs
    assert wc.spectrum(found.weight.gauss_newton.layer("0.bn1")).side == "dense"
    assert wc.spectrum(found.z.exact).side == "dense"
    with pytest.raises(wc.WellcondError, match=r"128 columns and its factor 32 rows"):
        wc.spectrum(found.z.gauss_newton, limit=10)


def test_products_take_vectors_and_matrices_and_are_counted() -> None:
    operator = local_hessian(ARCHITECTURES["mlp_tanh"]().problem(), "[0:2]").z.exact
    matrix, v = operator.dense(), normal(operator.shape[0], 3, seed=5)
    assert operator.matvecs == operator.shape[0]
    assert_same(operator @ v, matrix @ v)
    assert_same(operator @ v[:, 1], matrix @ v[:, 1])
    assert operator.matvecs == operator.shape[0] + 4
    with pytest.raises(ValueError, match=r"cannot multiply H_z of '\[0:2\]' of shape \(24, 24\) with \(3,\)"):
        operator @ v[0]
    with pytest.raises(wc.WellcondError, match="24 rows, above the limit of 10"):
        operator.dense(limit=10)


def test_a_layer_of_the_weights_is_the_diagonal_block() -> None:
    found = local_hessian(ARCHITECTURES["transformer"]().problem(), "blocks.0")
    sizes = {name: p.numel() for name, p in found.call.params.items()}
    begin = sum(n for name, n in list(sizes.items())[: list(sizes).index("blocks.0.qkv.weight")])
    end = begin + sizes["blocks.0.qkv.weight"] + sizes["blocks.0.qkv.bias"]
    assert found.weight.names == tuple(sizes)
    for operator in (found.weight.exact, found.weight.gauss_newton):
        assert_same(operator.layer("blocks.0.qkv").dense(), operator.dense()[begin:end, begin:end], 1e-12)
        assert operator.layer("blocks.0.qkv").layer("blocks.0.qkv.bias").names == ("blocks.0.qkv.bias",)
        with pytest.raises(wc.WellcondError, match="'head'"):
            operator.layer("head")


def test_a_float32_model_has_float32_operators() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    problem = wc.Problem(case.model.float(), case.loss, (case.batch[0].float(), case.batch[1]))
    found = local_hessian(problem, "[0:2]")
    assert found.z.exact.dtype == found.weight.gauss_newton.dtype == torch.float32
    assert_same(found.z.exact.dense(), reference("range").exact_z(), 1e-5)
    assert_same(found.weight.exact.dense(), reference("range").exact_w(), 1e-5)
