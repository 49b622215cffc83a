"""Measurements of a network at its current weights, on a `Problem`.

    layers/     one forward and backward pass: conditioning, dead units, activations; covariate shift of a step
    landscape/  the loss and its gradient along lines and planes through the weights
    blocks/     one block at a time: its local Hessian and back-matching loss (zhang2018)

In: a `Problem`, and an optimizer where its step matters. Out: results with rows; none of them draws or judges anything.
"""
