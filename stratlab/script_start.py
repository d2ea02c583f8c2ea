"""What a run needs to start without Kubernetes, read from what helm renders of its chart; the hosts of a hostfile."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratlab import helm
from stratlab.pod_commands import expand, find_mount, place_value
from stratlab.user_error import UserError

OF_THE_IMAGE = {
    "HOME": "/tmp",
    "HF_HOME": "/tmp/huggingface",
    "MPLCONFIGDIR": "/tmp/matplotlib",
    "TORCH_EXTENSIONS_DIR": "/tmp/torch_extensions",
    "TRITON_CACHE_DIR": "/tmp/triton",
}
"""Folders that a chart names because a container can write nowhere else; a machine has its user's own."""
DEFAULT_COMPARISON = "default"
OWN_VOLUMES = ("results", "tmp", "shm")
"""Of the chart: each way to start has a counterpart."""
LINE = re.compile(r"(?P<host>[A-Za-z0-9][A-Za-z0-9_.@:-]*)(\s+slots=(?P<slots>\d+))?")


@dataclass(frozen=True)
class RenderRequest:
    """What the user asked for. None leaves the chart's own."""

    chart: Path
    results: Path
    settings: Sequence[str] = ()
    values: Sequence[Path] = ()
    name: str | None = None
    nodes: int | None = None
    processes: int | None = None
    mlflow: str = ""


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
