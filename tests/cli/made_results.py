"""Results written by hand, whose printed form does not depend on the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from made_findings import DEAD, NOTE, UNSCALED, VANISHING
from torch import Tensor

from wellcond.curvature.kronecker.matrix_conditioning import Conditioning
from wellcond.curvature.spectra.eigenvalues import Eigenvalues
from wellcond.diagnosis.budget import PartName
from wellcond.diagnosis.diagnosis import Diagnosis
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.magnitudes import Gradients
from wellcond.diagnosis.parts import Part
from wellcond.learning_rate.limits.limits import MaxLearningRate
from wellcond.measurements.layers.conditioning import ConditioningTable, LayerConditioning
from wellcond.measurements.layers.neurons import LayerNeurons, NeuronTable
from wellcond.problem.problem import Problem
from wellcond.results import Cost
from wellcond.treatment.arm import Arm
from wellcond.treatment.judged_run import Check, JudgedRun
from wellcond.treatment.treatment import Treatment

COST = Cost(forwards=6, backwards=3, matvecs=20, product_passes=40)

PARTS = (
    Part(PartName.INSPECTION, "measured", 4.0, Cost(forwards=3, backwards=3), 0.0123),
    Part(PartName.GRADIENTS, "measured", 2.0, Cost(forwards=3, backwards=1), 0.0123),
    Part(PartName.CONDITIONING, "measured", 5.0, Cost(forwards=1, backwards=1), 1.5),
    Part(PartName.HESSIAN_EIGENVALUES, "measured", 30.0, Cost(1, 1, 8, 16.0), 200.0),
    Part(PartName.SMALLEST_EIGENVALUE, "left out", 0.0, Cost(), 0.0, 'budget="full" measures it'),
)


def _layer(name: str, inputs: Sequence[float], gradients: Sequence[float]) -> LayerConditioning:
    x, g = torch.tensor(inputs, dtype=torch.float64), torch.tensor(gradients, dtype=torch.float64)
    shares = (0.2, 0.5, 0.8, 1.0)
    matrices = Conditioning.of(x, shares), Conditioning.of(g, shares)
    return LayerConditioning(name, "Linear", *matrices, "", (x[None], g[None]), torch.float64)


def _units(name: str, dying: Sequence[int], full: Sequence[int]) -> LayerNeurons:
    return LayerNeurons(name, torch.tensor(dying, dtype=torch.bool), torch.tensor(full, dtype=torch.bool))


def _values(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


FINDINGS = (
    replace(UNSCALED, consequences=(VANISHING,)),
    replace(DEAD, layer=":ok:[red]"),
    replace(NOTE, layer="head"),
)
"""A cause with a consequence, a warning and a note."""


def diagnosis(scale: float = 1.0, lr: float | None = 0.05) -> Diagnosis:
    """Three layers, one with a name that means something to a terminal, and a norm that is not covered."""
    layers = {
        "fc1": _layer("fc1", (8.0, 4.0, 2.0, 1.0), (1e-6 * scale, 1e-7, 1e-8, 1e-9)),
        ":ok:[red]": _layer(":ok:[red]", (1.0, 0.5, 0.25, 0.0), (1e-3 * scale, 1e-4, 1e-5, 1e-6)),
        "head": _layer("head", (0.015625, 0.0, 0.0, 0.0), (1.0, 0.5)),
    }
    neurons = {
        "fc1": _units("fc1", (0, 0, 0, 0), (0, 0, 0, 1)),
        ":ok:[red]": _units(":ok:[red]", (1, 1, 1, 0), (0, 0, 0, 0)),
    }
    missing = {"bn": "BatchNorm1d scales each feature by itself; it has no Σx ⊗ Σ∇h"}
    numerator, largest = 3.8, 4.0
    ends = Eigenvalues(_values(-0.5, largest), _values(0.01, 0.02), _values(), 20, True, "converged", 0.01, "both")
    limit = numerator, largest, 0.02, True, 0
    evidence = Evidence(
        Problem(torch.nn.Linear(1, 1), torch.nn.MSELoss(), (torch.ones(2, 1), torch.ones(2, 1))),
        conditioning=ConditioningTable(layers, missing, "batch", "position", "data", Cost()),
        neurons=NeuronTable(neurons, 512, Cost()),
        hessian=ends,
        gradients=Gradients(2.302585, {"fc1": 1e-4, ":ok:[red]": 1e-2, "head": 0.5}),
        weights={"fc1": 2.0, ":ok:[red]": 2.0, "head": 1.0},
        max_lr=MaxLearningRate(*limit, "H", 0.9, None if lr is None else "SGD", lr, (), (), "batch", COST, ()),
    )
    return Diagnosis(
        findings=FINDINGS,
        evidence=evidence,
        parameters=50,
        lr=lr,
        about={"model": "Sequential", "batchnorm": "the model has none"},
        failed={"Hessian trace": "the product with [the] Hessian is NaN"},
        cost=COST,
        parts=PARTS,
        modules={"": "Sequential", "fc1": "Linear", ":ok:[red]": "ReLU", "bn": "BatchNorm1d", "head": "Linear"},
    )


def treatment() -> Treatment:
    """A remedy that helps, one that only went through the screening, and one that is refused."""

    def runs(lr: float, finals: Sequence[float], begin: float = 2.3) -> dict[float, dict[int, JudgedRun]]:
        """Twenty steps of each seed: the first half at the start, the second at the end."""
        return {lr: {seed: run(begin, final) for seed, final in enumerate(finals)}}

    def run(begin: float, final: float) -> JudgedRun:
        held_out = tuple(final + 0.01 * k for k in range(8))
        losses = [begin] * 10 + [final] * 10
        return JudgedRun(losses, checks=(Check(20, held_out, held_out),), seconds=0.002, memory=3 * 2**20)

    code = 'nn.init.kaiming_normal_(model[0].weight)\noptimizer.param_groups[0]["lr"] = {lr}'
    arms = {
        "untreated": Arm("untreated", runs(0.1, (2.30, 2.31, 2.29)), code='optimizer.param_groups[0]["lr"] = {lr}'),
        "he": Arm("he", runs(0.3, (0.41, 0.39, 0.47)), code=code, found_by=("vanishing-gradient",)),
        "bnp": Arm("bnp", runs(0.1, (1.9, 1.8, 2.0)), code="wc.BNP(model, optimizer)", is_random=True),
        "clipping": Arm("clipping", screened=2.3),
        "last-bn": Arm("last-bn", refused="the model has several last linear layers: ':ok:', '[red]'."),
    }
    return Treatment(
        arms, (0, 1, 2), 20, 5, COST, 4000.0, "100 held-out examples (one in 5)", 2.3, notes=("three seeds are few.",)
    )
