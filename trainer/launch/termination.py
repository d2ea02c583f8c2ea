"""A pod's last words, for people and for Kubernetes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from trainer import failures

TERMINATION_LOG = Path("/dev/termination-log")  # Kubernetes shows it in `kubectl describe pod`


def end(code: int, text: str) -> int:
    """Says why, for people and for Kubernetes; returns `code`."""
    if code != failures.DONE:
        print(f"{failures.reason(code)} (exit code {code}):\n{text}", file=sys.stderr, flush=True)
    leave_last_words(code, failures.reason(code), text)
    return code


def leave_last_words(code: int, reason: str, text: str) -> None:
    """For Kubernetes alone."""
    if TERMINATION_LOG.exists():
        line: dict[str, Any] = {"exit_code": code, "reason": reason, "message": text[:2000]}
        try:
            TERMINATION_LOG.write_text(json.dumps(line) + "\n")
        except OSError as failure:
            print(f"{TERMINATION_LOG}: {failure}", file=sys.stderr)
