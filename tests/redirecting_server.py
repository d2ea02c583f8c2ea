"""A server on loopback that sends every call elsewhere, and one that writes down what reaches it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CODES = (301, 302, 303, 307, 308)


@contextmanager
def run_redirect(target: str, code: int = 302) -> Iterator[str]:
    """The address of a server that answers each call with `code` and the same path below `target`."""

    class Redirect(_Quiet):
        def answer(self) -> None:
            self.send_response(code)
            self.send_header("Location", target + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with _serve(Redirect) as uri:
        yield uri


@contextmanager
def run_witness() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The address of a server that says `{}` to everything, and what it got: method and Authorization header."""
    seen: list[tuple[str, str]] = []

    class Witness(_Quiet):
        def answer(self) -> None:
            seen.append((self.command, self.headers.get("Authorization", "")))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

    with _serve(Witness) as uri:
        yield uri, seen


class _Quiet(BaseHTTPRequestHandler):
    def answer(self) -> None:
        raise NotImplementedError

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.answer()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def _serve(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
