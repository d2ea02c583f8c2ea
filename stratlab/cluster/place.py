"""Where a comparison lies on a cluster: as given, else as its runs' custom resources say, else the charts' defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.cluster.pod_template import CLAIM, IMAGE, MOUNT
from stratlab.cluster.workloads import RunFacts, list_workloads


@dataclass(frozen=True)
class Place:
    """A claim, where the runs see it, and the image that can read them."""

    claim: str
    mount: str
    image: str


def find_place(
    connection: Connection,
    namespace: str,
    comparison: str,
    *,
    claim: str = "",
    mount: str = "",
    image: str = "",
    say: Callable[[str], None] = lambda sentence: None,
) -> Place:
    """The place of a comparison's runs.

    The annotations of a run of this comparison decide, of the newest where there are several; where all are
    uninstalled, those of another run in the namespace, for one namespace has mostly one volume and one image.

    Args:
        claim, mount, image: what the user gave; "" = left out.
        say: hears where the rest comes from, unless it is the charts' defaults.
    """
    if claim and mount and image:
        return Place(claim, mount, image)
    try:
        workloads = list_workloads(connection, namespace)
    except ClusterError:  # no right to look: what is left are the defaults
        workloads = []
    newest = sorted(workloads, key=lambda each: str(each.object["metadata"].get("creationTimestamp") or ""))
    newest = [each for each in reversed(newest) if each.facts.run_directory]
    same = [each for each in newest if _comparison(each.facts) == comparison]
    found = next(iter([*same, *newest]), None)
    facts = found.facts if found else RunFacts("", "", "", "", "", None)
    place = Place(
        claim or facts.results_claim or CLAIM,
        mount or facts.results_mount or MOUNT,
        image or facts.lab_image or IMAGE,
    )
    if found:
        say(f"as {found.title} says: claim {place.claim} at {place.mount}, image {place.image}")
    return place


def _comparison(facts: RunFacts) -> str:
    return PurePosixPath(facts.run_directory).parent.name
