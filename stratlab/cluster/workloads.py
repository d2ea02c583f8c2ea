"""The resources of a run: the custom one, of four APIs in one table, what its status says, and the Jobs of an analysis.

Facts: training operator v1.9 (kubeflow.org/v1), mpi-operator (v2beta1), Kubeflow Trainer 2.2 (TrainJob).

Runs are created by helm, because a release is what upgrade, test and uninstall know, and they are watched
(stratlab/cluster/watching.py): Kubeflow's own SDK asks again every some seconds and gives up at the first answer that
breaks off. `TrainingJobs` is the SDK on this connection, for the small job that `stratlab check` creates.
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
MODELS = ApiClient()  # reads the SDK's models out of JSON; it is never sent anywhere


def read_conditions(status: Mapping[str, Any] | None) -> list[KubeflowOrgV1JobCondition]:
    """The conditions of a job's status that hold. Those of the other operators have the same fields.

    What has no type or status is left out: the model refuses it.
    """
    listed = [
        each for each in (status or {}).get("conditions") or [] if each.get("type") and each.get("status")
    ]
    found = MODELS.deserialize(FakeResponse({"conditions": listed}), "KubeflowOrgV1JobStatus")
    return [each for each in found.conditions or [] if each.status == CONDITION_STATUS_TRUE]


class TrainingJobs:
    """PyTorchJobs of a namespace. Every failure of the SDK becomes a ClusterError with the server's own sentence."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        configuration, namespace = connection.client.configuration, connection.namespace
        self._client = TrainingClient(
            client_configuration=configuration, namespace=namespace, job_kind=PYTORCHJOB_KIND
        )
        for api in (self._client.custom_api, self._client.core_api):
            api.api_client = connection.client  # with its credentials, proxy and patience

    def create(self, job: Mapping[str, Any]) -> None:
        """Creates a job, given as it would be written as YAML."""
        with self._explained():
            self._client.create_job(MODELS.deserialize(FakeResponse(job), KubeflowOrgV1PyTorchJob.__name__))

    def wait(self, name: str, wait_s: int, poll_s: int = 1) -> str:
        """The condition in which it has ended, Succeeded or Failed; "" if not within `wait_s` seconds."""
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
        """Types of the conditions that hold now; empty as long as no operator has looked at it."""
        with self._explained():
            return [each.type for each in self._client.get_job_conditions(name) if each.status == "True"]

    def read_logs(self, name: str) -> dict[str, str]:
        """Pod -> log, of the pods that have one."""
        with self._explained():
            logs, _ = self._client.get_job_logs(name, is_master=False)
            return {pod: str(text) for pod, text in logs.items()}

    def delete(self, name: str) -> None:
        """Removes the job, and with it its pods; one that is gone is no failure."""
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

# The first condition that is True decides. A TrainJob calls its success Complete.
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
    """One way to ask for a run: `run.workload.api`, and what Kubernetes calls it."""

    name: str
    kind: str
    group: str
    version: str
    plural: str

    @property
    def group_version(self) -> str:
        return f"{self.group}/{self.version}"

    def path(self, namespace: str, name: str = "") -> str:
        """Of the collection in `namespace`, or of one object."""
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
    """The annotations `stratlab/*` of a workload; "" where one is missing. `processes` is the world size."""

    run_directory: str = ""
    results_claim: str = ""
    results_mount: str = ""
    lab_image: str = ""
    tracking_uri: str = ""
    processes: int | None = None
    certificates: str = ""


@dataclass(frozen=True)
class Workload:
    """The custom resource of one run, as the API server gave it."""

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
        """The Helm release, which the resource is named like."""
        return str((self.object["metadata"].get("labels") or {}).get(INSTANCE, self.name))

    @property
    def title(self) -> str:
        """For sentences: "PyTorchJob demo"."""
        return f"{self.api.kind} {self.name}"

    @property
    def state(self) -> str:
        return read_state(self.object)

    @property
    def message(self) -> str:
        """What the operator says about the state."""
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
        """Whether node 0 is a master, and the workers follow it."""
        return "Master" in (self.object["spec"].get("pytorchReplicaSpecs") or {})

    @property
    def nodes(self) -> int:
        """Pods that hold ranks."""
        spec = self.object["spec"]
        replicas = spec.get("pytorchReplicaSpecs") or spec.get("mpiReplicaSpecs")
        if replicas:
            return sum(int(each.get("replicas", 1)) for role, each in replicas.items() if role != "Launcher")
        return int((spec.get("trainer") or {}).get("numNodes", 1))

    @property
    def pod_labels(self) -> str:
        """The label selector of the run's training pods."""
        return f"{INSTANCE}={self.release},{COMPONENT}={TRAINING}"


def read_state(resource: Mapping[str, Any]) -> str:
    """Created, Running, Restarting, Suspended, Succeeded, Failed, or "no status": no operator has looked at it."""
    for condition in _true_conditions(resource):
        return CONDITIONS[condition.type]
    status = resource.get("status") or {}
    children = status.get("jobsStatus") or []  # of a TrainJob, which has no condition for running
    if any(child.get("active") or child.get("ready") for child in children):
        return RUNNING
    return CREATED if children or status.get("conditions") else NO_STATUS


def find_workload(connection: Connection, release: str) -> Workload | None:
    """The workload of `release`: named like it, or carrying its label. None if there is none.

    Raises:
        ClusterError: nothing was found, and part of the cluster could not be looked at.
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
    """All workloads of the namespace, of the APIs that are served and may be read."""
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
    """The conditions that hold, the most telling first."""
    known = [each for each in read_conditions(resource.get("status")) if each.type in CONDITIONS]
    return sorted(known, key=lambda each: list(CONDITIONS).index(each.type))


def read_job_end(job: Mapping[str, Any]) -> str | None:
    """ "" = complete, text = why it failed, None = not ended."""
    for condition in (job.get("status") or {}).get("conditions") or []:
        if condition["status"] == "True" and condition["type"] == "Complete":
            return ""
        if condition["status"] == "True" and condition["type"] == "Failed":
            said = f"{condition.get('reason', '')} {condition.get('message', '')}"
            return said.strip() or "no reason given"
    return None


def pick_jobs(jobs: Iterable[Mapping[str, Any]], component: str) -> list[Mapping[str, Any]]:
    """Those of a component, the newest last."""
    found = [job for job in jobs if (job["metadata"].get("labels") or {}).get(COMPONENT) == component]
    return sort_by_age(found)


def find_failed_waiter(
    analysis: Mapping[str, Any], jobs: Iterable[Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    """The Job that should have started `analysis` and has failed: nothing will. None as long as something may.

    An analysis is two Jobs: the one that waits for the run starts the other.
    """
    waiters = pick_jobs(jobs, WAITER)[-1:]
    if not (analysis.get("spec") or {}).get("suspend") or read_job_end(analysis) is not None:
        return None
    return next((waiter for waiter in waiters if read_job_end(waiter)), None)


def sort_by_age(objects: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The newest last. A Job, as of a TrainJob, keeps pods that have failed beside their successors."""
    return sorted(objects, key=lambda each: str(each["metadata"].get("creationTimestamp") or ""))
