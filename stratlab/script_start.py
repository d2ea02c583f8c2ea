"""What a run needs to start, read from what helm renders of its chart.

Lines that every script has.

`--for hostfile`: one trainer on each of several machines, over ssh.
"""

from __future__ import annotations

import re
import shlex
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


@dataclass(frozen=True)
class Request:
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


def build_start(request: Request, *, in_image: bool = False) -> Start:
    """The run that `request` describes.

    Args:
        in_image: it runs in the trainer's image, with the chart's own folders and the volume where the chart has it.

    Raises:
        UserError: with helm's words for what a chart refuses, or it renders what has no counterpart elsewhere.
    """
    program = helm.find_helm()
    name = request.name or helm.read_chart_name(program, request.chart)
    settings = [*request.settings, "run.workload.api=pytorchjob"]  # whose pods are those of every other
    if request.nodes is not None:
        settings.append(f"run.nodes={request.nodes}")
    if request.processes is not None:
        settings.append(f"run.processesPerNode={request.processes}")
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
    amounts = container.get("resources", {})
    accelerator = env.get("TRAINER_ACCELERATOR", "")
    image = container["image"]
    if not in_image:
        env = {key: place_value(value, mount, results) for key, value in env.items()}
        env = {
            key: value
            for key, value in env.items()
            if OF_THE_IMAGE.get(key) != value and key != "TRAINER_IMAGE"
        }
        env["TRAINER_RESULTS"] = str(results)
    limits, requests = amounts.get("limits", {}), amounts.get("requests", {})
    return Start(
        name=name,
        env=env,
        secrets=secrets,
        nodes=sum(int(replica.get("replicas", 1)) for replica in replicas.values()),
        processes=int(job["spec"]["nprocPerNode"]),
        results=results,
        mount=mount,
        accelerator=accelerator,
        image=image,
        grace_s=int(pod["terminationGracePeriodSeconds"]),
        shared_memory=next(
            (v["emptyDir"]["sizeLimit"] for v in pod.get("volumes", []) if v["name"] == "shm"), ""
        ),
        memory=str(limits.get("memory", "")),
        cpus=str(limits.get("cpu") or requests.get("cpu", "")),
        rdma="IPC_LOCK" in container.get("securityContext", {}).get("capabilities", {}).get("add", []),
    )


def _check_counterparts(name: str, pod: Mapping[str, Any]) -> None:
    """What a run without pods would lack is refused, not left out in silence."""
    volumes = [v["name"] for v in pod.get("volumes", []) if v["name"] not in OWN_VOLUMES]
    for key, names in (
        ("volumes", volumes),
        ("initContainers", [c["name"] for c in pod.get("initContainers", [])]),
    ):
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


PYTHON = '"${PYTHON:-python}"'
PORT = 29500
"""torch's own for a rendezvous."""


def build_head(start: Start, what: str, how: str) -> list[str]:
    """The remark at the top."""
    return [
        "#!/bin/bash",
        f"# {start.name}: {what}, {start.nodes} x {start.processes} processes, by stratlab render.",
        *(f"# {line}" for line in how.splitlines()),
    ]


def build_tail(start: Start) -> list[str]:
    """What to do when it has ended."""
    run_dir = shlex.quote(str(start.run_dir))
    return [f"# Run directory: {run_dir}. When it has ended: stratlab analyze {run_dir}"]


def build_exports(start: Start) -> list[str]:
    """The settings; no variable of a shell's past may change a run."""
    return [
        "unset ${!TRAINER_@} ${!PET_N@} ${!PET_R@} ${!PET_M@} ${!STRATLAB_@}",
        *(f"export {name}={shlex.quote(value)}" for name, value in start.env.items()),
    ]


def build_secret_checks(start: Start) -> list[str]:
    """Ends the script, naming the variable, before anything starts."""
    return [f': "${{{name}:?is asked for by run.secrets: export it first}}"' for name in start.secrets]


def build_meeting(start: Start, endpoint: str, index: str) -> list[str]:
    """Where the pods meet, as the training operator says it: torch's launcher reads PET_*.

    Args:
        endpoint: shell text of host:port, reachable by all.
        index: shell text of the pod's number, from 0.
    """
    return [
        f"export PET_NNODES={start.nodes} PET_NPROC_PER_NODE={start.processes} PET_MAX_RESTARTS=0",
        'export PET_RDZV_BACKEND=c10d PET_RDZV_CONF=read_timeout=15 PET_RDZV_ID="$TRAINER_RUN"',
        f"export PET_RDZV_ENDPOINT={endpoint}",
        f'export HOSTNAME="$TRAINER_RUN-worker-{index}"  # the ranks follow it',
    ]


LINE = re.compile(r"(?P<host>[A-Za-z0-9][A-Za-z0-9_.@:-]*)(\s+slots=(?P<slots>\d+))?")
AFTER_FAILURE_S = 30
HOW = """\
Start it with: bash FILE, on a machine from which ssh reaches all hosts without a password. Ctrl-C ends all of it; the
ranks save a checkpoint first, and the same command goes on from it. SSH="ssh -p 2222", PYTHON=/path/to/python and
PORT=29500 (of the meeting, on the first host) may be set. Nothing of a host stays when this script is gone."""


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


def build_hostfile(start: Start, hosts: Sequence[str]) -> str:
    """The script: it sends each machine its share through ssh's standard input, which ends when the script does.

    The share's own variables begin with _: those of run.env stand beside them.
    """
    first = hosts[0].partition("@")[2] or hosts[0]
    logs = f"{start.results}/{start.comparison}/.logs/{start.name}"
    share = [
        *build_exports(start),
        *build_meeting(start, f'"{first}:$_port"', "$_index"),
        "exec 3<&0  # ends when the launcher does",
        '"$_python" -m trainer < /dev/null &',
        "_trainer=$!",
        '{ cat <&3 > /dev/null; kill -TERM "$_trainer"; } 2> /dev/null &',
        "_watcher=$!",
        'wait "$_trainer"',
        "_code=$?",
        'kill "$_watcher" 2> /dev/null',
        'exit "$_code"',
    ]
    lines = build_head(start, f"over ssh on {len(hosts)} machines", HOW) + build_tail(start)
    lines += ["set -u", *build_secret_checks(start)]
    lines += [f"hosts=({' '.join(map(shlex.quote, hosts))})", f"logs={shlex.quote(logs)}"]
    end = _find_delimiter("\n".join(share))
    lines += [f"read -r -d '' share <<'{end}'", *share, end]
    return "\n".join([*lines, _launcher(start)]) + "\n"


def _find_delimiter(text: str) -> str:
    """No line of the text, whatever its values hold."""
    delimiter, lines = "END_OF_SHARE", text.splitlines()
    while delimiter in lines:
        delimiter += "_"
    return delimiter


def _launcher(start: Start) -> str:
    secrets = "".join(f'  printf "export {name}=%q\\n" "${name}"\n' for name in start.secrets)
    return f"""\
send() {{  # the share of machine $1, settings and secrets: nothing of it stands on a command line
  printf "_index=%q _port=%q _python=%q\\n" "$1" "${{PORT:-{PORT}}}" "${{PYTHON:-python}}"
{secrets}  printf "%s\\0" "$share"
}}
read_share='IFS= read -r -d "" text && eval "$text"'
work=$(mktemp -d) && mkdir -p "$logs" || exit 13
trap 'rm -rf "$work"' EXIT
pids=() lines=() failed=()
for index in "${{!hosts[@]}}"; do
  mkfifo "$work/$index"
  ${{SSH:-ssh -o BatchMode=yes}} "${{hosts[$index]}}" "exec bash -c '$read_share'" \\
    < "$work/$index" > "$logs/node$index.log" 2>&1 &
  pids[$index]=$!
done
trap '' PIPE
for index in "${{!hosts[@]}}"; do
  exec {{line}}> "$work/$index"
  lines[$index]=$line
  send "$index" 1>&"$line" 2> /dev/null
done
stopping=0
stop() {{
  [ "$stopping" = 1 ] && return
  stopping=1
  for line in "${{lines[@]}}"; do exec {{line}}>&-; done
}}
asked=0
trap 'asked=1; stop' TERM INT HUP
left=${{#hosts[@]}} failed_at="" code=0
while [ "$left" -gt 0 ]; do
  for index in "${{!pids[@]}}"; do
    kill -0 "${{pids[$index]}}" 2> /dev/null && continue
    wait "${{pids[$index]}}"
    each=$?
    unset "pids[$index]"
    left=$((left - 1))
    echo "${{hosts[$index]}} ended with exit code $each"
    [ "$each" = 0 ] && continue
    failed+=("$index")
    failed_at=${{failed_at:-$SECONDS}}
    # A code below 128 is permanent and wins. 134 says that another one was lost, 143 that it was stopped: neither is
    # the cause where there is another, unless this script has stopped it.
    if [ "$code" = 0 ] || {{ [ "$each" -lt 128 ] && [ "$code" -ge 128 ]; }} || {{ [ "$stopping" = 0 ] &&
      {{ [ "$code" = 134 ] || {{ [ "$code" = 143 ] && [ "$each" != 134 ]; }}; }}; }}; then code=$each; fi
  done
  # the others see by themselves that one is lost, and say so
  [ -n "$failed_at" ] && [ $((SECONDS - failed_at)) -ge {AFTER_FAILURE_S} ] && stop
  sleep 0.5
done
[ "$asked" = 1 ] && [ "$code" != 0 ] && code=143
for index in "${{failed[@]}}"; do
  echo "${{hosts[$index]}}, $logs/node$index.log:"
  tail -n 5 "$logs/node$index.log"
done >&2
exit "$code\""""
