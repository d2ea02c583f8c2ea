"""`python -m trainer.program NAME ...`: the trainer's smaller programs, which charts and tools start."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from trainer.installation import packages_needed
from trainer.launch.stop import listen_early

PROGRAMS = {
    "accelerators": "checks whether a process gets its devices",
    "check": "checks many runs at once without starting them",
    "culprit": "which exit code a run of several pods has",
    "replay": "sends the metrics of a run from its volume",
    "tensorboard": "makes TensorBoard's files of runs",
    "worker_pod": "the first process of an MPIJob's worker pod",
}


def main(arguments: Sequence[str]) -> int:
    """Run the program of this name with the remaining arguments; return its exit code."""
    name, given = (arguments[0], list(arguments[1:])) if arguments else ("", [])
    if name not in PROGRAMS:
        asked = name in ("-h", "--help")
        lines = [f"  {each:14}{what}" for each, what in PROGRAMS.items()]
        usage = "\n".join(["usage: python -m trainer.program NAME ...", "", *lines])
        print(usage, file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    if name == "worker_pod":
        listen_early()
    with packages_needed():
        match name:
            case "accelerators":
                from trainer.launch.torchrun import main as run
            case "check":
                from trainer.launch.batch_validation import main as run
            case "culprit":
                from trainer.launch.ledger import main as run
            case "replay":
                from trainer.launch.tensorboard import main_of_replay as run
            case "tensorboard":
                from trainer.launch.tensorboard import main as run
            case _:
                from trainer.launch.mpi import main_of_worker_pod as run
        return run(given)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
