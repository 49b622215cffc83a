"""The data sets of the papers: the files their authors publish in, a `Dataset` of tensors out."""

from __future__ import annotations

from wellcond.data.cifar10 import cifar10
from wellcond.data.dataset import Dataset
from wellcond.data.digits import digits
from wellcond.data.mnist import mnist

__all__ = ["Dataset", "cifar10", "digits", "mnist"]
