"""Locate a comparison on a cluster, and read the results claim through a short-lived pod, without mounting the volume.

`run_on_volume` runs a command in the pod; `read_file` and `read_folder` return bytes. The pod is watched until it ends,
and is always deleted. Its log carries the answer. Bytes are compressed and sent as base64, with their length and hash
at the end, because a log is text and may be cut.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

import urllib3
from kubernetes.client import CoreV1Api
from kubernetes.client.exceptions import ApiException

from stratlab import NothingThere, UserError
from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection, explain, may_pass
from stratlab.cluster.pod_phase import PodEnd, explain_refusal, follow_pod, read_end, ticking
from stratlab.cluster.pod_template import CLAIM, IMAGE, MOUNT, PodRequest, build_pod
from stratlab.cluster.watching import split_lines
from stratlab.cluster.workloads import RunAnnotations, list_workloads

LOG_PAUSES_S = (0.5, 2.0, None)
LOG_SILENCE_S = 600.0
FOLDER_DEADLINE_S = 4 * 3600

# Runs in the pod: compresses each `sending.write` and prints lines of base64; `end` adds length and hash.
SENDING = """
import base64, hashlib, sys, zlib
class Sending:
    def __init__(self):
        self.packer, self.digest, self.length = zlib.compressobj(6), hashlib.sha256(), 0
    def write(self, piece):
        self.digest.update(piece)
        self.length += len(piece)
        if packed := self.packer.compress(piece):
            print(base64.b64encode(packed).decode())
        return len(piece)
    def end(self):
        print(base64.b64encode(self.packer.flush()).decode())
        print("end", self.length, self.digest.hexdigest())
sending = Sending()
"""
SEND_FILE = f"""{SENDING}
with open(sys.argv[1], "rb") as file:
    while piece := file.read(1 << 20):
        sending.write(piece)
sending.end()
"""
# argv: the folder, then names of folders to leave out, at any depth. Links are left out too.
SEND_FOLDER = f"""{SENDING}
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

Progress = Callable[[str], None]
"""Receives a sentence after 5 s and then every 15 s."""


@dataclass(frozen=True)
class Finished:
    """Describe how the command ended; `output` holds both streams in the order of writing.

    `termination` is Kubernetes' reason: OOMKilled, or Error and the last lines; "" after success.
    """

    exit_code: int
    output: bytes
    termination: str

    @property
    def text(self) -> str:
        return self.output.decode(errors="replace").strip()


def run_on_volume(
    connection: Connection,
    request: PodRequest,
    command: Sequence[str],
    progress: Progress = lambda sentence: None,
) -> Finished:
    """Run `command` in a pod of the connection's namespace; return when it has ended and the pod is deleted.

    Raises:
        ClusterError: the claim does not exist, a permission is missing, the image cannot be pulled, no node accepts the
            pod, or it ran too long.
    """
    with _running_pod(connection, request, command, progress) as (name, ending):
        with ticking(progress, f"pod {name} is running"):
            output = b"".join(_read_log(connection, name))
            end = read_end(name, ending, request.deadline_s)
    return Finished(end.exit_code, output, end.reason)


def read_file(
    connection: Connection, request: PodRequest, path: str, progress: Progress = lambda sentence: None
) -> Iterator[bytes]:
    """Yield the bytes of the file at `path`, below the mount, as they arrive.

    Raises:
        NothingThere: the file does not exist.
        ClusterError: as `run_on_volume`, or the bytes do not match the file; then the pieces so far are void.
    """
    return _read_bytes(connection, request, [SEND_FILE, path], progress)


def read_folder(
    connection: Connection, request: PodRequest, path: str, left_out: Collection[str], progress: Progress
) -> Iterator[bytes]:
    """Yield a tar archive of the folder at `path` as it arrives, without the folders named in `left_out`.

    Raises:
        NothingThere, ClusterError: as `read_file`.
    """
    request = replace(request, deadline_s=FOLDER_DEADLINE_S)
    return _read_bytes(connection, request, [SEND_FOLDER, path, *sorted(left_out)], progress)


def _read_bytes(
    connection: Connection, request: PodRequest, script: Sequence[str], progress: Progress
) -> Iterator[bytes]:
    """Yield the bytes that a Python script starting with `SENDING` sends; its first argument is the path."""
    path = script[1]
    with _running_pod(connection, request, ["python", "-c", *script], progress) as (name, ending):
        unpacker, digest, length, last = zlib.decompressobj(), hashlib.sha256(), 0, b""
        for last in split_lines(_read_log(connection, name)):
            if last.startswith(b"end "):
                break
            try:
                piece = unpacker.decompress(base64.b64decode(last, validate=True))
            except (ValueError, zlib.error):
                break  # Python's own error: it could not read the path
            digest.update(piece)
            length += len(piece)
            if piece:
                yield piece
        end = read_end(name, ending, request.deadline_s)
        if end.exit_code and "FileNotFoundError" in end.reason:
            raise NothingThere(f"{path}: does not exist on the claim {request.claim} [SL-file-not-there]")
        if end.exit_code:
            raise ClusterError(
                f"{path}: pod {name} could not read it: {end.reason} [SL-volume-file-unreadable]"
            )
        if last.decode(errors="replace") != f"end {length} {digest.hexdigest()}":
            raise ClusterError(
                f"{path}: the log of pod {name} was cut after {length} bytes; repeat the command [SL-file-cut]"
            )


@contextmanager
def _running_pod(
    connection: Connection, request: PodRequest, command: Sequence[str], progress: Progress
) -> Iterator[tuple[str, Generator[PodEnd | None]]]:
    """Yield the name of a pod whose command has started, with the iterator of its end; delete the pod on exit."""
    if request.claim:
        _check_claim(connection, request.claim)
    api, namespace = CoreV1Api(connection.client), connection.namespace
    try:
        body = build_pod(command, request, connection.pod_resources)
        pod = api.create_namespaced_pod(namespace, body, _request_timeout=30)
    except (ApiException, urllib3.exceptions.HTTPError, OSError) as failure:
        explained = explain(connection, failure)
        raise explain_refusal(str(explained)) or explained from failure
    name = pod.metadata.name
    ending = follow_pod(connection, name, progress)
    try:
        next(ending)
        yield name, ending
    finally:
        ending.close()
        _delete_pod(api, namespace, name, progress)


def _check_claim(connection: Connection, claim: str) -> None:
    """Check that the claim exists; a pod with a missing claim would never start."""
    try:
        connection.get(f"{connection.core}/persistentvolumeclaims/{claim}")
    except ClusterError as failure:
        if failure.status == 404:
            check_namespace(connection)
            raise ClusterError(
                f"namespace {connection.namespace} has no claim {claim}; set one with --claim [SL-claim-unknown]",
                404,
            ) from None
        if failure.status != 403:  # an account that may not read claims may still create the pod
            raise


def check_namespace(connection: Connection) -> None:
    """Check that the namespace exists, before waiting in it. Pass if this account may not read namespaces.

    Raises:
        UserError: the namespace does not exist.
    """
    try:
        connection.get(connection.core)
    except ClusterError as failure:
        if failure.status == 404:
            raise UserError(
                f"-n {connection.namespace}: the namespace does not exist ({connection.origin}); manifests/ creates "
                "stratlab [SL-namespace-unknown]"
            ) from None


def _delete_pod(api: CoreV1Api, namespace: str, name: str, progress: Progress) -> None:
    for pause_s in (0.5, 2.0, None):
        try:
            api.delete_namespaced_pod(name, namespace, _request_timeout=10)
            return
        except (ApiException, urllib3.exceptions.HTTPError, OSError) as failure:
            if isinstance(failure, ApiException) and failure.status == 404:
                return
            if pause_s is None:
                progress(f"pod {name} was not deleted: kubectl -n {namespace} delete pod {name} ({failure})")
                return
            time.sleep(pause_s)


def _read_log(connection: Connection, name: str) -> Iterator[bytes]:
    """Yield the log until the container ends. After a lost connection, continue after the bytes already read."""
    path, done = f"{connection.core}/pods/{name}/log", 0
    for pause_s in LOG_PAUSES_S:
        skip = done
        try:
            with closing(connection.stream(path, {"follow": "true"}, silence_s=LOG_SILENCE_S)) as response:
                for piece in response.stream(amt=None, decode_content=False):
                    fresh = piece[skip:]
                    skip = max(0, skip - len(piece))
                    done += len(fresh)
                    if fresh:
                        yield fresh
            return
        except (ClusterError, urllib3.exceptions.HTTPError, OSError) as failure:
            if pause_s is None or (isinstance(failure, ClusterError) and not may_pass(failure)):
                raise ClusterError(
                    f"the log of pod {name} ended early ({failure}) [SL-pod-log-broke-off]"
                ) from failure
            time.sleep(pause_s)


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
