"""A real Ray cluster on this machine: two workers, a cell that raises, a worker that is killed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import toy

from wellcond.errors import MissingExtra
from wellcond.treatment.launching.ray_launcher import ClusterError, Ray
from wellcond_papers.experiments.reproduce import reproduce

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray = pytest.importorskip("ray")
    path = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}}
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=path)
    yield
    ray.shutdown()


@pytest.mark.usefixtures("cluster")
def test_the_table_is_complete_and_equal_to_the_one_made_here(tmp_path: Path) -> None:
    experiment = toy.with_arms(bad={"raises": True}, killed={"killed_once": str(tmp_path / "marker")})
    run = reproduce(experiment, "smoke", out=tmp_path / "ray", launcher=Ray())
    assert (tmp_path / "marker").exists()
    here = reproduce(experiment, "smoke", out=tmp_path / "here")
    assert len(run.table) == 6
    assert [(r.settings, r.rows) for r in run.table] == [(r.settings, r.rows) for r in here.table]
    assert run.failures == here.failures
    assert {failure.settings["arm"] for failure in run.failures} == {"bad"}
    assert not [path for path in tmp_path.rglob("checkpoints/*") if path.name not in failed_keys(experiment)]


def failed_keys(experiment: toy.Experiment) -> set[str]:
    return {cell.key for cell in experiment.cells("smoke") if cell.settings["arm"] == "bad"}


@pytest.mark.usefixtures("cluster")
def test_a_worker_that_is_killed_every_time_is_a_failure(tmp_path: Path) -> None:
    arms = {"slow": {"lr": 0.01}, "doomed": {"lr": 0.1, "killed": str(tmp_path / "marker")}}
    experiment = replace(toy.TOY, arms=arms, scales={"smoke": {"steps": 3, "seeds": 1, "data": None}}, claims=[])
    run = reproduce(experiment, "smoke", out=tmp_path, launcher=Ray(retries=0))
    assert {failure.settings["arm"] for failure in run.failures} == {"doomed"}
    assert all("WorkerCrashedError" in failure.error for failure in run.failures)
    assert [record.arm for record in run.table] == ["slow"]


@pytest.mark.usefixtures("cluster")
def test_a_cluster_without_a_gpu_is_said_and_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="need 1 GPU each, and the Ray cluster has 0"):
        reproduce(toy.TOY, "smoke", out=tmp_path, launcher=Ray(), device="cuda")


def test_without_ray_the_command_that_installs_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"wellcond\[ray\]"):
        reproduce(toy.TOY, "smoke", out=tmp_path, launcher="ray")
