"""A chart as a script for machines without Kubernetes: the same settings, the same program, the same run directory.

start      what helm renders, taken apart: settings, secrets, processes, folders
shell      the lines that every script has
torchrun   one machine, or several that are started by hand
slurm      a batch script
hostfile   several machines over ssh
docker     one machine, in the image

`--for torchrun`: the line that somebody types on each machine.

Amounts as Kubernetes writes them, for programs that write them otherwise.

`--for docker`: one machine, in the image, as a pod of Pod Security `restricted` would be.

`--for slurm`: a batch script. One task per node, as a pod is one; an array for repeats.

From what the user asked for to the script: rendered, checked by the trainer, written for one starter.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from stratlab.machine import build_machine_env
from stratlab.script_start import (
    PORT,
    PYTHON,
    Request,
    Start,
    build_exports,
    build_head,
    build_hostfile,
    build_meeting,
    build_secret_checks,
    build_start,
    build_tail,
    read_hostfile,
)
from stratlab.trainer_program import Refused, ask_trainer, list_refusals
from stratlab.user_error import UserError

TORCHRUN_HOW = (
    "python -m trainer starts torch's launcher (torchrun) itself and reads the same PET_* variables.\n"
)
ONE = "Start it with: bash FILE"
SEVERAL = (
    "On each machine, with one folder for all: NODE_RANK=<0, 1 ...> MASTER_ADDR=<of the first> bash FILE"
)


def build_torchrun(start: Start) -> str:
    """The script."""
    lines = build_head(start, "torchrun", TORCHRUN_HOW + (ONE if start.nodes == 1 else SEVERAL))
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


USER = "10001:10001"
"""As the chart has it."""


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
    user = USER.partition(":")[0]
    how = f"Start it with: bash FILE. The folder must be writable for user {user}, whom the image runs as."
    lines = build_head(start, "docker", how) + build_tail(start)
    lines += ["set -eu", *build_secret_checks(start)]
    words = [["exec", "docker", "run", "--rm", "--init=false"], *_docker_options(start)]
    words += [["--env", f"{name}={value}"] for name, value in start.env.items()]
    words += [["--env", f"PET_NPROC_PER_NODE={start.processes}"]]
    words += [["--env", name] for name in start.secrets]
    words += [[start.image, "python", "-m", "trainer"]]
    return "\n".join([*lines, " \\\n    ".join(shlex.join(each) for each in words)]) + "\n"


def _build_row(*fields: str) -> str:
    """As docker reads it: comma-separated values, a field in quotes where it has to be."""
    row = io.StringIO()
    csv.writer(row, lineterminator="").writerow(fields)
    return row.getvalue()


def _docker_options(start: Start) -> list[list[str]]:
    options = [
        ["--name", start.name],
        ["--user", USER],
        ["--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"],
        ["--tmpfs", "/tmp:exec,mode=1777"],
        ["--mount", _build_row("type=bind", f"source={start.results}", f"target={start.mount}")],
        ["--stop-timeout", str(start.grace_s)],
    ]
    if start.shared_memory:
        options.append(["--shm-size", f"{count_mib(start.shared_memory)}m"])
    if start.accelerator:
        options.append(["--gpus", str(start.processes)])
    if start.memory:
        options.append(["--memory", f"{count_mib(start.memory)}m"])
    if start.cpus and not start.accelerator:
        options.append(["--cpus", str(count_cpus(start.cpus))])
    if start.rdma:
        options.append(["--cap-add", "IPC_LOCK", "--ulimit", "memlock=-1", "--device", "/dev/infiniband"])
    return options


SLURM_HOW = """\
Start it with: sbatch FILE. What sbatch is given wins over the lines below (--partition, --account, --time, --mem).
See it with: squeue, tail -f of the logs below. Stop it with: scancel --signal=USR1 JOB; the ranks save a checkpoint,
and the job waits in the queue to go on from it. To end it for good, before that: scontrol update jobid=JOB requeue=0
A bare scancel ends the ranks where they are: what they did since their newest checkpoint is lost."""
FIRST_PORT, PORTS = 20000, 20000


def build_slurm(start: Start, repeats: int = 1) -> str:
    """The script; `repeats` above 1 make an array, whose runs are called as a sweep calls them: NAME, NAME-r2 ..."""
    logs = f"{start.results}/{start.comparison}/.logs"
    lines = build_head(start, "a SLURM batch script", SLURM_HOW)
    lines += _slurm_options(start, repeats) + build_tail(start) + ["set -u"]
    lines += build_secret_checks(start) + build_exports(start)
    if repeats > 1:
        lines += [
            '[ "${SLURM_ARRAY_TASK_ID:-1}" = 1 ] || export TRAINER_RUN="$TRAINER_RUN-r$SLURM_ARRAY_TASK_ID"',
        ]
    lines += [
        f'logs={shlex.quote(logs)}/"$TRAINER_RUN"',
        'mkdir -p "$logs"',
        'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        *build_meeting(start, f'"$first:$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))"', "X")[:-1],
        "began=$(date +%s)",
        # one failed task does not end the others: they see it, and say so in their ledgers
        'srun --kill-on-bad-exit=0 --wait=0 --open-mode=append --output="${logs//%/%%}/node%n.log" bash -c \'',
        'export HOSTNAME="$TRAINER_RUN-worker-$SLURM_NODEID" STRATLAB_NODE="$SLURMD_NODENAME"',
        f"exec {PYTHON} -m trainer'",
        "code=$?",
        f'[ "$code" = 0 ] || code=$({PYTHON} -m trainer.program culprit --since "$began" --code "$code")',
        'echo "$TRAINER_RUN ended with exit code $code"',
        "# From 128 on it is worth another start, which goes on from the newest checkpoint; the trainer counts them.",
        'if [ "$code" -ge 128 ]; then scontrol requeue "$SLURM_JOB_ID" && sleep 60; fi',
        'exit "$code"',
    ]
    return "\n".join(lines) + "\n"


def _slurm_options(start: Start, repeats: int) -> list[str]:
    options = [
        f"--job-name={start.name}",
        f"--nodes={start.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={count_cpus(start.cpus)}",
    ]
    if start.accelerator:
        options.append(f"--gpus-per-node={start.processes}")
    if start.memory:
        options.append(f"--mem={count_mib(start.memory)}M")
    if deadline := start.env.get("TRAINER_DEADLINE_S"):
        options.append(f"--time={-(-(int(float(deadline)) + start.grace_s) // 60)}")  # minutes
    options += [
        "--requeue",
        "--open-mode=append",
        f"--signal=USR1@{start.grace_s}",  # to the ranks too, which end at once by a TERM
        f"--output={'%x-%A_%a.out' if repeats > 1 else '%x-%j.out'}",
    ]
    if repeats > 1:
        options.append(f"--array=1-{repeats}%1")  # beside each other they would not be comparable
    return [f"#SBATCH {option}" for option in options]


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
