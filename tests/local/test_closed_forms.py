"""The formulas of zhang2018 for linear, convolutional, normalized and residual blocks, against what they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from references import assert_same
from torch import Tensor, nn
from torch.autograd.functional import hessian, jacobian
from torch.nn.utils import prune
from zoo import ARCHITECTURES, CLASSES, Case, classifier, normal

import wellcond as wc
from wellcond.local import closed_forms as forms
from wellcond.local.local_hessian import LocalHessian, local_hessian

CONVOLUTIONS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: nn.Conv2d(2, 4, 3),
    "strided": lambda: nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False),
    "uneven": lambda: nn.Conv2d(2, 4, (2, 3), stride=(1, 2), padding=(0, 2)),
    "dilated": lambda: nn.Conv2d(2, 4, 2, dilation=(2, 3)),
    "grouped": lambda: nn.Conv2d(2, 4, 3, groups=2),
    "same": lambda: nn.Conv2d(2, 4, 2, padding="same"),
    "circular": lambda: nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"),
    "reflect": lambda: nn.Conv2d(2, 4, 3, padding=2, padding_mode="reflect", groups=2),
    "replicate": lambda: nn.Conv2d(2, 4, 3, padding=1, padding_mode="replicate", stride=2),
    "one_dimension": lambda: nn.Conv1d(2, 4, 3, padding=1),
    "three_dimensions": lambda: nn.Conv3d(2, 4, 2, stride=2),
}
SPACE = {nn.Conv1d: (5,), nn.Conv2d: (5, 6), nn.Conv3d: (3, 4, 2)}


class Head(nn.Module):
    """Everything behind the block: flattened, bent and mixed by fixed numbers."""

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.tanh(x.flatten(1))
        wave = torch.arange(1.0, flat.shape[1] * CLASSES + 1, dtype=x.dtype).sin()
        return flat @ wave.reshape(-1, CLASSES)


def with_head(build: Callable[[], nn.Module], inputs: Tensor, batchnorm: str = "batch") -> Case:
    return classifier(lambda: nn.Sequential(build(), Head()), inputs, len(inputs), batchnorm)


def convolution(name: str) -> tuple[Case, Any, Tensor]:
    build = CONVOLUTIONS[name]
    inputs = normal(3, 2, *SPACE[type(build())])
    case = with_head(build, inputs)
    return case, case.model[0], inputs


def test_a_linear_layers_matrices_are_those_of_eqs_8_and_9() -> None:
    z = normal(6, 4)
    case = with_head(lambda: nn.Linear(4, 5), z)
    found, w = local_hessian(case.problem(), "0"), case.model[0].weight.detach()
    form = found.closed_form()
    assert_same(form.z.blocks[0], w.T @ w, 1e-14)
    assert_same(form.weight.blocks[0], sum(torch.outer(x, x) for x in z), 1e-14)
    assert (form.z.copies, form.weight.copies, form.name) == (6, 5, "0.weight")
    assert form.z.shape == (24, 24)
    assert_same(form.z.dense(), found.z.exact.dense(), 1e-12)
    assert_same(form.weight.dense(), found.weight.exact.layer("0.weight").dense(), 1e-12)


def test_a_linear_layer_on_tokens_meets_every_token() -> None:
    found = local_hessian(with_head(lambda: nn.Linear(4, 5), normal(2, 3, 4)).problem(), "0")
    form = found.closed_form()
    assert_same(form.z.dense(), found.z.exact.dense(), 1e-12)
    assert_same(form.weight.dense(), found.weight.exact.layer("0.weight").dense(), 1e-12)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_the_matrix_of_a_convolution_multiplies_like_it(name: str) -> None:
    _, conv, a = convolution(name)
    matrix = forms.convolution_matrix(conv, conv.weight.detach(), a.shape[1:])
    h = torch.einsum("otd,nd->not", matrix, a.flatten(1)).reshape(conv(a).shape)
    bias = 0 if conv.bias is None else conv.bias.detach().reshape(-1, *[1] * len(conv.kernel_size))
    assert_same(h + bias, conv(a), 1e-13)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolutions_matrices_are_those_of_eqs_41_and_43(name: str) -> None:
    case, _, _ = convolution(name)
    found = local_hessian(case.problem(), "0")
    form = found.closed_form()
    assert_same(form.z.dense(), found.z.exact.dense(), 1e-12)
    assert_same(form.weight.dense(), found.weight.exact.layer("0.weight").dense(), 1e-12)


@pytest.mark.parametrize("name", ["strided", "grouped"])
def test_the_weight_matrix_of_a_convolution_sums_over_examples_and_positions(name: str) -> None:
    """Eq. 41 by loops: patches cut out one by one."""
    _, conv, a = convolution(name)
    padded = F.pad(a, [conv.padding[0]] * 4)
    share = 2 // conv.groups
    expected = []
    for group in range(conv.groups):
        total: Any = 0
        for example in padded[:, group * share : (group + 1) * share]:
            for u in range(0, example.shape[1] - 2, conv.stride[0]):
                for v in range(0, example.shape[2] - 2, conv.stride[1]):
                    patch = example[:, u : u + 3, v : v + 3].flatten()
                    total = total + torch.outer(patch, patch)
        expected.append(total)
    assert_same(forms.convolution_w(conv, a), torch.stack(expected), 1e-13)


# batch normalization

NORMALIZED: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)), normal(6, 4)),
    "not_affine": (lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5, affine=False)), normal(6, 4)),
    "large_epsilon": (lambda: nn.Sequential(nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5, eps=0.7)), normal(6, 4)),
    "conv": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3, stride=2), nn.BatchNorm2d(4)), normal(3, 2, 5, 6)),
    "grouped_conv": (lambda: nn.Sequential(nn.Conv1d(2, 4, 3, groups=2), nn.BatchNorm1d(4)), normal(3, 2, 5)),
    "no_running_statistics": (
        lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5, track_running_stats=False)), normal(6, 4),
    ),
    "alone": (lambda: nn.BatchNorm1d(4), normal(6, 4)),
    "alone_on_images": (lambda: nn.BatchNorm2d(2), normal(3, 2, 2, 3)),
}  # fmt: skip


def normalized(name: str, batchnorm: str) -> LocalHessian:
    build, inputs = NORMALIZED[name]
    return local_hessian(with_head(build, inputs, batchnorm).problem(), "0")


@pytest.mark.parametrize("batchnorm", ["batch", "running"])
@pytest.mark.parametrize("name", NORMALIZED)
def test_closed_forms_through_batchnorm_are_the_gauss_newton_matrices(name: str, batchnorm: str) -> None:
    found = normalized(name, batchnorm)
    form = found.closed_form()
    assert_same(form.z.dense(), found.z.gauss_newton.dense(), 1e-10)
    assert form.weight is not None
    assert_same(form.weight.dense(), found.weight.gauss_newton.layer(form.name).dense(), 1e-10)


@pytest.mark.parametrize("name", ["linear", "not_affine", "large_epsilon"])
def test_eqs_17_and_18_hold_the_batch_statistics_fixed(name: str) -> None:
    build, z = NORMALIZED[name]
    case = with_head(build, z)
    linear, norm = case.model[0]
    form = local_hessian(case.problem(), "0").closed_form(statistics="constant")
    w = linear.weight.detach()
    h = linear(z).detach()
    gamma = 1.0 if norm.weight is None else norm.weight.detach()
    scale = gamma / (h.var(0, correction=0) + norm.eps).sqrt()
    assert_same(form.z.blocks[0], sum(s**2 * torch.outer(row, row) for s, row in zip(scale, w, strict=True)), 1e-13)
    assert form.z.copies == len(z)
    assert_same(form.weight.blocks, torch.stack([s**2 * z.T @ z for s in scale]), 1e-13)


def test_eqs_17_and_18_are_exact_for_running_statistics() -> None:
    found = normalized("conv", "running")
    form = found.closed_form(statistics="constant")
    assert_same(form.z.dense(), found.z.gauss_newton.dense(), 1e-11)
    assert_same(form.weight.dense(), found.weight.gauss_newton.layer("0.0.weight").dense(), 1e-11)


def test_what_eq_17_leaves_out_of_an_example_vanishes_as_one_over_the_batch() -> None:
    """The diagonal blocks of the true H_z differ from eq. 17 by terms of order 1/m."""
    errors = []
    for m in (16, 64, 256):
        case = with_head(lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)), normal(m, 4))
        found = local_hessian(case.problem(), "0")
        true, printed = found.closed_form().z.dense(), found.closed_form("constant").z.blocks[0]
        blocks = true.reshape(m, 4, m, 4).diagonal(dim1=0, dim2=2).movedim(-1, 0)
        errors.append(float((blocks.mean(0) - printed).norm() / printed.norm()))
    assert errors[1] == pytest.approx(errors[0] / 4, rel=0.2)
    assert errors[2] == pytest.approx(errors[1] / 4, rel=0.2)


def test_remark_2_the_scale_of_the_weights_leaves_h_z_alone_under_batchnorm() -> None:
    case = with_head(lambda: nn.Sequential(nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5, eps=1e-30)), normal(6, 4))
    before = local_hessian(case.problem(), "0").closed_form("constant").z.blocks
    with torch.no_grad():
        case.model[0][0].weight.mul_(7.0)
    assert_same(local_hessian(case.problem(), "0").closed_form("constant").z.blocks, before, 1e-12)


# residual blocks


class Residual(nn.Module):
    """z + φ(z)."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4))

    def forward(self, z: Tensor) -> Tensor:
        return z + self.inside(z)


def test_a_residual_blocks_matrix_is_that_of_eq_13() -> None:
    z = normal(3, 4)
    case = with_head(Residual, z)
    found, block = local_hessian(case.problem(), "0"), case.model[0]
    change = found.target - block(z).detach()
    for n in range(3):
        rows = slice(4 * n, 4 * n + 4)
        j = jacobian(lambda v: block.inside(v), z[n])
        assert_same(forms.residual_z(j), found.z.gauss_newton.dense()[rows, rows], 1e-12)
        curvature = hessian(lambda v, n=n: (block(v) * change[n]).sum(), z[n])
        assert_same(forms.residual_z(j, curvature), found.z.exact.dense()[rows, rows], 1e-12)


# which blocks have one


@pytest.mark.parametrize(
    ("architecture", "block", "message"),
    [
        ("mlp_tanh", "1", r"block '1' \(Tanh\) has none"),
        ("cnn_batch", "[0:3]", r"block '\[0:3\]' \(Conv2d → BatchNorm2d → ReLU\) has none"),
        ("resnet_batch", "0", r"block '0' \(Block\) has none"),
        ("transformer", "embed", r"block 'embed' \(Embedding\) has none"),
        ("mlp_tanh", "2", "block '2' is judged by the loss itself"),
    ],
)
def test_blocks_without_a_closed_form_say_so(architecture: str, block: str, message: str) -> None:
    found = local_hessian(ARCHITECTURES[architecture]().problem(), block)
    with pytest.raises(wc.WellcondError, match=message):
        found.closed_form()
    assert "closed form none" in str(found)


def test_a_linear_layer_on_tokens_before_batchnorm_has_none() -> None:
    """The norm takes the tokens for its features."""
    case = with_head(lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(3)), normal(6, 3, 4))
    with pytest.raises(wc.WellcondError, match="has none"):
        local_hessian(case.problem(), "0").closed_form()


REPARAMETRIZED: dict[str, Callable[[Any], Any]] = {
    "pruned": lambda layer: prune.random_unstructured(layer, "weight", 0.5),
    "spectral_norm": nn.utils.spectral_norm,
    "weight_norm": nn.utils.weight_norm,
    "new_weight_norm": nn.utils.parametrizations.weight_norm,
}


@pytest.mark.parametrize("with_norm", [False, True])
@pytest.mark.parametrize("name", REPARAMETRIZED)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_a_layer_that_computes_its_weight_has_none(name: str, with_norm: bool) -> None:
    layer = lambda: REPARAMETRIZED[name](nn.Linear(4, 5))  # noqa: E731
    build = (lambda: nn.Sequential(layer(), nn.BatchNorm1d(5))) if with_norm else layer
    found = local_hessian(with_head(build, normal(6, 4)).problem(), "0")
    with pytest.raises(wc.WellcondError, match="has none"):
        found.closed_form()
    assert "closed form none" in str(found)


@pytest.mark.parametrize("build", [lambda: nn.Linear(4, 5), NORMALIZED["linear"][0]])
def test_a_layer_with_a_hook_that_changes_what_it_computes_is_refused(build: Callable[[], nn.Module]) -> None:
    case = with_head(build, normal(6, 4))
    case.model[0].register_forward_hook(lambda _m, _args, output: 3 * output)
    with pytest.raises(wc.WellcondError, match=r"block '0' .* does not compute what its type says"):
        local_hessian(case.problem(), "0").closed_form()


def test_the_last_block_has_a_closed_form_under_the_squared_loss() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    found = local_hessian(case.problem(), "2", last="squared")
    assert_same(found.closed_form().z.dense(), found.z.exact.dense(), 1e-12)


def test_a_range_of_a_linear_layer_and_its_norm_has_a_closed_form_and_a_frozen_weight_none() -> None:
    case = ARCHITECTURES["cnn_batch"]()
    found = local_hessian(case.problem(), "[0:2]")
    assert found.closed_form().name == "0.weight"
    assert_same(found.closed_form().z.dense(), found.z.gauss_newton.dense(), 1e-10)
    case.model[0].weight.requires_grad_(False)
    assert local_hessian(case.problem(), "[0:2]").closed_form().weight is None


def test_only_two_meanings_of_the_statistics_are_known() -> None:
    found = local_hessian(ARCHITECTURES["cnn_batch"]().problem(), "1")
    with pytest.raises(ValueError, match="statistics is 'frozen'"):
        found.closed_form("frozen")
