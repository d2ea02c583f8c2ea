"""Read the log of one rank on the cluster: lines of its pod, or bytes of its file on the volume."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from stratlab import UserError
from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection, Patience
from stratlab.cluster.pod_phase import build_row
from stratlab.cluster.pod_template import CLAIM, IMAGE, MOUNT, PodRequest
from stratlab.cluster.pods import console_pod, has_log, node_rank, place_of, training_container
from stratlab.cluster.volume_pod import read_file
from stratlab.cluster.watching import follow_log, read_log
from stratlab.cluster.workloads import RunAnnotations, Workload, find_workload, sort_by_age
from stratlab.run_settings import DEFAULT_COMPARISON


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
    """Yield the log in pieces.

    `say` receives the source of the log. `run_directory`, `claim`, `image` locate the file.

    Raises:
        UserError: the rank or the file does not exist.
        ClusterError: the cluster does not return it.
    """
    workload = find_workload(connection, release)
    lines, facts = None, workload.facts if workload else RunAnnotations()
    if workload is None:
        say(f"no run {release} in namespace {connection.namespace} (any more)")
    else:
        lines = _read_pod(connection, workload, rank, previous, follow, say)
    if lines is not None:
        for line in lines:
            yield line.encode() + b"\n"
        return
    request, path = find_file(release, facts, rank, run_directory=run_directory, claim=claim, image=image)
    hint = "" if facts.run_directory else "; --run-directory, --claim and --image change this"
    say(f"reading {path} of the claim {request.claim} with {request.image}{hint}")
    yield from read_file(connection, request, path, say)


def _read_pod(
    connection: Connection,
    workload: Workload,
    rank: int,
    previous: bool,
    follow: bool,
    say: Callable[[str], None],
) -> Iterator[str] | None:
    """Return the lines of the pod; None if only the volume has the log."""
    pods = connection.get(f"{connection.core}/pods", {"labelSelector": workload.pod_labels})["items"]
    pod, sentence = find_pod(workload, pods, rank)
    say(sentence)
    if pod is None:
        return None
    container = training_container(pod)
    if previous:
        try:
            return iter(list(read_log(connection, pod, container, previous=True)))
        except ClusterError as failure:
            if failure.status not in (400, 404):
                raise
        absent = "the pod has no container before this one (a restarted run has new pods)"
        say(f"{absent}; the file has all attempts")
        return None
    if follow:
        return follow_log(connection, pod, container, Patience(say=say))
    if not has_log(pod, container):
        raise ClusterError(
            f"it has not started: {build_row(pod)}; --follow waits for it, --previous reads the earlier container "
            "[SL-logs-not-started]"
        )
    return read_log(connection, pod, container)


def find_pod(
    workload: Workload, pods: Sequence[Mapping[str, Any]], rank: int
) -> tuple[Mapping[str, Any] | None, str]:
    """Return (the pod whose log has `rank`, or None if it is gone; a sentence about the ranks in it).

    Raises:
        UserError: the run does not have this rank.
    """
    nodes = workload.nodes
    processes = workload.facts.processes or nodes
    if rank >= processes:
        raise UserError(f"--rank {rank}: the run has ranks 0 to {processes - 1} [SL-logs-rank]")
    per_pod = max(1, processes // nodes)
    index = rank // per_pod
    first, last = index * per_pod, index * per_pod + per_pod - 1
    held = f"rank {first}" if per_pod == 1 else f"ranks {first} to {last}"
    launcher = console_pod(pods)
    if launcher and place_of(launcher)[0] == "launcher":
        name = launcher["metadata"]["name"]
        return (
            launcher,
            f"pod {name}: the launcher, whose log has the output of all ranks; {held} run in worker {index}",
        )
    has_master = any(place_of(pod)[0] == "master" for pod in pods) or workload.has_master
    for pod in reversed(sort_by_age(pods)):
        if node_rank(pod, has_master) == index:
            return pod, f"pod {pod['metadata']['name']}: {held} of {processes}"
    return None, f"the pod of {held} is gone"


def find_file(
    release: str, facts: RunAnnotations, rank: int, *, run_directory: str, claim: str, image: str
) -> tuple[PodRequest, str]:
    """Return (the pod that can read the rank's own log on the volume, its path).

    Options override annotations, which override the charts' defaults.
    """
    mount = facts.results_mount or MOUNT
    directory = run_directory or facts.run_directory or f"{mount}/{DEFAULT_COMPARISON}/{release}"
    if not directory.startswith("/"):
        directory = f"{mount}/{directory}"
    elif not directory.startswith(mount.rstrip("/") + "/"):
        mount = "/" + directory.split("/")[1]
    request = PodRequest(claim or facts.results_claim or CLAIM, mount, image or facts.lab_image or IMAGE)
    return request, f"{directory.rstrip('/')}/ranks/rank{rank}.log"
