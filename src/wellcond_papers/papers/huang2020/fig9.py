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
            "depends on a setting that differs here, or that the source does not name",
            "The second layer alone fails, in one seed. Look by look, κ₅₀ is smaller in 19 of 20 layers at the start, "
            "and in 18, 15 and 15 at losses of 1.18, 0.62 and 0.43 with BN, against 1.92, 1.27 and 1.05 without.",
        ),
        CLAIMS[1].because(
            "gpu",
            "depends on a setting that differs here, or that the source does not name",
            "κ₅₀ of Σ∇h rises as the loss falls, and BN fits faster: it is smaller in 18 of 20 layers at the start, "
            "and in 17, 14 and 14 at losses of 1.18, 0.62 and 0.43, against 1.92, 1.27 and 1.05 without BN. One seed.",
        ),
        *CLAIMS[2:4],
        CLAIMS[4].because(
            "gpu",
            "the paper's claim does not hold here",
            "It fails for Σ∇h at the start, where shortcuts keep the gradients of the plain network within a factor of "
            "5.6 and BN spreads them over 28, and at one later look; it holds for Σx at every look.",
        ),
        *CLAIMS[5:],
    ],
    scales={scale: {**settings, "network": "ResNet"} for scale, settings in fig8.EXPERIMENT.scales.items()},
)
