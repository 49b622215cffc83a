"""What measuring on several processes sends and takes, measured for 1, 2 and 4, and on paper for 8 to 4096.

python -m benchmarks.ranks --sizes 1 2 4 --out benchmarks/results/ranks.json

Processes on gloo, on one machine. Bytes are those that the loopback interface counts, of all processes together; the
paper says 3 (n − 1) P b per product: P parameters of b bytes come to n − 1 processes, and a ring adds up the shares,
which sends 2 (n − 1)/n of them from each.
"""

from __future__ import annotations

import argparse
import json
import socket
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed, multiprocessing, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import wellcond as wc
from benchmarks.timing import environment

FEW, MANY = 4, 24
"""Products of two runs, whose difference is what a product takes."""
REPEATS = 3
STEPS = 60
ON_PAPER = (8, 64, 512, 4096)
MODELS = {"GPT-2 124M": 124e6, "GPT 1.3B": 1.3e9, "GPT 7B": 7e9}
BANDWIDTH, HOP = 25e9, 2e-5
"""Bytes per second and process, and seconds per hop, of the network on paper: 200 Gbit/s and 20 µs."""


def network(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def sent() -> int:
    """Bytes that the loopback interface has sent; 0 where it does not say."""
    file = Path("/sys/class/net/lo/statistics/tx_bytes")
    return int(file.read_text()) if file.exists() else 0


def measured(rank: int, size: int, port: int, width: int, examples: int, out: Path) -> None:
    """Measure in one process of several; rank 0 writes."""
    torch.set_num_threads(1)
    if size > 1:
        store = f"tcp://127.0.0.1:{port}"
        distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    model = network(width)
    parameters = sum(p.numel() for p in model.parameters())
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(examples, 64, generator=generator), torch.randint(10, (examples,), generator=generator)
    batch = x.chunk(size)[rank], y.chunk(size)[rank]
    trained = nn.parallel.DistributedDataParallel(model) if size > 1 else model
    problem = wc.Problem(trained, nn.CrossEntropyLoss(), [batch])
    result: dict[str, Any] = {"processes": size, "parameters": parameters, **products(problem)}
    begin = time.perf_counter()
    wc.diagnose(problem, torch.optim.SGD(trained.parameters(), lr=0.01))
    result["diagnose_seconds"] = time.perf_counter() - begin
    result |= recorded(network(width), batch, size)
    if rank == 0:
        out.write_text(json.dumps(result))
    if size > 1:
        distributed.destroy_process_group()


def products(problem: wc.Problem) -> dict[str, float]:
    """Seconds and bytes of one Hessian product over all batches."""
    costs = []
    for _ in range(REPEATS):
        runs = []
        for most in (FEW, MANY):
            bytes_before, begin = sent(), time.perf_counter()
            count = wc.max_lr(problem, tol=1e-12, confidence=None, max_matvecs=most).matvecs
            runs.append((count, time.perf_counter() - begin, sent() - bytes_before))
        (few, few_seconds, few_bytes), (many, many_seconds, many_bytes) = runs
        more = many - few
        costs.append(((many_seconds - few_seconds) / more, (many_bytes - few_bytes) / more))
    return {"product_seconds": min(s for s, _ in costs), "product_bytes": min(b for _, b in costs)}


def recorded(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor], size: int) -> dict[str, float]:
    """Bytes that a recorder of a sharded model sends from a process, per step of the run and per step that is read."""
    if size > 1:
        fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    recorder = wc.Recorder(model, optimizer, nn.CrossEntropyLoss())
    for _ in range(STEPS):
        optimizer.zero_grad()
        value = nn.functional.cross_entropy(model(batch[0]), batch[1])
        value.backward()
        optimizer.step()
        recorder.step(value, batch)
    team = recorder._ranks.team
    wire = 0 if team is None else sum(team.wire.values())
    read = {row.step for row in recorder.run.rows() if row.quantity == "gradient_norm"}
    recorder.close()
    return {"recorded_bytes_per_step": wire / STEPS, "steps_read": len(read)}


def on_paper(parameters: float, size: int, width: int = 4) -> dict[str, float]:
    """What one product sends and waits on a network, for float32."""
    each = 3 * (size - 1) / size * parameters * width
    hops = size.bit_length() - 1
    return {
        "bytes_from_each": each,
        "bytes_in_all": 3 * (size - 1) * parameters * width,
        "seconds": each / BANDWIDTH + 3 * hops * HOP,
    }


def main() -> None:
    """Run all sizes, and write one file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--examples", type=int, default=256)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/ranks.json"))
    options = parser.parse_args()
    rows = []
    for size in options.sizes:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        one = options.out.with_suffix(f".{size}.part")
        arguments = (size, port, options.width, options.examples, one)
        multiprocessing.spawn(measured, arguments, nprocs=size)
        row = json.loads(one.read_text())
        row["paper_bytes"] = on_paper(row["parameters"], size)["bytes_in_all"]
        one.unlink()
        rows.append(row)
        print(json.dumps(row))
    paper = [{"model": name, "processes": n, **on_paper(p, n)} for name, p in MODELS.items() for n in ON_PAPER]
    results = {"measured": rows, "on paper": paper}
    machine = environment("cpu") | {"time": "wall seconds"}
    options.out.write_text(json.dumps({"environment": machine, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
