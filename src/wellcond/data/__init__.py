"""The data sets of the papers: the files their authors publish in, a `Dataset` of tensors or batches by step out."""

from __future__ import annotations

from wellcond.data.batches import Batches
from wellcond.data.cifar import cifar10, cifar100
from wellcond.data.dataset import Dataset
from wellcond.data.digits import digits
from wellcond.data.download import download
from wellcond.data.image_folder import ImageFolder, imagenet
from wellcond.data.load import load
from wellcond.data.mnist import fashion_mnist, mnist

__all__ = [
    "Batches",
    "Dataset",
    "ImageFolder",
    "cifar10",
    "cifar100",
    "digits",
    "download",
    "fashion_mnist",
    "imagenet",
    "load",
    "mnist",
]
