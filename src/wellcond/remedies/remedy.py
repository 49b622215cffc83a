"""`remedy`: the decorator that makes a function of set-ups a remedy; the table of all remedies; and their lines."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from wellcond.errors import WellcondError
from wellcond.remedies.setup import Setup

Apply = Callable[[Setup], Setup | None]


@dataclass(frozen=True)
class Remedy:
    """One remedy.

    Attributes:
        name: Stable name, by which users select it.
        apply: Set-up → treated set-up, or None if it does not apply; raises `Unsupported` if the network does not
            allow it.
        part: Part of the training that it changes; two remedies of one part are not combined.
        rules: Rules whose findings it may treat.
    """

    name: str
    apply: Apply
    part: str
    rules: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        """What it does and why: the docstring of its function."""
        return inspect.cleandoc(self.apply.__doc__ or "")


REMEDIES: dict[str, Remedy] = {}
"""All remedies, by name."""


def remedy(name: str, part: str, *, rules: Iterable[str] = ()) -> Callable[[Apply], Apply]:
    """Make a function a remedy, which `treat` tries and whose lines findings print.

    The function takes a `Setup` and returns another one, by its methods `with_model`, `with_loss`, `with_optimizer`,
    `with_setting` and `prepared`; or None if there is nothing to change. Its docstring says what it does and why.

    Args:
        name: The remedy's name. A finding prints its lines with `Finding(treatment=name, …)`.
        part: Part of the training that it changes; two remedies of one part are not combined.
        rules: Rules whose findings it may treat: `treat` then names it as proposed by them.

    Example:
        >>> import torch
        >>> import wellcond as wc
        >>> @wc.remedy("smaller-momentum", "momentum", rules=["diverging"])
        ... def smaller_momentum(setup):
        ...     '''Lowers the momentum to 0.5: steps then forget a bad gradient sooner.'''
        ...     has_momentum = setup.optimizer is not None and "momentum" in setup.optimizer.defaults
        ...     return setup.with_setting("momentum", 0.5) if has_momentum else None
        >>> model = torch.nn.Linear(2, 1)
        >>> problem = wc.Problem(model, torch.nn.MSELoss(), (torch.randn(8, 2), torch.randn(8, 1)))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.99)
        >>> print(lines_for("smaller-momentum", Setup.of(problem, optimizer)))
        for group in optimizer.param_groups:
            group["momentum"] = 0.5
        >>> wc.treat(problem, optimizer, steps=5, seeds=[0], remedies=["smaller-momentum"]).refused
        {}
        >>> del REMEDIES["smaller-momentum"]
    """

    def register(apply: Apply) -> Apply:
        REMEDIES[name] = Remedy(name, apply, part, tuple(rules))
        return apply

    return register


def lines_for(name: str, setup: Setup, lr: float | None = None) -> str:
    """The lines that a person writes to have a remedy; "" if it does not apply to this set-up.

    Nothing of the user's changes, and nothing is trained.

    Args:
        name: Name of the remedy.
        setup: The user's set-up; see there which names the lines may use.
        lr: Learning rate to write; None to leave it as it is.
    """
    try:
        treated = REMEDIES[name].apply(setup)
    except (WellcondError, RuntimeError):  # the network does not allow it, or torch cannot compute what it needs
        return ""
    if treated is None:
        return ""
    return treated.code_at_own_rate if lr is None else treated.code.replace("{lr}", f"{lr:.3g}")
