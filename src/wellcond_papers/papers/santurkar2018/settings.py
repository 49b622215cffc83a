"""The settings of both networks at every scale, and the arms of the figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from wellcond_papers.experiments.experiment import Settings
from wellcond_papers.experiments.scales import Scale

PAPER: Mapping[str, Settings] = {
    "DLN": {
        "data": None, "layers": 25, "width": 10, "examples": 1000, "lr": 1e-6, "steps": 10_000, "looks": 40,
        "span": [0.01, 30.0], "lengths": 8, "shown": 4,
    },
    "VGG": {
        "data": "cifar10", "depth": 11, "width": 64, "batch": 128, "lr": 0.1, "steps": 15_000, "looks": 25,
        "span": [0.5, 4.0], "lengths": 8, "shown": 4, "augment": [], "tested": 10_000, "half": False,
    },
}  # fmt: skip
"""The settings of the source, as far as it states them."""
CHANGES: Mapping[Scale, Mapping[str, Settings]] = {
    "smoke": {
        "DLN": {"layers": 5, "width": 4, "examples": 40, "lr": 1e-4, "steps": 20, "looks": 2, "lengths": 3, "shown": 2},
        "VGG": {
            "data": "digits", "width": 2, "batch": 32, "steps": 6, "looks": 2, "lengths": 3, "shown": 2, "tested": 60,
        },
    },
    "laptop": {"DLN": {"steps": 10_000}, "VGG": {"width": 8, "steps": 500, "looks": 20, "tested": 2000}},
    "gpu": {"VGG": {"steps": 1500, "half": True}},
    "paper": {"DLN": {}, "VGG": {}},
}  # fmt: skip
"""Changes at each scale; a network that is not named is left out."""
NORMS = {"standard": "none", "BatchNorm": "batch", "noisy BatchNorm": "noisy", "ℓ1": "l1", "ℓ∞": "linf"}
"""Norms by the names of the arms."""
BASE, NORMALIZED = "standard", "BatchNorm"
LP = [BASE, NORMALIZED, "ℓ1", "ℓ∞"]
CHOICES = {
    "VGG": "The source calls its network VGG-like: VGG-11 with 64 channels at first and one linear layer is taken. It "
    "does not say how it prepares images: they are standardized, channel by channel.",
    "DLN": "The learning rate of the deep linear network (DLN) is that of the loss summed over examples; losses and β "
    "are those of the mean.",
}
"""What the source leaves open about its networks, and the choice made here."""
AFTER_EVERY_LAYER = "BatchNorm follows every layer but the last."
UNSTATED = ("width", "depth", "half", "looks", "lengths", "shown", "tested", "farther")
"""Settings that the source does not give. The width is that of the VGG; that of the DLN, 10, is given."""
ONE_BATCH = "Activations are looked at on one batch, the same throughout training."
WHILE_BOTH_TRAIN = (
    "The source compares whole trainings. Here looks count while both networks train: while each has more than a "
    "hundredth of the decrease of its training loss ahead of it. A network that has stopped has a gradient near zero, "
    "and loss and gradient hardly change along it. The hundredth is ours, and verdicts depend on it: those over "
    "the whole training, and with a thousandth, 3 % and 10 %, stand next to what is found."
)
NOT_THE_FIRST = (
    "The training loss of the VGG is the mean since the look before: its first look has none and does not count."
)
RATIOS = (
    '"0.5 times" is the median over these looks, in the geometric mean over the seeds. What is less than the factor of '
    "the claim, or than the spread over the seeds, is a tie; so are fewer than five looks."
)
SAME_SEED = (
    "At `paper` figures 6, 7, 10, 11, 13 and 14 train the same VGG thirteen times without a norm and thirteen times "
    "with BatchNorm, and on a GPU the same seed does not give the same run. Without a norm twelve end at a loss of "
    "0.0069 to 0.013 and one, seed 0 of figure 7, at 1.5e-05, below all thirteen with BatchNorm (3.7e-05 to 0.00089). "
    "Their test accuracies are 78.5 % (77.4 to 79.4) without and 83.5 % (82.9 to 84.0) with it."
)
LP_NORMS = (
    "The ℓp norms are defined in Section 3.3, which was not at hand; only the appendix was. Division by the average "
    "ℓp norm of the centered values is our reading. With p = 2 that is BatchNorm: ℓ2 has no arm of its own."
)


def name_of(network: str, norm: str) -> str:
    """The name of an arm.

    Example:
        >>> name_of("DLN", "BatchNorm")
        'DLN, BatchNorm'
    """
    return f"{network}, {norm}"


def choices_of(*networks: str) -> list[str]:
    """What is chosen here about these networks."""
    return [*(CHOICES[network] for network in networks), AFTER_EVERY_LAYER]


def arms_of(networks: Iterable[str], norms: Iterable[str]) -> dict[str, Settings]:
    """One arm for every norm of every network."""
    norms = list(norms)
    return {name_of(net, norm): {"network": net, "norm": NORMS[norm]} for net in networks for norm in norms}


def at_scale(scale: Scale, arms: Mapping[str, Settings], *, seeds: int = 1, **changes: Any) -> Settings:
    """The settings of a scale, for the arms whose network it has.

    Args:
        scale: The scale.
        arms: Arms from `arms_of`.
        seeds: The number of seeds.
        changes: Settings that differ in this figure: a value, or values by network.
    """
    of_scale = CHANGES[scale]
    own: dict[str, Settings] = {}
    for arm, settings in arms.items():
        network = settings["network"]
        if network in of_scale:
            candidates = {name: _of(network, change) for name, change in changes.items()}
            known = {name: value for name, value in candidates.items() if value is not None}
            own[arm] = {**PAPER[network], **of_scale[network], **known, **settings}
    return {"seeds": seeds, "arms": own}


def _of(network: str, change: Any) -> Any:
    return change.get(network) if isinstance(change, Mapping) else change
