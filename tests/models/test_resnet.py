from __future__ import annotations

import pytest
import torch
from torch import nn

from wellcond.models import resnet
from wellcond.models.resnet import Block


def parameters_by_formula(depth: int, classes: int) -> int:
    """Convolutions without bias, two values per normalised channel, a linear layer; the shortcuts have none."""
    n = (depth - 2) // 6
    stage_1 = 2 * n * 9 * 16 * 16
    stage_2 = 9 * 16 * 32 + (2 * n - 1) * 9 * 32 * 32
    stage_3 = 9 * 32 * 64 + (2 * n - 1) * 9 * 64 * 64
    norms = 2 * (16 + 2 * n * (16 + 32 + 64))
    return 9 * 3 * 16 + stage_1 + stage_2 + stage_3 + norms + 64 * classes + classes


def convolutions(model: nn.Module) -> list[nn.Conv2d]:
    return [module for module in model.modules() if isinstance(module, nn.Conv2d)]


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("side", [32, 24, 15])
def test_images_go_in_and_one_row_per_example_comes_out(norm: bool, side: int) -> None:
    assert resnet(8, classes=7, norm=norm, seed=0)(torch.randn(2, 3, side, side)).shape == (2, 7)


@pytest.mark.parametrize(("depth", "millions"), [(20, 0.27), (56, 0.85), (110, 1.7)])
def test_the_number_of_parameters_is_the_published_one(depth: int, millions: float) -> None:
    count = sum(p.numel() for p in resnet(depth).parameters())
    assert count == parameters_by_formula(depth, classes=10)
    assert float(f"{count / 1e6:.2g}") == millions


def test_the_1202_layers_are_1201_convolutions_and_a_linear_layer() -> None:
    model = resnet(1202)
    assert len(convolutions(model)) == 1201
    assert sum(isinstance(module, nn.Linear) for module in model.modules()) == 1
    assert sum(p.numel() for p in model.parameters()) == parameters_by_formula(1202, classes=10)


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
    names = [name for name, module in resnet(8).named_modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    blocks = [f"stage{stage}.block1.conv{k}" for stage in (1, 2, 3) for k in (1, 2)]
    assert names == ["conv", *blocks, "fc"]


def test_every_convolution_is_3x3_without_bias_and_normalized() -> None:
    model = resnet(20)
    assert all(conv.kernel_size == (3, 3) and conv.bias is None for conv in convolutions(model))
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert [bn.num_features for bn in norms] == [conv.out_channels for conv in convolutions(model)]


def test_without_norm_there_is_no_batch_normalization() -> None:
    model = resnet(20, norm=False)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    assert {name.rpartition(".")[2] for name, _ in model.named_parameters()} == {"weight", "bias"}
    assert [name for name, _ in model.named_parameters() if name.endswith("bias")] == ["fc.bias"]


def test_no_activation_works_in_place() -> None:
    assert not any(module.inplace for module in resnet(20).modules() if isinstance(module, nn.ReLU))


def test_the_shortcut_keeps_every_second_pixel_and_appends_zero_channels() -> None:
    block = Block(16, 32, norm=False)
    for conv in convolutions(block):
        nn.init.zeros_(conv.weight)
    x = torch.randn(2, 16, 8, 8)
    y = block(x)
    assert torch.equal(y[:, :16], x[:, :, ::2, ::2].relu())
    assert not y[:, 16:].any()


def test_a_block_of_equal_widths_adds_its_input() -> None:
    block = Block(16, 16, norm=False)
    for conv in convolutions(block):
        nn.init.normal_(conv.weight, std=0.1)
    x = torch.randn(2, 16, 8, 8)
    assert torch.equal(block(x), (x + block.conv2(block.conv1(x).relu())).relu())


@pytest.mark.parametrize(
    ("depth", "nearest"), [(18, "14 or 20"), (21, "20 or 26"), (2, "8"), (7, "8"), (0, "8"), (-20, "8")]
)
def test_a_depth_that_is_not_6n_plus_2_is_refused_with_the_nearest(depth: int, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"not {depth}; nearest: {nearest}$"):
        resnet(depth)
