"""Plan a rehearsal: render each chart, build pods with the training operator's variables, check folders.

As in the operator's `envvar.go`, injected variables come last, so they override rendered ones of the same name.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratlab import UserError, helm
from stratlab.cluster.workloads import WAITER, pick_jobs
from stratlab.machine import free_port
from stratlab.pod_commands import HERE, Pod, build_pod, find_mount, place_on_volume
from stratlab.run_directory.files import is_run
from stratlab.run_directory.outcome import is_alive
from stratlab.run_settings import DEFAULT_COMPARISON

# Relevant to a cluster, without effect on a process.
CLUSTER_ONLY = ("NetworkPolicy", "PersistentVolumeClaim", "Role", "RoleBinding", "ServiceAccount")
# Other values of run.workload.api: the same pods, started by operators that a rehearsal does not imitate.
OTHER_WORKLOADS = ("MPIJob", "TrainJob", "TrainingRuntime")
MOUNT = "/results/mountPath"  # helm's path of the message that refuses --results


def build_training_pods(job: Mapping[str, Any], port: int) -> list[Pod]:
    """Build one pod per replica, the master first.

    Raises:
        UserError: the operator would refuse the job, or it would hang without a rendezvous.
    """
    name, spec = job["metadata"]["name"], job["spec"]
    replicas = spec["pytorchReplicaSpecs"]
    if unknown := sorted(replicas.keys() - {"Master", "Worker"}):
        raise UserError(
            f"PyTorchJob {name}: replica type {unknown[0]}, expected Master or Worker [SL-replica-type]"
        )
    if "Master" not in replicas and "elasticPolicy" not in spec:
        raise UserError(
            f"PyTorchJob {name}: has neither a Master nor an elasticPolicy, so that its pods cannot find each other "
            "[SL-no-rendezvous]"
        )
    pods: list[Pod] = []
    for role in ("Master", "Worker"):
        for index in range(_count(replicas.get(role))):
            pod = replicas[role]["template"]["spec"]
            if "pytorch" not in [container["name"] for container in pod["containers"]]:
                raise UserError(
                    f"PyTorchJob {name}: the operator requires a container with the name pytorch "
                    "[SL-no-pytorch-container]"
                )
            if first := pod.get("initContainers"):
                raise UserError(
                    f"PyTorchJob {name}: the init container {first[0]['name']} runs in an image of its own, which a "
                    "rehearsal lacks: leave the cluster's values file out, or --set run.pod.initContainers=null "
                    "[SL-init-container]"
                )
            names = f"{name}-{role.lower()}-{index}", f"node{len(pods)}"
            namespace = job["metadata"].get("namespace", "default")
            injected = _build_injected(spec, len(pods), port)
            pods.append(build_pod(*names, pod, namespace=namespace, injected=injected))
    return pods


def _count(replica: Mapping[str, Any] | None) -> int:
    return int(replica.get("replicas", 1)) if replica else 0


def _build_injected(spec: Mapping[str, Any], node: int, port: int) -> dict[str, str]:
    replicas = spec["pytorchReplicaSpecs"]
    nodes = sum(_count(replica) for replica in replicas.values())
    per_node = str(spec.get("nprocPerNode", "auto"))  # "auto" means the number of the node's CPUs
    env = {"PYTHONUNBUFFERED": "1", "PET_NPROC_PER_NODE": per_node, "PET_NNODES": str(nodes)}
    env["TRAINER_ACCELERATOR"] = (
        ""  # no device plugin here: a rehearsal trains on the devices of this machine
    )
    if "Master" in replicas:
        world_size = nodes * (int(per_node) if per_node.isdigit() else 1)  # the operator counts "auto" as 1
        env |= {"MASTER_ADDR": HERE, "MASTER_PORT": str(port), "WORLD_SIZE": str(world_size)}
        env |= {"PET_MASTER_ADDR": HERE, "PET_MASTER_PORT": str(port)}
        env |= {"RANK": str(node), "PET_NODE_RANK": str(node)}  # RANK is the pod's index, not a process rank
    if elastic := spec.get("elasticPolicy"):
        env |= _build_elastic(elastic, _count(replicas.get("Worker")), port)
    return env


def _build_elastic(policy: Mapping[str, Any], workers: int, port: int) -> dict[str, str]:
    env = {
        "PET_NNODES": f"{policy.get('minReplicas', workers)}:{policy.get('maxReplicas', workers)}",
        "PET_RDZV_BACKEND": policy.get("rdzvBackend", "c10d"),
        "PET_RDZV_ENDPOINT": f"{HERE}:{port}",
        "PET_LOCAL_ADDR": HERE,  # not injected: a pod's host name resolves, this machine's may not
    }
    if "maxRestarts" in policy:
        env["PET_MAX_RESTARTS"] = str(policy["maxRestarts"])
    if "rdzvId" in policy:  # left out otherwise, as observed on a cluster
        env["PET_RDZV_ID"] = policy["rdzvId"]
    if conf := policy.get("rdzvConf"):
        env["PET_RDZV_CONF"] = ",".join(f"{entry['key']}={entry['value']}" for entry in conf)
    if policy.get("standalone"):
        env["PET_STANDALONE"] = ""
    return env


def make_folder(folder: Path) -> list[Path]:
    """Create `folder` and its parents; return the new ones, the outermost first.

    Raises:
        UserError: the folder cannot be created.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()][::-1]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        raise UserError(f"{folder}: cannot be created ({failure.strerror}) [SL-folder-not-made]") from failure
    return missing


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove the empty ones of `folders`, the last first."""
    for folder in reversed(list(folders)):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def check_free(run_dir: Path, *, replace: bool) -> None:
    """Check that the run's folder is free. Raises UserError if another run or file uses it."""
    if not run_dir.exists():
        return
    if not run_dir.is_dir() or (any(run_dir.iterdir()) and not is_run(run_dir)):
        raise UserError(f"{run_dir}: is not a run; choose another --results or --name [SL-folder-taken]")
    if replace and is_alive(run_dir):
        raise UserError(
            f"{run_dir}: this run is active, its files have just changed; stop it first "
            "(if it was killed, it can be replaced in two minutes) [SL-rehearse-run-live]"
        )
    if (run_dir / "summary.json").is_file() and not replace:
        raise UserError(
            f"{run_dir}: this run exists and has finished. "
            "Use --replace to remove it and start anew, or --name for another name [SL-rehearse-run-finished]"
        )


@contextmanager
def replaced(run_dir: Path, *, replace: bool) -> Iterator[None]:
    """Move an old run directory away; remove it if a new one was created, else restore it."""
    aside = run_dir.with_name(f".{run_dir.name}.replaced")
    if not replace or not run_dir.exists():
        yield
        return
    shutil.rmtree(aside, ignore_errors=True)
    run_dir.rename(aside)
    try:
        yield
    finally:
        if run_dir.exists():
            shutil.rmtree(aside)
        else:
            aside.rename(run_dir)


@dataclass(frozen=True)
class RehearsalRequest:
    """Hold the user's request. `nodes` and `processes` of None keep the chart's own."""

    charts: Sequence[Path]
    results: Path
    mlflow: Path
    settings: Sequence[str] = ()
    values: Sequence[Path] = ()
    name: str | None = None
    nodes: int | None = None
    processes: int | None = None
    analysis: bool = True
    replace: bool = False
    keep_going: bool = False


@dataclass(frozen=True)
class PlannedRun:
    """Hold one rendered chart, ready to start."""

    name: str
    run_dir: Path
    pods: Sequence[Pod]
    analysis: Pod | None
    restart_policy: str
    accelerator: str = ""
    """The accelerator that its pods request from a cluster, one per process."""

    @property
    def logs(self) -> Path:
        """Return the folder of the processes' output, next to the run directories, which hold data only."""
        return self.run_dir.parent / ".logs" / self.name


def build_rehearsal_plan(request: RehearsalRequest, tracking_uri: str) -> list[PlannedRun]:
    """Build one `PlannedRun` per chart, in the given order.

    Raises:
        UserError: errors of all charts at once: a chart, a setting, or an object that a rehearsal does not support.
    """
    program = helm.find_helm()
    if request.name is not None and not request.name.strip():
        raise UserError(
            f"--name {request.name!r}: expected the name of the run; leave it out for the chart's [SL-name-empty]"
        )
    if request.name and len(request.charts) > 1:
        raise UserError(
            f"--name {request.name}: needs exactly one chart, got {len(request.charts)} [SL-name-many-charts]"
        )
    names = [request.name or helm.read_chart_name(program, chart) for chart in request.charts]
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"{name}: two charts have this name; rehearse them one at a time with --name [SL-chart-twice]"
            )
    settings = [*request.settings, *helm.list_size(request.nodes, request.processes)]
    # existingSecret: the login of another server than the rehearsal's
    literals = [f"run.mlflow.trackingUri={tracking_uri}", "run.mlflow.existingSecret="]
    folder = [f"run.results.mountPath={request.results}"]
    plan: list[PlannedRun] = []
    about: dict[str, list[str]] = {}
    for chart, name in zip(request.charts, names, strict=True):
        try:
            here, there = (
                helm.render_chart(
                    program, chart, name, settings=settings, values=request.values, literals=given
                )
                for given in ([*folder, *literals], literals)
            )
            run = build_planned_run(name, here, request.results, find_mount(there))
            check_free(run.run_dir, replace=request.replace)
            plan.append(run)
        except UserError as refusal:
            if MOUNT in str(refusal) and not any("mountPath" in text for text in request.settings):
                raise UserError(
                    f"--results {request.results}: a chart accepts no folder of the system as a volume, and no "
                    "character such as : or , in its name; choose another folder [SL-results-no-volume]"
                ) from None
            about.setdefault(str(refusal), []).append(name)
    if about:
        several = len(request.charts) > 1
        raise UserError(
            "\n".join(f"{', '.join(who)}: {text}" if several else text for text, who in about.items())
        )
    return plan


def build_planned_run(
    name: str, objects: Sequence[Mapping[str, Any]], results: Path, mount: str = ""
) -> PlannedRun:
    """Build the run from the rendered `objects` of release `name`, with results below `results`.

    Args:
        mount: the results volume's path on a cluster; paths of settings below it are moved below `results`.

    Raises:
        UserError: an object of a kind that a rehearsal does not support, or a job that it cannot run.
    """
    training = [entry for entry in objects if entry.get("kind") == "PyTorchJob"]
    jobs = [e for e in objects if (e.get("kind"), e.get("apiVersion")) == ("Job", "batch/v1")]
    waiters = pick_jobs(jobs, WAITER)
    analyses = [job for job in jobs if job not in waiters]
    for entry in objects:
        if entry in training or entry in jobs or (kind := entry.get("kind")) in CLUSTER_ONLY:
            continue
        what = f"{kind} {entry.get('metadata', {}).get('name')} ({entry.get('apiVersion')})"
        if kind in OTHER_WORKLOADS:
            raise UserError(
                f"{name}: the chart renders {what}; a rehearsal needs run.workload.api=pytorchjob; its "
                "pods are the same [SL-other-workload]"
            )
        raise UserError(
            f"{name}: the chart renders {what}; a rehearsal runs PyTorchJob and Job, "
            f"and ignores {', '.join(CLUSTER_ONLY)} [SL-unknown-kind]"
        )
    if len(training) != 1 or len(analyses) > 1:
        raise UserError(
            f"{name}: the chart renders {len(training)} PyTorchJob and {len(analyses)} Job; "
            "a run is one PyTorchJob and at most one Job [SL-chart-no-run]"
        )
    if training[0]["spec"].get("runPolicy", {}).get("suspend"):
        raise UserError(
            f"{name}: run.suspend=true: a suspended run has no pods; leave it out [SL-run-suspended]"
        )
    pods = build_training_pods(training[0], free_port())
    replicas = training[0]["spec"]["pytorchReplicaSpecs"]
    replica = next(iter(replicas.values()))
    policy = replica.get("restartPolicy", "OnFailure")
    rendered = replica["template"]["spec"]["containers"][0].get("env", [])
    asked = [str(entry.get("value", "")) for entry in rendered if entry["name"] == "TRAINER_ACCELERATOR"]
    analysis = None
    if analyses:
        metadata, spec = analyses[0]["metadata"], analyses[0]["spec"]["template"]["spec"]
        for waiter in waiters:  # here, without an API server, no Job starts another one
            spec = spec | {"initContainers": waiter["spec"]["template"]["spec"]["containers"]}
        namespace = metadata.get("namespace", "default")
        analysis = build_pod(metadata["name"], "analysis", spec, namespace=namespace)
    run_dir = _run_dir(name, pods[0], results)
    pods = [place_on_volume(pod, mount, results) for pod in pods]
    return PlannedRun(name, run_dir, pods, analysis, policy, accelerator="".join(asked))


def _run_dir(name: str, pod: Pod, results: Path) -> Path:
    """Return the trainer's run directory from its settings; refuse a directory outside `results`."""
    env = pod.commands[-1].env
    if "TRAINER_RUN" not in env:
        raise UserError(
            f"{name}: the chart renders no TRAINER_RUN, so that the run has no name [SL-no-trainer-run]"
        )
    if env.get("TRAINER_RESULTS") != str(results):
        raise UserError(
            f"{name}: TRAINER_RESULTS is {env.get('TRAINER_RESULTS')!r}, not {str(results)!r}: "
            "the chart does not follow run.results.mountPath [SL-results-not-followed]"
        )
    return results / env.get("TRAINER_COMPARISON", DEFAULT_COMPARISON) / env["TRAINER_RUN"]
