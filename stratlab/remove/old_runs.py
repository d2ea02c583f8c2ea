"""Which runs are old enough to go."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta

from stratlab.cluster.workloads import ENDED
from stratlab.list.run_list import ListedRun
from stratlab.run_directory.record import AT_WORK
from stratlab.user_error import UserError

UNITS = {"h": "hours", "d": "days", "w": "weeks"}


def parse_age(text: str) -> timedelta:
    """From 12h, 30d or 8w.

    Raises:
        UserError: it is none of these.
    """
    found = re.fullmatch(r"([1-9]\d{0,4})([hdw])", text)
    if not found:
        raise UserError(
            f"--older-than {text}: expected a whole number of hours, days or weeks: 12h, 30d, 8w [SL-older-than-form]"
        )
    return timedelta(**{UNITS[found[2]]: int(found[1])})


def pick_old(runs: Iterable[ListedRun], age: timedelta, now: datetime) -> list[ListedRun]:
    """Those that have recorded nothing for `age`.

    One stays that is at work, whose custom resource has not ended (as of a suspended run), or whose files tell no time.
    """
    old = []
    for run in runs:
        state = run.resource.rpartition(": ")[2]
        is_held = run.status == AT_WORK or (state and state not in ENDED)
        if not is_held and run.written and datetime.fromisoformat(run.written) < now - age:
            old.append(run)
    return old
