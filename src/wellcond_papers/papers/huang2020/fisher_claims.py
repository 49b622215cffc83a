"""What huang2020 claims of Fisher matrices, whole and of the layers, plain and with BN."""

from __future__ import annotations

import math

from wellcond.results import number
from wellcond.results.quantities import FISHER
from wellcond_papers.experiments.claims import Claim, Outcome, claim, judged
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.huang2020.conditioning import is_larger

SHARES = (0.2, 0.5, 0.8)
NORMS = {"plain": "none", "BN": "batch"}
MATRICES = ("F", "M")
WITHOUT_A_WORD = "shows it in the figure, without a word on it in the supplement"
IMPROVES = "“BN can improve the layer-wise conditioning” (abstract); the supplement shows the figure"
SAME = "“the same observation as when using the full FIM”"

GREATER = {True: "plain", False: "BN", None: "neither"}
"""Whether the plain network has more, in words."""


def pairs(table: Table, matrix: str, quantity: str) -> dict[str, tuple[float, float]]:
    """By layer, what the plain network has and what the one with BN has; where both are infinite, nothing is known."""
    plain, bn = (table.arm(f"{network} {matrix}").mean_by_layer(quantity) for network in NORMS)
    both = {layer: (value, bn[layer]) for layer, value in plain.items() if layer in bn}
    return {layer: pair for layer, pair in both.items() if min(pair) < math.inf}


def greater_without_bn(table: Table, matrix: str, quantity: str) -> dict[str, bool | None]:
    """By layer, whether the plain network has more, by the geometric means over seeds; None for a tie."""
    return {layer: is_larger(*of_seeds(table, matrix, quantity, layer)) for layer in pairs(table, matrix, quantity)}


def of_seeds(table: Table, matrix: str, quantity: str, layer: str) -> list[list[float]]:
    """What the plain network and the one with BN have in every seed."""
    runs = [table.arm(f"{network} {matrix}") for network in NORMS]
    return [[record.by_layer(quantity)[layer] for record in each] for each in runs]


def same(a: bool | None, b: bool | None) -> bool | None:
    """Whether two orders are the same; a tie has none."""
    return None if None in (a, b) else a == b


def whole_is_better(matrix: str) -> Claim:
    """The whole matrix."""

    @claim(f"BN improves the conditioning of the full {matrix}: κ_p is smaller", paper=WITHOUT_A_WORD, is_ours=True)
    def check(table: Table) -> Outcome:
        known = {p: pairs(table, matrix, FISHER.kappa[p]).get("") for p in SHARES}
        finite = {p: pair for p, pair in known.items() if pair is not None}
        details = [f"κ{100 * p:g}: {number(bn)} with BN, {number(plain)} without" for p, (plain, bn) in finite.items()]
        return judged([greater_without_bn(table, matrix, FISHER.kappa[p])[""] for p in finite], "; ".join(details))

    return check


def layers_are_better(matrix: str) -> Claim:
    """The matrices of the layers."""

    @claim(f"BN improves the conditioning of {matrix}_k of the layers: κ_p is smaller", paper=IMPROVES)
    def check(table: Table) -> Outcome:
        cases, details = [], []
        for p in SHARES:
            by_layer = {layer: pair for layer, pair in pairs(table, matrix, FISHER.kappa[p]).items() if layer}
            order = greater_without_bn(table, matrix, FISHER.kappa[p])
            better = [order[layer] for layer in by_layer]
            less = sorted(plain / bn for plain, bn in by_layer.values())
            if less:
                span = f"{number(less[0])} to {number(less[-1])} times"
                details.append(f"κ{100 * p:g}: smaller in {better.count(True)} of {len(better)} layers ({span})")
            cases += better
        return judged(cases, "; ".join(details))

    return check


def layers_agree(matrix: str) -> Claim:
    """Magnitude and conditioning, layer by layer, against the whole."""

    @claim(
        f"the matrices of the layers show what the full {matrix} shows: which network has the greater λ_max and κ50",
        paper="shows both “for comparison”, without a word on what it gives",
        is_ours=True,
    )
    def check(table: Table) -> Outcome:
        cases, details = [], []
        for name, quantity in {"λ_max": FISHER.lambda_max, "κ50": FISHER.kappa[0.5]}.items():
            order = greater_without_bn(table, matrix, quantity)
            if "" not in order:
                continue
            whole = order.pop("")
            cases += [same(each, whole) for each in order.values()]
            counts = {who: list(order.values()).count(each) for each, who in GREATER.items()}
            of_layers = ", ".join(f"{who} in {count}" for who, count in counts.items() if count)
            details.append(f"{name}: {GREATER[whole]} is greater in the whole; of the layers {of_layers}")
        return judged(cases, "; ".join(details))

    return check


def greater_with_bn(matrix: str) -> Claim:
    """λ_max, which decides how large a step may be.

    Without BN and with LeCun's initialization the signal shrinks from layer to layer, so its gradients and λ_max are
    small: what BN adds is the signal.
    """

    @claim(
        f"at initialization BN makes λ_max of {matrix} greater, of the whole and of the layers, since without it the "
        "signal shrinks with depth",
        paper=WITHOUT_A_WORD,
        is_ours=True,
    )
    def check(table: Table) -> Outcome:
        times = {layer: bn / plain for layer, (plain, bn) in pairs(table, matrix, FISHER.lambda_max).items() if plain}
        if not times:
            return judged([], "")
        layers = [value for layer, value in times.items() if layer]
        by_seed = [bn / plain for plain, bn in zip(*of_seeds(table, matrix, FISHER.lambda_max, ""), strict=False)]
        seeds = f" ({number(min(by_seed))} to {number(max(by_seed))} in single seeds)" if len(by_seed) > 1 else ""
        in_layers = f"{number(min(layers))} to {number(max(layers))} in the layers"
        details = f"{number(times[''])} times in the whole{seeds}, {in_layers}"
        order = greater_without_bn(table, matrix, FISHER.lambda_max)
        return judged([None if order[layer] is None else not order[layer] for layer in times], details)

    return check


@claim(
    "M shows what F shows: which network has the greater λ_max and κ_p",
    paper=SAME,
)
def matrices_agree(table: Table) -> Outcome:
    """The whole matrix and every layer's."""
    cases: list[bool | None] = []
    for quantity in (FISHER.lambda_max, *(FISHER.kappa[p] for p in SHARES)):
        of_f, of_m = (greater_without_bn(table, matrix, quantity) for matrix in MATRICES)
        cases += [same(of_f[layer], order) for layer, order in of_m.items() if layer in of_f]
    ties = f"; {cases.count(None)} are ties" if None in cases else ""
    return judged(cases, f"in {cases.count(True)} of {len(cases)} comparisons{ties}")
