"""Locate a comparison on a cluster: from options, its runs' custom resources, or the charts' defaults."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import PurePosixPath

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.cluster.pod_template import CLAIM, IMAGE, MOUNT, PodRequest
from stratlab.cluster.workloads import RunAnnotations, list_workloads
from stratlab.user_error import UserError

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"


def find_place(
    connection: Connection,
    comparison: str,
    *,
    claim: str = "",
    mount: str = "",
    image: str = "",
    certificates: str = "",
    say: Callable[[str], None] = lambda sentence: None,
) -> PodRequest:
    """Return the pod that can read a comparison's runs.

    The annotations of the comparison's newest run decide. If all its runs are uninstalled, another run of the namespace
    decides, because a namespace usually has one volume. The image is the most frequent one of the namespace's runs.

    Args:
        claim, mount, image, certificates: the user's options; "" = left out.
        say: receives the source of the other values, unless they are the charts' defaults.
    """
    if claim and mount and image:
        return PodRequest(claim, mount, image, certificates=certificates)
    try:
        workloads = list_workloads(connection)
    except ClusterError:  # not permitted to list the runs: use the defaults
        workloads = []
    newest = sorted(workloads, key=lambda each: str(each.object["metadata"].get("creationTimestamp") or ""))
    newest = [each for each in reversed(newest) if each.facts.run_directory]
    same = [each for each in newest if PurePosixPath(each.facts.run_directory).parent.name == comparison]
    found = next(iter([*same, *newest]), None)
    facts = found.facts if found else RunAnnotations()
    images = Counter(each.facts.lab_image for each in newest if each.facts.lab_image)
    place = PodRequest(
        claim or facts.results_claim or CLAIM,
        mount or facts.results_mount or MOUNT,
        image or _choose_image(images, facts.lab_image),
        certificates=certificates or facts.certificates,
    )
    if found:
        others = f" (of {len(images)}; --image sets another)" if len(images) > 1 and not image else ""
        say(f"{found.title} uses claim {place.claim} at {place.mount}, image {place.image}{others}")
    return place


def _choose_image(images: Counter[str], own: str) -> str:
    """Return the most frequent image of the runs, because a single run may name an image that cannot be pulled.

    If several are equally frequent, prefer the charts' image, then `own`, the image of the run that sets the other
    values.
    """
    most = [name for name, count in images.items() if count == max(images.values())]
    return IMAGE if IMAGE in most or not most else own if own in most else most[0]


def read_name(text: str) -> tuple[str, str]:
    """Split COMPARISON/RUN, the name of a run on a cluster's volume. Raises UserError."""
    found = re.fullmatch(f"({NAME})/({NAME})", text)
    if not found:
        raise UserError(
            f"{text}: --on-cluster needs COMPARISON/RUN, such as demo/ddp [SL-name-not-comparison-run]"
        )
    return found[1], found[2]
