"""The verb `stratlab logs`: its options, and nothing else."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from stratlab.options import PodResources


def logs(
    release: Annotated[
        str, typer.Argument(metavar="RELEASE", help="Name given to helm install.", show_default=False)
    ],
    rank: Annotated[int, typer.Option(min=0, help="Whose log.")] = 0,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="Of the attempt before this one.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the pod ends.")] = False,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="The context's if left out.")] = "",
    context: Annotated[str, typer.Option(help="Of the kubeconfig; the current one if left out.")] = "",
    run_directory: Annotated[
        str, typer.Option(metavar="PATH", help="On the volume, where no resource tells: /results/demo/ddp-1.")
    ] = "",
    claim: Annotated[str, typer.Option(help="The results claim, where no resource tells.")] = "",
    image: Annotated[
        str, typer.Option(help="The image that reads the volume, where no resource tells.")
    ] = "",
    pod_resources: PodResources = "",
) -> None:
    """Show the log of a rank: of its pod, or when that is gone, of its file on the results volume.

    Where the log comes from is said on standard error. The file is read by a short-lived pod.

    Example: stratlab logs ddp-1 --rank 3 --namespace stratlab
    """
    from stratlab.cluster.connection import connect
    from stratlab.logs.rank_log import read_rank
    from stratlab.machine.interruption import signals_raise

    connection = connect(context=context or None, namespace=namespace or None, pod_resources=pod_resources)
    with signals_raise():
        pieces = read_rank(
            connection,
            release,
            rank,
            previous=previous,
            follow=follow,
            say=_say,
            run_directory=run_directory,
            claim=claim,
            image=image,
        )
        try:
            for piece in pieces:
                sys.stdout.buffer.write(piece)
                sys.stdout.buffer.flush()
        except BrokenPipeError:  # as in `stratlab logs demo | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
