"""wellcond: why a network trains badly, in which layer, and what to do about it."""

from typing import TYPE_CHECKING, Any

# the one input
from wellcond.problem.problem import Problem

# curvature: linear operators over the flat parameter vector
from wellcond.curvature.operator import LinearOperator
from wellcond.curvature.hessian import Hessian
from wellcond.curvature.ggn import GGN
from wellcond.curvature.fisher import Fisher

# spectra
from wellcond.spectral.eigenvalues import Eigenvalues, eigenvalues
from wellcond.spectral.exact import Spectrum, spectrum
from wellcond.spectral.density import Density, density
from wellcond.spectral.trace import Trace, trace
from wellcond.spectral.condition import condition_number, numerical_rank

# layers
from wellcond.layerwise.kronecker import KroneckerFactors, kronecker_factors
from wellcond.layerwise.conditioning import ConditioningTable, conditioning
from wellcond.layerwise.neurons import NeuronTable, neurons
from wellcond.layerwise.activations import Activations, MomentChanges, activations
from wellcond.layerwise.covariate_shift import CovariateShift, covariate_shift

# the loss around the weights
from wellcond.surface.landscape import Landscape, landscape
from wellcond.surface.slices import LossSlice, loss_slice

# how large the learning rate may be
from wellcond.stability.limits import MaxLearningRate
from wellcond.stability.max_lr import max_lr

# remedies
from wellcond import nn
from wellcond.optim.bnp import BNP
from wellcond.optim.scale_amended import ScaleAmendedSGD
from wellcond.optim.scaled_sgd import LARS, LSALR

# what every measurement returns, takes and raises
from wellcond.results import Cost, Progress, Result, Row
from wellcond.results.finding import Finding
from wellcond.errors import Interrupted, WellcondError
from wellcond.version import __version__ as __version__

# what follows is half of the whole, and imported when it is first asked for
if TYPE_CHECKING:
    # the loss around the weights
    from wellcond.local.local_hessian import LocalHessian, local_hessian
    from wellcond.local.back_matching import BackMatching, back_matching

    # how large the learning rate may be
    from wellcond import local, meanfield

    # verdict
    from wellcond.diagnosis.diagnose import diagnose
    from wellcond.diagnosis.diagnosis import Diagnosis
    from wellcond.rules.rule import rule
    from wellcond.verify.suggest_lr import suggest_lr
    from wellcond.verify.suggested_rate import SuggestedRate
    from wellcond.treatment.treat import treat
    from wellcond.treatment.treatment import Treatment

__all__ = [
    "BNP",
    "GGN",
    "LARS",
    "LSALR",
    "Activations",
    "BackMatching",
    "ConditioningTable",
    "Cost",
    "CovariateShift",
    "Density",
    "Diagnosis",
    "Eigenvalues",
    "Finding",
    "Fisher",
    "Hessian",
    "Interrupted",
    "KroneckerFactors",
    "Landscape",
    "LinearOperator",
    "LocalHessian",
    "LossSlice",
    "MaxLearningRate",
    "MomentChanges",
    "NeuronTable",
    "Problem",
    "Progress",
    "Result",
    "Row",
    "ScaleAmendedSGD",
    "Spectrum",
    "SuggestedRate",
    "Trace",
    "Treatment",
    "WellcondError",
    "activations",
    "back_matching",
    "condition_number",
    "conditioning",
    "covariate_shift",
    "density",
    "diagnose",
    "eigenvalues",
    "kronecker_factors",
    "landscape",
    "local",
    "local_hessian",
    "loss_slice",
    "max_lr",
    "meanfield",
    "neurons",
    "nn",
    "numerical_rank",
    "rule",
    "spectrum",
    "suggest_lr",
    "trace",
    "treat",
]

_ON_DEMAND = {
    "local": "wellcond.local",
    "LocalHessian": "wellcond.local.local_hessian",
    "local_hessian": "wellcond.local.local_hessian",
    "BackMatching": "wellcond.local.back_matching",
    "back_matching": "wellcond.local.back_matching",
    "meanfield": "wellcond.meanfield",
    "diagnose": "wellcond.diagnosis.diagnose",
    "Diagnosis": "wellcond.diagnosis.diagnosis",
    "rule": "wellcond.rules.rule",
    "treat": "wellcond.treatment.treat",
    "Treatment": "wellcond.treatment.treatment",
    "suggest_lr": "wellcond.verify.suggest_lr",
    "SuggestedRate": "wellcond.verify.suggested_rate",
}


def __getattr__(name: str) -> Any:
    if name not in _ON_DEMAND:
        raise AttributeError(f"module 'wellcond' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(_ON_DEMAND[name])
    globals()[name] = getattr(module, name, module)
    return globals()[name]
