"""A registry on loopback: the part of the OCI distribution protocol that pushing and pulling asks for, in memory."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class Registry:
    """`contents`: path of a blob or a manifest, also by its tag -> (bytes, media type)."""

    address: str = ""
    contents: dict[str, tuple[bytes, str]] = field(default_factory=dict)

    def tags(self) -> list[str]:
        """`team/ddp:0.1.0` of every manifest that has a tag."""
        found = [path.removeprefix("/v2/").split("/manifests/") for path in self.contents]
        return sorted(f"{each[0]}:{each[1]}" for each in found if len(each) == 2 and ":" not in each[1])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    registry: Registry

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/v2/":
            return self._answer(200)
        found = self.registry.contents.get(path)
        if found is None:
            return self._answer(404)
        self._answer(200, found[0], {"Content-Type": found[1], "Docker-Content-Digest": _digest(found[0])})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self._read()
        self._answer(202, headers={"Location": f"{urlsplit(self.path).path}one"})

    def do_PUT(self) -> None:
        asked = urlsplit(self.path)
        content = self._read()
        kind = self.headers.get("Content-Type", "")
        if digest := parse_qs(asked.query).get("digest"):
            assert digest[0] == _digest(content)
            paths = [asked.path.replace("/uploads/one", f"/{digest[0]}")]
        else:
            paths = [asked.path, f"{asked.path.rpartition('/')[0]}/{_digest(content)}"]
        self.registry.contents |= dict.fromkeys(paths, (content, kind))
        self._answer(201, headers={"Location": paths[0], "Docker-Content-Digest": _digest(content)})

    def _read(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(self, status: int, content: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@contextmanager
def run_registry() -> Iterator[Registry]:
    """Without TLS and without a login."""
    registry = Registry()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"registry": registry}))
    registry.address = f"127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
