"""Kubeflow's own SDK for the training operator, on this connection: jobs that are created here, and what a status says.

Runs are created by helm, because a release is what upgrade, test and uninstall know, and they are watched
(stratlab/cluster/watching.py): the SDK asks again every some seconds and gives up at the first answer that breaks off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import urllib3
from kubeflow.training import KubeflowOrgV1JobCondition, KubeflowOrgV1PyTorchJob, TrainingClient
from kubeflow.training.api_client import ApiClient
from kubeflow.training.constants.constants import (
    CONDITION_STATUS_TRUE,
    JOB_CONDITION_FAILED,
    JOB_CONDITION_SUCCEEDED,
    PYTORCHJOB_KIND,
)
from kubeflow.training.utils.utils import FakeResponse
from kubernetes.client.exceptions import ApiException

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection, explain

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


class Jobs:
    """PyTorchJobs of one namespace. Every failure of the SDK becomes a ClusterError with the server's own sentence."""

    def __init__(self, connection: Connection, namespace: str) -> None:
        self._connection = connection
        configuration = connection.client.configuration
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
