"""Causes that are severe because the trial shows that nothing is learned, and the same where it is learned."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import wellcond as wc
from wellcond.diagnosis.after_runs import HeldOut
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.labels import Relation, Slow
from wellcond.diagnosis.probes.behavior import Behavior
from wellcond.diagnosis.rules.ill_conditioned_input import _severity
from wellcond.diagnosis.rules.labels_unrelated import _are_no_partners
from wellcond.diagnosis.severity import of_symptom
from wellcond.diagnosis.trial_result import Attempt, Trial
from wellcond.results.run import Run

X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
PROBLEM = wc.Problem(nn.Linear(4, 1), nn.MSELoss(), (X, X[:, :1]))


def attempts(*losses: float) -> list[Attempt]:
    return [
        Attempt(10.0**k, 0.01 * 10**k, Run((loss,) * 60), (loss,) * 4, (loss,) * 4) for k, loss in enumerate(losses)
    ]


def evidence(*losses: float, before: float = 1.0, **more: object) -> Evidence:
    own, *others = attempts(*losses)
    trial = Trial((before,) * 4, 1.0, own, tuple(others))
    return Evidence(PROBLEM, None, trial=replace(trial, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("losses", "rest", "severity"),
    [((0.98, 0.99, 1.1), 0.9, "severe"), ((0.98, 0.99, 1.1), 0.2, "warning"), ((0.98, 0.5, 1.1), 0.9, "warning")],
    ids=["nothing at any rate", "a small part", "learned at another rate"],
)
def test_slow_directions(losses: tuple[float, ...], rest: float, severity: str) -> None:
    relation = Relation(
        examples=512,
        neighbor=8.0,
        linear=3.0,
        smooth=50.0,
        single=0.0,
        structure=4.0,
        features=6,
        is_regression=True,
        effective=512,
        slow=Slow(0.0, rest, 7e3),
    )
    assert _severity(evidence(*losses, relation=relation)) == severity


@pytest.mark.parametrize(("loss", "severity"), [(60.0, "severe"), (3.0, "warning"), (0.5, "warning")])
def test_a_symptom_of_a_network_that_stays_far_above_a_constant(loss: float, severity: str) -> None:
    assert of_symptom(evidence(loss, before=300.0), is_far=False) == severity


@pytest.mark.parametrize(
    ("exchanged", "similarities", "is_severe"),
    [((5.0, 5.0), 0.0, True), ((5.0, 5.4), 0.0, False), ((3.5, 5.0), 0.0, False), ((5.0, 5.0), None, False)],
    ids=["no partners", "some in common", "hardly learned by heart", "no contrastive loss"],
)
def test_partners(exchanged: tuple[float, float], similarities: float | None, is_severe: bool) -> None:
    held = HeldOut(3.0, 5.0, 5.6, exchanged)
    known = replace(evidence(4.0, examples=128), behavior=Behavior(mixed_similarities=similarities))
    assert known.trial is not None
    assert _are_no_partners(known, held, known.trial) == is_severe


def contrastive(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    a, b = (nn.functional.normalize(model(each), dim=1) for each in batch)
    return nn.functional.cross_entropy(10 * a @ b.T, torch.arange(len(a)))


@pytest.mark.slow
@pytest.mark.parametrize("is_faulty", [True, False])
def test_views_that_are_shuffled_apart(is_faulty: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    codes = torch.randn(1024, 6, generator=draw)
    a, b = (torch.tanh(codes @ torch.randn(6, 24, generator=draw)) for _ in range(2))
    b = b[torch.randperm(1024, generator=draw)] if is_faulty else b
    batches = [(a[i : i + 64], b[i : i + 64]) for i in range(0, 1024, 64)]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, 96), nn.ReLU(), nn.Linear(96, 24))
    findings = wc.diagnose(
        wc.Problem.from_step(model, contrastive, batches), torch.optim.Adam(model.parameters(), 3e-3)
    ).findings
    if not is_faulty:
        assert not [each for each in findings if each.severity == "severe"]
    else:
        assert findings[0].rule == "labels-unrelated"
