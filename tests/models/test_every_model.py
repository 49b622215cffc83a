"""What holds for all models: what a seed decides, default device and dtype, and arguments that make no network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import nn

from wellcond.models import mlp, resnet, vgg
from wellcond.models.mlp import Init

Build = Callable[..., nn.Sequential]
MODELS: dict[str, Build] = {
    **{init: lambda seed=None, init=init: mlp([6, 5, 4], init=init, seed=seed) for init in get_args(Init)},
    "resnet": lambda seed=None: resnet(8, seed=seed),
    "vgg": lambda seed=None: vgg(11, seed=seed),
}


def last_weight(model: nn.Sequential) -> torch.Tensor:
    """Of the layer that is filled last, so that it also tells whether as much was drawn before it."""
    return model[-1].weight.detach()


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_a_seed_fixes_the_weights_and_without_one_the_global_generator_decides(build: Build) -> None:
    before = torch.get_rng_state()
    first, second, other = (build(seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name])
    assert not torch.equal(last_weight(first), last_weight(other))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        drawn, next_drawn = build(), build()
    assert torch.equal(last_weight(drawn), last_weight(first))
    assert not torch.equal(last_weight(next_drawn), last_weight(first))


def test_the_default_device_and_dtype_are_honoured() -> None:
    with torch.device("meta"):
        assert all(p.is_meta for p in mlp([4, 3, 2], norm="batch", seed=0).parameters())
    torch.set_default_dtype(torch.float64)
    try:
        assert all(p.dtype == torch.float64 for p in mlp([4, 3, 2], norm="batch", seed=0).parameters())
    finally:
        torch.set_default_dtype(torch.float32)


WRONG: list[tuple[Callable[[Any], Any], list[Any], str]] = [
    (mlp, [[], [3], [3, 0, 2], [-1, 2]], "sizes must be"),
    (lambda norm: mlp([2, 2], norm=norm), ["group"], r"norm must be one of \('none', 'batch', 'layer'\)"),
    (lambda init: mlp([2, 2], init=init), ["xavier"], "init must be one of"),
    (vgg, [0, 12, 20, -11], "depth must be one of 11, 13, 16, 19, not {wrong}"),
    (lambda norm: vgg(11, norm=norm), ["layer"], r"norm must be one of \('batch', 'none'\), not 'layer'"),
    (resnet, [18], "not {wrong}; nearest: 14 or 20$"),
    (resnet, [21], "not {wrong}; nearest: 20 or 26$"),
    (resnet, [2, 7, 0, -20], "not {wrong}; nearest: 8$"),
]


@pytest.mark.parametrize(("build", "arguments", "message"), WRONG)
def test_arguments_that_make_no_network_are_refused(build: Build, arguments: list[Any], message: str) -> None:
    for wrong in arguments:
        with pytest.raises(ValueError, match=message.format(wrong=wrong)):
            build(wrong)
