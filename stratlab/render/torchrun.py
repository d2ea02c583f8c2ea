"""`--for torchrun`: the line that somebody types on each machine."""

from __future__ import annotations

from stratlab.render.shell import (
    PORT,
    PYTHON,
    build_exports,
    build_head,
    build_meeting,
    build_secret_checks,
    build_tail,
)
from stratlab.render.start import Start

HOW = "python -m trainer starts torch's elastic launcher (torchrun) itself and reads the same PET_* variables.\n"
ONE = "Start it with: bash FILE"
SEVERAL = (
    "On each machine, with one folder for all: NODE_RANK=<0, 1 ...> MASTER_ADDR=<of the first> bash FILE"
)


def build_torchrun(start: Start) -> str:
    """The script."""
    lines = build_head(start, "torchrun", HOW + (ONE if start.nodes == 1 else SEVERAL))
    lines += [*build_tail(start), "set -eu"]
    if start.nodes > 1:
        lines += [
            ': "${NODE_RANK:?the number of this machine, from 0}"',
            ': "${MASTER_ADDR:?the address of the first machine, which all others reach}"',
        ]
    lines += build_secret_checks(start) + build_exports(start)
    if start.nodes > 1:
        lines += build_meeting(start, f'"$MASTER_ADDR:${{MASTER_PORT:-{PORT}}}"', "$NODE_RANK")
        lines += [f"exec {PYTHON} -m trainer"]
    else:
        lines += [f"exec env PET_NPROC_PER_NODE={start.processes} {PYTHON} -m trainer"]
    return "\n".join(lines) + "\n"
