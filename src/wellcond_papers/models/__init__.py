"""The networks of the papers: sizes, a norm, an initialization and a seed in, an `nn.Module` out."""

from __future__ import annotations

from wellcond_papers.models.cnn import cnn
from wellcond_papers.models.deep_linear import deep_linear
from wellcond_papers.models.imagenet_resnet import imagenet_resnet
from wellcond_papers.models.meanfield import meanfield_cnn, meanfield_mlp
from wellcond_papers.models.mlp import mlp
from wellcond_papers.models.preact_resnet18 import preact_resnet18
from wellcond_papers.models.preresnet import preresnet
from wellcond_papers.models.resnet import resnet
from wellcond_papers.models.vgg import vgg

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
