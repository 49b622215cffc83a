"""Targets, losses and local Hessians of every kind of block, against ℓ_b written out by hand in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from block_cases import (
    BLOCKS,
    CASES,
    VIEWS,
    WITHOUT_INPUT,
    WITHOUT_PARAMETERS,
    Reference,
    Wired,
    X,
    cell,
    checkpointed,
    gauss_newton_by_hand,
    measured,
    reference,
    wired,
)
from references import assert_same, dense_ggn, dense_hessian
from suites import assert_operator_conforms
from torch import Tensor, nn
from torch.autograd.functional import hessian
from zoo import ARCHITECTURES, CLASSES, Case, classifier, integers, normal, seeded, split

import wellcond as wc
from wellcond.measurements.blocks.back_matching import back_matching
from wellcond.measurements.blocks.local_hessian import LocalHessian, local_hessian

MATRICES = [(part, kind) for part in ("z", "weight") for kind in ("exact", "gauss_newton")]
CURVED = ("range", "residual_batch", "attention_layer", "lstm")
"""Blocks whose exact matrix is not the Gauss-Newton matrix, so that a test tells the two apart."""
every_matrix = pytest.mark.parametrize(("part", "kind"), MATRICES)


def operator_of(result: LocalHessian, part: str, kind: str) -> Any:
    return getattr(getattr(result, part), kind)


@pytest.mark.parametrize("name", BLOCKS)
def test_target_loss_and_second_derivatives_of_a_block_are_those_by_hand(name: str) -> None:
    result, expected = measured(name), reference(name)
    assert not result.is_loss
    assert result.output_shape == tuple(expected.output.shape)
    assert_same(result.call.output, expected.output, 1e-13)
    assert_same(result.target, expected.target, 1e-12)
    assert_same(result.output_gradient, expected.output - expected.target, 1e-11)
    assert result.loss == pytest.approx(float(expected.loss(expected.theta, expected.z)), rel=1e-11)
    if name in WITHOUT_INPUT:
        assert result.input_shape is None
        assert "no floating-point tensor" in str(result)
        with pytest.raises(wc.WellcondError, match="'embed' receives no floating-point tensor"):
            _ = result.z
    else:
        assert result.input_shape == tuple(expected.z.shape)
        assert_same(result.call.z, expected.z, 1e-14)
        assert_matrices(result, expected, "z", is_curved=name in CURVED)
    if name in WITHOUT_PARAMETERS:
        assert "none trainable" in str(result)
        with pytest.raises(wc.WellcondError, match="has no trainable parameters"):
            _ = result.weight
    else:
        params = dict(result.problem.model.named_parameters())
        assert result.weight.names == tuple(key for key in params if key.startswith(BLOCKS[name].params))
        assert_matrices(result, expected, "weight", is_curved=name in CURVED)


def assert_matrices(result: LocalHessian, expected: Reference, part: str, is_curved: bool) -> None:
    v = normal(getattr(result, part).exact.shape[0], 16)
    exact, gauss_newton = (operator_of(result, part, kind) @ v for kind in ("exact", "gauss_newton"))
    assert_same(exact, expected.matrix(part, "exact") @ v)
    assert_same(gauss_newton, expected.matrix(part, "gauss_newton") @ v)
    if is_curved:
        assert float((exact - gauss_newton).norm()) > 1e-3 * float(exact.norm())


@pytest.mark.parametrize("name", VIEWS)
def test_what_is_written_over_an_output_in_place_leaves_its_target_alone(name: str) -> None:
    result = measured(name)
    assert float(result.output_gradient.norm()) > 1e-3
    assert "note" not in str(result)
    if name in ("linear_on_tokens", "flatten", "frozen_before_flatten"):  # the others are no modules, or passed by
        targets = back_matching(CASES[VIEWS[name].case]().problem()).targets
        assert_same(targets[VIEWS[name].name], reference(name).target, 1e-12)


# the last block, and whole models


def test_the_last_block_has_the_loss_itself_or_the_squared_distance() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    z = torch.tanh(case.model[0](case.batch[0])).detach()
    w, bias = case.model[2].weight.detach(), case.model[2].bias.detach()
    ell = lambda w, z: F.cross_entropy(z @ w.T + bias, case.batch[1])  # noqa: E731
    local = local_hessian(case.problem(), "2")
    assert local.is_loss
    assert "the loss itself" in str(local)
    assert local.loss == pytest.approx(float(ell(w, z)), rel=1e-12)
    of_z = hessian(lambda v: ell(w, v), z).reshape(z.numel(), z.numel())
    of_w = hessian(lambda v: ell(v, z), w).reshape(w.numel(), w.numel())
    for kind in ("exact", "gauss_newton"):  # F is linear in each, so Jᵀ(∇²ℓ)J is the Hessian
        assert_same(operator_of(local, "z", kind).dense(), of_z)
        assert_same(operator_of(local, "weight", kind).layer("2.weight").dense(), of_w)

    squared = local_hessian(case.problem(), "2", last="squared")
    assert not squared.is_loss
    output = z @ w.T + bias
    gradient = (output.softmax(1) - F.one_hot(case.batch[1], CLASSES)) / len(z)
    assert squared.loss == pytest.approx(float(gradient.square().sum() / 2), rel=1e-11)
    assert_same(squared.z.exact.dense(), torch.block_diag(*[w.T @ w] * len(z)))
    assert_same(squared.target, output - gradient, 1e-12)
    with pytest.raises(ValueError, match="last is 'mse'"):
        local_hessian(case.problem(), "0", last="mse")


@pytest.mark.parametrize("name", ["mlp_relu", "cnn_batch", "lstm", "multihead_attention", "tied", "checkpointed"])
def test_the_whole_model_as_a_block_has_the_hessian_and_the_ggn(name: str) -> None:
    case = CASES[name]()
    plain = checkpointed(None) if name == "checkpointed" else case
    local = local_hessian(case.problem(), "")
    assert_same(local.weight.exact.dense(), dense_hessian(plain.model, case.loss, case.batch, case.batchnorm))
    assert_same(local.weight.gauss_newton.dense(), dense_ggn(plain.model, case.loss, case.batch, case.batchnorm))


def test_a_block_before_an_inplace_activation_is_not_the_last() -> None:
    problem = classifier(lambda: nn.Sequential(nn.Linear(4, CLASSES), nn.ReLU(inplace=True)), normal(6, 4), 6).problem()
    assert not local_hessian(problem, "0").is_loss
    assert local_hessian(problem, "1").is_loss


# outputs that the loss sees, or does not


def first_of_two(m: Any, x: Tensor) -> Tensor:
    """The second output leads to the first, and only there."""
    features = m.inner(x)
    return torch.tanh(features), features


def output_and_state(m: Any, x: Tensor) -> Tensor:
    out, (_, c) = m.cell(x)
    return m.head(out[:, -1] + c[0])


NOTED: dict[str, tuple[Callable[[], Case], str, bool]] = {
    "state": (lambda: wired(lambda: cell(nn.LSTM), output_and_state, normal(4, 3, 2)), "cell", True),
    "no_state": (ARCHITECTURES["lstm"], "cell", False),
    "first_of_two": (
        lambda: wired(
            lambda: {"two": Wired({"inner": nn.Linear(4, CLASSES)}, first_of_two)}, lambda m, x: m.two(x)[0], X
        ), "two", False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTED)
def test_other_outputs_that_the_loss_depends_on_are_noted(name: str) -> None:
    case, block, is_noted = NOTED[name]
    local = local_hessian(case().problem(), block)
    assert local.call.is_used
    assert ("the loss also depends on other outputs of the block" in str(local)) == is_noted


# operators


@every_matrix
def test_local_operators_are_linear_operators(part: str, kind: str) -> None:
    operator = operator_of(local_hessian(ARCHITECTURES["mlp_tanh"]().problem(), "[0:2]"), part, kind)
    assert_operator_conforms(operator, reference("range").matrix(part, kind))
    assert repr(operator).endswith(f"{'H_z' if part == 'z' else 'H_W'} of '[0:2]', shape={operator.shape})")


@pytest.mark.slow
def test_the_spectrum_of_a_gauss_newton_matrix_comes_from_its_smaller_side() -> None:
    local = local_hessian(ARCHITECTURES["resnet_batch"]().problem(), "0")
    for operator, side in (
        (local.z.gauss_newton, "gram"),  # 128 inputs, 32 outputs
        (local.weight.gauss_newton, "gram"),
        (local.weight.gauss_newton.layer("0.bn1"), "dense"),
        (local.z.exact, "dense"),
    ):
        spectrum = wc.spectrum(operator)
        assert spectrum.side == side
        assert_same(spectrum.values, torch.linalg.eigvalsh(operator.dense()), 1e-10)
    with pytest.raises(wc.WellcondError, match=r"128 columns and its factor 32 rows"):
        wc.spectrum(local.z.gauss_newton, limit=10)


def test_products_count_as_a_share_of_the_models_passes() -> None:
    problem = ARCHITECTURES["cnn_batch"]().problem()
    whole, part = (local_hessian(problem, name).weight.exact for name in ("", "[0:2]"))
    before = problem.cost
    _ = whole @ torch.ones(whole.shape[0], 3)
    after = problem.cost
    _ = part @ torch.ones(part.shape[0], 3)
    assert (after - before).matvecs == (problem.cost - after).matvecs == 3
    # all of the model's operations but those of the loss, and two products' worth of each
    assert 0.5 * 6 < (after - before).u < 6
    assert 0 < (problem.cost - after).u < 0.5 * (after - before).u


@pytest.mark.slow
def test_a_layer_of_the_weights_is_the_diagonal_block() -> None:
    case = ARCHITECTURES["transformer"]()
    case.model.blocks[0].norm1.bias.requires_grad_(False)
    local = local_hessian(case.problem(), "blocks.0")
    sizes = {name: p.numel() for name, p in local.call.params.items()}
    begin = sum(n for name, n in list(sizes.items())[: list(sizes).index("blocks.0.qkv.weight")])
    end = begin + sizes["blocks.0.qkv.weight"] + sizes["blocks.0.qkv.bias"]
    assert local.weight.names == tuple(sizes)
    assert "blocks.0.norm1.bias" not in sizes
    for operator in (local.weight.exact, local.weight.gauss_newton):
        assert_same(operator.layer("blocks.0.qkv").dense(), operator.dense()[begin:end, begin:end], 1e-12)
        assert operator.layer("blocks.0.qkv").layer("blocks.0.qkv.bias").names == ("blocks.0.qkv.bias",)
        for outside, message in (("head", "'head'"), ("blocks.0.norm1.bias", "frozen")):
            with pytest.raises(wc.WellcondError, match=message):
                operator.layer(outside)


def test_a_float32_model_has_float32_operators() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    problem = wc.Problem(case.model.float(), case.loss, (case.batch[0].float(), case.batch[1]))
    local = local_hessian(problem, "[0:2]")
    assert local.z.exact.dtype == local.weight.gauss_newton.dtype == torch.float32
    for part in ("z", "weight"):
        assert_same(operator_of(local, part, "exact").dense(), reference("range").matrix(part, "exact"), 1e-5)


def test_operators_work_in_inference_mode() -> None:
    problem = ARCHITECTURES["mlp_tanh"]().problem()
    again, plain = (local_hessian(problem, name) for name in ("[0:2]", "0"))
    with torch.inference_mode():
        local = local_hessian(problem, "[0:2]")
        exact, gauss_newton = local.z.exact.dense(), local.weight.gauss_newton.dense()
        largest = wc.eigenvalues(local.z.exact).values
        values = wc.spectrum(local.z.gauss_newton).values
        form = local_hessian(problem, "0").closed_form().z.dense()
    assert_same(exact, again.z.exact.dense(), 1e-14)
    assert_same(gauss_newton, again.weight.gauss_newton.dense(), 1e-14)
    assert float(largest[-1]) == pytest.approx(float(torch.linalg.eigvalsh(exact)[-1]), rel=1e-2)
    assert_same(values, torch.linalg.eigvalsh(again.z.gauss_newton.dense()), 1e-10)
    assert_same(form, plain.z.gauss_newton.dense(), 1e-12)


# dropout


def test_a_block_sees_the_dropout_masks_of_its_pass() -> None:
    model = seeded(
        lambda: nn.Sequential(
            nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 5), nn.Tanh(), nn.Dropout(0.3), nn.Linear(5, 3)
        )
    )
    x, y = normal(6, 4), integers(CLASSES, 6)
    local = local_hessian(wc.Problem(model, nn.CrossEntropyLoss(), (x, y), dropout=7), "[2:5]")
    with torch.random.fork_rng():
        torch.manual_seed(7)
        first = F.dropout(torch.ones(6, 6, dtype=torch.float64), 0.5)
        second = F.dropout(torch.ones(6, 5, dtype=torch.float64), 0.3)
    z = (model[0](x) * first).detach()
    block = lambda z: torch.tanh(model[2](z)) * second  # noqa: E731
    out = block(z).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(model[5](out), y), out)
    assert_same(local.target, out - gradient, 1e-12)
    assert_same(local.z.gauss_newton.dense(), gauss_newton_by_hand(block, z), 1e-12)
    off = local_hessian(wc.Problem(model, nn.CrossEntropyLoss(), (x, y)), "[2:5]")
    assert_same(off.z.gauss_newton.dense(), gauss_newton_by_hand(lambda z: torch.tanh(model[2](z)), model[0](x)), 1e-12)


# batches and later changes


def test_the_first_batch_is_taken_and_said() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    parts = split(case.batch, [4, 2])
    several, one = (local_hessian(case.problem(batches=batches), "0") for batches in (parts, parts[:1]))
    assert several.input_shape == (4, 4)
    assert several.loss == one.loss
    assert "the first batch" in str(several)
    assert "the first batch" not in str(one)
    assert (one.cost.forwards, one.cost.backwards, several.cost.u) == (1, 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("through_data", [False, True])
@pytest.mark.parametrize(("name", "block"), [("cnn_running", "[0:2]"), ("checkpointed", "1")])
def test_later_changes_to_the_model_do_not_change_a_local_hessian(name: str, block: str, through_data: bool) -> None:
    unchanged, changed = checkpointed(None) if name == "checkpointed" else CASES[name](), copy.deepcopy(CASES[name]())
    expected, result = (local_hessian(case.problem(), block) for case in (unchanged, changed))
    matrices = {matrix: operator_of(expected, *matrix).dense() for matrix in MATRICES}
    early = {matrix: operator_of(local_hessian(changed.problem(), block), *matrix) for matrix in MATRICES}
    for matrix, dense in matrices.items():
        v = normal(len(dense), 16)
        assert_same(early[matrix] @ v, dense @ v, 1e-12)
    tensors = [*changed.model.parameters(), *changed.model.buffers(), changed.batch[0]]
    with torch.no_grad():
        for t in tensors:
            if through_data:
                t.data = t.data + 1
            else:
                t.add_(1)
    moved = [t.clone() for t in tensors]
    for matrix, dense in matrices.items():
        v = normal(len(dense), 16)
        assert_same(early[matrix] @ v, dense @ v, 1e-12)
        assert_same(operator_of(result, *matrix) @ v, dense @ v, 1e-12)
        if "gauss_newton" in matrix:
            assert_same(wc.spectrum(early[matrix]).values, torch.linalg.eigvalsh(dense), 1e-10)
    if block == "[0:2]":
        assert_same(result.closed_form().z.blocks, expected.closed_form().z.blocks, 1e-12)
    assert all(torch.equal(t, after) for t, after in zip(tensors, moved, strict=True))


def test_rows_and_text_say_what_was_measured() -> None:
    local = local_hessian(ARCHITECTURES["cnn_batch"]().problem(), "[0:2]")
    rows = {row.quantity: row for row in local.rows(3)}
    assert {(row.step, row.layer) for row in rows.values()} == {(3, "[0:2]")}
    assert rows["back_matching_loss"].value == local.loss
    change = float(local.output_gradient.norm() / local.call.output.detach().norm())
    assert rows["target_change"].value == pytest.approx(change)
    assert rows["input_entries"].value == 160
    assert rows["parameters"].value == 63
    text = str(local)
    for part in (
        "(5, 2, 4, 4) → H_z of side 160",
        "H_W of side 63",
        "batch statistics",
        "eqs. 17",
        "cost: 1 u",
        "5 examples",
    ):
        assert part in text
    assert repr(local) == f"LocalHessian('[0:2]', Conv2d → BatchNorm2d, loss={local.loss:.3g})"
    assert "12, 0.self_attn.in_proj_weight to 0.norm2.bias → H_W" in str(measured("encoder_layer"))
