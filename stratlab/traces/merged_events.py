"""Rename the events of one rank so that a file can hold several ranks.

Without each of these changes Perfetto shows lost or wrong tracks. Processes of different ranks have the same numbers (a
GPU's is its index), and flow arrows of different ranks the same ids. Python's stack on the track of the operators makes
Perfetto drop every label around it (pytorch#174555).
"""

from __future__ import annotations

import zlib
from decimal import Decimal
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from stratlab.traces.chunks import TraceError, build_not_json
from stratlab.traces.kineto_events import UNDECODABLE, decode_piece
from stratlab.traces.repair import Oddities, repair_piece

# Perfetto treats the thread with its process's number as thread 0: stay above the numbers of streams and threads
FIRST_PROCESS = 10_000_000
PROCESSES_PER_RANK = 1000
THREADS_PER_RANK = 20_000
TOO_MANY_THREADS = f"has more than {THREADS_PER_RANK} threads [SL-merge-threads]"
FLOWS_PER_RANK = 1 << 32  # exact in a float64 up to 2 million ranks
PYTHON_TRACK = 500_000_000  # above every thread number of Linux
GPU_CATEGORIES = frozenset({"kernel", "Kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"})
GPU_ORDER, OTHER_ORDER = 1, 900

Value = int | float | str | bool | None | UnsetType
ABSENT = Raw(b"")
# Perfetto also refuses a control character inside a text (perfetto#598)
_PRINTABLE = bytes(max(byte, 32) for byte in range(256))


class KinetoEvent(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Hold the fields that Kineto writes; `Raw` is written unchanged."""

    ph: str = ""
    cat: str | UnsetType = UNSET
    name: Raw = ABSENT
    pid: Value = UNSET
    tid: Value = UNSET
    ts: Raw = ABSENT
    dur: Raw = ABSENT
    id: Value = UNSET
    bp: Raw = ABSENT
    s: Raw = ABSENT
    args: Raw = ABSENT


_encode = msgspec.json.Encoder().encode


class Renamed:
    """Rename one rank's processes, threads and flows, and count the events that pass."""

    def __init__(self, rank: int, shift_ns: int = 0) -> None:
        self.rank = rank
        self.shift_ns = shift_ns
        self.events = 0
        self.flows = 0
        self.left_out = 0  # events without a usable time
        self.processes: dict[Value, int] = {}
        self.on_gpu: set[Value] = set()
        self.labels: dict[Value, str] = {}
        self.tracks: dict[tuple[Value, Value, str], Raw] = {}  # process, thread, kind -> args
        self.python: set[tuple[Value, Value]] = set()

    def build(self, piece: bytes) -> bytes:
        """Return the events of one piece of `split_events`, one per line, without brackets; may be empty.

        Raises:
            TraceError: not JSON, of wrong types, or more processes or threads than a trace can have.
        """
        piece = clean(piece)
        try:
            try:
                events = _decode(piece)
            except UNDECODABLE:
                events = _decode(repair_piece(piece, Oddities()))
            return b",\n".join(filter(None, map(self._build_event, events)))
        except UNDECODABLE as failure:
            raise build_not_json(failure) from failure

    def _build_event(self, event: KinetoEvent | dict[str, Raw]) -> bytes:
        if isinstance(event, dict):
            return self._build_odd(event)
        return _encode(event) if self._apply(event) else b""

    def build_tracks(self) -> bytes:
        """Return names and order of the processes and threads that have an event."""
        lines = []
        for old, new in self.processes.items():
            label = self.labels.get(old) or self._guess_label(old)
            number = label.removeprefix("GPU ")
            order = 0 if label == "CPU" else OTHER_ORDER
            if number != label and number.isdecimal():
                order = GPU_ORDER + min(int(number), OTHER_ORDER)
            place = self.rank * PROCESSES_PER_RANK + order
            metadata = {"name": f"rank {self.rank} {label}", "labels": label, "sort_index": place}
            lines += [_name(f"process_{key}", new, 0, {key: value}) for key, value in metadata.items()]
        for (old, thread, kind), args in self.tracks.items():
            if old in self.processes:
                lines.append(_name(kind, self.processes[old], thread, args))
        for old, thread in self.python:
            stack = {"name": f"Python stack of {thread}"}
            lines.append(_name("thread_name", self.processes[old], _beside(thread), stack))
        return b",\n".join(lines)

    def _apply(self, event: KinetoEvent) -> bool:
        """Change the event; return False if it is left out or moves to the tracks."""
        if event.ph == "M":
            self._apply_metadata(event)
            return False
        ns = read_ns(bytes(event.ts)) if event.ts is not ABSENT else 0
        if ns is None or ns <= 0 or ns + self.shift_ns < 0:
            self.left_out += 1
            return False
        event.ts = Raw(b"%d.%03d" % divmod(ns + self.shift_ns, 1000))
        dur = bytes(event.dur)
        if dur.startswith(b'"') and (dur_ns := read_ns(dur)) is not None and dur_ns >= 0:
            event.dur = Raw(b"%d.%03d" % divmod(dur_ns, 1000))
        old = event.pid
        event.pid = self.processes.get(old) or self._add_process(old)
        if event.id is not UNSET:
            event.id = self._build_flow(event.id)
            self.flows += event.ph in ("t", "f")
        if event.cat == "python_function":
            self.python.add((old, event.tid))
            if len(self.python) > THREADS_PER_RANK:
                raise TraceError(TOO_MANY_THREADS)
            event.tid = _beside(event.tid)
        elif event.cat in GPU_CATEGORIES:
            self.on_gpu.add(old)
        self.events += 1
        return True

    def _build_odd(self, fields: dict[str, Raw]) -> bytes:
        """Do the same for an event with other fields than `KinetoEvent` has; these pass unchanged."""
        known = {name: fields.pop(name) for name in KinetoEvent.__struct_fields__ if name in fields}
        event = msgspec.json.decode(_encode(known), type=KinetoEvent)
        if "bind_id" in fields:
            fields["bind_id"] = Raw(b"%d" % self._build_flow(msgspec.json.decode(fields["bind_id"])))
        if not self._apply(event):
            return b""
        return _encode(event)[:-1] + (b"," + _encode(fields)[1:] if fields else b"}")

    def _apply_metadata(self, event: KinetoEvent) -> None:
        kind = msgspec.json.decode(event.name, type=str) if event.name is not ABSENT else ""
        if kind == "process_labels":
            args = msgspec.json.decode(event.args, type=dict[str, Any]) if event.args is not ABSENT else {}
            self.labels[event.pid] = str(args.get("labels", ""))[:100]
        elif kind not in ("process_name", "process_sort_index"):
            # copied: a Raw would keep its whole piece in memory
            self.tracks[event.pid, event.tid, kind] = event.args.copy()
        if len(self.tracks) + len(self.labels) > THREADS_PER_RANK:
            raise TraceError(TOO_MANY_THREADS)

    def _add_process(self, old: Value) -> int:
        if len(self.processes) >= PROCESSES_PER_RANK:
            raise TraceError(f"has more than {PROCESSES_PER_RANK} processes [SL-merge-processes]")
        self.processes[old] = FIRST_PROCESS + self.rank * PROCESSES_PER_RANK + len(self.processes)
        return self.processes[old]

    def _build_flow(self, old: Any) -> int:
        if type(old) is not int or not 0 <= old < FLOWS_PER_RANK:
            old = zlib.crc32(str(old).encode())
        return self.rank * FLOWS_PER_RANK + int(old)

    def _guess_label(self, old: Value) -> str:
        if isinstance(old, str):
            return old or "profiler"
        return f"GPU {old}" if old in self.on_gpu else "CPU"


def _decode(piece: bytes) -> list[Any]:
    try:
        return decode_piece(piece, KinetoEvent)
    except msgspec.ValidationError:  # a field that Kineto does not write
        return decode_piece(piece, dict[str, Raw])


def clean(piece: bytes) -> bytes:
    """Replace invalid JSON inside texts: bytes that are not UTF-8, and control characters."""
    if not piece.isascii():
        piece = piece.decode("utf-8", "replace").encode()
    return piece.translate(_PRINTABLE)


def read_ns(text: bytes) -> int | None:
    """Return a time in us, as a JSON number or text, in ns; None for other values.

    Does not use float64, which would lose nanoseconds.
    """
    text = text.strip(b'"')
    whole, _, part = text.partition(b".")
    if whole.isdigit() and len(whole) < 16 and len(part) <= 3 and (part.isdigit() or not part):
        return int(whole) * 1000 + int(part.ljust(3, b"0"))
    try:
        us = Decimal(text.decode())
        return int((us * 1000).to_integral_value()) if abs(us) < 10**16 else None
    except (ArithmeticError, UnicodeDecodeError):
        return None


def _beside(thread: Value) -> int | str:
    return thread + PYTHON_TRACK if isinstance(thread, int) else f"{thread} Python"


def _name(kind: str, process: int, thread: Value, args: Any) -> bytes:
    return _encode(
        KinetoEvent(ph="M", name=Raw(_encode(kind)), pid=process, tid=thread, args=Raw(_encode(args)))
    )
