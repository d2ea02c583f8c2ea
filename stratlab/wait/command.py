"""The verb `stratlab wait`: its options, and nothing else."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from stratlab.options import RunDirectory
from stratlab.tracking.address import check_tracking_uri
from stratlab.user_error import UserError

if TYPE_CHECKING:
    from stratlab.cluster.connection import Connection
    from stratlab.wait.resource import Resource

NOT_ENDED = 1


def wait(
    run_dir: RunDirectory,
    resource: Annotated[
        str,
        typer.Option(
            metavar="API/NAME", help="The run's custom resource, as pytorchjob/demo. In a pod only."
        ),
    ] = "",
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", help="Of the resource; this pod's if left out.")
    ] = "",
    then_start: Annotated[
        str,
        typer.Option(
            metavar="JOB", help="A suspended Job to start afterwards, and to wait for. In a pod only."
        ),
    ] = "",
    job_queue: Annotated[
        str, typer.Option("--queue", help="Kueue's LocalQueue, which starts the Job instead.")
    ] = "",
    deadline_s: Annotated[float | None, typer.Option(min=0, help="Give up after so long.")] = None,
    poll_s: Annotated[float, typer.Option(min=0.01, help="Time between two looks at the files.")] = 1.0,
    tracking_uri: Annotated[
        str,
        typer.Option(
            envvar="MLFLOW_TRACKING_URI",
            callback=check_tracking_uri,
            help="The MLflow server: a run that failed and is still open there is closed.",
        ),
    ] = "",
    quiet_s: Annotated[
        float,
        typer.Option(
            min=0,
            help="After a failure that may be tried again, where no resource tells: silence that means the end.",
        ),
    ] = 120.0,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="As JSON, at the end: an object with ended, exit_code and sentence."),
    ] = False,
) -> None:
    """Wait until the run in RUN_DIR has ended, well or not. Exit code 1: not before the deadline.

    The files of the run say so, or its resource: Succeeded, Failed or deleted.

    Example: stratlab wait results/runs/demo/ddp --deadline-s 3600
    """
    from stratlab.cluster.connection import connect_in_cluster
    from stratlab.wait.ended import wait_for_run

    if run_dir.exists() and not run_dir.is_dir():
        raise UserError(
            f"{run_dir}: not a folder; expected the folder of a run, which may come later [SL-wait-no-folder]"
        )

    def say(text: str) -> None:
        print(text, file=sys.stderr if as_json else sys.stdout, flush=True)

    connection = connect_in_cluster() if resource or then_start else None
    watched = _start_resource(connection, resource, namespace, say) if resource else None
    outcome = wait_for_run(
        run_dir, resource=watched, deadline_s=deadline_s, poll_s=poll_s, quiet_s=quiet_s, say=say
    )
    if watched:
        watched.stop()
    if as_json:
        print(json.dumps(dataclasses.asdict(outcome)), flush=True)
    if not outcome.ended:
        why = f"not ended after {deadline_s:g} s: {outcome.sentence} [SL-not-ended]"
        print(f"error: {why}", file=sys.stderr)
        raise typer.Exit(NOT_ENDED)
    say(outcome.sentence)
    if (
        tracking_uri and outcome.exit_code != 0
    ):  # of a run that went well the metrics may still be on their way
        from stratlab.tracking.mlflow_run import close_run

        if done := close_run(run_dir, tracking_uri, exit_code=outcome.exit_code):
            say(done)
    if then_start and connection:
        from stratlab.wait.job_start import start_job

        start_job(connection, namespace or connection.namespace, then_start, job_queue, say)


def _start_resource(
    connection: Connection | None, text: str, namespace: str, say: Callable[[str], None]
) -> Resource | None:
    from stratlab.wait.resource import Resource, parse_resource

    api, name = parse_resource(text)
    if connection is None:
        say(
            f"no Kubernetes API here (not in a pod, or no token): {api.kind} {name} is not asked, the files decide"
        )
        return None
    watched = Resource(connection, api, namespace or connection.namespace, name)
    watched.start()
    return watched
