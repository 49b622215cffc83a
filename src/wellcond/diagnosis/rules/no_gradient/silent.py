"""Weights that the outputs depend on and that no gradient gets to: zeros that block each other, and cuts."""

from __future__ import annotations

from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.reading import (
    listed,
)
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.rules.loss_not_decreasing import without_learning
from wellcond.diagnosis.rules.no_gradient.shares import UNUSED


@rule("no-gradient")
def blocked_by_zeros(evidence: Evidence) -> Iterator[Finding]:
    """Two or more parameters of zeros in one product, which block each other's gradients for ever.

    A probe takes steps of all other parameters and differentiates again: zeros in one factor alone, as in LoRA, ReZero
    or zero-initialized branches, get a gradient then. Severe if a tenth of all trainable parameters stays without a
    gradient, or a trial shows that the network does not train; otherwise a warning.
    """
    factors = None if evidence.behavior is None else evidence.behavior.zero_factors
    if factors is None or not factors.names:
        return
    layers = list(dict.fromkeys(name.rpartition(".")[0] or name for name in factors.names))
    does_not_train = evidence.trial is not None and evidence.trial.trains is False
    shapes = {name: evidence.problem.params[name].dim() for name in factors.names}
    drawn = [name for name, dims in shapes.items() if dims > 1]
    drawn = drawn[:-1] if len(drawn) > 1 and len(drawn) == len(shapes) else drawn
    yield Finding(
        rule="no-gradient",
        layer=layers[0],
        severity="severe" if factors.without_gradient >= UNUSED.severe or does_not_train else "warning",
        basis="proven",
        summary=f"{listed(list(factors.names))} are all zero and block each other: the gradient of each is a product "
        f"with the others, so {factors.without_gradient:.0%} of all parameters get none, now and after any step.",
        evidence={"share without a gradient": factors.without_gradient, "zeros": float(len(factors.names))},
        reason="In B A x the gradient of A is a product with B, and that of B one with A: one of them may start at "
        "zero, not both.",
        remedy=f"for name in {drawn!r}:\n    torch.nn.init.xavier_normal_(model.get_parameter(name))"
        if drawn
        else f"torch.nn.init.ones_(model.get_parameter({factors.names[0]!r}))",
    )


@rule("no-gradient")
def cut_before_outputs(evidence: Evidence) -> Iterator[Finding]:
    """Layers that move an output which sends them no gradient, in a network that learns nothing of its examples.

    A code that is drawn by sample() and not by rsample(), or detached, rounded or taken by an argmax: the encoder gets
    its gradient from another term alone, such as a KL. Severe if, besides, outputs may as well be another example's
    after the trial (loss-not-decreasing), and a warning where that is known of its own run only. Where the network
    learns, a detach() is by design, as before a probe.
    """
    trial = evidence.trial
    if trial is None or trial.has_learned or not trial.cut_off:
        return
    is_lost, few = without_learning(trial) is not None, trial.few
    if not is_lost and few is not None and few.paired is not None:
        return
    yield Finding(
        rule="no-gradient",
        layer=trial.cut_off[-1],
        severity="severe" if is_lost else "warning",
        basis="proven",
        summary=f"an output changes with the weights of {listed(list(trial.cut_off))}, but sends no gradient to them, "
        "and nothing is learned of the examples.",
        evidence={"layers": float(len(trial.cut_off))},
        reason="Something between them passes values on, but no gradient: sample() where rsample() was meant, a "
        "detach(), round() or argmax.",
        remedy="# draw with rsample(), or as mean + std * torch.randn_like(std); leave out the detach() before a layer "
        "that is to be trained through",
    )
