"""Figure II of huang2020: figure I with M, the second moment of the gradients of single examples, in place of F."""

from __future__ import annotations

from wellcond_papers.papers.huang2020.fig1 import NETWORK
from wellcond_papers.papers.huang2020.fisher import experiment

EXPERIMENT = experiment(
    "fig2",
    "Full second moment of gradients and those of the layers, 8-layer MLP, plain and BN",
    "The second moment M of the gradients of single examples gives the same observation as the Fisher matrix. The "
    "authors believe that the largest eigenvalue of a sub-Hessian can also indicate the magnitude of a layer's "
    "weight-gradient; it has negative eigenvalues.",
    ["F", "M", "H"],
    NETWORK,
    {"F": 400, "M": 3600, "H": 400},
    minutes={"smoke": 0.03, "laptop": 0.5, "paper": 1.5},
)
