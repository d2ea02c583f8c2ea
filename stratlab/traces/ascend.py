"""Events of Ascend's profiler for torch, given the categories that torch.profiler writes.

Its trace_view.json is a list of events. Those of torch have a category, and times as text. Those of the device and of
its runtime (CANN) have none: the name of their process tells what they are, and a `connection_id` joins a task to its
launch. Names of processes may stand after the events, so they are read first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from stratlab.traces.chunks import Limits, split_events
from stratlab.traces.events import Args, Event, Number
from stratlab.traces.odd_values import Oddities, mend_piece

HARDWARE = "Ascend Hardware"
MARK = b'"Ascend Hardware"'
RUNTIME = "CANN"
COMMUNICATION = ("Communication", "HCCL")  # since CANN 7, and before
COLLECTIVE = "hcom_"  # the other events of that process are its parts
WORK, COPY = re.compile(r"AI_?[CV]|DSA"), re.compile(r"MEMCPY|SDMA|PCIE")  # other tasks wait, or keep order
NOT_READ = "Trace"  # of the categories that Columns leaves out

Processes = dict[Number, str]


class _Named(msgspec.Struct, gc=False):
    name: str = ""


class _Name(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
    pid: Number = None
    args: _Named | None = None


class _Names(msgspec.Struct):
    traceEvents: list[_Name]


def read_processes(path: Path, limits: Limits) -> Processes:
    """The name of each process; empty where none is an Ascend device.

    Raises:
        TraceError: as `load_trace`.
    """
    pieces = split_events(path, limits)
    next(pieces)
    found: Processes = {}
    for piece in pieces:
        if b'"process_name"' in piece:
            named = (e for e in _decode(piece) if e.ph == "M" and e.name == "process_name" and e.args)
            found |= {e.pid: e.args.name for e in named if e.args}
    return found if HARDWARE in found.values() else {}


def _decode(piece: bytes) -> list[_Name]:
    def decode(text: bytes) -> list[_Name]:
        if text.startswith(b"{"):
            return msgspec.json.decode(text, type=_Names).traceEvents
        return msgspec.json.decode(text, type=list[_Name])

    try:
        return decode(piece)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return decode(mend_piece(piece, Oddities()))


def categorize(events: Iterable[Event], processes: Processes) -> None:
    """Gives each event its category, and its correlation and stream under the names that torch.profiler uses."""
    for event in events:
        if event.cat:
            # Ascend has one category for labels and operators, as torch had in 2021
            event.cat = "Operator" if event.cat == "cpu_op" else event.cat
            continue
        process, args = processes.get(event.pid), event.args or Args()
        if process == HARDWARE:
            event.cat = _find_category(args.task)
            args.stream = event.tid if args.stream_id is None else args.stream_id
        elif process in COMMUNICATION and event.name.startswith(COLLECTIVE):
            event.cat = "kernel"
        else:
            event.cat = "cann_runtime" if process == RUNTIME else NOT_READ
        args.correlation = args.connection
        event.args = args


def _find_category(task: Number) -> str:
    if task is None or WORK.search(str(task)):
        return "kernel"
    return "gpu_memcpy" if COPY.search(str(task)) else NOT_READ
