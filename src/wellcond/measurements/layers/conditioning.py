"""Layer-wise conditioning: magnitude and condition numbers of every layer's input and output-gradient (huang2020)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from wellcond.curvature.fisher import Fisher
from wellcond.curvature.kronecker.factor_pass import FactorPass, Labels, LayerFactors
from wellcond.curvature.kronecker.matrix_conditioning import Conditioning
from wellcond.curvature.second_moment import compute_eigenvalues
from wellcond.curvature.spectra.exact import block_spectra
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.network.layers import ConvolutionRows
from wellcond.problem.arguments import check_problem
from wellcond.problem.problem import Problem
from wellcond.results import ByLayer, Cost, Progress, Row, number, text_table
from wellcond.results.quantities import FISHER, GRADIENT, INPUT, KRONECKER

SHARES = (0.2, 0.5, 0.8, 1.0)
"""Those p for which κ_p is given unless others are asked for."""


@dataclass(frozen=True)
class LayerConditioning:
    """The matrices of one layer; None stands for what could not be had, and the table's `not_covered` says why.

    A grouped convolution, read as patches, has one Σx and one Σ∇h per group: `x` and `g` hold the eigenvalues of all.

    Attributes:
        name: The layer's name.
        kind: Its type.
        x: Of Σx.
        g: Of Σ∇h.
        fisher: Of the sub-Fisher matrix itself, where it is small enough.
        note: What to know about the layer's numbers, if anything.
        by_group: Eigenvalues of Σx and of Σ∇h, each (groups, d).
        rounding: The dtype whose rounding counts as zero.
    """

    name: str
    kind: str
    x: Conditioning | None
    g: Conditioning | None
    fisher: Conditioning | None
    note: str
    by_group: tuple[Tensor | None, Tensor | None]
    rounding: torch.dtype

    @cached_property
    def kronecker(self) -> Conditioning | None:
        """Of Σx ⊗ Σ∇h: its eigenvalues are all products, so λ_max and κ multiply (Proposition 1)."""
        x, g = self.by_group
        if self.x is None or self.g is None or self.x.rank is None or self.g.rank is None or x is None or g is None:
            return None
        return Conditioning.of_product(x, g, (self.x.rank, self.g.rank), list(self.x.kappa))

    def rows(self, step: int | None = None) -> list[Row]:
        """The numbers of all matrices of the layer."""
        parts = [(self.x, INPUT), (self.g, GRADIENT), (self.kronecker, KRONECKER), (self.fisher, FISHER)]
        return [row for part, names in parts if part is not None for row in part.rows(self.name, names, step)]


@dataclass(frozen=True)
class ConditioningTable(ByLayer[LayerConditioning]):
    """One entry per layer, in the order of the forward pass. `table["fc1"].x.kappa[0.5]` is κ_50% of its Σx.

    Attributes:
        layers: The entries by name.
        not_covered: Layers without numbers, or with fewer, and why.
        batchnorm: The statistics that BatchNorm used.
        convolution: What counts as one row of a convolution.
        labels: Whose labels the gradients come from.
        cost: What it took.
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

    def rows(self, step: int | None = None) -> list[Row]:
        return [row for layer in self.layers.values() for row in layer.rows(step)]

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
    """Magnitude and conditioning of what every layer receives and gets back, in one pass over the data.

    For each layer: λ_max, κ_p, numerical rank and trace of Σx = E[x xᵀ] and Σ∇h = E[g gᵀ] (uncentered), and of their
    Kronecker product, which approximates the layer's Fisher matrix. It costs one forward and backward pass, the two
    products XᵀX and GᵀG per layer, and their eigenvalues. Where a layer is wider than there are rows of data, these are
    those of XXᵀ and GGᵀ and zeros; the table then says "(rows)".

    Where a layer is wider than 4,096 and has more rows than that too, λ_max comes by Lanczos with its error, the trace
    is exact, and κ_p and the rank are not had. A GiB of rows is kept for it; of more, a uniform sample. All layers
    together take at most 4 GiB: those beyond are listed, and `layers=` measures them.

    Args:
        problem: What is measured.
        p: The shares for which κ_p = λ_max / λ_⌈p·d⌉ is given.
        layers: Names of layers to restrict to, or of modules that hold them; nothing is kept of the others, and the
            backward pass ends at the first one.
        convolution: What counts as one row of a convolution, as in `kronecker_factors`.
        labels: Whose labels give the gradients, as in `kronecker_factors`.
        fisher_up_to: Also compute the exact spectrum of the sub-Fisher of every layer's weight of at most so many
            entries.
        progress: Called as (what is being measured, share of all work done).

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
    halves = None if progress is None else (lambda what, share: progress(what, share / 2))
    factors, not_covered = FactorPass(problem, layers, convolution, labels, 0, spectra_only=True).run(halves)
    weight_of = {name: f"{name}.weight".removeprefix(".") for name in factors}  # the model itself may be a layer
    weights = [weight for weight in weight_of.values() if weight in problem.params]
    small = [weight for weight in weights if 0 < problem.params[weight].numel() <= fisher_up_to]
    exact = block_spectra(Fisher(problem, layers=small), {name: [name] for name in small}) if small else {}
    fisher = {name: Conditioning.of(found.values.cpu(), p, found.rounding) for name, found in exact.items()}
    found = layer_conditioning(factors, p, problem.dtype, progress)
    found = {name: replace(layer, fisher=fisher.get(weight_of[name])) for name, layer in found.items()}
    return ConditioningTable(found, not_covered, problem.batchnorm, convolution, labels, problem.cost - before)


def layer_conditioning(
    factors: Mapping[str, LayerFactors], p: Sequence[float], rounding: torch.dtype, progress: Progress | None = None
) -> dict[str, LayerConditioning]:
    """What the eigenvalues of every layer's factors say; they are computed, and the factors let go."""
    moments = [moment for layer in factors.values() for moment in (layer.x, layer.g)]
    reported = itertools.count()

    def report(what: str) -> None:
        if progress is not None:
            progress(f"eigenvalues of {what}", 0.5 + next(reported) / (2 * len(moments)))

    compute_eigenvalues(moments, report)
    found = iter(Conditioning.of_moments(moments, p, rounding))
    layers = {}
    for name, layer in factors.items():
        (x, x_values), (g, g_values) = next(found), next(found)
        layers[name] = LayerConditioning(name, layer.kind, x, g, None, layer.note, (x_values, g_values), rounding)
    if progress is not None:
        progress("conditioning", 1.0)
    return layers
