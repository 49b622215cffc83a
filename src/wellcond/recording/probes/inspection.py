"""What the rules of `diagnose` say of the network at this step."""

from __future__ import annotations

from torch.optim import Optimizer

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.inspect import inspect
from wellcond.diagnosis.judge import completed, judged, lines_by_remedy
from wellcond.problem.problem import Problem


def inspected(problem: Problem, optimizer: Optimizer) -> tuple[Finding, ...]:
    """Findings of the rules that judge an inspection, each with the lines to write.

    Args:
        problem: Of one batch.
        optimizer: The optimizer that trains it.
    """
    inspection = inspect(problem, optimizer)
    if inspection.forward_error or inspection.loss_error:  # the training works: it is this problem that is another one
        return ()
    evidence = Evidence(problem, optimizer, inspection=inspection)
    return completed(judged(evidence), evidence, lines_by_remedy(problem, optimizer))
