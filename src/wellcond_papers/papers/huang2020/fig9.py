"""Figure IX of huang2020: the layers of a 20-layer residual network, with and without BN, on CIFAR-10."""

from __future__ import annotations

from dataclasses import replace

from wellcond_papers.papers.huang2020 import fig8

EXPERIMENT = replace(
    fig8.EXPERIMENT,
    name="huang2020-fig9",
    title="Conditioning of the layers of a residual network, with and without BN",
    scales={scale: {**settings, "network": "ResNet"} for scale, settings in fig8.EXPERIMENT.scales.items()},
)
