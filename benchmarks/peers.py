"""The peers, each behind the same three calls. One that is not installed is left out and named in the results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from benchmarks.networks import Network


class Peer(Protocol):
    """A tool.

    `settings` are tolerances to try, loosest first; `hvp` returns a product with a flat vector, set up beforehand;
    `top` is the largest eigenvalue at a setting of the tool's own; `trace` takes `probes` of Hutchinson's estimator.
    """

    name: str
    settings: tuple[float, ...]

    def hvp(self, network: Network) -> Callable[[Tensor], object]: ...
    def top(self, network: Network, tol: float) -> float: ...
    def trace(self, network: Network, probes: int) -> float: ...


class PyHessian:
    name = "PyHessian"
    settings = (1e-3, 1e-4, 1e-5)

    def __init__(self) -> None:
        import pyhessian

        self.module = pyhessian

    def _computer(self, network: Network) -> object:
        network.model.zero_grad(set_to_none=True)  # its backward() adds onto what is there: the Hessian would double
        return self.module.hessian(network.model, network.loss, data=(network.x, network.y), cuda=False)

    def hvp(self, network: Network) -> Callable[[Tensor], object]:
        from pyhessian.utils import hessian_vector_product

        computer = self._computer(network)
        sizes = [p.numel() for p in computer.params]
        return lambda v: hessian_vector_product(
            computer.gradsH,
            computer.params,
            [part.view_as(p) for part, p in zip(v.split(sizes), computer.params, strict=True)],
        )

    def top(self, network: Network, tol: float) -> float:
        torch.manual_seed(0)
        return float(self._computer(network).eigenvalues(maxIter=1000, tol=tol)[0][0])

    def trace(self, network: Network, probes: int) -> float:
        torch.manual_seed(0)
        return float(sum(self._computer(network).trace(maxIter=probes, tol=0.0)) / probes)


class HessianEigenthings:
    name = "hessian-eigenthings"
    settings = (10, 20, 30)  # Lanczos steps: its tolerance is checked only after all of them

    def __init__(self) -> None:
        import hessian_eigenthings

        self.module = hessian_eigenthings

    def _operator(self, network: Network) -> object:
        loss = self.module.supervised_loss(network.loss)
        return self.module.HessianOperator(network.model, [(network.x, network.y)], loss)

    def hvp(self, network: Network) -> Callable[[Tensor], object]:
        return self._operator(network).matvec

    def top(self, network: Network, tol: float) -> float:
        result = self.module.lanczos(self._operator(network), k=1, max_iter=int(tol), which="LA", seed=0)
        return float(result.eigenvalues[0])

    def trace(self, network: Network, probes: int) -> float:
        return float(self.module.hutchinson(self._operator(network), num_samples=probes, seed=0).estimate)


class Curvlinops:
    name = "curvlinops"
    settings = (1e-1, 1e-3)

    def __init__(self) -> None:
        import curvlinops

        self.module = curvlinops

    def _operator(self, network: Network) -> object:
        params = [p for p in network.model.parameters() if p.requires_grad]
        return self.module.HessianLinearOperator(
            network.model, network.loss, params, [(network.x, network.y)], check_deterministic=False
        )

    def hvp(self, network: Network) -> Callable[[Tensor], object]:
        operator = self._operator(network)
        return lambda v: operator @ v

    def top(self, network: Network, tol: float) -> float:
        from scipy.sparse.linalg import eigsh

        operator = self._operator(network).to_scipy()
        return float(eigsh(operator, k=1, which="LA", tol=tol, return_eigenvectors=False)[0])

    def trace(self, network: Network, probes: int) -> float:
        torch.manual_seed(0)
        return float(self.module.hutchinson_trace(self._operator(network), num_matvecs=probes))


class BackPACK:
    name = "BackPACK"
    settings = ()

    def __init__(self) -> None:
        from backpack.hessianfree.hvp import hessian_vector_product

        self.product = hessian_vector_product

    def hvp(self, network: Network) -> Callable[[Tensor], object]:
        params = list(network.model.parameters())
        sizes = [p.numel() for p in params]

        def product(v: Tensor) -> object:
            parts = [part.view_as(p) for part, p in zip(v.split(sizes), params, strict=True)]
            return self.product(network.loss(network.model(network.x), network.y), params, parts)

        return product


def installed() -> tuple[list[Peer], dict[str, str]]:
    """The peers that can be imported, and why the others cannot."""
    found, missing = [], {}
    for cls in (PyHessian, HessianEigenthings, Curvlinops, BackPACK):
        try:
            found.append(cls())
        except Exception as error:  # a peer may break in any way of its own while it is imported
            missing[cls.name] = f"{type(error).__name__}: {error}"
    return found, missing
