"""Layer-wise conditioning: magnitude and condition numbers of every layer's input and output-gradient (huang2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from wellcond.curvature.fisher import Fisher
from wellcond.curvature.kronecker import Labels, SecondMoment, kronecker_factors
from wellcond.errors import NonFinite, UnknownLayer
from wellcond.network.layers import Form
from wellcond.problem.problem import Problem
from wellcond.results import ByLayer, Row, number, text_table
from wellcond.spectral.condition import condition_number, numerical_rank
from wellcond.spectral.exact import block_spectra


@dataclass(frozen=True)
class Conditioning:
    """The spectrum of one positive semi-definite matrix, in the numbers that matter.

    values: all eigenvalues, ascending. lambda_max: the magnitude. kappa: κ_p by p. rank: eigenvalues above rounding.
    """

    values: Tensor
    lambda_max: float
    kappa: dict[float, float]
    rank: int
    trace: float

    @classmethod
    def of(cls, values: Tensor, p: Sequence[float], rounding: torch.dtype | None = None) -> Conditioning:
        """Of eigenvalues in any order. rounding: the dtype whose rounding counts as zero beside the largest."""
        values = values.sort().values
        largest = float(values[-1])
        # a vanished gradient's eigenvalues have no digits left in float32, their ratios have all
        relative = (values / largest if largest > 0 else values).to(rounding or values.dtype)
        kappa = {share: condition_number(relative, share) for share in p}
        return cls(values, largest, kappa, numerical_rank(relative), float(values.double().sum()))

    def rows(self, layer: str, matrix: str) -> list[Row]:
        named = {"lambda_max": self.lambda_max, "rank": float(self.rank), "trace": self.trace}
        named |= {f"kappa_{100 * p:g}%": kappa for p, kappa in self.kappa.items()}
        return [Row(None, layer, f"{quantity}({matrix})", value, "") for quantity, value in named.items()]


@dataclass(frozen=True)
class LayerConditioning:
    """One layer: `x` of Σx, `g` of Σ∇h, and `fisher` of the sub-Fisher itself where it is small enough.

    None stands for what could not be had; the table's `not_covered` says why. A grouped convolution, read as patches,
    has one Σx and one Σ∇h a group: `x` and `g` hold the eigenvalues of all of them.
    """

    name: str
    kind: str
    x: Conditioning | None
    g: Conditioning | None
    fisher: Conditioning | None
    note: str
    by_group: tuple[Tensor | None, Tensor | None]
    """Eigenvalues of Σx and of Σ∇h, (groups, d)."""
    rounding: torch.dtype

    @cached_property
    def kronecker(self) -> Conditioning | None:
        """Σx ⊗ Σ∇h: its eigenvalues are all products, so λ_max and κ multiply (Proposition 1)."""
        x, g = self.by_group
        if self.x is None or x is None or g is None:
            return None
        return Conditioning.of(torch.einsum("ci,co->cio", x, g).flatten(), list(self.x.kappa), self.rounding)

    def rows(self) -> list[Row]:
        parts = {"Σx": self.x, "Σ∇h": self.g, "Σx⊗Σ∇h": self.kronecker, "F": self.fisher}
        return [row for matrix, part in parts.items() if part is not None for row in part.rows(self.name, matrix)]


@dataclass(frozen=True)
class ConditioningTable(ByLayer[LayerConditioning]):
    """One entry a layer, in the order of the forward pass. `table["fc1"].x.kappa[0.5]` is κ_50% of its Σx."""

    layers: dict[str, LayerConditioning]
    not_covered: dict[str, str]
    batchnorm: str
    form: Form
    labels: Labels

    def __getitem__(self, name: str) -> LayerConditioning:
        found = self.layers.get(name) or self.layers.get(name.removesuffix(".weight"))
        if found is None:
            raise UnknownLayer(name, self.layers)
        return found

    def rows(self) -> list[Row]:
        return [row for layer in self.layers.values() for row in layer.rows()]

    def __str__(self) -> str:
        shares = next((list(m.kappa) for layer in self.layers.values() for m in (layer.x, layer.g) if m), [])
        header = ["layer", "kind"]
        for matrix in ("Σx", "Σ∇h"):
            header += [f"λmax {matrix}", *(f"κ{100 * p:g} {matrix}" for p in shares), "rank"]
        body = []
        for layer in self.layers.values():
            line = [layer.name, layer.kind]
            for part in (layer.x, layer.g):
                blank = ["–"] * (len(shares) + 2)
                line += (
                    blank
                    if part is None
                    else [number(part.lambda_max), *map(number, part.kappa.values()), f"{part.rank}/{len(part.values)}"]
                )
            body.append(line)
        footer = f"batchnorm={self.batchnorm!r}, form={self.form!r}, labels={self.labels!r}"
        skipped = [f"not covered: {name}: {why}" for name, why in self.not_covered.items()]
        return "\n".join([text_table(header, body), footer, *skipped])


def conditioning(
    problem: Problem,
    p: Sequence[float] = (0.2, 0.5, 0.8, 1.0),
    *,
    form: Form = "position",
    labels: Labels = "data",
    fisher_up_to: int = 0,
) -> ConditioningTable:
    """Magnitude and conditioning of what every layer receives and gets back, in one pass over the data.

    For each layer: λ_max, κ_p, numerical rank and trace of Σx = E[x xᵀ] and Σ∇h = E[g gᵀ] (uncentred), and of their
    Kronecker product, which approximates the layer's Fisher matrix. Costs one forward and backward pass, the two
    products XᵀX and GᵀG a layer, and the eigenvalues of matrices as wide as the layers.

    p: the shares for which κ_p = λ_max / λ_⌈p·d⌉ is given. form, labels: as in `kronecker_factors`.
    fisher_up_to: also compute the exact spectrum of the sub-Fisher of every layer's weight of at most so many entries.

    >>> import wellcond as wc
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    >>> problem = wc.Problem(torch.nn.Sequential(torch.nn.Linear(2, 1)), torch.nn.MSELoss(), (x, torch.zeros(2, 1)))
    >>> wc.conditioning(problem)["0"].x.kappa[1.0]       # eigenvalues 1/2 and 2
    4.0
    """
    factors = kronecker_factors(problem, form, labels)
    weight_of = {name: f"{name}.weight".removeprefix(".") for name in factors}  # the model itself may be a layer
    weights = [weight for weight in weight_of.values() if weight in problem.params]
    small = [weight for weight in weights if problem.params[weight].numel() <= fisher_up_to]
    exact = block_spectra(Fisher(problem, "model", small))[1] if small else {}
    fisher = {name: Conditioning.of(spectrum.values.cpu(), p) for name, spectrum in exact.items()}
    layers = {}
    for name, layer in factors.layers.items():
        by_group = _eigenvalues(name, layer.x), _eigenvalues(name, layer.g)
        x, g = (None if v is None else Conditioning.of(v.flatten(), p, problem.dtype) for v in by_group)
        exact_fisher = fisher.get(weight_of[name])
        layers[name] = LayerConditioning(name, layer.kind, x, g, exact_fisher, layer.note, by_group, problem.dtype)
    return ConditioningTable(layers, factors.not_covered, problem.batchnorm, form, labels)


def _eigenvalues(name: str, moment: SecondMoment) -> Tensor | None:
    """(groups, d)"""
    mean = moment.mean
    if mean is None:
        return None
    if not bool(torch.isfinite(mean).all()):
        raise NonFinite(f"what layer {name!r} receives, or the gradient at its output, is NaN or inf or overflows.")
    return (mean if mean.dim() == 2 else torch.linalg.eigvalsh(mean)).cpu()
