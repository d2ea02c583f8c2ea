"""`Spool` appends lines to a file whose volume may be full, without losing a training step.

Lines that cannot be written wait in memory and are written in order as soon as the volume has room again. If too many
wait, the oldest lines are dropped and counted.
"""

from __future__ import annotations

import errno
import logging
import os
from collections import deque
from pathlib import Path

from stratlab_spec.exit_codes import FolderGone, is_storage_full

MOST_BYTES = 16 << 20  # of waiting lines; a step is 250 bytes

log = logging.getLogger("trainer")


class Spool:
    """Append whole lines. Raise errors other than a full volume, and FolderGone if the file was removed."""

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES) -> None:
        self.path = path
        self.dropped = 0
        """Lines that are lost."""
        self._most_bytes = most_bytes
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._is_cut = _ends_within_a_line(path)  # by a process that was killed, or by a full volume
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._told = False
        if self._is_cut:
            self.append(b"\n")

    def append(self, line: bytes) -> None:
        """Keep a line until the next flush."""
        self._waiting.append(line)
        self._bytes += len(line)
        while self._bytes > self._most_bytes and len(self._waiting) > 1 + self._is_cut:
            oldest = self._waiting[self._is_cut]  # a part of the first line may be on the volume already
            del self._waiting[self._is_cut]
            self._bytes -= len(oldest)
            self.dropped += 1

    def flush(self) -> bool:
        """Write the waiting lines; return False if the volume is full and they must wait.

        Raises:
            FolderGone: after writing them, because the sender still has the file open.
        """
        is_gone = self._is_gone()
        is_written = self._write()
        if is_gone:
            text = "the folder of this run was removed or moved while it ran [SL-folder-gone]"
            raise FolderGone(f"{self.path.parent}: {text}")
        return is_written

    def _is_gone(self) -> bool:
        try:
            return os.stat(self.path).st_ino != os.fstat(self._file).st_ino
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError as failure:
            return failure.errno == errno.ESTALE

    def _write(self) -> bool:
        while self._waiting:
            data = b"".join(self._waiting)
            try:
                written = os.write(self._file, data)
            except OSError as failure:
                if not is_storage_full(failure):
                    raise
                if not self._told:
                    self._told = True
                    log.warning("%s: %s; training continues, its lines wait in memory", self.path, failure)
                return False
            self._forget(written)
        self._told = False
        return True

    def close(self) -> None:
        """Write the waiting lines; log a warning if some are lost."""
        if not self.flush():
            log.warning("%s: %d lines are lost", self.path, len(self._waiting) + self.dropped)
        os.close(self._file)

    def _forget(self, written: int) -> None:
        self._bytes -= written
        if not self._bytes:
            self._waiting.clear()
            self._is_cut = False
            return
        while self._waiting and written >= len(self._waiting[0]):
            written -= len(self._waiting.popleft())
            self._is_cut = False
        if written:
            self._waiting[0] = self._waiting[0][written:]
            self._is_cut = True


def _ends_within_a_line(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:  # not there, or empty
        return False
