"""The process of one stage: `python -m benchmarks.gpu.one_stage SESSION`, started by the runner."""

from __future__ import annotations

import importlib
import os
import sys

from benchmarks.gpu.processes import Ended, end_with_parent, raise_on_signals
from benchmarks.gpu.session import Session


def main(arguments: list[str]) -> int:
    """Run the stage that the session names."""
    session = Session.from_json(arguments[0])
    end_with_parent()
    raise_on_signals()
    try:
        importlib.import_module(f"benchmarks.gpu.{session.stage}").run(session)
    except Ended:
        return 143
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # a broken CUDA context can hang in its destructors
