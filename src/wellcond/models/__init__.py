"""The networks of the papers: sizes and a seed in, an `nn.Module` out."""

from __future__ import annotations

from wellcond.models.mlp import mlp
from wellcond.models.resnet import resnet
from wellcond.models.vgg import vgg

__all__ = ["mlp", "resnet", "vgg"]
