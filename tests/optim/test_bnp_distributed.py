"""BNP under DistributedDataParallel: two processes are one process on the joined batch, also with uneven inputs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from bnp_reference import LR, ReferenceBNP, assert_close, assert_same, batches_of, loss, train
from ranks import in_ranks
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from zoo import CLASSES, seeded

import wellcond as wc

WORLD = 2
BATCHES = batches_of((2, 4, 4), 8)


def convolutional() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, CLASSES)
    )


def train_all(rank: int, folder: str) -> None:
    train_on_even_inputs(rank, folder)
    train_on_uneven_inputs(rank, folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes have saved."""
    path = tmp_path_factory.mktemp("processes")
    in_ranks(train_all, WORLD, str(path))
    return path


def train_on_even_inputs(rank: int, folder: str) -> None:
    """Twice: on whole batches, the group taken from the wrapped model; and accumulating, the group passed."""
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


@pytest.mark.slow
def test_two_processes_are_one_on_the_joined_batch(folder: Path) -> None:
    joined = seeded(convolutional)
    statistics = train(joined, BATCHES).state_dict()["layers"]
    for path in (folder / f"{rank}{accumulate}.pt" for rank in range(WORLD) for accumulate in (False, True)):
        saved = torch.load(path, weights_only=True)
        model = copy.deepcopy(joined)
        model.load_state_dict(saved["model"])
        assert_same(model, joined)
        for name, layer in saved["bnp"]["layers"].items():
            for moment, value in layer.items():
                assert_close(value, statistics[name][moment])


# processes that run out of inputs at different times, or skip a step

UNEVEN = {0: 2, 1: 4}
"""Steps of each process."""


def mine(rank: int) -> list[tuple[Tensor, Tensor]]:
    return [(x.chunk(WORLD)[rank], y.chunk(WORLD)[rank]) for x, y in batches_of((2, 4, 4), 8, max(UNEVEN.values()))]


def train_on_uneven_inputs(rank: int, folder: str) -> None:
    for case in ("steps", "accumulated", "nothing", "refused", "ddp.join", "wrong order", "late", "skipped"):
        model = seeded(convolutional)
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        early = wc.BNP(model, optimizer) if case == "late" else None
        ddp = nn.parallel.DistributedDataParallel(model)
        bnp = early or wc.BNP(ddp, optimizer)
        messages = []
        if case in ("refused", "ddp.join", "wrong order"):
            joins: dict[str, Any] = {
                "refused": lambda ddp=ddp: Join([ddp]),
                "ddp.join": ddp.join,
                "wrong order": lambda ddp=ddp, bnp=bnp: Join([bnp, ddp]),
            }
            try:
                with joins[case]():
                    loss(ddp, *mine(rank)[0]).backward()
            except wc.WellcondError as error:
                messages.append(str(error))
        elif case in ("late", "skipped"):
            for step, batch in enumerate(mine(rank)):
                optimizer.zero_grad()
                loss(ddp, *batch).backward()
                if case == "late" or (rank, step) != (1, 1):
                    optimizer.step()
        else:
            parts = 2 if case == "accumulated" else 1
            with Join([ddp, bnp]):
                for x, y in mine(rank)[: 0 if case == "nothing" and rank == 0 else UNEVEN[rank]]:
                    optimizer.zero_grad()
                    if parts == 2:
                        with ddp.no_sync():
                            (loss(ddp, x[:2], y[:2]) / 2).backward()
                    (loss(ddp, x[-4 // parts :], y[-4 // parts :]) / parts).backward()
                    optimizer.step()
        file = {"model": model.state_dict(), "bnp": bnp.state_dict(), "said": messages}
        torch.save(file, f"{folder}/{case}{rank}.pt")


def averaged(model: nn.Module, *parts: tuple[Tensor, Tensor]) -> Tensor:
    """What DDP makes of the losses of some processes: it divides by the number of all."""
    return sum((loss(model, x, y) for x, y in parts), torch.zeros(())) / WORLD


@pytest.mark.slow
def test_processes_without_inputs_leave_nobody_waiting(folder: Path) -> None:
    batches = [mine(rank) for rank in range(WORLD)]
    steps_of = {
        "steps": UNEVEN,
        "accumulated": UNEVEN,
        "nothing": {0: 0, 1: 4},
        "late": {0: 4, 1: 4},
    }
    for case, steps in steps_of.items():
        reference = ReferenceBNP(seeded(convolutional), LR)
        for step in range(4):
            reference.step(averaged, *(batches[rank][step] for rank in range(WORLD) if step < steps[rank]))
        for rank in range(WORLD):
            saved = torch.load(folder / f"{case}{rank}.pt", weights_only=True)
            model = seeded(convolutional)
            model.load_state_dict(saved["model"])
            assert_same(model, reference.model)
            for name, layer in saved["bnp"]["layers"].items():
                mean, variance = (torch.cat(part) for part in zip(*reference.statistics[name], strict=True))
                assert_close(layer["mean"], mean)
                assert_close(layer["variance"], variance)
    for case in ("refused", "ddp.join", "wrong order"):
        (messages,) = torch.load(folder / f"{case}0.pt", weights_only=True)["said"]
        assert "with Join([ddp, bnp])" in messages
