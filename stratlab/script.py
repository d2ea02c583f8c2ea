"""Turn a chart into a script for machines without Kubernetes: same settings, program and run directory.

`build_script` reads the start of a run from helm's output (`Start`), checks the settings with the trainer, and fills in
a template of stratlab/scripts:

* torchrun: one machine, or several started by hand
* slurm: a batch script with one task per node, as with pods, and an array for repeats
* hostfile: several machines over ssh
* docker: one machine, in the image, like a pod of Pod Security `restricted`
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

from stratlab import UserError, helm
from stratlab.machine import build_machine_env
from stratlab.pod_commands import expand, find_mount, place_value
from stratlab.run_settings import DEFAULT_COMPARISON
from stratlab.trainer_program import ask_trainer, raise_refused

OF_THE_IMAGE = {
    "HOME": "/tmp",
    "HF_HOME": "/tmp/huggingface",
    "MPLCONFIGDIR": "/tmp/matplotlib",
    "TORCH_EXTENSIONS_DIR": "/tmp/torch_extensions",
    "TRITON_CACHE_DIR": "/tmp/triton",
}
"""Folders that a chart sets because a container can write to no others; on a machine the user's own apply."""
OWN_VOLUMES = ("results", "tmp", "shm")
"""The chart's volumes; each way to start has a counterpart."""
PORT = 29500
"""torch's default port of a rendezvous."""
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
"""Variables that bash sets and makes read-only."""
LINE = re.compile(r"(?P<host>[A-Za-z0-9][A-Za-z0-9_.@:-]*)(\s+slots=(?P<slots>\d+))?")


@dataclass(frozen=True)
class RenderRequest:
    """Hold the user's options, with None for the chart's own, and the starter: torchrun, slurm, hostfile or docker."""

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
    """Describe one run, independent of its starter.

    Attributes:
        env: settings and variables, the same in all pods.
        secrets: variables that must exist in the starter's environment.
        results: folder of the machine; `mount` is its path in the settings.
        shared_memory, memory, cpus: Kubernetes amounts, "" if the chart sets none.
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
    """Return the run of `request`.

    Args:
        in_image: it runs in the trainer's image, with the chart's own folders and the volume at the chart's path.

    Raises:
        UserError: helm's message about the chart, or the chart renders a feature without a counterpart elsewhere.
    """
    program = helm.find_helm()
    name = request.name or helm.read_chart_name(program, request.chart)
    # all APIs have the same pods
    settings = [*request.settings, "run.workload.api=pytorchjob"]
    settings += helm.list_size(request.nodes, request.processes)
    literals = [f"run.mlflow.trackingUri={request.mlflow}", "run.mlflow.existingSecret="]
    objects = helm.render_chart(
        program, request.chart, name, settings=settings, values=request.values, literals=literals
    )
    jobs = [entry for entry in objects if entry.get("kind") == "PyTorchJob"]
    if len(jobs) != 1:
        raise UserError(
            f"{request.chart}: renders {len(jobs)} PyTorchJob, but a run has one; use a strategy's chart "
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
    """Refuse features that a run without pods would lack."""
    for key in ("volumes", "initContainers"):
        names = [each["name"] for each in pod.get(key, []) if each["name"] not in OWN_VOLUMES]
        if names:
            raise UserError(
                f"{name}: run.pod.{key} has {', '.join(names)}, which only a cluster has; "
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
        # else the pod's own place, which a script knows
    return env, secrets


@dataclass(frozen=True)
class Hosts:
    """Hold machines in their order, and processes of each; 0 if the file does not set them."""

    names: Sequence[str]
    slots: int


def read_hostfile(file: Path) -> Hosts:
    """Read `gpu-node-01 slots=8`, a line for each machine, the format of DeepSpeed and MPI.

    Raises:
        UserError: for every invalid line, a repeated host, or different slots.
    """
    try:
        lines = [line.partition("#")[0].strip() for line in file.read_text().splitlines()]
    except OSError as failure:
        raise UserError(
            f"--hostfile {file}: {failure.strerror}; expected a host a line [SL-render-hostfile-unreadable]"
        ) from None
    except UnicodeDecodeError as failure:
        raise UserError(
            f"--hostfile {file}: byte {failure.start} is not UTF-8; expected a host a line [SL-hostfile-not-utf8]"
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
    problems += [f"{name} is listed twice [SL-hostfile-twice]" for name in twice]
    slots = sorted({count for _, count in found})
    if len(slots) > 1:
        problems.append(
            f"slots differ ({', '.join(map(str, slots))}); every machine needs the same number of processes "
            "[SL-hostfile-slots]"
        )
    if not found and not problems:
        problems.append("the file has no host [SL-render-hostfile-empty]")
    if problems:
        raise UserError("\n".join(f"--hostfile {file}: {problem}" for problem in problems))
    return Hosts(names, slots[0])


def build_script(request: RenderRequest) -> tuple[str, list[str]]:
    """Return the script, and sentences for the user.

    Raises:
        UserError: an option, a chart or a setting is wrong.
        Refused: the trainer refuses the settings.
    """
    starter = request.starter
    if (starter == "hostfile") != (request.hostfile is not None):
        raise UserError(
            "--for hostfile needs --hostfile FILE, and no other starter accepts it; its lines are like "
            "gpu-node-01 slots=8 [SL-hostfile-option]"
        )
    if request.repeats > 1 and starter != "slurm":
        raise UserError(
            f"--repeats {request.repeats}: needs --for slurm; otherwise start it again with another --name "
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
    """Yield a sentence for each value that no script can express."""
    if CONTROL.search(str(start.results)):
        where = f"--results {str(start.results)!r}"
        yield f"{where}: contains a line break or another control character [SL-results-control]"
    for name, value in start.env.items():
        if "\0" in value:
            yield f"run.env: {name}={value!r}: a variable cannot hold the character \\0 [SL-env-null]"
        if name in OF_THE_SHELL and starter != "docker":
            yield f"run.env: {name}: is read-only in bash; use another name [SL-env-of-shell]"


def check(start: Start) -> list[str]:
    """Check the settings with the trainer, if another machine can check them; return a sentence about unchecked ones.

    Raises:
        Refused: with every message.
    """
    pods = {"PET_NNODES": str(start.nodes), "PET_NPROC_PER_NODE": str(start.processes)}
    runs = {start.name: {**start.env, **pods}}
    answers = ask_trainer(runs, build_machine_env(os.environ), ["--elsewhere"])
    raise_refused(answers, runs)
    return [f"the settings could not be checked: {answers.reason}"] if answers.reason else []


def fill_in(template: str, **context: Any) -> str:
    """Fill in a template in stratlab/scripts."""
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
    """Return the script; `repeats` above 1 make an array. Its runs have a sweep's names: NAME, NAME-r2 ..."""
    deadline = start.env.get("TRAINER_DEADLINE_S")
    minutes = -(-(int(float(deadline)) + start.grace_s) // 60) if deadline else 0
    return fill_in("slurm", start=start, repeats=repeats, minutes=minutes)


def build_docker(start: Start) -> str:
    """Return the script.

    Raises:
        UserError: for several nodes: containers on several machines need a network that docker does not create.
    """
    if start.nodes > 1:
        raise UserError(
            f"--for docker: run.nodes={start.nodes}: one container is one machine; set --nodes 1 and more "
            "--processes, or --for hostfile without containers [SL-docker-many-nodes]"
        )
    mount = (
        io.StringIO()
    )  # docker's format: comma-separated values, with quotes around a field that needs them
    fields = ["type=bind", f"source={start.results}", f"target={start.mount}"]
    csv.writer(mount, lineterminator="").writerow(fields)
    return fill_in("docker", start=start, mount=mount.getvalue())


def build_hostfile(start: Start, hosts: Sequence[str]) -> str:
    """Return the script. No value can end a machine's part of the script early."""
    share = fill_in("hostfile_share", start=start, first=hosts[0].partition("@")[2] or hosts[0])
    end = "END_OF_SHARE"
    while end in share.splitlines():
        end += "_"
    context = {"port": PORT, "after_failure_s": AFTER_FAILURE_S}
    return fill_in("hostfile", start=start, hosts=hosts, share=share, end=end, **context)


def read_amount(text: str) -> float:
    """Return a Kubernetes amount as a number: `500m` is 0.5, `2Gi` 2147483648.

    Raises:
        ValueError: the text is not an amount.
    """
    found = AMOUNT.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is not an amount [SL-no-amount]")
    return float(found[1] + (found[2] or "")) * UNITS[found[3]]


def count_cpus(text: str) -> int:
    """Return whole CPUs, at least one; "" = one."""
    return max(1, math.ceil(read_amount(text))) if text else 1


def count_mib(text: str) -> int:
    """Return whole MiB, rounded up."""
    return math.ceil(read_amount(text) / UNITS["Mi"])
