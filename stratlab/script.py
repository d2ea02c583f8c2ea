"""A chart as a script for machines without Kubernetes: the same settings, the same program, the same run directory.

`build_script` reads what a run needs to start from what helm renders (`Start`), lets the trainer check the settings,
and fills in a template of stratlab/scripts: torchrun (one machine, or several that are started by hand), slurm (a batch
script: one task per node, as a pod is one, and an array for repeats), hostfile (several machines over ssh), or docker
(one machine, in the image, as a pod of Pod Security `restricted` would be).
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from stratlab import helm
from stratlab.machine import build_machine_env
from stratlab.pod_commands import expand, find_mount, place_value
from stratlab.run_settings import DEFAULT_COMPARISON
from stratlab.trainer_program import ask_trainer, raise_refused
from stratlab.user_error import UserError

OF_THE_IMAGE = {
    "HOME": "/tmp",
    "HF_HOME": "/tmp/huggingface",
    "MPLCONFIGDIR": "/tmp/matplotlib",
    "TORCH_EXTENSIONS_DIR": "/tmp/torch_extensions",
    "TRITON_CACHE_DIR": "/tmp/triton",
}
"""Folders that a chart names because a container can write nowhere else; a machine has its user's own."""
OWN_VOLUMES = ("results", "tmp", "shm")
"""Of the chart: each way to start has a counterpart."""
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
LINE = re.compile(r"(?P<host>[A-Za-z0-9][A-Za-z0-9_.@:-]*)(\s+slots=(?P<slots>\d+))?")


@dataclass(frozen=True)
class RenderRequest:
    """What the user asked for, None leaving the chart's own, and who starts it: torchrun, slurm, hostfile or docker."""

    chart: Path
    results: Path
    settings: Sequence[str] = ()
    values: Sequence[Path] = ()
    name: str | None = None
    nodes: int | None = None
    processes: int | None = None
    mlflow: str = ""
    starter: str = "torchrun"
    hostfile: Path | None = None
    repeats: int = 1


@dataclass(frozen=True)
class Start:
    """One run, apart from who starts it.

    Attributes:
        env: settings and variables, the same in all pods.
        secrets: variables that whoever starts it must have in the environment.
        results: of the machine; `mount` is where the settings see it.
        shared_memory, memory, cpus: as Kubernetes writes amounts, "" where the chart says nothing.
    """

    name: str
    env: Mapping[str, str]
    secrets: Sequence[str]
    nodes: int
    processes: int
    results: Path
    mount: str
    accelerator: str
    image: str
    grace_s: int
    shared_memory: str
    memory: str
    cpus: str
    rdma: bool

    @property
    def comparison(self) -> str:
        return self.env.get("TRAINER_COMPARISON", DEFAULT_COMPARISON)

    @property
    def run_dir(self) -> Path:
        return self.results / self.comparison / self.name

    @property
    def logs(self) -> str:
        return f"{self.results}/{self.comparison}/.logs"


def build_start(request: RenderRequest, *, in_image: bool = False) -> Start:
    """The run that `request` describes.

    Args:
        in_image: it runs in the trainer's image, with the chart's own folders and the volume where the chart has it.

    Raises:
        UserError: with helm's words for what a chart refuses, or it renders what has no counterpart elsewhere.
    """
    program = helm.find_helm()
    name = request.name or helm.read_chart_name(program, request.chart)
    # the pods of this API are those of every other
    settings = [*request.settings, "run.workload.api=pytorchjob"]
    settings += helm.list_size(request.nodes, request.processes)
    literals = [f"run.mlflow.trackingUri={request.mlflow}", "run.mlflow.existingSecret="]
    objects = helm.render_chart(
        program, request.chart, name, settings=settings, values=request.values, literals=literals
    )
    jobs = [entry for entry in objects if entry.get("kind") == "PyTorchJob"]
    if len(jobs) != 1:
        raise UserError(
            f"{request.chart}: renders {len(jobs)} PyTorchJob, a run is one: is it a strategy's chart? "
            "[SL-render-no-run]"
        )
    return _read_job(name, jobs[0], find_mount(objects), request.results, in_image)


def _read_job(name: str, job: Mapping[str, Any], mount: str, results: Path, in_image: bool) -> Start:
    replicas = job["spec"]["pytorchReplicaSpecs"]
    pod = next(iter(replicas.values()))["template"]["spec"]
    _check_counterparts(name, pod)
    container = pod["containers"][0]
    env, secrets = _read_env(container)
    accelerator = env.get("TRAINER_ACCELERATOR", "")
    if not in_image:
        env.pop("TRAINER_IMAGE", None)
        env = {key: place_value(value, mount, results) for key, value in env.items()}
        env = {key: value for key, value in env.items() if OF_THE_IMAGE.get(key) != value}
        env["TRAINER_RESULTS"] = str(results)
    limits, requests = (container.get("resources", {}).get(kind, {}) for kind in ("limits", "requests"))
    volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
    return Start(
        name=name,
        env=env,
        secrets=secrets,
        nodes=sum(int(replica.get("replicas", 1)) for replica in replicas.values()),
        processes=int(job["spec"]["nprocPerNode"]),
        results=results,
        mount=mount,
        accelerator=accelerator,
        image=container["image"],
        grace_s=int(pod["terminationGracePeriodSeconds"]),
        shared_memory=volumes["shm"]["emptyDir"]["sizeLimit"] if "shm" in volumes else "",
        memory=str(limits.get("memory", "")),
        cpus=str(limits.get("cpu") or requests.get("cpu", "")),
        rdma="IPC_LOCK" in container.get("securityContext", {}).get("capabilities", {}).get("add", []),
    )


def _check_counterparts(name: str, pod: Mapping[str, Any]) -> None:
    """What a run without pods would lack is refused, not left out in silence."""
    for key in ("volumes", "initContainers"):
        names = [each["name"] for each in pod.get(key, []) if each["name"] not in OWN_VOLUMES]
        if names:
            raise UserError(
                f"{name}: run.pod.{key} has {', '.join(names)}, which only a cluster has: "
                f"leave the cluster's values file out, or --set run.pod.{key}=null [SL-only-on-cluster]"
            )


def _read_env(container: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    env: dict[str, str] = {}
    secrets = []
    for entry in container.get("env", []):
        source = entry.get("valueFrom")
        if entry["name"] == "STRATLAB_NAMESPACE":
            continue  # a script has none
        if not source:
            env[entry["name"]] = expand(str(entry.get("value", "")), env)
        elif "secretKeyRef" in source:
            secrets.append(entry["name"])
        # else the pod's own place, which a script knows by itself
    return env, secrets


@dataclass(frozen=True)
class Hosts:
    """Machines in their order, and processes of each; 0 where the file does not say."""

    names: Sequence[str]
    slots: int


def read_hostfile(file: Path) -> Hosts:
    """`gpu-node-01 slots=8`, a line for each machine, as DeepSpeed and MPI read it.

    Raises:
        UserError: for every line that is none, a host that is there twice, or slots that differ.
    """
    try:
        lines = [line.partition("#")[0].strip() for line in file.read_text().splitlines()]
    except OSError as failure:
        raise UserError(
            f"--hostfile {file}: {failure.strerror}; expected a host a line [SL-render-hostfile-unreadable]"
        ) from None
    except UnicodeDecodeError as failure:
        raise UserError(
            f"--hostfile {file}: byte {failure.start} is no UTF-8; expected a host a line [SL-hostfile-not-utf8]"
        ) from None
    found, problems = [], []
    for number, line in enumerate(lines, 1):
        if line and not (each := LINE.fullmatch(line)):
            problems.append(
                f"line {number}, {line!r}: expected a host and its slots, such as gpu-node-01 slots=8 "
                "[SL-hostfile-line]"
            )
        elif line and each:
            found.append((each["host"], int(each["slots"] or 0)))
    names = [name for name, _ in found]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    problems += [f"{name} is there twice [SL-hostfile-twice]" for name in twice]
    slots = sorted({count for _, count in found})
    if len(slots) > 1:
        problems.append(
            f"slots differ ({', '.join(map(str, slots))}): every machine has the same number of processes "
            "[SL-hostfile-slots]"
        )
    if not found and not problems:
        problems.append("no host in it [SL-render-hostfile-empty]")
    if problems:
        raise UserError("\n".join(f"--hostfile {file}: {problem}" for problem in problems))
    return Hosts(names, slots[0])


def build_script(request: RenderRequest) -> tuple[str, list[str]]:
    """The script, and sentences for the user.

    Raises:
        UserError: an option, a chart or a setting is wrong.
        Refused: the trainer refuses the settings.
    """
    starter = request.starter
    if (starter == "hostfile") != (request.hostfile is not None):
        raise UserError(
            "--hostfile FILE belongs to --for hostfile, which needs it: gpu-node-01 slots=8, a line each "
            "[SL-hostfile-option]"
        )
    if request.repeats > 1 and starter != "slurm":
        raise UserError(
            f"--repeats {request.repeats}: only with --for slurm; elsewhere start it again with another --name "
            "[SL-repeats-option]"
        )
    hosts = read_hostfile(request.hostfile) if request.hostfile else None
    if hosts:
        if request.nodes not in (None, len(hosts.names)):
            raise UserError(
                f"--nodes {request.nodes}: the hostfile has {len(hosts.names)} machines [SL-nodes-not-hostfile]"
            )
        request = replace(request, nodes=len(hosts.names), processes=request.processes or hosts.slots or None)
    start = build_start(request, in_image=starter == "docker")
    if problems := [*find_unwritable(start, starter)]:
        raise UserError("\n".join(problems))
    said = check(start)
    if hosts:
        return build_hostfile(start, hosts.names), said
    if starter == "slurm":
        return build_slurm(start, request.repeats), said
    return {"docker": build_docker, "torchrun": build_torchrun}[starter](start), said


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
    raise_refused(answers, runs)
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
