"""The methods of Table 1 of zhang2018: their accuracies and rates as printed, and the pools of the rates."""

from __future__ import annotations

from typing import Any

from wellcond_papers.papers.zhang2018.training import AMENDED, DATA, OWN_RATE

DEPTHS = (11, 13, 16, 19)
PRINTED = f"{AMENDED}, lr 0.1"
"""Scale-amended SGD on CIFAR-10 at the rate of Table 1; figure 1 has 0.005 there. On CIFAR-100 both have 0.1."""
TRUSTED = "LARS, coefficient 0.001"
"""LARS as its authors use it; as zhang2018 prints it, every step moves a weight by twice its norm."""
RIVALS = ("SGD", "LARS", "LSALR")
METHODS = ("SGD", "LARS", TRUSTED, "LSALR", AMENDED, PRINTED)
PAPER = {
    "CIFAR-10": {
        "SGD": (92.34, 93.90, 93.72, 93.47),
        "LARS": (91.81, 93.40, 93.47, 93.48),
        "LSALR": (92.58, 93.68, 93.35, 93.46),
        PRINTED: (92.45, 94.11, 93.90, 93.88),
    },
    "CIFAR-100": {
        "SGD": (71.84, 74.07, 72.86, 71.35),
        "LARS": (67.26, 70.35, 69.90, 69.52),
        "LSALR": (71.14, 73.74, 73.14, 70.76),
        AMENDED: (73.39, 75.32, 74.68, 72.82),
    },
}
"""Per cent, the median of three runs, at each depth."""
CHOSEN = {"SGD": 0.1, "LSALR": 0.1, "LARS": 2.0}
"""The rate of each baseline, which the source found the best of its pool."""
POOLS = {
    "SGD": (0.01, 0.05, 0.1, 0.2, 0.5),
    "LSALR": (0.006, 0.05, 0.1, 0.2, 0.5),
    "LARS": (0.1, 1.0, 2.0, 5.0, 10.0),
}
POOLED = "VGG-11, CIFAR-10"
"""Where the rates of the pools are compared; the source does not say where it did."""


def pool(method: str) -> dict[float, str]:
    """The arm of every rate in the pool of a baseline."""
    return {
        rate: f"{POOLED}, {method}" + (f", lr {rate:g}" if rate != CHOSEN[method] else "") for rate in POOLS[method]
    }


def _settings(method: str, data: str) -> dict[str, Any]:
    if method in (AMENDED, PRINTED):
        return {"method": AMENDED, "lr": OWN_RATE[data] if method == AMENDED else 0.1, "weight_decay": 5e-3}
    if method in ("LARS", TRUSTED):
        return {"method": "LARS", "lr": 2.0, "weight_decay": 1e-3, "trust": 1.0 if method == "LARS" else 1e-3}
    return {"method": method, "lr": 0.1, "weight_decay": 1e-3}


ARMS = {
    f"VGG-{depth}, {data}, {method}": {"depth": depth, "data": DATA[data], **_settings(method, data)}
    for data in DATA
    for depth in DEPTHS
    for method in METHODS
    if method != PRINTED or OWN_RATE[data] != 0.1
}
ARMS |= {
    arm: ARMS[f"{POOLED}, {method}"] | {"lr": rate}
    for method in POOLS
    for rate, arm in pool(method).items()
    if arm not in ARMS
}
