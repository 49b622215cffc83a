"""Kronecker factors: what each layer receives (Σx) and the gradients that come back (Σ∇h), accumulated in one pass."""
