"""One run directory, read: what is there, what is missing, how the run ended.

docs/architecture.md has every field.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from stratlab.run_directory.files import (
    ATTEMPT,
    MARKS,
    METRIC,
    RANK,
    has_marks,
    is_alive,
    is_number,
    read_config,
    read_lines,
    read_object,
    read_world_size,
)
from stratlab.run_directory.foreign import FOREIGN, read_foreign
from stratlab.run_directory.places import SERVER

Status = Literal["finished", "failed", "stopped", "unfinished", "traces only", "not a run"]
STOPPED_FROM_OUTSIDE = 143
"""The trainer's exit code of a run that was suspended, drained or told to stop: it goes on where it was."""
TRACED: Status = "traces only"
"""Of another program: what a run was asked, and how it ended, is not known."""


@dataclass(frozen=True)
class RunRecord:
    """The files of one run as they are; an absent file is an empty value and is named in `missing`."""

    name: str
    folder: Path
    status: Status
    ending: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)
    analysis: dict[str, Any] = field(default_factory=dict)
    attempts: list[dict[str, Any]] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    ranks: list[dict[str, Any]] = field(default_factory=list)
    mlflow_run_id: str | None = None
    mlflow_experiment_id: str | None = None
    tracking_uri: str | None = None
    missing: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    place: dict[str, Any] = field(default_factory=dict)
    """Filled in by `compare.reading.surroundings.apply_place`, which sees the other runs."""
    tuning: str = ""
    """Filled in by `compare.reading.kept_tuning.apply_tuning`; "" = nothing is known of a tuning."""

    def __repr__(self) -> str:
        """Short: its files are long."""
        steps = max((line["step"] for line in self.metrics if line.get("kind") == "train"), default=0)
        return (
            f"RunRecord(name={self.name!r}, strategy={self.strategy!r}, status={self.status!r}, steps={steps}, "
            f"folder={str(self.folder)!r})"
        )

    @property
    def strategy(self) -> str | None:
        return self.summary.get("strategy") or self.config.get("config", {}).get("strategy")

    @property
    def is_text(self) -> bool:
        """Whether it trained a language model."""
        task = self.config.get("config", {}).get("task")
        return task == "text" or "tokenizer_sha256" in self.config.get("resolved", {})

    @property
    def missing_dimensions(self) -> list[str]:
        """The kinds of parallelism that the run's name promises and its layout lacks."""
        layout = self.config.get("resolved", {}).get("layout")
        found = layout.get("missing") if isinstance(layout, dict) else None
        return [str(kind) for kind in found or self.summary.get("missing_dimensions") or []]

    @property
    def degenerate(self) -> bool:
        """Whether it is another thing than its name says, so that it is compared with nothing."""
        return bool(self.missing_dimensions or self.summary.get("degenerate"))

    @property
    def is_compared(self) -> bool:
        """Whether it may be ranked, explained and judged with others."""
        return self.status in ("finished", TRACED) and not self.degenerate

    @property
    def is_foreign(self) -> bool:
        """Whether nothing is known of it but what its traces tell."""
        return self.status == TRACED

    def series(self, kind: str, value: str) -> dict[int, float]:
        """step -> value of the lines of one kind; a step that a later attempt repeated counts as repeated."""
        lines = (line for line in self.metrics if line.get("kind") == kind)
        found = {line["step"]: line[value] for line in lines if is_number(line.get(value))}
        return dict(sorted(found.items()))


def read_run(folder: Path, downloaded: bool = False) -> RunRecord:
    """Reads a run directory, however incomplete.

    Args:
        folder: the run directory.
        downloaded: it came from MLflow, where traces and logs are not kept: they are not expected then.
    """
    if not has_marks(folder):
        if (folder / FOREIGN).is_file():
            return _read_foreign_run(folder)
        return RunRecord(folder.name, folder, "not a run", f"has none of {', '.join(MARKS)}")
    problems: list[str] = []
    config = read_config(folder, problems)
    files = {"config": config} | {
        name: read_object(folder / file, problems)
        for name, file in (
            ("summary", "summary.json"),
            ("evaluation", "evaluation.json"),
            ("analysis", "analysis/report.json"),
        )
    }
    attempts = read_lines(folder / "attempts.jsonl", problems, ATTEMPT)
    server = read_object(folder / "mlflow.json", problems, SERVER)
    status, ending = read_status(attempts, bool(files["summary"]))
    if files["config"].get("config", {}).get("mode") == "evaluate":
        return RunRecord(
            folder.name, folder, "not a run", "it only judged weights (run.config.mode=evaluate)"
        )
    world_size = read_world_size(config.get("resolved", {}), attempts)
    ranks = [read_object(folder / f"ranks/rank{i}.json", problems, RANK) for i in range(world_size)]
    return RunRecord(
        name=folder.name,
        folder=folder,
        status=status,
        ending=ending,
        config=config,
        summary=files["summary"],
        evaluation=files["evaluation"],
        analysis=files["analysis"],
        attempts=attempts,
        metrics=read_lines(folder / "metrics.jsonl", problems, METRIC),
        ranks=[rank for rank in ranks if rank],
        mlflow_run_id=server.get("run_id"),
        mlflow_experiment_id=server.get("experiment_id"),
        tracking_uri=server.get("tracking_uri"),
        missing=[name for name in _expected(files, world_size, downloaded) if not (folder / name).is_file()],
        problems=problems,
    )


def _read_foreign_run(folder: Path) -> RunRecord:
    problems: list[str] = []
    told = read_foreign(folder, problems)
    analysis = read_object(folder / "analysis" / "report.json", problems)
    if not analysis.get("source"):
        return RunRecord(
            folder.name, folder, "not a run", "holds traces of another program without their analysis"
        )
    facts = {
        "world_size": told.get("world_size"),
        "backend": analysis.get("backend"),
        "device_name": analysis.get("device"),
        "device_type": "cpu" if analysis["source"] == "cpu" else "gpu",
    }
    return RunRecord(
        name=folder.name,
        folder=folder,
        status=TRACED,
        ending=f"traces of another program, from {told.get('source', 'an unknown place')}",
        config={"comparison": folder.resolve().parent.name, "resolved": facts},
        summary=facts,
        analysis=analysis,
        problems=problems,
    )


def _expected(files: dict[str, dict[str, Any]], world_size: int, downloaded: bool) -> list[str]:
    """Files of a finished run. Those of MLflow are left out: a run without a server has none."""
    names = [*MARKS, "evaluation.json", *(f"ranks/rank{i}.json" for i in range(world_size))]
    profiled = files["config"].get("config", {}).get("profile_steps", 1) != 0
    if not downloaded:
        names += [f"ranks/rank{i}.log" for i in range(world_size)]
    if profiled and not downloaded:
        names += [f"traces/rank{i}_trace.json" for i in range(world_size)]
    return [*names, "traces/manifest.json", "analysis/report.json"] if profiled else names


def read_status(attempts: list[dict[str, Any]], has_summary: bool) -> tuple[Status, str]:
    """How the run stands, and the sentence that says how it ended."""
    last = attempts[-1] if attempts else {}
    if last.get("event") == "ended":
        ending = f"{last.get('reason', 'no reason given')} (exit code {last.get('exit_code')})"
        ending += f": {last['text']}" if isinstance(last.get("text"), str) else ""
        if last.get("exit_code") == STOPPED_FROM_OUTSIDE:
            return "stopped", ending
        if last.get("exit_code") != 0:
            return "failed", ending
        return (
            ("finished", ending) if has_summary else ("unfinished", f"{ending}, but there is no summary.json")
        )
    if last.get("event") == "started":
        return "unfinished", f"attempt {last.get('attempt')} has started and not ended"
    return ("finished", "no record of attempts") if has_summary else ("unfinished", "no record of attempts")


AT_WORK = "at work"


def read_standing(
    folder: Path, mode: object, attempts: list[dict[str, Any]], has_summary: bool
) -> tuple[str, str]:
    """As `read_status`, and AT_WORK where it has written something just now.

    Args:
        mode: as asked; an evaluation writes no summary, and is finished where it has ended well.
    """
    status, ending = read_status(attempts, has_summary)
    if mode == "evaluate" and attempts and attempts[-1].get("exit_code") == 0:
        return "finished", ending
    return (AT_WORK if status == "unfinished" and is_alive(folder) else status), ending
