"""Run Holistic Trace Analysis, one analysis after the other, and report the status of each.

    python -m stratlab.analysis.hta_worker REQUEST.json

A process of its own, started by the bridge: HTA can run out of memory or hang, and pandas takes seconds to import.
Without HTA_DISABLE_NS_ROUNDING in the environment HTA cuts up to 2 us off every kernel. The memory limit is set
before pandas is imported. The ranks are read one after the other: all at once they would need several times as much.

HTA decodes the whole text at once and keeps every field of every event until its data frame is made. Here it reads a
trace piece by piece and gets only events with a duration, only the arguments that it reads, and repeated texts only
once. Its data frame, and with it every number, is the same (tests/stratlab/analysis/hta). A number in quotes becomes
a number. An event that our own reader leaves out for its types is left out here too.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stratlab.analysis.hta_analyses import (
    ANALYSES,
    NO_GPU,
    Analysis,
    Scene,
    apply_memory_limit,
    describe_failure,
)
from stratlab.traces.chunks import split_events
from stratlab.traces.kineto_events import UNDECODABLE
from stratlab.traces.repair import Oddities, decode_head, repair_piece

FIELDS = ("cat", "name", "pid", "tid", "ts", "dur")
NONE: dict[str, Any] = {}
COUNTERS = "cuda_profiler_range"  # its arguments are counters with any name


def apply_slim_reading() -> None:
    """Make HTA in this process read like `read_slim`."""
    from hta.common import trace_parser
    from hta.configs.parser_config import ParserConfig, ValueType

    numbers = (ValueType.Int, ValueType.Float)
    wanted = {arg.raw_name: arg.value_type in numbers for arg in ParserConfig.get_default_args()}
    trace_parser.parse_trace_dict = lambda path: read_slim(Path(path), wanted)


def read_slim(path: Path, wanted: Mapping[str, bool]) -> dict[str, Any]:
    """Return the trace as from `json.loads`, reduced, with numbers where a writer put them into quotes.

    Args:
        wanted: arguments by name; the value is True for a number.

    Raises:
        TraceError: as `load_trace`.
    """
    pieces = split_events(path)
    content = decode_head(next(pieces))
    events: list[dict[str, Any]] = []
    texts: dict[str, str] = {}
    for piece in pieces:
        try:
            found = msgspec.json.decode(piece)
        except UNDECODABLE:
            found = msgspec.json.decode(repair_piece(piece, Oddities()))
        if isinstance(found, dict):
            content |= {key: value for key, value in found.items() if key != "traceEvents"}
            found = found["traceEvents"]
        events += filter(None, (_slim(event, wanted, texts.setdefault) for event in found))
    return content | {"traceEvents": events}


def _slim(event: Any, wanted: Mapping[str, bool], once: Callable[[str, str], str]) -> dict[str, Any] | None:
    """Return the reduced event; None if it is left out."""
    if not isinstance(event, dict) or event.get("cat") in (None, "Trace"):
        return None
    slim = {key: event[key] for key in FIELDS if key in event}
    for key in ("ts", "dur"):
        if (number := _read_number(slim.get(key))) is None:
            return None
        slim[key] = number
    if isinstance(event["ts"], str):  # in traces of 2021 ids are texts, and times are not
        slim |= {key: _read_text(slim[key]) for key in ("pid", "tid") if key in slim}
    for key in ("cat", "name"):
        if not isinstance(text := slim.get(key, ""), str):
            return None
        slim[key] = once(text, text)
    args = event.get("args")
    if isinstance(args, dict):
        every = event["cat"] == COUNTERS
        kept = {k: v for k, v in args.items() if every or k in wanted}
        kept = {k: _read_text(v) if every or wanted[k] else v for k, v in kept.items()}
        # without any `args` HTA's data frame lacks columns
        slim["args"] = {k: once(v, v) if isinstance(v, str) else v for k, v in kept.items()} if kept else NONE
    return None if args is not None and not isinstance(args, dict) else slim


def _read_text(value: Any) -> Any:
    """Return the number in a text; any other value unchanged."""
    number = _read_number(value) if isinstance(value, str) else None
    return value if number is None else number


def _read_number(value: Any) -> int | float | None:
    """Return the finite number of a value or text; otherwise None."""
    if isinstance(value, str):
        try:
            value = msgspec.convert(value, int | float, strict=False)
        except msgspec.ValidationError:
            return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) else None


MOST_ROWS = 20_000  # of one table


def _non_empty(result: Any) -> dict[str, Any]:
    """Return name -> data frame with at least one known value."""
    frames = result if isinstance(result, dict) else {"": result}
    return {
        name: frame for name, frame in frames.items() if frame is not None and frame.notna().to_numpy().any()
    }


def _flat(frame: Any) -> Any:
    """Return it with the levels of a named index as columns, and one header line."""
    flat = frame.reset_index() if any(frame.index.names) else frame.copy()
    flat.columns = ["_".join(filter(None, map(str, c))) if isinstance(c, tuple) else c for c in flat.columns]
    return flat


def run_analysis(analysis: Analysis, scene: Scene, out: Path) -> dict[str, Any]:
    """Return the status of one analysis; its tables are written to `out`. An error of HTA is a status, not an
    exception.
    """

    def build(status: str, reason: str, tables: Sequence[str] = ()) -> dict[str, Any]:
        return {"analysis": analysis.name, "status": status, "reason": reason, "tables": tables}

    if obstacle := NO_GPU if analysis.needs_gpu and not scene.has_gpu else analysis.obstacle(scene):
        return build("unsupported", obstacle)
    try:
        frames = _non_empty(analysis.call(scene))
    except Exception as failure:  # any: it is foreign code on data it was not made for
        reason = describe_failure(f"{type(failure).__name__}: {failure}", scene.memory_bytes)
        return build("failed", reason[:500])
    if not frames:
        return build("unsupported", "HTA returned nothing [SL-hta-nothing]")
    tables, cut = [], []
    for name, frame in frames.items():
        path = out / f"{analysis.name}{'_' if name else ''}{name}.csv"
        _flat(frame).head(MOST_ROWS).to_csv(path, index=False)
        tables.append(path.name)
        if len(frame) > MOST_ROWS:
            cut.append(f"{path.name} holds the first {MOST_ROWS} of {len(frame)} rows [SL-hta-rows-cut]")
    return build("ok", "; ".join(cut), tables)


def main(arguments: Iterable[str]) -> int:
    """Read the request, and append one JSON line per analysis to its status file."""
    (path,) = arguments
    request = json.loads(Path(path).read_text())
    apply_memory_limit(request["memory_bytes"])
    scene = build_scene(request)
    with open(request["status"], "a") as status:
        for analysis in ANALYSES:
            began = time.monotonic()
            outcome = run_analysis(analysis, scene, Path(request["out"]))
            status.write(json.dumps(outcome | {"seconds": round(time.monotonic() - began, 3)}) + "\n")
            status.flush()
    return 0


def build_scene(request: Mapping[str, Any]) -> Scene:
    """Let HTA load the traces."""
    warnings.simplefilter("ignore")
    import plotly.io
    from hta.common.trace import Trace
    from hta.trace_analysis import TraceAnalysis

    class OneByOne(TraceAnalysis):  # type: ignore[misc]
        def __init__(self, files: dict[int, str]) -> None:
            self.t = Trace(files, "")
            self.t.load_traces(include_last_profiler_step=True, use_multiprocessing=False)

    plotly.io.renderers.default = (
        ""  # get_aten_op_kernels_and_delay shows a figure with any argument: no browser
    )
    logging.disable(logging.ERROR)
    files = {int(rank): file for rank, file in request["files"].items()}
    apply_slim_reading()
    hta = OneByOne(files)
    return Scene(
        hta=hta,
        ranks=list(files),
        has_gpu=request["has_gpu"],
        names=hta.t.symbol_table.get_sym_table(),
        scratch=request["scratch"],
        memory_bytes=request["memory_bytes"],
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
