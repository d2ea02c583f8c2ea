"""One run directory, one start: the launcher of rank 0 says every two seconds that it is at work.

Two releases of one name in two namespaces that share a volume, or a rehearsal beside a cluster, would write into one
folder. What counts is that somebody else's file changes while it is watched, never how old it looks: clocks of nodes
differ, and a pod that was killed leaves its file behind.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer.record.run_directory import RunDirectory, read_line, write_json
from trainer.settings.config import ConfigError

RENEW_S = 2.0
WATCH_S = 8.0
"""Several renewals: a busy node or a slow volume may leave one out."""


class Lease(threading.Thread):
    """The claim of one launcher: `check` before anything is read, `take` before it is written, `release` at the end.

    Args:
        launcher: of this start.
        pod: its name, for the sentence that the other one gets.
    """

    def __init__(self, folder: RunDirectory, launcher: str, pod: str) -> None:
        super().__init__(name="lease", daemon=True)
        self._folder = folder
        self._facts = {
            "launcher": launcher,
            "pod": pod,
            "host": socket.gethostname(),
            **_describe(os.getpid()),
        }
        self._released = threading.Event()
        self._left: dict[str, Any] = {}
        """What an earlier start has left, and does not change."""

    def take(self) -> None:
        """Claims the folder.

        Raises:
            ConfigError: another start is at work in it.
        """
        self.check()
        self._write(0)
        self.start()

    def check(self) -> None:
        """Waits for a few seconds where an earlier start has left its file: does it still change? Writes nothing.

        Raises:
            ConfigError: it does.
        """
        held = _read(self._folder)
        if held in ({}, self._left):
            return
        if again := held if _is_there(held) else _watch(self._folder, held):
            who = f"pod {again.get('pod')} on {again.get('host')}, process {again.get('pid', 'unknown')}"
            raise ConfigError(
                [
                    f"{self._folder.path}: is being written by another start of this run, {who}; end that one "
                    "first, or choose another name (TRAINER_RUN) [SL-run-being-written]"
                ]
            )
        self._left = held

    def run(self) -> None:
        beat = 0
        while not self._released.wait(RENEW_S):
            beat += 1
            self._write(beat)

    def release(self) -> None:
        self._released.set()
        if self.ident is not None:
            self.join()
            with suppress(OSError):
                self._folder.lease.unlink(missing_ok=True)

    def _write(self, beat: int) -> None:
        with suppress(OSError):  # a full volume costs the protection, not the run
            if not beat:  # later on it was removed, and must not look as if it were there
                self._folder.path.mkdir(parents=True, exist_ok=True)
            write_json(self._folder.lease, {**self._facts, "beat": beat})


def _describe(pid: int) -> dict[str, Any]:
    """A process that is there: its number, its moment of start, and the container that counts it; {} if it is not."""
    with suppress(OSError):
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if state != "Z":
            return {"pid": pid, "began": rest[18], "seen_from": os.readlink("/proc/self/ns/pid")}
    return {}


def _is_there(held: dict[str, Any]) -> bool:
    """Whether another process of this machine or container holds it: it may stand still (Ctrl-Z), while its ranks
    train on. Of another machine nobody knows."""
    found = _describe(held.get("pid", 0))
    return bool(found) and found["pid"] != os.getpid() and found.items() <= held.items()


def _read(folder: RunDirectory) -> dict[str, Any]:
    try:
        return read_line(folder.lease.read_bytes())
    except OSError:
        return {}


def _watch(folder: RunDirectory, held: dict[str, Any]) -> dict[str, Any]:
    """The file as soon as it differs from `held`; {} if it does not within WATCH_S, or is gone."""
    deadline = time.monotonic() + WATCH_S
    while time.monotonic() < deadline:
        time.sleep(0.2)
        if (now := _read(folder)) != held:
            return now
    return {}
