"""Holistic Trace Analysis (`traceinsight`) in a process of its own, with limits on its input, its time and its memory,
and a status per analysis.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import msgspec

import stratlab
from stratlab.analysis.hta_analyses import (
    ANALYSES,
    choose_ranks,
    describe_failure,
    estimate_bytes,
    find_free_bytes,
    lacked_memory,
)


@dataclass(frozen=True)
class HtaLimits:
    """Limits of HTA's process: memory by hta_analyses.py, time at about 0.3 s of CPU per MiB."""

    timeout_s: float = 1800  # the Job has an hour for all of the analysis
    memory_bytes: int = 8 << 30  # of its process; never more than there is


@dataclass(frozen=True)
class HtaStatus:
    """The status of one analysis of HTA. `unsupported`: it does not apply to these traces; `reason` explains it."""

    analysis: str
    status: Literal["ok", "unsupported", "failed"]
    reason: str = ""
    seconds: float = 0.0
    tables: tuple[str, ...] = ()


@dataclass(frozen=True)
class HtaRun:
    """The result of HTA. `ranks`: the ranks that it read; `reason`: the reason for missing ranks."""

    statuses: list[HtaStatus]
    ranks: list[int]
    reason: str = ""


HTA_LIMITS = HtaLimits()
PACKAGES = {"hta": "traceinsight", "plotly": "plotly"}  # module -> package; a bare GPU machine has neither
FREE_SHARE = 0.9  # of the free memory: the rest is for other processes


def run_hta(
    files: Mapping[int, Path],
    has_gpu: bool,
    raw_bytes: Mapping[int, int],
    out: Path,
    limits: HtaLimits = HTA_LIMITS,
) -> HtaRun:
    """Return every analysis of `hta_analyses.ANALYSES`, in that order; their tables go to `out`, which must exist.

    It reads as many ranks, from the lowest, as the memory allows: by an estimate, and half as many if that was too
    low.

    Args:
        files: one decodable trace per rank. They are only read.
        has_gpu: the traces hold GPU events.
        raw_bytes: unpacked size of each.
    """
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        return build_unread(
            f"not installed here: {', '.join(PACKAGES[name] for name in missing)} [SL-hta-not-installed]"
        )
    raw_bytes = {rank: raw_bytes[rank] for rank in files}
    allowed = min(limits.memory_bytes, int(FREE_SHARE * find_free_bytes()))
    ranks, ends = choose_ranks(raw_bytes, allowed), time.monotonic() + limits.timeout_s
    if not ranks:
        first = estimate_bytes([raw_bytes[min(raw_bytes)]])
        return build_unread(
            f"a single rank, {min(raw_bytes)}, needs {_gib(first)} of memory; the limit is {_gib(allowed)} "
            "[SL-hta-rank-too-large]"
        )
    while True:
        chosen = {rank: files[rank] for rank in ranks}
        statuses = _run_analyses(chosen, has_gpu, out, allowed, max(0.0, ends - time.monotonic()))
        needed_more = all(s.status == "failed" and lacked_memory(s.reason) for s in statuses)
        if not needed_more or len(ranks) == 1:
            break
        ranks = ranks[: len(ranks) // 2]
    return HtaRun(statuses, ranks, _explain(ranks, raw_bytes, allowed))


def build_unread(reason: str) -> HtaRun:
    """Return a result without read traces, with the reason."""
    return HtaRun([HtaStatus(analysis.name, "unsupported", reason) for analysis in ANALYSES], [], reason)


def _explain(ranks: list[int], raw_bytes: Mapping[int, int], allowed: int) -> str:
    if len(ranks) == len(raw_bytes):
        return ""
    needed, several = _gib(estimate_bytes(list(raw_bytes.values()))), "s" if len(ranks) > 1 else ""
    return (
        f"read rank{several} {', '.join(map(str, ranks))} of {len(raw_bytes)}: for all of them it needs about {needed} "
        f"of memory, it may take {_gib(allowed)} [SL-hta-some-ranks]"
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.3g} GiB"


def _run_analyses(
    files: Mapping[int, Path], has_gpu: bool, out: Path, memory_bytes: int, timeout_s: float
) -> list[HtaStatus]:
    with tempfile.TemporaryDirectory(prefix="stratlab-hta-") as scratch:
        folder = Path(scratch)
        request = {
            "files": {str(rank): str(_link(path, rank, folder)) for rank, path in files.items()},
            "has_gpu": has_gpu,
            "out": str(out.absolute()),  # the process runs in the scratch folder
            "status": str(folder / "status.jsonl"),
            "scratch": str(folder / "sequences"),
            "memory_bytes": memory_bytes,
        }
        (folder / "sequences").mkdir()
        (folder / "request.json").write_text(json.dumps(request))
        ending = _run(folder, timeout_s)
        return _read_statuses(folder / "status.jsonl", describe_failure(ending, memory_bytes))


def _link(path: Path, rank: int, folder: Path) -> Path:
    """Link a trace with the extension by which HTA recognizes gzip, in a folder where HTA may write."""
    with open(path, "rb") as file:
        is_packed = file.read(2) == b"\x1f\x8b"
    link = folder / f"rank{rank}.json{'.gz' if is_packed else ''}"
    link.symlink_to(path.absolute())
    return link


def _run(folder: Path, timeout_s: float) -> str:
    """Return "" if the process ended with 0, else its error."""
    source = str(Path(stratlab.__file__).parents[1])
    environment = os.environ | {
        "HTA_DISABLE_NS_ROUNDING": "1",
        "OMP_NUM_THREADS": "1",  # the stacks of threads count as memory
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")])),
    }
    command = [sys.executable, "-m", "stratlab.analysis.hta_worker", str(folder / "request.json")]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=log, stderr=log, start_new_session=True
        )
        try:
            code = process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # HTA's own worker processes as well
            process.wait()
            return f"not done within {timeout_s:.3g} s [SL-hta-timeout]"
    if code == 0:
        return ""
    lines = (folder / "log").read_text(errors="replace").strip().splitlines()
    last_line = lines[-1][:300] if lines else "it printed nothing"
    return f"HTA's process ended with {code}: {last_line} [SL-hta-process-ended]"


def _read_statuses(path: Path, ending: str) -> list[HtaStatus]:
    lines = path.read_bytes().splitlines() if path.is_file() else []
    done = {
        status.analysis: status for status in (msgspec.json.decode(line, type=HtaStatus) for line in lines)
    }
    failed = ending or "no result [SL-hta-no-result]"
    return [done.get(each.name) or HtaStatus(each.name, "failed", failed) for each in ANALYSES]
