"""Figure III of huang2020: figures I and II for a 4-layer MLP with 24 units a layer."""

from __future__ import annotations

from wellcond_papers.papers.huang2020.fisher import experiment

EXPERIMENT = experiment(
    "fig3",
    "Fisher matrix and second moment of gradients, 4-layer MLP, 24 units",
    "Shows the matrices of figures I and II for a 4-layer MLP, without a word on what follows.",
    ["F", "M"],
    {"depth": 4, "units": 24},
    {"F": 540, "M": 2500},
    tied={
        "F": "λ_max depends on the seed with so few layers: BN has 1.75 and 2.03 times as much in two seeds; the plain "
        "network of the third has 4 times the λ_max of the other two, and BN 0.57 times that. κ_p is smaller with BN "
        "in all seeds.",
        "M": "λ_max depends on the seed with so few layers: in layer 3 BN has 2.97, 2.60 and 0.57 times as much, and "
        "in the whole 3.33, 2.66 and 0.78 times.",
    },
    minutes={"smoke": 0.02, "laptop": 0.7, "paper": 1.0},
)
