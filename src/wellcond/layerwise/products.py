"""Order among the eigenvalues of a Kronecker product, which are too many to be written down."""

from __future__ import annotations

import math

import torch
from torch import Tensor

AT_ONCE = 2**20
"""Products that are formed and sorted; of more than that, the one at a place is found by bisection."""


def largest_product(x: Tensor, g: Tensor, place: int) -> float:
    """The `place`-th largest of all products x_ci · g_co of positive numbers of the same group c, zeros left out.

    Args:
        x: (groups, d), not negative.
        g: (groups, e), not negative.
        place: From 1 to the number of products that are not zero.

    Example:
        >>> largest_product(torch.tensor([[3.0, 2.0]]), torch.tensor([[5.0, 0.0, 1.0]]), 3)
        3.0
    """
    x, g = (values.double().sort(-1).values for values in (x, g))
    # zeros come first, and a column that is zero in all groups has no part in this
    x, g = (values[:, int((values > 0).sum(-1).max()) * -1 :] for values in (x, g))
    if x.numel() * g.shape[1] <= AT_ONCE:
        return float((x.unsqueeze(-1) * g.unsqueeze(-2)).flatten().sort(descending=True).values[place - 1])

    def count_from(bound: float) -> int:
        """How many products are at least so large."""
        below = torch.searchsorted(g, bound / x)
        return int((g.shape[1] - below).sum())

    largest = float((x[:, -1] * g[:, -1]).max())
    smallest = float(x[x > 0].min()) * float(g[g > 0].min())
    low, high = math.log(smallest), math.log(largest)  # at least `place` products are above the one, too few the other
    while high - low > 1e-14 * max(1.0, abs(low)):
        middle = (low + high) / 2
        low, high = (middle, high) if count_from(math.exp(middle)) >= place else (low, middle)
    return math.exp(low)
