"""Curvature: the matrices of second derivatives of a loss, as linear operators.

In: a `Problem`. Out: `Hessian`, `GGN` and `Fisher`, all of them a `LinearOperator` that multiplies with vectors and is
never formed; what `spectra/` computes from any of them; and the factors of every layer, Σx and Σ∇h, from `kronecker/`.

    operator.py            LinearOperator, and TensorOperator over named tensors
    curvature_operator.py  CurvatureOperator: a mean over batches, with the graph of one fixed batch kept
    hessian.py ggn.py fisher.py
    likely_start.py        a cheap first guess of the largest eigenvector
    gram.py read_layer.py  F = AᵀA by rows of A, for the exact spectrum on its smaller side
    coupling.py            whether the examples of a batch affect each other
"""
