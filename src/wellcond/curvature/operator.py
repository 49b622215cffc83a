"""`LinearOperator`: the one base of every matrix here that is known by its products and never formed."""

from __future__ import annotations

import contextlib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from wellcond.errors import InvalidProblem, MissingExtra, NonFinite, TooLarge
from wellcond.network.isolation.arithmetic import own_arithmetic

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator as ScipyOperator

DENSE_LIMIT = 10_000
"""Largest side of a dense matrix: 800 MB in float64."""


class LinearOperator(ABC):
    """A symmetric matrix, defined by its products.

    `A @ v` takes v of shape (n,) or (n, k). Operators of one size add up, and can be multiplied by a number.

    Attributes:
        matvecs: Number of columns this operator has been multiplied with.
    """

    matvecs: int = 0

    # must define

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """(n, n)."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Dtype of the products."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Device on which products are computed."""

    @abstractmethod
    def _multiply(self, columns: Tensor) -> Tensor:
        """(n, k) → (n, k), both on the operator's device and in its dtype."""

    @abstractmethod
    def layer(self, *names: str) -> LinearOperator:
        """The diagonal block of some parameters, by their names or by those of modules that hold them.

        Raises:
            UnknownLayer: A name is not among the operator's parameters.
        """

    # may override

    def in_a_row(self) -> contextlib.AbstractContextManager[Any]:
        """Context for several products in a row: inside it, the set-up that each of them needs is done once."""
        return contextlib.nullcontext()

    def likely_start(self) -> Tensor | None:
        """A vector (n,) close to the largest eigenvectors, if one is available for less than a product."""
        return None

    # common to all

    @own_arithmetic()
    def __matmul__(self, v: Tensor) -> Tensor:
        n = self.shape[1]
        if v.dim() not in (1, 2) or v.shape[0] != n:
            raise ValueError(f"cannot multiply {self!r} with {tuple(v.shape)}; v must be ({n},) or ({n}, k).")
        columns = v.to(self.device, self.dtype).reshape(n, -1)
        self.matvecs += columns.shape[1]
        return self._multiply(columns).reshape(v.shape)

    def __add__(self, other: LinearOperator) -> LinearOperator:
        if not isinstance(other, LinearOperator):
            return NotImplemented
        if other.shape != self.shape:
            raise ValueError(f"operators of shape {self.shape} and {other.shape} cannot be added.")
        return _Combination((1.0, self), (1.0, other))

    def __mul__(self, factor: float) -> LinearOperator:
        return _Combination((float(factor), self)) if isinstance(factor, (int, float)) else NotImplemented

    __rmul__ = __mul__

    @own_arithmetic()
    def dense(self, limit: int = DENSE_LIMIT) -> Tensor:
        """The matrix itself, (n, n), by n products.

        Args:
            limit: Largest side allowed.

        Raises:
            TooLarge: n is above `limit`.
        """
        size = self.shape[0]
        if size > limit:
            raise TooLarge(
                f"{self!r} has {size:,} rows, above the limit of {limit:,} for a dense matrix. Take .layer(name) or "
                "fewer examples, wc.eigenvalues(...) for its ends, or raise dense(limit=...)."
            )
        matrix = self @ torch.eye(size, dtype=self.dtype, device=self.device)
        return (matrix + matrix.T) / 2

    def to_scipy(self) -> ScipyOperator:
        """The operator as a `scipy.sparse.linalg.LinearOperator`, for `eigsh`, `cg`, `minres` and others.

        Example:
            >>> import wellcond as wc
            >>> x = torch.tensor([[1.0], [2.0]])
            >>> problem = wc.Problem(torch.nn.Linear(1, 1, bias=False), torch.nn.MSELoss(), (x, x))
            >>> (wc.Hessian(problem).to_scipy() @ [2.0]).tolist()           # H is 2 · mean x² = 5
            [10.0]
        """
        try:
            from scipy.sparse.linalg import LinearOperator as ScipyOperator
        except ImportError as error:
            raise MissingExtra("scipy", "scipy") from error

        def product(v: Any) -> Any:
            return (self @ torch.as_tensor(v, dtype=self.dtype, device="cpu")).cpu().numpy()

        dtype = torch.empty(0, dtype=self.dtype, device="cpu").numpy().dtype
        return ScipyOperator(self.shape, matvec=product, rmatvec=product, matmat=product, rmatmat=product, dtype=dtype)


class _Combination(LinearOperator):
    """Σ factor · operator, of the size, dtype and device of the first."""

    def __init__(self, *terms: tuple[float, LinearOperator]) -> None:
        self.terms = terms
        self._first = terms[0][1]

    def __repr__(self) -> str:
        return " + ".join(repr(part) if factor == 1 else f"{factor:g} * {part!r}" for factor, part in self.terms)

    @property
    def shape(self) -> tuple[int, int]:
        return self._first.shape

    @property
    def dtype(self) -> torch.dtype:
        return self._first.dtype

    @property
    def device(self) -> torch.device:
        return self._first.device

    def _multiply(self, columns: Tensor) -> Tensor:
        total = torch.zeros_like(columns)
        for factor, part in self.terms:
            total += factor * (part @ columns).to(total)
        return total

    def in_a_row(self) -> contextlib.AbstractContextManager[Any]:
        stack = contextlib.ExitStack()
        for _, part in self.terms:
            stack.enter_context(part.in_a_row())
        return stack

    def likely_start(self) -> Tensor | None:
        starts = [factor * start for factor, part in self.terms if (start := part.likely_start()) is not None]
        return torch.stack([start.to(starts[0]) for start in starts]).sum(0) if starts else None

    def layer(self, *names: str) -> LinearOperator:
        return _Combination(*((factor, part.layer(*names)) for factor, part in self.terms))


class TensorOperator(LinearOperator):
    """An operator over the entries of some named tensors, flattened one after the other.

    Attributes:
        tensors: Tensors by name, in the order in which they are flattened.
    """

    tensors: Mapping[str, Tensor]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.tensors)

    @property
    def shape(self) -> tuple[int, int]:
        size = sum(t.numel() for t in self.tensors.values())
        return size, size

    @property
    def dtype(self) -> torch.dtype:
        return next(iter(self.tensors.values())).dtype

    @property
    def device(self) -> torch.device:
        return next(iter(self.tensors.values())).device

    @abstractmethod
    def layer(self, *names: str) -> Self: ...

    def split(self, vector: Tensor, names: Sequence[str] | None = None) -> list[Tensor]:
        """One vector → one tensor for each of `names`, or for all names."""
        chosen = [self.tensors[name] for name in (self.names if names is None else names)]
        parts = torch.split(vector, [t.numel() for t in chosen])
        return [part.view_as(t) for part, t in zip(parts, chosen, strict=True)]

    def check_finite(self, products: Tensor, names: Sequence[str]) -> None:
        """Raise `NonFinite` for products (k, n) over the named tensors that are NaN or inf, naming the tensor."""
        if math.isfinite(float(products.sum())) or bool(torch.isfinite(products).all()):
            return  # the sum is the cheaper check, but it may overflow by itself
        parts = zip(names, self.split(products.sum(0), names), strict=True)
        culprit = next((name for name, part in parts if not bool(torch.isfinite(part).all())), names[0])
        raise NonFinite(
            f"a product with {self!r} is NaN or inf at {culprit!r} although the loss is finite: "
            "a second derivative does not exist there (a square root or norm at 0?), or it overflowed."
        )


@contextlib.contextmanager
def naming_missing_derivatives() -> Iterator[None]:
    """Turn torch's error about a missing second derivative into one that names the function and what to do."""
    try:
        yield
    except RuntimeError as error:
        match = re.search(r"derivative for '?(?:aten::)?(\w+?)(?:_backward)?'? is not implemented", str(error))
        if match is None:
            raise
        raise InvalidProblem(
            f"PyTorch has no second derivative of {match[1].strip('_')!r}, which the model or the loss uses. "
            "Measure a copy of the model that uses another function instead."
        ) from error
