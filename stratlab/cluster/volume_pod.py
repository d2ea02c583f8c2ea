"""A short-lived pod that mounts the results claim: for a laptop that cannot mount the volume itself.

Restricted-clean, watched until it ends, deleted whatever happens. Its log carries the answer; bytes go through the
log compressed and in base64, with their length and hash at the end, because a log is text and may be cut.

The namespace that was given, or left out: told before anything is waited for in one that is not there.
"""

from __future__ import annotations

import base64
import hashlib
import time
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

import urllib3
from kubernetes.client import CoreV1Api
from kubernetes.client.exceptions import ApiException

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection, explain, may_pass
from stratlab.cluster.pod_phase import PodEnd, explain_refusal, follow_pod, read_end, ticking
from stratlab.cluster.pod_template import PodRequest, build_pod
from stratlab.user_error import NothingThere, UserError


def check_namespace(connection: Connection, namespace: str) -> None:
    """Who may not look at namespaces is believed.

    Raises:
        UserError: there is none of this name.
    """
    try:
        connection.get(f"/api/v1/namespaces/{namespace}")
    except ClusterError as failure:
        if failure.status == 404:
            raise UserError(
                f"-n {namespace}: there is no such namespace ({connection.origin}); that of manifests/ is stratlab "
                "[SL-namespace-unknown]"
            ) from None


LOG_PAUSES_S = (0.5, 2.0, None)
LOG_SILENCE_S = 600.0

# Runs in the pod: what is written into `sending` goes out compressed, as lines of base64; end() adds length and hash.
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
SEND_FILE = (
    SENDING
    + """
with open(sys.argv[1], "rb") as file:
    while piece := file.read(1 << 20):
        sending.write(piece)
sending.end()
"""
)


@dataclass(frozen=True)
class Finished:
    """How the command ended; `output` is what it wrote, both streams in the order of writing."""

    exit_code: int
    output: bytes
    termination: str
    """What Kubernetes says about the end: OOMKilled, Error and the last lines; "" after success."""


def run_on_volume(
    connection: Connection,
    namespace: str,
    *,
    claim: str | None,
    mount: str,
    image: str,
    command: Sequence[str],
    read_only: bool = True,
    env: Mapping[str, str] | None = None,
    progress: Callable[[str], None] = lambda sentence: None,
    component: str = "volume",
    deadline_s: int = 900,
    limits: Mapping[str, int] | None = None,
    certificates: str = "",
) -> Finished:
    """Runs `command` in a pod that sees the claim at `mount`, and returns when it has ended and the pod is deleted.

    Args:
        claim: None: an empty folder instead.
        env: further variables of the container.
        progress: gets a sentence after 5 s and then every 15 s.
        component: its label app.kubernetes.io/component.
        deadline_s: how long the pod may live.
        limits: of further resources, as nvidia.com/gpu.
        certificates: of MLflow's authority, as a run's annotation names them.

    Raises:
        ClusterError: no such claim, no right, the image cannot be pulled, no node takes the pod, it took too long.
    """
    request = PodRequest(
        claim,
        mount,
        image,
        read_only,
        env or {},
        component,
        deadline_s=deadline_s,
        limits=limits or {},
        certificates=certificates,
    )
    with _running_pod(connection, namespace, command, request, progress) as (name, ending):
        with ticking(progress, f"pod {name} is running"):
            output = b"".join(_read_log(connection, namespace, name))
            end = read_end(name, ending, deadline_s)
    return Finished(end.exit_code, output, end.reason)


def read_file(
    connection: Connection,
    namespace: str,
    *,
    claim: str,
    mount: str,
    image: str,
    path: str,
    progress: Callable[[str], None] = lambda sentence: None,
) -> Iterator[bytes]:
    """The bytes of the file at `path` (below `mount`), in pieces as they arrive.

    Raises:
        NothingThere: there is no such file.
        ClusterError: as `run_on_volume`, or what arrived is not the file; then the pieces so far are void.
    """
    request = PodRequest(claim, mount, image)
    return read_bytes(connection, namespace, request, [SEND_FILE, path], path, progress)


def read_bytes(
    connection: Connection,
    namespace: str,
    request: PodRequest,
    script: Sequence[str],
    path: str,
    progress: Callable[[str], None],
) -> Iterator[bytes]:
    """What a Python script that ends with `sending.end()` sends of `path`, in pieces as they arrive.

    Args:
        script: its text, which begins with `SENDING`, and its arguments.

    Raises:
        NothingThere, ClusterError: as `read_file`.
    """
    with _running_pod(connection, namespace, ["python", "-c", *script], request, progress) as (name, ending):
        unpacker, digest, length = zlib.decompressobj(), hashlib.sha256(), 0
        last = ""
        for line in _lines(_read_log(connection, namespace, name)):
            last = line
            if line.startswith("end "):
                break
            try:
                piece = unpacker.decompress(base64.b64decode(line, validate=True))
            except (ValueError, zlib.error):
                break  # python's own words: the path could not be read
            digest.update(piece)
            length += len(piece)
            if piece:
                yield piece
        end = read_end(name, ending, request.deadline_s)
        if end.exit_code and "FileNotFoundError" in end.reason:
            raise NothingThere(f"{path}: not there, on the claim {request.claim} [SL-file-not-there]")
        if end.exit_code:
            raise ClusterError(
                f"{path}: could not be read in pod {name}: {end.reason} [SL-volume-file-unreadable]"
            )
        if last != f"end {length} {digest.hexdigest()}":
            raise ClusterError(
                f"{path}: the log of pod {name} was cut after {length} bytes; try again [SL-file-cut]"
            )


@contextmanager
def _running_pod(
    connection: Connection,
    namespace: str,
    command: Sequence[str],
    request: PodRequest,
    progress: Callable[[str], None],
) -> Iterator[tuple[str, Generator[PodEnd | None]]]:
    """A pod whose command has started, and what will yield how it ended. It is deleted when the block is left."""
    if request.claim:
        _check_claim(connection, namespace, request.claim)
    api = CoreV1Api(connection.client)
    try:
        body = build_pod(command, request, connection.pod_resources)
        pod = api.create_namespaced_pod(namespace, body, _request_timeout=30)
    except (ApiException, urllib3.exceptions.HTTPError, OSError) as failure:
        told = explain(connection, failure)
        raise explain_refusal(str(told)) or told from failure
    name = pod.metadata.name
    ending = follow_pod(connection, namespace, name, progress)
    try:
        next(ending)
        yield name, ending
    finally:
        ending.close()
        _delete_pod(api, namespace, name, progress)


def _check_claim(connection: Connection, namespace: str, claim: str) -> None:
    """A pod with a claim that does not exist would wait for ever."""
    try:
        connection.get(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim}")
    except ClusterError as failure:
        if failure.status == 404:
            check_namespace(connection, namespace)
            raise ClusterError(
                f"namespace {namespace} has no claim {claim}: name it with --claim [SL-claim-unknown]", 404
            ) from None
        if failure.status != 403:  # who may not look may still create the pod
            raise


def _delete_pod(api: CoreV1Api, namespace: str, name: str, progress: Callable[[str], None]) -> None:
    for pause_s in (0.5, 2.0, None):
        try:
            api.delete_namespaced_pod(name, namespace, _request_timeout=10)
            return
        except (ApiException, urllib3.exceptions.HTTPError, OSError) as failure:
            if isinstance(failure, ApiException) and failure.status == 404:
                return
            if pause_s is None:
                progress(f"pod {name} stays: kubectl -n {namespace} delete pod {name} ({failure})")
                return
            time.sleep(pause_s)


def _read_log(connection: Connection, namespace: str, name: str) -> Iterator[bytes]:
    """The log until the container ends. A connection that breaks is opened again behind what was read."""
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/log"
    done = 0
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
                    f"the log of pod {name} broke off ({failure}) [SL-pod-log-broke-off]"
                ) from failure
            time.sleep(pause_s)


def _lines(pieces: Iterator[bytes]) -> Iterator[str]:
    buffer = b""
    for piece in pieces:
        *lines, buffer = (buffer + piece).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines)
    if buffer:
        yield buffer.decode(errors="replace")
