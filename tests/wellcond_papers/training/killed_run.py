"""Trains small networks with checkpoints, which can be killed at any time: `python killed_run.py FOLDER CASE…`."""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from wellcond.optim.bnp import BNP
from wellcond.optim.scale_amended import ScaleAmendedSGD
from wellcond.results import Row
from wellcond.results.quantities import TEST_LOSS
from wellcond_papers.data.batches import Batches
from wellcond_papers.data.dataset import Dataset
from wellcond_papers.training import schedules
from wellcond_papers.training.checkpoint import Checkpoint
from wellcond_papers.training.classifier import train_classifier

STEPS = 60
GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.randint(0, 256, (500, 1, 8, 8), dtype=torch.uint8, generator=GENERATOR)
LABELS = IMAGES.flatten(1).float().argmax(1) % 10
DATA = Dataset(IMAGES, LABELS, classes=tuple("0123456789"), name="noise")
CASES = ("SGD and BNP", "Adam", "scale-amended")


def network(seed: int = 0) -> nn.Sequential:
    """With all that has a state: BatchNorm's running statistics, and dropout's random numbers."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.3), nn.Linear(24, 10)
    )


def run(case: str, folder: Path | None, steps: int = STEPS, progress: Any = None, **options: Any) -> Any:
    """One training; what it came to, and a hash of all weights, moments and buffers."""
    model = network()
    if case == "Adam":
        optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), 0.01)
    elif case == "scale-amended":
        optimizer = ScaleAmendedSGD(model, 0.01, momentum=0.9)
    else:
        optimizer = torch.optim.SGD(model.parameters(), 0.3, momentum=0.9, weight_decay=1e-3)
    bnp = BNP(model, optimizer) if "BNP" in case else None
    parts = {"model": model, "optimizer": optimizer}
    checkpoint = None if folder is None else Checkpoint(folder / f"{case}.pt", parts, every=7)
    test = DATA.tensors(torch.float32, count=100)
    done = train_classifier(
        model, optimizer, Batches(DATA, 32, seed=3), steps,
        at=range(0, steps + 1, 5), test=test, bnp=bnp, checkpoint=checkpoint, progress=progress,
        probes=[lambda step: [Row(step, "", "drawn", float(torch.rand(())), "")]],
        schedule=schedules.warm_up(4, schedules.plateau(TEST_LOSS, patience=1)), **options,
    )  # fmt: skip
    state = [*model.state_dict().values(), *(v for s in optimizer.state.values() for v in s.values())]
    state += [] if bnp is None else [m for layer in bnp.layers.values() for m in (layer.mean, layer.variance)]
    weights = hashlib.sha256(b"".join(torch.as_tensor(value).numpy().tobytes() for value in state)).hexdigest()
    return {"losses": done.losses, "evaluations": [list(row) for row in done.evaluations], "weights": weights}


def main() -> None:
    """One process for each case, which prints itself, its case and every step."""
    torch.set_num_threads(1)
    importlib.import_module("torch._dynamo")  # which every optimizer needs, once for all processes
    for case in sys.argv[2:]:
        if os.fork() == 0:

            def tell(what: str, share: float, case: str = case) -> None:
                os.write(1, f"{os.getpid()} {round(share * STEPS)} {case}\n".encode())  # a line at a time
                time.sleep(0.02)

            run(case, Path(sys.argv[1]), progress=tell)
            os._exit(0)
    while True:
        try:
            os.wait()
        except ChildProcessError:  # there is none left
            return


if __name__ == "__main__":
    main()
