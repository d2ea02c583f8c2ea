"""A SLURM cluster on two machines: slurmctld on the first, a slurmd on each, munge for both (Debian: slurm-wlm)."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from experiments.network.two_nodes import (
    Node,
    find_lack,
    find_program,
    is_open,
    two_nodes,
    wait_until,
)
from tests.rehearsals.start.runs import environment, last_step, read_losses

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
LACK = find_lack(*PROGRAMS)
END = re.compile(r"JobState=(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL)")
ENDLESS = ("--set", "run.config.epochs=null,run.config.steps=100000,run.config.checkpoint_every=0")
"""Options of a run that only a stop ends."""
CONFIG = """
ClusterName=pair
SlurmctldHost=node0(10.77.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=30
RebootProgram=/bin/false
NodeName=node0 NodeAddr=10.77.0.1 CPUs=2 RealMemory=4000
NodeName=node1 NodeAddr=10.77.0.2 CPUs=2 RealMemory=4000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def start_slurm(machines: Sequence[Node], folder: Path) -> None:
    folder.chmod(0o755)
    (folder / "slurm.conf").write_text(CONFIG.format(folder=folder))
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    (folder / "munge.key").write_bytes(os.urandom(1024))
    (folder / "munge.key").chmod(0o600)
    munge = {name: f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")}
    first = machines[0]
    first.start(_find("munged"), "--foreground", "--force", f"--socket={folder}/munge.socket", *munge.values(),
                log=folder / "munged.log")  # fmt: skip
    wait_until(lambda: is_open(folder / "munge.socket"), "munged listens")
    for machine in machines:
        machine.env["SLURM_CONF"] = str(folder / "slurm.conf")
    first.start(_find("slurmctld"), "-D", log=folder / "slurmctld.log")
    for machine in machines:
        machine.start(_find("slurmd"), "-D", "-N", machine.name, log=folder / f"slurmd-{machine.name}.log")

    def idle() -> bool:
        return first.run("sinfo", "--noheader", "--format=%n %t").stdout.split("\n")[:2] == [
            "node0 idle",
            "node1 idle",
        ]

    wait_until(idle, "both nodes are idle", seconds=20, poll_s=0.5)


def _find(name: str) -> str:
    found = find_program(name)
    assert found
    return found


@contextmanager
def open_slurm(folder: Path) -> Iterator[Node]:
    """The machine of two on which jobs are submitted."""
    folder.mkdir(exist_ok=True)
    with two_nodes(folder, environment(folder)) as machines:
        start_slurm(machines, folder)
        yield machines[0]


def submit(head: Node, script: Path, *options: str) -> str:
    done = head.run("sbatch", "--parsable", *options, script, folder=script.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def wait_for(head: Node, job: str, seconds: float = 240) -> str:
    """What scontrol says of it, and of all jobs of an array, in the end."""

    def look() -> str:
        return head.run("scontrol", "show", "job", job).stdout

    wait_until(
        lambda: all(END.search(each) for each in look().split("\n\n") if each.strip()), job, seconds, 0.5
    )
    return look()


def go_on(head: Node, job: str) -> None:
    """Waits until it is in the queue again, and lets it start."""

    def waits_again() -> bool:
        """Not while the first start is still being cleared away, when the job has an end for a moment."""
        said = head.run("scontrol", "show", "job", job).stdout
        return "Restarts=1" in said and "JobState=PENDING" in said

    wait_until(waits_again, "it is requeued", 240, 0.5)
    # SLURM lets a requeued job wait for two minutes; a start within the second of its end has its credential revoked
    head.run("scontrol", "update", f"jobid={job}", "StartTime=now+5", "TimeLimit=60")


def expect_another_start(head: Node, job: str, run_dir: Path) -> None:
    """That a stopped job has saved where it was, is back in the queue and goes on from there, no step lost or twice."""
    go_on(head, job)
    stopped = last_step(run_dir)
    assert [path.name for path in (run_dir / "checkpoints").iterdir()] == [f"step_{stopped:08d}"]
    wait_until(lambda: last_step(run_dir) > stopped, "a further step", 240, 0.5)
    steps = [step for step, *_ in read_losses(run_dir)]
    assert steps == [*range(1, len(steps) + 1)]
