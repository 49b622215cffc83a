"""wellcond: why a network trains badly, in which layer, and what to do about it."""

from importlib.metadata import PackageNotFoundError, version

# the one input
from wellcond.problem.problem import Problem

# curvature: linear operators over the flat parameter vector
from wellcond.curvature.hessian import Hessian
from wellcond.curvature.ggn import GGN
from wellcond.curvature.fisher import Fisher
from wellcond.curvature.kronecker import kronecker_factors

# spectra
from wellcond.spectral.eigenvalues import eigenvalues
from wellcond.spectral.exact import spectrum
from wellcond.spectral.density import density
from wellcond.spectral.trace import trace
from wellcond.spectral.condition import condition_number, numerical_rank

# layers
from wellcond.layerwise.conditioning import conditioning
from wellcond.layerwise.neurons import neurons

# probes
from wellcond import local, meanfield
from wellcond.local.back_matching import back_matching
from wellcond.local.local_hessian import local_hessian
from wellcond.layerwise.activations import activations
from wellcond.layerwise.covariate_shift import covariate_shift
from wellcond.surface.landscape import landscape
from wellcond.stability.max_lr import max_lr
from wellcond.surface.slices import loss_slice

# verdict
from wellcond.diagnosis.diagnose import diagnose

# remedies
from wellcond import nn
from wellcond.optim.bnp import BNP
from wellcond.optim.lars import LARS
from wellcond.optim.lsalr import LSALR
from wellcond.optim.scale_amended import ScaleAmendedSGD

# errors
from wellcond.errors import WellcondError

try:
    __version__ = version("wellcond")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"

__all__ = [
    "BNP",
    "GGN",
    "LARS",
    "LSALR",
    "Fisher",
    "Hessian",
    "Problem",
    "ScaleAmendedSGD",
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
    "spectrum",
    "trace",
]
