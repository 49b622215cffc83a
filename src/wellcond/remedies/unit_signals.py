"""`unit-signals`: weights scaled by what the layers make of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from wellcond.network.calling import call
from wellcond.remedies.batch_code import inputs_line
from wellcond.remedies.drawn_weights import PLAIN_LAYERS, SIGNALS, affine_layers, with_normal_weights, with_weights
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup

LINES = """\
def rescale(module, _, outputs):
    if outputs.numel() > 1:  # one number has no standard deviation
        std = outputs.std().clamp_min(1e-6)
        module.weight.data /= std
        return outputs / std
hooks = []
for module in model.modules():
    if isinstance(module, nn.RNNBase):
        module.reset_parameters()
    elif isinstance(module, (nn.Linear, nn.modules.conv._ConvNd)):
        nn.init.kaiming_normal_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
        hooks.append(module.register_forward_hook(rescale))
with torch.no_grad():
    model({inputs})  # every layer's outputs get a standard deviation of 1
for hook in hooks:
    hook.remove()"""


@remedy("unit-signals", "weights", rules=("bad-initialisation", *SIGNALS))
def unit_signals(setup: Setup) -> Setup | None:
    """Draws all weights, and scales each layer's so that its outputs have a standard deviation of 1 on a batch.

    Layer after layer in the order of the forward pass (LSUV, Mishkin and Matas 2016). It knows what a rule by fan-in
    does not: inputs of any size, residual paths that add up, activations of one's own. Recurrent layers are drawn as
    torch draws them. Where some layers are frozen or share weights, the others are drawn by their fan-in.
    """
    model = setup.problem.model
    plain = {module for module in model.modules() if isinstance(module, PLAIN_LAYERS)}
    if not plain or plain != set(affine_layers(model).values()):
        return with_normal_weights(setup, "relu")
    inputs = setup.inputs
    form = "**inputs" if isinstance(inputs, Mapping) else "*inputs" if isinstance(inputs, (tuple, list)) else "inputs"

    def draw(model: nn.Module) -> None:
        hooks = []
        for module in model.modules():
            if isinstance(module, nn.RNNBase):
                module.reset_parameters()
            elif isinstance(module, PLAIN_LAYERS):
                nn.init.kaiming_normal_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
                hooks.append(module.register_forward_hook(_rescale))
        call(model, inputs)
        for hook in hooks:
            hook.remove()

    return with_weights(setup, draw, inputs_line(setup), LINES.format(inputs=form))


def _rescale(module: Any, _: Any, outputs: Tensor) -> Tensor | None:
    if outputs.numel() < 2:  # one number has no standard deviation
        return None
    std = outputs.std().clamp_min(1e-6)
    module.weight.data /= std
    return outputs / std
