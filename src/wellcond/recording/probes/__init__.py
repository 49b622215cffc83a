"""What is measured between two steps, on the batch of the last one, in a state of the model that is restored.

In: a `Subject`, the problem of some of the batch's examples. Out: rows.

    subject.py       the problem that is probed, and how many examples
    curvature.py     λ_max by warm-started Lanczos, the limit of the rate, and a short walk along the gradient
    conditioning.py  κ of Σx and Σ∇h, a few layers in turn
    shift.py         covariate shift by the step just taken, one layer at a time
    activations.py   outputs of layers where hooks do not see them: in compiled models, and of functions
    inspection.py    the rules of `diagnose` that judge an inspection
"""
