"""Speed and memory of our trace analysis against Holistic Trace Analysis, on the same files in the same run.

    python -m benchmarks.traces  # everything: 40 minutes on two busy cores, most of it HTA
    python -m benchmarks.traces --events 100000 400000 --ranks 1 8
    python -m benchmarks.traces --traces FOLDER --output reports/real_traces.json  # given traces instead

Traces are simulated GPU traces in Kineto's formatting (tests/stratlab/simulated). Each tool reads each file in a
process of its own. Ours: everything of an analysis except HTA, merging and pages: decoding, the partition of every
step, kernels, collectives, idle time, memory. HTA (traceinsight): loading, temporal breakdown, overlap of
communication. CPU time is user and system time of the process; memory is its peak resident size minus the size after
its imports. The slope is the increase of memory per event between the smallest and the largest file.

Many ranks: 8 simulated ranks of one team, each read as often as it takes, so that 512 ranks need no 45 GB of disk.
Memory there is the sum of the peaks of all processes, imports included.

Given traces: every file above 5 MB in a folder, unpacked, and eight simulated ranks of about 60 MB; ours and HTA take
turns. `tables`: HTA with more of the tables that ours computes (idle time, kernels, bandwidth, labels). `whole`: of the
process, imports included.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

EVENTS = (100_000, 400_000, 1_600_000, 10_000_000)
RANKS = (1, 8, 64, 512)
PER_RANK = 400_000
TEAM = 8
STEPS = 10
LARGE_BYTES = 5_000_000
SIMULATED_EVENTS = 260_000  # of one of eight ranks: 56 MB
MIB = 2**20


def write_traces(folder: Path, ranks: int, events: int) -> tuple[list[Path], int]:
    """Write traces of at least `events` events (of any kind) per rank; return the paths and the first file's events."""
    # here, because the measured processes would import them as well
    from tests.stratlab.simulated.kineto_text import build_tail
    from tests.stratlab.simulated.scene import Scene
    from tests.stratlab.simulated.team import stream

    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"rank{rank}_trace.json" for rank in range(ranks)]
    written = 0
    # about 44 events per layer; few long steps, as in a real trace, because HTA's time grows with their number
    scene = Scene(ranks=ranks, layers=max(events // STEPS // 44, 8), steps=1_000_000)
    pieces = stream(scene)
    with ExitStack() as stack:
        files = [stack.enter_context(open(path, "w")) for path in paths]
        while written < events:
            texts = next(pieces)
            written += texts[0].count('"ph"')
            for rank, text in texts.items():
                files[rank].write(text)
        for rank, file in enumerate(files):
            file.write(build_tail(rank, 0))
    return paths, written


def peak_bytes(pid: int | str = "self") -> int:
    """Return the highest resident size so far. ru_maxrss would include the parent's size from before exec."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def run_ours(*paths: str) -> dict[str, Any]:
    """Return the whole analysis of one file per rank."""
    from stratlab.analysis.measure import measure_traces

    before, began = peak_bytes(), time.process_time()
    files = {rank: Path(path) for rank, path in enumerate(paths)}
    measures = measure_traces(files, {"dp_replicate": len(files)}, processes=1)
    assert not measures.findings or measures.ranks, measures.findings
    cpu_s = time.process_time()
    rows = measures.ranks[0].rows
    mean = {"compute_us": sum(row.compute_ms for row in rows) * 1000}
    return {"cpu_s": cpu_s - began, "whole_cpu_s": cpu_s, "peak_bytes": peak_bytes() - before, **mean}


def run_hta(*paths: str) -> dict[str, Any]:
    """Time loading and two analyses, then four more; of one file per rank."""
    import logging
    import warnings

    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    from hta.trace_analysis import TraceAnalysis

    before, began = peak_bytes(), time.process_time()
    hta = TraceAnalysis(trace_files=dict(enumerate(paths)), include_last_profiler_step=True)
    breakdown = hta.get_temporal_breakdown(visualize=False)
    hta.get_comm_comp_overlap(visualize=False)
    mean = {"compute_us": float(breakdown["compute_time(us)"].iloc[0])}
    cpu_s, peak = _read_cpu_s(), peak_bytes() - before
    ranks, every = list(range(len(paths))), {"num_kernels": 100_000, "duration_ratio": 1.0}
    for analysis in (
        lambda: hta.get_idle_time_breakdown(ranks=ranks, visualize=False),
        lambda: hta.get_gpu_kernel_breakdown(visualize=False, **every),
        lambda: hta.get_memory_bw_summary(ranks=ranks),
        lambda: hta.get_gpu_user_annotation_breakdown(use_gpu_annotation=False, visualize=False, **every),
    ):
        with suppress(Exception):  # of HTA, on traces that it does not support
            analysis()
    tables_s = _read_cpu_s()
    known = {"cpu_s": cpu_s - began, "tables_cpu_s": tables_s - began, "peak_bytes": peak}
    return known | {"whole_cpu_s": cpu_s, "whole_tables_cpu_s": tables_s, **mean}


def _read_cpu_s() -> float:
    """Return the CPU time of this process and its ended children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def run_ranks(folder: str, ranks: int) -> dict[str, Any]:
    """Run the whole analysis of `ranks` ranks, in as many processes as there are cores."""
    from stratlab.analysis.measure import measure_traces

    variants = sorted(Path(folder).glob("rank*_trace.json"))
    files = {rank: variants[rank % len(variants)] for rank in range(ranks)}
    peaks: dict[int, int] = {}
    stop = threading.Event()
    watcher = threading.Thread(target=_watch_peaks, args=(peaks, stop))
    watcher.start()
    began = time.monotonic()
    measures = measure_traces(files, {"dp_replicate": ranks})
    wall_s = time.monotonic() - began
    stop.set()
    watcher.join()
    assert len(measures.ranks) == ranks, measures.findings
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "ranks": ranks,
        "wall_s": wall_s,
        "cpu_s": sum(u.ru_utime + u.ru_stime for u in usage),
        "peak_bytes": sum(peaks.values()),
        "processes": len(peaks),
    }


def _watch_peaks(peaks: dict[int, int], stop: threading.Event) -> None:
    """Watch VmHWM of this process and its children; the kernel keeps the peaks, so that samples do not miss any."""
    while not stop.wait(0.2):
        for pid in [os.getpid(), *(child.pid for child in multiprocessing.active_children() if child.pid)]:
            with suppress(OSError, StopIteration):  # it has just ended
                peaks[pid] = max(peaks.get(pid, 0), peak_bytes(pid))


def run_apart(*arguments: str) -> dict[str, Any]:
    """Return one measurement in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.traces", "--measure", *arguments]
    environment = os.environ | {"HTA_DISABLE_NS_ROUNDING": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]}
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def compare_sizes(folder: Path, sizes: list[int]) -> dict[str, Any]:
    """Compare ours and HTA on files of growing size."""
    rows = []
    for size in sizes:
        (path,), events = write_traces(folder, 1, size)
        row: dict[str, Any] = {"events": events, "file_bytes": path.stat().st_size}
        for name in ("ours", "hta"):
            _say(f"{events:,} events: {name} ...")
            row[name] = run_apart(name, str(path))
        path.unlink()
        if "cpu_s" in row["hta"]:
            row["cpu_ratio"] = row["hta"]["cpu_s"] / row["ours"]["cpu_s"]
            row["compute_us_difference"] = row["ours"]["compute_us"] - row["hta"]["compute_us"]
        rows.append(row)
        _say(json.dumps(row))
    slopes = {name: _slope(rows, name) for name in ("ours", "hta")}
    ratio = slopes["hta"] / slopes["ours"] if slopes["hta"] and slopes["ours"] else None
    return {"sizes": rows, "bytes_per_event": slopes, "memory_slope_ratio": ratio}


def _slope(rows: list[dict[str, Any]], name: str) -> float | None:
    """Return bytes per event between the smallest and the largest file that went through."""
    done = [row for row in rows if "peak_bytes" in row[name]]
    if len(done) < 2:
        return None
    low, high = done[0], done[-1]
    more: float = high[name]["peak_bytes"] - low[name]["peak_bytes"]
    return more / (high["events"] - low["events"])


def compare_traces(source: Path, scratch: Path, repeats: int) -> dict[str, Any]:
    """Compare ours and HTA, in turns, on the large traces of a folder and on simulated ones."""
    team, _ = write_traces(scratch / "simulated", TEAM, SIMULATED_EVENTS)
    cases = {f"{TEAM} simulated ranks": team, "1 simulated rank": team[:1]}
    for path in sorted(source.glob("*.json*")):
        plain = scratch / path.name.removesuffix(".gz")
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            plain.write_bytes(file.read())
        if plain.stat().st_size > LARGE_BYTES:
            cases[plain.stem] = [plain]
    rows = []
    for name, paths in cases.items():
        found: dict[str, list[dict[str, Any]]] = {"ours": [], "hta": []}
        for _ in range(repeats):
            for tool, results in found.items():
                results.append(run_apart(tool, *map(str, paths)))
        row: dict[str, Any] = {"trace": name, "bytes": sum(path.stat().st_size for path in paths)}
        for tool, results in found.items():
            keys = [key for key in results[0] if all(key in result for result in results)]
            row[tool] = {key: statistics.median(r[key] for r in results) for key in keys if key != "failed"}
        if "cpu_s" in row["hta"]:
            hta, ours = row["hta"], row["ours"]
            row["ratios"] = {
                "above imports": hta["cpu_s"] / ours["cpu_s"],
                "above imports, tables": hta["tables_cpu_s"] / ours["cpu_s"],
                "whole": hta["whole_cpu_s"] / ours["whole_cpu_s"],
                "whole, tables": hta["whole_tables_cpu_s"] / ours["whole_cpu_s"],
            }
        rows.append(row)
        _say(json.dumps(row))
    known = [row["ratios"] for row in rows if "ratios" in row]
    medians = {name: statistics.median(row[name] for row in known) for name in known[0]} if known else {}
    return {"traces": rows, "median_ratios": medians}


def compare_ranks(folder: Path, counts: list[int]) -> list[dict[str, Any]]:
    """Measure growing numbers of ranks."""
    _say(f"writing {TEAM} ranks of {PER_RANK:,} events ...")
    _, events = write_traces(folder, TEAM, PER_RANK)
    rows = []
    for count in counts:
        _say(f"{count} ranks ...")
        row = run_apart("ranks", str(folder), str(count)) | {"events": count * events}
        if "cpu_s" in row:
            row |= {
                "cpu_us_per_event": row["cpu_s"] / row["events"] * 1e6,
                "peak_mib": row["peak_bytes"] / MIB,
            }
        rows.append(row)
        _say(json.dumps(row))
    return rows


def name_processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, nargs="*", default=list(EVENTS))
    parser.add_argument("--ranks", type=int, nargs="*", default=list(RANKS))
    parser.add_argument(
        "--traces", type=Path, help="folder of traces, instead of simulated ones of growing size"
    )
    parser.add_argument("--repeats", type=int, default=1, help="of each given trace")
    parser.add_argument("--scratch", type=Path, help="folder for the traces; 2.5 GB at 10 million events")
    parser.add_argument("--output", type=Path, default=Path("reports/traces.json"))
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        what, path, *rest = arguments.measure
        one = {"ours": run_ours, "hta": run_hta}
        result = one[what](path, *rest) if what in one else run_ranks(path, int(rest[0]))
        print(json.dumps(result))
        return
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        report: dict[str, Any] = {
            "processor": name_processor(),
            "cores": len(os.sched_getaffinity(0)),
            "versions": {name: version(name) for name in ("traceinsight", "pandas", "numpy", "msgspec")},
            "repeats": arguments.repeats,
        }
        if arguments.traces:
            report |= compare_traces(arguments.traces, Path(scratch), arguments.repeats)
        elif arguments.events:
            report |= compare_sizes(Path(scratch) / "sizes", arguments.events)
        if arguments.ranks and not arguments.traces:
            report["ranks"] = compare_ranks(Path(scratch) / "ranks", arguments.ranks)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
