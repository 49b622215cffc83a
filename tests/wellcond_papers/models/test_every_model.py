"""What holds for all models: what a seed decides, norms, default device and dtype, arguments that make no network."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from wellcond.nn import NoisyBatchNorm1d, NoisyBatchNorm2d
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
from wellcond_papers.models.initialize import NAMED, gaussian, he

Build = Callable[..., nn.Sequential]
FLAT: dict[str, Build] = {
    "mlp": partial(mlp, [192, 8, 4]),
    "deep linear": partial(deep_linear, 192, 3),
    "mean-field mlp": partial(meanfield_mlp, 192, width=8),
}
IMAGES: dict[str, Build] = {
    "cnn": partial(cnn, channels=(8, 8, 4), hidden=(8,)),
    "vgg": partial(vgg, 11, width=4),
    "resnet": partial(resnet, 8, width=4),
    "VGG-style": partial(resnet, 8, width=4, shortcuts=False),
    "preresnet": partial(preresnet, 8, width=4),
    "preresnet-v1": partial(preresnet, 8, width=4, final_norm=False, last_norm=True),
    "preact resnet 18": partial(preact_resnet18, width=4),
    "imagenet resnet 18": partial(imagenet_resnet, 18, width=4),
    "imagenet resnet 50": partial(imagenet_resnet, 50, width=4, last_norm=True, dropout=0.3),
    "mean-field cnn": partial(meanfield_cnn, (3, 32, 32), channels=(4, 8, 8)),
}
MODELS = FLAT | IMAGES | {init: partial(mlp, [6, 5, 4], init=init) for init in NAMED}


def last_weight(model: nn.Sequential) -> torch.Tensor:
    """Of the layer that is filled last, so that it also tells whether as much was drawn before it."""
    weight = model[-1].weight
    assert isinstance(weight, torch.Tensor)
    return weight.detach()


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_a_seed_or_the_global_generator_fixes_the_weights(build: Build) -> None:
    before = torch.get_rng_state()
    first, second, other = (build(seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name])
    assert not torch.equal(last_weight(first), last_weight(other))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        drawn, next_drawn = build(), build()
    assert torch.equal(last_weight(drawn), last_weight(first))
    assert not torch.equal(last_weight(next_drawn), last_weight(first))


def norms(model: nn.Module) -> list[nn.Module]:
    weighted = (nn.Linear, nn.Conv2d)
    return [m for m in model.modules() if hasattr(m, "weight") and not isinstance(m, weighted)]


@pytest.mark.parametrize("build", (FLAT | IMAGES).values(), ids=FLAT | IMAGES)
def test_every_norm_can_be_exchanged_and_the_weights_stay_the_same(build: Build) -> None:
    plain = build(norm="none", seed=0)
    # what is left is the norm of LastBN
    assert all(isinstance(norm, nn.BatchNorm1d) for norm in norms(plain))
    weights = [p for name, p in plain.named_parameters() if "bn" not in name]
    x = torch.randn(4, 3, 32, 32) if build in IMAGES.values() else torch.randn(4, 192)
    for norm in ("batch", "layer", "group"):
        model = build(norm=norm, seed=0)
        assert len(norms(model)) > len(norms(plain))
        own = [p for p in model.parameters() if p.dim() > 1]
        assert all(map(torch.equal, own, (w for w in weights if w.dim() > 1)))
        model(x).sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_a_factory_makes_the_norms_and_gets_the_number_of_channels() -> None:
    flat = mlp([6, 5, 4, 3], norm=NoisyBatchNorm1d, seed=0)
    assert [name for name, _ in flat.named_children()] == [
        "flatten",
        "fc1",
        "norm1",
        "act1",
        "fc2",
        "norm2",
        "act2",
        "fc3",
    ]
    assert [norm.num_features for norm in flat.modules() if isinstance(norm, NoisyBatchNorm1d)] == [5, 4]
    both = cnn(norm=NoisyBatchNorm2d, dense_norm=NoisyBatchNorm1d, seed=0)
    assert [type(norm) for norm in norms(both)] == [NoisyBatchNorm2d] * 3 + [NoisyBatchNorm1d]
    assert both(torch.randn(3, 3, 32, 32)).shape == (3, 10)
    grouped = resnet(8, norm=partial(nn.GroupNorm, 8), seed=0)
    assert {norm.num_groups for norm in norms(grouped) if isinstance(norm, nn.GroupNorm)} == {8}


def test_group_norms_have_groups_of_four_channels_or_what_divides_them() -> None:
    assert mlp([3, 8, 6, 5, 2], norm="group").gn1.num_groups == 2
    assert mlp([3, 8, 6, 5, 2], norm="group").gn2.num_groups == 3
    assert mlp([3, 8, 6, 5, 2], norm="group").gn3.num_groups == 5


def test_layer_norm_of_images_is_over_channels_and_pixels() -> None:
    norm, x = vgg(11, norm="layer", width=4).ln2, torch.randn(2, 8, 5, 5)
    assert torch.allclose(norm(x), nn.functional.layer_norm(x, x.shape[1:]), atol=1e-6)


@pytest.mark.slow
def test_the_default_device_and_dtype_are_honored() -> None:
    with torch.device("meta"):
        for build in (FLAT | IMAGES).values():
            assert all(p.is_meta for p in build(norm="batch", seed=0).parameters())
    torch.set_default_dtype(torch.float64)
    try:
        for build in (FLAT | IMAGES).values():
            assert all(p.dtype == torch.float64 for p in build(norm="batch", seed=0).parameters())
    finally:
        torch.set_default_dtype(torch.float32)


WRONG: list[tuple[Callable[[Any], Any], list[Any], str]] = [
    (mlp, [[], [3], [3, 0, 2], [-1, 2]], "sizes must be"),
    *(
        (lambda norm, build=build: build(norm=norm), ["bach", None], "norm must be one of .*'group'.* or a factory")
        for build in (FLAT | IMAGES).values()
    ),
    (lambda init: mlp([2, 2], init=init), ["xavier"], "init must be one of .*'glorot'.* not 'xavier'"),
    (lambda init: resnet(8, init=init), ["xavier"], "init must be one of"),
    (vgg, [0, 12, 20, -11], "depth must be one of 11, 13, 16, 19, not {wrong}"),
    (imagenet_resnet, [34], "depth must be one of 18, 50, not 34"),
    (resnet, [18], "not {wrong}; nearest: 14 or 20$"),
    (preresnet, [21], "not {wrong}; nearest: 20 or 26$"),
    (resnet, [2, 7, 0, -20], "not {wrong}; nearest: 8$"),
    (cnn, [(3, 8, 8), (1, 32, 17)], "too small"),
    (meanfield_cnn, [(1, 6, 28)], "images of 6x28 are too small"),
    (lambda layers: deep_linear(layers=layers), [0], "sizes must be"),
    (gaussian, [-1.0], "must not be negative"),
]


@pytest.mark.parametrize(("build", "arguments", "message"), WRONG)
def test_arguments_that_make_no_network_are_refused(build: Build, arguments: list[Any], message: str) -> None:
    for wrong in arguments:
        with pytest.raises(ValueError, match=message.format(wrong=wrong)):
            build(wrong)


def test_a_scaled_rule_gives_the_scaled_weights_everywhere() -> None:
    full, tenth = (resnet(8, init=he(scale), seed=0) for scale in (1.0, 0.1))
    for one, other in zip(full.parameters(), tenth.parameters(), strict=True):
        if one.dim() > 1:
            torch.testing.assert_close(other, one / 10)
