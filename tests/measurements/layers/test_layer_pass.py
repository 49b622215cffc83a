"""One pass for several tables, restricted to some layers, and its cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import integers, normal, seeded

import wellcond as wc
from wellcond.curvature.kronecker.factor_pass import FactorPass
from wellcond.errors import NonFinite, UnknownLayer
from wellcond.measurements.layers.layer_pass import layer_pass
from wellcond.network.layers import chosen_layers


class Two(nn.Module):
    """A trunk and a head, with a ReLU before all layers, one after each, and one in the head called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8))
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(8, 8))
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.trunk(x.relu())
        return self.out(self.head(self.head(h)).relu())


def problem(sizes: tuple[int, ...] = (7, 9), loss: Any = None) -> wc.Problem:
    batches = [(normal(n, 6, seed=n), integers(3, n)) for n in sizes]
    return wc.Problem(seeded(Two), loss or nn.CrossEntropyLoss(), batches)


def relu_in_the_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets) + outputs.square().mean().relu()


@pytest.mark.parametrize("loss", [None, nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 5.0]).double()), relu_in_the_loss])
@pytest.mark.parametrize("sizes", [(12,), (7, 9)])
def test_one_pass_gives_what_the_separate_functions_give(sizes: tuple[int, ...], loss: Any) -> None:
    p = problem(sizes, loss)
    before = p.cost
    result = layer_pass(p)
    assert (p.cost - before).u == pytest.approx(len(sizes))
    assert result.conditioning.rows() == wc.conditioning(p).rows()
    assert result.neurons.rows() == wc.neurons(p).rows()
    assert result.neurons.examples == sum(sizes)
    with p.measuring():
        value, gradients = p.loss_and_gradients()
    assert result.loss == pytest.approx(float(value), rel=1e-15)
    for name, expected in gradients.items():
        assert torch.equal(result.gradients[name], expected)


def test_one_pass_restricts_the_tables_and_not_the_gradient() -> None:
    p = problem()
    result = layer_pass(p, layers="head")
    assert list(result.conditioning) == ["head.1"]
    assert list(result.neurons) == ["head.1"]
    assert result.gradients.keys() == p.params.keys()


def test_one_pass_refuses_what_is_not_finite() -> None:
    p = problem((8,))
    p.batches[0][0][0, 0] = torch.inf
    with pytest.raises(NonFinite):
        layer_pass(p)


# some layers only


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("out", ["out"]),
        (["out", "trunk.0"], ["trunk.0", "out"]),
        ("trunk", ["trunk.0", "trunk.2"]),
        ({"head", "trunk.2"}, ["trunk.2", "head.1"]),
        ("", ["trunk.0", "trunk.2", "head.1", "out"]),
    ],
)
def test_layers_are_named_by_themselves_or_by_what_holds_them(names: Any, expected: list[str]) -> None:
    p = problem()
    table, factors, whole = wc.conditioning(p, layers=names), wc.kronecker_factors(p, layers=names), wc.conditioning(p)
    assert list(table) == list(factors) == expected
    assert table.not_covered == {}
    assert table.rows() == [row for row in whole.rows() if row.layer in expected]
    for name in expected:
        assert torch.equal(factors[name].x.mean, wc.kronecker_factors(p)[name].x.mean)


def test_another_name_of_a_module_will_do() -> None:
    model = nn.Module()
    model.first = model.again = nn.Linear(2, 2)  # type: ignore[assignment]
    assert list(chosen_layers(model, "again")) == ["first"]


@pytest.mark.parametrize("measure", [wc.conditioning, wc.kronecker_factors, wc.neurons, layer_pass])
@pytest.mark.parametrize(("name", "close"), [("trank", "'trunk'"), ("trunk.1", "'trunk.0'"), ("nothing", "Closest")])
def test_a_name_without_layers_is_refused(measure: Callable[..., Any], name: str, close: str) -> None:
    with pytest.raises(UnknownLayer, match=name) as raised:
        measure(problem(), layers=name)
    assert close in str(raised.value)


def test_relus_are_those_after_the_chosen_layers() -> None:
    p = problem()
    whole = wc.neurons(p)
    assert list(whole) == ["input", "trunk.0", "trunk.2", "head.1"]
    for name in list(whole)[1:]:
        assert wc.neurons(p, layers=name).rows() == [row for row in whole.rows() if row.layer == name]


def test_only_what_is_asked_for_is_tapped_and_differentiated() -> None:
    """Without the wide layers before it, the last one costs little more than a forward pass."""
    wide = seeded(lambda: nn.Sequential(nn.Linear(6, 40), nn.Linear(40, 40), nn.Linear(40, 3)))
    p = wc.Problem(wide, nn.CrossEntropyLoss(), (normal(8, 6), integers(3, 8)))
    seen = []
    watching = FactorPass(p, "2", "position", "data", 0)
    watching._on_call = lambda name, *_: seen.append(name)  # type: ignore[method-assign]
    watching.run()
    assert seen == ["2"]
    assert list(watching._differentiated()) == ["2.weight", "2.bias"]


@pytest.mark.parametrize("frozen", ["trunk.2", "trunk", "out"])
def test_frozen_layers_are_read_like_the_others(frozen: str) -> None:
    """A gradient passes them to reach trainable layers before them, which were not chosen."""
    p = problem()
    p.model.get_submodule(frozen).requires_grad_(False)
    p = wc.Problem(p.model, nn.CrossEntropyLoss(), p.batches)
    whole = wc.conditioning(p)
    for name in whole:
        alone = wc.conditioning(p, layers=name)
        assert alone.rows() == [row for row in whole.rows() if row.layer == name]
        assert alone.not_covered == {key: why for key, why in whole.not_covered.items() if key == name}


@pytest.mark.parametrize("measure", [wc.conditioning, wc.kronecker_factors, wc.neurons, wc.activations, layer_pass])
def test_progress_rises_to_one(measure: Callable[..., Any]) -> None:
    shares: list[float] = []
    measure(problem(), progress=lambda _what, share: shares.append(share))
    assert shares == sorted(shares)
    assert len(shares) >= 2
    assert shares[-1] == 1.0
