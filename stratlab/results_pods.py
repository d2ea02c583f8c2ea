"""Run the verbs `list` and `remove` on a cluster: the same program, in a pod that mounts the results.

Each listed run includes its custom resource. `pick_old` selects old runs in the same way on both sides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import PurePosixPath

from stratlab import NothingThere, UserError
from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.cluster.pod_template import PodRequest
from stratlab.cluster.volume_pod import run_on_volume
from stratlab.cluster.workloads import ENDED, SUSPENDED, Workload, find_workload, list_workloads
from stratlab.run_directory.outcome import AT_WORK
from stratlab.run_folders import ListedRun, build_run

WRONG_INPUT = 2
"""Exit code of an older image, which had no other code for this case."""
UNITS = {"h": "hours", "d": "days", "w": "weeks"}


def list_on_cluster(
    connection: Connection, place: PodRequest, progress: Callable[[str], None]
) -> list[ListedRun]:
    """List the runs on the claim, each with its custom resource; then the resources without a folder.

    Raises:
        ClusterError: the pod failed.
    """
    command = ["python", "-m", "stratlab", "list", place.mount, "--json"]
    finished = run_on_volume(connection, place, command, progress)
    if finished.exit_code in (WRONG_INPUT, NothingThere.exit_code) and "no run in it" in finished.text:
        runs = []
    elif finished.exit_code:
        why = finished.text or finished.termination
        raise ClusterError(f"{place.mount}: could not be listed: {why} [SL-list-pod-failed]")
    else:
        try:
            runs = [build_run(fields) for fields in json.loads(finished.text)]
        except (ValueError, TypeError) as failure:
            raise ClusterError(
                f"{place.mount}: the list is incomplete; repeat the command [SL-list-cut]"
            ) from failure
    return add_resources(runs, list_workloads(connection))


def add_resources(runs: Sequence[ListedRun], workloads: Sequence[Workload]) -> list[ListedRun]:
    """Return `runs`, each with the resource that writes its folder, and a row for each resource without a folder."""
    writing = [each for each in workloads if each.facts.run_directory]
    left = {PurePosixPath(each.facts.run_directory).parts[-2:]: each for each in writing}
    rows = []
    for run in runs:
        if workload := left.pop((run.comparison, run.run), None):
            is_suspended = workload.state == SUSPENDED and run.status != "finished"
            status = SUSPENDED if is_suspended else run.status
            run = replace(run, status=status, resource=f"{workload.title}: {workload.state}")
        rows.append(run)
    for (comparison, name), workload in sorted(left.items()):
        resource = f"{workload.title}: {workload.state}"
        world_size = workload.facts.processes
        rows.append(ListedRun(comparison, name, workload.state, world_size=world_size, resource=resource))
    return rows


def check_ended(connection: Connection, comparison: str, run: str) -> None:
    """Check that no run still writes into the folder.

    Raises:
        UserError: the run's custom resource exists and has not ended.
    """
    workload = find_workload(connection, run)
    if workload is None or workload.state in ENDED:
        return
    if workload.facts.run_directory.endswith(f"/{comparison}/{run}"):
        raise UserError(
            f"{comparison}/{run}: {workload.title} is {workload.state} [SL-remove-not-ended]; "
            f"first helm -n {connection.namespace} uninstall {run}"
        )


def remove_on_cluster(
    connection: Connection,
    place: PodRequest,
    runs: Sequence[str],
    with_mlflow: bool,
    progress: Callable[[str], None],
) -> None:
    """Remove the folder of each COMPARISON/RUN on the claim, all in one pod.

    Raises:
        NothingThere: a run does not exist; the runs before it are removed.
        ClusterError: the pod failed.
    """
    folders = [place.find_folder(run) for run in runs]
    command = ["python", "-m", "stratlab", "remove", *folders, "--yes", *["--with-mlflow"] * with_mlflow]
    request = replace(place, read_only=False, component="comparison" if with_mlflow else "volume")
    finished = run_on_volume(connection, request, command, progress)
    said = finished.text.removeprefix("error: ")
    refusals = {UserError.exit_code: UserError, NothingThere.exit_code: NothingThere}
    if refusal := refusals.get(finished.exit_code):
        raise refusal(f"on the claim {place.claim} of namespace {connection.namespace}: {said}")
    if finished.exit_code:
        why = said or finished.termination
        raise ClusterError(f"{', '.join(folders)}: could not be removed: {why} [SL-remove-failed]")


def parse_age(text: str) -> timedelta:
    """Parse an age: 12h, 30d or 8w.

    Raises:
        UserError: the text has another form.
    """
    found = re.fullmatch(r"([1-9]\d{0,4})([hdw])", text)
    if not found:
        raise UserError(
            f"--older-than {text}: expected a whole number of hours, days or weeks: 12h, 30d, 8w [SL-older-than-form]"
        )
    return timedelta(**{UNITS[found[2]]: int(found[1])})


def pick_old(runs: Iterable[ListedRun], age: timedelta, now: datetime) -> list[ListedRun]:
    """Return the runs that have recorded no change for `age`.

    Keep an active run, a run with a resource that has not ended (also a suspended run), and files without a time.
    """
    old = []
    for run in runs:
        state = run.resource.rpartition(": ")[2]
        is_held = run.status == AT_WORK or (state and state not in ENDED)
        if not is_held and run.written and datetime.fromisoformat(run.written) < now - age:
            old.append(run)
    return old
