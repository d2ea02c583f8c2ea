"""The verbs `check`, `watch`, `wait` and `logs`: their options and their output."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Annotated

import typer

from stratlab import UserError
from stratlab.commands import (
    Certificates,
    Claim,
    Context,
    LabImage,
    Namespace,
    PodResources,
    Release,
    RunDirectory,
    TrackingUri,
    print_json,
    say,
)
from stratlab.tracking import check_tracking_uri, close_run
from stratlab.wording import format_count


def check(
    namespace: Namespace = None,
    context: Context = None,
    pod_resources: PodResources = "",
    claim: Annotated[str, typer.Option(help="The results claim.")] = "stratlab-results",
    mount: Annotated[str, typer.Option(help="Its folder in the runs' pods.")] = "/results",
    image: Annotated[str, typer.Option(help="Image of the lab.")] = "stratlab-lab:0.1.0",
    trainer_image: Annotated[str, typer.Option(help="Image of the trainer.")] = "stratlab-trainer:0.1.0",
    tracking_uri: Annotated[
        str,
        typer.Option(callback=check_tracking_uri, help="MLflow as the runs see it; empty: no server."),
    ] = "http://mlflow:5000",
    certificates: Certificates = "",
    pods: Annotated[bool, typer.Option(help="Whether to start pods: volume, images, MLflow.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON: a list of findings, at the end.")] = False,
) -> None:
    """Check whether a cluster is ready for runs: one line per check, with a fix for each problem.

    Starts four small pods for some seconds, one with a GPU if the cluster has any, and a PyTorchJob of one pod,
    unless --no-pods. Exit code 1: there is a problem; warnings do not count.

    Example: stratlab check --namespace stratlab
    """
    from stratlab.cluster.connection import connect
    from stratlab.cluster.pod_template import PodRequest
    from stratlab.machine import signals_raise
    from stratlab.namespace_checks import (
        ABSENT,
        check_account,
        check_claim,
        check_gpus,
        check_namespace,
        check_quotas,
        check_rights,
        guarded,
    )
    from stratlab.pod_checks import PodsRequest, check_pods
    from stratlab.workload_checks import check_apis, check_small_job, find_served

    connection = connect(context=context, namespace=namespace, pod_resources=pod_resources)
    space, served = connection.namespace, find_served(connection)
    lab = PodRequest(claim, mount, image, certificates=certificates)
    request = PodsRequest(lab, trainer_image, tracking_uri)

    def tell(sentence: str) -> None:
        say(f"         .. {sentence}")

    everywhere = {
        "workload APIs": lambda: check_apis(connection),
        "GPUs": lambda: check_gpus(connection),
        f"namespace {space}": lambda: check_namespace(connection),
    }
    inside = {
        "quotas": lambda: check_quotas(connection),
        f"claim {claim}": lambda: check_claim(connection, claim),
        "your rights": lambda: check_rights(connection, served),
        "account of the analysis": lambda: check_account(connection, served),
    }
    if pods:
        inside["pods"] = lambda: check_pods(connection, request, tell)
        if "pytorchjob" in served:
            inside["a small PyTorchJob"] = lambda: check_small_job(connection, image, tell)
    show = partial(print, flush=True) if not as_json else lambda line: None
    show(f"{connection.server} ({connection.origin}), namespace {space}")
    findings, absent = [], False
    with signals_raise():
        for looks in (everywhere, inside):
            for subject, look in looks.items() if not absent else ():
                for finding in guarded(subject, look):
                    show(finding)
                    findings.append(finding)
                    absent = absent or (finding.state, finding.seen) == ("problem", ABSENT)
    problems = sum(finding.state == "problem" for finding in findings)
    if absent:
        show(f"the rest was not looked at: there is no namespace {space}")
    show(format_count(problems, "problem") if problems else "ready")
    if as_json:
        print_json([dataclasses.asdict(finding) for finding in findings])
    raise typer.Exit(1 if problems else 0)


def watch(
    release: Release,
    namespace: Namespace = None,
    context: Context = None,
    analysis: Annotated[bool, typer.Option(help="Stay until the analysis has ended too.")] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="As JSON, at the end: an object with the run's outcome.")
    ] = False,
) -> None:
    """Watch a run on the cluster until it ends: pods, step, loss, speed, time left, problems.

    A live table on a terminal, plain lines elsewhere. The exit code is the run's outcome: 0 it succeeded, else the
    trainer's own code, or 1. Ctrl-C leaves (130), and the run continues.

    Example: stratlab watch ddp-1 --namespace stratlab
    """
    from rich.console import Console

    from stratlab.cluster.connection import connect
    from stratlab.machine import Interrupted, signals_raise
    from stratlab.watch_display import Lines, build_ending, build_farewell, describe_left
    from stratlab.watch_session import WatchDisplay, await_workload, watch_run
    from stratlab.watch_state import Picture

    show = _choose_output(as_json)
    connection = connect(context=context, namespace=namespace)
    console = Console(stderr=as_json)
    picture: Picture | None = None
    with ExitStack() as stack:
        stack.enter_context(signals_raise())
        try:
            picture = Picture(await_workload(connection, release, show))
            display: WatchDisplay = Lines(show)
            if console.is_terminal and not console.is_dumb_terminal:
                from stratlab.watch_display import LiveTable

                display = stack.enter_context(LiveTable(console))
            code = watch_run(connection, picture, display, analysis=analysis)
        except Interrupted as stop:
            stack.close()
            show(f"left; {describe_left(picture)}: stratlab watch {release} -n {connection.namespace}")
            raise typer.Exit(stop.code) from None
    for line in build_farewell(picture):
        show(line)
    if as_json:
        print_json(build_ending(picture, code))
    raise typer.Exit(code)


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
        str, typer.Option("--namespace", "-n", help="The resource's; default: this pod's.")
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
    tracking_uri: TrackingUri = "",
    quiet_s: Annotated[
        float,
        typer.Option(
            min=0,
            help="After a failure that may be repeated, without a resource: seconds of silence that count as the end.",
        ),
    ] = 120.0,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="As JSON, at the end: an object with ended, exit_code and sentence."),
    ] = False,
) -> None:
    """Wait until the run in RUN_DIR has succeeded or failed. Exit code 1: not before the deadline.

    The files of the run show its end, or its resource: Succeeded, Failed or deleted. A run that failed is closed in
    MLflow.

    Example: stratlab wait results/runs/demo/ddp --deadline-s 3600
    """
    from stratlab.cluster.connection import connect_in_cluster
    from stratlab.wait import Resource, parse_resource, start_job, wait_for_run

    if run_dir.exists() and not run_dir.is_dir():
        raise UserError(
            f"{run_dir}: not a folder; expected the folder of a run, which may come later [SL-wait-no-folder]"
        )
    show = _choose_output(as_json)
    connection, watched = (connect_in_cluster() if resource or then_start else None), None
    if connection and namespace:
        connection = dataclasses.replace(connection, namespace=namespace)
    if resource:
        api, name = parse_resource(resource)
        if connection:
            watched = Resource(connection, api, name)
            watched.start()
        else:
            absent = "no Kubernetes API here (not in a pod, or no token)"
            show(f"{absent}: {api.kind} {name} is not asked, the files decide")
    outcome = wait_for_run(
        run_dir, resource=watched, deadline_s=deadline_s, poll_s=poll_s, quiet_s=quiet_s, say=show
    )
    if watched:
        watched.stop()
    if as_json:
        print(json.dumps(dataclasses.asdict(outcome)), flush=True)
    if not outcome.ended:
        why = f"not ended after {deadline_s:g} s: {outcome.sentence} [SL-not-ended]"
        print(f"error: {why}", file=sys.stderr)
        raise typer.Exit(NOT_ENDED)
    show(outcome.sentence)
    # the metrics of a successful run may still be on their way
    may_close = tracking_uri and outcome.exit_code != 0
    if may_close and (done := close_run(run_dir, tracking_uri, exit_code=outcome.exit_code)):
        show(done)
    if then_start and connection:
        start_job(connection, then_start, job_queue, show)


def logs(
    release: Release,
    rank: Annotated[int, typer.Option(min=0, help="Whose log.")] = 0,
    previous: Annotated[bool, typer.Option("--previous", "-p", help="Show the previous attempt.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the pod ends.")] = False,
    namespace: Namespace = None,
    context: Context = None,
    run_directory: Annotated[
        str, typer.Option(metavar="PATH", help="On the volume, without a resource: /results/demo/ddp-1.")
    ] = "",
    claim: Claim = "",
    image: LabImage = "",
    pod_resources: PodResources = "",
) -> None:
    """Show the log of a rank: from its pod, or after the pod has gone from its file on the results volume.

    Standard error names the source of the log. A short-lived pod reads the file.

    Example: stratlab logs ddp-1 --rank 3 --namespace stratlab
    """
    from stratlab.cluster.connection import connect
    from stratlab.logs import read_rank
    from stratlab.machine import signals_raise

    connection = connect(context=context, namespace=namespace, pod_resources=pod_resources)
    of_file = {"run_directory": run_directory, "claim": claim, "image": image}
    with signals_raise():
        pieces = read_rank(connection, release, rank, previous=previous, follow=follow, say=say, **of_file)
        try:
            for piece in pieces:
                sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
        except BrokenPipeError:  # as in `stratlab logs demo | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _choose_output(as_json: bool) -> Callable[[str], None]:
    """Return the function that prints progress: on standard error if the answer is JSON."""
    return say if as_json else partial(print, flush=True)
