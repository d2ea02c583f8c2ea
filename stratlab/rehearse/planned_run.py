"""Renders every chart and checks what came out, before anything is started or written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratlab.cluster.job_end import COMPONENT, WAITER
from stratlab.machine.processes import free_port
from stratlab.rehearse.folders import check_free
from stratlab.rehearse.operator import build_training_pods
from stratlab.rendering import helm
from stratlab.rendering.pod_commands import Pod, build_pod
from stratlab.rendering.volume import find_mount, place_on_volume
from stratlab.user_error import UserError

# They matter to a cluster and change nothing in a process.
CLUSTER_ONLY = ("NetworkPolicy", "PersistentVolumeClaim", "Role", "RoleBinding", "ServiceAccount")
# Other values of run.workload.api: the same pods, started by operators that are not imitated here.
OTHER_WORKLOADS = ("MPIJob", "TrainJob", "TrainingRuntime")
MOUNT = "/results/mountPath"  # where helm says that --results is refused
DEFAULT_COMPARISON = "default"


@dataclass(frozen=True)
class Request:
    """What the user asked for. `nodes` and `processes` of None leave the chart's own."""

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
    """One rendered chart, ready to start."""

    name: str
    run_dir: Path
    pods: Sequence[Pod]
    analysis: Pod | None
    restart_policy: str
    accelerator: str = ""
    """What its pods ask a cluster for, one per process."""

    @property
    def logs(self) -> Path:
        """Folder of what the processes print, beside the run directories: nobody reads them to get data."""
        return self.run_dir.parent / ".logs" / self.name


def build_plan(request: Request, tracking_uri: str) -> list[PlannedRun]:
    """One `PlannedRun` per chart, in the order given.

    Raises:
        UserError: a chart, a setting, or something rendered that a rehearsal cannot do; of all charts at once.
    """
    program = helm.find_helm()
    if request.name is not None and not request.name.strip():
        raise UserError(
            f"--name {request.name!r}: expected the name of the run; leave it out for the chart's [SL-name-empty]"
        )
    if request.name and len(request.charts) > 1:
        raise UserError(
            f"--name {request.name}: only with one chart, {len(request.charts)} were given [SL-name-many-charts]"
        )
    names = [request.name or helm.read_chart_name(program, chart) for chart in request.charts]
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"{name}: two charts of this name, rehearse them one at a time with --name [SL-chart-twice]"
            )
    settings = [*request.settings]
    if request.nodes is not None:
        settings.append(f"run.nodes={request.nodes}")
    if request.processes is not None:
        settings.append(f"run.processesPerNode={request.processes}")
    literals = [f"run.mlflow.trackingUri={tracking_uri}"]
    literals.append("run.mlflow.existingSecret=")  # the login of another server than the rehearsal's own
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
                    f"--results {request.results}: a chart takes it for no volume: a folder of the system, or a "
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
    """The run in the rendered `objects` of release `name`, whose results go below `results`.

    Args:
        mount: where a cluster has its results volume; what settings name below it is looked for below `results`.

    Raises:
        UserError: an object of a kind that a rehearsal does not know, or a job it cannot run.
    """
    training: list[Mapping[str, Any]] = []
    analyses: list[Mapping[str, Any]] = []
    waiters: list[Mapping[str, Any]] = []
    for entry in objects:
        kind = entry.get("kind")
        if kind == "PyTorchJob":
            training.append(entry)
        elif kind == "Job" and entry.get("apiVersion") == "batch/v1":
            is_waiter = (entry["metadata"].get("labels") or {}).get(COMPONENT) == WAITER
            (waiters if is_waiter else analyses).append(entry)
        elif kind in OTHER_WORKLOADS:
            raise UserError(
                f"{name}: the chart renders {kind} {entry.get('metadata', {}).get('name')} "
                f"({entry.get('apiVersion')}); a rehearsal runs what run.workload.api=pytorchjob renders, "
                "whose pods are the same [SL-other-workload]"
            )
        elif kind not in CLUSTER_ONLY:
            what = f"{kind} {entry.get('metadata', {}).get('name')} ({entry.get('apiVersion')})"
            raise UserError(
                f"{name}: the chart renders {what}; a rehearsal runs PyTorchJob and Job, "
                f"and needs nothing of {', '.join(CLUSTER_ONLY)} [SL-unknown-kind]"
            )
    if len(training) != 1 or len(analyses) > 1:
        raise UserError(
            f"{name}: the chart renders {len(training)} PyTorchJob and {len(analyses)} Job, "
            "a run is one PyTorchJob and at most one Job [SL-chart-no-run]"
        )
    if training[0]["spec"].get("runPolicy", {}).get("suspend"):
        raise UserError(
            f"{name}: run.suspend=true: a suspended run has no pods, leave it out [SL-run-suspended]"
        )
    pods = build_training_pods(training[0], free_port())
    replicas = training[0]["spec"]["pytorchReplicaSpecs"]
    replica = next(iter(replicas.values()))
    policy = replica.get("restartPolicy", "OnFailure")
    rendered = replica["template"]["spec"]["containers"][0].get("env", [])
    asked = [str(entry.get("value", "")) for entry in rendered if entry["name"] == "TRAINER_ACCELERATOR"]
    analysis = None
    if analyses:
        metadata = analyses[0]["metadata"]
        spec = analyses[0]["spec"]["template"]["spec"]
        for waiter in waiters:  # no API server starts one Job after the other here
            spec = spec | {"initContainers": waiter["spec"]["template"]["spec"]["containers"]}
        analysis = build_pod(
            metadata["name"],
            "analysis",
            spec,
            namespace=metadata.get("namespace", "default"),
        )
    run_dir = _run_dir(name, pods[0], results)
    pods = [place_on_volume(pod, mount, results) for pod in pods]
    return PlannedRun(name, run_dir, pods, analysis, policy, accelerator="".join(asked))


def _run_dir(name: str, pod: Pod, results: Path) -> Path:
    """Where the trainer writes, read from its own settings; refused when that is not below `results`."""
    env = pod.commands[-1].env
    if "TRAINER_RUN" not in env:
        raise UserError(
            f"{name}: the chart renders no TRAINER_RUN, the run would have no name [SL-no-trainer-run]"
        )
    if env.get("TRAINER_RESULTS") != str(results):
        raise UserError(
            f"{name}: TRAINER_RESULTS is {env.get('TRAINER_RESULTS')!r}, not {str(results)!r}: "
            "the chart does not follow run.results.mountPath [SL-results-not-followed]"
        )
    return results / env.get("TRAINER_COMPARISON", DEFAULT_COMPARISON) / env["TRAINER_RUN"]
