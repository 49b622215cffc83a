"""What one look sees in healthy networks: percentiles over families and stages, for rules to read.

python -m benchmarks.verdicts.healthy_zoo            # writes src/wellcond/diagnosis/rules/healthy.json
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import wellcond as wc
from benchmarks.verdicts.controls import CONTROLS
from wellcond.diagnosis.inspection.inspect import inspect
from wellcond.diagnosis.inspection.inspection import Inspection

PATH = Path(__file__).resolve().parents[2] / "src" / "wellcond" / "diagnosis" / "rules" / "healthy.json"
PERCENTILES = (1, 5, 50, 95, 99)
Value = tuple[str, float | None]


def quantities(seen: Inspection) -> Iterator[Value]:
    """Every number of a look that says how healthy a network is, by name; a layer's with its kind."""
    for values in (_of_output(seen), _of_signals(seen), _across_layers(seen), _of_weights(seen), _of_data(seen)):
        for name, value in values:
            if value is not None and math.isfinite(value):
                yield name, float(value)


def _of_output(seen: Inspection) -> Iterator[Value]:
    output = seen.output
    if output is None:
        return
    if seen.loss is not None and output.best_constant:
        yield "loss / loss of the best constant", seen.loss / output.best_constant
    yield "output: RMS", output.rms
    yield "output: variation", output.variation
    yield "output: saturated examples", output.saturated


def _of_signals(seen: Inspection) -> Iterator[Value]:
    first = next((signal for signal in seen.signals if signal.is_weighted), None)
    for signal in seen.signals:
        kind = signal.kind
        if signal.is_weighted:
            yield f"RMS, {kind}", signal.rms
            if signal is not first:
                yield f"variation, {kind}", signal.variation
        if signal.is_nonlinearity and len(signal.dead):
            yield f"dead units, {kind}", signal.dead.float().mean().item()
        if signal.is_nonlinearity and len(signal.full):
            yield f"full units, {kind}", signal.full.float().mean().item()
        yield f"saturated, {kind}", signal.saturated
    for attention in seen.attention:
        yield "attention: entropy", attention.entropy
        yield "attention: largest probability", attention.largest
        yield "attention: saturated rows", attention.saturated
        yield "attention: standard deviation of logits", attention.logit_std
    time = seen.gradient_over_time
    if time is not None and len(time) > 1 and time.max() > 0:
        yield "gradient over time: first / largest", float(time[0] / time.max())
        yield "gradient over time: share of steps above 1 %", float((time > 0.01 * time.max()).float().mean())


def _across_layers(seen: Inspection) -> Iterator[Value]:
    layers = [signal for signal in seen.weighted() if "Embedding" not in signal.kind and signal.rms > 0]
    if len(layers) < 2:
        return
    sizes = [signal.rms for signal in layers]
    yield "RMS: last / first layer", sizes[-1] / sizes[0]
    yield "RMS: largest / smallest layer", max(sizes) / min(sizes)
    felt = [signal.sensitivity for signal in layers if signal.sensitivity]
    if len(felt) > 1:
        yield "sensitivity: first / last layer", felt[0] / felt[-1]
        yield "sensitivity: smallest / largest layer", min(felt) / max(felt)


def _of_weights(seen: Inspection) -> Iterator[Value]:
    for weight in seen.weights:
        yield f"gain, {weight.role}", weight.gain
        if weight.role in ("weight", "recurrent") and weight.gradient is not None and weight.lr and weight.rms:
            yield f"lr · gradient / weight, {weight.role}", weight.lr * weight.gradient / weight.rms


def _of_data(seen: Inspection) -> Iterator[Value]:
    for facts in seen.inputs:
        if facts.features:
            yield "inputs: RMS", facts.rms
            sizes = facts.feature_rms
            if len(sizes) > 1 and sizes.median() > 0:
                yield "inputs: largest / median feature", float(sizes.max() / sizes.median())


def seen_in(name: str) -> list[tuple[str, float]]:
    """The quantities of one healthy network at its initialization, half-trained and trained."""
    control = CONTROLS[name]
    built = control.build()
    result: list[Any] = []
    for steps in (0, control.more // 2, control.more - control.more // 2):
        built.train(steps)
        result += quantities(inspect(wc.Problem(built.model, built.loss, built.loader), built.optimizer))
    return result


def percentiles(networks: Iterable[list[tuple[str, float]]]) -> dict[str, Any]:
    """Over all networks and layers, by quantity."""
    values: dict[str, list[float]] = defaultdict(list)
    count = 0
    for network in networks:
        count += 1
        for name, value in network:
            values[name].append(value)
    table = {
        name: {"count": len(of), "min": _rounded(min(of))}
        | {str(p): _rounded(np.percentile(of, p)) for p in PERCENTILES}
        | {"max": _rounded(max(of))}
        for name, of in sorted(values.items())
    }
    return {"made by": "python -m benchmarks.verdicts.healthy_zoo", "networks": count, "quantities": table}


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PATH)
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = [name for name, control in CONTROLS.items() if not control.steps]
    result = []
    for name in names:
        result.append(seen_in(name))
        print(f"[{len(result)}/{len(names)}] {name}", flush=True)
    options.out.write_text(json.dumps(percentiles(result), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"in {options.out}")


if __name__ == "__main__":
    main()
