"""Which exit code a run of several pods has: `python -m trainer.program culprit`, for what has started them.

mpirun and srun know one number, of who ended first or with the highest one. The pods' ledgers know all.
"""

from __future__ import annotations

import argparse
import os

from trainer import failures
from trainer.failures import first_failure
from trainer.launch.ledger import read_last_codes
from trainer.launch.termination import end
from trainer.record.run_directory import RunDirectory
from trainer.settings.config import Config, ConfigError


def find_culprit(folder: RunDirectory, since: float, code: int) -> int:
    """The exit code to pass on: a survivor may be faster than the culprit.

    Args:
        since: seconds since 1970; what ended before is of an earlier start.
        code: what the starter itself knows, where no ledger knows more; a signal as a negative number.
    """
    codes = {pod: last for pod, last in read_last_codes(folder, since).items() if last != failures.DONE}
    if not codes:
        return code if code > 0 else 128 - code
    permanent = {pod: last for pod, last in codes.items() if 0 < last < 128}  # it would come again
    codes = permanent or codes
    return first_failure({index: codes[pod] for index, pod in enumerate(sorted(codes))})[1]


def main(arguments: list[str]) -> int:
    """Prints the code of the run that the environment names."""
    parser = argparse.ArgumentParser(
        "python -m trainer.program culprit",
        description="The exit code of a run, read from its pods' ledgers: below 128 it would end so again.",
        epilog="example: TRAINER_RUN=try TRAINER_RESULTS=runs python -m trainer.program culprit --since 1764085440 "
        "--code 134",
    )
    parser.add_argument("--since", type=float, required=True, help="seconds since 1970, when it was started")
    parser.add_argument("--code", type=int, required=True, help="what the starter knows")
    options = parser.parse_args(arguments)
    try:
        config = Config.from_env(os.environ)
    except ConfigError as failure:
        return end(failures.BAD_CONFIG, str(failure))
    print(
        find_culprit(RunDirectory(config.results, config.comparison, config.run), options.since, options.code)
    )
    return failures.DONE
