"""The learning rates that lange2022 prints as the best: Tables 2 and 3."""

from __future__ import annotations

from collections.abc import Mapping

from wellcond_papers.experiments.experiment import Settings

TABLE_2: Mapping[str, dict[str, float]] = {
    "MNIST, batch 60": {"vanilla": 0.1, "BN": 0.5, "BNP": 0.5, "LN": 0.1},
    "CIFAR-10, batch 60": {"vanilla": 0.01, "BN": 0.5, "BNP": 0.1, "LN": 0.5},
    "CIFAR-10, batch 6": {"vanilla": 5e-3, "BN": 0.05, "BNP": 0.05, "Renorm": 0.05, "LN": 0.05},
    "CIFAR-10, batch 1": {"vanilla": 5e-4, "BNP": 0.1, "LN": 0.01},
}
"""Best learning rates for fully connected networks."""
TABLE_3: Mapping[str, dict[str, float]] = {
    "CNN, batch 128": {"vanilla": 0.1, "BN": 0.1, "BNP": 0.1, "4 things": 5e-3},
    "CNN, batch 2": {"vanilla": 1e-3, "BN": 1e-3, "BNP": 0.01, "4 things": 1e-4, "Renorm": 0.01},
    "CNN, batch 1": {"vanilla": 1e-3, "BNP": 0.1, "4 things": 1e-3},
    "ResNet-110, CIFAR-10": {"BN": 0.1, "BNP": 0.1, "BNP+GN": 0.1, "GN": 0.1},
    "PreResNet-110, CIFAR-100": {"BN": 0.1, "BNP": 0.01, "BNP+GN": 0.1, "GN": 0.1},
    "ResNet-18, ImageNet": {"BN": 0.1, "BNP+GN": 0.1, "GN": 0.1},
}
"""Best learning rates for convolutional networks."""


def at_rates(rates: Mapping[str, float]) -> dict[str, Settings]:
    """The settings of methods that differ in the learning rate alone.

    Example:
        >>> at_rates({"BNP": 0.5})
        {'BNP': {'lr': 0.5}}
    """
    return {method: {"lr": lr} for method, lr in rates.items()}


def around(rate: float, each_side: int) -> list[float]:
    """A rate and its neighbors among 1 and 5 times the powers of ten, which all printed rates are.

    Example:
        >>> around(0.05, 2)
        [0.005, 0.01, 0.05, 0.1, 0.5]
    """
    grid = [float(f"{digit}e{power}") for power in range(-7, 3) for digit in (1, 5)]
    place = grid.index(rate)
    return grid[place - each_side : place + each_side + 1]
