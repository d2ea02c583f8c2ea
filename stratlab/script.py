"""A chart as a script for machines without Kubernetes: the same settings, the same program, the same run directory.

`build_script` renders the chart (script_start.py), lets the trainer check the settings, and fills in a template of
stratlab/scripts: torchrun (one machine, or several that are started by hand), slurm (a batch script: one task per
node, as a pod is one, and an array for repeats), hostfile (several machines over ssh), or docker (one machine, in the
image, as a pod of Pod Security `restricted` would be).
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from stratlab.machine import build_machine_env
from stratlab.script_start import RenderRequest, Start, build_start, read_hostfile
from stratlab.trainer_program import Refused, ask_trainer, list_refusals
from stratlab.user_error import UserError

PORT = 29500
"""torch's own for a rendezvous."""
AFTER_FAILURE_S = 30
UNITS = {
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "": 1,
    "k": 10**3,
    **{letter: 10 ** (3 * power) for power, letter in enumerate("MGTPE", 2)},
    **{f"{letter}i": 2 ** (10 * power) for power, letter in enumerate("KMGTPE", 1)},
}
AMOUNT = re.compile(rf"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?({'|'.join(UNITS)})")
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
OF_THE_SHELL = ("UID", "EUID", "PPID", "BASHOPTS", "SHELLOPTS", "BASH_VERSINFO")
"""Variables that bash sets and lets nobody set."""


@dataclass(frozen=True)
class Wanted:
    """Who starts it: torchrun, slurm, hostfile or docker, with what belongs to one of them."""

    starter: str
    hostfile: Path | None = None
    repeats: int = 1


def build_script(request: RenderRequest, wanted: Wanted) -> tuple[str, list[str]]:
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


def fill_in(template: str, **context: Any) -> str:
    """The script of a template in stratlab/scripts."""
    environment = Environment(
        loader=PackageLoader("stratlab", "scripts"),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        comment_start_string="{##",  # bash has ${#array[@]}
        comment_end_string="##}",
    )
    environment.filters |= {
        "quote": lambda value: shlex.quote(str(value)),
        "cpus": count_cpus,
        "mib": count_mib,
    }
    return environment.get_template(f"{template}.sh.jinja").render(context)


def build_torchrun(start: Start) -> str:
    return fill_in("torchrun", start=start, port=PORT)


def build_slurm(start: Start, repeats: int = 1) -> str:
    """The script; `repeats` above 1 make an array, whose runs are called as a sweep calls them: NAME, NAME-r2 ..."""
    deadline = start.env.get("TRAINER_DEADLINE_S")
    minutes = -(-(int(float(deadline)) + start.grace_s) // 60) if deadline else 0
    return fill_in("slurm", start=start, repeats=repeats, minutes=minutes)


def build_docker(start: Start) -> str:
    """The script.

    Raises:
        UserError: for several nodes: containers on several machines need a network that docker alone does not make.
    """
    if start.nodes > 1:
        raise UserError(
            f"--for docker: run.nodes={start.nodes}: one container is one machine; give --nodes 1 and more "
            "--processes, or --for hostfile without containers [SL-docker-many-nodes]"
        )
    mount = io.StringIO()  # as docker reads it: comma-separated values, a field in quotes where it has to be
    fields = ["type=bind", f"source={start.results}", f"target={start.mount}"]
    csv.writer(mount, lineterminator="").writerow(fields)
    return fill_in("docker", start=start, mount=mount.getvalue())


def build_hostfile(start: Start, hosts: Sequence[str]) -> str:
    """The script. Whatever the values hold, no line of a machine's share ends the share."""
    share = fill_in("hostfile_share", start=start, first=hosts[0].partition("@")[2] or hosts[0])
    end = "END_OF_SHARE"
    while end in share.splitlines():
        end += "_"
    context = {"port": PORT, "after_failure_s": AFTER_FAILURE_S}
    return fill_in("hostfile", start=start, hosts=hosts, share=share, end=end, **context)


def read_amount(text: str) -> float:
    """`500m` is 0.5, `2Gi` 2147483648.

    Raises:
        ValueError: it is none.
    """
    found = AMOUNT.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is no amount [SL-no-amount]")
    return float(found[1] + (found[2] or "")) * UNITS[found[3]]


def count_cpus(text: str) -> int:
    """Whole ones, at least one; "" = one."""
    return max(1, math.ceil(read_amount(text))) if text else 1


def count_mib(text: str) -> int:
    """Whole MiB, rounded up."""
    return math.ceil(read_amount(text) / UNITS["Mi"])
