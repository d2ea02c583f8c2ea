"""List, fetch and remove runs in folders of results.

Listing is cheap for long runs too; it reads the steps only of older versions' runs. `unpack` replaces its target
completely or not at all. `remove_run` removes a folder as a whole, and only a run's.
"""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from stratlab import NothingThere, UserError
from stratlab.machine import say_refused
from stratlab.run_directory.files import (
    FETCHED,
    FOREIGN,
    check_folder,
    find_page,
    has_marks,
    is_number,
    is_run,
    read_config,
    read_foreign,
    read_object,
    read_tail,
    read_world_size,
)
from stratlab.run_directory.outcome import AT_WORK, TRACED, is_alive, read_attempts, read_standing
from stratlab.run_directory.record import build_summary
from stratlab.run_settings import name_model
from stratlab.tracking import delete_run
from stratlab.wording import format_number

TAIL_BYTES = 65_536
MOST_FAILED = 3


@dataclass(frozen=True)
class ListedRun:
    """Hold one run as a row. None or "" if its files lack the value.

    `status`: finished, failed, stopped, unfinished, at work; "traces only": analysed traces of another program; on a
    cluster also the state of a custom resource whose run has no folder yet, or is suspended. `started`, and `written`,
    the time of the last record, are UTC, ISO 8601; `step` the last recorded step, of `steps`; `resource` the custom
    resource and its state.
    """

    comparison: str
    run: str
    status: str
    strategy: str | None = None
    model: str | None = None
    world_size: int | None = None
    step: int | None = None
    steps: int | None = None
    step_time_ms_p50: float | None = None
    samples_per_s: float | None = None
    attempts: int = 0
    started: str | None = None
    ending: str = ""
    resource: str = ""
    has_report: bool = False
    written: str | None = None


def list_runs(results: Path) -> list[ListedRun]:
    """Return the runs of one comparison, or of all comparisons in a folder of results, by their start.

    Raises:
        NothingThere: the folder does not exist, or holds no run.
        UserError: it is a file, one run, or a folder around results.
    """
    check_folder(results, "the folder of results, or of one comparison")
    if _is_row(results):
        raise UserError(
            f"{results}: this is one run; use the folder of its comparison, {results.parent} [SL-list-one-run]"
        )
    below = sorted(path for path in results.iterdir() if _is_open(path))
    found = [path for path in below if _is_row(path)]
    found += [inner for path in below if path not in found for inner in _list_folder(path)]
    if not found:
        inner = next((path for path in below if any(map(_list_folder, _list_open(path)))), None)
        hint = f"did you mean {inner}? " if inner else ""
        refusal = UserError if inner else NothingThere
        raise refusal(
            f"{results}: no run in it; {hint}expected RESULTS, which holds runs as COMPARISON/RUN, or one comparison "
            "[SL-list-no-run]"
        )
    return sorted(map(_read, found), key=lambda run: (run.started or "", run.comparison, run.run))


def _is_row(path: Path) -> bool:
    """Return whether it is a run, or an analysis of another program's traces."""
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
    comparison, has_report = folder.absolute().parent.name, find_page(folder).is_file()
    if not has_marks(folder):
        world_size = read_foreign(folder, nothing).get("world_size")
        return ListedRun(comparison, folder.name, TRACED, world_size=world_size, has_report=has_report)
    config = read_config(folder, nothing)
    asked, resolved = config.get("config", {}), config.get("resolved", {})
    summary = build_summary(read_object(folder / "summary.json", nothing), folder)
    attempts = read_attempts(folder)
    last = read_tail(folder / "metrics.jsonl", TAIL_BYTES)[::-1]
    begun = [line["t"] for line in attempts if line["event"] == "started" and is_number(line["t"])]
    written = [line["t"] for line in (*attempts, *last[:1]) if is_number(line.get("t"))]
    status, ending = read_standing(folder, asked.get("mode"), attempts, bool(summary))
    return ListedRun(
        comparison,
        folder.name,
        status,
        strategy=_text(summary.get("strategy") or asked.get("strategy")),
        model=name_model(asked) or None,
        world_size=read_world_size(resolved, attempts) if config else None,
        step=next((step for line in last if (step := _whole(line.get("step"))) is not None), None),
        steps=_whole(resolved.get("steps")),
        step_time_ms_p50=_number(summary.get("step_time_ms_p50")),
        samples_per_s=_number(summary.get("samples_per_s")),
        attempts=sum(line["event"] == "started" for line in attempts),
        started=_format_time(min(begun, default=None)),
        written=_format_time(max(written, default=None)),
        ending=ending,
        has_report=has_report,
    )


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
    """Build a run from JSON; ignore unknown fields of another version."""
    return ListedRun(**{name: fields[name] for name in ListedRun.__dataclass_fields__ if name in fields})


COLOURS = {"finished": "green", "failed": "red", "stopped": "yellow", "unfinished": "yellow", AT_WORK: "cyan"}


def build_table(runs: Sequence[ListedRun]) -> Table:
    """Build one line per run.

    Leave out empty columns, strategies that equal their runs' names, and values that all runs share. `list_answers`
    names the shared values.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    all_named, (models, ranks) = all(run.strategy in (None, run.run) for run in runs), _find_common(runs)
    cells = {
        "run": [Text(f"{run.comparison}/{run.run}") for run in runs],
        "status": [Text(run.status, style=COLOURS.get(run.status, "bold")) for run in runs],
        "strategy": [Text("" if all_named else run.strategy or "") for run in runs],
        "model": [Text("" if models else run.model or "") for run in runs],
        "ranks": [Text(str(run.world_size) if run.world_size and not ranks else "") for run in runs],
        "step": [Text(_say_step(run)) for run in runs],
        "step ms": [
            Text(format_number(run.step_time_ms_p50, 2) if run.step_time_ms_p50 else "") for run in runs
        ],
        "samples/s": [Text(format_number(run.samples_per_s, 1) if run.samples_per_s else "") for run in runs],
        "attempts": [Text(str(run.attempts) if run.attempts > 1 else "") for run in runs],
        "started (UTC)": [Text((run.started or "")[:16].replace("T", " ")) for run in runs],
        "resource": [Text(run.resource) for run in runs],
    }
    shown = {name: column for name, column in cells.items() if any(cell.plain for cell in column)}
    for name in shown:
        is_number = name in ("ranks", "step", "step ms", "samples/s", "attempts")
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in zip(*shown.values(), strict=True):
        table.add_row(*row)
    return table


def list_answers(runs: Sequence[ListedRun]) -> list[tuple[str, str]]:
    """Return (label, sentence) below the table: the number of runs by status, and the newest failures' reasons."""
    counts, (models, ranks) = Counter(run.status for run in runs), _find_common(runs)
    common = ", ".join([*(f"model {model}" for model in models), *(f"{count} ranks" for count in ranks)])
    told = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    failed = [run for run in runs if run.status == "failed" and run.ending][-MOST_FAILED:]
    return [
        ("Runs", f"{told}; each with {common}" if common else told),
        *(("Failed", f"{run.comparison}/{run.run}: {run.ending}") for run in failed),
    ]


def _find_common(runs: Sequence[ListedRun]) -> tuple[set[str], set[int]]:
    """Return the model and the number of ranks that several runs share; empty if they differ."""
    models, ranks = {run.model for run in runs}, {run.world_size for run in runs}
    several = len(runs) > 1
    return (
        {model for model in models if model and several and len(models) == 1},
        {count for count in ranks if count and several and len(ranks) == 1},
    )


def name_comparisons(runs: Sequence[ListedRun]) -> list[str]:
    """Return the comparisons with at least two finished runs, the newest last."""
    finished = [run.comparison for run in reversed(runs) if run.status == "finished"]
    return [name for name, count in reversed(Counter(finished).items()) if count > 1]


def _say_step(run: ListedRun) -> str:
    if run.step is None:
        return ""
    return f"{run.step}/{run.steps}" if run.steps else str(run.step)


@dataclass(frozen=True)
class Fetched:
    """Hold the place and the size of a fetched folder."""

    folder: Path
    files: int
    size_bytes: int


def check_target(target: Path, replace: bool) -> None:
    """Check the target before the transfer.

    Raises:
        UserError: the target exists and may not be replaced: without --replace, or because it is not a run.
    """
    if not target.exists() and not target.is_symlink():
        return
    if not replace:
        raise UserError(
            f"{target}: exists; --replace fetches it again, --output sets another place [SL-fetched-already]"
        )
    if target.is_symlink() or not target.is_dir() or not _is_ours(target):
        raise UserError(
            f"{target}: is not a run or a comparison, so it is not replaced; --output sets another place "
            "[SL-fetch-over-other]"
        )


def unpack(pieces: Iterable[bytes], target: Path, without: Sequence[str] = ()) -> Fetched:
    """Write the archive's one folder to `target` and replace the present one.

    Args:
        without: names left on the volume; each run's folder records them, so that `stratlab verify` does not expect
        them.

    Raises:
        UserError: the place cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetched.") as temporary:
            archive, fresh = Path(temporary) / "archive.tar", Path(temporary) / "folder"
            with archive.open("wb") as file:
                for piece in pieces:
                    file.write(piece)
            with tarfile.open(archive) as opened:
                _extract(opened, fresh)
            (folder,) = fresh.iterdir()
            for run in (folder, *folder.iterdir()):
                if has_marks(run):
                    (run / FETCHED).write_text(json.dumps({"without": list(without)}) + "\n")
            if target.exists():
                target.rename(Path(temporary) / "before")
            folder.rename(target)
            shutil.rmtree(Path(temporary) / "before", ignore_errors=True)
    except OSError as failure:
        if not say_refused(failure):  # such as a full disk, or a lost connection
            raise
        raise UserError(
            f"{target}: cannot be written ({failure.strerror}) [SL-fetch-not-written]"
        ) from failure
    files = [path for path in target.rglob("*") if path.is_file()]
    return Fetched(target, len(files), sum(path.stat().st_size for path in files))


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Extract files and folders inside `folder` only (Debian's Python 3.11.2 has no extraction filters yet)."""
    for member in archive:
        path = folder / member.name
        assert not Path(member.name).is_absolute() and ".." not in path.parts, member.name
        if member.isdir():
            path.mkdir(parents=True, exist_ok=True)
        elif content := archive.extractfile(member) if member.isfile() else None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                shutil.copyfileobj(content, file)


def _is_ours(target: Path) -> bool:
    """Return whether it is a run, or a folder with only runs and their reports."""
    if is_run(target):
        return True
    below = [path for path in target.iterdir() if path.is_dir()]
    is_known = all(has_marks(path) or (path / "report.json").is_file() for path in below)
    return is_known and any(map(is_run, below))


def find_run(folder: Path) -> Path:
    """Return the folder, if it is a run's.

    Raises:
        NothingThere: it does not exist.
        UserError: it is a file, a link, or an active run.
    """
    check_folder(folder, "the folder of a run")
    if folder.is_symlink():
        raise UserError(f"{folder}: a link; expected the folder of the run [SL-remove-link]")
    if any(folder.iterdir()) and not is_run(folder):
        raise NothingThere(
            f"{folder}: not a run: no file in it was written by the trainer [SL-remove-no-run]"
        )
    if is_alive(folder):
        raise UserError(
            f"{folder}: this run is active, its files have just changed; stop it first "
            "(if it was killed, it can be removed in two minutes) [SL-remove-run-live]"
        )
    return folder.absolute()


def remove_run(folder: Path, with_mlflow: bool = False) -> str:
    """Remove the folder, and a rehearsal's logs next to it; return a sentence about MLflow.

    The folder gets another name first, so that no other program reads half of it.

    Args:
        with_mlflow: first also delete the MLflow run that the folder names.

    Raises:
        UserError: it is not a run, or may not be removed.
    """
    found = find_run(folder)
    said = delete_run(found) if with_mlflow else ""
    aside = found.with_name(f".{found.name}.removed")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        found.rename(aside)
        shutil.rmtree(aside)
    except OSError as failure:
        raise UserError(
            f"{folder}: cannot be removed ({failure.strerror or failure}) [SL-folder-not-removed]"
        ) from failure
    shutil.rmtree(found.parent / ".logs" / found.name, ignore_errors=True)
    return said
