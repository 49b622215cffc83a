"""The networks of lange2022, and the norms that BNP is compared with."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.nn import (
    BatchRenorm1d,
    BatchRenorm2d,
    FourThingsBatchNorm,
    FourThingsBatchNorm1d,
    FourThingsBatchNorm2d,
)
from wellcond_papers.models import cnn, imagenet_resnet, mlp, preresnet, resnet
from wellcond_papers.models.initialize import he
from wellcond_papers.models.layers import Norm

FULLY_CONNECTED, CNN, RESNET, PRERESNET, IMAGENET = "fully connected", "CNN", "ResNet", "PreResNet", "ImageNet ResNet"
UNLIMITED = 1e6
TENSORFLOW: dict[str, Any] = {"eps": 1e-3, "momentum": 0.01}
"""TensorFlow's defaults of norms, in torch's terms."""
TENSORFLOW_BN = "BN, TensorFlow's defaults"
# torch has no Batch Renorm: TensorFlow's defaults, which the source took, correct without limits from the start
RENORM: dict[str, Any] = TENSORFLOW | {"r_max": UNLIMITED, "d_max": UNLIMITED, "r_ramp": (0, 1), "d_ramp": (0, 1)}
GHOST = 16
"""Examples that "4 things" normalizes together; smaller batches are normalized in groups of channels."""
AFFINE_DECAY = 1e-4
"""Weight decay of γ − 1 and β in "4 things"; the source does not state it."""


class BatchNormOfOne(nn.BatchNorm1d):
    """Batch normalization that also takes a batch of one, which is its own mean: x − μ = 0, and β is left.

    torch refuses such a batch. The source says that networks do not train then.

    Example:
        >>> norm = BatchNormOfOne(2)
        >>> norm(torch.tensor([[5.0, 7.0]])).tolist()
        [[0.0, 0.0]]
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or len(x) > 1:
            return super().forward(x)
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.momentum is not None
        with torch.no_grad():
            self.running_mean.lerp_(x[0], self.momentum)
            self.running_var.mul_(1 - self.momentum)
        return self.bias.expand_as(x)


class BatchRenormOfOne(BatchRenorm1d):
    """Batch Renorm that also takes a batch of one, which is its own mean: in eq. 3, s (x − μ_H)/σ_H = 0 and d is left.

    d = (x − μ)/σ has no gradient, so that nothing below this layer is trained.

    Example:
        >>> norm = BatchRenormOfOne(2, eps=0.0)  # starts with μ = 0 and σ = 1
        >>> norm(torch.tensor([[5.0, 7.0]])).tolist()
        [[5.0, 7.0]]
    """

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or len(input) > 1:
            return super().forward(input)
        mean, scale = self.running_statistics()
        d = ((input - mean) / scale).detach()
        self._track({"running_mean": input[0], "running_var": torch.zeros_like(input[0])})
        return d * self.weight + self.bias


def network(settings: Any, image: tuple[int, int, int], classes: int) -> nn.Module:
    """The network of a cell. Those of a seed start from the same weights, whatever the method.

    Args:
        settings: "network", "method", "batch", "seed", and what the network has: "hidden", "channels", "depth",
            "width", "enlarge", "init_scale" (of He's weights), "groups" (channels of a group), "alpha" (of "4 things"),
            "bias" (whether the convolutions of a residual network have one).
        image: Channels, height and width of an input.
        classes: Outputs.
    """
    kind, seed = settings["network"], settings["seed"]
    dense, spatial = norms(settings)
    if kind == FULLY_CONNECTED:
        # the source puts norms after the activation, and says nothing of LN: before it, as LN's authors do
        sizes, is_after = [image[0] * image[1] * image[2], *settings["hidden"], classes], dense != "layer"
        return mlp(sizes, norm=dense, post_activation=is_after, init="glorot", seed=seed)
    if kind == CNN:
        return cnn(image, settings["channels"], settings["hidden"], classes, norm=spatial, dense_norm=dense, seed=seed)
    form: dict[str, Any] = {"norm": spatial, "width": settings["width"], "seed": seed}
    if "enlarge" in settings:
        form["enlarge"] = settings["enlarge"]
    if "init_scale" in settings:
        form["init"] = he(settings["init_scale"])
    makers: dict[str, Any] = {RESNET: resnet, PRERESNET: preresnet, IMAGENET: imagenet_resnet}
    model: nn.Module = makers[kind](settings["depth"], classes, **form)
    if settings.get("bias", False):
        for layer in [module for module in model.modules() if isinstance(module, nn.Conv2d)]:
            layer.bias = nn.Parameter(torch.zeros(layer.out_channels))
    return model


def norms(settings: Any) -> tuple[Norm, Norm]:
    """The norms of features (N, C) and of images (N, C, H, W) that a method has."""
    match settings["method"]:
        case "BN":
            return BatchNormOfOne, "batch"
        case method if method == TENSORFLOW_BN:
            return partial(BatchNormOfOne, **TENSORFLOW), partial(nn.BatchNorm2d, **TENSORFLOW)
        case "LN":
            return "layer", "layer"
        case "GN" | "BNP+GN":
            groups = partial(_groups, settings["groups"])
            return groups, groups
        case "Renorm":
            return partial(BatchRenormOfOne, **RENORM), partial(BatchRenorm2d, **RENORM)
        case "4 things":
            batch, alpha = settings["batch"], settings["alpha"]
            # without groups an example has one value per feature, and so no moments of its own
            dense = partial(_four_things, FourThingsBatchNorm1d, batch, alpha if batch < GHOST else 0.0, 2)
            return dense, partial(_four_things, FourThingsBatchNorm2d, batch, alpha, 1)
        case _:
            return "none", "none"


def _groups(size: int, channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(max(1, channels // size), channels)


def _four_things(
    kind: type[FourThingsBatchNorm], batch: int, alpha: float, least: int, channels: int
) -> FourThingsBatchNorm:
    """Ghosts in large batches, groups of C/32 channels (but `least`) in small ones; γ − 1 and β decay."""
    is_large = batch >= GHOST
    group = 1 if is_large else max(channels // 32, least)
    norm = kind(channels, alpha=alpha, ghost_size=GHOST if is_large else batch, channels_per_group=group)
    for parameter, center in ((norm.weight, 1.0), (norm.bias, 0.0)):
        # the gradient of their penalty
        parameter.register_hook(partial(_decayed, parameter, center))  # type: ignore[no-untyped-call]
    return norm


def _decayed(parameter: Tensor, center: float, gradient: Tensor) -> Tensor:
    return gradient + AFFINE_DECAY * (parameter.detach() - center)
