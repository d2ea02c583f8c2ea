"""What a sweep has done, in a JSON file beside its own: whoever starts it again goes on from here.

The cluster has the last word about what runs; this file keeps what the cluster forgets when a release is removed.
`decide` says what to do with a release, from what both say, without side effects.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from stratlab.user_error import UserError

SCHEMA_VERSION = 1
Stage = Literal["installing", "running", "succeeded", "failed"]
ENDED: tuple[Stage, ...] = ("succeeded", "failed")


@dataclass(frozen=True)
class ReleaseEntry:
    """One release. `asked` is the hash of its chart's name and values; `sentence` how it ended. Times are Unix."""

    stage: Stage
    asked: str
    sentence: str = ""
    started: float = 0.0
    ended: float = 0.0


@dataclass(frozen=True)
class State:
    """The state file as it is on disk. `record` returns the next one, which is on disk by then."""

    file: Path
    comparison: str
    namespace: str
    releases: Mapping[str, ReleaseEntry] = field(default_factory=dict)

    def record(self, name: str, **changes: Any) -> State:
        """Changes one release and writes the file, whole or not at all."""
        before = self.releases.get(name)
        entry = replace(before, **changes) if before else ReleaseEntry(**changes)
        return _write(replace(self, releases={**self.releases, name: entry}))


def state_file(sweep_file: Path) -> Path:
    """Beside the sweep's own file."""
    return sweep_file.with_name(sweep_file.name + ".state.json")


def tuning_file(sweep_file: Path) -> Path:
    """The state of its tuning, which is a comparison of its own."""
    return sweep_file.with_name(sweep_file.name + ".tuning.state.json")


def read_state(file: Path, comparison: str, namespace: str) -> State:
    """The state on disk, or an empty one.

    Raises:
        UserError: it is of another comparison or namespace, or not what this program writes.
    """
    try:
        content = json.loads(file.read_bytes())
        entries = {name: ReleaseEntry(**entry) for name, entry in content["releases"].items()}
        theirs = (content["comparison"], content["namespace"])
    except FileNotFoundError:
        return State(file, comparison, namespace)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as failure:
        raise UserError(
            f"{file}: not the state of a sweep ({failure!r}); move it away [SL-state-unreadable]"
        ) from failure
    if theirs != (comparison, namespace):
        raise UserError(
            f"{file}: belongs to comparison {theirs[0]} in namespace {theirs[1]}, the sweep says {comparison} in "
            f"{namespace}; copy the sweep to a file of its own, or move the state away [SL-state-of-another]"
        )
    return State(file, comparison, namespace, entries)


@contextmanager
def only_one(file: Path, program: str = "stratlab sweep") -> Iterator[None]:
    """Two sweeps of one file would install everything twice.

    Raises:
        UserError: another process is at it. The lock goes with its process, however that ends.
    """
    with open(file.with_name(f".{file.name}.lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{file}: another `{program}` is at work on it [SL-already-at-work]") from None
        yield


def _write(state: State) -> State:
    content = {
        "schema_version": SCHEMA_VERSION,
        "comparison": state.comparison,
        "namespace": state.namespace,
        "written": time.time(),
        "releases": {name: asdict(entry) for name, entry in state.releases.items()},
    }
    temporary = state.file.with_name(f".{state.file.name}.tmp")
    with open(temporary, "w") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, state.file)
    return state


Step = Literal["skip", "install", "join", "reinstall", "refuse"]


@dataclass(frozen=True)
class SeenRelease:
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


def decide(entry: ReleaseEntry | None, seen: SeenRelease, asked: str, *, retry_failed: bool) -> Decision:
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
