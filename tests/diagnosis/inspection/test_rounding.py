"""What half precision changes, compared with the same numbers by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from unchanged import assert_unchanged, snapshot

import wellcond as wc
from wellcond.diagnosis.inspection.inspect import inspect
from wellcond.diagnosis.inspection.rounding import COLUMNS, ROWS, Rounding, _sample, rounding
from wellcond.results import Cost


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def batch(examples: int = 32) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(examples, 6, generator=draw), torch.randint(0, 3, (examples,), generator=draw)


def compared(of: wc.Problem) -> Rounding | None:
    with of.as_trained(), of.measuring():
        index, first = next(iter(of.data()))
        assert index == 0
        return rounding(of, first, set())


def problem(model: nn.Module | None = None, loss: Any = None, data: Any = None, **options: Any) -> wc.Problem:
    return wc.Problem(model or network(), loss or nn.CrossEntropyLoss(), data or batch(), **options)


def distance(value: Tensor, reference: Tensor) -> float:
    """Over what differs between the examples."""
    value, reference = value.detach().double(), reference.detach().double()
    return float((value - reference).norm() / (reference - reference.mean(0)).norm())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_errors_of_layers_loss_and_gradient_are_those_by_hand(dtype: torch.dtype) -> None:
    model, (x, y) = network(), batch()
    result = compared(problem(model, autocast=dtype))
    assert result is not None

    def passed(enabled: bool) -> tuple[list[Tensor], Tensor, list[Tensor]]:
        with torch.autocast("cpu", dtype, enabled=enabled):
            h = [x]
            for layer in model:
                h.append(layer(h[-1]))
            loss = F.cross_entropy(h[-1], y)
        return h, loss, list(torch.autograd.grad(loss, list(model.parameters())))

    (half, loss, gradients), (full, reference, exact) = passed(True), passed(False)
    for k, layer in enumerate(result.layers[:3]):
        assert (layer.layer, layer.kind, layer.dtype) == (str(k), type(model[k]).__name__, dtype)
        assert layer.before == pytest.approx(distance(half[k], full[k]), abs=1e-12)
        assert layer.after == pytest.approx(distance(half[k + 1], full[k + 1]))
        assert layer.largest == pytest.approx(max(t.detach().abs().max().item() for t in full[k : k + 2]))
        assert layer.is_finite
        assert layer.has_finite_input
    assert (result.loss, result.reference_loss) == (float(loss.detach()), float(reference.detach()))
    wrong = sum(float((g - e).double().square().sum()) for g, e in zip(gradients, exact, strict=True))
    total = sum(float(e.double().square().sum()) for e in exact)
    assert result.gradient_error == pytest.approx((wrong / total) ** 0.5, rel=1e-4)
    assert (result.dtype, result.scale, result.lost, result.overflows) == (dtype, None, 0.0, "")
    assert not result.is_random


def test_in_full_precision_nothing_is_compared_or_passed() -> None:
    of = problem()
    assert compared(of) is None
    assert of.cost == Cost()


@pytest.mark.parametrize(
    "of",
    [
        lambda: problem(autocast=torch.bfloat16),
        lambda: problem(network().bfloat16(), data=[(batch()[0].bfloat16(), batch()[1])]),
        lambda: problem(autocast=torch.float16, scaler=torch.amp.GradScaler("cpu")),
    ],
    ids=["autocast", "weights", "scaler"],
)
def test_it_costs_two_steps_and_changes_nothing(of: Any) -> None:
    of = of()
    with of.as_trained(), of.measuring():
        first = next(iter(of.data()))[1]
    before = snapshot(of.model)
    assert compared(of) is not None
    assert_unchanged(before, snapshot(of.model))
    assert of.cost.u <= 2
    assert torch.equal(next(iter(of.batches))[0], first[0])


def test_an_inspection_in_half_precision_takes_no_more_than_four_steps() -> None:
    of = problem(data=[batch(16) for _ in range(8)], autocast=torch.bfloat16)
    with of.as_trained():
        assert inspect(of).rounding is not None
    assert of.cost.u <= 4


def test_weights_in_half_precision_are_compared_with_a_copy_in_float32() -> None:
    model, (x, y) = network().bfloat16(), batch()
    result = compared(problem(model, data=(x.bfloat16(), y)))
    assert result is not None
    assert result.dtype is torch.bfloat16
    with torch.no_grad():
        expected = network().bfloat16().float()(x.bfloat16().float())
    assert result.layers[2].after == pytest.approx(distance(model(x.bfloat16()), expected))
    assert result.reference_loss == pytest.approx(float(F.cross_entropy(expected, y)), rel=1e-6)


class Casts(nn.Module):
    """Casts by itself, in some layers only."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = 1e4 * self.a(x)
        h = (h.half() * h.half()).float().sqrt()  # numbers whose squares float16 does not have
        with torch.autocast("cpu", torch.bfloat16):
            return self.b(h)


def test_casts_in_the_models_own_code_are_undone_in_the_reference() -> None:
    model, (x, y) = Casts(), batch()
    of = problem(model)
    with of.as_trained(), of.measuring():
        first = next(iter(of.data()))[1]
        result = rounding(of, first, {torch.bfloat16})  # as layers were seen to return
    assert result is not None
    with torch.no_grad():
        expected = F.cross_entropy(model.b((1e4 * model.a(x)).abs()), y)
    assert result.reference_loss == pytest.approx(float(expected), rel=1e-5)
    assert not result.layers[1].has_finite_input
    assert result.layers[1].largest > 65504**0.5


def test_entries_that_vanish_are_counted_over_all_and_by_parameter() -> None:
    """The gradient of weight k is 10⁻ᵏ, for k = 0 … 9; float16 has numbers down to 6·10⁻⁸."""
    model = nn.Linear(10, 1, bias=False)
    powers = 10.0 ** -torch.arange(10.0)
    inputs = torch.ones(4, 10)

    def loss(outputs: Tensor, _: Tensor) -> Tensor:
        return outputs.float().mean()

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.plain = model, nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x * powers) + self.plain

    # inputs below 6e-8 are zero in float16: of ten weights, those of 10⁻⁸ and 10⁻⁹
    result = compared(problem(Scaled(), loss, (inputs, torch.zeros(4)), autocast=torch.float16))
    assert result is not None
    assert result.lost == pytest.approx(2 / 11)
    assert result.most_lost == ("linear.weight", 2 / 10)


def overflowing(outputs: Tensor, _: Tensor) -> Tensor:
    """Finite, and its gradient of 10⁶ is beyond float16."""
    return 1e6 * (outputs.float() - outputs.float().detach()).sum()


@pytest.mark.parametrize("scaler", [None, torch.amp.GradScaler("cpu")], ids=["no_scaler", "scaler"])
def test_a_gradient_that_is_finite_in_float32_only_names_the_last_parameter(scaler: Any) -> None:
    result = compared(problem(loss=overflowing, autocast=torch.float16, scaler=scaler))
    assert result is not None
    assert result.overflows == "2.bias"
    assert result.gradient_error is None
    assert result.scale == (None if scaler is None else 1.0)


def test_a_scale_that_is_too_high_is_lowered_and_no_overflow() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    result = compared(problem(autocast=torch.float16, scaler=scaler))
    assert result is not None
    assert result.overflows == ""
    assert result.scale is not None
    assert 1 < result.scale < 2.0**30
    assert scaler.get_scale() == 2.0**30


def test_models_that_draw_are_marked() -> None:
    noisy = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5))
    result = compared(problem(noisy, autocast=torch.bfloat16, dropout=0))
    assert result is not None
    assert result.is_random


def test_of_large_layers_some_entries_of_some_examples_are_compared() -> None:
    values = torch.arange(2.0 * ROWS * 3 * COLUMNS).reshape(2 * ROWS, 3, COLUMNS)
    sample = _sample({"ids": torch.arange(3), "hidden": values})
    assert sample is not None
    assert torch.equal(sample, values[:ROWS].flatten(1)[:, ::3])
    few = torch.randn(5)
    assert torch.equal(_sample((few,)), few[:, None])  # type: ignore[arg-type]
    assert _sample([torch.tensor(1.0), torch.arange(3), None]) is None


def test_one_value_that_overflows_is_seen_wherever_it_is() -> None:
    """In the last example, of which no entry is compared."""
    x = torch.ones(2 * ROWS, 6)
    x[-1] = 1e4
    model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 3))
    nn.init.constant_(model[0].weight, 10.0)
    result = compared(problem(model, data=(x, torch.zeros(2 * ROWS).long()), autocast=torch.float16))
    assert result is not None
    assert [(layer.layer, layer.is_finite, layer.has_finite_input) for layer in result.layers[:2]] == [
        ("0", False, True),
        ("1", False, False),
    ]
    assert result.layers[0].largest == pytest.approx(6e5)


def test_layers_that_are_called_in_another_order_are_compared_as_far_as_they_are_the_same() -> None:
    class Chooses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            return self.a(h) if h.dtype == torch.bfloat16 else self.b(h)

    result = compared(problem(Chooses(), autocast=torch.bfloat16))
    assert result is not None
    assert [layer.layer for layer in result.layers] == ["first"]
