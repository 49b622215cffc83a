"""What a diagnosis may cost: its parts, how many products each may take, and until when."""

from __future__ import annotations

import math
import time
from enum import StrEnum
from operator import length_hint
from typing import Literal

from torch import nn
from torch.optim import SGD, Optimizer

from wellcond.diagnosis.probes.behavior import price as probes_price
from wellcond.diagnosis.trial import trial_price
from wellcond.problem.problem import Problem
from wellcond.training.optimizers import groups_of


class PartName(StrEnum):
    """The parts of a diagnosis, as they are planned, priced and named in messages."""

    INSPECTION = "inspection"
    BEHAVIOR = "behavior"
    LAYERS = "layers"
    """Gradients, conditioning and neurons in one pass; each is a part of its own only if that pass fails."""
    GRADIENTS = "gradients"
    CONDITIONING = "conditioning"
    NEURONS = "neurons"
    TRIAL = "trial"
    HESSIAN_EIGENVALUES = "Hessian eigenvalues"
    SMALLEST_EIGENVALUE = "smallest Hessian eigenvalue"
    MAX_LR = "largest stable lr"
    HESSIAN_TRACE = "Hessian trace"


FAST_U = 75.0
"""Most that a fast diagnosis takes, in forward and backward passes over all batches, as all plans here."""
PASSES_U = {PartName.INSPECTION: 4.0, PartName.LAYERS: 7.0, PartName.TRIAL: 20.0}
"""Their share for the inspection, for the layers (a pass over the data, and the spectra of each layer's inputs and
output gradients) and for the trial. The trial takes at least about 60 steps, which cost more with one small batch."""
GRAPH_U = 2.5
"""Cost of the gradient's graph, which the first product of a spectrum builds."""
STEP_U = 3.0
"""Cost of the gradient that an optimizer's step depends on, and of its divisor."""
PRODUCT_U = 3.5
"""Cost of a Hessian product: 2 to 3 u for perceptrons, convolutional networks and transformers, plus Lanczos."""
RECURRENT_PRODUCT_U = 6.0
"""Cost of a Hessian product if an LSTM, a GRU or an RNN is differentiated twice."""
PRECONDITIONED_U = 1.0
"""Additional cost of a product with the matrix of an optimizer, between two scalings."""
FEWEST_PRODUCTS = 3
"""Products below which a largest eigenvalue is not worth reporting."""
SHARE_OF_TRIAL = 0.4
"""Share of the trial in the seconds left after the inspection and the layers."""
SHARE_OF_RATE = 0.6
"""Share of the rate in the seconds, if it needs a spectrum of its own: it matters more than the Hessian's."""

MOST_PRODUCTS = 100
"""Products of one spectrum without a budget; usually 10 to 30 are enough."""
TRACE_PRODUCTS = 400
"""Products of the trace; they are of single layers, most of them of the last ones, which cost next to nothing."""


class Budget:
    """What is left to spend. A fast budget counts products, so that a seed fixes the numbers; others count seconds.

    Args:
        requested: `"fast"`, `"full"` or seconds.
        problem: What is diagnosed.
        optimizer: Optimizer that trains it.
        batch_size: Examples in its first batch.

    Attributes:
        is_fast: Whether only the largest eigenvalues are measured, without a certificate, and no trace.
        rate_is_apart: Whether the rate depends on another matrix than the Hessian, as with Adam.
        prices: Estimate of each part's cost, in u, in the order in which they are measured.
    """

    def __init__(
        self, requested: Literal["fast", "full"] | float, problem: Problem, optimizer: Optimizer | None, batch_size: int
    ) -> None:
        self.is_fast = requested == "fast"
        self.seconds = math.inf if isinstance(requested, str) else float(requested)
        self._deadline = time.perf_counter() + self.seconds
        self.rate_is_apart = optimizer is not None and not _follows_the_gradient(problem, optimizer)
        self._product = product_price(problem.model) + PRECONDITIONED_U * self.rate_is_apart
        batches = length_hint(problem.batches, 1)
        probes = probes_price(problem) / batches  # they see one batch
        fixed = sum(PASSES_U.values()) + probes + GRAPH_U + STEP_U * (optimizer is not None)
        self._products = int((FAST_U - fixed) / self._product) if self.is_fast else MOST_PRODUCTS
        runs = max(PASSES_U[PartName.TRIAL], trial_price(batch_size, batches))
        passes = {
            PartName.INSPECTION: PASSES_U[PartName.INSPECTION],
            PartName.BEHAVIOR: probes,
            PartName.LAYERS: PASSES_U[PartName.LAYERS],
            PartName.TRIAL: runs,
            **self._curvature_prices(optimizer),
        }
        self.prices = {part: price * batches for part, price in passes.items()}

    def _curvature_prices(self, optimizer: Optimizer | None) -> dict[PartName, float]:
        step = STEP_U if optimizer is not None else 0.0
        if self.rate_is_apart:
            rest = self._products - 2 if self.is_fast else self._products  # after a rate of one product, and its graph
            rate = step + self._price_of(self._products)
            prices = {PartName.MAX_LR: rate, PartName.HESSIAN_EIGENVALUES: self._price_of(rest)}
        else:
            prices = {PartName.HESSIAN_EIGENVALUES: self._price_of(self._products), PartName.MAX_LR: step}
        return prices if self.is_fast else prices | {PartName.HESSIAN_TRACE: self._price_of(TRACE_PRODUCTS) / 2}

    def _price_of(self, products: int) -> float:
        return GRAPH_U + products * self._product

    @property
    def products(self) -> int:
        """Most products that the next spectrum may take."""
        return self._products

    @property
    def has_spectrum_left(self) -> bool:
        """Whether enough products are left for another spectrum."""
        return self._products >= FEWEST_PRODUCTS

    def spend(self, products: int) -> None:
        """Count this many products, and the graph for them, which costs about as much as one."""
        if self.is_fast and products:
            self._products -= products + 1

    def seconds_left(self, share: float = 1.0) -> float | None:
        """A share of the seconds that are left; None if the budget is not in seconds."""
        return None if self.seconds == math.inf else max(share * (self._deadline - time.perf_counter()), 1e-9)

    @property
    def is_spent(self) -> bool:
        """Whether no time is left for another part."""
        return time.perf_counter() >= self._deadline


def check_budget(requested: object) -> None:
    """Refuse what is not a budget.

    Raises:
        ValueError: It is neither `"fast"`, `"full"` nor a positive number.
    """
    is_seconds = isinstance(requested, (int, float)) and not isinstance(requested, bool) and requested > 0
    if not is_seconds and requested not in ("fast", "full"):
        raise ValueError(f'budget is {requested!r}; write "fast", "full" or a number of seconds.')


def product_price(model: nn.Module) -> float:
    """Largest cost of a Hessian product, in u, with its share of Lanczos."""
    is_recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    return RECURRENT_PRODUCT_U if is_recurrent else PRODUCT_U


def _follows_the_gradient(problem: Problem, optimizer: Optimizer) -> bool:
    """Whether the optimizer's limit is that of the Hessian's largest eigenvalue: SGD whose groups all step alike."""
    settings = [{k: v for k, v in group.items() if k != "params"} for group in groups_of(problem, optimizer)]
    is_alike = all(each == settings[0] for each in settings)
    return isinstance(optimizer, SGD) and is_alike and not settings[0]["maximize"]
