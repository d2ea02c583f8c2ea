"""Run directories as one small archive, from which their pages are drawn again whenever the program changes.

    pack_runs      with three recorded steps of every rank, or with the analysis of all recorded steps instead
    unpack_runs    the folder of the comparison, analysed

A trace keeps the fields that stratlab reads. Weights, checkpoints, merged traces and tables are left out.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import statistics
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stratlab.analysis.run_analysis import analyze_run
from stratlab.traces.kineto_events import Args

ARCHIVE = "runs.tar.xz"
MOST_BYTES = 300_000
STEPS = 3
MOST_FILE_BYTES = 1 << 20
TEXTS = ("*.json", "*.jsonl", "ranks/*", "pods/*")
BESIDE = ("varied.json", "tuning.json")
FIELDS = frozenset(field.encode_name for field in msgspec.structs.fields(Args))
PROFILED = "ProfilerStep#"
PLACE = "FOLDER"


class TooLarge(Exception):
    """An archive would have more than MOST_BYTES."""


def pack_runs(comparison: Path, archive: Path, place: Path, *, with_traces: bool) -> None:
    """Writes the archive.

    Args:
        comparison: the folder of the runs; a folder whose name begins with a dot is none.
        place: the folder of this machine that no file may name.
        with_traces: large models have traces that do not fit; then the analysis is kept.

    Raises:
        TooLarge: it does not fit.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz", preset=9 | lzma.PRESET_EXTREME) as file:
        for name, content in sorted(_collect(comparison, place, with_traces=with_traces).items()):
            entry = tarfile.TarInfo(f"{comparison.name}/{name}")
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))
    size = len(buffer.getvalue())
    if size > MOST_BYTES:
        raise TooLarge(f"{comparison.name}: {size} bytes, expected at most {MOST_BYTES} [SL-kept-runs-large]")
    archive.write_bytes(buffer.getvalue())


def unpack_runs(archive: Path, into: Path) -> Path:
    """The folder of the comparison; runs with traces are analysed in it. A trace that was left out is an empty file:
    the run was complete, and its analysis is there.

    Args:
        into: an empty folder.
    """
    with tarfile.open(archive) as file:
        file.extractall(into)
    (comparison,) = into.iterdir()
    for manifest in sorted(comparison.glob("*/traces/manifest.json")):
        run = manifest.parents[1]
        if not (run / "analysis").exists():
            analyze_run(run, tracking_uri=None)
        for entry in json.loads(manifest.read_text())["files"]:
            manifest.with_name(entry["file"]).touch()
    return comparison


def _collect(comparison: Path, place: Path, *, with_traces: bool) -> dict[str, bytes]:
    """File -> content, without the names of this machine's folders."""
    found = {name: comparison / name for name in BESIDE if (comparison / name).is_file()}
    traces: dict[str, bytes] = {}
    for config in sorted(comparison.glob("[!.]*/config.json")):
        run = config.parent
        files = {path for pattern in TEXTS for path in run.glob(pattern)}
        if with_traces and (run / "traces").is_dir():
            traces |= {f"{run.name}/{name}": text for name, text in _thin_traces(run, place).items()}
        else:
            files |= {run / "analysis/report.json", run / "traces/manifest.json"}
        found |= {path.relative_to(comparison).as_posix(): path for path in files if _is_kept(path)}
    return {name: _scrub(path.read_bytes(), place) for name, path in found.items()} | traces


def _scrub(text: bytes, place: Path) -> bytes:
    return text.replace(str(place).encode(), PLACE.encode())


def _is_kept(path: Path) -> bool:
    return path.is_file() and path.stat().st_size <= MOST_FILE_BYTES


def _thin_traces(run: Path, place: Path) -> dict[str, bytes]:
    """Of every rank the same recorded steps, and the manifest that fits."""
    manifest = json.loads((run / "traces/manifest.json").read_text())
    traces = [json.loads((run / "traces" / entry["file"]).read_text()) for entry in manifest["files"]]
    names, found = choose_steps(traces[0]), {}
    for entry, trace in zip(manifest["files"], traces, strict=True):
        text = _scrub(json.dumps(thin_trace(trace, names), separators=(",", ":")).encode(), place)
        entry |= {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}
        found[f"traces/{entry['file']}"] = text
    manifest |= {"first_step": manifest["first_step"] + _number(names[0]) - 1, "steps": len(names)}
    return found | {"traces/manifest.json": json.dumps(manifest, indent=1).encode()}


def choose_steps(trace: Mapping[str, Any]) -> list[str]:
    """Names of the STEPS recorded steps in a row that are together nearest to as many median ones."""
    spans = _find_spans(trace)
    lengths = [event["dur"] for event in spans.values()]
    wanted = STEPS * statistics.median(lengths)
    first = min(
        range(max(len(lengths) - STEPS, 0) + 1), key=lambda i: abs(sum(lengths[i : i + STEPS]) - wanted)
    )
    return [*spans][first : first + STEPS]


def _find_spans(trace: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Name -> the profiler's span of a step, in their order."""
    spans = [event for event in trace["traceEvents"] if event["name"].startswith(PROFILED)]
    return {event["name"]: event for event in sorted(spans, key=lambda event: _number(event["name"]))}


def _number(name: str) -> int:
    return int(name.removeprefix(PROFILED))


def thin_trace(trace: Mapping[str, Any], steps: Sequence[str]) -> dict[str, Any]:
    """The events of these steps with the fields that stratlab reads; the arrows from forward to backward go."""
    spans = _find_spans(trace)
    first, last = spans[steps[0]], spans[steps[-1]]
    begin, end = first["ts"], last["ts"] + last["dur"]
    kept = [
        event
        for event in trace["traceEvents"]
        if event["ph"] == "M" or (event.get("cat") != "fwdbwd" and begin <= event["ts"] <= end)
    ]
    return {**trace, "traceEvents": [*map(_thin_event, kept)]}


def _thin_event(event: Mapping[str, Any]) -> dict[str, Any]:
    args = event.get("args") or {}
    if event["ph"] != "M":
        args = {name: value for name, value in args.items() if name in FIELDS}
    names: Iterator[str] = (
        name for name in ("ph", "cat", "name", "pid", "tid", "ts", "dur", "s") if name in event
    )
    return {**{name: event[name] for name in names}, **({"args": args} if args else {})}
