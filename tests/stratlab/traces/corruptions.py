"""Single-file corruptions of a run's traces, and what the analysis makes of each.

    python -m tests.stratlab.traces.corruptions FOLDER PART PARTS

runs one part of the cases and writes FOLDER/outcomes.json: a process of its own, so that its memory can be limited.
A case changes the file of rank 1 in a copy of a small run with three ranks.
"""

from __future__ import annotations

import json
import resource
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from stratlab.analysis.analyze import NoTraces, analyze_run
from stratlab.analysis.hta.bridge import HtaLimits
from tests.stratlab.simulated.small import (
    TraceWriter,
    build_cpu_trace,
    build_gpu_trace,
    write_manifest,
    write_run,
)
from tests.stratlab.traces.changes import VICTIM, Case
from tests.stratlab.traces.corrupt_files import build_file_cases, build_packed_cases
from tests.stratlab.traces.corrupt_manifests import build_manifest_cases
from tests.stratlab.traces.corrupt_texts import build_text_cases

RANKS, STEPS = 3, 3
MEMORY_BYTES = 512 << 20  # that the process may take beyond its start


@dataclass(frozen=True)
class Outcome:
    """What one analysis gave: a report (`rows` per rank, the findings) or an error."""

    case: str
    error: str  # the traceback of anything but NoTraces
    said: str  # of NoTraces
    found: list[dict[str, Any]]
    rows: dict[str, dict[str, Any]]
    seconds: float
    peak_mib: float  # of the process, beyond its start


def build_bases(folder: Path) -> dict[str, Path]:
    """Runs that are whole: GPU and CPU, plain and packed, with and without a manifest."""
    kinds: dict[str, Callable[[int], TraceWriter]] = {
        "gpu": lambda rank: build_gpu_trace(rank, STEPS),
        "cpu": lambda rank: build_cpu_trace(rank, STEPS),
    }
    bases = {}
    for kind, build in kinds.items():
        for packed in (False, True):
            for listed in (False, True):
                name = f"{kind}{'-gz' if packed else ''}{'-manifest' if listed else ''}"
                facts = {} if kind == "gpu" else {"backend": "gloo", "device_type": "cpu"}
                run = write_run(folder / name, {}, False, world_size=RANKS, **facts)
                for rank in range(RANKS):
                    trace = build(rank)
                    trace.head["distributedInfo"]["world_size"] = RANKS
                    trace.write(run / "traces" / f"rank{rank}_trace.json{'.gz' if packed else ''}")
                if listed:
                    write_manifest(run / "traces")
                bases[name] = run
    return bases


def build_cases() -> list[Case]:
    """All cases; the same in every run."""
    cases = [
        *build_text_cases("gpu"),
        *list(build_text_cases("cpu-gz"))[::3],
        *build_packed_cases(),
        *build_file_cases(),
        *build_manifest_cases(),
    ]
    # with a manifest, any change is seen by its size or checksum
    for base in ("gpu-manifest", "cpu-gz-manifest"):
        content = list(build_text_cases(base))
        cases += [replace(case, expects="named") for case in content[:: len(content) // 20]]
    assert len({(case.base, case.name) for case in cases}) == len(cases)
    return cases


def run_case(case: Case, run: Path) -> Outcome:
    """Analyses `run` after the change."""
    rows: dict[str, Any] = {}
    found, said, error, start = [], "", "", time.monotonic()
    victim = next(path for path in (run / "traces").iterdir() if path.name.startswith(f"rank{VICTIM}_"))
    case.apply(victim)
    try:
        report = analyze_run(run, tracking_uri=None, limits=case.limits, hta_limits=HtaLimits(memory_bytes=0))
        json.loads((run / "analysis" / "report.json").read_text())
        rows = {str(row["rank"]): row for row in report["ranks"]}
        found = report["quality"]
    except NoTraces as failure:
        said = str(failure)
    except Exception:
        error = traceback.format_exc()
    return Outcome(case.name, error, said, found, rows, time.monotonic() - start, 0.0)


def _read_memory(field: str) -> int:
    return int(Path("/proc/self/status").read_text().split(f"{field}:")[1].split()[0]) << 10


def main(folder: Path, part: int, parts: int) -> None:
    """Runs the cases with a limit on this process's memory."""
    bases = build_bases(folder / "bases")
    cases = [Case("unchanged", base, lambda victim: None, "valid") for base in bases]
    cases += build_cases()[part::parts]
    outcomes, start = {}, 0
    warm = replace(cases[0], name="warm-up")
    for case in [warm, *cases]:
        key = f"{case.base}: {case.name}"
        run = folder / "run" / case.base
        shutil.copytree(bases[case.base], run)
        outcome = run_case(case, run)
        shutil.rmtree(run)
        if case is warm:
            start, limit = _read_memory("VmRSS"), _read_memory("VmData") + MEMORY_BYTES
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        else:
            outcomes[key] = replace(outcome, peak_mib=(_read_memory("VmHWM") - start) / 2**20)
    (folder / "outcomes.json").write_text(
        json.dumps({key: asdict(o) for key, o in outcomes.items()}, default=float)
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
