"""Spectra of symmetric operators.

In: a `LinearOperator`, or anything with a shape, a dtype and `@`; limits on products, seconds and memory. Out: extreme
eigenvalues with error bounds (`eigenvalues`), all eigenvalues (`exact`), the spectral density (`density`) and the trace
(`trace`), each with what it took and whether it converged; κ_p and the rank of given eigenvalues (`condition`).

    operators.py → lanczos.py → ritz.py (what is known) ← certificate.py (what could still hide) → eigenvalues.py
    lanczos.py → density.py        trace_block.py → trace.py        allowance.py: products and seconds left
"""
