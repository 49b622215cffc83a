"""What huang2020 claims of Fisher matrices, whole and of the layers, plain and with BN."""

from __future__ import annotations

import math

from wellcond.results import number
from wellcond.results.quantities import FISHER
from wellcond_papers.experiments.claims import Claim, Outcome, claim, judged
from wellcond_papers.experiments.table import Table

SHARES = (0.2, 0.5, 0.8)
NORMS = {"plain": "none", "BN": "batch"}
OBSERVED = {
    "F": "Section 3 of the paper; the supplement shows the figure",
    "M": "“the same observation as when using the full FIM”",
}


def pairs(table: Table, matrix: str, quantity: str) -> dict[str, tuple[float, float]]:
    """By layer, what the plain network has and what the one with BN has; where both are infinite, nothing is known."""
    plain, bn = (table.arm(f"{network} {matrix}").mean_by_layer(quantity) for network in NORMS)
    both = {layer: (value, bn[layer]) for layer, value in plain.items() if layer in bn}
    return {layer: pair for layer, pair in both.items() if min(pair) < math.inf}


def whole_is_better(matrix: str) -> Claim:
    """The whole matrix."""

    @claim(f"BN improves the conditioning of the full {matrix}: κ_p is smaller", paper=OBSERVED[matrix])
    def check(table: Table) -> Outcome:
        known = {p: pairs(table, matrix, FISHER.kappa[p]).get("") for p in SHARES}
        finite = {p: pair for p, pair in known.items() if pair is not None}
        details = [f"κ{100 * p:g}: {number(bn)} with BN, {number(plain)} without" for p, (plain, bn) in finite.items()]
        return judged([bn < plain for plain, bn in finite.values()], "; ".join(details))

    return check


def layers_are_better(matrix: str) -> Claim:
    """The matrices of the layers."""

    @claim(f"BN improves the conditioning of {matrix}_k of the layers: κ_p is smaller", paper=OBSERVED[matrix])
    def check(table: Table) -> Outcome:
        cases, details = [], []
        for p in SHARES:
            by_layer = {layer: pair for layer, pair in pairs(table, matrix, FISHER.kappa[p]).items() if layer}
            better = [bn < plain for plain, bn in by_layer.values()]
            less = sorted(plain / bn for plain, bn in by_layer.values())
            if less:
                span = f"{number(less[0])} to {number(less[-1])} times"
                details.append(f"κ{100 * p:g}: smaller in {sum(better)} of {len(better)} layers ({span})")
            cases += better
        return judged(cases, "; ".join(details))

    return check


def layers_agree(matrix: str) -> Claim:
    """Magnitude and conditioning, layer by layer, against the whole."""

    @claim(
        f"the matrices of the layers show what the full {matrix} shows: which network has the greater λ_max and κ_p",
        paper="the figure shows “the corresponding results for all” layers; for M, “the same observation”",
    )
    def check(table: Table) -> Outcome:
        cases, details = [], []
        for name, quantity in {"λ_max": FISHER.lambda_max, "κ50": FISHER.kappa[0.5]}.items():
            by_layer = pairs(table, matrix, quantity)
            if "" not in by_layer:
                continue
            whole = by_layer[""][0] > by_layer[""][1]
            agree = [(plain > bn) == whole for layer, (plain, bn) in by_layer.items() if layer]
            cases += agree
            details.append(
                f"{name}: {'plain' if whole else 'BN'} is greater, in {sum(agree)} of {len(agree)} layers too"
            )
        return judged(cases, "; ".join(details))

    return check


def greater_with_bn(matrix: str) -> Claim:
    """λ_max, which decides how large a step may be.

    Without BN and with LeCun's initialization the signal shrinks from layer to layer, so its gradients and λ_max are
    small: what BN adds is the signal, 87 times more λ_max of F with 8 layers and 1.8 times with 4.
    """

    @claim(
        f"at initialization BN makes λ_max of {matrix} greater, of the whole and of the layers, since without it the "
        "signal shrinks with depth",
        paper="shows λ_max in the figure, without a word on it in the supplement",
        is_ours=True,
    )
    def check(table: Table) -> Outcome:
        times = {layer: bn / plain for layer, (plain, bn) in pairs(table, matrix, FISHER.lambda_max).items() if plain}
        if not times:
            return judged([], "")
        layers = [value for layer, value in times.items() if layer]
        details = (
            f"{number(times[''])} times in the whole, {number(min(layers))} to {number(max(layers))} in the layers"
        )
        return judged([value > 1 for value in times.values()], details)

    return check


@claim(
    "M shows what F shows: which network has the greater λ_max and κ_p",
    paper="“the same observation as when using the full FIM”",
)
def matrices_agree(table: Table) -> Outcome:
    """The whole matrix and every layer's."""
    cases = []
    for quantity in (FISHER.lambda_max, *(FISHER.kappa[p] for p in SHARES)):
        of_f, of_m = (pairs(table, matrix, quantity) for matrix in OBSERVED)
        cases += [(of_f[layer][0] > of_f[layer][1]) == (m[0] > m[1]) for layer, m in of_m.items() if layer in of_f]
    return judged(cases, f"in {sum(cases)} of {len(cases)} comparisons")
