"""What a diagnosis may cost: which parts it has, how many products each may take, and until when."""

from __future__ import annotations

import contextlib
import math
import time
from operator import length_hint
from typing import Literal

from torch import nn
from torch.optim import SGD, Optimizer

from wellcond.diagnosis.trial import trial_price
from wellcond.problem.batches import examples_in
from wellcond.problem.problem import Problem
from wellcond.training.optimizers import groups_of

FAST_U = 60.0
"""Most that a fast diagnosis takes, in forward+backward passes of the same problem."""
PASSES_U = {"look": 4.0, "layers": 7.0, "trial": 20.0}
"""Of them for a look, for the layers (a pass over the data, and the spectra of what each layer receives and gets back)
and for short runs of copies. These take at least some 60 steps, which are more where a small batch is all there is."""
GRAPH_U = 2.5
"""For the graph of the gradient, which the first product of a spectrum builds."""
STEP_U = 3.0
"""For the gradient that an optimizer's step depends on, and what it divides by."""
PRODUCT_U = 3.5
"""A Hessian product takes 2 to 3 u with perceptrons, convolutional networks and transformers, and Lanczos the rest."""
RECURRENT_PRODUCT_U = 6.0
"""What it takes where an LSTM, a GRU or an RNN is differentiated twice."""
PRECONDITIONED_U = 1.0
"""More for a product with the matrix of an optimizer, between two scalings."""
FEWEST_PRODUCTS = 3
"""For a largest eigenvalue that is worth stating."""
SHARE_OF_TRIAL = 0.4
"""Of the seconds that are left after a look and the layers."""
SHARE_OF_RATE = 0.6
"""Of the seconds, where the rate needs a spectrum of its own: it matters more than the Hessian's."""

MOST_PRODUCTS = 100
"""For one spectrum that no budget bounds; usually 10 to 30 are enough."""
TRACE_PRODUCTS = 400
"""For the trace; they are of single layers, most of them of the last ones, which cost next to nothing."""


class Budget:
    """What is left to spend. A fast budget counts products, so that a seed fixes the numbers; another one the seconds.

    Args:
        asked: `"fast"`, `"full"` or seconds.
        problem: What is diagnosed.
        optimizer: The one that trains it.

    Attributes:
        is_fast: Whether only the largest eigenvalues are wanted, without a certificate, and no trace.
        rate_is_apart: Whether the rate is that of another matrix than the Hessian, as with Adam.
        prices: What each part is estimated to cost at most, in u, in the order in which they are measured.

    Raises:
        ValueError: It is no budget.
    """

    def __init__(self, asked: Literal["fast", "full"] | float, problem: Problem, optimizer: Optimizer | None) -> None:
        is_seconds = isinstance(asked, (int, float)) and not isinstance(asked, bool) and asked > 0
        if not is_seconds and asked not in ("fast", "full"):
            raise ValueError(f'budget is {asked!r}; write "fast", "full" or a number of seconds.')
        self.is_fast = asked == "fast"
        self.seconds = float(asked) if is_seconds else math.inf
        self._deadline = time.perf_counter() + self.seconds
        self.rate_is_apart = optimizer is not None and not _follows_the_gradient(problem, optimizer)
        self._product = product_price(problem.model) + PRECONDITIONED_U * self.rate_is_apart
        fixed = sum(PASSES_U.values()) + GRAPH_U + STEP_U * (optimizer is not None)
        self._products = int((FAST_U - fixed) / self._product) if self.is_fast else MOST_PRODUCTS
        with contextlib.closing(problem.data()) as data:
            _, first = next(data)
        steps = trial_price(examples_in(first), length_hint(problem.batches, 1))
        self.prices = PASSES_U | {"trial": max(PASSES_U["trial"], steps)} | self._curvature_prices(optimizer)

    def _curvature_prices(self, optimizer: Optimizer | None) -> dict[str, float]:
        step = STEP_U if optimizer is not None else 0.0
        if self.rate_is_apart:
            rest = self._products - 2 if self.is_fast else self._products  # after a rate of one product, and its graph
            rate = step + self._price_of(self._products)
            prices = {"largest stable lr": rate, "Hessian eigenvalues": self._price_of(rest)}
        else:
            prices = {"Hessian eigenvalues": self._price_of(self._products), "largest stable lr": step}
        return prices if self.is_fast else prices | {"Hessian trace": self._price_of(TRACE_PRODUCTS) / 2}

    def _price_of(self, products: int) -> float:
        return GRAPH_U + products * self._product

    @property
    def products(self) -> int:
        """Most products that the next spectrum may take."""
        return self._products

    @property
    def has_spectrum_left(self) -> bool:
        """Whether enough products are left for another spectrum: fewer would give a number that says little."""
        return self._products >= FEWEST_PRODUCTS

    def spend(self, products: int) -> None:
        """So many have been made, and a graph for them, which costs about as much as one."""
        if self.is_fast and products:
            self._products -= products + 1

    def seconds_left(self, share: float = 1.0) -> float | None:
        """A share of the seconds that are left; None where they do not count."""
        return None if self.seconds == math.inf else max(share * (self._deadline - time.perf_counter()), 1e-9)

    @property
    def is_spent(self) -> bool:
        """Whether no time is left to begin another part."""
        return time.perf_counter() >= self._deadline


def product_price(model: nn.Module) -> float:
    """What a Hessian product takes at most, in u, with its share of Lanczos."""
    is_recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    return RECURRENT_PRODUCT_U if is_recurrent else PRODUCT_U


def _follows_the_gradient(problem: Problem, optimizer: Optimizer) -> bool:
    """Whether the optimizer's limit is that of the Hessian's largest eigenvalue: SGD whose groups all step alike."""
    settings = [{k: v for k, v in group.items() if k != "params"} for group in groups_of(problem, optimizer)]
    is_alike = all(each == settings[0] for each in settings)
    return isinstance(optimizer, SGD) and is_alike and not settings[0]["maximize"]
