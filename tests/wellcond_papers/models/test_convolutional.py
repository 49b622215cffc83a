from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import nn

from wellcond_papers.models import resnet, vgg
from wellcond_papers.models.layers import Layers
from wellcond_papers.models.resnet import Block

built = cache(vgg)
"""The larger ones take most of a second."""


def convolutions(model: nn.Module) -> list[nn.Conv2d]:
    return [module for module in model.modules() if isinstance(module, nn.Conv2d)]


def parameter_count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("build", [lambda: resnet(20, seed=0), lambda: vgg(11, seed=0)], ids=["resnet", "vgg"])
def test_convolutions_are_3x3_normalized_unbiased_and_he_initialized(
    build: Callable[[], nn.Module],
) -> None:
    model = build()
    for conv in convolutions(model):
        assert (conv.kernel_size, conv.bias) == ((3, 3), None)
        weight = conv.weight.detach().double()
        # five standard errors of a sample variance
        tolerance = 5 * math.sqrt(2 / weight.numel())
        assert weight.var().item() == pytest.approx(2 / (9 * conv.out_channels), rel=tolerance)
    norms = [module.num_features for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert norms == [conv.out_channels for conv in convolutions(model)]
    assert not any(module.inplace for module in model.modules() if isinstance(module, nn.ReLU))


# residual networks


def parameters_by_formula(depth: int, classes: int) -> int:
    """Convolutions without bias, two values per normalized channel, a linear layer; the shortcuts have none."""
    n = (depth - 2) // 6
    stage_1 = 2 * n * 9 * 16 * 16
    stage_2 = 9 * 16 * 32 + (2 * n - 1) * 9 * 32 * 32
    stage_3 = 9 * 32 * 64 + (2 * n - 1) * 9 * 64 * 64
    norms = 2 * (16 + 2 * n * (16 + 32 + 64))
    return 9 * 3 * 16 + stage_1 + stage_2 + stage_3 + norms + 64 * classes + classes


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("side", [32, 24, 15])
def test_a_resnet_takes_images_and_gives_one_row_per_example(norm: bool, side: int) -> None:
    assert resnet(8, classes=7, norm=norm, seed=0)(torch.randn(2, 3, side, side)).shape == (2, 7)


@pytest.mark.parametrize(("depth", "millions"), [(20, 0.27), (56, 0.85), (110, 1.7), (1202, 19.0)])
def test_a_resnet_has_the_published_layers_and_number_of_parameters(depth: int, millions: float) -> None:
    model = resnet(depth)
    assert len(convolutions(model)) == depth - 1
    assert sum(isinstance(module, nn.Linear) for module in model.modules()) == 1
    assert parameter_count(model) == parameters_by_formula(depth, classes=10)
    assert float(f"{parameter_count(model) / 1e6:.2g}") == millions


def test_stages_have_16_32_and_64_channels_and_halve_the_image() -> None:
    x = torch.randn(2, 3, 32, 32)
    shapes = {}
    for name, module in resnet(20, seed=0).named_children():
        x = module(x)
        shapes[name] = tuple(x.shape)
    assert shapes["stage1"] == (2, 16, 32, 32)
    assert shapes["stage2"] == (2, 32, 16, 16)
    assert shapes["stage3"] == (2, 64, 8, 8)


def test_layers_are_named_by_stage_block_and_position() -> None:
    blocks = [f"stage{stage}.block1.conv{k}" for stage in (1, 2, 3) for k in (1, 2)]
    weights = [f"{name}.weight" for name in ("conv", *blocks, "fc")]
    assert [name for name, _ in resnet(8, norm=False).named_parameters()] == [*weights, "fc.bias"]


def test_the_shortcut_keeps_every_second_pixel_and_appends_zero_channels() -> None:
    block = Block(16, 32, Layers("none", None, seed=0))
    for conv in convolutions(block):
        nn.init.zeros_(conv.weight)
    x = torch.randn(2, 16, 8, 8)
    y = block(x)
    assert torch.equal(y[:, :16], x[:, :, ::2, ::2].relu())
    assert not y[:, 16:].any()


def test_a_block_of_equal_widths_adds_its_input() -> None:
    block = Block(16, 16, Layers("none", None, seed=0))
    x = torch.randn(2, 16, 8, 8)
    assert torch.equal(block(x), (x + block.conv2(block.conv1(x).relu())).relu())


# VGG

COLUMNS = {
    11: [64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"],
    13: [64, 64, "M", 128, 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"],
    16: [64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M"],
    19: [64, 64, "M", 128, 128, "M"] + [256] * 4 + ["M"] + [512] * 4 + ["M"] + [512] * 4 + ["M"],
}
"""The published list of layers: channels of a convolution, M for a pooling."""


@pytest.mark.parametrize("depth", COLUMNS)
@pytest.mark.parametrize("classes", [10, 100])
def test_a_vgg_has_the_published_layers_and_trains_nothing_but_the_weights(depth: int, classes: int) -> None:
    model = built(depth, classes)
    expected: list[str] = []
    convs, pools = itertools.count(1), itertools.count(1)
    for entry in COLUMNS[depth]:
        k = next(pools if entry == "M" else convs)
        expected += [f"pool{k}"] if entry == "M" else [f"conv{k}", f"bn{k}", f"act{k}"]
    assert [name for name, _ in model.named_children()] == [*expected, "flatten", "fc"]
    widths = [3, *(width for width in COLUMNS[depth] if width != "M")]
    assert [conv.out_channels for conv in convolutions(model)] == widths[1:]
    assert len(convolutions(model)) == depth - 3
    assert parameter_count(model) == sum(9 * a * b for a, b in itertools.pairwise(widths)) + 512 * classes
    assert all(name.endswith(".weight") and not name.startswith("bn") for name, _ in model.named_parameters())
    if depth == 11:
        assert model(torch.randn(2, 3, 32, 32)).shape == (2, classes)


def test_the_width_scales_every_stage() -> None:
    narrow = vgg(16, width=4, seed=0)
    assert [conv.out_channels * 16 for conv in convolutions(narrow)] == [
        conv.out_channels for conv in convolutions(built(16, 10))
    ]
    assert narrow(torch.randn(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.slow
def test_options_add_gains_shifts_and_biases_or_leave_the_norms_out() -> None:
    full = {name for name, _ in vgg(11, affine=True, bias=True).named_parameters()}
    assert {"bn1.weight", "bn1.bias", "conv1.bias", "fc.bias"} <= full
    plain = vgg(11, norm="none", bias=True, seed=0)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in plain)
    assert not plain.conv1.bias.any()
    assert torch.equal(plain.conv3.weight, vgg(11, seed=0).conv3.weight)
