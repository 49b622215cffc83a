"""What a measurement may spend: products and seconds."""

from __future__ import annotations

import math
import time
from collections import deque


class Allowance:
    """So many products and seconds, from now on.

    The next product is taken to last as long as the longest of the last three: one that would end too late is not
    begun. The first has nothing to be judged by and is always made.

    Args:
        products: Most of them.
        seconds: Most of them; None for any number.
    """

    def __init__(self, products: int, seconds: float | None = None) -> None:
        if seconds is not None and not seconds > 0:
            raise ValueError(f"budget is {seconds}; it is a number of seconds and must be positive.")
        self.products, self.seconds = products, math.inf if seconds is None else seconds
        self.spent = 0
        self._began = self._last = time.perf_counter()
        self._recent: deque[float] = deque(maxlen=3)

    def charge(self, products: int, worth: float | None = None) -> None:
        """So many products have been made, in the time since the last charge.

        Args:
            products: How many.
            worth: As many whole ones; None where each is one.
        """
        now = time.perf_counter()
        self.spent += products
        self._recent.append((now - self._last) / (products if worth is None else worth))
        self._last = now

    @property
    def affordable(self) -> int:
        """How many more products there may be."""
        left = self.products - self.spent
        if self.seconds == math.inf or not self._recent:
            return left
        return max(0, min(left, int(self._seconds_left / max(self._recent))))

    @property
    def share(self) -> float:
        """Of it that has been spent."""
        in_time = 1 - self._seconds_left / self.seconds if self.seconds < math.inf else 0.0
        return min(1.0, max(in_time, self.spent / self.products))

    @property
    def why_stopped(self) -> str:
        """In words, once nothing is affordable."""
        if self.spent < self.products and self.seconds < math.inf:
            return f"stopped after {self.spent} products, as another would overrun the budget of {self.seconds:g} s"
        return f"stopped after {self.spent} products"

    @property
    def _seconds_left(self) -> float:
        return self.seconds - (time.perf_counter() - self._began)
