"""Where the log of a rank is: which pod holds the rank, and which file on the results volume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratlab.cluster.pod_template import CLAIM, IMAGE, MOUNT
from stratlab.cluster.pods import console_pod, newest_last, node_rank, place_of
from stratlab.cluster.workloads import RunFacts, Workload
from stratlab.user_error import UserError

COMPARISON = "default"  # that of charts/run/values.yaml, for a run whose resource is gone


@dataclass(frozen=True)
class VolumeLog:
    """A file on a claim, and how to read it: `mount` is where `path` begins."""

    claim: str
    mount: str
    image: str
    path: str


def find_pod(
    workload: Workload, pods: Sequence[Mapping[str, Any]], rank: int
) -> tuple[Mapping[str, Any] | None, str]:
    """(the pod whose log has `rank`, None if it is not there; a sentence that says which ranks it holds).

    Raises:
        UserError: the run has no such rank.
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
            f"pod {name}: the launcher, whose log carries all ranks; {held} run in worker {index}",
        )
    has_master = any(place_of(pod)[0] == "master" for pod in pods) or workload.has_master
    for pod in reversed(newest_last(pods)):
        if node_rank(pod, has_master) == index:
            return pod, f"pod {pod['metadata']['name']}: {held} of {processes}"
    return None, f"the pod of {held} is gone"


def find_file(
    release: str, facts: RunFacts | None, rank: int, *, run_directory: str, claim: str, image: str
) -> VolumeLog:
    """The rank's own log on the volume. Options win over annotations, these over the charts' defaults."""
    mount = (facts.results_mount if facts else "") or MOUNT
    directory = run_directory or (facts.run_directory if facts else "") or f"{mount}/{COMPARISON}/{release}"
    if not directory.startswith("/"):
        directory = f"{mount}/{directory}"
    elif not directory.startswith(mount.rstrip("/") + "/"):
        mount = "/" + directory.split("/")[1]
    return VolumeLog(
        claim=claim or (facts.results_claim if facts else "") or CLAIM,
        mount=mount,
        image=image or (facts.lab_image if facts else "") or IMAGE,
        path=f"{directory.rstrip('/')}/ranks/rank{rank}.log",
    )
