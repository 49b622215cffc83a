"""Layer-wise conditioning: magnitude and condition numbers of every layer's input and output-gradient (huang2020)."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from wellcond.curvature.fisher import Fisher, Labels
from wellcond.curvature.kronecker.factor_pass import FactorPass, LayerFactors
from wellcond.curvature.kronecker.matrix_conditioning import Conditioning
from wellcond.curvature.kronecker.rows import TOGETHER
from wellcond.curvature.kronecker.second_moment import compute_eigenvalues
from wellcond.curvature.spectra.exact import block_spectra
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.network.layers import ConvolutionRows
from wellcond.problem.arguments import check_problem
from wellcond.problem.batch_losses import Gradients
from wellcond.problem.evaluation import Evaluation
from wellcond.problem.problem import Problem
from wellcond.problem.within_memory import Planned, planned
from wellcond.results import ByLayer, Cost, Progress, Row, number, text_table
from wellcond.results.progress import announce, shows_progress
from wellcond.results.quantities import FISHER, GRADIENT, INPUT, KRONECKER
from wellcond.training.leading import led

SHARES = (0.2, 0.5, 0.8, 1.0)
"""Default shares p for which κ_p is computed."""


@dataclass(frozen=True)
class LayerConditioning:
    """The matrices of one layer; None if one is not available, and the table's `not_covered` says why.

    A grouped convolution, read as patches, has one Σx and one Σ∇h per group: `x` and `g` hold the eigenvalues of all.

    Attributes:
        name: Name of the layer.
        kind: Type of the layer.
        x: Conditioning of Σx.
        g: Conditioning of Σ∇h.
        note: Remark on the layer's numbers, or "".
        by_group: Eigenvalues of Σx and of Σ∇h, each (groups, d).
        rounding: Dtype whose rounding counts as zero.
        fisher: Conditioning of the sub-Fisher matrix itself, if it is small enough.
    """

    name: str
    kind: str
    x: Conditioning | None
    g: Conditioning | None
    note: str
    by_group: tuple[Tensor | None, Tensor | None]
    rounding: torch.dtype
    fisher: Conditioning | None = None

    @cached_property
    def kronecker(self) -> Conditioning | None:
        """Conditioning of Σx ⊗ Σ∇h. Its eigenvalues are all products, so λ_max and κ multiply (Proposition 1)."""
        x, g = self.by_group
        if self.x is None or self.g is None or self.x.rank is None or self.g.rank is None or x is None or g is None:
            return None
        return Conditioning.of_product(x, g, (self.x.rank, self.g.rank), list(self.x.kappa))

    def rows(self, step: int | None = None, quantity: str | None = None) -> list[Row]:
        """The numbers of all matrices of the layer, or of that with a quantity: Σx ⊗ Σ∇h takes long if it is large."""
        matrices = {"x": INPUT, "g": GRADIENT, "kronecker": KRONECKER, "fisher": FISHER}
        asked = [(getattr(self, of), names) for of, names in matrices.items() if quantity is None or quantity in names]
        return [row for part, names in asked if part is not None for row in part.rows(self.name, names, step)]


@dataclass(frozen=True)
class ConditioningTable(ByLayer[LayerConditioning]):
    """One entry per layer, in the order of the forward pass. `table["fc1"].x.kappa[0.5]` is κ_50% of its Σx.

    Attributes:
        layers: Entries by name.
        not_covered: Layers without numbers, or with fewer, and why.
        batchnorm: Statistics that BatchNorm used.
        convolution: What counts as one row of a convolution.
        labels: Labels that the gradients come from.
        cost: Passes over the data.
    """

    layers: dict[str, LayerConditioning]
    not_covered: dict[str, str]
    batchnorm: str
    convolution: ConvolutionRows
    labels: Labels
    cost: Cost

    def __getitem__(self, name: str) -> LayerConditioning:
        layer = name.removesuffix(".weight")
        return super().__getitem__(layer if layer in self.layers else name)

    def rows(self, step: int | None = None, quantity: str | None = None) -> list[Row]:
        """The numbers of all layers, or of their matrix that has a quantity."""
        return [row for layer in self.layers.values() for row in layer.rows(step, quantity)]

    def __str__(self) -> str:
        shares = next((list(m.kappa) for layer in self.layers.values() for m in (layer.x, layer.g) if m), [])
        header = ["layer", "kind"]
        for matrix in ("Σx", "Σ∇h"):
            header += [f"λmax {matrix}", *(f"κ{100 * p:g} {matrix}" for p in shares), "rank"]
        body = []
        for layer in self.layers.values():
            line = [layer.name, layer.kind]
            for part in (layer.x, layer.g):
                if part is None:
                    line += ["–"] * (len(shares) + 2)
                else:
                    kappas = ("–" if math.isnan(kappa) else number(kappa) for kappa in part.kappa.values())
                    rank = "–" if part.rank is None else part.rank
                    side = " (rows)" if part.side == "rows" else ""
                    line += [number(part.lambda_max), *kappas, f"{rank}/{part.dimension}{side}"]
            body.append(line)
        notes = [
            f"{layer.name}: {matrix}: {part.note}"
            for layer in self.layers.values()
            for matrix, part in (("Σx", layer.x), ("Σ∇h", layer.g))
            if part is not None and part.note
        ]
        footer = f"batchnorm={self.batchnorm!r}, convolution={self.convolution!r}, labels={self.labels!r}; {self.cost}"
        skipped = [f"not covered: {name}: {why}" for name, why in self.not_covered.items()]
        return "\n".join([text_table(header, body), *notes, footer, *skipped])


@led
@shows_progress
@own_arithmetic()
def conditioning(
    problem: Problem,
    p: Sequence[float] = SHARES,
    *,
    layers: str | Collection[str] | None = None,
    convolution: ConvolutionRows = "position",
    labels: Labels = "data",
    fisher_up_to: int = 0,
    progress: Progress | None = None,
) -> ConditioningTable:
    """Magnitude and conditioning of every layer's inputs and output gradients, in one pass over the data.

    For each layer: λ_max, κ_p, numerical rank and trace of Σx = E[x xᵀ] and Σ∇h = E[g gᵀ] (uncentered), and of their
    Kronecker product, which approximates the layer's Fisher matrix. It costs one forward and backward pass, the two
    products XᵀX and GᵀG per layer, and their eigenvalues. If a layer has more features than there are rows of data,
    the eigenvalues come from XXᵀ and GGᵀ, filled up with zeros; the table then says "(rows)".

    If a layer has more than 4,096 features and more rows than that too, λ_max is computed by Lanczos with its error,
    the trace is exact, and κ_p and the rank are not available. One GiB of rows is stored for it, or a uniform sample
    that fits. All layers together take at most 4 GiB: those beyond it are listed, and `layers=` measures them. On a GPU
    batches pass in pieces where whole ones and what is stored would take more than twice the memory of a training step.

    Args:
        problem: The model, loss and data.
        p: Shares for which κ_p = λ_max / λ_⌈p·d⌉ is computed.
        layers: Names of layers to restrict to, or of modules that hold them. Nothing is stored for the others, and the
            backward pass ends at the first of these layers.
        convolution: What counts as one row of a convolution, as in `kronecker_factors`.
        labels: Labels that give the gradients, as in `kronecker_factors`.
        fisher_up_to: Also compute the exact spectrum of the sub-Fisher of every weight with at most this many entries.
        progress: Called as (current task, share of all work done).

    Returns:
        One entry per layer.

    Raises:
        NonFinite: A layer's input or gradient is not finite.
        UnknownLayer: A name is neither that of a layer nor of a module that holds one.

    Example:
        >>> import wellcond as wc
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        >>> problem = wc.Problem(torch.nn.Sequential(torch.nn.Linear(2, 1)), torch.nn.MSELoss(), (x, torch.zeros(2, 1)))
        >>> wc.conditioning(problem)["0"].x.kappa[1.0]       # eigenvalues 1/2 and 2
        4.0
    """
    check_problem(problem)
    before = problem.cost
    plan = _plan(problem, layers, convolution, labels)
    if progress is not None and plan.text:
        announce(progress, problem.batch_count, problem.batch_count * plan.seconds, memory=plan.text)
    table = conditioning_table(
        plan.problem, p, layers=layers, convolution=convolution, labels=labels, progress=progress
    )
    if plan.problem is not problem:
        problem.count_copies(plan.in_batches(plan.problem.cost))
    table = replace(table, cost=problem.cost - before)
    # "" is the model itself, which may be a layer
    weight_of = {name: f"{name}.weight".removeprefix(".") for name in table.layers}
    weights = [weight for weight in weight_of.values() if weight in problem.params]
    small = [weight for weight in weights if 0 < problem.params[weight].numel() <= fisher_up_to]
    if not small:
        return table
    spectra = block_spectra(Fisher(problem, layers=small), {name: [name] for name in small})
    fisher = {name: Conditioning.of(exact.values.cpu(), p, exact.rounding) for name, exact in spectra.items()}
    entries = {name: replace(layer, fisher=fisher.get(weight_of[name])) for name, layer in table.layers.items()}
    return replace(table, layers=entries, cost=problem.cost - before)


def _plan(
    problem: Problem, layers: str | Collection[str] | None, convolution: ConvolutionRows, labels: Labels
) -> Planned:
    """Whole batches, or pieces of them that fit into memory next to what is stored; BatchNorm takes whole ones."""
    if problem.couples_examples or not problem.is_limited:
        return Planned(problem)
    factors: dict[str, LayerFactors] = {}

    def work(some: Problem) -> None:
        factors.update(FactorPass(some, layers, convolution, labels, seed=0).run()[0])

    def stored(times: float) -> float:
        moments = [moment for layer in factors.values() for moment in (layer.x, layer.g)]
        size = sum(moment.size_of(times * moment.count) for moment in moments)
        factors.clear()
        return min(size, TOGETHER)

    plan = planned(problem, work, vectors=0, besides=stored)
    factors.clear()
    return plan


@shows_progress
def conditioning_table(
    problem: Problem,
    p: Sequence[float] = SHARES,
    *,
    layers: str | Collection[str] | None = None,
    convolution: ConvolutionRows = "position",
    labels: Labels = "data",
    exact: int | None = None,
    on_batch: Callable[[Evaluation, Gradients], None] | None = None,
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    progress: Progress | None = None,
) -> ConditioningTable:
    """The table without Fisher matrices, from one pass over the data that others can watch.

    Args:
        problem: As in `conditioning`, like all arguments but the next three.
        p: Shares for which κ_p is computed.
        layers: Names of layers to restrict to.
        convolution: What counts as one row of a convolution.
        labels: Labels that give the gradients.
        exact: Longest side of a matrix whose eigenvalues are all computed, not only the largest; None: 4,096.
        on_batch: Called with every batch's evaluation and the gradient of its loss in all parameters.
        around: Context to enter around every forward pass, without the loss.
        progress: Called as (current task, share of all work done).
    """
    before = problem.cost
    halves = None if progress is None else (lambda what, share: progress(what, share / 2))
    watched = FactorPass(
        problem, layers, convolution, labels, seed=0, exact=exact, spectra_only=True, on_batch=on_batch, around=around
    )
    factors, not_covered = watched.run(halves)
    cost = problem.cost - before
    entries = _layer_conditioning(factors, p, problem.dtype, progress)
    return ConditioningTable(
        layers=entries,
        not_covered=not_covered,
        batchnorm=problem.batchnorm,
        convolution=convolution,
        labels=labels,
        cost=cost,
    )


def _layer_conditioning(
    factors: Mapping[str, LayerFactors], p: Sequence[float], rounding: torch.dtype, progress: Progress | None
) -> dict[str, LayerConditioning]:
    """The conditioning of every layer's factors, which are reduced to their eigenvalues."""
    moments = [moment for layer in factors.values() for moment in (layer.x, layer.g)]
    reported = itertools.count()

    def report(what: str) -> None:
        if progress is not None:
            progress(f"eigenvalues of {what}", 0.5 + next(reported) / (2 * len(moments)))

    compute_eigenvalues(moments, report)
    matrices = iter(Conditioning.of_moments(moments, p, rounding))
    entries = {}
    for name, layer in factors.items():
        (x, x_values), (g, g_values) = next(matrices), next(matrices)
        entries[name] = LayerConditioning(
            name=name,
            kind=layer.kind,
            x=x,
            g=g,
            note=layer.note,
            by_group=(x_values, g_values),
            rounding=rounding,
        )
    if progress is not None:
        progress("conditioning", 1.0)
    return entries
