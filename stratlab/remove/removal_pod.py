"""The same where the runs are: in a pod that mounts the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.cluster.place import Place
from stratlab.cluster.volume_pod import run_on_volume
from stratlab.cluster.workloads import ENDED, find_workload
from stratlab.user_error import NothingThere, UserError


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
