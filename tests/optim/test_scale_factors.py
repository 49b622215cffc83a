"""The factors of scale-amended SGD against arithmetic on published sizes."""

from __future__ import annotations

import itertools
import math
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo import Mean, SelfAttention, Written

from wellcond.errors import UnknownLayer, Unsupported
from wellcond.optim.factors import LayerScale
from wellcond.optim.scale_amended import ScaleAmendedSGD
from wellcond_papers.models import mlp, resnet, vgg

PUBLISHED = {
    11: "64 M 128 M 256 256 M 512 512 M 512 512 M",
    13: "64 64 M 128 128 M 256 256 M 512 512 M 512 512 M",
    16: "64 64 M 128 128 M 256 256 256 M 512 512 512 M 512 512 512 M",
    19: "64 64 M 128 128 M 256 256 256 256 M 512 512 512 512 M 512 512 512 512 M",
}
"""Columns A, B, D and E of the VGG paper: channels of each convolution, M for a 2×2 pooling."""


def factors(model: nn.Module, *shape: int, **options: Any) -> dict[str, LayerScale]:
    return ScaleAmendedSGD(model, inputs=torch.zeros(1, *shape), **options).factors


def normed(layer: Any) -> nn.Sequential:
    """A convolution, the batch normalization of its kind and an in-place activation."""
    norm = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[len(layer.kernel_size)]
    return nn.Sequential(layer, norm(layer.out_channels), nn.ReLU(inplace=True))


@pytest.mark.parametrize("depth", PUBLISHED)
def test_factors_of_vgg_are_those_of_the_published_layer_list(depth: int) -> None:
    side, channels, layers = 32, 3, []
    for entry, following in itertools.pairwise([*PUBLISHED[depth].split(), "end"]):
        if entry == "M":
            side //= 2
        else:
            c = 4 if following == "M" else 1
            layers.append({"q": side * side, "m_z": int(entry) / (channels * c), "c": c})
            channels = int(entry)
    layers.append({"q": 1, "m_z": 10 / 512, "c": 1})

    m, expected = 1.0, []
    for layer in reversed(layers):
        expected.append(layer | {"m": m})
        m *= layer["m_z"]

    result = factors(vgg(depth, seed=0), 3, 32, 32)
    assert list(result) == [*(f"conv{k}" for k in range(1, depth - 2)), "fc"]
    for scale, numbers in zip(result.values(), reversed(expected), strict=True):
        assert {name: getattr(scale, name) for name in numbers} == pytest.approx(numbers, rel=1e-12)


BLOCKS: dict[str, tuple[nn.Module, list[nn.Module], tuple[int, ...], int, float, float]] = {
    # name: convolution, what follows it, an example's shape; q, c, m_z by hand
    "stride": (nn.Conv2d(3, 6, 3, stride=2, padding=1), [], (3, 8, 8), 4 * 4, 4, 6 / (3 * 4)),
    "max_pooling": (nn.Conv2d(3, 6, 3, padding=1), [nn.MaxPool2d(2)], (3, 8, 8), 8 * 8, 4, 6 / (3 * 4)),
    "mean_pooling": (nn.Conv2d(3, 6, 3, padding=1), [nn.AvgPool2d(2)], (3, 8, 8), 8 * 8, 4, 6 / (3 * 4)),
    "stride_and_pooling": (nn.Conv2d(3, 6, 3, 2, padding=1), [nn.MaxPool2d(2)], (3, 8, 8), 16, 16, 6 / (3 * 16)),
    "one_sided_stride": (nn.Conv2d(3, 6, 3, stride=(1, 2), padding=1), [], (3, 8, 8), 8 * 4, 2, 6 / (3 * 2)),
    "global_pooling": (nn.Conv2d(3, 6, 3, padding=1), [nn.AdaptiveAvgPool2d(1)], (3, 8, 8), 64, 64, 6 / (3 * 64)),
    "mean_by_hand": (nn.Conv2d(3, 6, 3, padding=1), [Mean(2, 3)], (3, 8, 8), 64, 64, 6 / (3 * 64)),
    "no_padding": (nn.Conv2d(3, 6, 3), [], (3, 8, 8), 6 * 6, 64 / 36, 6 * 36 / (3 * 64)),
    "dilation": (nn.Conv2d(3, 6, 3, dilation=2), [], (3, 8, 8), 4 * 4, 4, 6 / (3 * 4)),
    "groups": (nn.Conv2d(4, 6, 3, padding=1, groups=2), [], (4, 8, 8), 64, 1, 6 / 4),
    "depthwise": (nn.Conv2d(4, 4, 3, padding=1, groups=4), [], (4, 8, 8), 64, 1, 1),
    "upsampling": (nn.Conv2d(3, 6, 3, padding=1), [nn.Upsample(scale_factor=2)], (3, 4, 4), 16, 1 / 4, 6 * 4 / 3),
    "conv1d": (nn.Conv1d(3, 6, 3, stride=2, padding=1), [], (3, 8), 4, 2, 6 / (3 * 2)),
    "conv3d": (nn.Conv3d(3, 6, 3, stride=2, padding=1), [], (3, 4, 4, 4), 2 * 2 * 2, 8, 6 / (3 * 8)),
    "dropout": (nn.Conv2d(3, 6, 1), [nn.Dropout2d(0.5)], (3, 4, 4), 16, 1, 6 / 3),
    "transposed": (nn.ConvTranspose2d(4, 6, 2, stride=2), [], (4, 4, 4), 8 * 8, 1 / 4, 6 * 4 / 4),
    "transposed_groups": (
        nn.ConvTranspose2d(4, 6, 4, stride=2, padding=1, groups=2), [], (4, 4, 4), 8 * 8, 1 / 4, 6 * 4 / 4
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BLOCKS)
def test_factors_of_a_convolutional_block_and_a_flattening_head(name: str) -> None:
    conv, following, shape, q, c, m_z = BLOCKS[name]
    features = round(m_z * math.prod(shape))  # all elements that leave the block
    head = nn.Linear(features, 5)
    result = factors(nn.Sequential(normed(conv), *following, nn.Flatten(), head), *shape)
    scale, last = result["0.0"], result[str(len(following) + 2)]
    assert (scale.q, scale.units) == (q, conv.out_channels)
    assert (scale.c, scale.m_z) == pytest.approx((c, m_z), rel=1e-12)
    assert (last.m, last.q, last.c) == (1, 1, 1)
    assert last.m_z == scale.m == pytest.approx(5 / features, rel=1e-12)


def test_tokens_are_the_positions_of_a_linear_layer() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(inplace=True), Mean(1), nn.Linear(8, 3))
    result = factors(model, 7, 4)
    assert (result["0"].q, result["0"].c, result["0"].m_z) == pytest.approx((7, 7, 8 / (4 * 7)))
    assert (result["1"].q, result["4"].q) == (7, 1)


def test_number_of_examples_and_missing_batch_dimension_do_not_matter() -> None:
    norm = nn.InstanceNorm2d(6)
    model = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), norm, nn.ReLU(), nn.Conv2d(6, 2, 2, stride=2))
    for shape in ((3, 8, 8), (5, 3, 8, 8)):
        assert ScaleAmendedSGD(model, inputs=torch.zeros(shape)).factors == factors(model, 3, 8, 8)


def test_a_network_that_ends_in_a_pooling_counts_its_pooled_outputs() -> None:
    model = nn.Sequential(normed(nn.Conv2d(3, 6, 1)), nn.Conv2d(6, 5, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    result = factors(model, 3, 4, 4)
    assert (result["1"].m, result["1"].c, result["1"].m_z) == (1, 16, 5 / (6 * 16))
    assert result["0.0"].m == 5 / (6 * 16)


def test_a_model_that_returns_its_loss_ends_at_its_last_layer() -> None:
    def forward(net: Any, x: Tensor) -> Any:
        logits = net.mlp(x)
        loss = F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long))
        return {"loss": loss, "logits": logits} if net.logits else loss

    for logits in (True, False):
        result = factors(Written(forward, mlp=mlp([4, 6, 3], norm="batch"), logits=logits), 4)
        assert (result["mlp.fc2"].m, result["mlp.fc2"].m_z, result["mlp.fc1"].m) == (1, 3 / 6, 3 / 6)


def test_a_norm_has_the_factor_of_the_layer_before_and_its_own_positions() -> None:
    block = normed(nn.Conv2d(3, 8, 3, padding=1))
    model = nn.Sequential(nn.BatchNorm2d(3), block, nn.MaxPool2d(2), nn.PReLU(), nn.Flatten(), nn.Linear(8 * 16, 4))
    result = factors(model, 3, 8, 8)
    m = 4 / (8 * 16)
    assert (result["1.1"].m, result["1.1"].q) == (m, 8 * 8)
    assert (result["3"].m, result["3"].q) == (m, 8 * 4 * 4)  # one slope for all elements
    assert (result["0"].m, result["0"].q) == pytest.approx((m * 8 / (3 * 4), 8 * 8))
    assert [result[name].units for name in ("0", "1.0", "1.1", "3", "5")] == [None, 8, None, None, 4]
    assert result["0"].why == "before the first layer"
    assert result["1.1"].why == "in the block of '1.0'"


def test_a_norm_whose_gains_are_of_single_positions_meets_each_once() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.LayerNorm([8, 4, 4]), nn.Flatten(), nn.Linear(128, 4))
    assert factors(model, 3, 4, 4)["1"][:3] == (4 / 128, None, 1)


# factors that are given


def test_any_network_works_with_given_factors() -> None:
    argument = {"conv": 0.1, "stage1": 0.2, "stage2": 0.3, "stage2.block1.conv2": 0.4, "stage3": 0.5, "fc": 1.0}
    result = factors(resnet(8, seed=0), 3, 32, 32, factors=argument)
    assert {name: scale.m for name, scale in result.items()} == {
        "conv": 0.1, "bn": 0.1,
        "stage1.block1.conv1": 0.2, "stage1.block1.bn1": 0.2, "stage1.block1.conv2": 0.2, "stage1.block1.bn2": 0.2,
        "stage2.block1.conv1": 0.3, "stage2.block1.bn1": 0.3, "stage2.block1.conv2": 0.4, "stage2.block1.bn2": 0.3,
        "stage3.block1.conv1": 0.5, "stage3.block1.bn1": 0.5, "stage3.block1.conv2": 0.5, "stage3.block1.bn2": 0.5,
        "fc": 1.0,
    }  # fmt: skip
    assert result["stage3.block1.conv2"].q == 8 * 8
    assert (result["conv"].m_z, result["conv"].c, result["conv"].why) == (None, None, "given")


def test_a_given_factor_is_that_of_the_norms_following_a_layer() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    result = factors(model, 4, factors={"1": 0.5, "3": 2.0})
    assert [scale.m for scale in result.values()] == [0.5, 0.5, 0.5, 2.0]


def test_a_layer_that_is_called_twice_has_the_positions_of_both_calls() -> None:
    model = Written(lambda net, x: net.conv(F.max_pool1d(net.conv(x), 2)), conv=nn.Conv1d(3, 3, 3, padding=1))
    assert factors(model, 3, 8, factors={"conv": 1.0})["conv"].q == 8 + 4


def test_parts_that_are_never_called_have_the_factor_of_what_holds_them() -> None:
    result = factors(SelfAttention(), 3, 4, factors={"attention": 0.5, "head": 1.0})
    assert (result["attention"].m, result["attention.out_proj"].m, result["head"].m) == (0.5, 0.5, 1.0)


def test_factors_must_name_every_layer_of_the_network_and_be_positive() -> None:
    model = mlp([4, 6, 3], norm="batch")
    with pytest.raises(Unsupported, match="names neither 'fc1'"):
        factors(model, 4, factors={"fc2": 1.0})
    with pytest.raises(UnknownLayer, match=r"'fc3'.*Closest: 'fc2'"):
        factors(model, 4, factors={"fc1": 1.0, "fc3": 1.0})
    for wrong in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="'fc1' must be > 0 and finite"):
            factors(model, 4, factors={"fc1": wrong, "fc2": 1.0})


# what is said


def test_hidden_layers_without_a_norm_are_named() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    with pytest.warns(UserWarning, match=r"no normalization follows '0'; the scales are those of normalized blocks"):
        factors(model, 4)


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d(6), nn.LayerNorm(6), nn.GroupNorm(2, 6), nn.BatchNorm1d(6, affine=False)]
)
@pytest.mark.parametrize("post_activation", [False, True])
def test_a_norm_before_or_following_the_activation_is_enough(norm: nn.Module, post_activation: bool) -> None:
    between = [nn.ReLU(), norm] if post_activation else [norm, nn.ReLU()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        factors(nn.Sequential(nn.Linear(4, 6), *between, nn.Linear(6, 3)), 4)


def test_a_weight_that_is_zero_is_named() -> None:
    model = mlp([4, 6, 3], norm="batch")
    nn.init.zeros_(model.fc2.weight)
    with pytest.warns(UserWarning, match="the weight of 'fc2' is zero"):
        factors(model, 4)


def test_the_table_says_what_scales_each_layer_and_why() -> None:
    model = nn.Sequential(normed(nn.Conv2d(3, 8, 3, padding=1)), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10))
    optimizer = ScaleAmendedSGD(model, inputs=torch.zeros(1, 3, 8, 8))
    assert repr(optimizer.factors).splitlines() == [
        "layer       m     m_z   q  c  why",
        "0.0    0.0781   0.667  64  4  3→8 features, 64→16 positions",
        "0.1    0.0781          64     in the block of '0.0'",
        "3           1  0.0781   1  1  128→10 features; the last layer",
    ]
    assert [group["m"] for group in optimizer.param_groups] == [10 / 128, 10 / 128, 1.0]
    assert "not seen yet" in repr(ScaleAmendedSGD(model).factors)
