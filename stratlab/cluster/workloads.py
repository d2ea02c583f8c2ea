"""Read the resources of a run: the custom resource of one of four APIs, its status, and the Jobs of an analysis.

Source: training operator v1.9 (kubeflow.org/v1), mpi-operator (v2beta1), Kubeflow Trainer 2.2 (TrainJob).

helm creates runs, because upgrade, test and uninstall work on a release. stratlab/cluster/watching.py watches them,
because Kubeflow's SDK polls and gives up at the first lost connection. `TrainingJobs` uses the SDK on this connection,
for the small job that `stratlab check` creates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import urllib3
from kubeflow.training import KubeflowOrgV1JobCondition, KubeflowOrgV1PyTorchJob, TrainingClient
from kubeflow.training.api_client import ApiClient
from kubeflow.training.constants.constants import (
    CONDITION_STATUS_TRUE,
    GROUP,
    JOB_CONDITION_FAILED,
    JOB_CONDITION_SUCCEEDED,
    JOB_PARAMETERS,
    MPIJOB_KIND,
    PYTORCHJOB_KIND,
    VERSION,
)
from kubeflow.training.utils.utils import FakeResponse
from kubernetes.client.exceptions import ApiException

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection, explain

COMPONENT, INSTANCE = "app.kubernetes.io/component", "app.kubernetes.io/instance"
TRAINING, ANALYSIS, WAITER = "training", "analysis", "waiter"
ENDS = frozenset({JOB_CONDITION_SUCCEEDED, JOB_CONDITION_FAILED})
MODELS = ApiClient()  # parses JSON into the SDK's models; it sends no requests


def read_conditions(status: Mapping[str, Any] | None) -> list[KubeflowOrgV1JobCondition]:
    """Return the conditions of a job's status that are True; other operators use the same fields.

    A condition without type or status is left out, because the SDK's model refuses it.
    """
    listed = [
        each for each in (status or {}).get("conditions") or [] if each.get("type") and each.get("status")
    ]
    found = MODELS.deserialize(FakeResponse({"conditions": listed}), "KubeflowOrgV1JobStatus")
    return [each for each in found.conditions or [] if each.status == CONDITION_STATUS_TRUE]


class TrainingJobs:
    """Manage PyTorchJobs of a namespace; each failure of the SDK becomes a ClusterError with the server's sentence."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        configuration, namespace = connection.client.configuration, connection.namespace
        self._client = TrainingClient(
            client_configuration=configuration, namespace=namespace, job_kind=PYTORCHJOB_KIND
        )
        for api in (self._client.custom_api, self._client.core_api):
            api.api_client = connection.client  # with its credentials, proxy and time limits

    def create(self, job: Mapping[str, Any]) -> None:
        """Create a job from the content of its YAML."""
        with self._explained():
            self._client.create_job(MODELS.deserialize(FakeResponse(job), KubeflowOrgV1PyTorchJob.__name__))

    def wait(self, name: str, wait_s: int, poll_s: int = 1) -> str:
        """Return the final condition, Succeeded or Failed; "" if the job does not end within `wait_s` seconds."""
        with self._explained():
            try:
                job = self._client.wait_for_job_conditions(
                    name, expected_conditions=set(ENDS), wait_timeout=wait_s, polling_interval=poll_s
                )
            except TimeoutError:
                return ""
            held = {each.type for each in self._client.get_job_conditions(job=job) if each.status == "True"}
            return str(next(iter(held & ENDS)))

    def read_conditions(self, name: str) -> list[str]:
        """Return the types of the conditions that are True; empty until an operator has seen the job."""
        with self._explained():
            return [each.type for each in self._client.get_job_conditions(name) if each.status == "True"]

    def read_logs(self, name: str) -> dict[str, str]:
        """Return pod -> log for the pods that have a log."""
        with self._explained():
            logs, _ = self._client.get_job_logs(name, is_master=False)
            return {pod: str(text) for pod, text in logs.items()}

    def delete(self, name: str) -> None:
        """Delete the job and its pods; a missing job is not an error."""
        try:
            with self._explained():
                self._client.delete_job(name)
        except ClusterError as failure:
            if failure.status != 404:
                raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, ValueError) as failure:
            cause = failure.__cause__ or failure.__context__
            if isinstance(cause, ApiException | urllib3.exceptions.HTTPError | OSError):
                raise explain(self._connection, cause) from failure
            raise ClusterError(f"{failure} [SL-training-sdk]") from failure


NO_STATUS, CREATED, RUNNING, RESTARTING = "no status", "Created", "Running", "Restarting"
SUSPENDED, SUCCEEDED, FAILED = "Suspended", "Succeeded", "Failed"
ENDED = (SUCCEEDED, FAILED)

# The first condition that is True decides. A TrainJob reports success as Complete.
CONDITIONS = {
    "Succeeded": SUCCEEDED,
    "Complete": SUCCEEDED,
    "Failed": FAILED,
    "Suspended": SUSPENDED,
    "Restarting": RESTARTING,
    "Running": RUNNING,
    "Created": CREATED,
}


@dataclass(frozen=True)
class Api:
    """Describe one API for runs: its name in `run.workload.api`, and its Kubernetes names."""

    name: str
    kind: str
    group: str
    version: str
    plural: str

    @property
    def group_version(self) -> str:
        return f"{self.group}/{self.version}"

    def path(self, namespace: str, name: str = "") -> str:
        """Return the path of the collection in `namespace`, or of one object."""
        return f"/apis/{self.group_version}/namespaces/{namespace}/{self.plural}" + (
            f"/{name}" if name else ""
        )


APIS = {
    api.name: api
    for api in (
        Api("pytorchjob", PYTORCHJOB_KIND, GROUP, VERSION, JOB_PARAMETERS[PYTORCHJOB_KIND]["plural"]),
        Api("mpijob-v1", MPIJOB_KIND, GROUP, VERSION, JOB_PARAMETERS[MPIJOB_KIND]["plural"]),
        Api("mpijob-v2beta1", "MPIJob", "kubeflow.org", "v2beta1", "mpijobs"),
        Api("trainjob", "TrainJob", "trainer.kubeflow.org", "v1alpha1", "trainjobs"),
    )
}


@dataclass(frozen=True)
class RunAnnotations:
    """Hold the annotations `stratlab/*` of a workload; "" if one is missing. `processes` is the world size."""

    run_directory: str = ""
    results_claim: str = ""
    results_mount: str = ""
    lab_image: str = ""
    tracking_uri: str = ""
    processes: int | None = None
    certificates: str = ""


@dataclass(frozen=True)
class Workload:
    """Wrap the custom resource of one run, as returned by the API server."""

    api: Api
    object: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.object["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.object["metadata"]["namespace"])

    @property
    def uid(self) -> str:
        return str(self.object["metadata"]["uid"])

    @property
    def release(self) -> str:
        """Return the Helm release, which has the same name as the resource."""
        return str((self.object["metadata"].get("labels") or {}).get(INSTANCE, self.name))

    @property
    def title(self) -> str:
        """Return the name for messages: "PyTorchJob demo"."""
        return f"{self.api.kind} {self.name}"

    @property
    def state(self) -> str:
        return read_state(self.object)

    @property
    def message(self) -> str:
        """Return the operator's message about the state."""
        for condition in _true_conditions(self.object):
            if CONDITIONS[condition.type] == self.state:
                return str(condition.message or "")
        return ""

    @property
    def facts(self) -> RunAnnotations:
        notes = self.object["metadata"].get("annotations") or {}
        found = {
            each.name: notes.get(f"stratlab/{each.name.replace('_', '-')}", "")
            for each in fields(RunAnnotations)
        }
        processes = str(found.pop("processes"))
        return RunAnnotations(**found, processes=int(processes) if processes.isdigit() else None)

    @property
    def has_master(self) -> bool:
        """Return whether node 0 is a master and the workers follow it."""
        return "Master" in (self.object["spec"].get("pytorchReplicaSpecs") or {})

    @property
    def nodes(self) -> int:
        """Return the number of pods that hold ranks."""
        spec = self.object["spec"]
        replicas = spec.get("pytorchReplicaSpecs") or spec.get("mpiReplicaSpecs")
        if replicas:
            return sum(int(each.get("replicas", 1)) for role, each in replicas.items() if role != "Launcher")
        return int((spec.get("trainer") or {}).get("numNodes", 1))

    @property
    def pod_labels(self) -> str:
        """Return the label selector of the run's training pods."""
        return f"{INSTANCE}={self.release},{COMPONENT}={TRAINING}"


def read_state(resource: Mapping[str, Any]) -> str:
    """Return Created, Running, Restarting, Suspended, Succeeded, Failed, or "no status" before an operator acts."""
    for condition in _true_conditions(resource):
        return CONDITIONS[condition.type]
    status = resource.get("status") or {}
    children = status.get("jobsStatus") or []  # only a TrainJob has it, which has no condition for running
    if any(child.get("active") or child.get("ready") for child in children):
        return RUNNING
    return CREATED if children or status.get("conditions") else NO_STATUS


def find_workload(connection: Connection, release: str) -> Workload | None:
    """Return the workload named `release` or carrying its label; None if it does not exist.

    Raises:
        ClusterError: no workload was found, and part of the cluster could not be read.
    """
    refused: ClusterError | None = None
    for by_label in (False, True):
        for api in APIS.values():
            try:
                found = _find(connection, api, release, by_label)
            except ClusterError as failure:
                if failure.status != 404:  # 404: no such object, or the cluster does not serve this API
                    refused = failure
                continue
            if found:
                return found
    if refused:
        raise refused
    return None


def list_workloads(connection: Connection) -> list[Workload]:
    """Return all workloads of the namespace, of the APIs that are served and readable."""
    found = []
    for api in APIS.values():
        try:
            items = connection.get(api.path(connection.namespace))["items"]
        except ClusterError as failure:
            if failure.status not in (403, 404):
                raise
            continue
        found += [Workload(api, item) for item in items]
    return found


def _find(connection: Connection, api: Api, release: str, by_label: bool) -> Workload | None:
    if not by_label:
        return Workload(api, connection.get(api.path(connection.namespace, release)))
    items = connection.get(api.path(connection.namespace), {"labelSelector": f"{INSTANCE}={release}"})[
        "items"
    ]
    return Workload(api, items[0]) if items else None


def _true_conditions(resource: Mapping[str, Any]) -> list[KubeflowOrgV1JobCondition]:
    """Return the conditions that are True, the most specific first."""
    known = [each for each in read_conditions(resource.get("status")) if each.type in CONDITIONS]
    return sorted(known, key=lambda each: list(CONDITIONS).index(each.type))


def read_job_end(job: Mapping[str, Any]) -> str | None:
    """Return "" if the Job is complete, the reason if it failed, None if it has not ended."""
    for condition in (job.get("status") or {}).get("conditions") or []:
        if condition["status"] == "True" and condition["type"] == "Complete":
            return ""
        if condition["status"] == "True" and condition["type"] == "Failed":
            said = f"{condition.get('reason', '')} {condition.get('message', '')}"
            return said.strip() or "no reason given"
    return None


def pick_jobs(jobs: Iterable[Mapping[str, Any]], component: str) -> list[Mapping[str, Any]]:
    """Return the Jobs of a component, the newest last."""
    found = [job for job in jobs if (job["metadata"].get("labels") or {}).get(COMPONENT) == component]
    return sort_by_age(found)


def find_failed_waiter(
    analysis: Mapping[str, Any], jobs: Iterable[Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    """Return the failed Job that should have started `analysis`; None while a Job may still start it.

    An analysis consists of two Jobs: the Job that waits for the run starts the other.
    """
    waiters = pick_jobs(jobs, WAITER)[-1:]
    if not (analysis.get("spec") or {}).get("suspend") or read_job_end(analysis) is not None:
        return None
    return next((waiter for waiter in waiters if read_job_end(waiter)), None)


def sort_by_age(objects: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Sort objects by age, the newest last. A Job, also a TrainJob's, keeps failed pods next to their successors."""
    return sorted(objects, key=lambda each: str(each["metadata"].get("creationTimestamp") or ""))
