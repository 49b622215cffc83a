"""Merging batch normalizations: the plain network computes what the normalized one computed in evaluation mode."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from surgery_references import assert_same_function, merged_without_rest, norms, used
from torch import Tensor, nn
from zoo import Block, Mean, Written, integers, normal

import wellcond.nn
from wellcond.nn.ghost import GhostBatchNorm2d
from wellcond.nn.last_batchnorm import with_last_batchnorm
from wellcond.nn.merge import merge_batchnorm
from wellcond.nn.replace import replace_norm
from wellcond_papers.models import mlp, resnet

VARIANTS = [kind for name, kind in vars(wellcond.nn).items() if name.endswith("2d")]


# the formulas


def test_a_norm_behind_a_layer_scales_its_rows() -> None:
    model = used(nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5)), normal(7, 3))
    linear, norm = model
    merged = merge_batchnorm(model)
    s = norm.weight / (norm.running_var + norm.eps).sqrt()
    assert torch.allclose(merged[0].weight, s[:, None] * linear.weight, rtol=1e-14)
    assert torch.allclose(merged[0].bias, s * (linear.bias - norm.running_mean) + norm.bias, rtol=1e-13)


def test_a_norm_before_a_layer_is_merged_as_in_proposition_7() -> None:
    """Ŵ = W diag(γ/σ), b̂ = b + W(β − γμ/σ)."""
    model = used(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.BatchNorm1d(5), nn.Linear(5, 2)), normal(7, 3))
    norm, linear = model[2], model[3]
    merged = merge_batchnorm(model)
    sigma = (norm.running_var + norm.eps).sqrt()
    weight = linear.weight @ torch.diag(norm.weight / sigma)
    bias = linear.bias + linear.weight @ (norm.bias - norm.weight * norm.running_mean / sigma)
    assert torch.allclose(merged[3].weight, weight, rtol=1e-14)
    assert torch.allclose(merged[3].bias, bias, rtol=1e-13)
    assert torch.equal(merged[0].weight, model[0].weight)


def test_merging_is_done_in_float64_and_rounded_once() -> None:
    model = used(nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5)), normal(7, 3))
    model.float()
    exact = merge_batchnorm(copy.deepcopy(model).double())
    merged = merge_batchnorm(model)
    assert torch.equal(merged[0].weight, exact[0].weight.float())
    assert torch.equal(merged[0].bias, exact[0].bias.float())


# networks


def functional() -> nn.Module:
    """Layers called between functions, and a branch that nobody can trace symbolically."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = F.dropout(net.conv(x), 0.2, net.training)
        h = F.relu_(net.norm(h))
        if float(h.sum()) > 0:
            h = h.mean((2, 3))
        return net.last(net.features(F.gelu(net.head(h))))

    convolution = {"conv": nn.Conv2d(2, 4, 3, padding=1), "norm": nn.BatchNorm2d(4)}
    return Written(forward, **convolution, head=nn.Linear(4, 6), last=nn.Linear(6, 3), features=nn.BatchNorm1d(6))


def tokens() -> nn.Module:
    """(N, T, d) tokens, normalized over all examples and positions by the usual transposes and views."""

    def forward(net: Any, tokens: Tensor) -> Tensor:
        h = net.bn1(net.fc1(net.embed(tokens)).transpose(1, 2)).mT.relu()
        n, t, _ = h.shape
        h = net.bn2(net.fc2(h).view(n * t, -1)).view(n, t, -1).tanh()
        return net.fc3(net.bn3(h.flatten(0, 1)).unflatten(0, (n, t)))

    linear = {"embed": nn.Embedding(7, 4), "fc1": nn.Linear(4, 6), "fc2": nn.Linear(6, 5), "fc3": nn.Linear(5, 3)}
    return Written(forward, **linear, bn1=nn.BatchNorm1d(6), bn2=nn.BatchNorm1d(5), bn3=nn.BatchNorm1d(5))


def vgg() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, width in ((3, 4), (4, 4), (4, 6)):
        layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        layers += [nn.MaxPool2d(2)] if inputs != width else []
    head = [nn.Linear(6 * 64, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(8, 10)]
    return nn.Sequential(*layers, nn.Flatten(), *head)


def post_activation_mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 6), nn.ReLU(inplace=True), nn.BatchNorm1d(6), nn.Dropout(0.3),
        nn.Linear(6, 5, bias=False), nn.Tanh(), nn.BatchNorm1d(5, affine=False), nn.Linear(5, 3),
    )  # fmt: skip


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "resnet_20": (lambda: resnet(20, seed=0), lambda: normal(4, 3, 32, 32)),
    "resnet_with_other_norms": (
        lambda: replace_norm(resnet(8, seed=0), GhostBatchNorm2d), lambda: normal(4, 3, 32, 32)
    ),
    "resnet_with_projection": (lambda: nn.Sequential(Block(3, 4), Mean(2, 3)), lambda: normal(4, 3, 8, 8)),
    "vgg": (vgg, lambda: normal(4, 3, 32, 32)),
    "pre_activation_mlp": (lambda: mlp([4, 6, 5, 3], norm="batch", seed=0), lambda: normal(8, 4)),
    "post_activation_mlp": (post_activation_mlp, lambda: normal(8, 4)),
    "functional": (functional, lambda: normal(4, 2, 8, 8)),
    "tokens": (tokens, lambda: integers(7, 5, 3)),
    "last_batchnorm": (
        lambda: with_last_batchnorm(mlp([4, 6, 5, 3], norm="batch", seed=0)), lambda: normal(8, 4)
    ),
    "last_batchnorm_of_tokens": (
        lambda: with_last_batchnorm(nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))),
        lambda: integers(7, 5, 3),
    ),
    "pooled_then_flattened": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3), nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, 2)
        ),
        lambda: normal(4, 2, 6, 6),
    ),
    "norms_in_a_row": (
        lambda: nn.Sequential(
            nn.Linear(4, 5), nn.BatchNorm1d(5), nn.BatchNorm1d(5), nn.ReLU(), nn.BatchNorm1d(5), nn.BatchNorm1d(5),
            nn.Linear(5, 2),
        ),
        lambda: normal(8, 4),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("build", "inputs"), NETWORKS.values(), ids=NETWORKS)
def test_every_norm_of_a_network_is_merged(
    build: Callable[[], nn.Module], inputs: Callable[[], Tensor], dtype: torch.dtype
) -> None:
    x = inputs()
    model = used(build(), x).to(dtype)
    x = x.to(dtype) if x.is_floating_point() else x
    merged = merged_without_rest(model, x)
    assert_same_function(model, merged, x)
    retained = {key for key in model.state_dict() if key.rpartition(".")[0] not in norms(model)}
    assert retained <= merged.state_dict().keys()
    assert all(key.endswith("bias") for key in merged.state_dict().keys() - retained)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet_20", "vgg", "post_activation_mlp", "last_batchnorm_of_tokens"])
def test_inputs_are_made_up_where_none_are_given(name: str) -> None:
    build, inputs = NETWORKS[name]
    model = used(build(), inputs())
    assert_same_function(model, merged_without_rest(model), inputs())


def pair(layer: nn.Module, norm: nn.Module) -> Callable[[bool], nn.Module]:
    return lambda forwards: nn.Sequential(nn.Tanh(), norm, layer) if forwards else nn.Sequential(layer, norm)


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool]] = {
    "linear": (lambda: nn.Linear(4, 6), (5, 4), True),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2), (5, 4, 9), True),
    "conv2d_dilated": (lambda: nn.Conv2d(4, 6, 3, dilation=2, bias=False), (5, 4, 9, 9), True),
    "conv3d": (lambda: nn.Conv3d(4, 6, 2), (5, 4, 3, 4, 5), True),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2), (5, 4, 5, 5), True),
    "depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4), (5, 4, 5, 5), True),
    "circular": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), (5, 4, 5, 5), True),
    "reflect": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), (5, 4, 5, 5), True),
    "padded": (lambda: nn.Conv2d(4, 6, 3, padding=1), (5, 4, 5, 5), False),
    "padded_on_one_axis": (lambda: nn.Conv2d(4, 6, 3, padding=(0, 1)), (5, 4, 5, 5), False),
    "padded_to_the_same_size": (lambda: nn.Conv2d(4, 6, 3, padding="same"), (5, 4, 5, 5), False),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1), (5, 4, 5, 5), False),
    "transposed_grouped": (lambda: nn.ConvTranspose1d(4, 6, 3, groups=2, bias=False), (5, 4, 5), False),
}  # fmt: skip
"""A layer from 4 channels, the shape of its input, and whether a shift of the input passes its borders."""


@pytest.mark.parametrize("forwards", [False, True], ids=["norm_behind", "norm_before"])
@pytest.mark.parametrize(("build", "shape", "shift_passes"), LAYERS.values(), ids=LAYERS)
def test_every_type_of_layer(
    build: Callable[[], nn.Module], shape: tuple[int, ...], shift_passes: bool, forwards: bool
) -> None:
    layer, x = build(), normal(*shape)
    channels = 4 if forwards else layer.to(x)(x).shape[1]
    norm = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[x.dim()](channels)
    model = used(pair(layer, norm)(forwards), x)
    if shift_passes or not forwards:
        assert_same_function(model, merged_without_rest(model, x), x)
        return
    with pytest.warns(UserWarning, match=r"1 of 1 .* '1': .*cannot pass the borders of '2'"):
        merged = merge_batchnorm(model, x)
    assert_same_function(model, merged, x)


def test_a_norm_without_a_shift_passes_zero_padding() -> None:
    x = normal(5, 4, 5, 5)
    model = nn.Sequential(nn.Tanh(), nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3, padding=1)).double()
    model[1].running_var.copy_(torch.arange(1.0, 5.0))
    assert_same_function(model, merged_without_rest(model, x), x)


@pytest.mark.parametrize("kind", [nn.SyncBatchNorm, *VARIANTS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_variant_of_batch_normalization(kind: type[nn.Module], dtype: torch.dtype) -> None:
    x = normal(6, 2, 5, 5)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), kind(4), nn.ReLU(), nn.MaxPool2d(2), kind(4), nn.Conv2d(4, 3, 1))
    model = used(model, x).to(dtype)
    assert_same_function(model, merged_without_rest(model, x.to(dtype)), x.to(dtype))


# the new model


def test_modes_frozen_parameters_and_memory_formats_are_kept() -> None:
    layers = nn.Conv2d(2, 3, 2, bias=False), nn.BatchNorm2d(3), nn.Conv2d(3, 2, 1)
    model = used(nn.Sequential(*layers), normal(4, 2, 3, 3)).to(memory_format=torch.channels_last)
    model[0].requires_grad_(False)
    model[1].eval()
    merged = merge_batchnorm(model)
    assert [module.training for module in merged] == [True, False, True]
    assert [p.requires_grad for p in merged.parameters()] == [False, False, True, True]
    assert all(p.grad is None for p in merged.parameters())
    assert isinstance(merged[1], nn.Identity)
    assert merged[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert not merged[0].weight.is_contiguous()


def test_the_merged_network_can_be_copied_saved_and_trained() -> None:
    x = normal(8, 4)
    model = used(post_activation_mlp(), x)
    merged = copy.deepcopy(merge_batchnorm(model))
    merged.load_state_dict(merge_batchnorm(model).state_dict())
    merged.train()(x).square().sum().backward()
    assert all(p.grad is not None for p in merged.parameters())
