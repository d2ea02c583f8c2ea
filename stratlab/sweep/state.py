"""`State` records the progress of a sweep in a JSON file next to its own, so that the next start continues.

The cluster decides which runs exist; this file keeps the facts that the cluster forgets when a release is removed.
`decide` derives the next step of a release from both, without side effects.
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

from stratlab import UserError

SCHEMA_VERSION = 1
Stage = Literal["installing", "running", "succeeded", "failed"]
ENDED: tuple[Stage, ...] = ("succeeded", "failed")


@dataclass(frozen=True)
class ReleaseEntry:
    """Hold one release. `asked` hashes its chart's name and values; `sentence` describes its end; times are Unix."""

    stage: Stage
    asked: str
    sentence: str = ""
    started: float = 0.0
    ended: float = 0.0


@dataclass(frozen=True)
class State:
    """Hold the state file as stored on disk; `record` returns the next state after writing it."""

    file: Path
    comparison: str
    namespace: str
    releases: Mapping[str, ReleaseEntry] = field(default_factory=dict)

    def record(self, name: str, **changes: Any) -> State:
        """Change one release and write the file atomically."""
        before = self.releases.get(name)
        entry = replace(before, **changes) if before else ReleaseEntry(**changes)
        return _write(replace(self, releases={**self.releases, name: entry}))


def state_file(sweep_file: Path) -> Path:
    """Return the path of the state, next to the sweep's file."""
    return sweep_file.with_name(sweep_file.name + ".state.json")


def tuning_file(sweep_file: Path) -> Path:
    """Return the path of its tuning's state; the tuning is a comparison of its own."""
    return sweep_file.with_name(sweep_file.name + ".tuning.state.json")


def read_state(file: Path, comparison: str, namespace: str) -> State:
    """Read the state from disk, or return an empty one.

    Raises:
        UserError: it belongs to another comparison or namespace, or it is not a state file.
    """
    try:
        content = json.loads(file.read_bytes())
        entries = {name: ReleaseEntry(**entry) for name, entry in content["releases"].items()}
        theirs = (content["comparison"], content["namespace"])
    except FileNotFoundError:
        return State(file, comparison, namespace)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as failure:
        raise UserError(
            f"{file}: not the state of a sweep ({failure!r}); move the file to another folder [SL-state-unreadable]"
        ) from failure
    if theirs != (comparison, namespace):
        raise UserError(
            f"{file}: belongs to comparison {theirs[0]} in namespace {theirs[1]}, but the sweep has {comparison} in "
            f"{namespace}; copy the sweep to another file, or move the state [SL-state-of-another]"
        )
    return State(file, comparison, namespace, entries)


@contextmanager
def only_one(file: Path, program: str = "stratlab sweep") -> Iterator[None]:
    """Lock the file; two sweeps of one file would install everything twice.

    Raises:
        UserError: another process holds the lock, which ends with that process.
    """
    with open(file.with_name(f".{file.name}.lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"{file}: another `{program}` uses it; wait for its end [SL-already-at-work]"
            ) from None
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
    """Describe a release in the cluster.

    Attributes:
        status: helm's status: deployed, failed, pending-install, ...; "" = helm does not know the release. asked: the
        hash of its chart's name and values. has_workload: its custom resource exists. Helm creates it last, so that the
        release is complete, even if helm was
            killed before it recorded this.
    """

    status: str = ""
    asked: str = ""
    has_workload: bool = False


@dataclass(frozen=True)
class Decision:
    """Hold the next step; `reason` completes the sentence "<release>: "."""

    step: Step
    reason: str


def decide(entry: ReleaseEntry | None, seen: SeenRelease, asked: str, *, retry_failed: bool) -> Decision:
    """Decide the next step for one release.

    Args:
        entry: from the state file.
        asked: the hash of the settings that the sweep's file has now.
        retry_failed: start failed runs again.
    """
    if entry and entry.asked != asked:
        return Decision(
            "refuse",
            "was started with other settings; set another comparison, or remove its results and its state "
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
            "is in the cluster with other settings; uninstall it or set another comparison "
            "[SL-release-other-settings]",
        )
    if seen.status == "uninstalling" or (seen.status != "deployed" and not seen.has_workload):
        return Decision("reinstall", f"was installed only partly ({seen.status})")
    if entry and entry.stage == "failed":
        return Decision("reinstall", "has failed and is tried again")
    if not seen.has_workload:
        return Decision("reinstall", "is installed, but its custom resource does not exist")
    return Decision("join", "is in the cluster already")
