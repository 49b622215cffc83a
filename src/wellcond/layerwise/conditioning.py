"""Layer-wise conditioning: magnitude and condition numbers of every layer's input and output-gradient (huang2020)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from wellcond.curvature.fisher import Fisher
from wellcond.curvature.kronecker import Labels, kronecker_factors
from wellcond.curvature.second_moment import LIMIT, SecondMoment, Side
from wellcond.errors import TooLarge
from wellcond.layerwise.products import largest_product
from wellcond.network.arithmetic import own_arithmetic
from wellcond.network.layers import ConvolutionRows
from wellcond.problem.arguments import check_problem
from wellcond.problem.problem import Problem
from wellcond.results import ByLayer, Cost, Progress, Row, number, text_table
from wellcond.results.quantities import FISHER, GRADIENT, INPUT, KRONECKER, MatrixQuantities
from wellcond.spectral.condition import condition_numbers_and_rank
from wellcond.spectral.exact import block_spectra

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Conditioning:
    """The spectrum of one positive semi-definite matrix, in the numbers that matter.

    Attributes:
        factors: The eigenvalues, (groups, d); of a Kronecker product, those of its two factors.
        dimension: How many eigenvalues there are.
        lambda_max: The magnitude.
        kappa: κ_p by p.
        rank: How many eigenvalues are above rounding.
        trace: Their sum.
        side: Whether they come from the products of `"features"` or, where there are fewer, of `"rows"`.
    """

    factors: tuple[Tensor, ...]
    dimension: int
    lambda_max: float
    kappa: dict[float, float]
    rank: int
    trace: float
    side: Side = "features"

    @property
    def values(self) -> Tensor:
        """All eigenvalues, ascending.

        Raises:
            TooLarge: They are those of a Kronecker product, and too many to be written down.
        """
        if 8 * self.dimension > LIMIT:
            raise TooLarge(f"a Kronecker product of {self.dimension:,} eigenvalues is not written down; see `factors`.")
        products = self.factors[0]
        for factor in self.factors[1:]:
            products = (products.unsqueeze(-1) * factor.unsqueeze(-2)).flatten(1)
        return products.flatten().sort().values

    @classmethod
    def of(
        cls, values: Tensor, p: Sequence[float], rounding: torch.dtype | None = None, side: Side = "features"
    ) -> Conditioning:
        """The conditioning of a matrix with given eigenvalues.

        Args:
            values: The eigenvalues, in any order.
            p: The shares for which κ_p is wanted.
            rounding: The dtype whose rounding counts as zero beside the largest eigenvalue; None for that of `values`.
            side: What they were computed from.
        """
        values = values.sort().values
        largest = float(values[-1])
        # a vanished gradient's eigenvalues have no digits left in float32, their ratios have all
        relative = (values / largest if largest > 0 else values).to(rounding or values.dtype)
        kappa, rank = condition_numbers_and_rank(relative, p)
        return cls((values.unsqueeze(0),), len(values), largest, kappa, rank, float(values.double().sum()), side)

    @classmethod
    def of_product(cls, x: Tensor, g: Tensor, ranks: tuple[int, int], p: Sequence[float]) -> Conditioning:
        """The conditioning of a Kronecker product in every group: an eigenvalue is zero where that of a factor is.

        Args:
            x: Eigenvalues of the first factors, (groups, d).
            g: Those of the second, (groups, e).
            ranks: How many of each are above rounding.
            p: The shares for which κ_p is wanted.
        """
        dimension = x.numel() * g.shape[1]
        trace = float((x.sum(-1) * g.sum(-1)).sum())
        x_above, g_above = (_above_rounding(values, rank) for values, rank in zip((x, g), ranks, strict=True))
        rank = int(((x_above > 0).sum(-1) * (g_above > 0).sum(-1)).sum())
        places = {share: max(1, math.ceil(share * dimension - 1e-9)) for share in p}
        if rank == 0:
            return cls((x, g), dimension, 0.0, dict.fromkeys(p, math.inf), 0, trace)
        largest = largest_product(x_above, g_above, 1)
        kappa = {
            share: largest / largest_product(x_above, g_above, place) if place <= rank else math.inf
            for share, place in places.items()
        }
        return cls((x, g), dimension, largest, kappa, rank, trace)

    def rows(self, layer: str, names: MatrixQuantities, step: int | None = None) -> list[Row]:
        """The numbers under the names of one matrix; κ_p of shares without a name are in `kappa` alone."""
        values = {
            names.lambda_max: self.lambda_max,
            names.rank: float(self.rank),
            names.dimension: float(self.dimension),
            names.trace: self.trace,
        }
        values |= {names.kappa[p]: kappa for p, kappa in self.kappa.items() if p in names.kappa}
        return [Row(step, layer, quantity, value, "") for quantity, value in values.items()]


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
        if self.x is None or self.g is None or x is None or g is None:
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

    def figure(self) -> Figure:
        """λ_max and κ_50% of Σx and Σ∇h against the layer."""
        from wellcond.report.curves import layers_figure

        return layers_figure({"": self.rows()})

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
                    line += [number(part.lambda_max), *map(number, part.kappa.values())]
                    line.append(f"{part.rank}/{part.dimension}" + (" (rows)" if part.side == "rows" else ""))
            body.append(line)
        footer = f"batchnorm={self.batchnorm!r}, convolution={self.convolution!r}, labels={self.labels!r}; {self.cost}"
        skipped = [f"not covered: {name}: {why}" for name, why in self.not_covered.items()]
        return "\n".join([text_table(header, body), footer, *skipped])


@own_arithmetic()
def conditioning(
    problem: Problem,
    p: Sequence[float] = (0.2, 0.5, 0.8, 1.0),
    *,
    convolution: ConvolutionRows = "position",
    labels: Labels = "data",
    fisher_up_to: int = 0,
    progress: Progress | None = None,
) -> ConditioningTable:
    """Magnitude and conditioning of what every layer receives and gets back, in one pass over the data.

    For each layer: λ_max, κ_p, numerical rank and trace of Σx = E[x xᵀ] and Σ∇h = E[g gᵀ] (uncentred), and of their
    Kronecker product, which approximates the layer's Fisher matrix. It costs one forward and backward pass, the two
    products XᵀX and GᵀG per layer, and their eigenvalues. Where a layer is wider than there are rows of data, these are
    those of XXᵀ and GGᵀ and zeros; the table then says "(rows)". A matrix whose sides are both too large is listed.

    Args:
        problem: What is measured.
        p: The shares for which κ_p = λ_max / λ_⌈p·d⌉ is given.
        convolution: What counts as one row of a convolution, as in `kronecker_factors`.
        labels: Whose labels give the gradients, as in `kronecker_factors`.
        fisher_up_to: Also compute the exact spectrum of the sub-Fisher of every layer's weight of at most so many
            entries.
        progress: Called as (what is being measured, share of all work done).

    Returns:
        One entry per layer.

    Raises:
        NonFinite: A layer's input or gradient is not finite.

    Example:
        >>> import wellcond as wc
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        >>> problem = wc.Problem(torch.nn.Sequential(torch.nn.Linear(2, 1)), torch.nn.MSELoss(), (x, torch.zeros(2, 1)))
        >>> wc.conditioning(problem)["0"].x.kappa[1.0]       # eigenvalues 1/2 and 2
        4.0
    """
    check_problem(problem)
    before = problem.cost
    if progress is not None:
        progress("passing over the data", 0.0)
    factors = kronecker_factors(problem, convolution=convolution, labels=labels)
    weight_of = {name: f"{name}.weight".removeprefix(".") for name in factors}  # the model itself may be a layer
    weights = [weight for weight in weight_of.values() if weight in problem.params]
    small = [weight for weight in weights if 0 < problem.params[weight].numel() <= fisher_up_to]
    exact = block_spectra(Fisher(problem, layers=small), {name: [name] for name in small}) if small else {}
    fisher = {name: Conditioning.of(found.values.cpu(), p, found.rounding) for name, found in exact.items()}
    layers = {}
    for i, (name, layer) in enumerate(factors.layers.items()):
        if progress is not None:
            progress(f"conditioning of {name or 'the model'}", (1 + i) / (1 + len(factors.layers)))
        moments = layer.x, layer.g
        by_group = _eigenvalues(layer.x), _eigenvalues(layer.g)
        x, g = (
            None if values is None else Conditioning.of(values.flatten(), p, problem.dtype, moment.side)
            for values, moment in zip(by_group, moments, strict=True)
        )
        exact_fisher = fisher.get(weight_of[name])
        layers[name] = LayerConditioning(name, layer.kind, x, g, exact_fisher, layer.note, by_group, problem.dtype)
    cost = problem.cost - before
    return ConditioningTable(layers, factors.not_covered, problem.batchnorm, convolution, labels, cost)


def _eigenvalues(moment: SecondMoment) -> Tensor | None:
    """(groups, d), or None where they cannot be had."""
    if not moment.is_known:
        return None
    found = moment.eigenvalues()
    return F.pad(found, (moment.dimension - found.shape[1], 0))


def _above_rounding(values: Tensor, rank: int) -> Tensor:
    """The values with all but the `rank` largest set to zero."""
    ascending = values.flatten().sort().values
    return values * (values >= ascending[-rank]) if rank else torch.zeros_like(values)
