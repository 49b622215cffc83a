"""`diagnose` and its peers on one program: what each says of it, in one vocabulary."""

from __future__ import annotations

import logging
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

import wellcond as wc
from benchmarks.verdicts.case import Program

STEPS, STEPS_OF_HEALTHY = 100, 40
"""Training steps for the peers, which watch a training; their longest window has 40 steps."""
EVERY = 10
"""torch-audit checks one step in this many."""


@dataclass(frozen=True)
class ToolFinding:
    """One finding of a tool.

    Attributes:
        rule: Name that the tool uses.
        severity: `"severe"` for the highest level of the tool, `"warning"` for the next.
        layers: Modules that it names.
        means: Rules of this library with the same meaning.
        nearly: Rules that a generous reader would accept.
    """

    rule: str
    severity: str
    layers: tuple[str, ...]
    means: tuple[str, ...]
    nearly: tuple[str, ...] = ()


@dataclass(frozen=True)
class ToolReport:
    """The findings of a tool on a program, worst first, and what they cost."""

    findings: tuple[ToolFinding, ...]
    seconds: float
    u: float
    verdict: str = ""
    error: str = ""


def report_of(tool: str, program: Program, steps: int) -> ToolReport:
    """Let a tool judge a program, or `steps` of its training; one that fails has no findings and an error."""
    u = _unit_seconds(program)
    begin = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            verdict, findings = TOOLS[tool](program, steps)
    except Exception as failure:
        return ToolReport((), time.perf_counter() - begin, 0.0, error=f"{type(failure).__name__}: {failure}"[:300])
    seconds = time.perf_counter() - begin
    return ToolReport(tuple(findings), seconds, seconds / u, verdict)


def _unit_seconds(program: Program, rounds: int = 5) -> float:
    """Median seconds of a forward and backward pass of one batch."""
    model, (x, y) = program.model, next(iter(program.loader))
    parameters = [p for p in model.parameters() if p.requires_grad]
    times = []
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    state = torch.get_rng_state()
    for _ in range(rounds):
        begin = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.autograd.grad(program.loss(model(x), y), parameters, allow_unused=True)
        times.append(time.perf_counter() - begin)
    torch.set_rng_state(state)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
    return statistics.median(times)


def wellcond(program: Program, _steps: int) -> tuple[str, Iterator[ToolFinding]]:
    """`diagnose`, as it is by default."""
    diagnosis = wc.diagnose(wc.Problem(program.model, program.loss, program.loader), program.optimizer)
    findings = (ToolFinding(f.rule, f.severity, (f.layer,) if f.layer else (), (f.rule,)) for f in diagnosis.findings)
    return diagnosis.verdict(), findings


# torchmortem: its findings by the beginning of their titles; what they mean, and what they nearly mean

MORTEM: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "Vanishing gradients": (("vanishing-gradient",), ("saturated-activation", "saturated-output", "bad-initialisation",
                            "no-gradient")),
    "Exploding gradients": (("exploding-gradient",), ("learning-rate-too-high", "unscaled-input", "unscaled-target",
                            "bad-initialisation", "diverging", "non-finite")),
    "Gradient stalling": (("vanishing-gradient", "no-gradient"), ("dying-neurons", "saturated-activation",
                          "saturated-output", "learning-rate-too-low")),
    "Dead units": (("dying-neurons",), ("unscaled-input", "bad-initialisation", "learning-rate-too-high")),
    "Activation saturation": (("saturated-activation", "saturated-output"), ("unscaled-input", "bad-initialisation",
                              "vanishing-gradient", "output-loss-mismatch")),
    "Training divergence": (("diverging", "non-finite"), ("learning-rate-too-high", "exploding-gradient",
                            "unscaled-input", "unscaled-target")),
    "Loss plateau": (("loss-not-decreasing",), ("learning-rate-too-low", "labels-unrelated", "output-loss-mismatch",
                     "symmetric-initialisation", "vanishing-gradient", "weight-decay-dominates", "no-nonlinearity")),
    "Update ratio too low": (("learning-rate-too-low",), ("vanishing-gradient", "no-gradient")),
    "Update ratio too high": (("learning-rate-too-high",), ("exploding-gradient", "diverging", "unscaled-input")),
    "High gradient noise": ((), ("labels-unrelated", "small-batch-batchnorm")),
    "Rank collapse": (("rank-collapse",), ("symmetric-initialisation",)),
    "Weight norm explosion": (("diverging",), ("learning-rate-too-high", "exploding-gradient")),
    "Stagnant weight norms": (("learning-rate-too-low",), ("no-gradient", "vanishing-gradient")),
    "Inter-layer weight norm": (("bad-initialisation",), ("weight-decay-dominates",)),
}  # fmt: skip


def torchmortem(program: Program, steps: int) -> tuple[str, Iterator[ToolFinding]]:
    """An autopsy of a short training, with every measurement as often as possible."""
    from torchmortem import Autopsy

    logging.getLogger("torchmortem").setLevel(logging.CRITICAL)
    autopsy = Autopsy(program.model, optimizer=program.optimizer, sampling="thorough")
    with autopsy:
        for _ in _trained(program, steps, torch.Tensor.backward, lambda loss: autopsy.step(loss=loss)):
            pass
    report: Any = autopsy.get_report()
    severities = {"CRITICAL": "severe", "WARNING": "warning", "INFO": "note"}

    def findings() -> Iterator[ToolFinding]:
        for finding in report.findings:
            means, nearly = next(
                (words for title, words in MORTEM.items() if finding.title.startswith(title)), ((), ())
            )
            severity = severities[finding.severity.name]
            yield ToolFinding(finding.title, severity, tuple(finding.affected_layers), means, nearly)

    return report.executive_summary, findings()


# torch-audit: its rules by number

AUDIT: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "TA100": (("non-finite",), ("diverging", "learning-rate-too-high", "output-loss-mismatch")),
    "TA102": (("exploding-gradient",), ("learning-rate-too-high", "unscaled-input", "unscaled-target", "diverging",
              "bad-initialisation")),
    "TA103": (("dying-neurons", "no-gradient"), ("vanishing-gradient", "bad-initialisation")),
    "TA104": (("no-gradient",), ("vanishing-gradient",)),
    "TA105": (("dying-neurons",), ("rank-collapse", "bad-initialisation")),
    "TA301": (("unscaled-input",), ("ill-conditioned-input",)),
    "TA302": (("constant-feature",), ()),
    "TA304": (("small-batch-batchnorm",), ("batchnorm-mode-gap",)),
    "TA401": ((), ("weight-decay-dominates",)),
    "TA402": (("weight-decay-dominates",), ()),
    "TA403": ((), ("weight-decay-dominates",)),
    "TA405": (("dying-neurons",), ()),
    "TA500": (("no-gradient",), ()),
    "TA501": ((), ("shared-weight",)),
}  # fmt: skip


def torch_audit(program: Program, steps: int) -> tuple[str, Iterator[ToolFinding]]:
    """Its static and initial checks, and an audit of a short training."""
    from torch_audit import Auditor

    auditor = Auditor(program.model, optimizer=program.optimizer, every_n_steps=EVERY)
    with auditor:
        auditor.audit_static()
        auditor.audit_init()
        for _ in _trained(program, steps, auditor.backward, lambda loss: None, auditor.forward, auditor.optimizer_step):
            pass
    ranks = {"FATAL": "severe", "ERROR": "severe", "WARN": "warning", "INFO": "note"}
    once: dict[tuple[str, str | None], Any] = {}
    for finding in auditor.finish().findings:
        once.setdefault((finding.rule_id, finding.module_path), finding)
    worst_first = sorted(once.values(), key=lambda f: f.severity, reverse=True)

    def findings() -> Iterator[ToolFinding]:
        for finding in worst_first:
            means, nearly = AUDIT.get(finding.rule_id, ((), ()))
            where = (finding.module_path,) if finding.module_path else ()
            yield ToolFinding(finding.rule_id, ranks[finding.severity.value], where, means, nearly)

    return "", findings()


def _trained(
    program: Program,
    steps: int,
    backward: Callable[[torch.Tensor], Any],
    after: Callable[[float], Any],
    forward: Callable[..., Any] | None = None,
    step: Callable[[], Any] | None = None,
) -> Iterator[None]:
    """A training loop as a script has it, with a tool's calls in it."""
    taken = 0
    while taken < steps:
        for x, y in program.loader:
            program.optimizer.zero_grad()
            loss = program.loss((forward or program.model)(x), y)
            backward(loss)
            (step or program.optimizer.step)()
            after(loss.item())
            taken += 1
            yield
            if taken == steps:
                return


TOOLS: dict[str, Callable[[Program, int], tuple[str, Iterator[ToolFinding]]]] = {
    "wellcond": wellcond,
    "torchmortem": torchmortem,
    "torch-audit": torch_audit,
}
