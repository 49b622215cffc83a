"""Layer by layer: conditioning, dead units, activations, covariate shift."""
