"""Watch objects and follow logs over lost connections; report each change once, without polling.

`watch` lists, then watches from the list's resourceVersion, and after a disconnect from the last version seen. After a
410 it lists again and reports only the differences (kubernetes.io/docs/reference/using-api/api-concepts: "Efficient
detection of changes").

`follow_log` follows a log in the same way, line by line, over lost connections and restarts to the pod's end.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import urllib3

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection, Patience
from stratlab.cluster.pods import container_status, has_ended, has_log

ADDED, MODIFIED, DELETED, SYNCED = "ADDED", "MODIFIED", "DELETED", "SYNCED"
BOOKMARK, ERROR = "BOOKMARK", "ERROR"  # an ERROR is most often 410: the version is too old
GARBLED = "GARBLED"  # stratlab's own kind for data that is not a change: a proxy's page, half a line
Change = tuple[str, dict[str, Any]]

# The server sends a bookmark about once a minute: after a longer silence the connection counts as lost.
SILENCE_S = 90.0
SERVER_S = 280  # the server ends a watch after this time; the next one may reach another server
LIST_S = 30.0
GONE = 410
LOG_SILENCE_S = 300.0  # a rank that prints nothing: then check whether the connection still works
Stamp = tuple[int, int]
STAMP = re.compile(
    r"(?P<second>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.(?P<fraction>\d+))?(?P<zone>Z|[+-]\d\d:\d\d)"
)


def watch(
    connection: Connection,
    path: str,
    query: Mapping[str, str] | None = None,
    patience: Patience | None = None,
) -> Iterator[Change]:
    """Yield (ADDED | MODIFIED | DELETED, object) for the collection at `path`, narrowed by selectors in `query`.

    First yield all present objects as ADDED, then (SYNCED, {}) once, then changes. Each change is reported once; of
    several changes during an outage only the last may be reported. End at the deadline of `patience`, or when its
    `stop` is set; `stop` takes effect at the next data on the connection.

    Raises:
        ClusterError: a permission or the API is missing, or the server gives another final answer.
    """
    patience = patience or Patience()
    known: dict[str, dict[str, Any]] = {}
    version, synced, told = "", False, False
    while not patience.is_over():
        if not version:
            listed = patience.persist(
                lambda: _list(connection, path, query, patience), answered_before=synced
            )
            if listed is None:
                return
            yield from _differences(known, listed["items"])
            version = listed["metadata"]["resourceVersion"]
            if not synced:
                synced = True
                yield SYNCED, {}
        opened, brought = time.monotonic(), False
        for kind, changed in _read_changes(connection, path, query, version, patience):
            if kind == GARBLED and not told:
                told = True
                patience.say(
                    f"{connection.server} sent data that is not a change of an object; listing again"
                )
            if kind in (ERROR, GARBLED):
                version = ""
                break
            version, brought = changed["metadata"]["resourceVersion"], True
            if _is_news(known, kind, changed):
                yield kind, changed
            if patience.is_over():
                return
        if not brought and time.monotonic() - opened < 2 * patience.pause_s:
            patience.sleep(patience.pause_s)  # for a server that accepts connections and closes them at once


def _list(
    connection: Connection, path: str, query: Mapping[str, str] | None, patience: Patience
) -> dict[str, Any]:
    response = connection.stream(path, query, silence_s=patience.left_s(LIST_S))
    try:
        listed = dict(json.loads(response.data))
        listed["items"] = listed["items"] or []  # Go writes an empty list as null
        _check_version(listed, with_uid=False)
        for item in listed["items"]:
            _check_version(item)
        return listed
    except (urllib3.exceptions.HTTPError, ValueError) as failure:
        raise ClusterError(
            f"{connection.server}: the answer ended early ({failure}) [SL-list-broke-off]"
        ) from failure
    except (KeyError, TypeError, RecursionError) as failure:
        raise ClusterError(
            f"{connection.server}: the answer is not a list of objects ({failure!r}) [SL-list-not-objects]"
        ) from failure


def _read_changes(
    connection: Connection, path: str, query: Mapping[str, str] | None, version: str, patience: Patience
) -> Iterator[Change]:
    """Read one watch until its connection ends for any reason; leave out half a line at the end."""
    asked = dict(query or {}) | {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": version,
        "timeoutSeconds": str(int(patience.left_s(SERVER_S)) + 1),
    }
    try:
        response = patience.persist(
            lambda: connection.stream(path, asked, silence_s=patience.left_s(SILENCE_S)), answered_before=True
        )
    except ClusterError as failure:
        if failure.status != GONE:
            raise
        yield ERROR, {}
        return
    if response is None:
        return
    try:
        pieces = response.stream(amt=None, decode_content=False)
        yield from map(_read_change, filter(None, split_lines(pieces, with_rest=False)))
    except (urllib3.exceptions.HTTPError, OSError):
        return
    finally:
        response.close()


def split_lines(pieces: Iterable[bytes], *, with_rest: bool = True) -> Iterator[bytes]:
    """Yield the lines of a stream; `with_rest` includes an unterminated last line."""
    buffer = b""
    for piece in pieces:
        *lines, buffer = (buffer + piece).split(b"\n")
        yield from lines
    if buffer and with_rest:
        yield buffer


def _read_change(line: bytes) -> Change:
    """Parse one line of a watch. No line may raise, because callers wait for the changes after it."""
    try:
        document = json.loads(line)
        kind, changed = document["type"], document["object"]
        if kind == ERROR:
            return ERROR, {}
        _check_version(changed, with_uid=kind != BOOKMARK)
    except (ValueError, KeyError, TypeError, RecursionError):
        return GARBLED, {}
    return (kind, changed) if kind in (ADDED, MODIFIED, DELETED, BOOKMARK) else (GARBLED, {})


def _check_version(thing: Mapping[str, Any], *, with_uid: bool = True) -> None:
    """Raise KeyError or TypeError if an object lacks the fields that identify its version."""
    for key in ("resourceVersion", "uid") if with_uid else ("resourceVersion",):
        if not isinstance(thing["metadata"][key], str):
            raise TypeError(f"metadata.{key} is not text")


def _is_news(known: dict[str, dict[str, Any]], kind: str, changed: dict[str, Any]) -> bool:
    """Return whether `changed` was not reported yet; update `known`."""
    if kind == BOOKMARK:
        return False
    uid = changed["metadata"]["uid"]
    if kind == DELETED:
        return known.pop(uid, None) is not None
    before = known.get(uid)
    known[uid] = changed
    return before is None or before["metadata"]["resourceVersion"] != changed["metadata"]["resourceVersion"]


def _differences(known: dict[str, dict[str, Any]], items: list[dict[str, Any]]) -> Iterator[Change]:
    """Yield the changes from `known` to `items` and update `known`. Deletions come first: a name may be reused."""
    there = {item["metadata"]["uid"] for item in items}
    for uid in [uid for uid in known if uid not in there]:
        yield DELETED, known.pop(uid)
    for item in items:
        kind = MODIFIED if item["metadata"]["uid"] in known else ADDED
        if _is_news(known, kind, item):
            yield kind, item


def _log_path(pod: Mapping[str, Any]) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}/log"


class Cursor:
    """Hold the position up to which a log was read.

    A request for logs has a resolution of whole seconds, so that the cursor drops the lines it has already read.
    """

    def __init__(self) -> None:
        self.second = ""
        self.is_complete = False
        """Whether the last answer was read to its end."""
        self._last: Stamp = (0, 0)
        self._at_last = 0
        self._skip = 0

    def start_again(self) -> None:
        self._skip = self._at_last

    def take(self, line: str) -> str | None:
        """Return the text of a line "<RFC 3339 time> text", or None if it was read before.

        Also return None for the kubelet's own lines without a time: "unable to retrieve container logs".
        """
        written, _, text = line.partition(" ")
        if not (found := STAMP.fullmatch(written)):
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
            self.second = found["second"] + found["zone"]
        return text


def parse_stamp(text: str) -> Stamp:
    """Return (seconds since 1970, nanoseconds) of "2026-11-21T12:00:00.123456789Z" or with "+01:00"."""
    found = STAMP.fullmatch(text)
    assert found, text
    second = datetime.fromisoformat(found["second"] + found["zone"]).timestamp()
    return int(second), int((found["fraction"] or "").ljust(9, "0"))


def read_log(
    connection: Connection, pod: Mapping[str, Any], container: str, *, previous: bool = False
) -> Iterator[str]:
    """Return the current lines. `previous` reads the log of the container's previous instance.

    Raises:
        ClusterError: there is no log; status 400 or 404.
    """
    query = {"container": container} | ({"previous": "true"} if previous else {})
    yield from _lines(connection.stream(_log_path(pod), query))


def follow_log(
    connection: Connection, pod: Mapping[str, Any], container: str, patience: Patience | None = None
) -> Iterator[str]:
    """Yield each line of the log once, until the pod has ended or is gone."""
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
            # the log has ended, but the pod's status does not show it yet
            patience.sleep(max(patience.pause_s, 0.2))


def await_container(
    connection: Connection, pod: Mapping[str, Any], container: str, patience: Patience
) -> Mapping[str, Any] | None:
    """Return this pod once its container has a log and does not wait to restart; None if the pod is gone."""
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
            lambda: connection.stream(_log_path(pod), query, silence_s=patience.left_s(LOG_SILENCE_S)),
            answered_before=False,
        )
        for line in _lines(response) if response else ():
            text = cursor.take(line)
            if text is not None:
                yield text
    except ClusterError as failure:
        if failure.status is None:  # the connection was lost
            return
        if failure.status not in (400, 404):  # the container waits again, or is gone
            raise
    cursor.is_complete = True


def _lines(response: urllib3.HTTPResponse) -> Iterator[str]:
    """Yield lines up to the end. Raises ClusterError if the connection is lost; half a line is then left out."""
    try:
        for line in split_lines(response.stream(amt=None, decode_content=False)):
            yield line.decode(errors="replace")
    except (urllib3.exceptions.HTTPError, OSError) as failure:
        raise ClusterError(f"the log ended early ({failure}) [SL-log-broke-off]") from failure
    finally:
        response.close()
