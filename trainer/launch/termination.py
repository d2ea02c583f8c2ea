"""A pod's last words, for people and for Kubernetes."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainer import failures

TERMINATION_LOG = Path("/dev/termination-log")  # Kubernetes shows it in `kubectl describe pod`


def end(code: int, text: str) -> int:
    """Says why, for people and for Kubernetes; returns `code`, also where nothing takes the words any more."""
    if code != failures.DONE:
        with suppress(OSError):  # a log on the volume that is full
            print(f"{failures.reason(code)} (exit code {code}):\n{text}", file=sys.stderr, flush=True)
    leave_last_words(code, failures.reason(code), text)
    return code


def drop_unwritten() -> None:
    """What a full volume has not taken of the output goes: Python would end with 120 for it, whatever the code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())


def leave_last_words(code: int, reason: str, text: str) -> None:
    """For Kubernetes alone."""
    if TERMINATION_LOG.exists():
        line: dict[str, Any] = {"exit_code": code, "reason": reason, "message": text[:2000]}
        try:
            TERMINATION_LOG.write_text(json.dumps(line) + "\n")
        except OSError as failure:
            with suppress(OSError):
                print(f"{TERMINATION_LOG}: {failure}", file=sys.stderr)
