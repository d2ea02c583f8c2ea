"""How long until the same is said again: twice as long each time, a minute at most."""

from __future__ import annotations

LEAST_S = 5.0
MOST_S = 60.0


class GrowingWait:
    """Begins when something was said. Times are seconds of one clock."""

    def __init__(self, began: float, least_s: float = LEAST_S) -> None:
        self.began, self.told = began, began
        self.wait_s, self.least_s = least_s, least_s

    def is_over(self, now: float) -> bool:
        """Whether it is to be said again; then the next time is further away."""
        if now - self.told < self.wait_s:
            return False
        self.told, self.wait_s = now, min(2 * self.wait_s, max(MOST_S, self.least_s))
        return True

    def is_least_over(self, now: float) -> bool:
        """Whether what is new may be said."""
        return now - self.told >= self.least_s
