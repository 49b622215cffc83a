"""Two processes under torchrun take the steps of one process on the joined batch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from shared_run import train
from torch import nn

SCRIPT = Path(__file__).parent / "shared_run.py"


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("shared")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPT, folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["LayerNorm", "BNP", "resumed"])
def test_two_processes_are_one_on_the_joined_batch(case: str, processes: list[dict[str, Any]]) -> None:
    """To the rounding of float64, which the order of a sum changes."""
    alone = train(nn.Identity() if case == "BNP" else nn.LayerNorm(8), 12, with_bnp=case == "BNP")
    for rank in processes:
        for what, values in alone.items():
            assert rank[case][what] == pytest.approx(values, rel=1e-10, abs=1e-12), what


@pytest.mark.slow
def test_both_processes_agree_to_the_last_bit_and_say_what_batchnorm_does(processes: list[dict[str, Any]]) -> None:
    assert processes[0] == processes[1]
    assert any("statistics of its own share" in text for text in processes[0]["warnings"])
