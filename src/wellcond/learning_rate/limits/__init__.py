"""The largest stable learning rate: step rules of optimizers as linear filters, and λ_max measured."""
