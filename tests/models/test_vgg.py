from __future__ import annotations

import itertools
from functools import cache

import pytest
import torch
from torch import nn

from wellcond.models import vgg

built = cache(vgg)
"""The larger ones take most of a second."""
COLUMNS = {
    11: [64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"],
    13: [64, 64, "M", 128, 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"],
    16: [64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M"],
    19: [64, 64, "M", 128, 128, "M"] + [256] * 4 + ["M"] + [512] * 4 + ["M"] + [512] * 4 + ["M"],
}
"""The published list of layers: channels of a convolution, M for a pooling."""


def convolutions(model: nn.Module) -> list[nn.Conv2d]:
    return [module for module in model.modules() if isinstance(module, nn.Conv2d)]


@pytest.mark.parametrize("depth", COLUMNS)
def test_layers_are_those_of_the_published_list(depth: int) -> None:
    found = [
        module.out_channels if isinstance(module, nn.Conv2d) else "M"
        for module in built(depth)
        if isinstance(module, nn.Conv2d | nn.MaxPool2d)
    ]
    assert found == COLUMNS[depth]
    assert len(convolutions(built(depth))) == depth - 3


@pytest.mark.parametrize("depth", COLUMNS)
@pytest.mark.parametrize("classes", [10, 100])
def test_nothing_is_trained_but_the_weights(depth: int, classes: int) -> None:
    widths = [3, *(width for width in COLUMNS[depth] if width != "M")]
    expected = sum(9 * a * b for a, b in itertools.pairwise(widths)) + 512 * classes
    model = vgg(depth, classes)
    assert sum(p.numel() for p in model.parameters()) == expected
    assert all(name.endswith(".weight") and not name.startswith("bn") for name, _ in model.named_parameters())


def test_every_convolution_is_normalized_before_its_activation() -> None:
    kinds = [type(module).__name__ for module in built(11)]
    assert kinds[:7] == ["Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d", "Conv2d", "BatchNorm2d", "ReLU"]
    assert kinds[-3:] == ["MaxPool2d", "Flatten", "Linear"]
    norms = [module for module in built(16).modules() if isinstance(module, nn.BatchNorm2d)]
    assert [norm.num_features for norm in norms] == [conv.out_channels for conv in convolutions(built(16))]


def test_layers_are_numbered_through_and_poolings_by_stage() -> None:
    names = [name for name, _ in built(11).named_children()]
    assert [name for name in names if name.startswith("conv")] == [f"conv{k}" for k in range(1, 9)]
    assert [name for name in names if name.startswith("pool")] == [f"pool{k}" for k in range(1, 6)]
    assert names[:4] == ["conv1", "bn1", "act1", "pool1"]


def test_options_add_gains_shifts_and_biases_or_leave_the_norms_out() -> None:
    full = {name for name, _ in vgg(11, affine=True, bias=True).named_parameters()}
    assert {"bn1.weight", "bn1.bias", "conv1.bias", "fc.bias"} <= full
    plain = vgg(11, norm="none", bias=True, seed=0)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in plain)
    assert not plain.conv1.bias.any()
    assert torch.equal(plain.conv3.weight, vgg(11, seed=0).conv3.weight)


@pytest.mark.parametrize("depth", [0, 12, 20, -11])
def test_another_depth_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match=f"depth must be one of 11, 13, 16, 19, not {depth}"):
        vgg(depth)


def test_an_unknown_norm_is_refused() -> None:
    with pytest.raises(ValueError, match=r"norm must be one of \('batch', 'none'\), not 'layer'"):
        vgg(11, norm="layer")  # type: ignore[arg-type]
