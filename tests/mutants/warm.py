"""Answers requests to run tests, each in a fork of a process that has read the large libraries already.

To start pytest and import torch takes five seconds of a processor, most tests less than one. This file is started by
itself and imports nothing of the project, so that what a fork imports is its tree's own. One request and one answer
per line in JSON: {"tree", "tests", "limit_s"}, and [exit code of pytest, first test that failed or ""]. Tests that take
longer are ended: 1, and the one that ran.
"""

import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import time
from typing import Any

FAILED = 1
TICK_S = 0.05


def main() -> None:
    """Until nobody asks any more. Its arguments are the libraries."""
    for name in sys.argv[1:]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        with open(os.memfd_create("test"), "w+") as test:
            child = os.fork()
            if not child:
                _run(request, test.fileno())
            code = _wait(child, time.monotonic() + request["limit_s"])
            test.seek(0)
            print(json.dumps([code, test.read() if code else ""]), flush=True)


class _Teller:
    """A plugin that keeps in a file which test is running, or which file could not be read. Nothing comes after the
    first that fails."""

    def __init__(self, file: int) -> None:
        self._file = file

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._tell(nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._tell(report.nodeid)

    def _tell(self, nodeid: str) -> None:
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, nodeid.encode(), 0)


def _run(request: dict[str, Any], file: int) -> None:
    """pytest, as if it had been started in the tree. Does not return."""
    os.setsid()
    os.chdir(request["tree"])
    # an earlier slip's bytecode would be taken for the next one's: same size, same second
    os.environ |= {"PYTHONPATH": request["tree"], "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    sys.path[0] = request["tree"]
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    code = FAILED
    try:
        import pytest

        options = ["-q", "-x", "-p", "no:cacheprovider"]
        code = int(pytest.main([*options, *request["tests"]], plugins=[_Teller(file)]))
    finally:
        os._exit(code)


def _wait(child: int, deadline: float) -> int:
    """The exit code; of one that was ended, with all that it had started, 1."""
    try:
        while time.monotonic() < deadline:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                child = 0
                return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else FAILED
            time.sleep(TICK_S)
        return FAILED
    finally:  # also after Ctrl-C
        if child:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)


if __name__ == "__main__":
    main()
