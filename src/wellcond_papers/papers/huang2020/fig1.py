"""Figure I of huang2020: the Fisher matrix of an 8-layer MLP, whole and layer by layer, plain and with BN."""

from __future__ import annotations

from wellcond_papers.papers.huang2020.fisher import experiment

NETWORK = {"depth": 8, "units": 24}

EXPERIMENT = experiment(
    "fig1",
    "Full Fisher matrix and those of the layers, 8-layer MLP, plain and BN",
    "Shows λ_max and κ_p of the full Fisher matrix and of every layer's at random initialization. What follows is in "
    "Section 3 of the paper, which the supplement does not repeat; that BN can improve the layer-wise conditioning is "
    "in its abstract.",
    ["F"],
    NETWORK,
    {"F": 640},
    minutes={"smoke": 0.04, "laptop": 0.6, "paper": 1.0},
)
