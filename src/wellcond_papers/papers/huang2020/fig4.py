"""Figure IV of huang2020: figure III with 36 units a layer."""

from __future__ import annotations

from wellcond_papers.papers.huang2020.fisher import experiment

EXPERIMENT = experiment(
    "fig4",
    "Fisher matrix and second moment of gradients, 4-layer MLP, 36 units",
    "Shows the matrices of figures I and II for a wider 4-layer MLP, without a word on what follows.",
    ["F", "M"],
    {"depth": 4, "units": 36},
    {"F": 560, "M": 4100},
    tied={
        "F": "λ_max depends on the seed with so few layers: in the whole BN has 1.57, 1.36 and 0.89 times as much, in "
        "layers 2 and 3 1.84, 1.30, 0.90 and 1.39, 0.78, 0.69 times. κ_p is smaller with BN in all seeds.",
    },
    minutes={"smoke": 0.03, "laptop": 1.0, "paper": 1.5},
)
