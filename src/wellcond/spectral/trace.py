"""The trace, by XTrace: better than Hutchinson's estimator, with an error bar."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wellcond.results import Row
from wellcond.spectral.lanczos import Operator


@dataclass(frozen=True)
class Trace:
    """An estimate of a trace. error: its standard error. converged: error ≤ tol · |value|."""

    value: float
    error: float
    matvecs: int
    converged: bool

    def rows(self) -> list[Row]:
        return [
            Row(None, "", "trace", self.value, ""),
            Row(None, "", "trace_error", self.error, ""),
            Row(None, "", "matvecs", float(self.matvecs), "products"),
        ]

    def __str__(self) -> str:
        word = "" if self.converged else "; the asked tolerance was not reached"
        return f"trace {self.value:.6g} ± {self.error:.2g} (standard error), {self.matvecs} products{word}"


def trace(operator: Operator, tol: float = 0.05, *, max_matvecs: int = 400, seed: int = 0) -> Trace:
    """tr A of a symmetric operator, to a relative standard error of `tol`.

    XTrace (Epperly, Tropp, Webber 2024): A is sketched with random vectors Ω; for each of them, the trace is that
    of A on the range of the *other* columns of AΩ, exactly, plus a Hutchinson estimate of the rest from the one left
    out. The mean over all is the estimate, their spread its error. A few large eigenvalues, as networks have, cost
    Hutchinson's estimator hundreds of probes and this one nothing. Two products a vector; more are added until the
    tolerance is met.

    >>> trace(torch.diag(torch.tensor([4.0, 2.0, 1.0]))).value
    7.0
    """
    n = operator.shape[0]
    generator = torch.Generator().manual_seed(seed)
    if n <= 8:
        products = operator @ torch.eye(n, dtype=operator.dtype, device=operator.device)
        return Trace(float(products.diagonal().double().sum()), 0.0, n, True)
    probes = images = q = image_of_q = torch.zeros(n, 0, dtype=operator.dtype, device=operator.device)
    count = 4
    while True:
        count = min(count, n // 2)
        fresh = torch.randn(n, count - probes.shape[1], generator=generator, dtype=torch.float64)
        fresh = (fresh * (n**0.5 / fresh.norm(dim=0))).to(probes)  # uniform on the sphere of radius √n
        probes = torch.cat([probes, fresh], 1)
        images = torch.cat([images, operator @ fresh], 1)
        added = _extend_basis(q, images[:, q.shape[1] :])
        q, image_of_q = torch.cat([q, added], 1), torch.cat([image_of_q, operator @ added], 1)
        estimates = _leave_one_out(probes, images, q, image_of_q)
        value, error = float(estimates.mean()), float(estimates.std() / count**0.5)
        spent = 2 * count
        converged = error <= tol * abs(value)
        if converged or 2 * (count + 2) > max_matvecs or count >= n // 2:
            return Trace(value, error, spent, converged)
        count += max(2, count // 4)


def _extend_basis(q: Tensor, columns: Tensor) -> Tensor:
    """Orthonormal columns that together with q span the new ones too."""
    for _ in range(2):
        columns = columns - q @ (q.T @ columns)
        columns = torch.linalg.qr(columns).Q
    return columns


def _leave_one_out(probes: Tensor, images: Tensor, q: Tensor, image_of_q: Tensor) -> Tensor:
    """One trace estimate a probe, each from a basis that was made without it.

    With Y = AΩ = QR, the range of Y without column i is Q minus the direction s_i, the normalised i-th column of
    R^{−T}: Q_i Q_iᵀ = Q(I − s_i s_iᵀ)Qᵀ. The estimate is
        tr(Q_iᵀ A Q_i) + ωᵀ(I − Q_iQ_iᵀ) A (I − Q_iQ_iᵀ)ω · (n − m + 1)/‖(I − Q_iQ_iᵀ)ω‖²
    and costs no product beyond AΩ and AQ.
    """
    n, m = probes.shape
    h = (q.T @ image_of_q).double()
    w = (q.T @ probes).double()  # coordinates of the probes
    r = (q.T @ images).double()
    t = (image_of_q.T @ probes).double()  # Qᵀ A Ω by symmetry, so that A ω is not needed outside the basis
    s = torch.linalg.inv(r).T
    s = s / s.norm(dim=0)
    x = w - s * (s * w).sum(0)  # coordinates of Q_iQ_iᵀω_i
    inside = h.trace() - (s * (h @ s)).sum(0)
    omega_a_omega = (probes * images).sum(0).double()
    quadratic = omega_a_omega - 2 * (x * t).sum(0) + (x * (h @ x)).sum(0)
    left = (probes.double() ** 2).sum(0) - (x**2).sum(0)
    return inside + quadratic * (n - m + 1) / left
