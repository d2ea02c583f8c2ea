"""What a trace file may hold instead of a trace: some 140 changes of its JSON text."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.stratlab.traces.changes import (
    EVENT,
    Case,
    Change,
    as_json,
    build_case,
    cut,
    flip,
    sub,
    with_event,
    with_events,
    without,
    zero,
)

NOT_TRACES: dict[str, bytes] = {
    "empty": b"",
    "a line feed": b"\n",
    "zeros": bytes(20_000),
    "text": b"the disk is full\n" * 50,
    "web page": b"<!doctype html><title>502 Bad Gateway</title>",
    "picture": b"\x89PNG\r\n\x1a\n" + random.Random(1).randbytes(3000),
    "random bytes": random.Random(2).randbytes(20_000),
    "pickle": b"\x80\x04\x95" + random.Random(3).randbytes(500),
    "begins like gzip": b"\x1f\x8b\x08\x00" + random.Random(4).randbytes(500),
    "zip": b"PK\x03\x04" + random.Random(5).randbytes(500),
    "null": b"null",
    "number": b"3",
    "empty object": b"{}",
    "empty list": b"[]",
    "summary": b'{"steps": 3, "loss": 0.1}',
    "execution trace": b'{"schema": "1.1.1-chakra.0.0.4", "nodes": [{"id": 1, "name": "x"}]}',
    "list of events": f"[{EVENT}]".encode(),
    "lines of events": f"{EVENT}\n{EVENT}\n".encode(),
    "python": b"{'traceEvents': [{'ph': 'X'}]}",
    "csv": b"ts,dur,name\n1,2,a\n",
    "only an opening bracket": b"{",
    "a million brackets": b"[" * 1_000_000,
    "half a key": b'{"schemaVersion": 1, "traceEve',
    "head only": b'{"schemaVersion": 1, "distributedInfo": {"rank": 1}}',
    "head and an opening list": b'{"distributedInfo": {"rank": 1}, "traceEvents": [',
    "head and nothing of the list": b'{"distributedInfo": {"rank": 1}, "traceEvents":',
    "key as a value": b'{"distributedInfo": {"rank": 1}, "x": "traceEvents"}',
}
LISTS: dict[str, str] = {
    "none": "[]",
    "null": "null",
    "text": '"x"',
    "object": "{}",
    "number": "5",
    "numbers": "[1, 2, 3]",
    "texts": '["a", "b"]',
    "nulls": "[null, null]",
    "lists": "[[], [[]]]",
    "empty objects": "[{}, {}]",
    "of metadata only": '[{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "x"}}]',
    "without steps": f"[{EVENT}]",
    "without times": "[" + EVENT.replace('"ts": 5100', '"ts": 0.000') + "]",
    "without durations": "[" + EVENT.replace(', "dur": 1', "") + "]",
}
BROKEN: dict[str, Change] = {
    "ts is a text": sub(r'"ts": [\d.]+', '"ts": "soon"'),
    "ts is null": sub(r'"ts": [\d.]+', '"ts": null'),
    "ts is a list": sub(r'"ts": [\d.]+', '"ts": [1]'),
    "all ts are texts": sub(r'"ts": [\d.]+', '"ts": "soon"', 0),
    "dur is a text": sub(r'"dur": [\d.]+', '"dur": "long"'),
    "dur is an object": sub(r'"dur": [\d.]+', '"dur": {}'),
    "all dur are negative": sub(r'"dur": ', '"dur": -', 0),
    "dur is negative": sub(r'"dur": ', '"dur": -'),
    "ts is not a number": sub(r'"ts": [\d.]+', '"ts": NaN'),
    "ts is infinite": sub(r'"ts": [\d.]+', '"ts": Infinity'),
    "ts is 1e999": sub(r'"ts": [\d.]+', '"ts": 1e999'),
    "ts is 1e300": sub(r'"ts": [\d.]+', '"ts": 1e300'),
    "ts has 40 digits": sub(r'"ts": [\d.]+', '"ts": 1' + "0" * 40),
    "ts has 9000 digits": sub(r'"ts": [\d.]+', '"ts": 1' + "0" * 9000),
    "dur is 1e300": sub(r'"dur": [\d.]+', '"dur": 1e300'),
    "dur has 40 digits": sub(r'"dur": [\d.]+', '"dur": 1' + "0" * 40),
    "all ts are 1e18": sub(r'"ts": [\d.]+', '"ts": 1e18', 0),
    "ts is negative": sub(r'"ts": ', '"ts": -'),
    "all ts are negative": sub(r'"ts": ', '"ts": -', 0),
    "name is a number": sub(r'"name": "[^"]+"', '"name": 5'),
    "name is null": sub(r'"name": "[^"]+"', '"name": null'),
    "ph is a number": sub(r'"ph": "X"', '"ph": 5'),
    "cat is a list": sub(r'"cat": "[^"]+"', '"cat": []'),
    "args is a text": with_event(EVENT[:-1] + ', "args": "x"}'),
    "args is a list": with_event(EVENT[:-1] + ', "args": [1]}'),
    "args nest 100000 deep": with_event(
        EVENT[:-1] + ', "args": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}"
    ),
    "args nest 1500 deep": with_event(
        EVENT[:-1] + ', "args": {"a": ' + '{"b":' * 1500 + "1" + "}" * 1500 + "}}"
    ),
    "an event of 20 MB": with_event(EVENT[:-1] + ', "args": {"a": "' + "x" * 20_000_000 + '"}}'),
    "a name of 12 MB": with_event(EVENT.replace("aten::x", "x" * 12_000_000)),
    "head of 9 MB": sub(r'"schemaVersion": 1', f'"x": "{"x" * 9_000_000}"'),
    "head nests 100000 deep": sub(r'"schemaVersion": 1', f'"x": {"[" * 100_000}{"]" * 100_000}'),
    "tail nests 100000 deep": sub(r'"traceName": "synthetic"', f'"x": {"[" * 100_000}{"]" * 100_000}'),
    "tail of 9 MB": sub(r'"traceName": "synthetic"', f'"x": "{"x" * 9_000_000}"'),
    "head is no JSON": sub(r'"schemaVersion": 1', "schemaVersion: 1"),
    "tail is no JSON": sub(r'"traceName": "synthetic"', "traceName"),
    "bytes that are no UTF-8 in a name": lambda data: data.replace(b"aten::", b"aten\xff\xfe", 1),
    "half a surrogate in a name": with_event(EVENT.replace("aten::x", "\\ud800")),
    "UTF-16": lambda data: data.decode().encode("utf-16"),
    "zero byte behind the end": lambda data: data + b"\0",
    "page of zeros behind the end": lambda data: data + bytes(4096),
    "twice in one file": lambda data: data + data,
    "text behind the end": lambda data: data + b"done\n",
    "events twice": sub(r'"traceName": "synthetic"', f'"traceEvents": [{EVENT}]'),
    "comma behind the last event": sub(r"\}\n  \]", "},\n  ]"),
    "two commas": sub(r"\},\n  \{", "},,\n  {"),
    "no comma": sub(r"\},\n  \{", "}\n  {"),
    "comments": sub(r'"traceEvents"', '// a comment\n"traceEvents"'),
    "single quotes": lambda data: data.replace(b'"', b"'"),
    "middle third missing": lambda data: data[: len(data) // 3] + data[2 * len(data) // 3 :],
    "first third missing": lambda data: data[len(data) // 3 :],
    "two halves swapped": lambda data: data[len(data) // 2 :] + data[: len(data) // 2],
    "rank of another": sub(r'"rank": 1', '"rank": 2'),
    "rank of nobody": sub(r'"rank": 1', '"rank": 3'),
    "rank is negative": sub(r'"rank": 1', '"rank": -1'),
    "rank has 30 digits": sub(r'"rank": 1', '"rank": 1' + "0" * 30),
    "rank is a text": sub(r'"rank": 1', '"rank": "1"'),
    "rank is a fraction": sub(r'"rank": 1', '"rank": 1.5'),
    "rank is true": sub(r'"rank": 1', '"rank": true'),
    "distributedInfo is a list": sub(r'"distributedInfo": \{[^}]*\}', '"distributedInfo": [1]'),
    "no label of a step": without("name", "## Training Step", "ProfilerStep"),
    "no label of a phase": without("name", "## Forward"),
    "fewer steps": without("name", "## Training Step 12", "ProfilerStep#2"),
    "base time has 40 digits": sub(r'"schemaVersion": 1', '"baseTimeNanoseconds": 1' + "0" * 40),
    "marked as merged": sub(r'"schemaVersion": 1', '"mergedTrace": true'),
}
# what reaches no number, or a number that may be so
ODD: dict[str, Change] = {
    "control character in a name": with_event(EVENT.replace("aten::x", "a\x01b")),
    "pid is an object": sub(r'"pid": \d+', '"pid": {}'),
    "tid is null": sub(r'"tid": \d+', '"tid": null'),
    "pid is a text": sub(r'"pid": \d+', '"pid": "Spans"', 0),
    "pid has 40 digits": sub(r'"pid": \d+', '"pid": 1' + "0" * 40),
    "all names are empty": sub(r'"name": "aten[^"]*"', '"name": ""', 0),
    "args is null": with_event(EVENT[:-1] + ', "args": null}'),
    "backend is a number": sub(r'"backend": "\w+"', '"backend": 5'),
    "world_size is a text": sub(r'"world_size": 3', '"world_size": "x"'),
    "distributedInfo is null": sub(r'"distributedInfo": \{[^}]*\}', '"distributedInfo": null'),
    "distributedInfo is empty": sub(r'"distributedInfo": \{[^}]*\}', '"distributedInfo": {}'),
    "deviceProperties is a text": sub(r'"deviceProperties": \[\]', '"deviceProperties": "x"'),
    "base time is a text": sub(r'"schemaVersion": 1', '"baseTimeNanoseconds": "x"'),
    "base time is negative": sub(r'"schemaVersion": 1', '"baseTimeNanoseconds": -5'),
    "base time is a fraction": sub(r'"schemaVersion": 1', '"baseTimeNanoseconds": 1.5'),
    "dur is 1e12": sub(r'"dur": [\d.]+', '"dur": 1e12'),
    "odd args": with_event(
        EVENT[:-1]
        + ', "args": {"correlation": 1e300, "stream": "x", "bytes": -1, "device": [1], "External id": {}}}'
    ),
    "odd arguments of a kernel": with_event(
        EVENT.replace("cpu_op", "kernel")[:-1]
        + ', "args": {"correlation": 1e30, "stream": {}, "bytes": "x", "Collective name": 5, "Group size": []}}'
    ),
    "odd memory event": with_event(
        '{"ph": "i", "name": "[memory]", "ts": 5100, "args": {"Total Allocated": 1e40, "Device Type": "x"}}'
    ),
    "memory event without a time": with_event(
        '{"ph": "i", "name": "[memory]", "args": {"Total Allocated": 1}}'
    ),
    "odd arrow": with_event('{"ph": "s", "id": {"local": "0x1"}, "pid": 1, "tid": 1, "ts": 5100}'),
    "step number of 30 digits": sub("Training Step 11", "Training Step 1" + "0" * 30),
    "step label twice": with_event(
        EVENT.replace("cpu_op", "user_annotation").replace("aten::x", "## Training Step 11 ##")
    ),
    "operators named as launches": sub(r'"name": "aten::linear"', '"name": "cudaLaunchKernel"', 0),
    "markup in a name": sub(r'"name": "aten::linear"', '"name": "</svg><script>alert(1)</script>"', 0),
    "a name of 1 MB": sub(r'"name": "aten::\w+"', f'"name": "{"x" * 1_000_000}"'),
}
VALID: dict[str, Change] = {
    "compact": as_json(separators=(",", ":")),
    "one line": as_json(),
    **{f"indented by {width}": as_json(indent=width) for width in (1, 2, 3, 4)},
    "tabs": as_json(indent="\t"),
    "sorted keys": as_json(sort_keys=True),
    "CRLF": lambda data: data.replace(b"\n", b"\r\n"),
    "byte order mark": lambda data: b"\xef\xbb\xbf" + data,
    "white space behind the end": lambda data: data + b"\n \r\n" * 1000,
    "unknown fields": sub(r'"ph": "X"', '"ph": "X", "cname": "good", "x": [{}]', 0),
    "a name of 1 MB more": with_event(
        EVENT.replace("aten::x", "x" * 1_000_000).replace("cpu_op", "python_function")
    ),
}


def build_text_cases(base: str) -> Iterator[Case]:
    for i in range(16):
        yield build_case(base, f"truncated at {i}/16", cut(i / 16))
    for count in (2, 3, 4, 10, 30):
        yield build_case(base, f"without its last {count} bytes", lambda data, count=count: data[:-count])  # type: ignore[misc]
    for share in (0, 0.2, 0.5, 0.8, 1):
        yield build_case(base, f"512 zero bytes at {share}", zero(share))
    for seed in range(16):
        yield build_case(base, f"bit flip {seed}", flip(seed), "either")
    for name, content in NOT_TRACES.items():
        yield build_case(base, name, lambda _, content=content: content)  # type: ignore[misc]
    for name, text in LISTS.items():
        yield build_case(base, f"events: {name}", with_events(text))
    for name, change in BROKEN.items():
        yield build_case(base, name, change)
    for name, change in ODD.items():
        yield build_case(base, name, change, "either")
    for name, change in VALID.items():
        yield build_case(base, name, change, "valid")
