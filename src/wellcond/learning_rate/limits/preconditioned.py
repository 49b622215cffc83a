"""A curvature matrix between diagonal matrices, as it acts on an optimizer that rescales gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from wellcond.curvature.curvature_operator import CurvatureOperator
from wellcond.curvature.operator import TensorOperator


class Preconditioned(TensorOperator):
    """±R^{½} C R^{½} + S over some parameters, with R and S diagonal.

    Args:
        curvature: C, shared by all operators made of it, so that the graph of one fixed batch is built once.
        scale: R by parameter; entries broadcast. Its names are the parameters of the operator.
        shift: S by parameter, likewise.
        sign: −1 for a loss that is maximized.

    Example:
        >>> import wellcond as wc
        >>> x = torch.tensor([[1.0, 2.0]])
        >>> problem = wc.Problem(torch.nn.Linear(2, 1, bias=False), torch.nn.MSELoss(), (x, torch.zeros(1, 1)))
        >>> H = wc.Hessian(problem)                          # [[2, 4], [4, 8]]
        >>> A = Preconditioned(H, {"weight": torch.tensor([[4.0, 1.0]])}, {"weight": torch.tensor([[0.0, 1.0]])})
        >>> A @ torch.eye(2)
        tensor([[8., 8.],
                [8., 9.]])
    """

    def __init__(
        self,
        curvature: CurvatureOperator,
        scale: Mapping[str, Tensor],
        shift: Mapping[str, Tensor],
        *,
        sign: float = 1.0,
    ) -> None:
        self.curvature, self.scale, self.shift, self.sign = curvature, scale, shift, sign
        self.tensors = {name: p for name, p in curvature.params.items() if name in scale}
        self._block = [i for i, name in enumerate(curvature.names) if name in scale]
        self._root = self._flat({name: part.double().sqrt() for name, part in scale.items()})[:, None]
        numbers = {float(shift[name]) for name in self.tensors if not shift[name].dim()}
        are_one = len(numbers) == 1 and not any(shift[name].dim() for name in self.tensors)
        self._shift = numbers.pop() if are_one else self._flat(shift)[:, None]  # a number needs no vector

    def __repr__(self) -> str:
        return f"Preconditioned({self.curvature!r})"

    def layer(self, *names: str) -> Preconditioned:
        chosen = self.curvature.layer(*names).names
        scale = {name: part for name, part in self.scale.items() if name in chosen}
        return Preconditioned(self.curvature, scale, self.shift, sign=self.sign)

    def in_a_row(self) -> contextlib.AbstractContextManager[Any]:
        return self.curvature.in_a_row()

    def likely_start(self) -> Tensor | None:
        roots = dict(zip(self.tensors, self.split(self._root[:, 0]), strict=True))
        whole = [roots.get(name, torch.zeros_like(p)).reshape(-1) for name, p in self.curvature.params.items()]
        start = self.curvature.likely_start(torch.cat(whole))
        if start is None:
            return None
        parts = self.curvature.split(start)
        return torch.cat([parts[i].reshape(-1) for i in self._block])

    def _multiply(self, columns: Tensor) -> Tensor:
        (product,) = self.curvature.block_products([(self._block, self._root * columns)])
        return product.mul_(self._root).mul_(self.sign).add_(self._shift * columns)

    def _flat(self, parts: Mapping[str, Tensor]) -> Tensor:
        whole: Sequence[Tensor] = [parts[name].to(p).expand(p.shape) for name, p in self.tensors.items()]
        return torch.cat([part.reshape(-1) for part in whole])
