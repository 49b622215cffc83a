"""Separators of autograd graphs, against their definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from zoo import normal, seeded

import wellcond as wc
from wellcond.network import graph
from wellcond.network.graph import Separators


def slow_separators(end: Any) -> dict[Any, bool]:
    """By the definition: take an operation out, and see whether the end still reaches what leads to it."""

    def reached(starts: list[Any], without: Any) -> set[Any]:
        result: set[Any] = set()
        waiting = list(starts)
        while waiting:
            node = waiting.pop()
            if node is not None and node is not without and node not in result and node.next_functions:
                result.add(node)
                waiting += [above for above, _ in node.next_functions]
        return result

    every = reached([end], None)
    return {node: not reached([end], node) & reached([node], None) for node in every if node is not end}


@pytest.mark.parametrize("seed", range(20))
def test_separators_of_random_graphs_are_those_of_the_definition(seed: int) -> None:
    """Sums of one to three earlier tensors, mostly recent ones, so that skips, branches and bottlenecks occur."""
    generator = torch.Generator().manual_seed(seed)
    leaves = [torch.ones((), requires_grad=True) for _ in range(3)]
    new = [leaf.exp() for leaf in leaves]
    for _ in range(40):
        count = int(torch.randint(1, 4, (), generator=generator))
        back = torch.randint(1, 4, (count,), generator=generator).tolist()
        new.append(torch.stack([new[-min(i, len(new))] for i in back]).sum())
    end = new[-1].sin()
    separators, expected = Separators(end.grad_fn), slow_separators(end.grad_fn)
    assert 0 < sum(expected.values()) < len(expected)
    for node, is_separator in expected.items():
        outputs = {n for later in (end.grad_fn, *expected) for above, n in later.next_functions if above is node}
        assert ((node, next(iter(outputs))) in separators) == (is_separator and len(outputs) == 1)


def test_one_of_two_outputs_separates_if_the_other_is_unused() -> None:
    leaf = torch.ones(3, requires_grad=True)
    variance, mean = torch.var_mean(leaf.exp())
    place = (variance.grad_fn, variance.output_nr)
    assert place in Separators(variance.sin().grad_fn)
    assert place not in Separators((variance.sin() + mean).grad_fn)
    assert (mean.grad_fn, mean.output_nr) not in Separators(variance.sin().grad_fn)


def test_finding_blocks_visits_every_operation_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At any depth: visiting every operation once per block would be 300 times more."""
    back_matching = wc.back_matching  # imported on demand, before the count is in place
    looks = 0

    def counted(node: Any) -> list[Any]:
        nonlocal looks
        looks += 1
        return [above for above, _ in node.next_functions if above is not None]

    monkeypatch.setattr(graph, "inputs_of", counted)
    model = seeded(lambda: nn.Sequential(*(part for _ in range(100) for part in (nn.Linear(2, 2), nn.Tanh()))))
    result = back_matching(wc.Problem(model, nn.MSELoss(), (normal(3, 2), normal(3, 2, seed=1))))
    assert len(result.blocks) == 200
    operations = 100 * 3 + 2
    assert operations < looks < 6 * operations
