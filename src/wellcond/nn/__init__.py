"""Layers and surgery: variants of `torch.nn.BatchNorm*`, and new models with other norms in other places.

In: a model. Out: a changed copy; the model itself does not change.
"""

from __future__ import annotations

from wellcond.nn.four_things import (
    FourThingsBatchNorm,
    FourThingsBatchNorm1d,
    FourThingsBatchNorm2d,
    FourThingsBatchNorm3d,
    affine_penalty,
)
from wellcond.nn.ghost import GhostBatchNorm, GhostBatchNorm1d, GhostBatchNorm2d, GhostBatchNorm3d
from wellcond.nn.last_batchnorm import with_last_batchnorm
from wellcond.nn.lp import LpBatchNorm, LpBatchNorm1d, LpBatchNorm2d, LpBatchNorm3d
from wellcond.nn.merge import merge_batchnorm
from wellcond.nn.noisy import NoisyBatchNorm, NoisyBatchNorm1d, NoisyBatchNorm2d, NoisyBatchNorm3d
from wellcond.nn.normalized import with_norms
from wellcond.nn.renorm import BatchRenorm, BatchRenorm1d, BatchRenorm2d, BatchRenorm3d
from wellcond.nn.replace import replace_norm
from wellcond.nn.standardized import Standardized, with_standardized_inputs

__all__ = [
    "BatchRenorm",
    "BatchRenorm1d",
    "BatchRenorm2d",
    "BatchRenorm3d",
    "FourThingsBatchNorm",
    "FourThingsBatchNorm1d",
    "FourThingsBatchNorm2d",
    "FourThingsBatchNorm3d",
    "GhostBatchNorm",
    "GhostBatchNorm1d",
    "GhostBatchNorm2d",
    "GhostBatchNorm3d",
    "LpBatchNorm",
    "LpBatchNorm1d",
    "LpBatchNorm2d",
    "LpBatchNorm3d",
    "NoisyBatchNorm",
    "NoisyBatchNorm1d",
    "NoisyBatchNorm2d",
    "NoisyBatchNorm3d",
    "Standardized",
    "affine_penalty",
    "merge_batchnorm",
    "replace_norm",
    "with_last_batchnorm",
    "with_norms",
    "with_standardized_inputs",
]
