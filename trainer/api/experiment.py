"""`run_experiment`: a run as a process of its own, as on a cluster; no state of it stays in the notebook."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from trainer import failures
from trainer.api.keywords import Scalar, build_options, named_settings, read_settings
from trainer.launch.options import COMPARISON, DEFAULT_RESULTS, RESULTS, name_by_chart

LAST_LINES = 20


class ExperimentFailed(RuntimeError):
    """A run that did not end with 0.

    Attributes:
        exit_code: of the trainer (docs/stops.md).
        folder: the run directory, which holds what there was of it.
    """

    def __init__(self, exit_code: int, folder: Path, text: str) -> None:
        super().__init__(f"{failures.reason(exit_code)} (exit code {exit_code}): {folder}\n{text}")
        self.exit_code = exit_code
        self.folder = folder


@named_settings()
def run_experiment(
    *, config: str | Path | None = None, processes: int | None = None, echo: bool = True, **settings: Scalar
) -> Path:
    """Trains, and returns the run directory. What `python -m trainer --config FILE --set key=value` would do.

    Args:
        config: a file of settings, or of a chart's values; `settings` win over it.
        processes: on this machine; None = what the file says, else one per GPU, else one.
        echo: what the run says is written to standard error as it comes.
        settings: by their names (`python -m trainer.settings --schema`); None takes one of the file back. Without `run`
            each call is a new run, which has a name of its strategy and the time.

    Raises:
        ConfigError: before anything is started, naming every wrong value, or every broken rule between right ones.
        ExperimentFailed: the run ended otherwise than with 0; with 2 where settings do not fit processes or data.
    """
    options = build_options(config, processes, settings)
    asked, _ = read_settings(options, name_by_time)
    options += ["--set", f"run={asked.run}"]
    folder = Path(asked.results, asked.comparison, asked.run)
    code, text = _follow([sys.executable, "-m", "trainer", *options], echo)
    if code:
        raise ExperimentFailed(code, folder, text)
    return folder


def name_by_time(env: Mapping[str, str], now: datetime | None = None) -> str:
    """`ddp-20261125-154400`, or with -2, -3 ... after it where that folder is there: a cell may be run again."""
    name = f"{name_by_chart(env)}-{now or datetime.now(UTC):%Y%m%d-%H%M%S}"
    folder = Path(env.get(RESULTS, DEFAULT_RESULTS)) / env.get(COMPARISON, "default")
    number, free = 1, name
    while (folder / free).exists():
        number += 1
        free = f"{name}-{number}"
    return free


def _follow(command: list[str], echo: bool) -> tuple[int, str]:
    """Exit code and last lines. An interrupt is passed on, and the run saves a checkpoint before it ends."""
    last: deque[str] = deque(maxlen=LAST_LINES)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout
    try:
        for line in process.stdout:
            last.append(line)
            if echo:
                print(line, end="", file=sys.stderr, flush=True)  # a notebook shows it in the cell
    except BaseException:
        process.send_signal(signal.SIGTERM)
        process.wait()
        raise
    code = process.wait()
    return (code if code >= 0 else 128 - code), "".join(last)
