"""`--for slurm`: a batch script. One task per node, as a pod is one; an array for repeats."""

from __future__ import annotations

import shlex

from stratlab.render.amounts import count_cpus, count_mib
from stratlab.render.shell import (
    PYTHON,
    build_exports,
    build_head,
    build_meeting,
    build_secret_checks,
    build_tail,
)
from stratlab.render.start import Start

HOW = """\
Start it with: sbatch FILE. What sbatch is given wins over the lines below (--partition, --account, --time, --mem).
See it with: squeue, tail -f of the logs below. Stop it with: scancel --signal=USR1 JOB; the ranks save a checkpoint,
and the job waits in the queue to go on from it. To end it for good, before that: scontrol update jobid=JOB requeue=0
A bare scancel ends the ranks where they are: what they did since their newest checkpoint is lost."""
FIRST_PORT, PORTS = 20000, 20000


def build_slurm(start: Start, repeats: int = 1) -> str:
    """The script; `repeats` above 1 make an array, whose runs are called as a sweep calls them: NAME, NAME-r2 ..."""
    logs = f"{start.results}/{start.comparison}/.logs"
    lines = build_head(start, "a SLURM batch script", HOW)
    lines += _options(start, repeats) + build_tail(start) + ["set -u"]
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


def _options(start: Start, repeats: int) -> list[str]:
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
