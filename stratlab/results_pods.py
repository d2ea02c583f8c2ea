"""The list of a cluster: what lies on the results volume, beside the custom resources of the namespace.

The same where the runs are: in a pod that mounts the results.

Which runs are old enough to go.

A folder of the results volume as one archive, through the log of a short-lived pod.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import PurePosixPath

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.cluster.pod_template import PodRequest
from stratlab.cluster.results_location import Place
from stratlab.cluster.volume_pod import SENDING, read_bytes, run_on_volume
from stratlab.cluster.workloads import ENDED, SUSPENDED, Workload, find_workload, list_workloads
from stratlab.run_directory.outcome import AT_WORK
from stratlab.run_folders import ListedRun, build_run
from stratlab.user_error import NothingThere, UserError

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


def check_ended(connection: Connection, namespace: str, comparison: str, run: str) -> None:
    """Nothing may still write into the folder.

    Raises:
        UserError: the run's custom resource is there and has not ended.
    """
    workload = find_workload(connection, namespace, run)
    if workload is None or workload.state in ENDED:
        return
    if workload.facts.run_directory.endswith(f"/{comparison}/{run}"):
        raise UserError(
            f"{comparison}/{run}: {workload.title} is {workload.state} [SL-remove-not-ended]; "
            f"first helm -n {namespace} uninstall {run}"
        )


def remove_on_cluster(
    connection: Connection,
    namespace: str,
    runs: Sequence[str],
    with_mlflow: bool,
    place: Place,
    progress: Callable[[str], None],
) -> None:
    """Removes `<mount>/<run>` on the claim for each COMPARISON/RUN, all in one pod.

    Raises:
        NothingThere: there is no such run; those before it are gone.
        ClusterError: the pod could not do it.
    """
    folders = [f"{place.mount.rstrip('/')}/{run}" for run in runs]
    options = ["--yes", *(["--with-mlflow"] if with_mlflow else [])]
    finished = run_on_volume(
        connection,
        namespace,
        claim=place.claim,
        mount=place.mount,
        image=place.image,
        command=["python", "-m", "stratlab", "remove", *folders, *options],
        read_only=False,
        progress=progress,
        certificates=place.certificates if with_mlflow else "",
        component="comparison" if with_mlflow else "volume",  # the network rules let it reach MLflow
    )
    said = finished.output.decode(errors="replace").strip().removeprefix("error: ")
    refusals = {UserError.exit_code: UserError, NothingThere.exit_code: NothingThere}
    if refusal := refusals.get(finished.exit_code):
        raise refusal(f"on the claim {place.claim} of namespace {namespace}: {said}")
    if finished.exit_code:
        why = said or finished.termination
        raise ClusterError(f"{', '.join(folders)}: could not be removed: {why} [SL-remove-failed]")


UNITS = {"h": "hours", "d": "days", "w": "weeks"}


def parse_age(text: str) -> timedelta:
    """From 12h, 30d or 8w.

    Raises:
        UserError: it is none of these.
    """
    found = re.fullmatch(r"([1-9]\d{0,4})([hdw])", text)
    if not found:
        raise UserError(
            f"--older-than {text}: expected a whole number of hours, days or weeks: 12h, 30d, 8w [SL-older-than-form]"
        )
    return timedelta(**{UNITS[found[2]]: int(found[1])})


def pick_old(runs: Iterable[ListedRun], age: timedelta, now: datetime) -> list[ListedRun]:
    """Those that have recorded nothing for `age`.

    One stays that is at work, whose custom resource has not ended (as of a suspended run), or whose files tell no time.
    """
    old = []
    for run in runs:
        state = run.resource.rpartition(": ")[2]
        is_held = run.status == AT_WORK or (state and state not in ENDED)
        if not is_held and run.written and datetime.fromisoformat(run.written) < now - age:
            old.append(run)
    return old


DEADLINE_S = 4 * 3600

# argv: the folder, then names of folders in it, at any depth, that stay where they are. Links stay too.
SEND_FOLDER = (
    SENDING
    + """
import os, tarfile
folder, left_out = sys.argv[1], set(sys.argv[2:])
def choose(member):
    inner = member.name.split("/")[1:]
    hidden = any(part.startswith(".") and part != ".metadata" for part in inner)  # a checkpoint is void without it
    return member if (member.isfile() or member.isdir()) and not hidden and not left_out & set(inner) else None
if not os.path.isdir(folder):
    raise FileNotFoundError(folder)
with tarfile.open(fileobj=sending, mode="w|", bufsize=1 << 20) as archive:
    archive.add(folder, arcname=os.path.basename(folder), filter=choose)
sending.end()
"""
)


def read_folder(
    connection: Connection,
    namespace: str,
    place: Place,
    folder: str,
    left_out: Collection[str],
    progress: Callable[[str], None],
) -> Iterator[bytes]:
    """A tar archive of `<mount>/<folder>`, in pieces as they arrive.

    Args:
        folder: COMPARISON or COMPARISON/RUN.
        left_out: names of folders inside it that are not sent.

    Raises:
        NothingThere: there is no such folder.
        ClusterError: the pod could not do it, or what arrived is not whole; then the pieces so far are void.
    """
    path = f"{place.mount.rstrip('/')}/{folder}"
    request = PodRequest(place.claim, place.mount, place.image, deadline_s=DEADLINE_S)
    script = [SEND_FOLDER, path, *sorted(left_out)]
    return read_bytes(connection, namespace, request, script, path, progress)
