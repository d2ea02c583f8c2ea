"""Runs Holistic Trace Analysis in a process of its own, with limits on its input, its time and its memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import stratlab
from stratlab.analysis.hta.analyses import ANALYSES
from stratlab.analysis.hta.memory import describe_failure, find_memory_bytes


@dataclass(frozen=True)
class HtaLimits:
    """HTA needs up to 8 times the raw size of the traces in memory, and 55 s of CPU for 500 MiB."""

    timeout_s: float = 600
    raw_bytes: int = 300 << 20  # of all ranks together, unpacked
    memory_bytes: int = 8 << 30  # of each of its processes, one per rank; never more than there is


@dataclass(frozen=True)
class HtaStatus:
    """How one analysis of HTA went. `unsupported`: it does not apply to these traces; `reason` says why."""

    analysis: str
    status: Literal["ok", "unsupported", "failed"]
    reason: str = ""
    seconds: float = 0.0
    tables: tuple[str, ...] = ()


HTA_LIMITS = HtaLimits()


def run_hta(
    files: Mapping[int, Path], has_gpu: bool, raw_bytes: int, out: Path, limits: HtaLimits = HTA_LIMITS
) -> list[HtaStatus]:
    """Every analysis of `hta_analyses.ANALYSES`, in that order; their tables go to `out`, which must exist.

    Args:
        files: one decodable trace per rank. They are only read.
        has_gpu: the traces hold GPU events.
        raw_bytes: unpacked size of all of them.
    """
    if raw_bytes > limits.raw_bytes:
        reason = f"the traces hold {raw_bytes >> 20} MiB, above the limit of {limits.raw_bytes >> 20} MiB"
        return [HtaStatus(analysis.name, "unsupported", reason) for analysis in ANALYSES]
    with tempfile.TemporaryDirectory(prefix="stratlab-hta-") as scratch:
        folder = Path(scratch)
        memory_bytes = min(limits.memory_bytes, find_memory_bytes())
        request = {
            "files": {str(rank): str(_link(path, rank, folder)) for rank, path in files.items()},
            "has_gpu": has_gpu,
            "out": str(out),
            "status": str(folder / "status.jsonl"),
            "scratch": str(folder / "sequences"),
            "memory_bytes": memory_bytes,
        }
        (folder / "sequences").mkdir()
        (folder / "request.json").write_text(json.dumps(request))
        ending = _run(folder, limits.timeout_s)
        return _read_statuses(folder / "status.jsonl", describe_failure(ending, memory_bytes))


def _link(path: Path, rank: int, folder: Path) -> Path:
    """HTA tells gzip by the extension, and writes next to its input if asked to."""
    with open(path, "rb") as file:
        is_packed = file.read(2) == b"\x1f\x8b"
    link = folder / f"rank{rank}.json{'.gz' if is_packed else ''}"
    link.symlink_to(path.absolute())
    return link


def _run(folder: Path, timeout_s: float) -> str:
    """Empty if the process ended well, else what became of it."""
    source = str(Path(stratlab.__file__).parents[1])
    environment = os.environ | {
        "HTA_DISABLE_NS_ROUNDING": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")])),
    }
    command = [sys.executable, "-m", "stratlab.analysis.hta.calls", str(folder / "request.json")]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
        try:
            code = process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # HTA's own worker processes as well
            process.wait()
            return f"not done within {timeout_s:g} s"
    if code == 0:
        return ""
    lines = (folder / "log").read_text(errors="replace").strip().splitlines()
    return f"HTA's process ended with {code}: {lines[-1][:300] if lines else 'it said nothing'}"


def _read_statuses(path: Path, ending: str) -> list[HtaStatus]:
    lines = path.read_text().splitlines() if path.is_file() else []
    done: dict[str, dict[str, Any]] = {row["analysis"]: row for row in map(json.loads, lines)}
    return [
        HtaStatus(**(done[a.name] | {"tables": tuple(done[a.name].get("tables", ()))}))
        if a.name in done
        else HtaStatus(a.name, "failed", ending or "no result")
        for a in ANALYSES
    ]
