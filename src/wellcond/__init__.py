"""wellcond: why a network trains badly, in which layer, and what to do about it."""

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
from wellcond.local.local_hessian import LocalHessian, local_hessian
from wellcond.local.back_matching import BackMatching, back_matching

# how large the learning rate may be
from wellcond.stability.limits import MaxLearningRate
from wellcond.stability.max_lr import max_lr
from wellcond import local, meanfield

# verdict
from wellcond.diagnosis.diagnose import diagnose
from wellcond.diagnosis.diagnosis import Diagnosis
from wellcond.results.finding import Finding
from wellcond.rules.rule import rule
from wellcond.verify.suggest_lr import suggest_lr
from wellcond.verify.suggested_rate import SuggestedRate
from wellcond.treatment.treat import treat
from wellcond.treatment.treatment import Treatment

# remedies
from wellcond import nn
from wellcond.optim.bnp import BNP
from wellcond.optim.scale_amended import ScaleAmendedSGD
from wellcond.optim.scaled_sgd import LARS, LSALR

# what every measurement returns, takes and raises
from wellcond.results import Cost, Progress, Result, Row
from wellcond.errors import Interrupted, WellcondError
from wellcond.version import __version__ as __version__

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
