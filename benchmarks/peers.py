"""The peers, each with the same interface. One that is not installed is left out and named in the results."""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.util
import io
import sys
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.networks import Network


class Peer(Protocol):
    """A tool.

    `settings` are tolerances or numbers of vectors to try, loosest first; `hvp` returns a product with a flat vector,
    set up beforehand; `top` is the largest eigenvalue at a setting.
    """

    name: str
    settings: tuple[float, ...]

    def hvp(self, network: Network) -> Callable[[Tensor], object]: ...
    def top(self, network: Network, setting: float) -> float: ...


class PyHessian:
    name = "PyHessian"
    settings = (1e-2, 1e-3, 1e-4, 1e-5)

    def __init__(self) -> None:
        import pyhessian

        self.module = pyhessian

    def _computer(self, network: Network) -> object:
        network.model.zero_grad(set_to_none=True)  # its backward() adds onto what is there: the Hessian would double
        return self.module.hessian(network.model, network.loss, data=(network.x, network.y), cuda=False)

    def hvp(self, network: Network) -> Callable[[Tensor], object]:
        from pyhessian.utils import hessian_vector_product

        computer = self._computer(network)
        return lambda v: hessian_vector_product(computer.gradsH, computer.params, _parts(v, computer.params))

    def top(self, network: Network, setting: float) -> float:
        torch.manual_seed(0)
        return float(self._computer(network).eigenvalues(maxIter=1000, tol=setting)[0][0])


class HessianEigenthings:
    name = "hessian-eigenthings"
    settings = (7, 10, 14, 20, 28, 40)  # Lanczos steps: its tolerance is checked only after all of them

    def __init__(self) -> None:
        import hessian_eigenthings

        self.module = hessian_eigenthings

    def _operator(self, network: Network) -> object:
        loss = self.module.supervised_loss(network.loss)
        return self.module.HessianOperator(network.model, [(network.x, network.y)], loss)

    def hvp(self, network: Network) -> Callable[[Tensor], object]:
        return self._operator(network).matvec

    def top(self, network: Network, setting: float) -> float:
        result = self.module.lanczos(self._operator(network), k=1, max_iter=int(setting), which="LA", seed=0)
        return float(result.eigenvalues[0])


class Curvlinops:
    name = "curvlinops"
    settings = (7, 10, 14, 20, 40)  # vectors of scipy's eigsh, whose default of 20 is often more than needed

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

    def top(self, network: Network, setting: float) -> float:
        from scipy.sparse.linalg import eigsh

        operator = self._operator(network).to_scipy()
        start = np.random.default_rng(0).standard_normal(operator.shape[0])
        return float(
            eigsh(operator, k=1, which="LA", tol=0.3, ncv=int(setting), v0=start, return_eigenvectors=False)[0]
        )


class Landscaper:
    name = "landscaper"
    settings = (1e-2, 1e-3, 1e-4, 1e-5)

    def __init__(self) -> None:
        # its Hessians need numpy and tqdm alone; the package imports libraries for topology that ask for an older numpy
        spec = importlib.util.find_spec("landscaper")
        if spec is None:
            raise ImportError("not installed")
        sys.modules["landscaper"] = importlib.util.module_from_spec(spec)
        self.module = importlib.import_module("landscaper.hessian")

    def _computer(self, network: Network) -> object:
        return self.module.PyHessian(network.model, network.loss, [(network.x, network.y)], "cpu", try_cache=True)

    def hvp(self, network: Network) -> Callable[[Tensor], object]:
        computer = self._computer(network)
        return lambda v: computer.hv_product(_parts(v, computer.params))

    def top(self, network: Network, setting: float) -> float:
        torch.manual_seed(0)
        with contextlib.redirect_stderr(io.StringIO()):  # its progress bars
            return float(self._computer(network).eigenvalues(maxIter=1000, tol=setting)[0][0])


class BackPACK:
    name = "BackPACK"
    settings = ()

    def __init__(self) -> None:
        from backpack.hessianfree.hvp import hessian_vector_product

        self.product = hessian_vector_product

    def hvp(self, network: Network) -> Callable[[Tensor], object]:
        params = list(network.model.parameters())
        return lambda v: self.product(network.loss(network.model(network.x), network.y), params, _parts(v, params))


def _parts(v: Tensor, params: Iterable[Tensor]) -> list[Tensor]:
    params = list(params)
    return [part.view_as(p) for part, p in zip(v.split([p.numel() for p in params]), params, strict=True)]


def on(device: str) -> tuple[list[Peer], dict[str, str]]:
    """The peers that can be imported, and why the others cannot."""
    if device != "cpu":
        return [], {"all peers": "timed on the CPU"}
    result: list[Peer] = []
    missing = {}
    for cls in (PyHessian, HessianEigenthings, Curvlinops, Landscaper, BackPACK):
        try:
            result.append(cls())
        except Exception as error:  # a peer may break in any way of its own while it is imported
            missing[cls.name] = f"{type(error).__name__}: {error}"
    return result, missing


def kronecker_factors(network: Network) -> tuple[dict[str, Callable[[], object]], dict[str, str]]:
    """Σx and Σ∇h of all layers by the peers, with one sampled label per example; and why some cannot."""
    result, missing = {}, {}
    for name, set_up in (("curvlinops", _curvlinops), ("nngeometry", _nngeometry), ("BackPACK", _backpack)):
        try:
            task = set_up(network)
            task()
        except Exception as error:  # a peer may break in any way of its own on a network it does not know
            missing[f"{name} KFAC"] = f"{type(error).__name__}: {error}".splitlines()[0]
        else:
            result[f"{name} KFAC"] = task
    return result, missing


def _layers(network: Network) -> list[nn.Module]:
    return [m for m in network.model.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]


def _curvlinops(network: Network) -> Callable[[], object]:
    from curvlinops import FisherType, KFACLinearOperator

    weights = [p for layer in _layers(network) for p in layer.parameters()]

    def factors() -> object:
        operator = KFACLinearOperator(
            network.model, network.loss, weights, [(network.x, network.y)],
            fisher_type=FisherType.MC, mc_samples=1, check_deterministic=False,
        )  # fmt: skip
        return operator @ torch.ones(sum(p.numel() for p in weights))

    return factors


def _nngeometry(network: Network) -> Callable[[], object]:
    from nngeometry.layercollection import LayerCollection
    from nngeometry.metrics import FIM_MonteCarlo
    from nngeometry.object import PMatKFAC

    collection = LayerCollection()
    for layer in _layers(network):
        collection.add_layer_from_model(network.model, layer)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(network.x, network.y), len(network.x))
    return lambda: FIM_MonteCarlo(network.model, loader, PMatKFAC, trials=1, layer_collection=collection)


def _backpack(network: Network) -> Callable[[], object]:
    from backpack import backpack, extend
    from backpack.extensions import KFAC

    model, loss = extend(copy.deepcopy(network.model)), extend(network.loss)

    def factors() -> None:
        with backpack(KFAC(mc_samples=1)):
            loss(model(network.x), network.y).backward()

    return factors
