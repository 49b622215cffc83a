"""A Hessian between diagonal matrices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wellcond.curvature.hessian import Hessian


class Preconditioned:
    """±R^{½} H R^{½} + S over some parameters, with R and S diagonal: H as an optimizer sees it, kept symmetric.

    hessian: shared by all that is made of it, so that the graph of one fixed batch is built once.
    block: the parameters, by their position in the Hessian. scale, shift: R and S, one tensor a parameter of the block.

    >>> import wellcond as wc
    >>> x = torch.tensor([[1.0, 2.0]])
    >>> problem = wc.Problem(torch.nn.Linear(2, 1, bias=False), torch.nn.MSELoss(), (x, torch.zeros(1, 1)))
    >>> H = wc.Hessian(problem)                          # [[2, 4], [4, 8]]
    >>> A = Preconditioned(H, [0], [torch.tensor([[4.0, 1.0]])], [torch.tensor([[0.0, 1.0]])])
    >>> A @ torch.eye(2)
    tensor([[8., 8.],
            [8., 9.]])
    """

    def __init__(
        self,
        hessian: Hessian,
        block: Sequence[int],
        scale: Sequence[Tensor],
        shift: Sequence[Tensor],
        sign: float = 1.0,
    ) -> None:
        self.hessian, self.block, self.sign = hessian, block, sign
        self.root = self._flat(scale).sqrt().to(hessian.dtype)
        self.shift = self._flat(shift).to(hessian.dtype)
        self.shape = (len(self.root), len(self.root))
        self.dtype, self.device = hessian.dtype, hessian.device

    def _flat(self, parts: Sequence[Tensor]) -> Tensor:
        params = list(self.hessian.params.values())
        whole = [part.expand(params[i].shape) for i, part in zip(self.block, parts, strict=True)]
        return torch.cat([part.to(self.hessian.device, torch.float64).reshape(-1) for part in whole])

    def __matmul__(self, v: Tensor) -> Tensor:
        """v: (P, k)."""
        root, shift = self.root[:, None], self.shift[:, None]
        (product,) = self.hessian.block_products([(self.block, root * v)])
        return self.sign * root * product + shift * v
