"""Where both sides of a second moment are large, and where many layers are large together; limits lowered by hand."""

from __future__ import annotations

import math

import pytest
import torch
from references import assert_same
from torch import Tensor, nn
from zoo import integers, normal, seeded

import wellcond as wc
from wellcond.curvature.kronecker import rows as rows_module
from wellcond.curvature.kronecker import second_moment
from wellcond.curvature.kronecker.factor_pass import FactorPass
from wellcond.curvature.kronecker.matrix_conditioning import Conditioning
from wellcond.curvature.kronecker.rows import KeptRows, SumOfProducts, Workspace
from wellcond.curvature.kronecker.second_moment import SecondMoment, compute_eigenvalues
from wellcond.errors import NonFinite


def dense(parts: list[tuple[float, Tensor]]) -> Tensor:
    return torch.stack([weight * rows.double().mT @ rows.double() for weight, rows in parts]).sum(0)


# rows that are kept


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_operator_is_the_dense_sum_of_products(scale: float, dtype: torch.dtype) -> None:
    parts = [(weight, (normal(2, n, 5, seed=n) * scale).to(dtype)) for weight, n in ((1.0, 4), (3.0, 6))]
    operator = SumOfProducts(parts)
    v = normal(10, 3).to(dtype)
    expected = torch.block_diag(*(dense(parts) / operator.unit)) @ v.double()
    assert_same((operator @ v).double(), expected, 50 * torch.finfo(dtype).eps)
    assert_same((operator @ v[:, 0]).double(), expected[:, 0], 50 * torch.finfo(dtype).eps)


def test_inner_products_in_pieces_are_those_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "CACHED_ENTRIES", 1)
    monkeypatch.setattr(rows_module, "LEAST_COLUMNS", 3)
    stored = KeptRows()
    parts = [(2.0, normal(2, 4, 10)), (5.0, normal(2, 3, 10, seed=1))]
    for weight, rows in parts:
        stored.add(rows.unsqueeze(1), weight, 100)
    weighted = torch.cat([math.sqrt(weight) * rows for weight, rows in parts], 1)
    assert_same(stored.inner_products(), weighted @ weighted.mT, 1e-14)


@pytest.mark.slow
def test_a_sample_is_full_and_uniform() -> None:
    """1,000 rows in batches of very different sizes, of which 50 are kept, 400 times."""
    numbers = torch.arange(1000.0).double()[None, None, :, None]
    often = torch.zeros(1000, dtype=torch.float64)
    for seed in range(400):
        stored = KeptRows()
        stored._generator = torch.Generator().manual_seed(seed)
        for some in numbers.split([30, 10, 500, 0, 60, 400], 2):
            stored.add(some, 1.0, 50)
        chosen = torch.cat([part.flatten() for _, part in stored.parts]).long()
        assert (stored.count, len(chosen), len(set(chosen.tolist()))) == (50, 50, 50)
        assert stored.is_sample
        often[chosen] += 1
    by_batch = torch.stack([some.mean() for some in often.split([30, 10, 500, 60, 400])])
    # the mean of 20 keeps of each row; of the smallest batch its standard error is √(20 · 0.95 / 10)
    assert_same(by_batch, torch.full((5,), 20.0).double(), 0.3)


def test_the_largest_eigenvalue_of_a_sample_is_about_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_moment, "EXACT", 20)
    monkeypatch.setattr(second_moment, "LIMIT", 400 * 30 * 8)
    moment = SecondMoment("Σx of layer 'fc'")
    batches = [normal(1, 1, 500, 30, seed=i) + 1 for i in range(4)]
    for weight, rows in zip((1.0, 2.0, 1.0, 2.0), batches, strict=True):
        moment.add(rows, weight)
    assert not moment.is_known
    ((result, by_group),) = Conditioning.of_moments([moment], [0.5], torch.float64)
    assert result is not None
    assert by_group is None
    expected = dense([(1.0, batches[0]), (2.0, batches[1]), (1.0, batches[2]), (2.0, batches[3])])[0, 0] / 2000
    assert result.lambda_max == pytest.approx(float(torch.linalg.eigvalsh(expected)[-1]), rel=0.1)
    assert result.trace == pytest.approx(float(expected.trace()), rel=1e-12)
    assert "a sample of 400 of 2,000 rows" in result.note


@pytest.mark.parametrize("groups", [1, 3])
def test_lanczos_keeps_what_it_claims(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_moment, "EXACT", 20)
    moment = SecondMoment("Σx")
    rows = normal(groups, 1, 80, 40).float()
    moment.add(rows)
    ((result, _),) = Conditioning.of_moments([moment], [0.5], torch.float32)
    assert result is not None
    largest = float(torch.linalg.eigvalsh(dense([(1.0, rows[:, 0])]) / 80).max())
    assert result.lambda_max == pytest.approx(largest, rel=1e-3)
    assert result.dimension == 40 * groups


def test_rows_of_zeros_and_rows_that_are_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_moment, "EXACT", 20)
    moment = SecondMoment("Σ∇h of layer 'fc'")
    moment.add(torch.zeros(1, 1, 30, 40))
    ((result, _),) = Conditioning.of_moments([moment], [0.5], torch.float32)
    assert result is not None
    assert (result.lambda_max, result.trace) == (0.0, 0.0)
    moment.add(torch.full((1, 1, 30, 40), torch.nan))
    with pytest.raises(NonFinite, match="Σ∇h of layer 'fc'"):
        Conditioning.of_moments([moment], [0.5], torch.float32)


def one_hot(n: int, d: int, seed: int = 0) -> Tensor:
    return nn.functional.one_hot(integers(d, n, seed=seed), d).double() * (1 + normal(n, 1, seed=seed).abs())


@pytest.mark.parametrize("sizes", [[30], [30, 25], [4]])
def test_one_hot_rows_have_all_eigenvalues_however_many_they_are(
    sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(second_moment, "EXACT", 20)
    model = seeded(lambda: nn.Sequential(nn.Linear(24, 3)))
    batches = [(one_hot(n, 24, seed=n), integers(3, n)) for n in sizes]
    table = wc.conditioning(wc.Problem(model, nn.CrossEntropyLoss(), batches))
    x = torch.cat([x for x, _ in batches])
    assert table.not_covered == {}
    assert_same(table["0"].x.values, torch.linalg.eigvalsh(x.T @ x / len(x)), 1e-14)
    assert table["0"].x.rank == int((x != 0).any(0).sum())


@pytest.mark.parametrize("first", [0, 1])
def test_one_hot_rows_among_others(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After dense rows they are rows like them; before them, what is diagonal cannot become rows again."""
    monkeypatch.setattr(second_moment, "EXACT", 20)
    batches = [one_hot(30, 24), normal(30, 24)]
    moment = SecondMoment("Σx of layer 'fc'")
    for x in (batches[first], batches[1 - first]):
        moment.add(x[None, None], 2.0)
    total = sum(2 * x.T @ x for x in batches) / 60
    assert moment.trace == pytest.approx(float(total.trace()))
    ((result, _),) = Conditioning.of_moments([moment], [0.5], torch.float64)
    if first:
        assert result is not None
        assert result.lambda_max == pytest.approx(float(torch.linalg.eigvalsh(total)[-1]), rel=1e-3)
    else:
        assert result is None
        assert "one entry" in moment.why_unknown


# many layers


def network(width: int = 30, depth: int = 6) -> nn.Sequential:
    return seeded(lambda: nn.Sequential(nn.Linear(8, width), *(nn.Linear(width, width) for _ in range(depth)))).double()


def measured(batches: int, examples: int = 40) -> wc.Problem:
    data = [(normal(examples, 8, seed=i), integers(3, examples)) for i in range(batches)]
    return wc.Problem(network(), nn.CrossEntropyLoss(), data)


def test_layers_beyond_the_common_limit_are_named_with_their_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batches, so that nothing can be reduced early; each matrix takes 7,200 bytes."""
    problem = measured(2)
    whole = wc.conditioning(problem)
    monkeypatch.setattr(rows_module, "TOGETHER", 10 * 7200)
    table = wc.conditioning(problem)
    assert 0 < len(table.not_covered) < len(table)
    for name, why in table.not_covered.items():
        for words in (f"of layer {name!r}", "30 × 30", "80 rows", "for all layers", f"layers={name!r}"):
            assert words in why
        alone = wc.conditioning(problem, layers=name)
        assert alone.not_covered == {}
        assert alone.rows() == [row for row in whole.rows() if row.layer == name]
    for name, layer in table.items():
        for part in ("x", "g"):
            result, expected = getattr(layer, part), getattr(whole[name], part)
            assert result is None or result.lambda_max == expected.lambda_max
    traces = {name: layer.g.trace for name, layer in wc.kronecker_factors(problem).layers.items()}
    assert traces == pytest.approx({name: layer.g.trace for name, layer in whole.items()}, rel=1e-12)


def test_one_batch_is_reduced_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The inputs' factors before the backward pass, and the gradients' when half the allowance is used."""
    problem = measured(1)
    whole = wc.conditioning(problem)
    monkeypatch.setattr(rows_module, "TOGETHER", 8 * 7200)
    monkeypatch.setattr("wellcond.curvature.kronecker.factor_pass.TOGETHER", 8 * 7200)
    most = 0
    take = Workspace.take

    def watched(self: Workspace, size: int) -> bool:
        nonlocal most
        fits = take(self, size)
        most = max(most, self.held)
        return fits

    monkeypatch.setattr(Workspace, "take", watched)
    table = wc.conditioning(problem)
    assert table.not_covered == {}
    assert table.rows() == whole.rows()
    assert most <= 8 * 7200 < 14 * 7200
    factors = wc.kronecker_factors(problem)  # which gives the matrices themselves
    assert factors.not_covered


def test_a_layer_that_is_called_twice_is_not_reduced_between_its_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(20, 20) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(torch.tanh(self.c(self.b(self.a(x))))))

    problem = wc.Problem(seeded(Twice).double(), nn.CrossEntropyLoss(), (normal(64, 20), integers(3, 64)))
    expected = wc.conditioning(problem)
    monkeypatch.setattr("wellcond.curvature.kronecker.factor_pass.TOGETHER", 0)
    table = wc.conditioning(problem)
    assert table.rows() == expected.rows()


def test_everything_that_is_taken_is_given_back() -> None:
    for batches, examples in ((1, 40), (2, 40), (2, 7)):
        watching = FactorPass(measured(batches, examples), None, "position", "data", 0, spectra_only=True)
        layers, _ = watching.run()
        compute_eigenvalues(moment for layer in layers.values() for moment in (layer.x, layer.g))
        assert watching._workspace.held == 0


@pytest.mark.parametrize("scale", [1e-28, 1.0])
def test_small_rows_multiplied_together_are_those_multiplied_alone(scale: float) -> None:
    """One of three layers vanishes: either all are in the range of float32, or all are computed in float64."""
    workspace = Workspace()
    every = [(normal(1, 2, 6, 4, seed=i) * (scale if i == 1 else 1.0)).float() for i in range(3)]
    moments = [SecondMoment(f"Σ {i}", str(i), workspace) for i in range(3)]
    for _ in range(2):
        for i, (moment, rows) in enumerate(zip(moments, every, strict=True)):
            moment.add(rows, 1.0 + i)
    for i, (moment, rows) in enumerate(zip(moments, every, strict=True)):
        expected = (1.0 + i) * dense([(1.0, rows.flatten(1, 2))]) / 12
        assert_same(moment.mean / expected.abs().max(), expected / expected.abs().max(), 1e-6)


def test_rows_that_wait_are_kept_as_they_were() -> None:
    moment = SecondMoment("Σx")
    rows = normal(1, 1, 9, 4)
    moment.add(rows)
    expected = rows[:, 0].mT @ rows[:, 0] / 9
    rows.zero_()
    assert_same(moment.mean, expected, 1e-14)
