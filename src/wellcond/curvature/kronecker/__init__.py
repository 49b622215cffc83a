"""Kronecker factors: the second moments of every layer's inputs, Σx, and output gradients, Σ∇h.

In: a `Problem`. Out: `kronecker_factors`, both moments of every layer, from one forward and backward pass; and
`Conditioning`, their λ_max, κ_p and rank, and those of Σx ⊗ Σ∇h, which approximates the layer's Fisher matrix.

    factor_pass.py    taps the layers during the pass; rule_check.py compares layers that override `forward`
    second_moment.py  Σ r rᵀ on its smaller side, from rows.py, which stores and multiplies rows of many layers
    kronecker.py      the public function        matrix_conditioning.py  the numbers of a spectrum
"""
