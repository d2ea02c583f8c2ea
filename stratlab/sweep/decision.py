"""What to do with a release, from what the state file says and what the cluster says. No side effects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stratlab.sweep.state import ENDED, Entry

Step = Literal["skip", "install", "join", "reinstall", "refuse"]


@dataclass(frozen=True)
class Seen:
    """A release as the cluster has it.

    Attributes:
        status: of helm: deployed, failed, pending-install, ...; "" = helm knows no such release.
        asked: the hash of its chart's name and values.
        has_workload: its custom resource is there. Helm creates it last: then all of the release is there, also
            where helm was killed before it could say so.
    """

    status: str = ""
    asked: str = ""
    has_workload: bool = False


@dataclass(frozen=True)
class Decision:
    """`reason` completes the sentence "<release>: "."""

    step: Step
    reason: str


def decide(entry: Entry | None, seen: Seen, asked: str, *, retry_failed: bool) -> Decision:
    """The next step for one release.

    Args:
        entry: of the state file.
        asked: the hash of what the sweep's file asks for now.
        retry_failed: a run that failed gets another chance.
    """
    if entry and entry.asked != asked:
        return Decision(
            "refuse",
            "was started with other settings; choose another comparison, or remove its results and its state "
            "[SL-run-other-settings]",
        )
    if entry and entry.stage == "succeeded":
        return Decision("skip", "has succeeded already")
    if entry and entry.stage == "failed" and not retry_failed:
        return Decision("skip", f"has failed already ({entry.sentence}); --retry-failed starts it again")
    if not seen.status:
        again = entry is not None and entry.stage not in ENDED
        return Decision("install", "was started, but is not in the cluster" if again else "is new")
    if seen.asked != asked:
        return Decision(
            "refuse",
            "is in the cluster with other settings; uninstall it or choose another comparison "
            "[SL-release-other-settings]",
        )
    if seen.status == "uninstalling" or (seen.status != "deployed" and not seen.has_workload):
        return Decision("reinstall", f"was only half installed ({seen.status})")
    if entry and entry.stage == "failed":
        return Decision("reinstall", "has failed and is tried again")
    if not seen.has_workload:
        return Decision("reinstall", "is installed, but its custom resource is gone")
    return Decision("join", "is in the cluster already")
