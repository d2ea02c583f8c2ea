"""Runs Holistic Trace Analysis, one analysis after the other, and says of each how it went.

    python -m stratlab.analysis.hta.worker REQUEST.json

A process of its own, started by the bridge: HTA can run out of memory or hang, and pandas takes seconds to import.
Without HTA_DISABLE_NS_ROUNDING in the environment HTA cuts up to 2 us off every kernel. The memory limit is set before
pandas is imported. The ranks are read one after the other: all at once they would need several times as much.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stratlab.analysis.hta.analyses import ANALYSES, NO_GPU, Analysis, Scene
from stratlab.analysis.hta.memory import apply_memory_limit, describe_failure
from stratlab.analysis.hta.reading import apply_slim_reading

MOST_ROWS = 20_000  # of one table


def _non_empty(result: Any) -> dict[str, Any]:
    """Name -> data frame with at least one known value."""
    frames = result if isinstance(result, dict) else {"": result}
    return {
        name: frame for name, frame in frames.items() if frame is not None and frame.notna().to_numpy().any()
    }


def _flat(frame: Any) -> Any:
    """With the levels of a named index as columns, and one header line."""
    flat = frame.reset_index() if any(frame.index.names) else frame.copy()
    flat.columns = ["_".join(filter(None, map(str, c))) if isinstance(c, tuple) else c for c in flat.columns]
    return flat


def run_analysis(analysis: Analysis, scene: Scene, out: Path) -> dict[str, Any]:
    """Status of one analysis; its tables are written to `out`. An error of HTA is a status, not an
    exception."""
    obstacle = NO_GPU if analysis.needs_gpu and not scene.has_gpu else analysis.obstacle(scene)
    if obstacle:
        return {"analysis": analysis.name, "status": "unsupported", "reason": obstacle}
    try:
        frames = _non_empty(analysis.call(scene))
    except Exception as failure:  # any: it is foreign code on data it was not made for
        reason = describe_failure(f"{type(failure).__name__}: {failure}", scene.memory_bytes)
        return {"analysis": analysis.name, "status": "failed", "reason": reason[:500]}
    if not frames:
        return {
            "analysis": analysis.name,
            "status": "unsupported",
            "reason": "HTA returned nothing [SL-hta-nothing]",
        }
    tables, cut = [], []
    for name, frame in frames.items():
        path = out / f"{analysis.name}{'_' if name else ''}{name}.csv"
        _flat(frame).head(MOST_ROWS).to_csv(path, index=False)
        tables.append(path.name)
        if len(frame) > MOST_ROWS:
            cut.append(f"{path.name} holds the first {MOST_ROWS} of {len(frame)} rows [SL-hta-rows-cut]")
    return {"analysis": analysis.name, "status": "ok", "reason": "; ".join(cut), "tables": tables}


def main(arguments: Iterable[str]) -> int:
    """Reads the request, appends one JSON line per analysis to its status file."""
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
    """Lets HTA load the traces."""
    warnings.simplefilter("ignore")
    import plotly.io
    from hta.common.trace import Trace
    from hta.trace_analysis import TraceAnalysis

    class OneByOne(TraceAnalysis):  # type: ignore[misc]
        def __init__(self, files: dict[int, str]) -> None:
            self.t = Trace(files, "")
            self.t.load_traces(include_last_profiler_step=True, use_multiprocessing=False)

    plotly.io.renderers.default = (
        ""  # get_aten_op_kernels_and_delay shows a figure whatever it is told: no browser
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
