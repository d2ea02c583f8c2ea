"""What the run directory says about the run beside its traces. Fields: docs/architecture.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stratlab.run_directory.files import read_config, read_line, read_object
from stratlab.traces.discover import Finding
from stratlab.user_error import NothingThere

FROM_SUMMARY = ("test_accuracy_pct", "step_time_ms_p50", "samples_per_s", "measured_steps")
OF_TEXT = ("test_perplexity", "tokens_per_s", "useful_tokens_per_s", "useful_tokens_pct")
OF_LAYOUT = ("name", "dimensions", "missing", "sequence_parallel", "reason")


class NoRun(NothingThere):
    """There is no run directory, or it holds nothing yet: a run that was refused before it began leaves none."""


@dataclass(frozen=True)
class RunFacts:
    """`origin` goes into report.json, the rest is drawn. Empty where the run had not got so far."""

    folder: Path
    origin: dict[str, Any]
    axes: dict[str, int]
    created: str
    metrics: list[dict[str, Any]]
    evaluation: dict[str, Any]
    findings: list[Finding]
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def world_size(self) -> int | None:
        size = self.origin["world_size"]
        return size if isinstance(size, int) else None


def read_facts(folder: Path) -> RunFacts:
    """Reads, where they exist, config.json, summary.json, evaluation.json and metrics.jsonl. Traces of another program
    have none of them.

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
            f"{folder}: not a run directory, it holds no config.json and no folder traces [SL-run-no-config]"
        )
    findings: list[Finding] = []
    problems: list[str] = []
    config = read_config(folder, problems)
    summary = read_object(folder / "summary.json", problems)
    evaluation = read_object(folder / "evaluation.json", problems)
    findings += [
        Finding("noted", text, file) for file, _, text in (said.partition(": ") for said in problems)
    ]
    if not is_told:
        findings.append(
            Finding(
                "noted", "is missing: what the run was asked is not known [SL-config-missing]", "config.json"
            )
        )
    elif not config:
        raise NoRun(
            f"{folder}: not a run directory, its config.json is no JSON object [SL-run-config-not-json]"
        )
    return _build_facts(
        folder, config, summary, findings, _read_lines(folder / "metrics.jsonl"), evaluation=evaluation
    )


def build_foreign_facts(
    folder: Path, name: str, world_size: int | None, backend: str | None, findings: list[Finding]
) -> RunFacts:
    """Of traces that this lab did not make: what they tell themselves, and no more.

    Args:
        folder: where the analysis goes; need not exist.
        findings: what is to be said of them already.
    """
    config = {"run": name, "resolved": {"world_size": world_size, "backend": backend}}
    facts = _build_facts(folder, config, {}, findings, [], evaluation={})
    facts.origin["finished"] = None
    return facts


def _build_facts(
    folder: Path,
    config: dict[str, Any],
    summary: dict[str, Any],
    findings: list[Finding],
    metrics: list[dict[str, Any]],
    *,
    evaluation: dict[str, Any],
) -> RunFacts:
    asked, resolved, provenance = (_object(config, key) for key in ("config", "resolved", "provenance"))
    versions, machines = _object(provenance, "versions"), provenance.get("nodes")
    origin = {
        "run": config.get("run", folder.name),
        "comparison": config.get("comparison"),
        **{key: asked.get(key) for key in ("strategy", "model", "dataset", "precision", "seed")},
        **{key: asked.get(key) for key in ("global_batch_size", "micro_batch_size")},
        **{key: resolved.get(key) for key in ("grad_accum_steps", "steps", "world_size", "nodes")},
        **{key: resolved.get(key) for key in ("backend", "device_type", "device_name", "initial_weights")},
        "machines": len(machines) if isinstance(machines, list) and machines else None,
        "axes": _object(resolved, "axes"),
        "torch": versions.get("torch"),
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
        created=str(provenance.get("created") or ""),
        metrics=metrics,
        evaluation=evaluation,
        findings=findings,
        summary=summary,
    )


def _object(parent: dict[str, Any], key: str) -> dict[str, Any]:
    child = parent.get(key)
    return child if isinstance(child, dict) else {}


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a .jsonl file in order. A line that is no object is left out: the last one may be half
    written. After a restart a step appears again; the later attempt counts.
    """
    if not path.is_file():
        return []
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, line in enumerate(path.read_bytes().split(b"\n")):
        if row := read_line(line):
            key = (row.get("kind"), row.get("step")) if row.get("kind") in ("train", "eval") else (number,)
            rows[key] = row
    return list(rows.values())
