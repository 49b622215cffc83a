"""Networks that are trained at once go the way that each goes alone."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from wellcond_papers.models import meanfield_cnn, meanfield_mlp
from wellcond_papers.papers.wei2019.stack import SORTED_OUT, Stack, train_stack
from wellcond_papers.training import classifier

STEPS = 5


def batch_at(step: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(step)
    return torch.randn(16, 1, 16, 16, generator=draw), torch.randint(0, 10, (16,), generator=draw)


def networks(kind: str) -> list[nn.Module]:
    if kind == "conv":
        return [meanfield_cnn((1, 16, 16), (3, 4, 5), gamma=gamma, seed=0) for gamma in (0.5, 1.0)]
    norm = "batch" if kind == "FC" else "none"
    return [nn.Sequential(nn.Flatten(), meanfield_mlp(256, 12, gamma=g, norm=norm, seed=0)) for g in (0.5, 1.0)]


@pytest.mark.parametrize("kind", ["FC", "vanilla FC", "conv"])
def test_every_network_is_trained_as_by_sgd_alone(kind: str) -> None:
    stacked = [network.double() for network in networks(kind)]
    alone = copy.deepcopy(stacked)
    rates = [0.05, 0.2]
    stack = Stack(stacked, rates, cross_entropy, momentum=0.9)
    losses = train_stack(stack, lambda step: (batch_at(step)[0].double(), batch_at(step)[1]), STEPS, lambda *_: None)
    x, y = batch_at(100)[0].double(), batch_at(100)[1]
    test_losses = stack.tested(x, y, chunk=7)
    for place, (network, rate) in enumerate(zip(alone, rates, strict=True)):
        optimizer = SGD(network.parameters(), rate, momentum=0.9)
        for step in range(STEPS):
            loss = cross_entropy(network(batch_at(step)[0].double()), batch_at(step)[1])
            assert float(losses[step, place]) == pytest.approx(float(loss.detach()), rel=1e-9)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        # running statistics too: the test is in evaluation mode
        assert float(test_losses[place]) == pytest.approx(classifier.tested(network, (x, y), 0)[0].value, rel=1e-9)


def test_a_network_that_diverges_leaves_the_others_alone() -> None:
    together = Stack(networks("vanilla FC"), [0.01, 1e30], cross_entropy, momentum=0.9)
    alone = Stack(networks("vanilla FC")[:1], [0.01], cross_entropy, momentum=0.9)
    losses = train_stack(together, batch_at, STEPS, lambda *_: None)
    assert not torch.isfinite(losses[-1, 1])
    expected = train_stack(alone, batch_at, STEPS, lambda *_: None)[:, 0]
    torch.testing.assert_close(losses[:, 0], expected, rtol=1e-5, atol=0)


def test_a_network_that_has_diverged_is_trained_no_further() -> None:
    together = Stack(networks("conv"), [0.01, 1e30], cross_entropy, momentum=0.9)
    alone = Stack(networks("conv")[:1], [0.01], cross_entropy, momentum=0.9)
    losses = train_stack(together, batch_at, SORTED_OUT + STEPS, lambda *_: None)
    assert together.trained.tolist() == [True, False]
    assert {len(tensor) for tensor in together.parameters.values()} == {1}
    expected = train_stack(alone, batch_at, SORTED_OUT + STEPS, lambda *_: None)
    torch.testing.assert_close(losses[:, 0], expected[:, 0], rtol=1e-4, atol=0)
    assert losses[-1, 1].isnan()
    first, second = together.tested(*batch_at(100))
    torch.testing.assert_close(first, alone.tested(*batch_at(100))[0], rtol=1e-4, atol=0)
    assert second.isnan()


def test_a_stack_of_which_all_have_diverged_ends_all_the_same() -> None:
    lost = Stack(networks("FC"), [1e30, 1e30], cross_entropy, momentum=0.9)
    assert train_stack(lost, batch_at, SORTED_OUT + STEPS, lambda *_: None)[-1].isnan().all()
