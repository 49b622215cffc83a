"""Whether the tokens of sequences predict their labels."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from wellcond.diagnosis.labels import BATCHES_READ, EXAMPLES_READ, Relation, columns, mixed, related
from wellcond.problem.problem import Problem

MOST_TOKENS = 1021
"""Tokens that are counted apart; of a larger vocabulary several share a count. A prime, so that no pattern does."""


def token_relation(problem: Problem) -> Relation | None:
    """Do the tokens of a sequence predict the labels of its positions, or that of the sequence?

    Of labels for every position it is compared how often each token and each label occurs in a sequence, so that the
    order of the positions and a shift of the labels do not matter. A label of the whole sequence may depend on the
    order: then tokens at their places and pairs of neighbors are features, too. The structure is that of the counts.

    Args:
        problem: Problem whose loader is read, up to 1024 examples.

    Returns:
        None if inputs are no sequences of tokens of one length, with classes as labels.
    """
    with problem.measuring():
        pairs = list(islice(_read_tokens(problem), BATCHES_READ))
    if not pairs:
        return None
    counts = torch.cat([_counted(tokens) for tokens, _ in pairs])[:EXAMPLES_READ]
    if pairs[0][1].dim() == 2:
        return related(counts, mixed(torch.cat([_counted(labels) for _, labels in pairs])[:EXAMPLES_READ]), False)
    if len({tokens.shape[1] for tokens, _ in pairs}) > 1:
        return None
    y = columns(torch.cat([labels for _, labels in pairs])[:EXAMPLES_READ, None])
    ordered = torch.cat([_in_order(tokens) for tokens, _ in pairs])[:EXAMPLES_READ]
    by_count, by_order = related(counts, y, False), related(ordered, y, False)
    if by_count is None or by_order is None:
        return by_count
    best = max(by_count, by_order, key=lambda each: each.best)
    return replace(best, structure=by_count.structure, is_of_whole=True)


def _in_order(tokens: Tensor) -> Tensor:
    """How often each token occurs at each place, and each pair of neighbors; several share a count."""
    size = int(tokens.max()) + 1
    places = tokens + size * torch.arange(tokens.shape[1])
    neighbors = tokens[:, :-1] + size * tokens[:, 1:]
    return torch.cat([_counted(places), _counted(neighbors)], 1)


def _read_tokens(problem: Problem) -> Iterator[tuple[Tensor, Tensor]]:
    """Tokens (N, T) and labels, (N, T) or (N,), of every batch, as long as each is one tensor; masks do not count."""
    seen = 0
    with contextlib.closing(problem.data()) as data:
        for _, (inputs, targets) in data:
            y = [t for t in tree_leaves(targets) if isinstance(t, Tensor)]
            x = [t for t in tree_leaves(inputs) if isinstance(t, Tensor) and not any(t is each for each in y)]
            x = [t for t in x if t.is_floating_point() or int(t.max()) > 1]
            if len(x) != 1 or len(y) != 1 or any(t.is_floating_point() for t in (*x, *y)) or x[0].dim() != 2:
                return
            labels = y[0].flatten() if y[0].dim() == 2 and y[0].shape[1] == 1 else y[0]
            if labels.dim() not in (1, 2) or len(x[0]) != len(labels):
                return
            yield x[0].detach().cpu(), labels.detach().cpu()
            seen += len(x[0])
            if seen >= EXAMPLES_READ:
                return


def _counted(tokens: Tensor) -> Tensor:
    """(n, MOST_TOKENS), how often each token occurs; negative ones, which a loss ignores, do not count."""
    is_token = tokens >= 0
    counts = torch.zeros(len(tokens), MOST_TOKENS, dtype=torch.float64)
    return counts.scatter_add_(1, tokens.clamp_min(0) % MOST_TOKENS, is_token.double())
