"""How hard each term of a loss pulls at the parameters that it shares with others."""

from __future__ import annotations

import contextlib
import math
from typing import NamedTuple

import torch

from wellcond.diagnosis.probes.subject import Subject
from wellcond.diagnosis.probes.terms import Operands, addends

MOST_TERMS = 3
"""Terms that are differentiated, the largest first."""


class UnevenTerms(NamedTuple):
    """Two terms of a loss, by their gradients in the parameters that both depend on.

    Attributes:
        largest: Value of the term with the largest gradient.
        smallest: Value of that with the smallest one that is not zero.
        ratio: Norm of the gradient of the one over that of the other.
    """

    largest: float
    smallest: float
    ratio: float


def uneven_terms(subject: Subject) -> UnevenTerms | None:
    """Differentiate each term of the loss of the first batch by the parameters that several of them depend on.

    Returns:
        None if the loss is no sum, or its terms share no parameters.
    """
    problem = subject.problem
    params = list(problem.params.values())
    with torch.enable_grad(), Operands() as recorded, contextlib.closing(problem.data()) as data:
        index, batch = next(data)
        terms = addends(problem.training_loss(index, batch), recorded.operands)
    if len(terms) < 2:
        return None
    terms = sorted(terms, key=lambda term: -abs(float(term.detach())))[:MOST_TERMS]
    gradients = [torch.autograd.grad(term, params, retain_graph=True, allow_unused=True) for term in terms]
    is_shared = [sum(g is not None for g in of_parameter) > 1 for of_parameter in zip(*gradients, strict=True)]
    pulls = []
    for term, of_term in zip(terms, gradients, strict=True):
        norms = [float(g.double().norm()) for g, both in zip(of_term, is_shared, strict=True) if both and g is not None]
        if pull := math.hypot(*norms):
            pulls.append((pull, float(term.detach())))
    if len(pulls) < 2:
        return None
    (least, smallest), (most, largest) = min(pulls), max(pulls)
    return UnevenTerms(largest, smallest, most / least)
