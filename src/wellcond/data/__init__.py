"""The data sets of the papers, read from the files their authors publish."""

from __future__ import annotations

from wellcond.data.cifar10 import cifar10
from wellcond.data.dataset import Dataset
from wellcond.data.digits import digits
from wellcond.data.mnist import mnist

__all__ = ["Dataset", "cifar10", "digits", "mnist"]
