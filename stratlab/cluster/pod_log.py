"""The log of a pod's container, line by line; followed over lost connections, restarts, and to the pod's end."""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Iterator, Mapping
from time import strptime
from typing import Any

import urllib3

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.cluster.patience import Patience
from stratlab.cluster.pods import container_status, has_ended, has_log
from stratlab.cluster.watching import DELETED, SYNCED, watch

SILENCE_S = 300.0  # a rank that says nothing: then look whether the connection still stands
Stamp = tuple[int, int]
STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


class Cursor:
    """Up to where a log was read. The server can only be asked for whole seconds: what was read is told apart here."""

    def __init__(self) -> None:
        self.second = ""
        self.is_complete = False
        """The last answer came to its end: there was nothing more to read."""
        self._last: Stamp = (0, 0)
        self._at_last = 0
        self._skip = 0

    def start_again(self) -> None:
        self._skip = self._at_last

    def take(self, line: str) -> str | None:
        """The text of a line "<RFC 3339 time> text", or None if it was read before.

        Nor is what the kubelet itself says in the middle of a log, without a time: "unable to retrieve container logs".
        """
        written, _, text = line.partition(" ")
        if not STAMP.fullmatch(written):
            return None
        stamp = parse_stamp(written)
        if stamp < self._last:
            return None
        if stamp == self._last:
            if self._skip:
                self._skip -= 1
                return None
            self._at_last += 1
        else:
            self._last, self._at_last, self._skip = stamp, 1, 0
            self.second = f"{written[:19]}{_zone(written)}"
        return text


def parse_stamp(text: str) -> Stamp:
    """(seconds since 1970, nanoseconds) of "2026-11-21T12:00:00.123456789Z" or with "+01:00"."""
    zone = _zone(text)
    offset = 0
    if zone != "Z":
        hours, _, minutes = zone[1:].partition(":")
        offset = (int(hours) * 3600 + int(minutes) * 60) * (-1 if zone[0] == "-" else 1)
    fraction = text[20 : len(text) - len(zone)]
    return timegm(strptime(text[:19], "%Y-%m-%dT%H:%M:%S")) - offset, int(fraction.ljust(9, "0") or 0)


def read_log(
    connection: Connection, pod: Mapping[str, Any], container: str, *, previous: bool = False
) -> Iterator[str]:
    """The lines there are now. `previous`: of the container's instance before this one.

    Raises:
        ClusterError: there is no log; status 400 or 404.
    """
    query = {"container": container} | ({"previous": "true"} if previous else {})
    yield from _lines(connection.stream(_path(pod), query))


def follow_log(
    connection: Connection, pod: Mapping[str, Any], container: str, patience: Patience | None = None
) -> Iterator[str]:
    """All lines from the first one, as they are written, until the pod has ended or is gone. None is told twice."""
    patience = patience or Patience()
    cursor = Cursor()
    while not patience.is_over():
        current = await_container(connection, pod, container, patience)
        if current is None:
            return
        brought = False
        for line in _lines_since(connection, pod, container, cursor, patience):
            brought = True
            yield line
        if has_ended(current) and cursor.is_complete:
            return
        if not brought:
            patience.sleep(
                max(patience.pause_s, 0.2)
            )  # the log has ended, the pod's status does not say so yet


def await_container(
    connection: Connection, pod: Mapping[str, Any], container: str, patience: Patience
) -> Mapping[str, Any] | None:
    """This very pod once its container has a log and does not wait to start again; None if it is gone."""
    query = {"fieldSelector": f"metadata.name={pod['metadata']['name']}"}
    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods"
    seen = False
    for kind, current in watch(connection, path, query, patience):
        if kind == SYNCED and seen:
            continue
        seen = True
        if kind in (SYNCED, DELETED) or current["metadata"]["uid"] != pod["metadata"]["uid"]:
            return None
        waits = "waiting" in (container_status(current, container).get("state") or {})
        if has_ended(current) or (has_log(current, container) and not waits):
            return current
    return None


def _lines_since(
    connection: Connection, pod: Mapping[str, Any], container: str, cursor: Cursor, patience: Patience
) -> Iterator[str]:
    query = {"container": container, "follow": "true", "timestamps": "true"}
    if cursor.second:
        query["sinceTime"] = cursor.second
    cursor.start_again()
    cursor.is_complete = False
    try:
        response = patience.persist(
            lambda: connection.stream(_path(pod), query, silence_s=patience.left_s(SILENCE_S)),
            answered_before=False,
        )
        for line in _lines(response) if response else ():
            text = cursor.take(line)
            if text is not None:
                yield text
    except ClusterError as failure:
        if failure.status is None:  # broken off
            return
        if failure.status not in (400, 404):  # the container waits again, or is gone
            raise
    cursor.is_complete = True


def _lines(response: urllib3.HTTPResponse) -> Iterator[str]:
    """Lines up to the end. Raises ClusterError if the connection broke; half a line is left out then."""
    buffer = b""
    try:
        for piece in response.stream(amt=None, decode_content=False):
            *lines, buffer = (buffer + piece).split(b"\n")
            for line in lines:
                yield line.decode(errors="replace")
    except (urllib3.exceptions.HTTPError, OSError) as failure:
        raise ClusterError(f"the log broke off ({failure}) [SL-log-broke-off]") from failure
    finally:
        response.close()
    if buffer:
        yield buffer.decode(errors="replace")


def _path(pod: Mapping[str, Any]) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}/log"


def _zone(text: str) -> str:
    return "Z" if text.endswith("Z") else text[-6:]
