"""Mean-field theory (wei2019): an architecture, a module or a problem in; λ_max and the largest learning rate out."""

from wellcond.learning_rate.meanfield.architecture import Architecture
from wellcond.learning_rate.meanfield.predict import predict
from wellcond.learning_rate.meanfield.prediction import Prediction

__all__ = ["Architecture", "Prediction", "predict"]
