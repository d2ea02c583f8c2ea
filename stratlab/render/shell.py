"""Lines that every script has."""

from __future__ import annotations

import shlex

from stratlab.render.start import Start

PYTHON = '"${PYTHON:-python}"'
PORT = 29500
"""torch's own for a rendezvous."""


def build_head(start: Start, what: str, how: str) -> list[str]:
    """The remark at the top."""
    return [
        "#!/bin/bash",
        f"# {start.name}: {what}, {start.nodes} x {start.processes} processes, by stratlab render.",
        *(f"# {line}" for line in how.splitlines()),
    ]


def build_tail(start: Start) -> list[str]:
    """What to do when it has ended."""
    run_dir = shlex.quote(str(start.run_dir))
    return [f"# Run directory: {run_dir}. When it has ended: stratlab analyze {run_dir}"]


def build_exports(start: Start) -> list[str]:
    """The settings; no variable of a shell's past may change a run."""
    return [
        "unset ${!TRAINER_@} ${!PET_N@} ${!PET_R@} ${!PET_M@} ${!STRATLAB_@}",
        *(f"export {name}={shlex.quote(value)}" for name, value in start.env.items()),
    ]


def build_secret_checks(start: Start) -> list[str]:
    """Ends the script, naming the variable, before anything starts."""
    return [f': "${{{name}:?is asked for by run.secrets: export it first}}"' for name in start.secrets]


def build_meeting(start: Start, endpoint: str, index: str) -> list[str]:
    """Where the pods meet, as the training operator says it: torch's launcher reads PET_*.

    Args:
        endpoint: shell text of host:port, reachable by all.
        index: shell text of the pod's number, from 0.
    """
    return [
        f"export PET_NNODES={start.nodes} PET_NPROC_PER_NODE={start.processes} PET_MAX_RESTARTS=0",
        'export PET_RDZV_BACKEND=c10d PET_RDZV_CONF=read_timeout=15 PET_RDZV_ID="$TRAINER_RUN"',
        f"export PET_RDZV_ENDPOINT={endpoint}",
        f'export HOSTNAME="$TRAINER_RUN-worker-{index}"  # the ranks follow it',
    ]
