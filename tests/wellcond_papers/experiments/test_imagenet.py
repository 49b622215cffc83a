"""The experiments on ImageNet run at the scale "paper" from a folder of images; and in several processes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wellcond.results.quantities import TEST_ACCURACY, TRAINING_LOSS
from wellcond_papers.experiments.catalog import experiment, names
from wellcond_papers.experiments.reproduce import reproduce
from wellcond_papers.experiments.rows import read_rows

Image = pytest.importorskip("PIL.Image")

TINY: dict[str, Any] = {"size": 32, "width": 4, "batch": 8, "epochs": 1, "evaluated": 4, "tested": 5, "measured": 8}
"""Two steps of a narrow network on small images; all else is as in the papers."""
ON_IMAGENET = [name for name in names() if "imagenet" in experiment(name).data("paper")]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """16 training and 6 validation images of two classes, larger than they are needed and not square."""
    folder, generator = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for part, count in (("train", 8), ("val", 3)):
        for k in range(2 * count):
            path = folder / "imagenet" / part / f"n0{k % 2}" / f"{k}.jpeg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(generator.integers(0, 256, (50, 60, 3), dtype=np.uint8)).save(path)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_IMAGENET)
def test_the_scale_of_the_paper_runs_from_a_folder_of_images(name: str, root: Path, tmp_path: Path) -> None:
    subject = experiment(name)
    paper = subject.scales["paper"]
    fewer = {"tests": 2} if "tests" in paper else {"looks": 2}
    run = reproduce(replace(subject, scales={"paper": {**paper, **TINY, **fewer}}), "paper", data=root, out=tmp_path)
    assert not run.failures
    assert len(run.table) == len(subject.arms)
    for record in run.table:
        assert record.has_diverged or record.last(TEST_ACCURACY) in {k / 5 for k in range(6)}
        assert record.has_diverged or max(record.series(TRAINING_LOSS)) == 2
    assert (tmp_path / name / "paper" / "figure.png").is_file()


@pytest.mark.slow
def test_two_processes_reproduce_what_one_does(tmp_path: Path) -> None:
    name, scale = "lange2022-fig7", "smoke"
    torchrun, wellcond = (str(Path(sys.executable).with_name(script)) for script in ("torchrun", "wellcond"))
    command = [torchrun, "--standalone", "--nproc-per-node", "2", "--no-python", wellcond, "reproduce", name]
    command += ["--scale", scale, "--out", str(tmp_path / "two"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (printed,) = json.loads(done.stdout)
    assert printed["scale"] == scale, "one process speaks for both"
    together = read_rows(tmp_path / "two" / name / scale / "rows.json").table
    alone = reproduce(name, scale, out=tmp_path / "one").table
    for method in ("GN", "BNP+GN"):  # BN on a CPU has statistics of its own in every process
        ours, theirs = (table.arm(f"ResNet-18: {method}")[0] for table in (together, alone))
        assert ours.series(TRAINING_LOSS) == pytest.approx(theirs.series(TRAINING_LOSS), rel=1e-3)
