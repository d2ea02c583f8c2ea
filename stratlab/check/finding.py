"""One line of `stratlab check`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from stratlab.cluster import ClusterError
from stratlab.cluster.admission import PodRefused
from stratlab.cluster.connection import Connection


@dataclass(frozen=True)
class Finding:
    """What was looked at, how it is, what was seen, and what to do about it. A warning leaves the exit code at 0."""

    state: Literal["ok", "warning", "problem"]
    subject: str
    seen: str
    fix: str = ""

    def __str__(self) -> str:
        line = f"{self.state:<8} {self.subject}: {self.seen}"
        return f"{line}\n         -> {self.fix}" if self.fix else line


def ask(
    connection: Connection, path: str, query: dict[str, str] | None = None
) -> dict[str, Any] | int | None:
    """The object at `path`; None = there is none; 403 = may not look.

    Raises:
        ClusterError: anything else, so that the cluster cannot be asked at all.
    """
    try:
        return connection.get(path, query)
    except ClusterError as failure:
        if failure.status == 404:
            return None
        if failure.status == 403:
            return 403
        raise


def unseen(subject: str, what: str) -> Finding:
    """For what the user may not look at: no verdict."""
    return Finding(
        "warning",
        subject,
        f"may not look at {what} [SL-may-not-look]",
        "ask who runs the cluster, or look as an admin",
    )


def say_refused(subject: str, refused: PodRefused) -> Finding:
    """For a pod that a quota or a LimitRange has refused: a warning where it may start later."""
    return Finding("warning" if refused.passes else "problem", subject, refused.seen, refused.fix)


def guarded(subject: str, look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """The findings of `look`; an API that fails ends them with a problem, and the other checks go on."""
    try:
        yield from look()
    except ClusterError as failure:
        yield Finding("problem", subject, str(failure))
