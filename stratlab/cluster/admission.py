"""A pod that a quota or a LimitRange of its namespace refuses: no right is missing, and no operator is away."""

from __future__ import annotations

import re

from stratlab.cluster import ClusterError

FORBIDDEN = re.compile(r"is forbidden: \[?(?P<why>.+?)\]?$", re.DOTALL)
EXCEEDED = re.compile(r"exceeded quota: (?P<quota>[^,]+)")
UNSPECIFIED = re.compile(r"failed quota: (?P<quota>[^:]+): must specify (?P<names>\S+)")
LIMIT_RANGE = re.compile(r"(minimum|maximum) \S+ usage per|max limit to request ratio per")


class PodRefused(ClusterError):
    """`seen` is what the namespace says, `fix` what helps; `passes` where it may be taken later as it is."""

    def __init__(self, seen: str, fix: str, passes: bool) -> None:
        super().__init__(f"{seen}; {fix}", 422)
        self.seen, self.fix, self.passes = seen, fix, passes


def explain_refusal(message: str) -> PodRefused | None:
    """From the API server's sentence, or an event's; None where it speaks of something else."""
    why = " ".join((found["why"] if (found := FORBIDDEN.search(message)) else message).split())
    if found := UNSPECIFIED.search(why):
        names = found["names"].replace(",", "=AMOUNT,") + "=AMOUNT"
        fix = f"give them: --pod-resources {names}; to a run as run.resources and run.analysis.resources "
        fix += "[SL-quota-unspecified]"
        return PodRefused(f"a quota refuses its pod: {why}", fix, passes=False)
    if EXCEEDED.search(why):
        fix = "wait for other pods to end, raise the quota, or ask for less with --pod-resources [SL-quota-exceeded]"
        return PodRefused(f"a quota refuses its pod: {why}", fix, passes=True)
    if LIMIT_RANGE.search(why):
        fix = (
            "ask for amounts in that range: --pod-resources limits.NAME=AMOUNT,requests.NAME=AMOUNT "
            "[SL-limit-range]"
        )
        return PodRefused(f"a LimitRange refuses its pod: {why}", fix, passes=False)
    return None
