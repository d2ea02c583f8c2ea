"""The run directory: the only data that training and everything after it share; its names in MLflow.

Fields: docs/run_directory.md. Readers of .jsonl files skip half a line that a full volume has left. rungs.json has the
rungs of the ladder that a run has climbed; the ranks receive them in a variable.

MLflow groups the metrics of a run by the prefix of their names. HEADLINES have no prefix. All others have the prefix
`detail/`, so that no number is lost and the first group holds the important ones.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

LAUNCHER_PID = "STRATLAB_LAUNCHER_PID"
"""Variable in which a rank reads the process that started it."""
REHEARSAL_PID = "STRATLAB_REHEARSAL_PID"
"""Variable in which a rank reads the rehearsal that started its launcher, and the MLflow server next to it."""

FAR_TIME_S = 1e12
"""30,000 years: beyond any clock."""
RESULTS_BYTES, RANK_BYTES = 64 << 10, 16 << 10
"""Several times the size of evaluation.json, summary.json and the facts of a rank."""


class RunDirectory:
    """Names of the files of one run. JSON files appear whole or not at all."""

    def __init__(self, results: str | Path, comparison: str, run: str) -> None:
        self.path = Path(results) / comparison / run
        self.config = self.path / "config.json"
        self.attempts = self.path / "attempts.jsonl"
        self.rungs = self.path / "rungs.json"
        self.metrics = self.path / "metrics.jsonl"
        self.sent = self.path / "metrics.sent"
        self.mlflow = self.path / "mlflow.json"
        self.tensorboard = self.path / "tensorboard"
        self.pods = self.path / "pods"
        self.ranks = self.path / "ranks"
        self.traces = self.path / "traces"
        self.manifest = self.traces / "manifest.json"
        self.flops_profiler = self.traces / "flops_profiler.txt"
        self.memory_snapshots = self.traces / "memory_snapshots"
        self.checkpoints = self.path / "checkpoints"
        self.model = self.path / "model"
        self.best_model = self.path / "best_model"
        self.deepspeed = self.path / "deepspeed.json"
        self.evaluation = self.path / "evaluation.json"
        self.summary = self.path / "summary.json"
        self.hangs = self.path / "hangs"
        self.flight_recorder = self.hangs / "flight_recorder"
        self.faults = self.path / "faults"
        self.reserve = self.path / ".reserve"
        self.lease = self.path / ".lease"

    def create(self) -> None:
        """Make the folders; all of them exist before the first file."""
        self.ranks.mkdir(parents=True, exist_ok=True)
        self.traces.mkdir(exist_ok=True)

    def find_strangers(self) -> list[str]:
        """Return the visible files of a folder that has no files of a run; hidden files are the file system's."""
        ours = {path.name for path in vars(self).values()} - {self.path.name}
        found = sorted(path.name for path in self.path.iterdir()) if self.path.is_dir() else []
        return [] if ours & {*found} else [name for name in found if not name.startswith(".")]

    def keep_reserve(self, ranks: int) -> None:
        """Reserve space for the results, so that a volume that is full at the end does not lose a finished run."""
        size = RESULTS_BYTES + ranks * RANK_BYTES
        if self.reserve.exists() and self.reserve.stat().st_size == size:  # from an earlier attempt
            return
        with open(self.reserve, "wb") as file:
            file.write(b"\0" * size)
            file.flush()
            os.fsync(file.fileno())

    def release_reserve(self) -> None:
        """Free the space before the results are written; a missing reserve is fine, as after an earlier attempt's last
        step.
        """
        self.reserve.unlink(missing_ok=True)

    def rank_log(self, rank: int) -> Path:
        return self.ranks / f"rank{rank}.log"

    def rank_facts(self, rank: int) -> Path:
        return self.ranks / f"rank{rank}.json"

    def pod_ledger(self, pod: str) -> Path:
        return self.pods / f"{pod}.jsonl"

    def pod_hang(self, pod: str) -> Path:
        return self.hangs / f"{pod}.json"

    def out_of_memory(self, rank: int) -> Path:
        return self.ranks / f"rank{rank}.out_of_memory.json"

    def trace(self, rank: int) -> Path:
        return self.traces / f"rank{rank}_trace.json"

    def memory_snapshot(self, rank: int) -> Path:
        return self.memory_snapshots / f"rank{rank}.pickle"

    def has_all_traces(self) -> bool:
        """Return whether an attempt has recorded its steps, and lost no rank's trace."""
        try:
            return read_line(self.manifest.read_bytes()).get("complete") is True
        except FileNotFoundError:
            return False

    def is_written_by(self, launcher: str) -> bool:
        """Return whether `launcher` has started the ranks of the newest attempt."""
        started = [line for line in self.read_attempts() if line.get("event") == "started"]
        return bool(started) and started[-1].get("launcher") == launcher

    def read_attempts(self) -> list[dict[str, Any]]:
        """Return the lines of attempts.jsonl."""
        return [line for line in read_events(self.attempts) if isinstance(line.get("attempt"), int)]

    def read_world_sizes(self) -> dict[int, int]:
        """Return attempt -> number of ranks."""
        started = [line for line in self.read_attempts() if line["event"] == "started"]
        return {
            line["attempt"]: line["world_size"] for line in started if isinstance(line.get("world_size"), int)
        }

    def append_attempt(self, event: str, attempt: int, launcher: str, **facts: Any) -> None:
        """Add one line: an attempt `started` or `ended`."""
        line = {"t": time.time(), "attempt": attempt, "event": event, "launcher": launcher, **facts}
        append_line(self.attempts, line)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a .jsonl file, empty if it is missing; other lines, such as half a line, are skipped."""
    try:
        lines = path.read_bytes().split(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [found for line in lines[:-1] if (found := read_line(line))]


EVENT: dict[str, Any] = {
    "t": (int, float),
    "event": str,
    "launcher": str,
    "step": int,
    "exit_code": (int, type(None)),
}


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file of starts and ends, each with t, event, launcher and step; any other line is left
    out.
    """
    lines = [{"launcher": "", "step": 0, "exit_code": None, **line} for line in read_lines(path)]
    return [line for line in lines if all(isinstance(line.get(name), kind) for name, kind in EVENT.items())]


def read_line(line: bytes) -> dict[str, Any]:
    """Return the object of a line, or {}: a full volume leaves half a line, a crashed node a block of zeros."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def is_metrics(line: Mapping[str, Any]) -> bool:
    """Return whether a line has a time and a step that are numbers, and no number or name that cannot be sent or
    drawn.
    """
    t, step = line.get("t"), line.get("step")
    if not isinstance(t, int | float) or type(step) is not int:
        return False
    too_large = any(isinstance(value, int) and abs(value) > sys.float_info.max for value in line.values())
    return (
        not too_large
        and abs(t) < FAR_TIME_S
        and 0 <= step < 2**63
        and all(name.isprintable() for name in line)
    )


def append_line(path: Path, line: dict[str, Any]) -> None:
    """Add one object to a .jsonl file; it is on the disk when this returns."""
    with open(path, "ab+") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # half a line of a process that was killed or had no space
                file.write(b"\n")
        file.write(json.dumps(line).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, content: Any) -> None:
    """Write JSON as `write_whole` does."""
    write_whole(path, json.dumps(content, indent=1) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a temporary file and rename it: a reader sees the whole file or none.

    A link stays, and its target is replaced. A device or a pipe is written to.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_text(text, encoding="utf-8")
        return
    path = path.resolve()
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)  # on a full volume its blocks are missed
        raise


VARIABLE = "STRATLAB_RUNGS"
"""In the ranks' environment: their rungs, as JSON."""
RUNGS = "rungs"
"""Their place in `resolved` of config.json."""

Settings = dict[str, Any]
Rung = dict[str, Any]
"""rung (its number), settings, instead_of (their earlier values), passed_over [{settings, reason}], step, t."""


def read_rungs(folder: RunDirectory) -> list[Rung]:
    """Return the rungs that any pod of the run has climbed."""
    try:
        found = json.loads(folder.rungs.read_bytes())
    except (FileNotFoundError, ValueError):
        return []
    return found if isinstance(found, list) else []


def read_own_rungs(env: Mapping[str, str]) -> list[Rung]:
    """Return the rungs that this rank was started on."""
    found: list[Rung] = json.loads(env.get(VARIABLE, "[]"))
    return found


def find_asked(rungs: Sequence[Rung]) -> Settings:
    """Return the release's values of the settings that rungs have changed."""
    asked: Settings = {}
    for rung in reversed(rungs):
        asked |= rung["instead_of"]
    return asked


def describe_rung(rung: Rung) -> str:
    """Return `micro_batch_size 8 instead of 16`."""
    before = rung["instead_of"]
    return ", ".join(f"{name} {value} instead of {before[name]}" for name, value in rung["settings"].items())


HEADLINES = {
    "loss": "does it learn: every step",
    "validation_loss": "does it learn: on samples that it was not trained with",
    "validation_accuracy_pct": "does it learn: images",
    "validation_perplexity": "does it learn: text",
    "test_loss": "quality at the end",
    "test_accuracy_pct": "quality at the end: images",
    "test_perplexity": "quality at the end: text",
    "samples_per_s": "speed: a comparison names the fastest by it",
    "tokens_per_s": "speed: text",
    "step_time_ms": "speed: every step, where a run stalls",
    "step_time_ms_p50": "speed: the step time of the run",
    "mfu_pct": "efficiency: share of the device's peak",
    "comm_exposed_pct": "efficiency: communication that nothing hides",
    "wire_bytes_per_step": "efficiency: what the strategy sends, also known on a CPU",
    "peak_memory_gib": "memory: does it fit the device",
    "state_memory_gib": "memory: what the strategy shards, also known on a CPU",
    "peak_host_memory_gib": "memory: does it fit the host, with offloading",
    "train_time_s": "cost: seconds of training",
    "time_to_target_s": "cost: seconds to the target quality",
    "train_energy_wh": "cost: energy of all GPUs",
}
"""Metrics without a prefix, with the question that each answers."""
DETAIL = "detail/"
NOT_POINTS = ("t", "step", "attempt")
"""Numbers of a line of metrics.jsonl that are not metrics."""
OF_A_RANK = re.compile(r"rank(\d+)_(.+)")

NOTE = "mlflow.note.content"
"""Tag that MLflow shows as the description of a run or an experiment."""
OWN = "\n\n[//]: # (written by stratlab)"
"""A comment of Markdown, which no page shows. A description without it is the user's."""
LONGEST_TAG = 5000
"""Characters that every MLflow server takes."""
SHOWN = {
    "step_time_ms_p50": "ms per step",
    "samples_per_s": "samples per s",
    "tokens_per_s": "tokens per s",
    "mfu_pct": "% MFU",
    "peak_memory_gib": "GiB peak device memory",
    "state_memory_gib": "GiB state",
    "test_accuracy_pct": "% test accuracy",
    "test_perplexity": "test perplexity",
}
LEAST_GIB = 0.1
"""Smaller sizes are shown in MiB."""


def name_metric(name: str, kind: str | None = None) -> str:
    """Return the name in MLflow and TensorBoard for a number of metrics.jsonl, or of an analysis.

    Args:
        kind: of the line; `rank3_host_memory_gib` of kind system becomes `detail/system/rank3/host_memory_gib`.
    """
    if name in HEADLINES:
        return name
    of_rank = OF_A_RANK.fullmatch(name) if kind == "system" else None
    return DETAIL + (f"system/rank{of_rank[1]}/{of_rank[2]}" if of_rank else name)


def find_stored_name(name: str, stored: Collection[str]) -> str:
    """Return `name`, or its name in older versions if a server has only that. Goes with version 0.2."""
    older = name.removeprefix(DETAIL)
    return older if name not in stored and older in stored else name


def may_describe(note: str | None) -> bool:
    """Return whether a description may be replaced: it is missing, or was not written by a user."""
    return not note or note.endswith(OWN)


def build_note(text: str) -> str:
    """Return the value of the tag; a text that is too long ends with an ellipsis."""
    most = LONGEST_TAG - len(OWN)
    return (text if len(text) <= most else f"{text[: most - 1]}…") + OWN


def describe_run(ended: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """Return the end of a run in Markdown: why it failed, or its results.

    Args:
        ended: the last event of attempts.jsonl.
        summary: summary.json; empty if it is missing.
    """
    if (code := ended.get("exit_code")) != 0:
        why = ": ".join(str(ended[each]) for each in ("reason", "text") if ended.get(each))
        return f"**exit code {'unknown' if code is None else code}**" + (f": {why}" if why else "")
    numbers = [
        _say_number(float(summary[name]), words)
        for name, words in SHOWN.items()
        if isinstance(summary.get(name), int | float)
    ]
    where = " (on a CPU: times are no GPU performance)" if summary.get("device_type") == "cpu" else ""
    return f"**finished**: {', '.join(numbers) or 'no results'}{where}"


def _say_number(value: float, words: str) -> str:
    """Return the number with four digits: the metrics have all of them."""
    if words.startswith("GiB") and value < LEAST_GIB:
        value, words = value * 1024, f"M{words[1:]}"
    return f"{float(f'{value:.4g}'):,.10g} {words}"
