"""Facts of the run directory other than its traces, and limits of the traces that a reader must know.

docs/run_directory.md lists the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stratlab import NothingThere
from stratlab.analysis.rank import RankAnalysis
from stratlab.run_directory.files import read_config, read_line, read_object
from stratlab.run_directory.outcome import is_alive
from stratlab.run_directory.record import build_summary
from stratlab.traces.discover import Manifest, TraceFinding
from stratlab_spec.step_time.step_forecast import STEP_FORECAST

OF_SETTINGS = ("strategy", "model", "dataset", "precision", "seed", "global_batch_size", "micro_batch_size")
OF_RESOLVED = (
    *("grad_accum_steps", "steps", "world_size", "nodes"),
    *("backend", "device_type", "device_name", "initial_weights"),
)
FROM_SUMMARY = (
    *("test_accuracy_pct", "step_time_ms_p50", "samples_per_s", "measured_steps"),
    *("transport_in_node", "transport_between_nodes", "gpudirect", "transport_fell_back"),
)
OF_TEXT = ("test_perplexity", "tokens_per_s", "useful_tokens_per_s", "useful_tokens_pct")
INTERLEAVED = "interleaved1f1b"
"""The schedule that gives each rank two stages (trainer/parallel/pipeline.py)."""
OF_LAYOUT = ("name", "dimensions", "missing", "sequence_parallel", "reason")


class NoRun(NothingThere):
    """The run directory is missing or empty: a run that was rejected before it began does not leave one."""


@dataclass(frozen=True)
class RunFacts:
    """`origin` goes into report.json, the rest is drawn. Empty if the run ended before."""

    folder: Path
    origin: dict[str, Any]
    axes: dict[str, int]
    findings: list[TraceFinding]
    summary: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    evaluation: dict[str, Any] = field(default_factory=dict)
    stages_per_rank: int = 1
    """Of a pipeline."""
    step_forecast: dict[str, Any] = field(default_factory=dict)
    """Of config.json."""

    @property
    def world_size(self) -> int | None:
        size = self.origin["world_size"]
        return size if isinstance(size, int) else None


def read_facts(folder: Path) -> RunFacts:
    """Read config.json, summary.json, evaluation.json and metrics.jsonl if they exist.

    Traces of another program do not have them.

    Raises:
        NoRun: `folder` is not a run directory.
    """
    if not folder.is_dir():
        raise NoRun(f"{folder}: no such folder [SL-run-folder-missing]")
    if not any(folder.iterdir()):
        raise NoRun(f"{folder}: holds neither a run nor traces, the folder is empty [SL-run-folder-empty]")
    is_told = (folder / "config.json").is_file()
    if not is_told and not (folder / "traces").is_dir():
        raise NoRun(
            f"{folder}: not a run directory, config.json and the folder traces are missing [SL-run-no-config]"
        )
    problems: list[str] = []
    config = read_config(folder, problems)
    summary = build_summary(read_object(folder / "summary.json", problems), folder)
    evaluation = read_object(folder / "evaluation.json", problems)
    findings = [
        TraceFinding("noted", text, file) for file, _, text in (line.partition(": ") for line in problems)
    ]
    if not is_told:
        why = "is missing: the run's settings are unknown [SL-config-missing]"
        findings.append(TraceFinding("noted", why, "config.json"))
    elif not config:
        raise NoRun(
            f"{folder}: not a run directory, its config.json is not a JSON object [SL-run-config-not-json]"
        )
    facts = _build_facts(folder, config, summary, findings)
    return replace(facts, metrics=_read_lines(folder / "metrics.jsonl"), evaluation=evaluation)


def build_foreign_facts(
    folder: Path, name: str, world_size: int | None, backend: str | None, findings: list[TraceFinding]
) -> RunFacts:
    """Return the facts of traces of other programs: only those in the traces themselves.

    Args:
        folder: for the analysis; need not exist.
        findings: earlier findings about them.
    """
    config = {"run": name, "resolved": {"world_size": world_size, "backend": backend}}
    facts = _build_facts(folder, config, {}, findings)
    facts.origin["finished"] = None
    return facts


def _build_facts(
    folder: Path, config: dict[str, Any], summary: dict[str, Any], findings: list[TraceFinding]
) -> RunFacts:
    asked, resolved, provenance = (_object(config, key) for key in ("config", "resolved", "provenance"))
    machines = provenance.get("nodes")
    origin = {
        "run": config.get("run", folder.name),
        "comparison": config.get("comparison"),
        **{key: asked.get(key) for key in OF_SETTINGS},
        **{key: resolved.get(key) for key in OF_RESOLVED},
        "machines": len(machines) if isinstance(machines, list) and machines else None,
        "axes": _object(resolved, "axes"),
        "torch": _object(provenance, "versions").get("torch"),
        "created": provenance.get("created"),
        "profile_steps": asked.get("profile_steps"),
        "finished": bool(summary),
        **{key: summary.get(key) for key in FROM_SUMMARY},
        **{key: summary[key] for key in OF_TEXT if key in summary},
    }
    if layout := _object(resolved, "layout"):
        origin["layout"] = {key: layout.get(key) for key in OF_LAYOUT} | {
            "degenerate": bool(layout.get("missing") or summary.get("degenerate"))
        }
    return RunFacts(
        folder=folder,
        origin=origin,
        axes={name: size for name, size in origin["axes"].items() if isinstance(size, int)},
        findings=findings,
        summary=summary,
        stages_per_rank=2 if asked.get("pp_schedule") == INTERLEAVED else 1,
        step_forecast=_object(resolved, STEP_FORECAST),
    )


def _object(parent: dict[str, Any], key: str) -> dict[str, Any]:
    child = parent.get(key)
    return child if isinstance(child, dict) else {}


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a .jsonl file in order. Other lines are left out: the last one may be half written.

    After a restart a step appears again; the later attempt counts.
    """
    if not path.is_file():
        return []
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, line in enumerate(path.read_bytes().split(b"\n")):
        if row := read_line(line):
            key = (row.get("kind"), row.get("step")) if row.get("kind") in ("train", "eval") else (number,)
            rows[key] = row
    return list(rows.values())


RUNNING = "the run has not ended"
MOST_NAMED = 8  # missing ranks with a line of their own


def keep_one_source(ranks: Sequence[RankAnalysis]) -> tuple[list[RankAnalysis], list[TraceFinding]]:
    """Keep GPU time and host time apart, and steps and whole recordings.

    With a GPU on any rank, ranks without one are left out, and with steps on any of these, ranks without.
    """
    on_one, findings = _keep(
        ranks,
        lambda rank: rank.source == "gpu",
        "lacks GPU events, unlike the traces of other ranks [SL-rank-no-gpu]",
    )
    reason = (
        "has neither '## Training Step i ##' nor 'ProfilerStep#i', unlike the traces of other ranks "
        "[SL-rank-no-steps]"
    )
    kept, more = _keep(on_one, lambda rank: rank.steps_from != "recording", reason)
    return kept, findings + more


def _keep(
    ranks: Sequence[RankAnalysis], is_better: Callable[[RankAnalysis], bool], reason: str
) -> tuple[list[RankAnalysis], list[TraceFinding]]:
    """Return the better ones if there are any, else all."""
    if not any(map(is_better, ranks)):
        return list(ranks), []
    left_out = [TraceFinding("skipped", reason, r.file.name, r.rank) for r in ranks if not is_better(r)]
    return [rank for rank in ranks if is_better(rank)], left_out


def find_gaps(
    ranks: Sequence[RankAnalysis], facts: RunFacts, manifest: Manifest | None, named: set[int | None]
) -> list[TraceFinding]:
    """Find missing ranks and steps, and a GPU without events. `named`: ranks that another finding explains."""
    findings = []

    def note(reason: str, file: str | None = None, rank: int | None = None) -> None:
        findings.append(TraceFinding("noted", reason, file, rank))

    missing = sorted(set(range(facts.world_size or 0)) - {rank.rank for rank in ranks} - named)
    if len(missing) <= MOST_NAMED:
        for rank in missing:
            note("has no trace, the means are over the other ranks [SL-rank-no-trace]", rank=rank)
    else:
        note(
            f"ranks {say_ranks(missing)} of {facts.world_size} have no trace, the means are over the others "
            "[SL-ranks-no-trace]"
        )
    if facts.origin["finished"] is False:  # None: unknown for foreign traces
        why = RUNNING if is_alive(facts.folder) else "the run did not finish"
        note(f"is missing: {why} [SL-summary-missing]", "summary.json")
    if ranks[0].source == "cpu" and (device := facts.origin["device_type"]) not in (None, "cpu"):
        note(f"the run used {device}, but its traces lack GPU events [SL-gpu-unseen]")
    steps = {rank.rank: [row.step for row in rank.rows] for rank in ranks}
    longest = max(steps.values(), key=len)
    for each in ranks:
        if (held := steps[each.rank]) != longest:
            why = f"holds the steps {_list(held)}, another rank {_list(longest)} [SL-steps-differ]"
            note(why, each.file.name, each.rank)
    if manifest and manifest.steps > len(longest):
        note(f"{len(longest)} of {manifest.steps} profiled steps are in the traces [SL-steps-lost]")
    return findings


def say_ranks(ranks: Sequence[int]) -> str:
    """Return `1-3, 7`; `ranks` ascend."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][-1] + 1:
            spans[-1][1:] = [rank]
        else:
            spans.append([rank])
    return ", ".join("-".join(map(str, span)) for span in spans)


def _list(steps: list[int]) -> str:
    return ", ".join(map(str, steps)) or "none"
