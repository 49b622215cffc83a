"""What a diagnosis may cost: its parts, how many products each may take, and until when."""

from __future__ import annotations

import functools
import math
import time
from enum import StrEnum
from typing import Literal

from torch import nn
from torch.optim import SGD, Optimizer

from wellcond.diagnosis.on_gpu import TIMED_STEPS, OnGpu
from wellcond.diagnosis.probes.behavior import price as probes_price
from wellcond.diagnosis.trial import trial_price
from wellcond.problem.problem import Problem
from wellcond.results import Cost
from wellcond.training.optimizers import evaluations_of, groups_of


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


CURVATURE_PARTS = (
    PartName.HESSIAN_EIGENVALUES, PartName.SMALLEST_EIGENVALUE, PartName.MAX_LR, PartName.HESSIAN_TRACE,
)  # fmt: skip
"""The last ones: all others have been measured before them."""
FAST_U, FAST_SECONDS = 100.0, 2.0
"""Most that a fast diagnosis takes: training steps, or seconds on an ordinary core if these allow more steps."""
GPU_SECONDS = 5.0
"""Seconds that a fast diagnosis may take on a GPU where `FAST_U` training steps take less. Steps that are bound by the
launches of their kernels take 10 to 20 ms whatever the batch, and a diagnosis launches several times the kernels."""
SHARE_OF_CLOCK = 0.85
"""Share of those seconds after which no further part begins: on an H200 the last one ended up to 14 % late."""
LEVELS = (4 * FAST_U, 2 * FAST_U)
"""Steps of a fast diagnosis of networks whose steps are quick. They are few, so that two runs take the same."""
SHARE_OF_STEPS = 0.5
"""Share of the seconds for the steps themselves; the rest is for what is computed from them."""
INSPECTION_U = 4.0
"""Cost of the inspection, after which the first findings are there."""
STEP_TIMED_U = 2.0
"""Cost of the steps that are counted and timed; on a GPU some more are timed, in both precisions."""
EXACT_ON_GPU = 1024
"""Longest side of a layer's matrix whose eigenvalues are all computed by a fast diagnosis on a GPU, where those of a
side of 3,000 take as long as three training steps; of longer ones it has the largest eigenvalue and the trace."""
LAYER_BATCHES = 4
"""Batches whose layers are measured, for every `FAST_U`: one pass, and the spectra of inputs and output gradients."""
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
ENOUGH_PRODUCTS, FAST_PRODUCTS = 8, 24
"""Products of a fast diagnosis; where more fit, they are of more batches, and no more than `FAST_PRODUCTS`."""
SHARE_OF_TRIAL, FAST_SHARE_OF_TRIAL = 0.4, 0.75
"""Share of the trial in the seconds left after the inspection and the layers; a fast diagnosis takes few products."""
SHARE_OF_RATE = 0.6
"""Share of the rate in the seconds, if it needs a spectrum of its own: it matters more than the Hessian's."""

MOST_PRODUCTS = 100
"""Products of one spectrum without a budget; usually 10 to 30 are enough."""
TRACE_PRODUCTS = 400
"""Products of the trace; they are of single layers, most of them of the last ones, which cost next to nothing."""


class Budget:
    """What is left to spend. A fast budget counts training steps, so that a seed fixes the numbers; others seconds.

    On a GPU a fast budget has both limits: what it counts takes longer there than the steps that it is counted in.

    Args:
        requested: `"fast"`, `"full"` or seconds.
        problem: What is diagnosed.
        optimizer: Optimizer that trains it.
        batch_size: Examples in its first batch.
        before: Cost of the problem when the diagnosis began.

    Attributes:
        is_fast: Whether only the largest eigenvalues are measured, without a certificate, and no trace.
        rate_is_apart: Whether the rate depends on another matrix than the Hessian, as with Adam.
        most: Steps that a fast diagnosis may take, in u; infinite for others.
        promised: Seconds that it takes at most; infinite on a CPU, unless they are what was requested.
        seconds: Seconds after which nothing further begins.
        on_gpu: What full precision takes on a GPU, once it is known; None on a CPU.
        prices: Estimate of each part's cost, in u, in the order in which they are measured.
    """

    def __init__(
        self,
        requested: Literal["fast", "full"] | float,
        problem: Problem,
        optimizer: Optimizer | None,
        batch_size: int,
        before: Cost,
    ) -> None:
        self.is_fast = requested == "fast"
        self.promised = self.seconds = math.inf if isinstance(requested, str) else float(requested)
        self._began = time.perf_counter()
        self._problem, self._before, self._batch_size = problem, before, batch_size
        self.rate_is_apart = optimizer is not None and not _follows_the_gradient(problem, optimizer)
        self._product = product_price(problem.model) + PRECONDITIONED_U * self.rate_is_apart
        self._start = GRAPH_U + STEP_U * (optimizer is not None)
        self._products = MOST_PRODUCTS
        self.on_gpu: OnGpu | None = None
        self._evaluations = evaluations_of(optimizer)
        self._is_on_gpu = problem.device.type == "cuda"
        self.most = FAST_U if self.is_fast else math.inf
        self.prices = self._planned()

    def extend(self, step_seconds: float) -> None:
        """Plan for more steps where they are quick.

        Args:
            step_seconds: What a training step takes on an ordinary core, so that busy machines judge alike.
        """
        if self.is_fast:
            fitting = (most for most in LEVELS if most * step_seconds <= SHARE_OF_STEPS * FAST_SECONDS)
            self.most = next(fitting, FAST_U)
            self.prices = self._planned()

    def limit_on_gpu(self, on_gpu: OnGpu | None) -> None:
        """On a GPU the clock counts too: passes of probes and copies take longer there than those of training."""
        self.on_gpu = on_gpu
        if on_gpu is not None:
            self.promised = max(GPU_SECONDS, FAST_U * on_gpu.step_seconds)
            self.seconds = SHARE_OF_CLOCK * self.promised

    @property
    def left(self) -> float:
        """Training steps that are left, in u."""
        return self.most - (self._problem.cost - self._before).u

    @property
    def layer_batches(self) -> int:
        """The number of batches whose layers are measured."""
        batches = self._problem.batch_count
        slower = 1.0 if self.on_gpu is None else self.on_gpu.slower
        return min(batches, max(1, int(LAYER_BATCHES * self.most / FAST_U / slower))) if self.is_fast else batches

    @property
    def exact(self) -> int | None:
        """Longest side of a layer's matrix whose eigenvalues are all computed; None: as in `conditioning`."""
        return EXACT_ON_GPU if self.is_fast and self.on_gpu is not None else None

    @property
    def least_curvature(self) -> float:
        """What the fewest products on one batch cost, in u."""
        return self._start + FEWEST_PRODUCTS * self._product

    def plan_products(self) -> int:
        """Divide what is left among products and batches; returns the number of batches whose curvature is measured."""
        batches = self._problem.batch_count
        if not self.is_fast:
            return batches
        used, self._products = self._divided(self.left)
        if self.on_gpu is not None:
            self._products = min(self._products, self.on_gpu.products)
        return used

    def _divided(self, left: float) -> tuple[int, int]:
        """How many batches and products on them fit into this many u."""
        used = int(left / (self._start + ENOUGH_PRODUCTS * self._product))
        used = min(max(used, 1), self._problem.batch_count)
        return used, min(int((left / used - self._start) / self._product), FAST_PRODUCTS)

    def _planned(self) -> dict[PartName, float]:
        timed = STEP_TIMED_U + 2 * TIMED_STEPS * self._is_on_gpu
        fixed = {
            PartName.INSPECTION: INSPECTION_U,
            PartName.BEHAVIOR: timed + probes_price(self._problem),
            PartName.LAYERS: float(self.layer_batches),
        }
        if not self.is_fast:
            batches = self._problem.batch_count
            runs = trial_price(self._batch_size, batches, on_gpu=self._is_on_gpu, evaluations=self._evaluations)
            return fixed | {PartName.TRIAL: runs} | self._curvature_prices(batches, MOST_PRODUCTS)
        left = self.most - sum(fixed.values())
        price = functools.partial(
            trial_price, self._batch_size, self._problem.batch_count, left, on_gpu=self._is_on_gpu
        )
        runs = min(price(), left - self.least_curvature)
        curvature = self._curvature_prices(*self._divided(left - runs))
        runs = left - sum(curvature.values())  # a network in trouble gets what nothing else is planned for
        # the first run is made in any case, also if each of its steps takes several evaluations
        return (
            fixed
            | {PartName.TRIAL: runs if self._evaluations == 1 else price(evaluations=self._evaluations)}
            | curvature
        )

    def _curvature_prices(self, batches: int, products: int) -> dict[PartName, float]:
        spectrum = (GRAPH_U + products * self._product) * batches
        rate = (self._start - GRAPH_U) * batches
        if self.rate_is_apart:  # with a fast budget both share the products
            prices = {PartName.MAX_LR: rate + spectrum, PartName.HESSIAN_EIGENVALUES: 0.0 if self.is_fast else spectrum}
        else:
            prices = {PartName.HESSIAN_EIGENVALUES: spectrum, PartName.MAX_LR: rate}
        if self.is_fast:
            return prices
        return prices | {PartName.HESSIAN_TRACE: (GRAPH_U + TRACE_PRODUCTS * self._product) * batches / 2}

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
        """A share of the seconds that are left; None if they are not limited."""
        left = self._began + self.seconds - time.perf_counter()
        return None if self.seconds == math.inf else max(share * left, 1e-9)

    def seconds_of_trial(self) -> float | None:
        """Seconds after which the trial begins no further run; None if they are not limited."""
        return self.seconds_left(FAST_SHARE_OF_TRIAL if self.is_fast else SHARE_OF_TRIAL)

    @property
    def is_spent(self) -> bool:
        """Whether no time is left for another part."""
        return time.perf_counter() >= self._began + self.seconds


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
