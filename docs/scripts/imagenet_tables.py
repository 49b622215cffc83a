"""Tables of what the experiments on ImageNet would cost, from the measured steps of their networks."""

from __future__ import annotations

from typing import Any

from committed import gib, read, table

from benchmarks.imagenet_steps import SHARE, WHOLE, settings_of
from wellcond_papers.experiments.catalog import experiment, names
from wellcond_papers.experiments.experiment import TRAINING_IMAGES, Settings

PRECISION = "TF32"
"""That of the scale "paper"."""


def imagenet_steps() -> str:
    """Time and memory of a step of every network, and the hours of a whole training."""
    steps = _steps()
    networks = dict.fromkeys(network for network, _, _ in steps)
    rows = [
        [network, precision, *_cost(steps[network, precision, WHOLE]), *_cost(steps[network, precision, SHARE])]
        for network in networks
        for precision in dict.fromkeys(precision for _, precision, _ in steps)
    ]  # fmt: skip
    head = ["network", "precision", f"step of {WHOLE} images", "memory", "training on 1 GPU", f"step of {SHARE}",
            "memory", "training on 8 GPUs"]  # fmt: skip
    return table(head, rows)


def imagenet_experiments() -> str:
    """The hours of every experiment at the scale "paper"."""
    steps = _steps()
    rows = []
    for name in names():
        if "imagenet" not in experiment(name).data("paper"):
            continue
        networks = [network_of(cell.settings) for cell in experiment(name).cells("paper")]
        totals = [
            sum(hours(steps[network, precision, batch]["ms"], network) for network in networks)
            for precision in (PRECISION, "bfloat16")
            for batch in (WHOLE, SHARE)
        ]
        rows.append([f"`{name}`", str(len(networks)), *map(in_words, totals)])
    head = ["experiment", "runs", f"{PRECISION}, 1 GPU", "8 GPUs", "bfloat16, 1 GPU", "8 GPUs"]
    return table(head, rows)


def network_of(settings: Settings) -> str:
    """The measured network that a cell trains; dropout and weight decay cost nothing."""
    if settings.get("method") in ("GN", "BNP+GN"):
        return f"ResNet-18 with {settings['method'].replace('+', ' and ')}"
    if settings.get("norm") == "none":
        return "ResNet-18 without a norm"
    return f"ResNet-{settings['depth']}{'-LastBN' if settings.get('last_norm') else ''}"


def hours(ms: float, network: str) -> float:
    """Of a whole training: its epochs, times steps an epoch, times the time of a step."""
    settings = settings_of(network)
    steps = settings["epochs"] * TRAINING_IMAGES["imagenet"] / settings["batch"]
    return float(steps * ms / 3.6e6)


def in_words(value: float) -> str:
    """Hours, or days if they are many."""
    return f"{value:.1f} h" if value < 48 else f"{value / 24:.1f} days"


def _steps() -> dict[tuple[str, str, int], dict[str, Any]]:
    rows = read("imagenet_steps_cuda")["results"]
    return {(row["network"], row["precision"], row["batch"]): row for row in rows}


def _cost(row: dict[str, Any]) -> list[str]:
    return [f"{row['ms']:.1f} ms", gib(row["peak_memory_GiB"]), in_words(hours(row["ms"], row["network"]))]
