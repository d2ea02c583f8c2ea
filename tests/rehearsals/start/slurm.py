"""A SLURM cluster on two machines: slurmctld on the first, a slurmd on each, munge for both (Debian: slurm-wlm)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tests.rehearsals.start.machines import Machine, find_program, is_open, wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
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


def start_slurm(machines: Sequence[Machine], folder: Path) -> None:
    """Until both nodes are idle."""
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
