"""How often something is asked that every rank has to be asked at once: about once a second, counted in steps.

A clock would bring the ranks to different steps. So the distance is a number of steps, worked out from how long the
slowest rank has taken for one, which is the same number everywhere.
"""

from __future__ import annotations

EVERY_S = 1.0
MOST_UNITS = 64
"""From one question to the next: where units become slower, the next question is late by no more than these. Steps that
are faster than 16 ms are asked more often than once a second; a question takes some tenths of a millisecond."""


class Pace:
    """Of one kind of work, counted in the same units (steps, batches) on every rank.

    Args:
        done: units that are done already.
        every_s: wanted distance; less where one unit takes longer.
    """

    def __init__(self, done: int = 0, every_s: float = EVERY_S) -> None:
        self.asked = done
        """The unit behind which it was asked last."""
        self.due = done + 1
        """The unit behind which it is time to ask."""
        self._every_s = every_s

    @property
    def every(self) -> int:
        """Units from one question to the next."""
        return self.due - self.asked

    def set_back(self, done: int, unit_s: float) -> None:
        """After a question.

        Args:
            unit_s: how long a unit took on the slowest rank. At most twice as many units as before are waited for:
                the first ones of a run, and those beside an evaluation, say little of the next.
        """
        most = min(2 * self.every, MOST_UNITS)
        fitting = int(self._every_s / unit_s) if unit_s > 0 else most
        self.asked, self.due = done, done + max(1, min(fitting, most))
