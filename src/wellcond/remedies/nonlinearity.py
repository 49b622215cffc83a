"""`nonlinearity`: a ReLU after every hidden layer of a linear network."""

from __future__ import annotations

import torch
from torch import nn

from wellcond.network.layers import is_affine, weighted_layers
from wellcond.network.recording import Call
from wellcond.nn.data_flow import RESHAPING
from wellcond.nn.replace import exchanged
from wellcond.remedies.drawn_weights import last_layers
from wellcond.remedies.forward_calls import calls_of, last_call
from wellcond.remedies.remedy import remedy
from wellcond.remedies.rewired import own_name
from wellcond.remedies.setup import Setup

LINEAR = {"linear", "conv1d", "conv2d", "conv3d", "add", "dropout", "avg_pool2d", "mean", "sum", "pad", "batch_norm",
          *RESHAPING}  # fmt: skip
"""Functions that are linear in evaluation mode."""


@remedy("nonlinearity", "activation", rules=("no-nonlinearity",))
def nonlinearity(setup: Setup) -> Setup | None:
    """Puts a ReLU after every hidden linear and convolutional layer: without one, all of them are one linear map."""
    layers = weighted_layers(setup.problem.model)
    last = set(last_layers(setup))
    hidden = [name for name, layer in layers.items() if is_affine(layer) and name and name not in last]
    has_others = len(layers) > len(hidden) + len(last)
    calls = calls_of(setup)
    end = last_call(calls)
    is_nonlinear = any(call.name not in LINEAR and call is not end and not _changes_nothing(call) for call in calls)
    if not hidden or has_others or is_nonlinear:
        return None

    def change(model: nn.Module) -> nn.Module:
        return exchanged(model, {(old := model.get_submodule(n)): nn.Sequential(old, nn.ReLU()) for n in hidden})

    names = ", ".join(f'"{own_name(name)}"' for name in hidden)
    lines = (
        f"for name in [{names}]:\n    model.set_submodule(name, nn.Sequential(model.get_submodule(name), nn.ReLU()))"
    )
    return setup.with_model(change, lines, is_new=False)


def _changes_nothing(call: Call) -> bool:
    """Whether a function returns what it was given, as LeakyReLU(1.0) does."""
    if not call.takes or not call.gives:
        return False
    x, y = call.takes[0].tensor, call.gives[0].tensor
    return x is not y and x.shape == y.shape and torch.equal(x, y)
