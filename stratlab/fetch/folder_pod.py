"""A folder of the results volume as one archive, through the log of a short-lived pod."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from stratlab.cluster.connection import Connection
from stratlab.cluster.place import Place
from stratlab.cluster.pod_template import PodRequest
from stratlab.cluster.volume_pod import SENDING, read_bytes

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
