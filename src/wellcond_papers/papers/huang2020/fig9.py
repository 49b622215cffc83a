"""Figure IX of huang2020: the layers of a 20-layer residual network, with and without BN, on CIFAR-10."""

from __future__ import annotations

from dataclasses import replace

from wellcond_papers.papers.huang2020 import fig8
from wellcond_papers.papers.huang2020.layers_over_training import CLAIMS

EXPERIMENT = replace(
    fig8.EXPERIMENT,
    name="huang2020-fig9",
    title="Conditioning of the layers of a residual network, with and without BN",
    claims=[
        CLAIMS[0].because(
            "gpu",
            "too short to tell",
            "After 10 of 160 epochs, of one seed: κ₅₀ is smaller in all layers at the start, and "
            "in 18, 15 and 15 of 19 later; at about one loss, 1.18 with BN and 1.05 to 1.27 without, in 13 or 14.",
        ),
        CLAIMS[1].because(
            "gpu",
            "too short to tell",
            "After 10 of 160 epochs: κ₅₀ is smaller in 17 of 19 layers at the start, and in 17, 14 and 14 at the "
            "later looks. At about one loss, 1.18 with BN and 1.05 to 1.27 without, it is smaller in 7, so that BN "
            "fits faster is not the reason. One seed.",
        ),
        *CLAIMS[2:4],
        CLAIMS[4].because(
            "gpu",
            "our claim does not hold here",
            "It fails for Σ∇h at the start, where shortcuts keep the gradients of the plain network within a factor of "
            "5.6 and BN spreads them over 28, and at one later look; it holds for Σx at every look.",
        ),
        *CLAIMS[5:],
    ],
    scales={scale: {**settings, "network": "ResNet"} for scale, settings in fig8.EXPERIMENT.scales.items()},
)
