"""Layer by layer: conditioning, dying units, distributions of outputs, covariate shift.

In: a problem, and an optimizer for covariate shift. Out: one entry per layer, in the order of the forward pass.
"""
