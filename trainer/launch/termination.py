"""A pod's last words, for people and for Kubernetes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from trainer import failures

TERMINATION_LOG = Path("/dev/termination-log")  # Kubernetes shows it in `kubectl describe pod`


def end(code: int, text: str, reason: str = "") -> int:
    """Says why, for people and for Kubernetes; returns `code`. `reason`: in other words than the code's own."""
    reason = reason or failures.reason(code)
    if code != failures.DONE:
        print(f"{reason} (exit code {code}):\n{text}", file=sys.stderr, flush=True)
    if TERMINATION_LOG.exists():
        line: dict[str, Any] = {"exit_code": code, "reason": reason, "message": text[:2000]}
        try:
            TERMINATION_LOG.write_text(json.dumps(line) + "\n")
        except OSError as failure:
            print(f"{TERMINATION_LOG}: {failure}", file=sys.stderr)
    return code
