"""Loggers: each of them has the numbers and the findings that the recorder wrote down, read back by its own means."""

from __future__ import annotations

import json
import math
import struct
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from plain import Clock
from torch import nn

import wellcond as wc
from wellcond.diagnosis.finding import Finding
from wellcond.integrations import log_to
from wellcond.integrations.loggers import MOST_POINTS, thinned
from wellcond.results import Row

USUAL = {
    "training_loss",
    "validation_loss",
    "lr",
    "max_lr",
    "gradient_norm",
    "unclipped_gradient_norm",
    "gradient_noise_scale",
    "recording_share",
    "worst_update_ratio",
    "worst_dead_share",
}
"""Series of a small network without a norm, a scaler or a sigmoid."""
EVERY = USUAL | {"loss_scale", "worst_saturated_share", "worst_statistics_gap"}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def recorded(log: Any, steps: int = 30) -> wc.Recorder:
    """A training whose loss is NaN from step 25 on, and so ends with a finding."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    clock, loss = Clock(), nn.MSELoss()
    with wc.Recorder(model, optimizer, loss, budget=1.0, clock=clock, log=log) as rec:
        for step in range(1, steps + 1):
            clock.now += 1.0
            inputs = torch.randn(16, 4)
            value = loss(model(inputs), inputs[:, :1])
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            rec.step(value if step < 25 else value * torch.nan, (inputs, inputs[:, :1]))
        rec.validation(0.5)
    assert rec.problems == []
    return rec


def finite(rec: wc.Recorder, quantity: str = "training_loss", layer: str = "") -> list[tuple[int, float]]:
    series = rec.history.series(quantity, layer)
    return [
        (step, value)
        for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True)
        if value == value
    ]


@pytest.mark.slow
def test_lines_of_json(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "run.jsonl"
    rec = recorded(log_to(path, layers="2"))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    names = {name for line in lines for name in line} - {"step", "finding"}
    usual = {name for name in names if not name.startswith("wellcond/2/")}
    assert {name.removeprefix("wellcond/") for name in usual} == USUAL
    assert {"wellcond/2/gradient_norm", "wellcond/2/weight_norm", "wellcond/2/input_kappa_half"} <= names
    assert not [name for name in names if name.startswith("wellcond/0/")]
    losses = [(line["step"], line["wellcond/training_loss"]) for line in lines if "wellcond/training_loss" in line]
    assert losses[:24] == finite(rec)
    assert losses[24:] == [(step, "nan") for step in range(25, 31)]
    ratios = {
        line["step"]: line["wellcond/worst_update_ratio"] for line in lines if "wellcond/worst_update_ratio" in line
    }
    layers = [dict(finite(rec, "update_ratio", layer)) for layer in ("0", "2")]
    assert ratios == {step: max(layer[step] for layer in layers) for step in layers[0]}
    findings = [line["finding"] for line in lines if "finding" in line]
    assert [finding["rule"] for finding in findings] == [finding.rule for finding in rec.findings] == ["non-finite"]


@pytest.mark.slow
def test_a_deep_network_is_logged_in_a_dozen_series(tmp_path: Path) -> None:
    """Those that the page on loggers names, whatever the number of layers."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), each) for each in (nn.ReLU(), nn.Sigmoid()) * 4]
    model, loss, clock = nn.Sequential(*blocks), nn.MSELoss(), Clock()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.05), torch.amp.GradScaler("cpu")
    path = tmp_path / "run.jsonl"
    with wc.Recorder(model, optimizer, loss, budget=1.0, clock=clock, log=log_to(path), scaler=scaler) as rec:
        for step in range(40):
            clock.now += 1.0
            inputs = torch.randn(16, 8)
            value = loss(model(inputs), inputs)
            optimizer.zero_grad()
            scaler.scale(value).backward()
            scaler.step(optimizer)
            scaler.update()
            rec.step(value, (inputs, inputs))
            if step % 20 == 0:
                rec.validation(value)
    names = {name for line in path.read_text().splitlines() for name in json.loads(line)} - {"step", "finding"}
    assert {name.removeprefix("wellcond/") for name in names} == EVERY
    assert wc.integrations.latest(rec).keys() == names | {"wellcond/severe", "wellcond/warning", "wellcond/note"}


def test_a_layer_that_is_nan_is_the_worst(tmp_path: Path) -> None:
    log = log_to(tmp_path / "run.jsonl")
    for values in ((1.0, math.nan), (math.nan, 1.0), (math.nan, math.nan)):
        log.rows([Row(1, f"fc{i}", "update_ratio", value, "") for i, value in enumerate(values)])
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert [line["wellcond/worst_update_ratio"] for line in lines] == ["nan"] * 3


@pytest.mark.slow
def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path) as writer:
        rec = recorded(log_to(writer))
    events = EventAccumulator(str(tmp_path)).Reload()
    assert {tag.removeprefix("wellcond/") for tag in events.Tags()["scalars"]} == USUAL
    logged = [(event.step, pytest.approx(event.value, rel=1e-6)) for event in events.Scalars("wellcond/training_loss")]
    assert logged[:24] == finite(rec)
    (text,) = events.Tensors("wellcond/findings/text_summary")
    assert b"non-finite" in text.tensor_proto.string_val[0]


def records_in(log: bytes, block: int = 2**15, header: int = 7) -> Iterator[bytes]:
    """The records of a log in LevelDB's format, each in one part or several: checksum, length, kind, content."""
    place, parts = header, b""
    while place + header <= len(log):
        if block - place % block < header:
            place += block - place % block
        length, kind = struct.unpack_from("<HB", log, place + 4)
        if place + header + length > len(log):  # is being written
            return
        parts += log[place + header : place + header + length]
        place += header + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


@pytest.mark.slow
def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline: what the run sends is read from its own file."""
    wandb = pytest.importorskip("wandb")
    record = pytest.importorskip("wandb.proto.wandb_internal_pb2").Record
    monkeypatch.setenv("WANDB_SILENT", "true")
    settings = wandb.Settings(x_disable_stats=True, x_disable_meta=True, disable_git=True, console="off")
    run = wandb.init(mode="offline", project="tests", dir=str(tmp_path), settings=settings)
    run.log({"own": 1.0})
    rec = recorded(log_to(run))
    run.log({"own": 2.0})
    run.finish()
    (path,) = tmp_path.rglob("*.wandb")
    until, records = time.monotonic() + 20, []
    while not any(each.WhichOneof("record_type") == "exit" for each in records):  # another process writes the file
        assert time.monotonic() < until
        time.sleep(0.05)
        records = [record.FromString(data) for data in records_in(path.read_bytes())]
    points = [{".".join(item.nested_key) or item.key: item.value_json for item in r.history.item} for r in records]
    losses = [
        (json.loads(p["wellcond/step"]), json.loads(p["wellcond/training_loss"]))
        for p in points
        if "wellcond/training_loss" in p
    ]
    assert losses[:24] == finite(rec)
    assert [float(p["own"]) for p in points if "own" in p] == [1, 2]
    assert [r.alert.title for r in records if r.alert.title] == ["non-finite"]


def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    trackio = pytest.importorskip("trackio")
    run = trackio.init(project="tests", name="run", embed=False, auto_log_cpu=False, auto_log_gpu=False)
    rec = recorded(log_to(trackio))
    trackio.finish()
    storage = pytest.importorskip("trackio.sqlite_storage").SQLiteStorage
    logs = [log for log in storage.get_logs("tests", run.name) if "wellcond/training_loss" in log]
    assert [(log["step"], log["wellcond/training_loss"]) for log in logs][:24] == finite(rec)
    assert [alert["title"] for alert in storage.get_alerts("tests")] == ["non-finite"]


@pytest.mark.slow
def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        rec = recorded(log_to(mlflow))
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "wellcond/training_loss")
    assert sorted((metric.step, metric.value) for metric in history)[:24] == finite(rec)
    (page,) = tmp_path.rglob("findings.md")
    assert "non-finite" in page.read_text()


@pytest.mark.slow
def test_other_loggers_and_what_is_none() -> None:
    class Metrics:
        def __init__(self) -> None:
            self.steps: list[int | None] = []

        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            self.steps.append(step)

    metrics = Metrics()
    recorded(log_to(metrics))
    assert set(metrics.steps) == {*range(1, 31)}
    with pytest.raises(TypeError, match=r"a list is no logger"):
        log_to([])


def test_a_logger_that_fails_is_named_and_the_training_goes_on() -> None:
    class Broken:
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            raise ConnectionError("no network")

    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with wc.Recorder(model, optimizer, log=log_to(Broken())) as rec:
        for _ in range(3):
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
            rec.step(1.0)
    assert rec.problems == ["logging: ConnectionError: no network"]
    assert len(rec.history.series("training_loss")) == 3


def test_a_long_series_is_thinned_but_not_its_spike() -> None:
    points = dict.fromkeys(range(1, 1001), 1.0) | {333: 7.0}
    few = thinned(points)
    assert few[333] == 7.0
    assert few[1000] == 1.0
    assert len(few) <= MOST_POINTS + 1
    assert thinned({1: 1.0, 2: torch.nan, 3: 2.0}, 1).keys() == {2, 3}


def test_a_finding_that_ends_is_said_where_there_is_text() -> None:
    class Texts:
        texts: list[tuple[str, int]] = []  # noqa: RUF012

        def add_scalar(self, *_: Any) -> None: ...

        def add_text(self, _tag: str, text: str, step: int) -> None:
            self.texts.append((text, step))

    log = log_to(Texts())
    for until in (None, 9):
        log.finding(
            Finding(rule="diverging", layer="head", severity="severe", summary="it rises.", step=5, until=until)
        )
    (began, first), (ended, last) = Texts.texts
    assert began.startswith("**severe: diverging at head** from step 5: it rises.")
    assert (first, last, ended) == (5, 9, "**diverging at head** ended at step 9")
