"""The files of a run directory, read with distrust: a full volume, a crash or a hand may have spoilt any of them.

docs/formats.md has every field. foreign.json describes traces of another program next to their analysis, instead of a
run's own files.

`find_*` find the files of a run for readers, and decide where its report's page may link to them. `check_folder` checks
a folder that the user has named, in the same way for every verb.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from stratlab import NothingThere, UserError
from stratlab_spec.run_directory import write_json
from stratlab_spec.settings.old_names import take_new_names

MARKS = ("config.json", "attempts.jsonl", "metrics.jsonl", "summary.json")  # one of them makes a folder a run
RUN_FOLDERS = frozenset(
    (
        *("traces", "analysis", "pods", "ranks", "checkpoints", "model"),
        *("best_model", "tensorboard", "hangs", "faults"),
    )
)
EVENTS = ("started", "met", "ended", "refused")
LARGEST_WORLD = 65_536

Shape = Mapping[str, type | tuple[type, ...]]
CONFIG: Shape = {"config": dict, "resolved": dict, "provenance": dict}
RESOLVED: Shape = {"world_size": int, "layout": (dict, type(None))}
RANK: Shape = {"node": (str, type(None)), "gpu": (dict, type(None)), "host": str}
METRIC: Shape = {"kind": str, "t": (int, float), "step": int}


def has_marks(folder: Path) -> bool:
    """Return whether there is anything of a run to read."""
    return any((folder / mark).is_file() for mark in MARKS)


def is_run(folder: Path) -> bool:
    """Return whether the trainer has made this folder, so that it may go: other programs write a config.json too."""
    config = read_object(folder / "config.json", [], CONFIG)
    if "config" in config and "resolved" in config:
        return True
    if {"run_id", "experiment_id", "tracking_uri"} <= read_object(folder / "mlflow.json", []).keys():
        return True
    ledgers = [folder / "attempts.jsonl", *(folder / "pods").glob("*.jsonl")]
    return any(line["event"] in EVENTS for path in ledgers for line in read_lines(path, [], {"event": str}))


def read_config(folder: Path, problems: list[str]) -> dict[str, Any]:
    """Return config.json, with `resolved` and its number of ranks only if these are possible."""
    config = read_object(folder / "config.json", problems, CONFIG)
    if isinstance(config.get("config"), dict):
        config["config"] = take_new_names(config["config"])
    if "resolved" in config:
        resolved = keep_fields(config["resolved"], RESOLVED, "config.json: resolved", problems)
        if not 1 <= resolved.get("world_size", 1) <= LARGEST_WORLD:
            told = str(resolved.pop("world_size"))[:20]
            problems.append(f"config.json: resolved: world_size {told} is left out [SL-config-world-size]")
        config["resolved"] = resolved
    return config


def read_object(path: Path, problems: list[str], shape: Shape | None = None) -> dict[str, Any]:
    """Return the object in a file; {} if it is missing. Fields of another type than in `shape` are left out.

    Args:
        problems: gets a sentence for each defect.
    """
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, brackets without end
        problems.append(f"{path.name}: not readable as JSON ({error}) [SL-json-unreadable]")
        return {}
    if not isinstance(content, dict):
        problems.append(
            f"{path.name}: expected an object, found {type(content).__name__} [SL-json-no-object]"
        )
        return {}
    return keep_fields(content, shape or {}, path.name, problems)


def keep_fields(content: dict[str, Any], shape: Shape, place: str, problems: list[str]) -> dict[str, Any]:
    """Return `content` without the fields of another type than in `shape`."""
    wrong = {name: content[name] for name in shape if name in content and not _is(content[name], shape[name])}
    problems += [
        f"{place}: {name} is of type {type(value).__name__} [SL-field-type]" for name, value in wrong.items()
    ]
    return {name: value for name, value in content.items() if name not in wrong}


def read_lines(path: Path, problems: list[str], needs: Shape) -> list[dict[str, Any]]:
    """Return the objects of a .jsonl file that have every field of `needs`; how many are left out goes to
    `problems`.
    """
    if not path.is_file():
        return []
    lines = [read_line(text) for text in path.read_bytes().splitlines()]
    whole = [
        line for line in lines if line and all(_is(line.get(name), kind) for name, kind in needs.items())
    ]
    if other := len(lines) - lines.count({}) - len(whole):
        problems.append(f"{path.name}: {other} lines have no {', '.join(needs)} [SL-line-fields]")
    if broken := lines.count({}):  # one at the end is normal for a run that was killed while writing
        problems.append(f"{path.name}: {broken} lines are not JSON objects [SL-line-not-json]")
    return whole


def read_tail(path: Path, size_bytes: int) -> list[dict[str, Any]]:
    """Return the objects of the last lines of a .jsonl file, {} for other lines: a long run's metrics have
    gigabytes.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - size_bytes))
            return [read_line(line) for line in file.read().splitlines()]
    except OSError:
        return []


def read_line(text: bytes) -> dict[str, Any]:
    """Return the object of a line, or {}."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def read_world_size(resolved: Mapping[str, Any], attempts: list[dict[str, Any]]) -> int:
    """Return the world size of the last attempt that records it: attempts may have different numbers of processes."""
    told = [line.get("world_size") for line in attempts]
    sizes = [size for size in [resolved.get("world_size"), *told] if _is(size, int)]
    return next((size for size in reversed(sizes) if 1 <= size <= LARGEST_WORLD), 1)


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether the value is a finite number that a float can hold; a bool is not."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _is(value: Any, kind: type | tuple[type, ...]) -> bool:
    """Return whether the value has that type, with numbers finite; a bool is not a number."""
    if isinstance(value, bool) or not isinstance(value, kind):
        return False
    return is_number(value) if isinstance(value, (int, float)) else True


MERGED = "merged_trace.json.gz"
PAGE = "report.html"
FETCHED = ".fetched.json"
"""In the copy of a run that `stratlab fetch` made: {"without": [parts that stayed on the volume]}."""
SERVER = {"tracking_uri": str, "experiment_id": str, "run_id": str}
"""Of mlflow.json: the place of a run in MLflow."""
ABOVE = 3
"""Folders above a run below which a page may link to it: comparison, results, and their folder."""


def find_page(run_dir: Path) -> Path:
    """Return the page of its analysis; need not exist."""
    return run_dir / "analysis" / PAGE


def find_pod_logs(run_dir: Path) -> Path:
    """Return the folder of a rehearsal's logs; runs on a cluster have no such folder."""
    run_dir = run_dir.resolve()
    return run_dir.parent / ".logs" / run_dir.name


def find_comparison_page(run_dir: Path) -> Path:
    """Return the default page of `stratlab compare`; it need not exist."""
    return run_dir.parent / "report" / PAGE


def find_rank_traces(run_dir: Path) -> dict[int, Path]:
    return _by_rank(run_dir / "traces", "*_trace.json*")


def find_rank_logs(run_dir: Path) -> dict[int, Path]:
    return _by_rank(run_dir / "ranks", "rank*.log")


def _by_rank(folder: Path, pattern: str) -> dict[int, Path]:
    """Return rank -> file, by rank."""
    numbered = [(re.search(r"\d+", path.name), path) for path in folder.glob(pattern) if path.is_file()]
    return dict(sorted((int(number[0]), path) for number, path in numbered if number))


def is_beside(run_dir: Path, page_folder: Path) -> bool:
    """Return whether a page is in the run's comparison, its results, or the folder above these."""
    page = page_folder.resolve()
    above = [folder for folder in run_dir.resolve().parents[:ABOVE] if folder.parent != folder]
    return any(folder == page or folder in page.parents for folder in above)


FOREIGN = "foreign.json"
SHAPE: Shape = {
    "experiment": str,
    "source": str,
    "source_path": str,
    "world_size": (int, type(None)),
    "traces": list,
}


def read_foreign(folder: Path, problems: list[str]) -> dict[str, Any]:
    """Return the content of foreign.json; {} if it is missing. An impossible number of ranks is left out."""
    found = read_object(folder / FOREIGN, problems, SHAPE)
    if not 1 <= (found.get("world_size") or 1) <= LARGEST_WORLD:
        problems.append(
            f"{FOREIGN}: world_size {str(found.pop('world_size'))[:20]} is left out [SL-foreign-world-size]"
        )
    return found


def write_foreign(folder: Path, content: Mapping[str, Any]) -> None:
    """Write foreign.json in one step."""
    write_json(folder / FOREIGN, content)


def check_folder(folder: Path, expected: str) -> None:
    """Check that the folder exists.

    Raises:
        NothingThere: it does not exist, or not yet.
        UserError: it is a file.
    """
    if folder.is_dir():
        return
    if folder.exists():
        raise UserError(f"{folder}: not a folder; expected {expected} [SL-folder-is-file]")
    raise NothingThere(f"{folder}: no such folder; expected {expected} [SL-folder-missing]")
