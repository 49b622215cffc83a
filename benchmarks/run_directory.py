"""What a run directory takes: appends, a year of recording at its default bound, reading, and other readers meanwhile.

python -m benchmarks.run_directory                      # about five minutes
python -m benchmarks.run_directory --only appends       # some parts
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas

from benchmarks.timing import environment
from wellcond.recording.directory.run_directory import MAX_BYTES, RunDirectory
from wellcond.recording.run import read_run
from wellcond.results import Row

RESULT = Path(__file__).parent / "results" / "run_directory_cpu.json"
LAYERS = [f"blocks.{i // 10}.layer{i % 10}" for i in range(2000)]
QUANTITIES = ["gradient_norm", "weight_norm", "update_ratio", "signal_rms", "dead_share", "lr", "a", "b"]
YEAR = 365 * 24 * 3600.0


def network_rows(step: int, values: np.ndarray[Any, Any], layers: list[str] = LAYERS) -> list[Row]:
    """One number for each quantity of each layer."""
    names = ((layer, quantity) for layer in layers for quantity in QUANTITIES)
    return [
        Row(step, layer, quantity, value, "") for (layer, quantity), value in zip(names, values.tolist(), strict=True)
    ]


def appends(folder: Path) -> dict[str, Any]:
    """2000 appends of 320 rows."""
    generator = np.random.default_rng(0)
    directory = RunDirectory.open(folder, {})
    lines = [network_rows(step, generator.lognormal(size=320), LAYERS[:40]) for step in range(1, 2001)]
    wall, cpu = [], []
    for rows in lines:
        begin = time.perf_counter(), time.process_time()
        directory.append(rows)
        wall.append(time.perf_counter() - begin[0])
        cpu.append(time.process_time() - begin[1])
    directory.close()
    files = len(list((folder / "rows").iterdir()))
    return {"rows per append": 320, "wall ms": milliseconds(wall), "cpu ms": milliseconds(cpu), "files": files}


def year(folder: Path, millions: int = 40) -> dict[str, Any]:
    """A year of a 2000-layer network at the default bound, every value a double without structure."""
    generator = np.random.default_rng(0)
    steps = millions * 1_000_000 // (len(LAYERS) * len(QUANTITIES))
    start = time.monotonic()
    with mock.patch("time.monotonic", return_value=start) as clock:
        directory = RunDirectory.open(folder, {})
        largest = most_files = 0
        wall, cpu = [], []
        for step in range(1, steps + 1):
            clock.return_value = start + YEAR * step / steps
            rows = network_rows(step, generator.lognormal(size=len(LAYERS) * len(QUANTITIES)))
            begin = time.perf_counter(), time.process_time()
            directory.append(rows)
            wall.append(time.perf_counter() - begin[0])
            cpu.append(time.process_time() - begin[1])
            if step % 10 == 0:
                sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
                largest, most_files = max(largest, sum(sizes)), max(most_files, len(sizes))
        directory.close()
    begin = time.process_time()
    run = read_run(folder)
    seconds = time.process_time() - begin
    series = run.history.series(QUANTITIES[0], LAYERS[0]).steps
    gaps = np.diff(series)
    return {
        "rows written": steps * len(LAYERS) * len(QUANTITIES),
        "rows left": len(run.history),
        "bound, bytes": MAX_BYTES,
        "largest size, bytes": largest,
        "most files": most_files,
        "append of 16000 rows, wall ms": milliseconds(wall),
        "append of 16000 rows, cpu ms": milliseconds(cpu),
        "read, cpu s": seconds,
        "days": run.seconds / 86400,
        "first and last step": [int(series[0]), int(series[-1])],
        "distances of its steps": {str(gap): int((gaps == gap).sum()) for gap in np.unique(gaps)},
    }


def reading(folder: Path) -> dict[str, Any]:
    """Ten million rows of a 2000-layer network, in float32 as most statistics are."""
    generator = np.random.default_rng(0)
    directory = RunDirectory.open(folder, {})
    for step in range(1, 626):
        directory.append(network_rows(step, generator.lognormal(size=16000).astype(np.float32).astype(np.float64)))
    directory.close()
    wall, cpu = [], []
    for _ in range(5):
        begin = time.perf_counter(), time.process_time()
        run = read_run(folder)
        wall.append(time.perf_counter() - begin[0])
        cpu.append(time.process_time() - begin[1])
    return {
        "rows": len(run.history),
        "bytes": directory.size,
        "wall ms": milliseconds(wall),
        "cpu ms": milliseconds(cpu),
    }


def meanwhile(folder: Path, duration: float = 20.0) -> dict[str, Any]:
    """What readers see while a process appends without a pause, which is a thousand times what a recorder does."""
    RunDirectory.open(folder, {}).close()
    writer = multiprocessing.get_context("spawn").Process(target=_write_for_ever, args=(folder,))
    writer.start()
    while not read_run(folder).last_step:
        time.sleep(0.1)
    plain, ours = Counter[str](), Counter[str]()
    end = time.monotonic() + duration
    while time.monotonic() < end:
        plain[_outcome(lambda: pandas.read_parquet(folder / "rows")["step"].to_numpy())] += 1
        ours[_outcome(lambda: read_run(folder).history.series("lr").steps)] += 1
    writer.kill()
    writer.join()
    last = read_run(folder).last_step
    return {"appends": last, "seconds": duration, "pandas": dict(plain), "read_run": dict(ours)}


def _write_for_ever(folder: Path) -> None:
    directory = RunDirectory.open(folder, {}, max_bytes=2**24)
    step = 0
    while True:
        step += 1
        directory.append([Row(step, "", "lr", float(step), "")])


def _outcome(read: Callable[[], Any]) -> str:
    try:
        steps = np.sort(read())
    except FileNotFoundError:
        return "a file was gone"
    gaps = np.diff(steps)
    if (gaps == 0).any():
        return "rows twice"
    return "right" if (gaps == 1).all() and steps[0] == 1 else "rows missing"


def milliseconds(seconds: list[float]) -> dict[str, float]:
    """Median, mean and tail."""
    values = 1e3 * np.array(seconds)
    tail = {f"{q} %": np.percentile(values, q) for q in (50, 90, 99, 100)}
    return {name: round(float(value), 2) for name, value in {"mean": values.mean(), **tail}.items()}


PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "appends": appends,
    "reading": reading,
    "meanwhile": meanwhile,
    "year": year,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    results = {}
    for part in parser.parse_args().only:
        with tempfile.TemporaryDirectory() as folder:
            results[part] = PARTS[part](Path(folder) / "run")
        print(part, json.dumps(results[part], indent=1), flush=True)
    if results.keys() == PARTS.keys():
        RESULT.write_text(json.dumps({"environment": environment("cpu"), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
