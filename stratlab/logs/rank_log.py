"""Reads the log of a rank: as lines of its pod, or as bytes of its file on the volume."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.cluster.patience import Patience
from stratlab.cluster.pod_log import follow_log, read_log
from stratlab.cluster.pod_row import build_row
from stratlab.cluster.pods import has_log, training_container
from stratlab.cluster.volume_pod import read_file
from stratlab.cluster.workloads import RunFacts, Workload, find_workload
from stratlab.logs.log_place import VolumeLog, find_file, find_pod


def read_rank(
    connection: Connection,
    release: str,
    rank: int,
    *,
    previous: bool,
    follow: bool,
    say: Callable[[str], None],
    run_directory: str = "",
    claim: str = "",
    image: str = "",
) -> Iterator[bytes]:
    """The log in pieces. `say` hears where it comes from. `run_directory`, `claim`, `image`: of the file.

    Raises:
        UserError: no such rank, no such file.
        ClusterError: the cluster does not give it.
    """
    workload = find_workload(connection, connection.namespace, release)
    facts: RunFacts | None = workload.facts if workload else None
    lines = None
    if workload is None:
        say(f"no run {release} in namespace {connection.namespace} (any more)")
    else:
        lines = _from_pod(connection, workload, rank, previous=previous, follow=follow, say=say)
    if lines is not None:
        for line in lines:
            yield line.encode() + b"\n"
        return
    file = find_file(release, facts, rank, run_directory=run_directory, claim=claim, image=image)
    hint = "" if facts and facts.run_directory else "; --run-directory, --claim and --image say otherwise"
    say(f"reading {file.path} of the claim {file.claim} with {file.image}{hint}")
    yield from _from_volume(connection, file, say)


def _from_pod(
    connection: Connection,
    workload: Workload,
    rank: int,
    *,
    previous: bool,
    follow: bool,
    say: Callable[[str], None],
) -> Iterator[str] | None:
    """None where only the volume can tell."""
    path = f"/api/v1/namespaces/{workload.namespace}/pods"
    pods = connection.get(path, {"labelSelector": workload.pod_labels})["items"]
    pod, sentence = find_pod(workload, pods, rank)
    say(sentence)
    if pod is None:
        return None
    container = training_container(pod)
    if previous:
        return _previous(connection, pod, container, say)
    if follow:
        return follow_log(connection, pod, container, Patience(say=say))
    if not has_log(pod, container):
        raise ClusterError(
            f"it has not started: {build_row(pod)}; --follow waits for it, --previous looks back "
            "[SL-logs-not-started]"
        )
    return read_log(connection, pod, container)


def _previous(
    connection: Connection, pod: Mapping[str, Any], container: str, say: Callable[[str], None]
) -> Iterator[str] | None:
    try:
        return iter(list(read_log(connection, pod, container, previous=True)))
    except ClusterError as failure:
        if failure.status not in (400, 404):
            raise
        say(
            "the pod has no container before this one (a restarted run has new pods); the file has all attempts"
        )
        return None


def _from_volume(connection: Connection, file: VolumeLog, say: Callable[[str], None]) -> Iterator[bytes]:
    return read_file(
        connection,
        connection.namespace,
        claim=file.claim,
        mount=file.mount,
        image=file.image,
        path=file.path,
        progress=say,
    )
