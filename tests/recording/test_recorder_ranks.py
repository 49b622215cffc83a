"""Two processes that train one model: rank 0 records what one process with all the data would, and nothing changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from loops import Clock
from ranks import in_ranks
from torch import Tensor, distributed, nn

import wellcond as wc
from wellcond.recording.ranks import RecorderRanks

SIZE, STEPS = 2, 12
loss_function = nn.MSELoss()

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (distributed.is_available() and distributed.is_gloo_available()), reason="needs gloo"),
]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(16, 4, generator=generator), torch.randn(16, 2, generator=generator)) for _ in range(STEPS)]


def trained(kind: str, rank: int, folder: Path | None) -> dict[str, Any]:
    """A training in one process of two, or in one alone; with a recorder if there is a folder."""
    model: nn.Module = network()
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif kind == "sharded":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (SIZE,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    clock = Clock()
    rec = None
    if folder is not None:
        rec = wc.Recorder(model, optimizer, loss_function, run_dir=folder, budget=1.0, clock=clock)
    for x, y in batches():
        part = (x, y) if kind == "alone" else (x.chunk(SIZE)[rank], y.chunk(SIZE)[rank])
        optimizer.zero_grad()
        value = loss_function(model(part[0]), part[1])
        value.backward()
        optimizer.step()
        clock.now += 1.0
        if rec is not None:
            rec.step(value, part)
    weights = [p.full_tensor() if kind == "sharded" else p for p in model.parameters()]  # type: ignore[attr-defined]
    result: dict[str, Any] = {"weights": [w.detach().clone() for w in weights]}
    if rec is not None:
        rec.close()
        result |= {"rows": [tuple(row) for row in rec.run.rows()], "notes": rec.notes, "problems": rec.problems}
    return result


def trained_in_all_ways(rank: int, folder: Path) -> None:
    for kind in ("ddp", "sharded"):
        without = trained(kind, rank, None)
        with_it = trained(kind, rank, folder / f"{kind} {rank}")
        torch.save(with_it | {"without": without["weights"]}, folder / f"{kind} {rank}.pt")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each process has of each kind of training, and one process alone."""
    folder = tmp_path_factory.mktemp("ranks")
    in_ranks(trained_in_all_ways, SIZE, folder)
    names = [f"{kind} {rank}" for kind in ("ddp", "sharded") for rank in range(SIZE)]
    every: dict[str, Any] = {name: torch.load(folder / f"{name}.pt", weights_only=True) for name in names}
    return every | {"alone": trained("alone", 0, folder / "alone"), "folder": folder}


def series(result: dict[str, Any], quantity: str, layer: str = "") -> dict[int, float]:
    return {step: value for step, where, what, value, _ in result["rows"] if (where, what) == (layer, quantity)}


KINDS = pytest.mark.parametrize("kind", ["ddp", "sharded"])


@KINDS
def test_the_weights_of_all_ranks_are_those_without_a_recorder(results: dict[str, Any], kind: str) -> None:
    for rank in range(SIZE):
        result = results[f"{kind} {rank}"]
        assert all(map(torch.equal, result["weights"], result["without"]))
        assert result["problems"] == []


@KINDS
@pytest.mark.parametrize("quantity", ["gradient_norm", "weight_norm", "update_ratio"])
def test_rank_0_records_norms_of_the_whole_model(results: dict[str, Any], kind: str, quantity: str) -> None:
    """To rounding: gradients of two halves of a batch are averaged in another order than those of all of it."""
    for layer in ("", "0", "2", "4"):
        expected = series(results["alone"], quantity, layer)
        recorded = series(results[f"{kind} 0"], quantity, layer)
        both = sorted(recorded.keys() & expected.keys())
        assert len(both) >= 3
        assert [recorded[step] for step in both] == pytest.approx([expected[step] for step in both], rel=1e-5)


@KINDS
def test_other_ranks_record_and_write_nothing(results: dict[str, Any], kind: str) -> None:
    assert results[f"{kind} 1"]["rows"] == []
    assert not (results["folder"] / f"{kind} 1").exists()
    run = wc.read_run(results["folder"] / f"{kind} 0")
    assert (run.status, run.last_step) == ("ended", STEPS)


def test_what_is_left_out_is_said(results: dict[str, Any]) -> None:
    assert "rank 0 of 2 processes" in results["ddp 0"]["notes"][0]
    assert "sharded over 2 processes" in results["sharded 0"]["notes"][0]
    assert series(results["ddp 0"], "hessian_lambda_max")
    assert not series(results["sharded 0"], "hessian_lambda_max")
    assert series(results["sharded 0"], "signal_rms", "0")


def test_one_process_is_its_own_writer() -> None:
    ranks = RecorderRanks(network())
    assert (ranks.size, ranks.is_writer, ranks.is_idle, ranks.can_probe, ranks.notes) == (1, True, False, True, [])
    assert ranks.agreed("everything") == "everything"
