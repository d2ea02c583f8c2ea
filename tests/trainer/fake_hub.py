"""A fake of the Hugging Face hub's HTTP API, on loopback: the few calls that the client makes for one repository."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def run_fake_hub(repositories: Mapping[str, Mapping[str, bytes]]) -> Iterator[str]:
    """Yields HF_ENDPOINT. Keys such as `models/org/net` or `datasets/org/pets`; files by path."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path).strip("/")
            if path.startswith("api/"):
                self._api(path.removeprefix("api/"))
            else:
                self._file(path)

        do_HEAD = do_GET

        def _find(self, path: str) -> tuple[str, Mapping[str, bytes] | None]:
            for name, files in repositories.items():
                if path == name or path.startswith(name + "/"):
                    return name, files
            return "", None

        def _api(self, path: str) -> None:
            name, files = self._find(path)
            if files is None:
                return self._send(404, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})
            rest = path.removeprefix(name).strip("/")
            if rest.startswith("tree/"):
                return self._send(200, json.dumps(list_tree(files)).encode())
            if rest and rest not in ("revision/main", f"revision/{COMMIT}"):
                return self._send(404, b'{"error": "no"}', {"X-Error-Code": "RevisionNotFound"})
            identity = name.split("/", 1)[1]
            siblings = [{"rfilename": file} for file in files]
            facts = {
                "id": identity, "modelId": identity, "sha": COMMIT, "siblings": siblings,
                "private": False,
            }  # fmt: skip
            self._send(200, json.dumps(facts).encode())

        def _file(self, path: str) -> None:
            before, _, after = path.partition("/resolve/")
            name = before if before.startswith("datasets/") else f"models/{before}"
            file = after.partition("/")[2]
            content = repositories.get(name, {}).get(file)
            if content is None:
                return self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
            etag = hashlib.sha1(content).hexdigest()
            self._send(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})

        def _send(self, code: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
            self.send_response(code)
            for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


def list_tree(files: Mapping[str, bytes]) -> list[dict[str, Any]]:
    folders = {"/".join(path.split("/")[:depth]) for path in files for depth in range(1, path.count("/") + 1)}
    tree: list[dict[str, Any]] = [
        {"type": "directory", "path": folder, "oid": "0", "size": 0} for folder in sorted(folders)
    ]
    for path, content in files.items():
        tree.append(
            {"type": "file", "path": path, "oid": hashlib.sha1(content).hexdigest(), "size": len(content)}
        )
    return tree
