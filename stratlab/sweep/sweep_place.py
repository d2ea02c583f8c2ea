"""Where the runs of a sweep go: a cluster, or this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from stratlab.sweep.planned_release import Planned
from stratlab.sweep.state import State


class Place(Protocol):
    """One of the two."""

    def bring(
        self, plan: Sequence[Planned], state: State, *, retry_failed: bool, stop_on_failure: bool
    ) -> tuple[State, list[str]]:
        """Brings releases to their end, but those that have ended; returns the state, and what is not known.

        Raises:
            UserError: a release must not be touched, or the place lacks something.
        """

    def compare(
        self,
        plan: Sequence[Planned],
        comparison: str,
        output: Path,
        tuning: Mapping[str, Any] | None,
        varied: Sequence[str] = (),
    ) -> dict[str, Any]:
        """The report of a comparison, which is in `output` afterwards.

        Args:
            tuning: how its strategies were tuned, to be kept beside its runs.
            varied: settings that its runs are meant to differ in, to be kept beside them.

        Raises:
            UserError, ClusterError: it cannot be compared.
        """
