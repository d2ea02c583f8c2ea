"""One run directory, one start: the launcher of rank 0 says every two seconds that it is at work.

Two releases of one name in two namespaces that share a volume, or a rehearsal beside a cluster, would write into one
folder. What counts is that somebody else's file changes while it is watched, never how old it looks: clocks of nodes
differ, and a pod that was killed leaves its file behind.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import Any

from trainer.record.run_directory import RunDirectory, read_line, write_json
from trainer.settings.config import ConfigError

RENEW_S = 2.0
WATCH_S = 8.0
"""Several renewals: a busy node or a slow volume may leave one out."""


class Lease(threading.Thread):
    """The claim of one launcher; `take` it before anything is written, `release` it at the end.

    Args:
        launcher: of this start.
        pod: its name, for the sentence that the other one gets.
    """

    def __init__(self, folder: RunDirectory, launcher: str, pod: str) -> None:
        super().__init__(name="lease", daemon=True)
        self._folder = folder
        self._facts = {"launcher": launcher, "pod": pod, "host": socket.gethostname()}
        self._released = threading.Event()

    def take(self) -> None:
        """Waits for a few seconds where an earlier start has left its file: does it still change?

        Raises:
            ConfigError: it does.
        """
        if (held := _read(self._folder)) and (again := _watch(self._folder, held)):
            raise ConfigError(
                [
                    f"{self._folder.path}: is being written by another start of this run, pod {again.get('pod')} on "
                    f"{again.get('host')}; end that one first, or choose another release name"
                ]
            )
        self._write(0)
        self.start()

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
            self._folder.path.mkdir(parents=True, exist_ok=True)
            write_json(self._folder.lease, {**self._facts, "beat": beat})


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
