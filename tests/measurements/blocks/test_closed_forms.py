"""The formulas of zhang2018 for linear, convolutional, normalized and residual blocks, against what they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from references import assert_same
from torch import Tensor, nn
from torch.nn.utils import prune
from zoo import ARCHITECTURES, CLASSES, Case, classifier, normal

import wellcond as wc
from wellcond.measurements.blocks.closed_forms import ClosedForm
from wellcond.measurements.blocks.local_hessian import LocalHessian, local_hessian

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
    """Everything after the block: flattened, bent and mixed by fixed numbers."""

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.tanh(x.flatten(1))
        wave = torch.arange(1.0, flat.shape[1] * CLASSES + 1, dtype=x.dtype).sin()
        return flat @ wave.reshape(-1, CLASSES)


def with_head(build: Callable[[], nn.Module], inputs: Tensor, batchnorm: str = "batch") -> Case:
    return classifier(lambda: nn.Sequential(build(), Head()), inputs, len(inputs), batchnorm)


LAYERS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "linear": (lambda: nn.Linear(4, 5), normal(6, 4)),
    "linear_on_tokens": (lambda: nn.Linear(4, 5), normal(2, 3, 4)),
    **{name: (build, normal(3, 2, *SPACE[type(build())])) for name, build in CONVOLUTIONS.items()},
}
"""Linear in z and in W: their Gauss-Newton matrices are their Hessians."""
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


def measured(build: Callable[[], nn.Module], inputs: Tensor, batchnorm: str = "batch") -> LocalHessian:
    return local_hessian(with_head(build, inputs, batchnorm).problem(), "0")


def assert_matrices(form: ClosedForm, result: LocalHessian, kind: str, tolerance: float) -> None:
    assert form.weight is not None
    assert form.z.shape == result.z.shape
    assert_same(form.z.dense(), getattr(result.z, kind).dense(), tolerance)
    assert_same(form.weight.dense(), getattr(result.weight, kind).layer(form.name).dense(), tolerance)


@pytest.mark.parametrize("name", LAYERS)
def test_matrices_of_linear_and_conv_layers_follow_eqs_8_9_41_and_43(name: str) -> None:
    result = measured(*LAYERS[name])
    assert_matrices(result.closed_form(), result, "exact", 1e-12)


@pytest.mark.parametrize("batchnorm", ["batch", "running"])
@pytest.mark.parametrize("name", NORMALIZED)
def test_closed_forms_through_batchnorm_are_the_gauss_newton_matrices(name: str, batchnorm: str) -> None:
    result = measured(*NORMALIZED[name], batchnorm)
    assert_matrices(result.closed_form(), result, "gauss_newton", 1e-10)
    if batchnorm == "running" and name != "no_running_statistics":  # eqs. 17 and 18 are exact
        assert_matrices(result.closed_form("detached"), result, "gauss_newton", 1e-11)


# BatchNorm's statistics held fixed


@pytest.mark.parametrize("name", ["linear", "not_affine", "large_epsilon"])
def test_eqs_17_and_18_hold_the_batch_statistics_fixed(name: str) -> None:
    build, z = NORMALIZED[name]
    case = with_head(build, z)
    linear, norm = case.model[0]
    form = local_hessian(case.problem(), "0").closed_form("detached")
    w = linear.weight.detach()
    h = linear(z).detach()
    gamma = 1.0 if norm.weight is None else norm.weight.detach()
    scale = gamma / (h.var(0, correction=0) + norm.eps).sqrt()
    assert_same(form.z.blocks[0], sum(s**2 * torch.outer(row, row) for s, row in zip(scale, w, strict=True)), 1e-13)
    assert form.z.copies == len(z)
    assert_same(form.weight.blocks, torch.stack([s**2 * z.T @ z for s in scale]), 1e-13)


# which blocks have one

COMPUTED_WEIGHTS: dict[str, Callable[[Any], Any]] = {
    "pruned": lambda layer: prune.random_unstructured(layer, "weight", 0.5),
    "spectral_norm": nn.utils.spectral_norm,
    "weight_norm": nn.utils.weight_norm,
    "new_weight_norm": nn.utils.parametrizations.weight_norm,
}


def reparametrized(name: str) -> Any:
    return COMPUTED_WEIGHTS[name](nn.Linear(4, 5))


WITHOUT: dict[str, tuple[Callable[[], Case], str, str]] = {
    "activation": (ARCHITECTURES["mlp_tanh"], "1", r"block '1' \(Tanh\) has none"),
    "three": (ARCHITECTURES["cnn_batch"], "[0:3]", r"block '\[0:3\]' \(Conv2d → BatchNorm2d → ReLU\) has none"),
    "residual": (ARCHITECTURES["resnet_batch"], "0", r"block '0' \(Block\) has none"),
    "embedding": (ARCHITECTURES["transformer"], "embed", r"block 'embed' \(Embedding\) has none"),
    "last": (ARCHITECTURES["mlp_tanh"], "2", "block '2' is measured by the loss itself"),
    "norm_that_takes_tokens_for_features": (
        lambda: with_head(lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(3)), normal(6, 3, 4)), "0", "has none"
    ),
    **{name: (lambda name=name: with_head(lambda: reparametrized(name), normal(6, 4)), "0", "has none")
       for name in COMPUTED_WEIGHTS},
    **{f"{name}_and_norm": (
        lambda name=name: with_head(lambda: nn.Sequential(reparametrized(name), nn.BatchNorm1d(5)), normal(6, 4)),
        "0", "has none") for name in COMPUTED_WEIGHTS},
}  # fmt: skip


@pytest.mark.parametrize("name", WITHOUT)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_blocks_without_a_closed_form_say_so(name: str) -> None:
    case, block, message = WITHOUT[name]
    local = local_hessian(case().problem(), block)
    with pytest.raises(wc.WellcondError, match=message):
        local.closed_form()
    assert "closed form none" in str(local)


@pytest.mark.parametrize("build", [lambda: nn.Linear(4, 5), NORMALIZED["linear"][0]])
def test_a_layer_with_a_hook_that_changes_what_it_computes_is_refused(build: Callable[[], nn.Module]) -> None:
    case = with_head(build, normal(6, 4))
    case.model[0].register_forward_hook(lambda _m, _args, output: 3 * output)
    with pytest.raises(wc.WellcondError, match=r"block '0' .* does not compute what its type says"):
        local_hessian(case.problem(), "0").closed_form()


def test_a_range_and_the_last_squared_block_have_two_closed_forms() -> None:
    local = local_hessian(ARCHITECTURES["mlp_tanh"]().problem(), "2", last="squared")
    assert_matrices(local.closed_form(), local, "exact", 1e-12)
    case = ARCHITECTURES["cnn_batch"]()
    local = local_hessian(case.problem(), "[0:2]")
    assert local.closed_form().name == "0.weight"
    assert_matrices(local.closed_form(), local, "gauss_newton", 1e-10)
    with pytest.raises(ValueError, match="variant is 'frozen'"):
        local.closed_form("frozen")
    case.model[0].weight.requires_grad_(False)
    assert local_hessian(case.problem(), "[0:2]").closed_form().weight is None
