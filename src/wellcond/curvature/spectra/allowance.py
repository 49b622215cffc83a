"""How many products and seconds a measurement may spend."""

from __future__ import annotations

import math
import time
from collections import deque


class Allowance:
    """A limit on products and seconds, counted from now on.

    The next product is assumed to take as long as the longest of the last three; one that would end too late is not
    started. The first one cannot be estimated and is always made.

    Args:
        products: Most products.
        seconds: Most seconds; None for any number.
    """

    def __init__(self, products: int, seconds: float | None = None) -> None:
        if seconds is not None and not seconds > 0:
            raise ValueError(f"budget is {seconds}; it is a number of seconds and must be positive.")
        self.products, self.seconds = products, math.inf if seconds is None else seconds
        self.spent = 0
        self._began = self._last = time.perf_counter()
        self._recent: deque[float] = deque(maxlen=3)

    def charge(self, products: int, worth: float | None = None) -> None:
        """Record products made in the time since the last charge.

        Args:
            products: Number of products.
            worth: Their cost in products with the whole matrix; None if each costs one.
        """
        now = time.perf_counter()
        self.spent += products
        self._recent.append((now - self._last) / (products if worth is None else worth))
        self._last = now

    @property
    def affordable(self) -> int:
        """Number of products that may still be made."""
        left = self.products - self.spent
        if self.seconds == math.inf or not self._recent:
            return left
        return max(0, min(left, int(self._seconds_left / max(self._recent))))

    @property
    def share(self) -> float:
        """Share of the limit that has been spent."""
        in_time = 1 - self._seconds_left / self.seconds if self.seconds < math.inf else 0.0
        return min(1.0, max(in_time, self.spent / self.products))

    @property
    def why_stopped(self) -> str:
        """Why the measurement stopped, in words, once no more products are affordable."""
        if self.spent < self.products and self.seconds < math.inf:
            return f"stopped after {self.spent} products, as another would overrun the budget of {self.seconds:g} s"
        return f"stopped after {self.spent} products"

    @property
    def _seconds_left(self) -> float:
        return self.seconds - (time.perf_counter() - self._began)
