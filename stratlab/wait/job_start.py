"""Starts the suspended Job of the analysis, and stays until it has ended."""

from __future__ import annotations

import time
from collections.abc import Callable

import urllib3
from kubernetes.client import BatchV1Api
from kubernetes.client.exceptions import ApiException

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection, explain
from stratlab.cluster.job_end import read_job_end
from stratlab.cluster.patience import may_pass
from stratlab.user_error import UserError

QUEUE = "kueue.x-k8s.io/queue-name"
POLL_S = 10.0


def start_job(
    connection: Connection,
    namespace: str,
    name: str,
    queue: str,
    say: Callable[[str], None],
    poll_s: float = POLL_S,
) -> None:
    """Returns when the Job `name` has ended, or is gone.

    A tool that holds a cluster to its manifests suspends the Job again: it is started again then.

    Args:
        queue: Kueue's LocalQueue. Kueue starts what has one; "" = the Job is started here.

    Raises:
        UserError: this account may not start Jobs, or there is none of this name.
    """
    started = False
    while True:
        try:
            job = connection.get(f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}")
            if read_job_end(job) is not None:
                return
            labels = job["metadata"].get("labels") or {}
            if labels.get(QUEUE) != queue if queue else job["spec"].get("suspend"):
                _patch(connection, namespace, name, queue)
                say(f"Job {name}: {f'put into the queue {queue}' if queue else 'started'}")
            started = True
        except ClusterError as failure:
            if failure.status == 404 and started:
                return
            if not may_pass(failure):
                fix = "; kubectl apply -k manifests/overlays/cluster, which lets the analysis' account do it"
                raise UserError(
                    f"Job {name}: cannot be started: {failure}{fix} [SL-job-not-started]"
                ) from failure
            say(f"{failure}; trying again")
        time.sleep(poll_s)


def _patch(connection: Connection, namespace: str, name: str, queue: str) -> None:
    change = {"metadata": {"labels": {QUEUE: queue}}} if queue else {"spec": {"suspend": False}}
    try:
        BatchV1Api(connection.client).patch_namespaced_job(
            name, namespace, change, _request_timeout=30, _preload_content=False
        )
    except (ApiException, urllib3.exceptions.HTTPError, OSError) as failure:
        raise explain(connection, failure) from failure
