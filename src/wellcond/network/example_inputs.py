"""Running a model on example inputs, which are made up where the user passes none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import tree_map

from wellcond.errors import Unsupported
from wellcond.network.calling import call, tensors_in, why_call_failed
from wellcond.network.isolation.isolation import isolated
from wellcond.network.layers import LinearRule, by_site, rule_for, weighted_layers

IMAGE_SIZES = {1: (32, 28, 64, 96, 224), 2: (32, 28, 64, 96, 224), 3: (16, 8, 32, 64)}
"""Sides to try, by the number of spatial axes."""
TOKENS = (8, 4, 2, 1)
"""Lengths to try: some models have few positions."""
EXAMPLES = 2


def example_inputs(model: nn.Module) -> Any:
    """Inputs on which the model runs, from the type and the sizes of its first weighted layer.

    | First weighted layer           | Inputs that are tried, in this order                          |
    |--------------------------------|---------------------------------------------------------------|
    | linear, n features             | (2, n), (2, 8, n)                                             |
    | convolution, c channels        | (2, c, 32, …), then sides of 28, 64, 96 and 224; smaller in 3d |
    | embedding                      | tokens (2, 8), then lengths of 4, 2 and 1                     |
    | recurrent, attention, width n  | (2, 8, n)                                                     |

    A Hugging Face model is asked first: its main input's name, with `image_size`, `num_channels` and `vocab_size` of
    its configuration.

    Args:
        model: A model whose forward pass takes one tensor, or a Hugging Face model.

    Returns:
        The first inputs on which the model runs in evaluation mode: a tensor, or a dict.

    Raises:
        Unsupported: The model runs on none of them.

    Example:
        >>> example_inputs(nn.Sequential(nn.Flatten(), nn.Linear(12, 3))).shape
        torch.Size([2, 12])
    """
    tried, failure = [], "its layers do not show which sizes an input could have"
    with evaluating(model):
        for inputs in chain(_asked(model), _guessed(model)):
            try:
                run(model, inputs)
            except Unsupported as error:
                tried.append(" and ".join(str(tuple(tensor.shape)) for tensor in tensors_in(inputs)))
                failure = str(error)
            else:
                return inputs
    raise Unsupported(
        f"no inputs could be made up for {type(model).__name__} (tried: {', '.join(tried) or 'none'}). Pass inputs=, "
        f"the arguments of the model: a tensor, a tuple or a dict. The last failure: {failure}"
    )


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; on leaving, modes, buffers and random numbers are restored."""
    with isolated(model, _home(model)[0], batchnorm="running", dropout=False), torch.no_grad():
        yield


def run(model: nn.Module, inputs: Any) -> Any:
    """The model's outputs on copies of the inputs on its device; it may change the copies in place.

    Raises:
        Unsupported: The model does not run on the inputs; the message names the layer.
    """
    device, _ = _home(model)
    inputs = dict(inputs) if isinstance(inputs, Mapping) else inputs
    inputs = tree_map(lambda v: v.detach().to(device, copy=True) if isinstance(v, Tensor) else v, inputs)
    try:
        return call(model, inputs)
    except Exception as error:
        raise Unsupported(f"the model cannot be run: {why_call_failed(model, 0, inputs, error)}") from error


def _asked(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Inputs according to the configuration of a Hugging Face model."""
    config, main_input = getattr(model, "config", None), getattr(model, "main_input_name", None)
    if main_input == "pixel_values":
        stated = getattr(config, "image_size", None)
        for size in IMAGE_SIZES[2] if stated is None else [stated]:
            sides = size if isinstance(size, (tuple, list)) else (size, size)
            yield {main_input: _numbers(model, getattr(config, "num_channels", 3), *sides)}
    elif main_input == "input_ids" and isinstance(vocabulary := getattr(config, "vocab_size", None), int):
        yield from ({main_input: tokens} for tokens in _tokens(model, vocabulary))
    if main_input is not None and isinstance(own := getattr(model, "dummy_inputs", None), Mapping):
        yield dict(own)


def _guessed(model: nn.Module) -> Iterator[Tensor]:
    layer: Any = next(iter(weighted_layers(model).values()), nn.Identity())
    if isinstance(layer, nn.Embedding):
        yield from _tokens(model, layer.num_embeddings)
    elif isinstance(layer, _ConvNd):
        axes = len(layer.kernel_size)
        yield from (_numbers(model, layer.in_channels, *[side] * axes) for side in IMAGE_SIZES[axes])
    elif isinstance(layer, nn.RNNBase):
        yield _numbers(model, TOKENS[0], layer.input_size)
    elif isinstance(layer, nn.MultiheadAttention):
        yield _numbers(model, TOKENS[0], layer.embed_dim)
    elif isinstance(rule_for(layer), LinearRule):
        features = by_site(layer, layer.weight).shape[2]
        yield from (_numbers(model, *shape) for shape in ((features,), (TOKENS[0], features)))


def _numbers(model: nn.Module, *shape: int) -> Tensor:
    device, dtype = _home(model)
    generator = torch.Generator().manual_seed(0)  # the default generator belongs to the user
    return torch.randn(EXAMPLES, *shape, generator=generator, dtype=torch.float32, device="cpu").to(device, dtype)


def _tokens(model: nn.Module, vocabulary: int) -> Iterator[Tensor]:
    for length in TOKENS:
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(vocabulary, (EXAMPLES, length), generator=generator, device="cpu")
        yield tokens.to(_home(model)[0])


def _home(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Device and dtype of the model's first floating-point parameter or buffer."""
    for tensor in chain(model.parameters(), model.buffers()):
        if tensor.is_floating_point():
            return tensor.device, tensor.dtype
    return torch.device("cpu"), torch.get_default_dtype()
