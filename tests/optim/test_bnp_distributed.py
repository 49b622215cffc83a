"""BNP under DistributedDataParallel: two processes are one process on the joined batch."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
import torch.multiprocessing as mp
from test_bnp import LR, assert_same, batches_of, loss, train
from torch import nn
from zoo import CLASSES, seeded

import wellcond as wc

WORLD = 2


def convolutional() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, CLASSES)
    )


def worker(rank: int, folder: str, accumulate: bool) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    model = seeded(convolutional)
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=LR)
    # the wrapped model brings its group along; a plain one is told of it
    bnp = (
        wc.BNP(model, optimizer, process_group=torch.distributed.group.WORLD)
        if accumulate
        else wc.BNP(parallel, optimizer)
    )
    for x, y in batches_of((2, 4, 4), 8):
        mine_x, mine_y = x.chunk(WORLD)[rank], y.chunk(WORLD)[rank]
        optimizer.zero_grad()
        if accumulate:
            with parallel.no_sync():
                (loss(parallel, mine_x[:2], mine_y[:2]) / 2).backward()
            (loss(parallel, mine_x[2:], mine_y[2:]) / 2).backward()
        else:
            loss(parallel, mine_x, mine_y).backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "bnp": bnp.state_dict()}, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def check(folder: Path, accumulate: bool) -> None:
    mp.spawn(worker, (str(folder), accumulate), nprocs=WORLD)
    joined = seeded(convolutional)
    statistics = train(joined, batches_of((2, 4, 4), 8)).state_dict()["layers"]
    for rank in range(WORLD):
        saved = torch.load(folder / f"{rank}.pt", weights_only=True)
        model = copy.deepcopy(joined)
        model.load_state_dict(saved["model"])
        assert_same(model, joined)
        for name, layer in saved["bnp"]["layers"].items():
            torch.testing.assert_close(layer["mean"], statistics[name]["mean"], rtol=1e-12, atol=1e-14)
            torch.testing.assert_close(layer["variance"], statistics[name]["variance"], rtol=1e-12, atol=1e-14)


def test_two_processes_are_one_on_the_joined_batch(tmp_path: Path) -> None:
    check(tmp_path, accumulate=False)


def test_two_processes_that_accumulate_are_one_on_the_joined_batch(tmp_path: Path) -> None:
    check(tmp_path, accumulate=True)
