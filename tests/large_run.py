"""A run directory of millions of rows, written as a long training leaves it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from wellcond.recording.directory.run_directory import ROWS, RunDirectory
from wellcond.recording.directory.segments import write_segment
from wellcond.results import quantities as q

NAMES = (q.GRADIENT_NORM, q.UPDATE_RATIO, q.SIGNAL_RMS, q.WEIGHT_NORM)
SEGMENT_ROWS = 250_000


def write_large_run(folder: Path, rows: int, layers: int = 200) -> None:
    """At every tenth step four quantities of all layers, and the loss at every step."""
    model = [{"name": "", "type": "Net", "parameters": layers}]
    model += [{"name": f"layers.{i}", "type": "Linear", "parameters": 1} for i in range(layers)]
    RunDirectory.open(folder, {"model": model, "optimizer": {"class": "SGD", "lr": 0.1}}).close()
    random = np.random.default_rng(0)
    layer_names, quantities = [f"layers.{i}" for i in range(layers)] + [""], [*NAMES, q.TRAINING_LOSS]
    layer = np.concatenate([np.tile(np.arange(layers), len(NAMES)), np.full(10, layers)]).astype(np.int32)
    quantity = np.concatenate([np.repeat(np.arange(len(NAMES)), layers), np.full(10, len(NAMES))]).astype(np.int32)
    offset = np.concatenate([np.full(layers * len(NAMES), 9), np.arange(10)])
    order = np.argsort(offset, kind="stable")
    block = len(order)
    blocks = max(SEGMENT_ROWS // block, 1)
    for number, first in enumerate(range(0, rows // block, blocks), start=1):
        count = min(blocks, rows // block - first)
        steps = np.concatenate([1 + 10 * (first + i) + offset[order] for i in range(count)])
        loss = 0.2 + 2 * np.exp(-steps / 30_000)
        columns = {
            "time": 1.7e9 + np.repeat(np.arange(first, first + count), block).astype(float),
            "step": steps,
            "layer": pa.DictionaryArray.from_arrays(np.tile(layer[order], count), layer_names),
            "quantity": pa.DictionaryArray.from_arrays(np.tile(quantity[order], count), quantities),
            "value": (loss * np.exp(0.1 * random.normal(size=len(steps)))).astype(np.float32).astype(float),
            "unit": pa.DictionaryArray.from_arrays(np.zeros(len(steps), np.int32), [""]),
        }
        write_segment(folder / ROWS, number, number, pa.table(columns))
