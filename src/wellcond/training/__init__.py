"""Training: the plain mini-batch loop, and copies of a model and its optimizer to train."""
