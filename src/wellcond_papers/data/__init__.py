"""The data sets of the papers: the files their authors publish in, a `Dataset` of tensors or batches by step out."""

from __future__ import annotations

from wellcond_papers.data.batches import Batches
from wellcond_papers.data.cifar import cifar10, cifar100
from wellcond_papers.data.dataset import Dataset
from wellcond_papers.data.digits import digits
from wellcond_papers.data.download import download
from wellcond_papers.data.image_folder import ImageFolder, imagenet
from wellcond_papers.data.load import load
from wellcond_papers.data.mnist import fashion_mnist, mnist

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
