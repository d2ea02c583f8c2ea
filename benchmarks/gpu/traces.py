"""Recorded steps of the project's own runs through `stratlab analyze`, with HTA if it is installed.

The most valuable traces are returned, packed; of a trace that is too large, only the first recorded step.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

from benchmarks.gpu.models import build_models, resolve_run
from benchmarks.gpu.own_run import file_name, folder_of, train
from benchmarks.gpu.processes import read_tail, run_command
from benchmarks.gpu.project import RUNS, TINY_RUNS
from benchmarks.gpu.session import MOST_BYTES, ROOT, Session
from benchmarks.gpu.strategies import RUNS as OTHER_RUNS

MOST_TRACES = 4
LARGEST_TRACE = MOST_BYTES - (2 << 20)
ANALYSES = "analyses.tar.gz"
STEP = "## Training Step"
NEEDS_S = 8.0


def run(session: Session) -> None:
    """Analyze the runs that `project` has left in the work folder; without any, a run of its own."""
    names = find_traced(session)
    if not names:
        names = [_train_one(session)]
    for name in names[: 1 if session.tiny else MOST_TRACES]:
        session.measure(f"analyze {name}", analyze, session, name, needs_s=NEEDS_S)
        session.measure(f"keep {name}", keep_trace, session, name, needs_s=NEEDS_S)
    session.measure(ANALYSES, pack_analyses, session, names, needs_s=0)


def trace_of(session: Session, name: str) -> Path:
    """Return rank 0's trace of a run."""
    return folder_of(session, name) / "traces" / "rank0_trace.json"


def find_traced(session: Session) -> list[str]:
    """Return the runs with a trace, by value."""
    known = dict.fromkeys((*TINY_RUNS, *RUNS, *OTHER_RUNS) if session.tiny else (*RUNS, *OTHER_RUNS))
    return [name for name in known if trace_of(session, name).is_file()]


def _train_one(session: Session) -> str:
    name = "vit_base:single"
    _, settings, _ = resolve_run(name, build_models(session))
    facts = train(session, name, settings, seconds=session.left_s() - NEEDS_S)
    session.record(f"train {name}", facts["status"], exit=facts["exit"], error=facts.get("error", ""))
    return name


def analyze(session: Session, name: str) -> dict[str, Any]:
    """Run `stratlab analyze` on one run: the parts of its steps, and the end of each analysis of HTA."""
    folder = folder_of(session, name)
    log = session.work_folder / "logs" / f"analyze-{file_name(name)}.log"
    command = [sys.executable, "-m", "stratlab", "analyze", str(folder)]
    seconds = session.left_s() - 1
    code, _ = run_command(command, env=dict(os.environ), log=log, seconds=seconds, folder=ROOT)
    if code != 0:
        raise RuntimeError(f"stratlab analyze ended with {code}: {read_tail(log, 8)}")
    report = json.loads((folder / "analysis" / "report.json").read_text())
    if not report["mean"]["steps"]:
        raise RuntimeError("stratlab analyze found no steps")
    return {
        "source": report["source"],
        "mean": report["mean"],
        "parts": report["parts"],
        "longest_kernels": report["kernels"][:15],
        "recommendations": [entry["title"] for entry in report["recommendations"]],
        "quality": report["quality"],
        "hta_installed": importlib.util.find_spec("hta") is not None,
        "hta": {entry["analysis"]: entry["status"] for entry in report["hta"]},
    }


def keep_trace(session: Session, name: str) -> dict[str, Any]:
    """Keep a trace whole, packed; else without memory events; else only one step."""
    content = json.loads(trace_of(session, name).read_text())
    target = session.out_folder / f"trace-{file_name(name)}.json.gz"
    events = content["traceEvents"]
    facts = {"file": target.name, "events": len(events)}
    for kept, chosen in _thin(events):
        with gzip.open(target, "wt", compresslevel=6) as file:
            json.dump({**content, "traceEvents": chosen}, file)
        if target.stat().st_size <= LARGEST_TRACE:
            return {**facts, "kept": kept, "bytes": target.stat().st_size}
    target.unlink()
    raise RuntimeError(f"one step of {name} packs to more than {LARGEST_TRACE >> 20} MiB")


def _thin(events: list[dict[str, Any]]) -> Any:
    yield "all", events
    events = [event for event in events if event.get("name") != "[memory]"]
    yield "without memory", events
    steps = [event for event in events if str(event.get("name", "")).startswith(STEP)]
    if steps:
        first = min(steps, key=lambda event: float(event["ts"]))
        begin, end = first["ts"] - 1_000, first["ts"] + first["dur"] + 50_000  # us; kernels end later
        yield "one step", [e for e in events if e.get("ph") == "M" or begin <= e.get("ts", -1) <= end]


def pack_analyses(session: Session, names: list[str]) -> dict[str, Any]:
    """Return the reports and tables, without the merged traces."""
    target = session.out_folder / ANALYSES
    temporary = session.work_folder / ANALYSES
    count = 0
    with tarfile.open(temporary, "w:gz") as archive:
        for name in names:
            for path in sorted((folder_of(session, name) / "analysis").rglob("*")):
                if path.is_file() and ".json.gz" not in path.name:
                    archive.add(path, str(Path(file_name(name)) / path.relative_to(folder_of(session, name))))
                    count += 1
    shutil.copyfile(temporary, target.with_suffix(".tmp"))
    target.with_suffix(".tmp").rename(target)
    if count == 0:
        raise RuntimeError("there is no analysis")
    return {"files": count, "bytes": target.stat().st_size}
