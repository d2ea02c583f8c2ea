"""The runs below a folder of results, each in one row: cheap to read, however long the runs were."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stratlab.run_directory.files import (
    ATTEMPT,
    has_marks,
    is_number,
    read_config,
    read_line,
    read_lines,
    read_object,
    read_world_size,
)
from stratlab.run_directory.foreign import FOREIGN, read_foreign
from stratlab.run_directory.given_folder import check_folder
from stratlab.run_directory.record import TRACED, read_standing
from stratlab.tables.settings import name_model
from stratlab.user_error import NothingThere, UserError

TAIL_BYTES = 65_536


@dataclass(frozen=True)
class ListedRun:
    """One run. None or "" where its files do not tell.

    `status`: finished, failed, stopped, unfinished, at work; "traces only": those of another program, analysed; on a
    cluster also the state of a custom resource whose run has no folder yet, or is suspended. `started`, and `written`,
    when it last recorded something, are UTC, ISO 8601; `step` the last one recorded, of `steps`; `resource` its custom
    resource and that one's state.
    """

    comparison: str
    run: str
    status: str
    strategy: str | None = None
    model: str | None = None
    world_size: int | None = None
    step: int | None = None
    steps: int | None = None
    samples_per_s: float | None = None
    attempts: int = 0
    started: str | None = None
    ending: str = ""
    resource: str = ""
    has_report: bool = False
    written: str | None = None


def list_runs(results: Path) -> list[ListedRun]:
    """The runs of a comparison, or of every comparison in a folder of results; the one that started last at the end.

    Raises:
        NothingThere: there is no such folder, or no run in it.
        UserError: it is a file, one run, or a folder around results.
    """
    check_folder(results, "the folder of results, or of one comparison")
    if _is_row(results):
        raise UserError(
            f"{results}: this is one run; give the folder of its comparison, {results.parent} [SL-list-one-run]"
        )
    below = sorted(path for path in results.iterdir() if _is_open(path))
    found = [path for path in below if _is_row(path)]
    found += [inner for path in below if path not in found for inner in _list_folder(path)]
    if not found:
        inner = next((path for path in below if any(map(_list_folder, _list_open(path)))), None)
        hint = f"did you mean {inner}? " if inner else ""
        refusal = UserError if inner else NothingThere
        raise refusal(
            f"{results}: no run in it; {hint}expected RESULTS, where runs lie as COMPARISON/RUN, or one comparison "
            "[SL-list-no-run]"
        )
    return sorted(map(_read, found), key=lambda run: (run.started or "", run.comparison, run.run))


def _is_row(path: Path) -> bool:
    """Whether it is a run, or what the traces of another program were analysed into."""
    return has_marks(path) or (path / FOREIGN).is_file()


def _is_open(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith((".", "_"))


def _list_folder(folder: Path) -> list[Path]:
    return [path for path in _list_open(folder) if _is_row(path)]


def _list_open(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if _is_open(path))
    except PermissionError:
        return []


def _read(folder: Path) -> ListedRun:
    nothing: list[str] = []
    if not has_marks(folder):
        told = read_foreign(folder, nothing)
        return ListedRun(
            comparison=folder.absolute().parent.name,
            run=folder.name,
            status=TRACED,
            world_size=told.get("world_size"),
            has_report=_has_report(folder),
        )
    config = read_config(folder, nothing)
    asked, resolved = config.get("config", {}), config.get("resolved", {})
    summary = read_object(folder / "summary.json", nothing)
    attempts = read_lines(folder / "attempts.jsonl", nothing, ATTEMPT)
    last = _read_last(folder / "metrics.jsonl")
    begun = [line["t"] for line in attempts if line["event"] == "started" and is_number(line["t"])]
    written = [line["t"] for line in (*attempts, *last[:1]) if is_number(line.get("t"))]
    status, ending = read_standing(folder, asked.get("mode"), attempts, bool(summary))
    return ListedRun(
        comparison=folder.absolute().parent.name,
        run=folder.name,
        status=status,
        strategy=_text(summary.get("strategy") or asked.get("strategy")),
        model=name_model(asked) or None,
        world_size=read_world_size(resolved, attempts) if config else None,
        step=next((step for line in last if (step := _whole(line.get("step"))) is not None), None),
        steps=_whole(resolved.get("steps")),
        samples_per_s=_number(summary.get("samples_per_s")),
        attempts=sum(line["event"] == "started" for line in attempts),
        started=_format_time(min(begun, default=None)),
        written=_format_time(max(written, default=None)),
        ending=ending,
        has_report=_has_report(folder),
    )


def _has_report(folder: Path) -> bool:
    return (folder / "analysis" / "report.html").is_file()


def _read_last(metrics: Path) -> list[dict[str, Any]]:
    """The last lines, the newest first, from the end of the file: a long run's metrics have gigabytes."""
    if not metrics.is_file():
        return []
    with metrics.open("rb") as file:
        file.seek(max(0, metrics.stat().st_size - TAIL_BYTES))
        lines = file.read().splitlines()
    return [read_line(line) for line in reversed(lines)]


def _format_time(seconds: float | None) -> str | None:
    try:
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> float | None:
    return float(value) if is_number(value) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def build_run(fields: Mapping[str, Any]) -> ListedRun:
    """Back from JSON, as another version of this command may have written it: unknown fields are left out."""
    known = {name: fields[name] for name in ListedRun.__dataclass_fields__ if name in fields}
    return ListedRun(**known)
