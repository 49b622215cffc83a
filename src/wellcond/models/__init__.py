"""The networks of the papers: sizes, a norm, an initialisation and a seed in, an `nn.Module` out."""

from __future__ import annotations

from wellcond.models.cnn import cnn
from wellcond.models.deep_linear import deep_linear
from wellcond.models.imagenet_resnet import imagenet_resnet
from wellcond.models.meanfield import meanfield_cnn, meanfield_mlp
from wellcond.models.mlp import mlp
from wellcond.models.preact_resnet18 import preact_resnet18
from wellcond.models.preresnet import preresnet
from wellcond.models.resnet import resnet
from wellcond.models.vgg import vgg

__all__ = [
    "cnn",
    "deep_linear",
    "imagenet_resnet",
    "meanfield_cnn",
    "meanfield_mlp",
    "mlp",
    "preact_resnet18",
    "preresnet",
    "resnet",
    "vgg",
]
