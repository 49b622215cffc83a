"""One look at data, outputs, signals, gradients and weights, which also works if the loss is NaN."""
