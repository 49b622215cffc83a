"""The variants of the plain networks: what each has, what it computes, and how many parameters were published."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from wellcond_papers.models import (
    cnn,
    deep_linear,
    imagenet_resnet,
    meanfield_cnn,
    meanfield_mlp,
    mlp,
    preact_resnet18,
    preresnet,
    resnet,
    vgg,
)
from wellcond_papers.models.layers import Layers
from wellcond_papers.models.preact_resnet18 import WidePreBlock
from wellcond_papers.models.preresnet import PreBlock


def parameter_count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def names(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_children()]


@pytest.mark.parametrize(
    ("build", "published"),
    [
        (lambda: preresnet(110, seed=0), 1.7e6),
        (lambda: resnet(110, shortcuts=False, seed=0), 1.7e6),
        (lambda: preact_resnet18(seed=0), 11_171_146),
        (lambda: imagenet_resnet(18, seed=0), 11_689_512),
        (lambda: imagenet_resnet(50, seed=0), 25_557_032),
        # the usual VGG-16 for CIFAR-10: biases, affine norms, one linear layer
        (lambda: vgg(16, affine=True, bias=True, seed=0), 14_728_266),
    ],
)
def test_parameters_are_as_many_as_published(build: Callable[[], nn.Module], published: float) -> None:
    assert float(f"{parameter_count(build()):.3g}") == pytest.approx(float(f"{published:.3g}"), rel=0.02)
    if isinstance(published, int):
        assert parameter_count(build()) == published


@pytest.mark.slow
def test_a_network_of_1202_layers_is_built_and_run_without_recursion() -> None:
    begin = time.process_time()
    model = preresnet(1202, seed=0)
    assert time.process_time() - begin < 10
    assert f"{parameter_count(model) / 1e6:.1f}" == "19.4"
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    assert model.conv.weight.grad.isfinite().all()


# residual networks


def test_without_norms_and_shortcuts_a_resnet_is_a_plain_stack() -> None:
    model = resnet(14, norm="none", shortcuts=False, width=4, seed=0).double()
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    y = x
    for conv in (module for module in model.modules() if isinstance(module, nn.Conv2d)):
        y = conv(y).relu()
    torch.testing.assert_close(model(x), model.fc(y.mean((2, 3))))


def test_last_norm_only_adds_a_norm_before_the_linear_layer() -> None:
    for build in (resnet, preresnet):
        plain, last = (build(8, last_norm=is_last, seed=0) for is_last in (False, True))
        assert names(last) == [*names(plain)[:-1], "last_bn", "fc"]
        assert (last.last_bn.num_features, last.last_bn.affine) == (64, True)
        x = torch.randn(6, 3, 32, 32)
        seen: list[Tensor] = []
        last.fc.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(inputs[0]))
        last(x)
        torch.testing.assert_close(seen[0].mean(0), torch.zeros(64), atol=1e-5, rtol=0)
        features = nn.Sequential(*list(plain.children())[:-1])(x)
        torch.testing.assert_close(seen[0], nn.functional.batch_norm(features, None, None, training=True))


def test_v1_has_no_final_norm_but_keeps_its_relu() -> None:
    full, v1 = preresnet(8, seed=0), preresnet(8, final_norm=False, seed=0)
    assert names(full) == ["conv", "stage1", "stage2", "stage3", "bn", "act", "pool", "flatten", "fc"]
    assert names(v1) == [name for name in names(full) if name != "bn"]


def test_a_preactivation_block_is_its_input_plus_the_residual() -> None:
    block = PreBlock(4, 4, Layers("batch", None, seed=0))
    x = torch.randn(3, 4, 6, 6)
    residual = block.conv2(block.bn2(block.conv1(block.bn1(x).relu())).relu())
    assert torch.equal(block(x), x + residual)
    wider = PreBlock(4, 8, Layers("none", None, seed=0))
    nn.init.zeros_(wider.conv2.weight)
    assert torch.equal(wider(x)[:, :4], x[:, :, ::2, ::2])
    assert not wider(x)[:, 4:].any()


def test_a_projection_of_preact_resnet_starts_behind_the_first_activation() -> None:
    block = WidePreBlock(4, 8, Layers("batch", None, seed=0))
    nn.init.zeros_(block.conv2.weight)
    x = torch.randn(3, 4, 6, 6)
    assert torch.equal(block(x), block.shortcut(block.bn1(x).relu()))


@pytest.mark.slow
def test_imagenet_resnets_have_the_published_shapes() -> None:
    for depth, last in ((18, 512), (50, 2048)):
        model = imagenet_resnet(depth, seed=0)
        with torch.device("meta"):
            x: Tensor = torch.empty(1, 3, 224, 224)
        shapes = {}
        for name, module in model.to("meta").named_children():
            x = module(x)
            shapes[name] = tuple(x.shape[1:])
        assert shapes["maxpool"] == (64, 56, 56)
        assert shapes["stage1"] == (64 * last // 512, 56, 56)
        assert shapes["stage4"] == (last, 7, 7)
        assert shapes["fc"] == (1000,)


def test_images_can_be_enlarged_before_the_first_convolution() -> None:
    small, large = torch.randn(2, 3, 32, 32), imagenet_resnet(18, width=4, seed=0)
    model = imagenet_resnet(18, width=4, enlarge=64, seed=0)
    enlarged = nn.functional.interpolate(small, (64, 64), mode="bilinear")
    assert torch.equal(model(small), large(enlarged))
    assert list(model.state_dict()) == list(large.state_dict())


def test_dropout_comes_before_last_bn_and_only_in_training() -> None:
    model = imagenet_resnet(18, width=4, last_norm=True, dropout=0.3, seed=0)
    assert names(model)[-4:] == ["flatten", "dropout", "last_bn", "fc"]
    assert model.dropout.p == 0.3


# the others


def test_a_deep_linear_network_is_a_product_of_matrices() -> None:
    model = deep_linear(5, 7, seed=0).double()
    x = torch.randn(3, 5, dtype=torch.float64)
    product = torch.eye(5, dtype=torch.float64)
    for weight in model.parameters():
        product = weight @ product
    torch.testing.assert_close(model(x), x @ product.T)
    normed = deep_linear(5, 7, norm="batch", seed=0)
    assert sum(isinstance(module, nn.BatchNorm1d) for module in normed) == 6


def test_the_cnn_has_three_convolutions_two_poolings_and_two_dense_layers() -> None:
    # 32 → 30 → 15 → 13 → 6 → 4
    model = cnn(norm="batch", seed=0)
    assert names(model) == (
        [
            "conv1",
            "act1",
            "bn1",
            "pool1",
            "conv2",
            "act2",
            "bn2",
            "pool2",
            "conv3",
            "act3",
            "bn3",
            "flatten",
            "fc4",
            "act4",
            "bn4",
            "fc5",
        ]
    )
    assert parameter_count(cnn(seed=0)) == sum(
        a * b * k + b for a, b, k in ((3, 32, 9), (32, 64, 9), (64, 32, 9), (32 * 16, 64, 1), (64, 10, 1))
    )
    assert names(cnn(norm="batch", post_activation=False, seed=0))[:3] == ["conv1", "bn1", "act1"]
    assert names(mlp([4, 3, 2], norm="batch", post_activation=True)) == ["flatten", "fc1", "act1", "bn1", "fc2"]


@pytest.mark.parametrize("norm", ["batch", "none"])
def test_mean_field_networks_are_initialized_as_the_theory_assumes(norm: str) -> None:
    for model in (
        meanfield_mlp(gamma=0.3, norm=norm, seed=0),
        meanfield_cnn(gamma=0.3, norm=norm, seed=0),
    ):
        norms = [m for m in model if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
        assert len(norms) == (3 if norm == "batch" else 0)
        for module in norms:
            assert torch.equal(module.weight, torch.full_like(module.weight, 0.3))
            assert not module.bias.any()
        layers = [m for m in model if isinstance(m, nn.Linear | nn.Conv2d)]
        biases = torch.cat([layer.bias.detach() for layer in layers])
        assert biases.square().mean().item() == pytest.approx(0.5, rel=5 * (2 / len(biases)) ** 0.5)
        for layer in layers:
            weight = layer.weight.detach()
            tolerance = 5 * (2 / weight.numel()) ** 0.5
            assert weight.square().mean().item() == pytest.approx(2 / weight[0].numel(), rel=tolerance)


def test_the_mean_field_networks_have_the_source_s_layers() -> None:
    dense = [m for m in meanfield_mlp(seed=0) if isinstance(m, nn.Linear)]
    assert [m.in_features for m in dense] == [784, 1000, 1000, 1000]
    convs = [m for m in meanfield_cnn((3, 32, 32), seed=0) if isinstance(m, nn.Conv2d)]
    assert [(m.out_channels, m.kernel_size, m.stride, m.padding) for m in convs] == [
        (width, (3, 3), (2, 2), (0, 0)) for width in (30, 60, 90)
    ]
    # the source counts 225 positions after the first convolution of a 32×32 image
    assert convs[0](torch.zeros(1, 3, 32, 32)).shape[2:].numel() == 225
    assert all(a.out_channels == b.in_channels for a, b in pairwise(convs))


@pytest.mark.parametrize(
    "make", [lambda: resnet(8, width=0), lambda: resnet(8, 0), lambda: vgg(11, width=-1), lambda: cnn(channels=(0,))]
)
def test_a_layer_without_channels_is_refused(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(ValueError, match="must be at least 1; a layer would have"):
        make()


def test_a_norm_factory_returns_a_module() -> None:
    with pytest.raises(ValueError, match="for 4 channels it returned None"):
        mlp([3, 4, 2], norm=lambda channels: None)  # type: ignore[arg-type, return-value]
