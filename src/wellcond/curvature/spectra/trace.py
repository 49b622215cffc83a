"""The trace with an error bar: layer by layer for curvature matrices, as one block for any other operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wellcond.curvature.curvature_operator import CurvatureOperator
from wellcond.curvature.spectra.allowance import Allowance
from wellcond.curvature.spectra.lanczos import MEMORY
from wellcond.curvature.spectra.operators import Operator, as_operator, in_a_row
from wellcond.curvature.spectra.trace_block import SKETCH, Request, TraceBlock
from wellcond.errors import Interrupted
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.results import Progress, Result, Row, quantities
from wellcond.results.progress import shows_progress

MIN_PROBES = 8
"""Fewest probes whose spread is worth calling an error bar."""
PILOT = 4
"""Probes of every stratum before further ones are distributed by their spread."""
STRATA_OF_A_SIZE = 8
"""The last eight modules are a stratum each, before them eight pairs, then fours, …: the last layers cost little."""


@dataclass(frozen=True)
class Trace(Result):
    """An estimate of a trace.

    Attributes:
        value: Estimate of the trace.
        error: Standard error, or the rounding if the trace is exact. The truth lies within twice the error in 95 % of
            all cases: after few probes it is widened as for Student's t.
        matvecs: Number of products.
        converged: Whether the error is at most `tol` · |value|.
        status: The same in words.
    """

    value: float
    error: float
    matvecs: int
    converged: bool
    status: str = ""

    def rows(self, step: int | None = None) -> list[Row]:
        return [
            Row(step, "", quantities.TRACE, self.value, ""),
            Row(step, "", quantities.TRACE_ERROR, self.error, ""),
            Row(step, "", quantities.CONVERGED, float(self.converged), ""),
            Row(step, "", quantities.MATVECS, float(self.matvecs), "products"),
        ]

    def __str__(self) -> str:
        word = "" if self.converged else f"; {self.status}"
        return f"trace {self.value:.6g} ± {self.error:.2g} (standard error), {self.matvecs} products{word}"


@shows_progress
@own_arithmetic()
def trace(
    operator: Operator,
    tol: float = 0.05,
    *,
    max_matvecs: int = 2000,
    budget: float | None = None,
    memory: float = MEMORY,
    seed: int = 0,
    progress: Progress | None = None,
) -> Trace:
    """tr A of a symmetric operator, to a relative standard error of `tol`.

    The base is Hutchinson's estimator, tr A = E[zᵀAz] with z uniform on {−1, 1}ⁿ; its noise is the mass of A off the
    diagonal. Three methods reduce it, all unbiased:

    Curvature matrices are summed layer by layer, tr A = Σ_l tr A_ll (stratified sampling). The blocks between layers,
    most of the noise and none of the trace, never enter; layers with more spread get more probes (Neyman's allocation);
    and the layers with most of the spread are the last ones, whose blocks cost almost nothing.

    A block in which few directions have most of the spread is deflated (Hutch++, Meyer, Musco, Musco and Woodruff
    2021): exactly on the range of its first products, by probes on the rest.

    A block with no more parameters than the probes it would take is summed exactly.

    Args:
        operator: Any operator of this library, or a symmetric tensor.
        tol: Relative standard error.
        max_matvecs: Most products; the estimate so far is returned after this many.
        budget: Seconds. Products that would end later are not started, except for the first one.
        memory: GiB for stored vectors, at least four of them, in addition to the memory of a product. If not all
            probes of a round fit, they are multiplied in turn, each time in a pass over the batches, and nothing is
            deflated.
        seed: Seed of the probes.
        progress: Called as (current task, share of all work done).

    Returns:
        The estimate and its standard error, also if `tol` was not reached.

    Raises:
        NonFinite: A product is NaN or infinite.
        Interrupted: On Ctrl-C, with the result so far as `.result`.

    Example:
        >>> trace(torch.diag(torch.tensor([4.0, 2.0, 1.0]))).value
        7.0
    """
    if max_matvecs < 1:
        raise ValueError(f"max_matvecs is {max_matvecs}; a trace takes at least one product.")
    generator = torch.Generator("cpu").manual_seed(seed)
    operator = as_operator(operator)
    allowance = Allowance(max_matvecs, budget)
    # means in float64; and five vectors per column: itself, its product, the last round's product, a copy, a basis
    means = 8 * operator.shape[0]
    at_once = max(1, int((memory * 2**30 - means) // (5 * operator.shape[0] * operator.dtype.itemsize)))
    with in_a_row(operator):
        if budget is not None:  # the time of one probe is needed to plan the rest
            value = _one_probe(operator, generator)
            allowance.charge(1)
            if not allowance.affordable:
                return Trace(value, math.inf, 1, False, f"{allowance.why_stopped}: one probe has no error bar")
        return _estimate(*_divided(operator, generator, allowance.affordable), tol, allowance, at_once, progress)


def _one_probe(operator: Operator, generator: torch.Generator) -> float:
    """The estimate from one probe of the whole matrix."""
    whole = TraceBlock(operator.shape[0], 1.0, operator, generator)
    probe, receive = whole.probes(1)
    receive(operator @ probe)
    return whole.value


def _divided(
    operator: Operator, generator: torch.Generator, most: int
) -> tuple[list[TraceBlock], Callable[[Sequence[tuple[int, Tensor]]], Sequence[Tensor]]]:
    """The blocks of the sum, for at most `most` products, and the function that multiplies them."""
    if not isinstance(operator, CurvatureOperator):
        whole = TraceBlock(operator.shape[0], 1.0, operator, generator)
        return [whole], lambda asked: [operator @ columns for _, columns in asked]
    names, sizes = operator.names, [parameter.numel() for parameter in operator.params.values()]
    strata = _strata(names, most=max(1, most // PILOT))
    blocks = [
        # a block's product differentiates through the layers after its first parameter
        TraceBlock(sum(sizes[i] for i in stratum), 1 - stratum[0] / len(names), operator, generator)
        for stratum in strata
    ]
    return blocks, lambda asked: operator.block_products([(strata[i], columns) for i, columns in asked])


def _estimate(
    blocks: Sequence[TraceBlock],
    multiply: Callable[[Sequence[tuple[int, Tensor]]], Sequence[Tensor]],
    tol: float,
    allowance: Allowance,
    at_once: int,
    progress: Progress | None,
) -> Trace:
    """Σ_l tr A_ll.

    Args:
        blocks: Estimates of each tr A_ll, still without products.
        multiply: Function from blocks, by their position, and columns to products.
        tol: Relative standard error.
        allowance: Limit on products and seconds.
        at_once: Most columns of each block at a time.
        progress: Called after every round.
    """
    pilot = min(max(PILOT, MIN_PROBES // len(blocks)), allowance.affordable // len(blocks))
    few = 2 * pilot  # a block with at most this many parameters is summed exactly for the price of an estimate
    if sum(block.size if block.size <= few else pilot for block in blocks) > allowance.affordable:
        few = pilot
    requests: dict[int, Request] = {
        i: block.unit_vectors() if block.size <= few else block.probes(min(pilot, at_once))
        for i, block in enumerate(blocks)
    }
    known: Trace | None = None
    try:
        while True:
            products = multiply([(i, columns) for i, (columns, _) in requests.items()])
            for (_, receive), product in zip(requests.values(), products, strict=True):
                receive(product)
            counts = {i: columns.shape[1] for i, (columns, _) in requests.items()}
            allowance.charge(sum(counts.values()), sum(blocks[i].cost * count for i, count in counts.items()))
            value = sum(block.value for block in blocks)
            noise, error = _standard_error(blocks)
            doubtful = any(block.may_be_luck or (block.count < pilot and not block.is_exact) for block in blocks)
            converged = error <= tol * abs(value) and not doubtful
            if progress is not None:
                progress("trace", allowance.share)
            status = f"the relative error of {tol:g} was {'' if converged else 'not '}reached"
            known = Trace(value, error + sum(block.rounding for block in blocks), allowance.spent, converged, status)
            if converged or not allowance.affordable:
                return known if converged else replace(known, status=f"{allowance.why_stopped}: {status}")
            # the noise that probes may leave for the requested error
            aim = tol * abs(value) * (noise / error if 0 < error < math.inf else 1.0)
            del products  # to make room for the next ones
            requests = _next_round(blocks, aim, pilot, at_once, allowance.affordable)
    except KeyboardInterrupt as interrupt:
        if known is None:
            raise
        status = f"interrupted after {known.matvecs} products: {known.status}"
        raise Interrupted(replace(known, status=status)) from interrupt


def _standard_error(blocks: Sequence[TraceBlock]) -> tuple[float, float]:
    """√(Σ_l s_l²/m_l) for m_l probes of spread s_l; and the same widened until twice its size covers 95 %.

    The s_l are estimates, at worst as noisy as those from m_l normal numbers: Student's t with the degrees of freedom
    of Welch and Satterthwaite.
    """
    parts = [(block.spread / math.sqrt(max(1, block.count)), block.freedom) for block in blocks if block.spread]
    largest = max((noise for noise, _ in parts), default=0.0)
    if largest in (0.0, math.inf):
        return largest, largest
    squares = [((noise / largest) ** 2, freedom) for noise, freedom in parts]
    total = sum(square for square, _ in squares)
    noise = largest * math.sqrt(total)
    return noise, noise * _widening(total**2 / sum(square**2 / freedom for square, freedom in squares))


def _widening(freedom: float) -> float:
    """Ratio of the 97.5 % quantile of Student's t to that of the normal distribution.

    It is Fisher's expansion in 1/freedom, accurate to 0.1 % from three degrees of freedom on.
    """
    z = 1.959964
    terms = (
        (z**2 + 1) / 4,
        (5 * z**4 + 16 * z**2 + 3) / 96,
        (3 * z**6 + 19 * z**4 + 17 * z**2 - 15) / 384,
        (79 * z**8 + 776 * z**6 + 1482 * z**4 - 1920 * z**2 - 945) / 92160,
    )
    return 1 + sum(term / freedom**power for power, term in enumerate(terms, 1))


def _next_round(blocks: Sequence[TraceBlock], aim: float, pilot: int, at_once: int, left: int) -> dict[int, Request]:
    """What to multiply next, for noise `aim` at the least cost, with at most `left` columns, `at_once` of a block.

    At a cost of c_l per probe, the least total cost has m_l ∝ s_l/√c_l.
    """
    requests: dict[int, Request] = {}
    for i, block in enumerate(blocks):  # no spread is known yet if not all of the first probes fitted
        if block.count < pilot and not block.is_exact and left:
            requests[i] = block.probes(min(pilot - block.count, at_once, left))
            left -= requests[i][0].shape[1]
    if requests:
        return requests
    roots = [math.sqrt(block.cost) for block in blocks]
    spreads = [block.spread / aim if block.spread and aim else block.spread and math.inf for block in blocks]
    budget = sum(spread * root for spread, root in zip(spreads, roots, strict=True))
    for i, (block, spread, root) in enumerate(zip(blocks, spreads, roots, strict=True)):
        more = spread * budget / root - block.count if spread else 0.0
        if block.may_be_luck:
            more = max(more, block.count)
        more = min(more, left)
        if more <= 0:
            continue
        deflated = 2 * SKETCH + (1 - block.captured) * more  # about the number of products after a deflation
        if block.size <= min(more, deflated):
            requests[i] = block.unit_vectors()
        elif deflated < more and SKETCH + pilot <= left and block.basis_width + SKETCH + pilot <= at_once:
            requests[i] = block.deflation(pilot)
        else:
            requests[i] = block.probes(math.ceil(min(more, block.count, at_once)))  # at most doubled at a time
        left -= requests[i][0].shape[1]
    if not requests:
        widest = max(range(len(blocks)), key=lambda i: blocks[i].spread)
        requests[widest] = blocks[widest].probes(1)
    return requests


def _strata(names: Sequence[str], most: int) -> list[list[int]]:
    """Positions of the parameters by the module that owns them, with the early modules of a deep network merged.

    Args:
        names: Names of the parameters, in their order.
        most: Most strata.
    """
    modules: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        modules.setdefault(name.rpartition(".")[0], []).append(i)
    left, strata, size = list(modules.values()), [], 1
    while left:
        for _ in range(STRATA_OF_A_SIZE):
            if left:
                strata.append([i for module in left[-size:] for i in module])
                del left[-size:]
        size *= 2
    strata.reverse()
    while len(strata) > most:
        strata = [[i for stratum in strata[j : j + 2] for i in stratum] for j in range(0, len(strata), 2)]
    return strata
