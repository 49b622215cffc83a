"""Cells on disk: read back as they were, never from a damaged file."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from wellcond.errors import CorruptData
from wellcond.results import Row
from wellcond_papers.experiments.experiment import Cell
from wellcond_papers.experiments.running.store import Ended, Store
from wellcond_papers.experiments.running.task import made_with
from wellcond_papers.experiments.table import Record

CELL = Cell("toy-fig1", {"lr": 0.1, "sizes": [3, 2], "arm": "BN", "seed": 0})
ROWS = [
    Row(None, "", "loss", 0.1 + 0.2, ""),
    Row(7, "fc1", "kappa", math.inf, ""),
    Row(8, "fc1", "kappa", 5e-324, "κ"),
    Row(9, "fc1", "kappa", -math.inf, ""),
]
FINISHED = Ended(CELL, Record(CELL.settings, ROWS, 1.5), "", 2, made_with("cpu"))


def test_a_finished_cell_is_read_back_to_the_bit(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.get(CELL) is None
    store.put(FINISHED)
    assert store.get(CELL) == FINISHED
    assert store.finished([CELL]) == {CELL.key: FINISHED}


def test_not_a_number_is_read_back(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(Ended(CELL, Record(CELL.settings, [Row(0, "", "loss", math.nan, "")])))
    ended = store.get(CELL)
    assert ended is not None
    assert ended.record is not None
    assert math.isnan(ended.record.rows[0].value)


def test_a_failed_cell_is_kept_with_its_error_and_is_not_finished(tmp_path: Path) -> None:
    store = Store(tmp_path)
    failed = Ended(CELL, None, "ValueError: no", 3, made_with("cpu"))
    store.put(failed)
    assert store.get(CELL) == failed
    assert store.finished([CELL]) == {}


def test_the_file_says_with_what_it_was_made(tmp_path: Path) -> None:
    Store(tmp_path).put(FINISHED)
    content = json.loads(Store(tmp_path).path(CELL).read_text())
    assert set(content["made_with"]) == {"device", "wellcond", "torch", "numpy", "python"}
    assert content["settings"] == CELL.settings


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_half_written_cell_is_reported_and_counts_as_missing(share: float, tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(FINISHED)
    path = store.path(CELL)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(CorruptData, match=str(path)):
        store.get(CELL)
    with pytest.warns(UserWarning, match=str(path)):
        assert store.finished([CELL]) == {}


def test_one_changed_digit_is_found(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(FINISHED)
    path = store.path(CELL)
    path.write_text(path.read_text().replace("0.30000000000000004", "0.30000000000000014"))
    with pytest.raises(CorruptData, match="checksum"):
        store.get(CELL)


@pytest.mark.parametrize(("ended", "is_kept"), [(FINISHED, False), (Ended(CELL, None, "killed"), True)])
def test_checkpoints_stay_until_the_cell_is_finished(ended: Ended, is_kept: bool, tmp_path: Path) -> None:
    store = Store(tmp_path)
    state = store.checkpoints(CELL) / "state.pt"
    state.parent.mkdir(parents=True)
    state.touch()
    store.put(ended)
    assert state.exists() == is_kept
