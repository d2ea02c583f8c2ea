"""One real MLflow server for all test processes of a session: a start costs seven seconds of a processor.

python -m tests.mlflow_server FOLDER PID     serves until process PID has ended; the address lies in FOLDER/address
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

from stratlab.rehearse.environment import build_machine_env
from stratlab.tracking_server import START_DEADLINE_S, run_server
from tests.tiers import refuse_in_fast

TICK_S = 0.5


def find_server(shared: Path, until: int) -> str:
    """The address of the server in a folder that all test processes know; the first of them starts it.

    Args:
        shared: the folder.
        until: pid of the process that all of them belong to; the server ends after it.
    """
    refuse_in_fast("an MLflow server")
    folder = shared / "mlflow-server"
    address = folder / "address"
    with (shared / "mlflow-server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not address.exists():
            folder.mkdir()
            with (folder / "keeper.log").open("wb") as log:
                keeper = subprocess.Popen(
                    [sys.executable, "-m", __name__, str(folder), str(until)],
                    env=build_machine_env(os.environ),
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C reaches the tests, which still need it to clean up
                )
            deadline = time.monotonic() + START_DEADLINE_S
            while not address.exists():
                assert keeper.poll() is None and time.monotonic() < deadline, (
                    folder / "keeper.log"
                ).read_text()
                time.sleep(0.1)
    return address.read_text()


def keep(folder: Path, until: int) -> None:
    with run_server(folder / "store") as uri:
        part = folder / "address.part"
        part.write_text(uri)
        part.rename(folder / "address")
        while Path(f"/proc/{until}").exists():
            time.sleep(TICK_S)


if __name__ == "__main__":
    keep(Path(sys.argv[1]), int(sys.argv[2]))
