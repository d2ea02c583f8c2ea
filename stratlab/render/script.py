"""From what the user asked for to the script: rendered, checked by the trainer, written for one starter."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from stratlab.machine.environment import build_machine_env
from stratlab.render.docker import build_docker
from stratlab.render.hostfile import build_hostfile, read_hostfile
from stratlab.render.slurm import build_slurm
from stratlab.render.start import Request, Start, build_start
from stratlab.render.torchrun import build_torchrun
from stratlab.rendering.checking import Refused, ask_trainer, list_refusals
from stratlab.user_error import UserError

CONTROL = re.compile(r"[\x00-\x1f\x7f]")
OF_THE_SHELL = ("UID", "EUID", "PPID", "BASHOPTS", "SHELLOPTS", "BASH_VERSINFO")
"""Variables that bash sets and lets nobody set."""


@dataclass(frozen=True)
class Wanted:
    """Who starts it: torchrun, slurm, hostfile or docker, with what belongs to one of them."""

    starter: str
    hostfile: Path | None = None
    repeats: int = 1


def build_script(request: Request, wanted: Wanted) -> tuple[str, list[str]]:
    """The script, and sentences for the user.

    Raises:
        UserError: an option, a chart or a setting is wrong.
        Refused: the trainer refuses the settings.
    """
    if (wanted.starter == "hostfile") != (wanted.hostfile is not None):
        raise UserError(
            "--hostfile FILE belongs to --for hostfile, which needs it: gpu-node-01 slots=8, a line each "
            "[SL-hostfile-option]"
        )
    if wanted.repeats > 1 and wanted.starter != "slurm":
        raise UserError(
            f"--repeats {wanted.repeats}: only with --for slurm; elsewhere start it again with another --name "
            "[SL-repeats-option]"
        )
    hosts = read_hostfile(wanted.hostfile) if wanted.hostfile else None
    if hosts:
        if request.nodes not in (None, len(hosts.names)):
            raise UserError(
                f"--nodes {request.nodes}: the hostfile has {len(hosts.names)} machines [SL-nodes-not-hostfile]"
            )
        request = replace(request, nodes=len(hosts.names), processes=request.processes or hosts.slots or None)
    start = build_start(request, in_image=wanted.starter == "docker")
    if problems := [*find_unwritable(start, wanted.starter)]:
        raise UserError("\n".join(problems))
    said = check(start)
    if hosts:
        return build_hostfile(start, hosts.names), said
    if wanted.starter == "slurm":
        return build_slurm(start, wanted.repeats), said
    return {"docker": build_docker, "torchrun": build_torchrun}[wanted.starter](start), said


def find_unwritable(start: Start, starter: str) -> Iterator[str]:
    """A sentence for each thing that no script can say."""
    if CONTROL.search(str(start.results)):
        where = f"--results {str(start.results)!r}"
        yield f"{where}: a line break or another control character is in it [SL-results-control]"
    for name, value in start.env.items():
        if "\0" in value:
            yield f"run.env: {name}={value!r}: no variable can hold the character \\0 [SL-env-null]"
        if name in OF_THE_SHELL and starter != "docker":
            yield f"run.env: {name}: bash sets it and lets nobody set it; expected another name [SL-env-of-shell]"


def check(start: Start) -> list[str]:
    """Lets the trainer check the settings, as far as another machine allows; what could not be checked.

    Raises:
        Refused: with every sentence.
    """
    pods = {"PET_NNODES": str(start.nodes), "PET_NPROC_PER_NODE": str(start.processes)}
    runs = {start.name: {**start.env, **pods}}
    answers = ask_trainer(runs, build_machine_env(os.environ), ["--elsewhere"])
    if answers.refused:
        raise Refused(list_refusals(answers, 1, runs), min(code for code, _ in answers.refused.values()))
    return [f"the settings could not be checked: {answers.reason}"] if answers.reason else []
