"""What all processes of one call of pytest share: a folder, and servers that end with it.

A server is a module of tests/ that is called as `python -m MODULE FOLDER PID`, puts its address into FOLDER/address,
and ends when `has_ended(PID)`.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SESSION = "STRATLAB_TEST_SESSION"
"""The pid of the pytest process that was called; its workers' parent. Set by tests/conftest.py."""
START_S = 600.0
TICK_S = 0.2


def open_session(pid: int) -> None:
    """Makes `pid` the session of this process, also where another session's test has started it."""
    os.environ[SESSION] = str(pid)


def close_session() -> None:
    """Takes the folder away; only whoever was called does it."""
    shutil.rmtree(session_folder(), ignore_errors=True)


def session_folder() -> Path:
    """The folder of this session; a short path, because a socket may lie in it."""
    folder = (
        Path(tempfile.gettempdir()) / f"stratlab-tests-{os.environ.setdefault(SESSION, str(os.getpid()))}"
    )
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def find_server(module: str) -> str:
    """The address of the session's server; the first process that asks for it starts it."""
    folder = session_folder() / module
    address = folder / "address"
    with (session_folder() / f"{module}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not address.exists():
            folder.mkdir()
            with (folder / "log").open("wb") as log:
                server = subprocess.Popen(
                    [sys.executable, "-m", module, str(folder), os.environ[SESSION]],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # after Ctrl-C tests still clean up with it
                )
            deadline = time.monotonic() + START_S
            while not address.exists():
                ended = server.poll() is not None or time.monotonic() > deadline
                assert not ended, f"{module} did not start: {(folder / 'log').read_text()[-3000:]}"
                time.sleep(TICK_S / 4)
    return address.read_text()


def tell_address(folder: Path, address: str) -> None:
    """The server's side of `find_server`: the address appears whole."""
    part = folder / "address.part"
    part.write_text(address)
    part.rename(folder / "address")


def has_ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()
