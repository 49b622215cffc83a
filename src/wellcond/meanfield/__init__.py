"""Mean-field theory: how far the learning rate can go, told from the architecture alone (wei2019)."""

from wellcond.meanfield.architecture import Architecture
from wellcond.meanfield.prediction import Prediction
from wellcond.meanfield.predictor import predict

__all__ = ["Architecture", "Prediction", "predict"]
