"""Run stages one after the other, each in a process and with a budget of its own, and pack the results."""

from __future__ import annotations

import os
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.gpu.gates import judge_lines
from benchmarks.gpu.processes import Ended, raise_on_signals, read_tail, run_command
from benchmarks.gpu.session import END, FILE, ROOT, Session, append_line, build_end, find_oversize
from benchmarks.gpu.stages import Stage, share_time
from stratlab_spec.run_directory import read_lines

LEAST_S = 3.0
"""A stage with less time than this is not started."""
GRACE_S = 10.0
CLOSING_S = 8.0
"""Kept back at the end of a part, for packing the results."""
ARCHIVE = "runs.tar.gz"
LARGEST_FILE = 1 << 20
LEFT_OUT = ("traces", "analysis", "model", "best_model", "checkpoints")


def run_stages(
    stages: Sequence[Stage],
    *,
    device: str,
    tiny: bool,
    out: Path,
    work: Path,
    scale: float = 1.0,
    runs: str = "",
) -> int:
    """Run the stages and write their results to `out/results.jsonl`.

    Args:
        stages: of the table, in its order.
        scale: factor on every budget, for a slow machine.

    Returns:
        0 if every stage executed something and none failed, 1 otherwise, 143 after a SIGTERM or SIGINT.
    """
    for folder in (out, work / "logs"):
        folder.mkdir(parents=True, exist_ok=True)
    raise_on_signals()
    began = time.time()
    stages = [replace(stage, budget_s=stage.budget_s * scale) for stage in stages]
    end = began + sum(stage.budget_s for stage in stages) - CLOSING_S
    names = [stage.name for stage in stages]
    begin = {"stage": "all", "item": "begin", "device": device, "tiny": tiny, "stages": names}
    append_line(out / FILE, begin)
    passed, code = True, 0
    try:
        for position, stage in enumerate(stages):
            seconds = share_time(stages[position:], end - time.time())
            places, deadline = (str(out), str(work)), time.time() + seconds
            session = Session(stage.name, device, tiny, *places, deadline, scale, runs)
            passed &= _run_stage(stage, session, seconds)
    except Ended:
        code = 143
    facts = bundle_runs(work, out)
    oversize = find_oversize(out)
    line = {"stage": "all", "item": END, "seconds": time.time() - began, **facts, "too_large": oversize}
    append_line(out / FILE, line | {"stopped": "by a signal"} if code else line)
    tables = f"python -m benchmarks.gpu.read {out}"
    print(f"{time.time() - began:.0f} s; results: {out}; as tables: {tables}", flush=True)
    return code or int(not passed or bool(oversize))


def _run_stage(stage: Stage, session: Session, seconds: float) -> bool:
    """Return one stage, with its closing line; whether it passed."""
    results = session.out_folder / FILE
    log = session.work_folder / "logs" / f"stage-{stage.name}.log"
    log.unlink(missing_ok=True)
    seen, began = len(read_lines(results)), time.time()
    print(f"{stage.name}: {stage.purpose} ({seconds:.0f} s)", flush=True)
    code: int | None = None
    killed, stopped = "", False
    if seconds < LEAST_S:
        killed = "no time left to start it"
    else:
        command = [sys.executable, "-m", "benchmarks.gpu.one_stage", session.to_json()]
        how = {"env": _environment(session), "log": log, "folder": ROOT, "grace_s": GRACE_S}
        try:
            code, _ = run_command(command, seconds=seconds + 2, **how)
            killed = "out of time" if code is None else ""
        except Ended:
            killed, stopped = "stopped by a signal", True
    lines = [line for line in read_lines(results)[seen:] if line.get("stage") == stage.name]
    end = build_end(
        stage.name,
        lines,
        exit_code=code,
        seconds=time.time() - began,
        budget_s=seconds,
        gates_failed=[verdict.gate for verdict in judge_lines(lines, session.device) if not verdict.passed],
        killed=killed,
    )
    append_line(results, end | ({"log": read_tail(log)} if end["status"] == "failed" else {}))
    _print_end(end, lines)
    if stopped:
        raise Ended
    return bool(end["status"] == "passed")


def _environment(session: Session) -> dict[str, str]:
    """Return variables: no network, caches in our own folder, the project on the path; no GPU if none is needed."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    env = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    env |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR"):
        env[name] = str(session.work_folder / name.lower())
    if not session.is_cuda:
        env |= {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
        env.setdefault("OMP_NUM_THREADS", "1")
    return env


def _print_end(end: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> None:
    for line in lines:
        if line.get("status") in ("failed", "skipped"):
            reason = line.get("error") or line.get("reason")
            print(f"  {line['item']}: {line['status']}: {reason}", flush=True)
    text = f"{end['done']} done, {end['failed']} failed, {end['skipped']} skipped, {end['seconds']:.0f} s"
    print(f"  {end['status']}: {'; '.join([text, *end['reasons']])}", flush=True)


def bundle_runs(work: Path, out: Path) -> dict[str, Any]:
    """Write config.json, summary.json, metrics, rank facts and logs, each below 1 MiB, to `out/runs.tar.gz`."""
    files = [path for path in sorted((work / "logs").glob("*.log")) if path.stat().st_size < LARGEST_FILE]
    for path in sorted((work / "results").rglob("*")):
        small = path.is_file() and path.stat().st_size < LARGEST_FILE
        if small and not set(path.relative_to(work).parts) & set(LEFT_OUT):
            files.append(path)
    if not files:
        return {"runs_files": 0}
    temporary = out / f".{ARCHIVE}.tmp"
    with tarfile.open(temporary, "w:gz") as archive:
        for path in files:
            archive.add(path, str(path.relative_to(work)))
    temporary.rename(out / ARCHIVE)
    return {"runs_files": len(files), "runs_bytes": (out / ARCHIVE).stat().st_size}
