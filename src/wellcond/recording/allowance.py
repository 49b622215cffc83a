"""The allowance: how much of a run's time recording may take, what each part of it took, and when it is its turn.

Every part has an account. Time that passes in the run pays a share of the budget into each, and what a part took is
taken out. A part that takes about a training step has its turn when it owes nothing, and pays afterwards: so the first
numbers come early. A more expensive one waits until it has saved the rest of its price.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Any

HANDED_OUT = 0.9
"""Part of the budget that accounts are paid: hooks cost a little more than what a clock inside them sees."""
DEBT = 1.5
"""Usual steps of the run that a part may owe after a turn."""
RECENT = 15
"""Times of steps whose median is a usual step, and turns whose median is the price of a part."""
FIRST_STEPS = 2
"""Steps that pass before anything has a turn: what a step takes must be known."""
LONGEST = 20.0
"""Usual steps that one step pays for at most: a clock that jumps, or a pause of a day, buys nothing."""
SPACING = 0.04
"""Turns are spaced by this share of the steps so far, and so by the logarithm of the step."""
WARMING_UP = 2.0
"""How much longer the first turn of a part takes than the next ones will: kernels are chosen, memory is new."""
MOST_SAVED = 3.0
"""Turns that an account saves up for."""


@dataclass
class Account:
    """What one part of recording may take, and took.

    Attributes:
        share: Its part of the budget, relative to the shares of the other parts.
        price: Usual steps that its first turn is thought to take; then the seconds of a turn, by its last ones.
        least_spacing: Steps between two turns at least.
        most_spacing: Steps up to which the spacing grows with the step.
        balance: Seconds that it has, or owes.
        next_step: The step from which on it is due.
        turns: Number of its turns so far.
        waited: Steps that it was due and could not pay, before its last turn.
        is_open: Whether it takes part at all.
    """

    share: float
    price: float = 1.0
    least_spacing: int = 1
    most_spacing: int = 500
    balance: float = 0.0
    next_step: int = 0
    turns: int = 0
    waited: int = 0
    is_open: bool = True
    _took: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def take_turn(self, seconds: float, step: int) -> None:
        """Pay for a turn at this step, and set when the next one is due."""
        self.balance -= seconds
        self.waited = max(0, step - self.next_step) if self.turns else 0
        self.turns += 1
        if self.turns > 1:
            self._took.append(seconds)
        self.price = statistics.median(self._took) if self._took else seconds / WARMING_UP
        self.next_step = step + max(self.least_spacing, min(self.most_spacing, int(SPACING * step)))

    def forget_prices(self) -> None:
        """Turns will take another time from now on."""
        self._took.clear()


class Allowance:
    """The accounts of all parts of recording.

    Args:
        budget: Share of the run's time that recording may take.
        accounts: One per part, by name.

    Attributes:
        wall: Seconds of the run, without jumps of the clock.
        spent: Seconds that recording took.
        usual_step: Seconds of a usual step of the run, without recording.

    Example:
        >>> allowance = Allowance(0.1, {"probe": Account(share=1.0, price=0.0)})
        >>> for step in range(1, 101):
        ...     allowance.pass_time(1.0)
        ...     if allowance.is_turn("probe", step):
        ...         allowance.charge("probe", 2.0, step)
        >>> allowance.accounts["probe"].turns, round(allowance.share, 2)
        (5, 0.09)
    """

    def __init__(self, budget: float, accounts: dict[str, Account]) -> None:
        self.budget = budget
        self.accounts = accounts
        self.wall = self.spent = self.usual_step = 0.0
        self._steps: deque[float] = deque(maxlen=RECENT)
        self._passed = 0
        self._fund = 0.0

    def pass_time(self, seconds: float, steps: int = 1) -> None:
        """Steps of the run took this long together, without recording."""
        if seconds < 0:
            return  # the clock was set back
        self._steps.append(seconds / steps)
        self._passed += steps
        self.usual_step = statistics.median(self._steps)
        self._pay(min(seconds, LONGEST * steps * self.usual_step))

    def spend(self, seconds: float) -> None:
        """Recording took this long for what it does on every step, which comes before what accounts are paid."""
        self.spent += seconds
        self._pay(seconds)
        self._fund -= seconds

    def charge(self, part: str, seconds: float, step: int) -> None:
        """A part had a turn at this step, and took this long."""
        self.spent += seconds
        self._pay(seconds)
        self.accounts[part].take_turn(seconds, step)

    def is_turn(self, part: str, step: int) -> bool:
        """Whether a part is due at this step, and its account pays for it."""
        account = self.accounts[part]
        if not account.is_open or step < account.next_step or self._passed < FIRST_STEPS:
            return False
        if self._fund > 0:
            self._share_out()
        return account.balance >= max(0.0, self.price(part) - DEBT * self.usual_step)

    def price(self, part: str) -> float:
        """Seconds that the next turn of a part is expected to take."""
        account = self.accounts[part]
        return account.price if account.turns else account.price * self.usual_step

    def close(self, part: str) -> None:
        """A part takes no more turns, if it has an account; the others get its share."""
        if part in self.accounts:
            self.accounts[part].is_open = False

    @property
    def share(self) -> float:
        """Share of the run's time that recording took."""
        return self.spent / self.wall if self.wall else 0.0

    def state_dict(self) -> dict[str, Any]:
        """All numbers that it depends on."""
        accounts = {name: vars(account) | {"_took": list(account._took)} for name, account in self.accounts.items()}
        numbers = {name: getattr(self, name) for name in ("wall", "spent", "usual_step", "_passed", "_fund")}
        return {"accounts": accounts, "numbers": numbers, "steps": list(self._steps)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from saved numbers."""
        vars(self).update(state["numbers"])
        self._steps = deque(state["steps"], maxlen=RECENT)
        for name, saved in state["accounts"].items():
            if name in self.accounts:
                is_open = self.accounts[name].is_open and saved["is_open"]
                self.accounts[name] = Account(
                    **saved | {"_took": deque(saved["_took"], maxlen=RECENT), "is_open": is_open}
                )

    def _pay(self, seconds: float) -> None:
        self.wall += seconds
        self._fund += HANDED_OUT * self.budget * seconds

    def _share_out(self) -> None:
        of_open = [(name, account) for name, account in self.accounts.items() if account.is_open]
        per_share = self._fund / sum(account.share for _, account in of_open)
        for name, account in of_open:
            most = MOST_SAVED * max(self.price(name), self.usual_step)
            account.balance = max(account.balance, min(account.balance + per_share * account.share, most))
        self._fund = 0.0
