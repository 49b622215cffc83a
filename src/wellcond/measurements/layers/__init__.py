"""Measurements by layer.

In: a `Problem`, and for `covariate_shift` an optimizer. Out: one entry per layer, in the order of the forward pass.

    conditioning.py        λ_max, κ_p and rank of Σx and Σ∇h, from the factors of `curvature/kronecker`
    neurons.py             ReLU units that are zero, or positive, on every example
    layer_pass.py          the loss, its gradient and the two tables above in one pass, for `diagnose`
    activations.py         moments and histograms of every unit's output, gathered by unit_statistics.py
    covariate_shift.py     how a layer's gradient changes because the layers before it take their step
"""
