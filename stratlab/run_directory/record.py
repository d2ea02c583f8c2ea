"""Read one run directory: its files, missing ones, the run's end, and its step times.

docs/formats.md has every field. The step times are those of summary.json, or for an older run by the same rule: older
trainers wrote means over other steps into summary.json; their metrics.jsonl has the steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stratlab.run_directory.files import (
    FOREIGN,
    MARKS,
    METRIC,
    RANK,
    SERVER,
    has_marks,
    is_number,
    read_config,
    read_foreign,
    read_lines,
    read_object,
    read_world_size,
)
from stratlab.run_directory.outcome import TRACED, Status, is_comparable, read_attempts, read_status
from stratlab_spec.schedule import TimedSteps, build_step_numbers, find_timed_steps, read_step


@dataclass(frozen=True)
class RunRecord:
    """The files of one run, unchanged; an absent file is an empty value and is named in `missing`."""

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

    def __repr__(self) -> str:
        """Return a short text: its files are long."""
        steps = max((line["step"] for line in self.metrics if line.get("kind") == "train"), default=0)
        return (
            f"RunRecord(name={self.name!r}, strategy={self.strategy!r}, status={self.status!r}, steps={steps}, "
            f"folder={str(self.folder)!r})"
        )

    @property
    def settings(self) -> dict[str, Any]:
        """Return the requested settings."""
        return self.config.get("config") or {}

    @property
    def resolved(self) -> dict[str, Any]:
        """Return the resolved settings."""
        return self.config.get("resolved") or {}

    @property
    def axes(self) -> dict[str, Any]:
        return self.resolved.get("axes") or {}

    @property
    def versions(self) -> dict[str, Any]:
        """Of Python and the libraries."""
        return (self.config.get("provenance") or {}).get("versions") or {}

    @property
    def strategy(self) -> str | None:
        return self.summary.get("strategy") or self.settings.get("strategy")

    @property
    def is_text(self) -> bool:
        """Whether it trained a language model."""
        return self.settings.get("task") == "text" or "tokenizer_sha256" in self.resolved

    @property
    def starts(self) -> int:
        """How many attempts have begun."""
        return sum(line["event"] == "started" for line in self.attempts)

    @property
    def missing_dimensions(self) -> list[str]:
        """The kinds of parallelism that the run's name promises and its layout lacks."""
        layout = self.resolved.get("layout")
        lacking = layout.get("missing") if isinstance(layout, dict) else None
        return [str(kind) for kind in lacking or self.summary.get("missing_dimensions") or []]

    @property
    def degenerate(self) -> bool:
        """Return whether the run differs from its name's promise, so that it is not compared."""
        return bool(self.missing_dimensions or self.summary.get("degenerate"))

    @property
    def is_compared(self) -> bool:
        """As `is_comparable`."""
        return is_comparable(self.status, self.degenerate)

    @property
    def is_foreign(self) -> bool:
        """Return whether its traces are the only source about it."""
        return self.status == TRACED

    def series(self, kind: str, value: str) -> dict[int, float]:
        """Return step -> value of the lines of one kind; a repeated step has the later attempt's value."""
        lines = [line for line in self.metrics if line["kind"] == kind and is_number(line.get(value))]
        return dict(sorted({line["step"]: line[value] for line in lines}.items()))


def read_run(folder: Path, downloaded: bool = False) -> RunRecord:
    """Read a run directory, however incomplete.

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
    settings = config.get("config", {})
    if settings.get("mode") == "evaluate":
        why = "it only judged weights (run.config.mode=evaluate)"
        return RunRecord(folder.name, folder, "not a run", why)
    summary, evaluation, analysis = (
        read_object(folder / file, problems)
        for file in ("summary.json", "evaluation.json", "analysis/report.json")
    )
    attempts = read_attempts(folder, problems)
    server = read_object(folder / "mlflow.json", problems, SERVER)
    status, ending = read_status(attempts, bool(summary))
    world_size = read_world_size(config.get("resolved", {}), attempts)
    ranks = [read_object(folder / f"ranks/rank{i}.json", problems, RANK) for i in range(world_size)]
    expected = _list_expected(settings.get("profile_steps", 1) != 0, world_size, downloaded)
    return RunRecord(
        name=folder.name,
        folder=folder,
        status=status,
        ending=ending,
        config=config,
        summary=summary,
        evaluation=evaluation,
        analysis=analysis,
        attempts=attempts,
        metrics=read_lines(folder / "metrics.jsonl", problems, METRIC),
        ranks=[rank for rank in ranks if rank],
        mlflow_run_id=server.get("run_id"),
        mlflow_experiment_id=server.get("experiment_id"),
        tracking_uri=server.get("tracking_uri"),
        missing=[name for name in expected if not (folder / name).is_file()],
        problems=problems,
    )


def _read_foreign_run(folder: Path) -> RunRecord:
    problems: list[str] = []
    about = read_foreign(folder, problems)
    analysis = read_object(folder / "analysis" / "report.json", problems)
    if not analysis.get("source"):
        why = "holds traces of another program without their analysis"
        return RunRecord(folder.name, folder, "not a run", why)
    facts = {
        "world_size": about.get("world_size"),
        "backend": analysis.get("backend"),
        "device_name": analysis.get("device"),
        "device_type": "cpu" if analysis["source"] == "cpu" else "gpu",
    }
    return RunRecord(
        name=folder.name,
        folder=folder,
        status=TRACED,
        ending=f"traces of another program, from {about.get('source', 'an unknown place')}",
        config={"comparison": folder.resolve().parent.name, "resolved": facts},
        summary=facts,
        analysis=analysis,
        problems=problems,
    )


def _list_expected(profiled: bool, world_size: int, downloaded: bool) -> list[str]:
    """Return the files of a finished run, except MLflow's: a run without a server does not have them."""
    ranks = range(world_size)
    names = [*MARKS, "evaluation.json", *(f"ranks/rank{i}.json" for i in ranks)]
    if not downloaded:
        names += [f"ranks/rank{i}.log" for i in ranks]
        names += [f"traces/rank{i}_trace.json" for i in ranks if profiled]
    return [*names, "traces/manifest.json", "analysis/report.json"] if profiled else names


NAMES = tuple(build_step_numbers(TimedSteps(()), {}))
BY_RULE = "warmup"
"""In a summary.json whose step times follow the rule."""


def build_numbers(summary: Mapping[str, Any], lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the names of NAMES, and step_times_from: metrics.jsonl | summary.json | None.

    Args:
        lines: of metrics.jsonl; read only where summary.json does not follow the rule.
    """
    if BY_RULE not in summary and (steps := [*filter(None, map(read_step, lines))]):
        timed = find_timed_steps(steps, summary.get("device_type") != "cpu")
        source = "metrics.jsonl" if timed.steps else None
        return {**build_step_numbers(timed, summary), "step_times_from": source}
    told = {name: summary.get(name) for name in NAMES}
    return {**told, "step_times_from": None if told["step_time_ms_p50"] is None else "summary.json"}


def build_summary(summary: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return `summary`, with the step times of an older run by the rule; empty stays empty."""
    if not summary or BY_RULE in summary:
        return dict(summary)
    numbers = build_numbers(summary, read_lines(folder / "metrics.jsonl", [], METRIC))
    del numbers["step_times_from"]
    return {
        **summary,
        **{name: value for name, value in numbers.items() if name in summary or value is not None},
    }
