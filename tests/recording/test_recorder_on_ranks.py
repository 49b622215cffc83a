"""A recorder in every process of a training: rank 0 records whole norms, and the training is bit for bit the same."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from loops import Clock
from rank_cases import (
    NETWORKS,
    Batches,
    Network,
    Wrap,
    in_ddp,
    in_fsdp,
    in_tensor_parallel,
    part_of,
    perceptron,
)
from ranks import in_ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, SequenceParallel, parallelize_module
from torch.optim import AdamW, Optimizer
from zoo import CLASSES, flattened_cross_entropy, integers, normal, seeded

import wellcond as wc
from wellcond.recording.watching import steps as reading
from wellcond.results import quantities as q

STEPS = 20
WHOLE = (q.GRADIENT_NORM, q.WEIGHT_NORM, q.UPDATE_RATIO)


def sequences() -> Network:
    """With a LayerNorm, whose gradients each process of a sequence-parallel training has a summand of."""
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, CLASSES)))
    batches = [(normal(4, 4, 4, seed=i), integers(CLASSES, 4, 4, seed=i)) for i in range(3)]
    return Network(model, flattened_cross_entropy, batches)


def in_sequence_parallel(model: nn.Module) -> nn.Module:
    plan = {
        "0": ColwiseParallel(output_layouts=Shard(1)),
        "1": SequenceParallel(),
        "2": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    return parallelize_module(model, init_device_mesh("cpu", (2,)), plan)


class Setup(NamedTuple):
    wrap: Wrap
    network: str
    readers: int


SETUPS = {
    "DDP": Setup(in_ddp, "perceptron", 2),
    "FSDP2": Setup(in_fsdp, "perceptron", 2),
    "FSDP2, tied": Setup(in_fsdp, "tied transformer", 2),
    "tensor parallel": Setup(in_tensor_parallel, "perceptron", 1),
    "sequence parallel": Setup(in_sequence_parallel, "sequences", 1),
}


def network_of(name: str) -> Network:
    return sequences() if name == "sequences" else NETWORKS[name]()


def train(model: nn.Module, optimizer: Optimizer, loss: Any, batches: Batches, recorder: Any, steps: range) -> None:
    for step in steps:
        x, y = batches[step % len(batches)]
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        if recorder is not None:
            recorder.step(value, (x, y))


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().full_tensor() if hasattr(p, "full_tensor") else p.detach().clone() for p in model.parameters()]


def rows_of(recorder: wc.Recorder, quantities: tuple[str, ...] = WHOLE) -> dict[tuple[Any, ...], float]:
    rows = recorder.run.rows()
    return {(row.step, row.layer, row.quantity): row.value for row in rows if row.quantity in quantities}


def trained_twice(rank: int, folder: str) -> dict[str, Any]:
    """Without a recorder and with one; the rows of the latter, and whether both ended the same."""
    results: dict[str, Any] = {}
    for kind, setup in SETUPS.items():
        ends: list[list[Tensor]] = []
        for records in (False, True):
            network = network_of(setup.network)
            own = part_of(network.batches, rank if setup.readers > 1 else 0, setup.readers)
            model = setup.wrap(network.model)
            optimizer = AdamW(model.parameters(), lr=0.01)
            run_dir = Path(folder) / str(rank) / kind
            recorder = wc.Recorder(model, optimizer, network.loss, run_dir, clock=Clock()) if records else None
            train(model, optimizer, network.loss, own, recorder, range(STEPS))
            ends.append([*weights(model), torch.get_rng_state()])
            if recorder is not None:
                recorder.close()
                assert not optimizer._optimizer_step_pre_hooks
                results[kind] = rows_of(recorder), recorder.notes, recorder.problems, run_dir.exists()
        assert all(torch.equal(first, second) for first, second in zip(*ends, strict=True)), kind
    return results


@pytest.mark.slow
def test_rank_0_records_norms_of_whole_parameters_and_nothing_changes(tmp_path: Path) -> None:
    first, second = in_ranks(trained_twice, 2, str(tmp_path))
    for kind, setup in SETUPS.items():
        network = network_of(setup.network)
        optimizer = AdamW(network.model.parameters(), lr=0.01)
        with wc.Recorder(network.model, optimizer, network.loss, clock=Clock()) as recorder:
            train(network.model, optimizer, network.loss, network.batches, recorder, range(STEPS))
        rows, notes, problems, is_written = first[kind]
        expected = rows_of(recorder)
        assert len(rows) > len(expected) / 2, kind
        assert rows == {key: pytest.approx(expected[key], rel=1e-10) for key in rows}, kind
        assert problems == []
        assert is_written
        assert ("rank 0 of 2 processes" if kind == "DDP" else "norms are those of whole parameters") in notes[0]
        assert second[kind][0] == {}, kind
        assert second[kind][2:] == ([], False)


def interrupted_and_resumed(rank: int, folder: str) -> dict[str, Any]:
    """A run of FSDP2 that goes on from a checkpoint of rank 0, which all processes load."""
    network = perceptron()
    own = part_of(network.batches, rank, 2)
    model = in_fsdp(network.model)
    optimizer = AdamW(model.parameters(), lr=0.01)
    with wc.Recorder(model, optimizer, network.loss, clock=Clock()) as recorder:
        train(model, optimizer, network.loss, own, recorder, range(10))
        if rank == 0:
            torch.save(recorder.state_dict(), f"{folder}/state")
        torch.distributed.barrier()
        state = torch.load(f"{folder}/state", weights_only=True)
    with wc.Recorder(model, optimizer, network.loss, clock=Clock()) as recorder:
        recorder.load_state_dict(state)
        train(model, optimizer, network.loss, own, recorder, range(10, STEPS))
    return {"rows": rows_of(recorder), "problems": recorder.problems}


def failing_in_one(rank: int) -> list[str]:
    """A gradient that cannot be read in rank 1: recording ends in both, and training goes on."""
    network = perceptron()
    own = part_of(network.batches, rank, 2)
    model = in_fsdp(network.model)
    optimizer = AdamW(model.parameters(), lr=0.01)
    original, calls = reading.global_norms, []

    def broken(*args: Any) -> Tensor:
        calls.append(args)
        if rank == 1 and len(calls) == 4:
            raise MemoryError("no room")
        return original(*args)

    reading.global_norms = broken
    try:
        with warnings.catch_warnings(), wc.Recorder(model, optimizer, network.loss, clock=Clock()) as recorder:
            warnings.simplefilter("ignore")
            train(model, optimizer, network.loss, own, recorder, range(STEPS))
    finally:
        reading.global_norms = original
    assert int(optimizer.state[next(iter(model.parameters()))]["step"]) == STEPS
    return recorder.problems


def resumed_and_failing(rank: int, folder: str) -> tuple[dict[str, Any], list[str]]:
    return interrupted_and_resumed(rank, folder), failing_in_one(rank)


@pytest.mark.slow
def test_a_resumed_run_goes_on_and_a_failure_in_one_process_ends_recording_in_both(tmp_path: Path) -> None:
    (first, problems), (_, others) = in_ranks(resumed_and_failing, 2, str(tmp_path))
    steps = {step for step, _, _ in first["rows"]}
    assert first["problems"] == []
    assert steps >= set(range(4, STEPS + 1)), sorted(steps)
    assert [problem.partition(", ")[0] for problem in others] == [
        "gradients: MemoryError: no room",
        "recording has ended: LostRank: this process has left the others during Recorder",
    ]
    assert any("recording has ended: LostRank: a process of this training has ended" in each for each in problems)
