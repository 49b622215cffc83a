"""The causal graph: which rule's findings explain which others', and what kind of thing each rule finds.

One wrong number makes many others wrong: inputs of 10⁵ saturate units, explode gradients and make every learning rate
too high. The judge lists the first cause only, with everything that it explains below it.
"""

from __future__ import annotations

from typing import Literal

Kind = Literal["fault", "scale", "symptom", "outcome"]
"""A *fault* is in the code, the data or a setting. A *scale* is a size that is wrong by some factor, and is as severe
as its worst effect. A *symptom* is a measured property that networks which train well may have too. An *outcome* is
what training shows, whatever the cause."""

KINDS: dict[str, Kind] = {
    # code and data
    "model-fails": "fault",
    "half-overflow": "fault",
    "output-loss-mismatch": "fault",
    "non-finite": "fault",
    "no-gradient": "fault",
    "constant-feature": "fault",
    "constant-target": "fault",
    "symmetric-initialisation": "fault",
    "shared-weight": "fault",
    "wrong-softmax-dimension": "fault",
    "wrong-mask": "fault",
    "future-seen": "fault",
    "label-shift": "fault",
    "padding-in-loss": "fault",
    "order-lost": "fault",
    "mixed-examples": "fault",
    "sorted-batches": "fault",
    "no-nonlinearity": "fault",
    "summed-loss": "fault",
    "term-dominates": "fault",
    # settings
    "weight-decay-dominates": "scale",
    "small-batch-batchnorm": "fault",
    "batchnorm-mode-gap": "fault",
    "dropout-too-strong": "fault",
    "dropout-in-eval": "fault",
    "optimizer-setting": "fault",
    "gradient-underflow": "fault",
    "rounding-error": "fault",
    "lost-updates": "fault",
    # what only a recorded run shows
    "gradients-not-cleared": "fault",
    "data-changed": "fault",
    "repeated-batches": "fault",
    "layer-thawed": "fault",
    "stale-statistics": "fault",
    "loss-spike": "fault",
    # scales
    "unscaled-input": "scale",
    "unscaled-target": "scale",
    "bad-initialisation": "scale",
    # the learning rate
    "learning-rate-too-high": "fault",
    "learning-rate-too-low": "fault",
    "diverging": "fault",
    "labels-unrelated": "fault",
    # what signals and gradients show
    "attention-saturation": "symptom",
    "dying-neurons": "symptom",
    "vanishing-gradient": "symptom",
    "saturated-activation": "symptom",
    "saturated-output": "outcome",
    "exploding-gradient": "symptom",
    "full-neurons": "symptom",
    "rank-collapse": "symptom",
    "activation-drift": "symptom",
    "ill-conditioned-input": "scale",
    "weight-domination": "symptom",
    "last-layer-drift": "symptom",
    "overfitting": "outcome",
    "loss-not-decreasing": "outcome",
}
"""All rules. Where two findings are equal in everything else, the one whose rule stands first here is listed first."""

_OF_A_WRONG_SCALE = (
    "saturated-activation", "saturated-output", "dying-neurons", "full-neurons", "activation-drift", "rank-collapse",
    "ill-conditioned-input", "weight-domination", "last-layer-drift", "exploding-gradient", "vanishing-gradient",
    "non-finite", "diverging", "learning-rate-too-high", "learning-rate-too-low", "lost-updates", "labels-unrelated",
    "loss-not-decreasing",
)  # fmt: skip
_OF_WRONG_OUTPUTS = (
    "unscaled-target", "bad-initialisation", "saturated-activation", "saturated-output", "dying-neurons",
    "activation-drift", "rank-collapse", "last-layer-drift", "exploding-gradient", "vanishing-gradient", "no-gradient",
    "non-finite", "diverging", "learning-rate-too-high", "learning-rate-too-low", "labels-unrelated",
    "loss-not-decreasing", "batchnorm-mode-gap", "mixed-examples",
)  # fmt: skip

CAUSES: dict[str, tuple[str, ...]] = {
    # code and data
    "model-fails": _OF_WRONG_OUTPUTS,
    "output-loss-mismatch": _OF_WRONG_OUTPUTS,
    "non-finite": (
        "no-gradient", "vanishing-gradient", "exploding-gradient", "saturated-output", "activation-drift", "diverging",
        "learning-rate-too-high", "labels-unrelated", "loss-not-decreasing",
    ),
    "no-gradient": (
        "vanishing-gradient", "rank-collapse", "weight-domination", "last-layer-drift", "batchnorm-mode-gap",
        "learning-rate-too-low", "labels-unrelated", "loss-not-decreasing",
    ),
    "constant-feature": ("rank-collapse", "labels-unrelated", "loss-not-decreasing"),
    "constant-target": (
        "saturated-output", "learning-rate-too-high", "learning-rate-too-low", "labels-unrelated",
        "loss-not-decreasing",
    ),
    "symmetric-initialisation": (
        "bad-initialisation", "constant-feature", "no-gradient", "attention-saturation", *_OF_A_WRONG_SCALE,
    ),
    "shared-weight": ("symmetric-initialisation", "batchnorm-mode-gap", "loss-not-decreasing"),
    "wrong-softmax-dimension": (
        "output-loss-mismatch", "no-gradient", "vanishing-gradient", "attention-saturation", "mixed-examples",
        "no-nonlinearity", "labels-unrelated", "loss-not-decreasing",
    ),
    "wrong-mask": (
        "non-finite", "no-gradient", "attention-saturation", "rank-collapse", "learning-rate-too-high",
        "learning-rate-too-low", "labels-unrelated", "loss-not-decreasing",
    ),
    "future-seen": ("saturated-output",),
    "label-shift": ("saturated-output", "learning-rate-too-low"),
    "padding-in-loss": ("constant-target", "saturated-output", "learning-rate-too-low", "loss-not-decreasing"),
    "order-lost": ("learning-rate-too-high", "learning-rate-too-low", "labels-unrelated", "loss-not-decreasing"),
    "mixed-examples": (
        "batchnorm-mode-gap", "rank-collapse", "diverging", "learning-rate-too-high", "labels-unrelated",
        "loss-not-decreasing",
    ),
    "sorted-batches": (
        "batchnorm-mode-gap", "data-changed", "loss-spike", "stale-statistics", "dying-neurons", "diverging",
        "overfitting", "learning-rate-too-high", "loss-not-decreasing",
    ),
    "term-dominates": ("rank-collapse", "learning-rate-too-low", "loss-not-decreasing"),
    "no-nonlinearity": (
        "ill-conditioned-input", "learning-rate-too-low", "labels-unrelated", "loss-not-decreasing",
    ),
    # settings
    "weight-decay-dominates": (
        "bad-initialisation", "vanishing-gradient", "dying-neurons", "rank-collapse", "diverging",
        "learning-rate-too-high", "learning-rate-too-low", "loss-not-decreasing",
    ),
    "small-batch-batchnorm": ("batchnorm-mode-gap", "learning-rate-too-high", "loss-not-decreasing"),
    "batchnorm-mode-gap": (
        "vanishing-gradient", "activation-drift", "rank-collapse", "dying-neurons", "learning-rate-too-low",
        "loss-not-decreasing",
    ),
    "half-overflow": (
        "non-finite", "no-gradient", "vanishing-gradient", "exploding-gradient", "saturated-output", "activation-drift",
        "attention-saturation", "diverging", "learning-rate-too-high", "labels-unrelated", "loss-not-decreasing",
    ),
    "gradient-underflow": (
        "no-gradient", "vanishing-gradient", "lost-updates", "learning-rate-too-high", "learning-rate-too-low",
        "labels-unrelated", "loss-not-decreasing",
    ),
    "rounding-error": (
        "gradient-underflow", "attention-saturation", "bad-initialisation", "lost-updates", "diverging",
        "learning-rate-too-high", "learning-rate-too-low", "labels-unrelated", "loss-not-decreasing",
    ),
    "optimizer-setting": ("diverging", "learning-rate-too-high", "learning-rate-too-low", "loss-not-decreasing"),
    "lost-updates": ("no-gradient", "learning-rate-too-low", "loss-not-decreasing"),
    "dropout-in-eval": ("dropout-too-strong",),
    "dropout-too-strong": ("diverging", "learning-rate-too-high", "learning-rate-too-low", "loss-not-decreasing"),
    # what only a recorded run shows
    "gradients-not-cleared": ("data-changed", "loss-spike", "weight-decay-dominates", *_OF_A_WRONG_SCALE),
    "data-changed": (
        "loss-spike", "stale-statistics", "dying-neurons", "saturated-activation", "exploding-gradient",
        "vanishing-gradient", "non-finite", "diverging", "learning-rate-too-high", "loss-not-decreasing",
    ),
    "repeated-batches": ("overfitting", "stale-statistics", "data-changed", "diverging"),
    "layer-thawed": (
        "data-changed", "loss-spike", "dying-neurons", "saturated-activation", "exploding-gradient", "non-finite",
        "diverging", "learning-rate-too-high", "overfitting", "loss-not-decreasing",
    ),
    "stale-statistics": ("batchnorm-mode-gap", "overfitting"),
    "loss-spike": (
        "dying-neurons", "saturated-activation", "exploding-gradient", "vanishing-gradient", "non-finite", "diverging",
        "loss-not-decreasing",
    ),
    # scales
    "unscaled-input": ("bad-initialisation", "constant-feature", *_OF_A_WRONG_SCALE),
    "unscaled-target": ("bad-initialisation", "term-dominates", *_OF_A_WRONG_SCALE),
    "bad-initialisation": ("attention-saturation", *_OF_A_WRONG_SCALE),
    # the learning rate
    "learning-rate-too-high": (
        "diverging", "loss-spike", "non-finite", "no-gradient", "dying-neurons", "saturated-activation",
        "exploding-gradient", "vanishing-gradient", "rank-collapse", "labels-unrelated", "learning-rate-too-low",
        "loss-not-decreasing",
    ),
    "learning-rate-too-low": ("loss-not-decreasing",),
    "diverging": ("non-finite",),
    "labels-unrelated": ("learning-rate-too-high", "learning-rate-too-low", "loss-not-decreasing"),
    # what signals and gradients show
    "attention-saturation": ("vanishing-gradient", "lost-updates", "learning-rate-too-low", "loss-not-decreasing"),
    "dying-neurons": (
        "no-gradient", "diverging", "vanishing-gradient", "rank-collapse", "learning-rate-too-low", "labels-unrelated",
        "loss-not-decreasing",
    ),
    "vanishing-gradient": (
        "last-layer-drift", "lost-updates", "learning-rate-too-low", "labels-unrelated", "loss-not-decreasing",
    ),
    "saturated-activation": (
        "diverging", "vanishing-gradient", "lost-updates", "learning-rate-too-low", "loss-not-decreasing",
    ),
    "saturated-output": ("vanishing-gradient", "lost-updates", "learning-rate-too-low", "loss-not-decreasing"),
    "exploding-gradient": (
        "non-finite", "diverging", "loss-spike", "last-layer-drift", "learning-rate-too-high", "learning-rate-too-low",
        "loss-not-decreasing",
    ),
    "full-neurons": ("activation-drift", "last-layer-drift", "learning-rate-too-low", "loss-not-decreasing"),
    "rank-collapse": (
        "dying-neurons", "vanishing-gradient", "lost-updates", "learning-rate-too-low", "labels-unrelated",
        "overfitting", "loss-not-decreasing",
    ),
    "activation-drift": (
        "exploding-gradient", "vanishing-gradient", "saturated-output", "lost-updates", "learning-rate-too-high",
        "loss-not-decreasing",
    ),
    "ill-conditioned-input": ("learning-rate-too-low", "loss-not-decreasing"),
}  # fmt: skip
"""Cause → the rules whose findings it explains. `@rule(name, explains=…)` adds to it."""

MUTUAL = frozenset(
    {
        "activation-drift", "batchnorm-mode-gap", "diverging", "dying-neurons", "exploding-gradient",
        "labels-unrelated", "learning-rate-too-high", "loss-spike", "lost-updates", "no-gradient", "non-finite",
        "rank-collapse", "saturated-activation", "saturated-output", "vanishing-gradient",
    }
)  # fmt: skip
"""The only rules that may explain themselves through others. A rate that is too high explodes gradients, and gradients
that explode make every rate too high: of two such findings the worse is the cause."""


def kind_of(rule: str) -> Kind:
    """What kind of thing a rule finds; a rule of the user's own finds faults."""
    return KINDS.get(rule, "fault")


def reachable_from(rule: str) -> set[str]:
    """All rules that a rule explains, directly or through others; itself if it is on a cycle."""
    reached: set[str] = set()
    waiting = list(CAUSES.get(rule, ()))
    while waiting:
        effect = waiting.pop()
        if effect not in reached:
            reached.add(effect)
            waiting += CAUSES.get(effect, ())
    return reached


def as_mermaid() -> str:
    """The graph as a Mermaid flowchart: an arrow from each cause to what it explains.

    An arrow is left out if a detour through other rules says the same. The rules of `MUTUAL` share one box, without
    arrows between them, and one arrow leads into it from each cause.
    """
    reach = {name: reachable_from(name) for name in (*KINDS, *CAUSES)}
    lines = ["flowchart LR", "    subgraph mutual [may explain each other]"]
    lines += [f"        {name}" for name in sorted(MUTUAL)] + ["    end"]
    for cause, effects in CAUSES.items():
        direct = [
            effect
            for effect in effects
            if not any(effect in reach[via] and cause not in reach[via] and via not in reach[effect] for via in effects)
        ]
        into = [effect for effect in direct if effect in MUTUAL][: cause not in MUTUAL]
        lines += [f"    {cause} --> {effect}" for effect in direct if effect in into or effect not in MUTUAL]
    return "\n".join(lines)
