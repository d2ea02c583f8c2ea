"""The verb `stratlab check`: its options, and what it prints."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Annotated

import typer

from stratlab.number import format_count
from stratlab.options import Certificates, Context, Namespace, PodResources
from stratlab.tracking.address import check_tracking_uri


def check(
    namespace: Namespace = None,
    context: Context = None,
    pod_resources: PodResources = "",
    claim: Annotated[str, typer.Option(help="The results claim.")] = "stratlab-results",
    mount: Annotated[str, typer.Option(help="Where runs see it.")] = "/results",
    image: Annotated[str, typer.Option(help="Image of the lab.")] = "stratlab-lab:0.1.0",
    trainer_image: Annotated[str, typer.Option(help="Image of the trainer.")] = "stratlab-trainer:0.1.0",
    tracking_uri: Annotated[
        str,
        typer.Option(callback=check_tracking_uri, help="MLflow as the runs see it; empty: there is none."),
    ] = "http://mlflow:5000",
    certificates: Certificates = "",
    pods: Annotated[bool, typer.Option(help="Whether to start pods: volume, images, MLflow.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON: a list of findings, at the end.")] = False,
) -> None:
    """Check whether a cluster is ready for runs: one line per thing, with what to do where it is not.

    Starts four small pods for some seconds, one with a GPU where there are any, and a PyTorchJob of one pod, unless
    --no-pods. Exit code 1: there is a problem; a warning is none.

    Example: stratlab check --namespace stratlab
    """
    from stratlab.check.finding import guarded
    from stratlab.check.gpus import check_gpus
    from stratlab.check.namespace import ABSENT, check_claim, check_namespace
    from stratlab.check.pod_checks import PodsRequest, check_pods
    from stratlab.check.quotas import check_quotas
    from stratlab.check.rights import check_account, check_rights
    from stratlab.check.small_job import check_small_job
    from stratlab.check.workload_checks import check_apis, find_served
    from stratlab.cluster.connection import connect
    from stratlab.machine.interruption import signals_raise

    connection = connect(context=context, namespace=namespace, pod_resources=pod_resources)
    space = connection.namespace
    served = find_served(connection)
    request = PodsRequest(claim, mount, image, trainer_image, tracking_uri, certificates)

    def tell(sentence: str) -> None:
        print(f"         .. {sentence}", file=sys.stderr, flush=True)

    everywhere = {
        "workload APIs": lambda: check_apis(connection),
        "GPUs": lambda: check_gpus(connection),
        f"namespace {space}": lambda: check_namespace(connection, space),
    }
    inside = {
        "quotas": lambda: check_quotas(connection, space),
        f"claim {claim}": lambda: check_claim(connection, space, claim),
        "your rights": lambda: check_rights(connection, space, served),
        "account of the analysis": lambda: check_account(connection, space, served),
    }
    if pods:
        inside["pods"] = lambda: check_pods(connection, space, request, tell)
        if "pytorchjob" in served:
            inside["a small PyTorchJob"] = lambda: check_small_job(connection, space, image, tell)
    say = print if not as_json else lambda line, flush=True: None
    say(f"{connection.server} ({connection.origin}), namespace {space}", flush=True)
    findings, absent = [], False
    with signals_raise():
        for looks in (everywhere, inside):
            for subject, look in looks.items() if not absent else ():
                for finding in guarded(subject, look):
                    say(finding, flush=True)
                    findings.append(finding)
                    absent = absent or (finding.state, finding.seen) == ("problem", ABSENT)
    problems = sum(finding.state == "problem" for finding in findings)
    if absent:
        say(f"the rest was not looked at: there is no namespace {space}", flush=True)
    say(format_count(problems, "problem") if problems else "ready", flush=True)
    if as_json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=1))
    raise typer.Exit(1 if problems else 0)
