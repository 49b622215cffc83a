"""Mean-field theory: how large the learning rate may be, predicted from the architecture (wei2019)."""

from wellcond.meanfield.architecture import Architecture
from wellcond.meanfield.predict import predict
from wellcond.meanfield.prediction import Prediction

__all__ = ["Architecture", "Prediction", "predict"]
