"""Inputs that are made up from a model's own sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import Recurrent, SelfAttention, Transformer, Written, seeded

from wellcond.errors import Unsupported
from wellcond.network.example_inputs import example_inputs

EXAMPLES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 2), (2, 4)),
    "tokens": (lambda: nn.Sequential(nn.Linear(4, 2), nn.Flatten(1), nn.Linear(16, 2)), (2, 8, 4)),
    "cifar": (lambda: nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(2 * 30 * 30, 2)), (2, 3, 32, 32)),
    "mnist": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 26 * 26, 2)), (2, 1, 28, 28)),
    "imagenet": (lambda: nn.Sequential(nn.Conv2d(3, 1, 7, 7), nn.Flatten(), nn.Linear(1024, 2)), (2, 3, 224, 224)),
    "audio": (lambda: nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(124, 2)), (2, 1, 64)),
    "volume": (lambda: nn.Conv3d(1, 2, 3), (2, 1, 16, 16, 16)),
    "vocabulary": (Transformer, (2, 8)),
    "attention": (SelfAttention, (2, 8, 4)),
    "recurrent": (Recurrent, (2, 8, 2)),
}  # fmt: skip


@pytest.mark.parametrize(("build", "shape"), EXAMPLES.values(), ids=EXAMPLES)
def test_inputs_are_made_from_the_first_weighted_layer(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    model = seeded(build)
    inputs = example_inputs(model)
    assert tuple(inputs.shape) == shape
    model(inputs)


def test_few_positions_get_few_tokens() -> None:
    def forward(net: Any, tokens: Tensor) -> Tensor:
        return net.words(tokens) + net.places(torch.arange(tokens.shape[1]))

    model = Written(forward, words=nn.Embedding(5, 4), places=nn.Embedding(3, 4))
    assert tuple(example_inputs(model).shape) == (2, 2)


def test_made_up_tokens_are_in_the_vocabulary() -> None:
    assert set(example_inputs(nn.Embedding(2, 3)).flatten().tolist()) == {0, 1}


def test_made_up_numbers_have_the_models_dtype_and_draw_nothing() -> None:
    model = nn.Linear(4, 2).to(torch.bfloat16)
    before = torch.get_rng_state()
    inputs = example_inputs(model)
    assert torch.equal(before, torch.get_rng_state())
    assert inputs.dtype == torch.bfloat16
    assert inputs.std() > 0


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.ReLU(), r"no inputs could be made up for ReLU \(tried: none\). Pass inputs="),
        (nn.Bilinear(3, 4, 5), "its layers do not show which sizes an input could have"),
        (nn.Sequential(nn.Conv2d(1, 1, 3), nn.Flatten(), nn.Linear(7, 1)), r"tried: \(2, 1, 32, 32\), .*layer '2'"),
    ],
)
def test_what_was_tried_is_said(model: nn.Module, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        example_inputs(model)
