"""Where a comparison lies on a cluster: as given, else as its runs' custom resources say, else the charts' defaults."""

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
    """The pod that can read a comparison's runs.

    The annotations of the newest run of this comparison decide; where all are uninstalled, those of another run in the
    namespace, which has mostly one volume. The image is the one that most runs of the namespace have.

    Args:
        claim, mount, image, certificates: what the user gave; "" = left out.
        say: hears where the rest comes from, unless it is the charts' defaults.
    """
    if claim and mount and image:
        return PodRequest(claim, mount, image, certificates=certificates)
    try:
        workloads = list_workloads(connection)
    except ClusterError:  # no right to look: what is left are the defaults
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
        others = f" (of {len(images)}; --image names another)" if len(images) > 1 and not image else ""
        say(f"as {found.title} says: claim {place.claim} at {place.mount}, image {place.image}{others}")
    return place


def _choose_image(images: Counter[str], own: str) -> str:
    """The one that most runs have, for one of them may name what nobody can pull; of as many the charts' own, then
    `own`, that of the run which tells the rest."""
    most = [name for name, count in images.items() if count == max(images.values())]
    return IMAGE if IMAGE in most or not most else own if own in most else most[0]


def read_name(text: str) -> tuple[str, str]:
    """Split COMPARISON/RUN, as a user names a run that lies on a cluster's volume. Raises UserError."""
    found = re.fullmatch(f"({NAME})/({NAME})", text)
    if not found:
        raise UserError(
            f"{text}: with --on-cluster give COMPARISON/RUN, such as demo/ddp [SL-name-not-comparison-run]"
        )
    return found[1], found[2]
