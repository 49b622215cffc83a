"""BNP under DistributedDataParallel: two processes are one process on the joined batch."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from bnp_reference import LR, assert_close, assert_same, batches_of, loss, train
from torch import nn
from zoo import CLASSES, seeded

import wellcond as wc

WORLD = 2
BATCHES = batches_of((2, 4, 4), 8)


def convolutional() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, CLASSES)
    )


def worker(rank: int, folder: str) -> None:
    """Trains twice: on whole batches, the group taken from the wrapped model; and accumulating, the group passed."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    for accumulate in (False, True):
        model = seeded(convolutional)
        parallel = nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(parallel.parameters(), lr=LR)
        group = torch.distributed.group.WORLD
        bnp = wc.BNP(model, optimizer, process_group=group) if accumulate else wc.BNP(parallel, optimizer)
        for x, y in BATCHES:
            mine_x, mine_y = x.chunk(WORLD)[rank], y.chunk(WORLD)[rank]
            optimizer.zero_grad()
            if accumulate:
                with parallel.no_sync():
                    (loss(parallel, mine_x[:2], mine_y[:2]) / 2).backward()
                (loss(parallel, mine_x[2:], mine_y[2:]) / 2).backward()
            else:
                loss(parallel, mine_x, mine_y).backward()
            optimizer.step()
        torch.save({"model": model.state_dict(), "bnp": bnp.state_dict()}, f"{folder}/{rank}{accumulate}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_are_one_on_the_joined_batch(tmp_path: Path) -> None:
    mp.spawn(worker, (str(tmp_path),), nprocs=WORLD)
    joined = seeded(convolutional)
    statistics = train(joined, BATCHES).state_dict()["layers"]
    for path in (tmp_path / f"{rank}{accumulate}.pt" for rank in range(WORLD) for accumulate in (False, True)):
        saved = torch.load(path, weights_only=True)
        model = copy.deepcopy(joined)
        model.load_state_dict(saved["model"])
        assert_same(model, joined)
        for name, layer in saved["bnp"]["layers"].items():
            for moment, value in layer.items():
                assert_close(value, statistics[name][moment])
