"""A recorded run, read back: numbers, findings, words, and forms to save it in."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import wellcond as wc
from wellcond.diagnosis.finding import Finding
from wellcond.errors import DataNotFound
from wellcond.recording.directory.findings_log import FindingEvent
from wellcond.recording.directory.run_directory import RunDirectory
from wellcond.recording.history import Columns, History, Series
from wellcond.recording.run import Follower, Run
from wellcond.results import Row

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

EFFECT = Finding(rule="exploding-gradient", layer="fc2", severity="warning", summary="gradients grow.", step=310)
CAUSE = Finding(
    rule="diverging",
    layer="fc1",
    severity="severe",
    basis="proven",
    summary="the loss is infinite.",
    evidence={"loss": math.inf, "rate": 0.1, "optimizer": "SGD"},
    limits={"limit": 0.05},
    reason="The rate is above its limit.",
    treatment="lower-lr",
    remedy="optimizer.param_groups[0]['lr'] = 0.05",
    rows=(Row(300, "fc1", "gradient_norm", math.inf, ""), Row(None, "", "lr", 0.1, "lr")),
    consequences=(EFFECT,),
    step=300,
)
SPIKE = Finding(rule="loss-spike", severity="warning", summary="the loss jumped.", step=20, until=25)
NOTE = Finding(rule="constant-feature", severity="note", summary="a feature is constant.", step=1)
LOSSES = [Row(step, "", "training_loss", 4.0 / step, "") for step in range(1, 401)]
RATES = [Row(1, "", "lr", 0.1, "lr"), Row(300, "", "lr", 0.01, "lr")]
MODEL = [
    {"name": "fc1", "type": "Linear", "parameters": 20},
    {"name": "act", "type": "ReLU", "parameters": 0},
    {"name": "fc2", "type": "Linear", "parameters": 10},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    directory = RunDirectory.open(tmp_path / "a", {"model": MODEL, "optimizer": {"name": "SGD", "lr": 0.1}})
    directory.append(
        [*LOSSES, *RATES, Row(400, "fc2", "weight_norm", 2.0, ""), Row(400, "fc1", "weight_norm", 1.0, "")]
    )
    directory.append_findings([FindingEvent("began", 1, NOTE), FindingEvent("began", 21, SPIKE)])
    directory.append_findings([FindingEvent("ended", 30, SPIKE), FindingEvent("began", 305, CAUSE)])
    directory.close()
    return tmp_path / "a"


def test_findings_come_back_whole_and_in_order(folder: Path) -> None:
    run = wc.read_run(folder)
    assert run.findings == (CAUSE, SPIKE, NOTE)  # worst first
    assert run.findings[0].evidence["loss"] == math.inf
    assert run.findings[0].consequences == (EFFECT,)
    assert run.layers == ("fc1", "fc2")
    assert (run.last_step, run.status) == (400, "ended")
    assert run.path == folder


def test_a_finding_that_has_moved_is_one_finding(tmp_path: Path) -> None:
    """Its layer, and where it began, are known better later on, and again after it was resumed; it ends as one."""
    first = Finding(rule="dying-neurons", severity="warning", summary="units died.", step=120)
    second, third = replace(first, layer="fc1", step=110), replace(first, layer="fc1", step=104)
    directory = RunDirectory.open(tmp_path / "a", {"model": MODEL})
    directory.append_findings([FindingEvent("began", 130, first), FindingEvent("began", 131, SPIKE)])
    directory.append_findings([FindingEvent("moved", 140, second, before=first)])
    directory.append_findings([FindingEvent("moved", 150, third, before=second)])
    directory.append_findings([FindingEvent("ended", 300, replace(third, until=290))])
    directory.close()
    findings = wc.read_run(tmp_path / "a").findings
    assert {(each.rule, each.layer, each.step, each.until) for each in findings} == {
        ("dying-neurons", "fc1", 104, 290),
        ("loss-spike", "", 20, 25),
    }


def test_the_verdict_and_the_text_say_what_and_when(folder: Path) -> None:
    text = str(wc.read_run(folder))
    assert " ".join(text.split()).startswith(
        "Severe (diverging at fc1, since step 300): the loss is infinite. 1 more was found in 400 steps."
    )
    assert "warning: loss-spike, steps 20 to 25: the loss jumped." in text
    numbers = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.startswith(("loss", "lr"))}
    assert numbers["loss"] == ["4", "0.01", "0.01", "400"]
    assert numbers["lr"] == ["0.1", "0.01", "0.01", "300"]
    assert "ended, 400 steps in " in text


def test_a_run_without_findings_says_so() -> None:
    assert Run.of(History(LOSSES), [], {}).verdict() == "Nothing was found in 400 steps."
    assert Run.of(History(LOSSES), [NOTE], {}).verdict() == "Nothing was found in 400 steps (1 note)."
    assert Run.of(History(), [], {}).verdict() == "Nothing was recorded yet."
    assert str(Run.of(History([Row(1, "", "training_loss", math.nan, "")]), [], {})).count("nan") == 3


def test_a_run_in_memory_equals_the_one_on_the_disk(folder: Path) -> None:
    read = wc.read_run(folder)
    memory = Run.of(History(sorted(read.rows(), key=lambda row: row.step or 0)), (SPIKE, NOTE, CAUSE), read.manifest)
    assert (memory.findings, memory.layers, memory.last_step) == (read.findings, read.layers, read.last_step)
    assert sorted(memory.rows()) == sorted(read.rows())
    assert read.rows(300) == [Row(300, "", "training_loss", 4 / 300, ""), Row(300, "", "lr", 0.01, "lr")]


def test_it_becomes_a_table_and_files(folder: Path, tmp_path: Path) -> None:
    run = wc.read_run(folder)
    table = run.to_pandas()
    assert [Row(*line) for line in table.itertuples(index=False)] == run.rows()
    assert pandas.api.types.is_integer_dtype(table["step"])
    empty = Run.of(History(), [], {}).to_pandas()
    assert (len(empty), [*empty.columns]) == (0, [*table.columns])
    saved = json.loads(run.save(tmp_path / "run.json").read_text())
    assert saved["verdict"] == run.verdict()
    assert len(saved["rows"]) == len(run.rows())
    assert len(run.save(tmp_path / "run.csv").read_text().splitlines()) == len(run.rows()) + 1


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(DataNotFound, match="holds no recorded run"):
            wc.read_run(path)


def test_seconds_count_only_while_it_ran(folder: Path) -> None:
    manifest = {"lives": [{"started": 1000.0, "first_step": 1}, {"started": 9000.0, "first_step": 201}]}
    history = wc.read_run(folder).history
    times = Series(np.array([1, 100, 201, 300]), np.array([1010.0, 1060.0, 9005.0, 9040.0]))
    assert Run(history, (), manifest, times=times).seconds == 60 + 40


def test_columns_equal_rows_in_any_order() -> None:
    """Against a dictionary: of rows with one step, layer and quantity the last counts."""
    generator = np.random.default_rng(0)
    names = [(f"q{i % 3}", f"layer{i}" if i else "") for i in range(70_000)]  # more than sixteen bits
    series = generator.choice([0, 1, 2, 65_535, 65_536, 69_999], size=3000)
    steps = generator.integers(1, 200, size=3000)
    values = generator.normal(size=3000)
    parts = [Columns(steps[i : i + 700], values[i : i + 700], series[i : i + 700]) for i in range(0, 3000, 700)]
    history = History.of_columns(parts, names, {"q0": "u"})
    expected: dict[int, dict[int, float]] = {}
    for code, step, value in zip(series.tolist(), steps.tolist(), values.tolist(), strict=True):
        expected.setdefault(code, {})[step] = value
    for code, by_step in expected.items():
        read = history.series(*names[code])
        assert dict(zip(read.steps.tolist(), read.values.tolist(), strict=True)) == by_step
        assert read.steps.tolist() == sorted(by_step)
    assert len(history) == sum(map(len, expected.values()))
    assert (history.unit("q0"), history.unit("q1")) == ("u", "")
    history.add([Row(500, *reversed(names[65_536]), 1.5, "")])
    assert history.series(*names[65_536]).values[-1] == 1.5
    assert history.last_step == 500


def test_a_follower_sees_what_replaced_a_file(tmp_path: Path) -> None:
    directory = RunDirectory.open(tmp_path, {})
    follower = Follower(tmp_path)
    directory.append(LOSSES[:100])
    assert follower.read().last_step == 100
    directory.truncate(40)
    directory.append([Row(41, "", "training_loss", 7.0, "")])
    series = follower.read().history.series("training_loss")
    assert (len(series), series.values[-1]) == (41, 7.0)
