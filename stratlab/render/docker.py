"""`--for docker`: one machine, in the image, as a pod of Pod Security `restricted` would be."""

from __future__ import annotations

import csv
import io
import shlex

from stratlab.render.amounts import count_cpus, count_mib
from stratlab.render.shell import build_head, build_secret_checks, build_tail
from stratlab.render.start import Start
from stratlab.user_error import UserError

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
    words = [["exec", "docker", "run", "--rm", "--init=false"], *_options(start)]
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


def _options(start: Start) -> list[list[str]]:
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
