"""The networks that lange2022 compares."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from zoo import normal

from wellcond.nn import BatchRenorm1d
from wellcond_papers.papers.lange2022.networks import (
    AFFINE_DECAY,
    CNN,
    FULLY_CONNECTED,
    PRERESNET,
    RESNET,
    TENSORFLOW_BN,
    BatchNormOfOne,
    BatchRenormOfOne,
    network,
    norms,
)

METHODS = ["vanilla", "tuned vanilla", "BN", TENSORFLOW_BN, "BNP", "Renorm", "LN"]


def fully_connected(method: str) -> nn.Module:
    settings = {"network": FULLY_CONNECTED, "method": method, "hidden": [7, 5], "batch": 60, "seed": 4}
    return network(settings, (3, 2, 2), 3)


def small_cnn(method: str, batch: int) -> nn.Module:
    settings = {
        "network": CNN,
        "method": method,
        "channels": [32, 64, 32],
        "hidden": [64],
        "batch": batch,
        "alpha": 0.1,
    }
    return network(settings | {"seed": 0}, (3, 32, 32), 10)


@pytest.mark.parametrize("method", METHODS)
def test_all_methods_start_from_the_same_linear_layers(method: str) -> None:
    reference, model = fully_connected("vanilla"), fully_connected(method)
    for name in ("fc1", "fc2", "fc3"):
        assert torch.equal(model.get_submodule(name).weight, reference.get_submodule(name).weight)
        assert not model.get_submodule(name).bias.any()


def test_batch_norms_stand_behind_the_activation_and_layer_norms_before_it() -> None:
    kinds = [type(module).__name__ for module in fully_connected("BN")]
    assert kinds == ["Flatten", "Linear", "ReLU", "BatchNormOfOne", "Linear", "ReLU", "BatchNormOfOne", "Linear"]
    assert [type(module).__name__ for module in fully_connected("LN")][1:4] == ["Linear", "LayerNorm", "ReLU"]


def test_one_batch_norm_has_the_defaults_of_tensorflow() -> None:
    """There, 0.99 is the weight of the old average."""
    kinds = {"BN": (1e-5, 0.1), TENSORFLOW_BN: (1e-3, 0.01)}
    for method, expected in kinds.items():
        for norm in norms({"method": method}):
            layer = nn.BatchNorm2d(4) if norm == "batch" else norm(4)
            assert (layer.eps, layer.momentum) == expected


def test_the_cnn_has_five_layers_and_a_norm_behind_every_hidden_one() -> None:
    model = small_cnn("BN", 128)
    assert sum(isinstance(module, (nn.Conv2d, nn.Linear)) for module in model) == 5
    assert sum(isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)) for module in model) == 4


def test_batch_norm_of_one_image_is_its_shift_and_has_no_gradient_below() -> None:
    norm = BatchNormOfOne(3)
    nn.init.constant_(norm.bias, 2.0)
    x = normal(1, 3).float().requires_grad_()
    y = norm(x)
    assert torch.equal(y, torch.full((1, 3), 2.0))
    assert not torch.autograd.grad(y.sum(), x, allow_unused=True)[0]
    torch.testing.assert_close(norm.running_mean, 0.1 * x[0].detach())
    torch.testing.assert_close(norm.running_var, torch.full((3,), 0.9))


def test_batch_norm_of_more_images_is_torchs() -> None:
    x = normal(5, 3).float()
    assert torch.equal(BatchNormOfOne(3)(x), nn.BatchNorm1d(3)(x))


@pytest.mark.parametrize(
    ("batch", "ghost", "groups"), [(128, 16, [1, 1, 1, 1]), (2, 2, [1, 2, 1, 2]), (1, 1, [1, 2, 1, 2])]
)
def test_four_things_forms_ghosts_or_groups_of_a_32nd_of_the_channels(
    batch: int, ghost: int, groups: list[int]
) -> None:
    norms: list[Any] = [module for module in small_cnn("4 things", batch) if hasattr(module, "ghost_size")]
    assert [norm.ghost_size for norm in norms] == [ghost] * 4
    assert [norm.channels_per_group for norm in norms] == groups
    assert small_cnn("4 things", batch)(normal(batch, 3, 32, 32).float()).shape == (batch, 10)


def test_four_things_adds_the_gradient_of_its_penalty() -> None:
    make: Any = norms({"method": "4 things", "batch": 2, "alpha": 0.1})[1]
    norm = make(32)
    nn.init.constant_(norm.weight, 3.0)
    nn.init.constant_(norm.bias, 0.5)
    (5 * norm.weight.sum() + 7 * norm.bias.sum()).backward()
    # ½ (‖γ − 1‖² + ‖β‖²) has the gradients γ − 1 = 2 and β = ½
    torch.testing.assert_close(norm.weight.grad, torch.full((32,), 5 + AFFINE_DECAY * 2))
    torch.testing.assert_close(norm.bias.grad, torch.full((32,), 7 + AFFINE_DECAY / 2))


@pytest.mark.parametrize("kind", [RESNET, PRERESNET])
def test_residual_networks_have_groups_of_four_channels_and_scaled_weights(kind: str) -> None:
    settings = {"network": kind, "depth": 8, "width": 16, "groups": 4, "seed": 0, "batch": 8}
    plain = network(settings | {"method": "GN", "init_scale": 1.0}, (3, 32, 32), 10)
    scaled = network(settings | {"method": "BNP+GN", "init_scale": 0.1}, (3, 32, 32), 10)
    norms = [module for module in scaled.modules() if isinstance(module, nn.GroupNorm)]
    assert norms
    assert {norm.num_channels // norm.num_groups for norm in norms} == {4}
    torch.testing.assert_close(scaled.conv.weight, 0.1 * plain.conv.weight)


def test_batch_renorm_of_one_example_passes_no_gradient_and_is_batch_renorm_for_more() -> None:
    norm = BatchRenormOfOne(3, momentum=0.01).double()
    x = normal(1, 3).requires_grad_()
    norm(x).sum().backward()
    assert x.grad is None
    torch.testing.assert_close(norm.running_mean, 0.01 * x[0].detach())
    torch.testing.assert_close(norm.running_var, torch.full((3,), 0.99).double())
    plain, own = BatchRenorm1d(3), BatchRenormOfOne(3)
    batch = normal(4, 3)
    assert torch.equal(plain(batch), own(batch))


def test_a_residual_network_may_have_a_bias_in_every_convolution() -> None:
    settings = {"network": RESNET, "method": "BNP+GN", "groups": 4, "depth": 8, "width": 4, "seed": 0}
    plain, biased = (network(settings | {"bias": bias}, (3, 8, 8), 10) for bias in (False, True))
    kernels = [module for module in biased.modules() if isinstance(module, nn.Conv2d)]
    assert all(layer.bias is not None and not layer.bias.any() for layer in kernels)
    x = normal(2, 3, 8, 8).float()
    assert torch.equal(plain(x), biased(x))
