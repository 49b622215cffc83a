"""The allowance: how much of a run's time recording may take, what each part of it took, and when it is its turn.

Time that passes in the run pays into purses, and the parts of recording pay what they took from theirs. A part that
takes about a training step has its turn when its purse owes nothing, and pays afterwards: so the first numbers come
early. A more expensive one waits until the rest of its price is saved.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Any

HANDED_OUT, HANDED_OUT_ON_GPU = 0.9, 0.5
"""Share of the budget that purses are paid: hooks cost more than what a clock inside them sees. With half of it, runs
of 500 steps of 1 to 8 ms take up to 6.6 % longer on an H200, the longest those of 1.3 ms: there the budget pays for
what is done at every step, and for nothing else."""
GIFT, MOST_GIFTED = 5e-4, 1e-3
"""Seconds that some purses hold at least whenever the number of steps has doubled, whatever the run has paid, if a turn
takes no longer: 5 % of a run of a second pay for little, and nobody notices some milliseconds."""
DEBT = 1.5
"""Usual steps of the run that a purse may owe after a turn."""
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
FEWEST_TURNS, OUTLIER = 3, 3.0
"""After this many turns, one that takes this many times the price is that of a busy machine: it is not paid in full."""
MOST_SAVED = 3.0
"""Turns, or steps if these are longer, that a purse saves up for."""


@dataclass
class Purse:
    """Time for one part of recording, or for several that share it.

    Attributes:
        share: Its part of the budget, relative to other purses.
        balance: Seconds that are in it, or that it owes.
    """

    share: float
    balance: float = 0.0


@dataclass
class Activity:
    """One part of recording: what it costs, and when it is due.

    Attributes:
        purse: What it is paid from.
        price: Usual steps that its first turn is thought to take; then the seconds of a turn, by its last ones.
        least_spacing: Steps between two turns at least.
        most_spacing: Steps up to which the spacing grows with the step.
        next_step: The step from which on it is due.
        turns: Number of its turns so far.
        is_open: Whether it takes turns at all.
    """

    purse: Purse
    price: float = 1.0
    least_spacing: int = 1
    most_spacing: int = 500
    next_step: int = 0
    turns: int = 0
    is_open: bool = True
    _took: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))

    def take_turn(self, seconds: float, step: int) -> None:
        """Pay for a turn at this step, and set when the next one is due."""
        is_known = len(self._took) >= FEWEST_TURNS
        self.purse.balance -= min(seconds, OUTLIER * self.price) if is_known else seconds
        self.turns += 1
        if self.turns > 1:
            self._took.append(seconds)
        self.price = statistics.median(self._took) if self._took else seconds / WARMING_UP
        self.next_step = step + max(self.least_spacing, min(self.most_spacing, int(SPACING * step)))

    def know_price(self, seconds: float, step: int) -> None:
        """A turn at this step, which was not paid, took this long; so will the next ones."""
        self.turns += 1
        self._took.append(seconds)
        self.price = seconds
        self.next_step = step + self.least_spacing

    def change_price(self, factor: float) -> None:
        """Turns will take another time from now on."""
        self._took.clear()
        self.price *= factor


class Allowance:
    """The parts of recording and what they may take.

    Args:
        budget: Share of the run's time that recording may take.
        parts: By name.

    Attributes:
        wall: Seconds of the run, without jumps of the clock.
        spent: Seconds that recording took.
        usual_step: Seconds of a usual step of the run, without recording.
        handed_out: Share of the budget that purses are paid.
        gifted: Parts whose purses get a gift now and then.

    Example:
        >>> allowance = Allowance(0.1, {"probe": Activity(Purse(1.0))})
        >>> for step in range(1, 101):
        ...     allowance.pass_time(1.0)
        ...     if allowance.is_turn("probe", step):
        ...         allowance.charge("probe", 2.0, step)
        >>> allowance.parts["probe"].turns, round(allowance.share, 2)
        (5, 0.09)
    """

    def __init__(self, budget: float, parts: dict[str, Activity]) -> None:
        self.budget = budget
        self.parts = parts
        self.wall = self.spent = self.usual_step = 0.0
        self._steps: deque[float] = deque(maxlen=RECENT)
        self.handed_out = HANDED_OUT
        self.gifted: tuple[str, ...] = ()
        self._passed = 0
        self._fund = 0.0

    def pass_time(self, seconds: float, steps: int = 1) -> None:
        """Steps of the run took this long together, without recording."""
        if seconds < 0:
            return  # the clock was set back
        self._steps.append(seconds / steps)
        if (self._passed + steps).bit_length() > self._passed.bit_length():
            for part in (self.parts[name] for name in self.gifted):
                if self._price(part) <= MOST_GIFTED:
                    part.purse.balance = max(part.purse.balance, GIFT)
        self._passed += steps
        self.usual_step = statistics.median(self._steps)
        self._pay(min(seconds, LONGEST * steps * self.usual_step))

    def pass_pause(self, seconds: float) -> None:
        """The run had begun work on a GPU that took this long to finish."""
        self._pay(min(seconds, LONGEST * self.usual_step))

    def spend(self, seconds: float) -> None:
        """Recording took this long for what it does on every step, which is paid before anything else."""
        self.spent += seconds
        self._pay(seconds)
        self._fund -= seconds

    def start_up(self, seconds: float) -> None:
        """Recording took this long once, before anything is paid for."""
        self.spent += seconds
        self.wall += seconds

    def reserve(self, seconds: float) -> None:
        """The end of the run will take this long: it is saved before anything else is paid."""
        self._fund -= seconds

    def charge(self, part: str, seconds: float, step: int) -> None:
        """A part had a turn at this step, and took this long."""
        self.spent += seconds
        self._pay(seconds)
        self.parts[part].take_turn(seconds, step)

    def is_turn(self, name: str, step: int) -> bool:
        """Whether a part is due at this step, and its purse pays for it."""
        part = self.parts[name]
        if not part.is_open or step < part.next_step or self._passed < FIRST_STEPS:
            return False
        if self._fund > 0:
            self._share_out()
        return part.purse.balance >= max(0.0, self._price(part) - DEBT * self.usual_step)

    def owes(self, name: str) -> bool:
        """Whether the purse of an activity is in debt."""
        return self.parts[name].purse.balance < 0

    def is_rich(self, name: str) -> bool:
        """Whether the purse of a part has saved as much as it may."""
        part = self.parts[name]
        return part.purse.balance >= 0.9 * (self._most_saved(part.purse) - self._price(part))

    def is_poor(self, name: str, step: int) -> bool:
        """Whether a part was due for twice its spacing before this step, because its purse could not pay."""
        part = self.parts[name]
        spacing = max(part.least_spacing, min(part.most_spacing, int(SPACING * step)))
        return step > part.next_step + 2 * spacing

    def hasten(self, name: str) -> None:
        """Let a part have a turn at the next step that is looked at, whatever its purse owes."""
        part = self.parts[name]
        part.next_step, part.purse.balance = 0, max(part.purse.balance, self._price(part))

    def close(self, name: str) -> None:
        """A part, if it is one, takes no more turns."""
        if name in self.parts:
            self.parts[name].is_open = False

    @property
    def share(self) -> float:
        """Share of the run's time that recording took."""
        return self.spent / self.wall if self.wall else 0.0

    def state_dict(self) -> dict[str, Any]:
        """All numbers that it depends on."""
        names = ("price", "next_step", "turns", "is_open")
        parts = {
            name: {each: getattr(part, each) for each in names} | {"took": list(part._took)}
            for name, part in self.parts.items()
        }
        numbers = {name: getattr(self, name) for name in ("wall", "spent", "usual_step", "_passed", "_fund")}
        balances = {name: part.purse.balance for name, part in self.parts.items()}
        return {"parts": parts, "balances": balances, "numbers": numbers, "steps": list(self._steps)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from saved numbers."""
        vars(self).update(state["numbers"])
        self._steps = deque(state["steps"], maxlen=RECENT)
        for name, saved in state["parts"].items():
            part = self.parts[name]
            part.price, part.next_step, part.turns = saved["price"], saved["next_step"], saved["turns"]
            part.is_open = part.is_open and saved["is_open"]
            part._took = deque(saved["took"], maxlen=RECENT)
            part.purse.balance = state["balances"][name]

    def _price(self, part: Activity) -> float:
        """Seconds that its next turn is expected to take."""
        return part.price if part.turns else part.price * self.usual_step

    def _pay(self, seconds: float) -> None:
        self.wall += seconds
        self._fund += self.handed_out * self.budget * seconds

    def _purses(self) -> list[Purse]:
        return list({id(part.purse): part.purse for part in self.parts.values() if part.is_open}.values())

    def _most_saved(self, purse: Purse) -> float:
        prices = [self._price(part) for part in self.parts.values() if part.purse is purse and part.is_open]
        return MOST_SAVED * max(self.usual_step, *prices)

    def _share_out(self) -> None:
        """Divide what has come in among purses; what one has no room for is for the others."""
        room = [(self._most_saved(purse) - purse.balance, purse) for purse in self._purses()]
        room.sort(key=lambda each: each[0] / each[1].share)  # those that are full first
        shares = sum(purse.share for _, purse in room)
        for space, purse in room:
            part = max(0.0, min(space, self._fund * purse.share / shares))
            purse.balance += part
            self._fund -= part
            shares -= purse.share
        self._fund = 0.0
