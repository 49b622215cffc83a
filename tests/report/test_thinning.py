from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from wellcond.recording.history import Series
from wellcond.report.thinning import (
    ABSENT,
    HIGHEST,
    LOWEST,
    NOT_FINITE,
    NOT_POSITIVE,
    Grid,
    grid,
    thinned,
)


def series(*values: float, start: int = 1) -> Series:
    return Series(np.arange(start, start + len(values)), np.array(values))


def decoded(cells: Grid) -> np.ndarray:
    """The numbers of a grid, as `heat_map.js` reads them."""
    share = (cells.codes.astype(float) - LOWEST) / (HIGHEST - LOWEST)
    values = (
        cells.low * (cells.high / cells.low) ** share if cells.is_log else cells.low + share * (cells.high - cells.low)
    )
    values[cells.codes == NOT_FINITE] = math.nan
    values[cells.codes == NOT_POSITIVE] = 0.0
    values[cells.codes == ABSENT] = -1.0
    return values


def test_a_short_series_stays_as_it_is() -> None:
    short = series(1.0, math.nan, 3.0)
    assert thinned(short, 10) is short


@pytest.mark.parametrize("length", [601, 1000, 12_345])
def test_no_point_is_made_up_and_the_ends_stay(length: int) -> None:
    values = np.random.default_rng(length).normal(size=length)
    long = Series(np.arange(length) * 3, values)
    short = thinned(long)
    assert len(short) <= 600
    assert (np.diff(short.steps) > 0).all()
    assert (values[short.steps // 3] == short.values).all()
    assert (short.steps[0], short.steps[-1]) == (long.steps[0], long.steps[-1])
    assert short.values.min() == values.min()
    assert short.values.max() == values.max()


def test_every_spike_and_every_stretch_with_nan_is_still_there() -> None:
    values = np.ones(50_000)
    spikes, dips, broken = [17, 20_000, 49_000], [3_000, 30_000], [12_345, 40_000]
    values[spikes], values[dips], values[broken] = 9.0, -9.0, [math.nan, math.inf]
    short = thinned(Series(np.arange(50_000), values))
    assert {*spikes, *dips, *broken} <= set(short.steps.tolist())


def test_cells_hold_the_largest_value_of_their_steps() -> None:
    random = np.random.default_rng(0)
    values = {name: np.exp(3 * random.normal(size=1000)) for name in ("a", "b")}
    cells = grid({name: series(*each) for name, each in values.items()}, columns=7)
    bounds = [*cells.columns - 1, 1000]
    expected = [[each[i:j].max() for i, j in pairwise(bounds)] for each in values.values()]
    np.testing.assert_allclose(decoded(cells), expected, rtol=3e-4)
    assert cells.last == 1000


def test_layers_measured_at_other_steps_share_the_columns() -> None:
    cells = grid({"a": series(1.0, 2.0, start=1), "b": series(3.0, 4.0, start=2)}, columns=9)
    assert cells.columns.tolist() == [1, 2, 3]
    np.testing.assert_allclose(decoded(cells), [[1.0, 2.0, -1.0], [-1.0, 3.0, 4.0]], rtol=1e-4)


def test_nan_infinity_and_zero_have_codes_of_their_own() -> None:
    cells = grid({"a": series(math.nan, math.inf, 0.0, 1.0, 100.0)}, columns=5)
    assert cells.codes.tolist() == [[NOT_FINITE, NOT_FINITE, NOT_POSITIVE, LOWEST, HIGHEST]]


def test_shares_have_a_scale_from_zero_to_one() -> None:
    cells = grid({"a": series(0.0, 0.25, 0.5)}, columns=3, is_share=True)
    assert (cells.low, cells.high) == (0.0, 1.0)
    np.testing.assert_allclose(decoded(cells), [[0.0, 0.25, 0.5]], atol=1e-5)


def test_a_layer_that_was_never_finite_does_not_fail() -> None:
    assert grid({"a": series(math.nan, math.nan)}, columns=2).codes.tolist() == [[NOT_FINITE, NOT_FINITE]]
