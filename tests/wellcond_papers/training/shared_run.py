"""Trains under torchrun, or alone, and writes what came out: `torchrun --nproc-per-node 2 shared_run.py FOLDER`."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn

from wellcond.optim.bnp import BNP
from wellcond_papers.training import schedules
from wellcond_papers.training.checkpoint import Checkpoint
from wellcond_papers.training.classifier import train_classifier
from wellcond_papers.training.distributed import join_processes

SIZES = (13, 8, 10)
"""Of the batches in turn: two processes have unequal shares of the first."""


def batch_at(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    count = SIZES[step % len(SIZES)]
    x = torch.randn(count, 6, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 3, (count,), generator=generator)


def train(norm: nn.Module, steps: int, folder: Path | None = None, with_bnp: bool = False) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), norm, nn.Tanh(), nn.Linear(8, 3)).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9)
    bnp = BNP(model, optimizer) if with_bnp else None
    parts = {"model": model, "optimizer": optimizer}
    run = train_classifier(
        model, optimizer, batch_at, steps, at=range(0, steps + 1, 4), test=batch_at(100), bnp=bnp,
        checkpoint=None if folder is None else Checkpoint(folder / "state.pt", parts, every=5),
        schedule=schedules.warm_up(3, schedules.plateau()),
    )  # fmt: skip
    return {
        "losses": run.losses,
        "evaluations": [row.value for row in run.evaluations],
        "weights": torch.cat([p.detach().flatten() for p in model.parameters()]).tolist(),
    }


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    join_processes()
    results = {"LayerNorm": train(nn.LayerNorm(8), 12), "BNP": train(nn.Identity(), 12, with_bnp=True)}
    train(nn.LayerNorm(8), 10, folder)
    distributed.barrier()
    results["resumed"] = train(nn.LayerNorm(8), 12, folder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(nn.BatchNorm1d(8), 1)
    results["warnings"] = [str(warning.message) for warning in caught]
    (folder / f"{distributed.get_rank()}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
