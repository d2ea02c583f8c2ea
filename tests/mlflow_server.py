"""One real MLflow server for all test processes of a session: a start costs seven seconds of a processor.

python -m tests.mlflow_server FOLDER PID     see tests/session.py
"""

import sys
import time
from pathlib import Path

from stratlab.tracking_server import run_server
from tests.session import TICK_S, has_ended, tell_address


def keep(folder: Path, until: int) -> None:
    with run_server(folder / "store") as uri:
        tell_address(folder, uri)
        while not has_ended(until):
            time.sleep(TICK_S)


if __name__ == "__main__":
    keep(Path(sys.argv[1]), int(sys.argv[2]))
