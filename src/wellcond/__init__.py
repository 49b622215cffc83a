"""wellcond: why a network trains badly, in which layer, and what to do about it."""

from typing import TYPE_CHECKING, Any

# the one input
from wellcond.problem.problem import Problem
from wellcond.problem.digits import digits

# curvature: linear operators over the flat parameter vector
from wellcond.curvature.operator import LinearOperator
from wellcond.curvature.hessian import Hessian
from wellcond.curvature.ggn import GGN
from wellcond.curvature.fisher import Fisher

# spectra
from wellcond.curvature.spectra.eigenvalues import Eigenvalues, eigenvalues
from wellcond.curvature.spectra.exact import Spectrum, spectrum
from wellcond.curvature.spectra.density import Density, density
from wellcond.curvature.spectra.trace import Trace, trace
from wellcond.curvature.spectra.condition import condition_number, numerical_rank

# layers
from wellcond.curvature.kronecker.factor_pass import LayerFactors
from wellcond.curvature.kronecker.kronecker import KroneckerFactors, kronecker_factors
from wellcond.curvature.kronecker.matrix_conditioning import Conditioning
from wellcond.measurements.layers.conditioning import ConditioningTable, LayerConditioning, conditioning
from wellcond.measurements.layers.neurons import LayerNeurons, NeuronTable, neurons
from wellcond.measurements.layers.unit_statistics import Histogram, LayerActivations
from wellcond.measurements.layers.activations import Activations, MomentChange, MomentChanges, activations
from wellcond.measurements.layers.covariate_shift import CovariateShift, GradientShift, covariate_shift

# the loss around the weights
from wellcond.measurements.landscape.landscape import Landscape, landscape
from wellcond.measurements.landscape.slices import LossSlice, loss_slice

# how large the learning rate may be
from wellcond.learning_rate.limits.limits import GroupLimit, MaxLearningRate, RateLimit
from wellcond.learning_rate.limits.max_lr import max_lr

# remedies
from wellcond import nn, optim
from wellcond.optim import BNP, LARS, LSALR, ScaleAmendedSGD

# what every measurement returns, takes and raises
from wellcond.results import Cost, Progress, Result, Row, rendering
from wellcond.diagnosis.finding import Finding
from wellcond import errors
from wellcond.errors import Interrupted, WellcondError
from wellcond.results.version import __version__ as __version__

# what follows is half of the whole, and imported when it is first asked for
if TYPE_CHECKING:
    # the loss around the weights
    from wellcond.measurements.blocks.closed_forms import ClosedForm
    from wellcond.measurements.blocks.local_hessian import LocalHessian, local_hessian
    from wellcond.measurements.blocks.back_matching import BackMatching, back_matching

    from wellcond.measurements.blocks.marchenko_pastur import MarchenkoPastur, marchenko_pastur

    # layers
    from wellcond.measurements.layers.sizes import LayerSize, SizeTable, sizes

    # how large the learning rate may be
    from wellcond.learning_rate import meanfield

    # verdict
    from wellcond.diagnosis.diagnose import diagnose
    from wellcond.diagnosis.diagnosis import Diagnosis
    from wellcond.diagnosis.rule import rule
    from wellcond.remedies.remedy import remedy
    from wellcond.learning_rate.race.rate_table import RateTable, lr_table
    from wellcond.learning_rate.race.suggest_lr import suggest_lr
    from wellcond.learning_rate.race.suggested_rate import SuggestedRate
    from wellcond.treatment.treat import treat
    from wellcond.treatment.treatment import Treatment

    # over training
    from wellcond.recording.recorder import Recorder
    from wellcond.recording.run import Run, read_run
    from wellcond.recording.comparison import Comparison, compare_runs

    # in trainers and loggers
    from wellcond import integrations

__all__ = [
    "BNP",
    "GGN",
    "LARS",
    "LSALR",
    "Activations",
    "BackMatching",
    "ClosedForm",
    "Comparison",
    "Conditioning",
    "ConditioningTable",
    "Cost",
    "CovariateShift",
    "Density",
    "Diagnosis",
    "Eigenvalues",
    "Finding",
    "Fisher",
    "GradientShift",
    "GroupLimit",
    "Hessian",
    "Histogram",
    "Interrupted",
    "KroneckerFactors",
    "Landscape",
    "LayerActivations",
    "LayerConditioning",
    "LayerFactors",
    "LayerNeurons",
    "LayerSize",
    "LinearOperator",
    "LocalHessian",
    "LossSlice",
    "MarchenkoPastur",
    "MaxLearningRate",
    "MomentChange",
    "MomentChanges",
    "NeuronTable",
    "Problem",
    "Progress",
    "RateLimit",
    "RateTable",
    "Recorder",
    "Result",
    "Row",
    "Run",
    "ScaleAmendedSGD",
    "SizeTable",
    "Spectrum",
    "SuggestedRate",
    "Trace",
    "Treatment",
    "WellcondError",
    "activations",
    "back_matching",
    "compare_runs",
    "condition_number",
    "conditioning",
    "covariate_shift",
    "density",
    "diagnose",
    "digits",
    "eigenvalues",
    "errors",
    "integrations",
    "kronecker_factors",
    "landscape",
    "local_hessian",
    "loss_slice",
    "lr_table",
    "marchenko_pastur",
    "max_lr",
    "meanfield",
    "neurons",
    "nn",
    "numerical_rank",
    "optim",
    "read_run",
    "remedy",
    "rule",
    "sizes",
    "spectrum",
    "suggest_lr",
    "trace",
    "treat",
]

# what draws and words results, imported when one is first shown
rendering.renderers_module = "wellcond.report"

_ON_DEMAND = {
    "ClosedForm": "wellcond.measurements.blocks.closed_forms",
    "LocalHessian": "wellcond.measurements.blocks.local_hessian",
    "local_hessian": "wellcond.measurements.blocks.local_hessian",
    "BackMatching": "wellcond.measurements.blocks.back_matching",
    "back_matching": "wellcond.measurements.blocks.back_matching",
    "MarchenkoPastur": "wellcond.measurements.blocks.marchenko_pastur",
    "marchenko_pastur": "wellcond.measurements.blocks.marchenko_pastur",
    "LayerSize": "wellcond.measurements.layers.sizes",
    "SizeTable": "wellcond.measurements.layers.sizes",
    "sizes": "wellcond.measurements.layers.sizes",
    "meanfield": "wellcond.learning_rate.meanfield",
    "diagnose": "wellcond.diagnosis.diagnose",
    "Diagnosis": "wellcond.diagnosis.diagnosis",
    "rule": "wellcond.diagnosis.rule",
    "remedy": "wellcond.remedies.remedy",
    "treat": "wellcond.treatment.treat",
    "Treatment": "wellcond.treatment.treatment",
    "Recorder": "wellcond.recording.recorder",
    "Run": "wellcond.recording.run",
    "Comparison": "wellcond.recording.comparison",
    "compare_runs": "wellcond.recording.comparison",
    "read_run": "wellcond.recording.run",
    "integrations": "wellcond.integrations",
    "RateTable": "wellcond.learning_rate.race.rate_table",
    "lr_table": "wellcond.learning_rate.race.rate_table",
    "suggest_lr": "wellcond.learning_rate.race.suggest_lr",
    "SuggestedRate": "wellcond.learning_rate.race.suggested_rate",
}


def __getattr__(name: str) -> Any:
    if name not in _ON_DEMAND:
        raise AttributeError(f"module 'wellcond' has no attribute {name!r}")
    from importlib import import_module

    module = import_module(_ON_DEMAND[name])
    globals()[name] = getattr(module, name, module)
    return globals()[name]


def __dir__() -> list[str]:
    """Tab completion: also what is imported when it is first asked for, and nothing that is not public."""
    return [*__all__, "__version__"]
