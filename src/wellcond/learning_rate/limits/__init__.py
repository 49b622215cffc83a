"""The largest stable learning rate, measured: 2(1+μ)/λ_max, and what takes its place for other optimizers.

In: a `Problem` and an optimizer, or a momentum. Out: `max_lr`, the limit of the learning rate with its error.

    step_rules.py      torch's optimizers as linear filters F of the gradient: F(−1) and the preconditioner P of each
    step_model.py      the matrix A = R^{½} H R^{½} + S of an optimizer's step, from its rules and parameter groups
    preconditioned.py  A as a linear operator, so that `curvature/spectra` finds its largest eigenvalue
    max_lr.py          the search, for all groups, single groups and single batches
    limits.py          the results, and the heavy-ball formula
"""
