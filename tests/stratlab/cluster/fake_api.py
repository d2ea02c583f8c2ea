"""A fake of the Kubernetes API: a real HTTP server with lists, watches and pod logs, and faults on demand.

It knows only what these tests need: collections in memory, one resourceVersion for all, selectors by = and !=.
"""

import contextlib
import copy
import functools
import json
import re
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from kubernetes.client import ApiClient, Configuration

from stratlab.cluster.connection import RETRIES, Connection

Fault = dict[str, Any]


@dataclass
class FakeApi:
    """The state behind the server. Every change gets the next resourceVersion and wakes the watches."""

    served: set[str] = field(default_factory=set)
    namespaces: set[str] = field(default_factory=lambda: {"lab"})
    collections: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    history: list[tuple[int, str, str, dict[str, Any]]] = field(default_factory=list)
    logs: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, str], str]] = field(default_factory=list)
    version: int = 100
    oldest: int = 0
    token: str = ""
    closing: bool = False
    fault: Callable[[str, dict[str, str]], Fault | None] = lambda path, query: None
    changed: threading.Condition = field(default_factory=threading.Condition)

    def put(self, collection, thing):
        """Creates or replaces by name; keeps the uid of what is there."""
        with self.changed:
            things = self.collections.setdefault(collection, {})
            thing = copy.deepcopy(thing)
            name = thing["metadata"]["name"]
            before = things.get(name)
            self.version += 1
            thing["metadata"]["namespace"] = collection.split("/namespaces/")[-1].split("/")[0]
            thing["metadata"]["resourceVersion"] = str(self.version)
            thing["metadata"].setdefault("uid", before["metadata"]["uid"] if before else uuid.uuid4().hex)
            things[name] = thing
            self._record(collection, "MODIFIED" if before else "ADDED", thing)
            return thing

    def delete(self, collection, name):
        with self.changed:
            thing = copy.deepcopy(self.collections[collection].pop(name))
            self.version += 1
            thing["metadata"]["resourceVersion"] = str(self.version)
            self._record(collection, "DELETED", thing)

    def compact(self):
        """Forgets the past: a watch from before now is answered with 410."""
        with self.changed:
            self.oldest = self.version

    def log(self, pod, line, container="pytorch"):
        """Adds a line to a pod's log, with the kubelet's time in front."""
        with self.changed:
            lines = self.logs.setdefault((pod, container), [])
            nanoseconds = time.time_ns()
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(nanoseconds // 10**9))
            lines.append(f"{stamp}.{nanoseconds % 10**9:09d}".rstrip("0") + f"Z {line}")
            self.changed.notify_all()

    def _record(self, collection, kind, thing):
        self.history.append((self.version, collection, kind, thing))
        self.changed.notify_all()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: FakeApi

    def log_message(self, format, *arguments):
        pass

    def do_GET(self):
        split = urlsplit(self.path)
        path, query = split.path, dict(parse_qsl(split.query))
        self.api.requests.append((path, query, self.headers.get("Authorization", "")))
        fault = self.api.fault(path, query) or {}
        if fault.get("drop"):
            self.close_connection = True
            return
        if "status" in fault:
            self._answer(fault["status"], fault.get("message", "injected"), fault.get("headers"))
            return
        if self.api.token and self.headers.get("Authorization") != f"Bearer {self.api.token}":
            self._answer(401, "Unauthorized")
            return
        if path.endswith("/log"):
            self._log(path, query, fault)
        elif path in self.api.served or path in self.api.collections:
            (self._watch if query.get("watch") == "true" else self._list)(path, query, fault)
        else:
            collection, _, name = path.rpartition("/")
            thing = self.api.collections.get(collection, {}).get(name)
            if thing:
                self._json(200, thing)
            elif collection == "/api/v1/namespaces" and name in self.api.namespaces:
                self._json(200, {"metadata": {"name": name}})
            else:
                self._answer(404, f'"{name}" not found')

    def do_PATCH(self):
        """A merge of what is sent, one level below the top: spec.suspend, metadata.labels."""
        change = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = urlsplit(self.path).path
        if "status" in (fault := self.api.fault(f"PATCH {path}", {}) or {}):
            self._answer(fault["status"], fault.get("message", "injected"))
            return
        collection, _, name = path.rpartition("/")
        thing = copy.deepcopy(self.api.collections[collection][name])
        for part, fields in change.items():
            for field_name, value in fields.items():
                held = thing.setdefault(part, {})
                held[field_name] = held.get(field_name, {}) | value if isinstance(value, dict) else value
        self._json(200, self.api.put(collection, thing))

    def _list(self, path, query, fault):
        with self.api.changed:
            things = [t for t in self.api.collections.get(path, {}).values() if matches(t, query)]
            body = {"metadata": {"resourceVersion": str(self.api.version)}, "items": things}
            text = fault.get("garbled", json.dumps(body).encode())
        self._head(200, len(text))
        self.wfile.write(text[: len(text) // 2] if "cut" in fault else text)
        self.close_connection |= "cut" in fault

    def _watch(self, path, query, fault):
        sent, left = int(query["resourceVersion"]), fault.get("cut")
        end = time.monotonic() + float(query.get("timeoutSeconds", "300"))
        if sent < self.api.oldest:
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            if fault.get("plain_410"):
                return self._answer(410, gone["message"])
            self._head(200)
            self._chunk(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
            return self._chunk(b"")
        self._head(200)
        if "garbled" in fault:
            self._chunk(fault["garbled"] + b"\n")
        while not self.api.closing:
            with self.api.changed:
                news = [e for e in self.api.history if e[0] > sent and e[1] == path and matches(e[3], query)]
                if not news:
                    if left == 0 or time.monotonic() >= end:
                        break
                    self.api.changed.wait(min(0.2, max(0.0, end - time.monotonic())))
            for number, _, kind, thing in news:
                line = json.dumps({"type": kind, "object": thing}).encode() + b"\n"
                if left == 0:
                    if fault.get("half"):
                        self._chunk(line[: len(line) // 2])
                    self.close_connection = True  # no last chunk: the connection broke
                    return
                for piece in (line[: len(line) // 2], line[len(line) // 2 :]):  # as networks do
                    self._chunk(piece)
                sent, left = number, None if left is None else left - 1
        self._chunk(b"")

    def _log(self, path, query, fault):
        key = (path.split("/")[-2], query.get("container", ""))
        if query.get("previous") == "true":
            key = (key[0], key[1] + " previous")
        if key not in self.api.logs:
            self._answer(
                404 if key[1].endswith("previous") else 400, f'container "{key[1]}" is waiting to start'
            )
            return
        since, stamped, left = query.get("sinceTime", ""), query.get("timestamps") == "true", fault.get("cut")
        told = 0
        self._head(200)
        while True:
            with self.api.changed:
                lines = [line for line in self.api.logs[key] if line[:19] >= since[:19]]
                fresh = lines[told:]
                if not fresh:
                    if query.get("follow") != "true" or self._is_over(path) or self.api.closing:
                        break
                    self.api.changed.wait(0.1)
                    continue
            for line in fresh:
                if left == 0:
                    self.close_connection = True
                    return
                self._chunk((line if stamped else line.partition(" ")[2]).encode() + b"\n")
                told, left = told + 1, None if left is None else left - 1
        self._chunk(b"")

    def _is_over(self, path):
        pod = self.api.collections.get(path.rsplit("/", 2)[0], {}).get(path.split("/")[-2])
        return pod is None or pod.get("status", {}).get("phase") in ("Succeeded", "Failed")

    def _head(self, status, length=None, headers=None):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if length is None:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def _chunk(self, data):
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _answer(self, status, message, headers=None):
        self._json(status, {"kind": "Status", "code": status, "message": message}, headers)

    def _json(self, status, body, headers=None):
        text = json.dumps(body).encode()
        self._head(status, len(text), headers)
        self.wfile.write(text)


def matches(thing, query):
    """Selectors by equality and its opposite, joined by commas; one of another kind fails the request."""
    for kind in ("labelSelector", "fieldSelector"):
        for part in filter(None, query.get(kind, "").split(",")):
            name, differs, value = re.fullmatch(r"([\w./-]+)(!?)==?([\w.-]*)", part).groups()
            if kind == "labelSelector":
                held = (thing["metadata"].get("labels") or {}).get(name)
            else:
                held = functools.reduce(lambda at, step: (at or {}).get(step), name.split("."), thing)
            if (held == value) is bool(differs):
                return False
    return True


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, client_address):
        pass  # a client that went away


@contextlib.contextmanager
def serve(api):
    """The address of a server for `api`."""
    server = Server(("127.0.0.1", 0), type("BoundHandler", (Handler,), {"api": api}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        with api.changed:
            api.closing = True
            api.changed.notify_all()
        server.shutdown()
        thread.join()
        server.server_close()


def connect_to(address):
    configuration = Configuration(host=address)
    configuration.retries, configuration.proxy = RETRIES, None
    return Connection(ApiClient(configuration), "lab", "a test")
