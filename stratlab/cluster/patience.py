"""Trying a request again until it is answered, refused for good, or not wanted any more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import tenacity

from stratlab.cluster import ClusterError

PASSING = (429, 500, 502, 503, 504)
DENIED = (401, 403, 404)  # final, unless it went well before: a token, role or definition is being replaced
DENIED_TRIES = 5
LONGEST_PAUSE_S = 30.0

Answer = TypeVar("Answer")


def may_pass(failure: BaseException | None) -> bool:
    """Whether the same request may be answered a little later."""
    return isinstance(failure, ClusterError) and (failure.status is None or failure.status in PASSING)


def wait_as_asked(backoff: tenacity.wait.wait_base) -> Callable[[tenacity.RetryCallState], float]:
    """`backoff`, but not less than the server's Retry-After."""

    def wait(state: tenacity.RetryCallState) -> float:
        failure = _failure(state)
        asked = failure.retry_after_s if isinstance(failure, ClusterError) else 0.0
        return max(asked, backoff(state))

    return wait


@dataclass(frozen=True)
class Patience:
    """How long to go on: to `deadline` (time.monotonic()), or until `stop` is set.

    `pause_s` is the shortest pause between two tries; they grow to 30 s. `say` hears of an outage.
    """

    deadline: float | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    say: Callable[[str], None] = lambda sentence: None
    pause_s: float = 0.5

    def is_over(self) -> bool:
        return self.stop.is_set() or (self.deadline is not None and time.monotonic() >= self.deadline)

    def left_s(self, longest: float) -> float:
        """Until the deadline, at most `longest`, never quite 0."""
        return longest if self.deadline is None else min(longest, max(0.1, self.deadline - time.monotonic()))

    def sleep(self, seconds: float) -> None:
        """Not beyond the end."""
        self.stop.wait(self.left_s(seconds))

    def persist(self, request: Callable[[], Answer], *, answered_before: bool) -> Answer | None:
        """What `request` returns in the end, or None when all is over first.

        Raises:
            ClusterError: an answer that will not change. `answered_before`: a denial is tried again a few times.
        """

        def is_worth_it(state: tenacity.RetryCallState) -> bool:
            failure = _failure(state)
            patient = answered_before and state.attempt_number < DENIED_TRIES
            denied = isinstance(failure, ClusterError) and failure.status in DENIED
            return may_pass(failure) or (patient and denied)

        def tell(state: tenacity.RetryCallState) -> None:
            if state.attempt_number == 2:
                self.say(f"{_failure(state)}; trying again")

        retrying = tenacity.Retrying(
            retry=is_worth_it,
            wait=wait_as_asked(
                tenacity.wait_random_exponential(multiplier=self.pause_s, max=LONGEST_PAUSE_S)
            ),
            stop=lambda state: self.is_over(),
            sleep=self.sleep,
            before_sleep=tell,
        )
        try:
            return retrying(request)
        except tenacity.RetryError:
            return None


def _failure(state: tenacity.RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None
