"""The list of a cluster: what lies on the results volume, beside the custom resources of the namespace."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.cluster.place import Place
from stratlab.cluster.volume_pod import run_on_volume
from stratlab.cluster.workloads import SUSPENDED, Workload, list_workloads
from stratlab.list.run_list import ListedRun, build_run
from stratlab.user_error import NothingThere

WRONG_INPUT = 2
"""Of an older image, which had no other code for it."""


def list_on_cluster(
    connection: Connection, namespace: str, place: Place, progress: Callable[[str], None]
) -> list[ListedRun]:
    """The runs on the claim, by a short-lived pod, each with its custom resource; then the resources without a folder.

    Raises:
        ClusterError: the pod could not do it.
    """
    finished = run_on_volume(
        connection,
        namespace,
        claim=place.claim,
        mount=place.mount,
        image=place.image,
        command=["python", "-m", "stratlab", "list", place.mount, "--json"],
        progress=progress,
    )
    said = finished.output.decode(errors="replace").strip()
    if finished.exit_code in (WRONG_INPUT, NothingThere.exit_code) and "no run in it" in said:
        runs = []
    elif finished.exit_code:
        raise ClusterError(
            f"{place.mount}: could not be listed: {said or finished.termination} [SL-list-pod-failed]"
        )
    else:
        try:
            runs = [build_run(fields) for fields in json.loads(said)]
        except (ValueError, TypeError) as failure:
            raise ClusterError(
                f"{place.mount}: the list did not arrive whole; try again [SL-list-cut]"
            ) from failure
    return add_resources(runs, list_workloads(connection, namespace))


def add_resources(runs: Sequence[ListedRun], workloads: Sequence[Workload]) -> list[ListedRun]:
    """`runs`, each with the custom resource that writes its folder, and a row for each resource without a folder."""
    left = {_place_of(workload): workload for workload in workloads if workload.facts.run_directory}
    rows = []
    for run in runs:
        workload = left.pop((run.comparison, run.run), None)
        if workload:
            is_suspended = workload.state == SUSPENDED and run.status != "finished"
            status = SUSPENDED if is_suspended else run.status
            run = replace(run, status=status, resource=f"{workload.title}: {workload.state}")
        rows.append(run)
    for (comparison, name), workload in sorted(left.items()):
        row = ListedRun(comparison, name, workload.state, world_size=workload.facts.processes)
        rows.append(replace(row, resource=f"{workload.title}: {workload.state}"))
    return rows


def _place_of(workload: Workload) -> tuple[str, str]:
    path = PurePosixPath(workload.facts.run_directory)
    return path.parent.name, path.name
