"""The networks of the papers."""

from __future__ import annotations

from wellcond.models.mlp import mlp
from wellcond.models.resnet import resnet
from wellcond.models.vgg import vgg

__all__ = ["mlp", "resnet", "vgg"]
