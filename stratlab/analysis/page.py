"""report.html: what the analysis found, as one self-contained page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from markupsafe import Markup

from stratlab.analysis.rank import RankAnalysis
from stratlab.analysis.run_facts import RunFacts
from stratlab.analysis.timeline import build_shares
from stratlab.drawing import (
    Section,
    badge,
    build_page,
    heat_map,
    html_table,
    line_chart,
    stacked_bars,
    strips,
)

MOST_BARS = 48  # above, one bar per rank instead of one per step
PARTS = {  # of a step, by source: column -> name, in the order of the bars
    "gpu": {
        "compute_ms": "compute",
        "comm_exposed_ms": "communication, not hidden",
        "copy_exposed_ms": "copies, not hidden",
        "idle_ms": "idle",
    },
    "cpu": {
        "compute_ms": "operators",
        "comm_exposed_ms": "communication, not hidden",
        "idle_ms": "neither (Python, waiting)",
    },
}
LOSSES = {"loss": "train", "validation_loss": "validation"}
BADGES = {"ok": "good", "failed": "bad", "unsupported": "plain", "skipped": "bad", "noted": "warn"}


def build_html(report: dict[str, Any], facts: RunFacts, ranks: Sequence[RankAnalysis]) -> str:
    """The page as text. Charts of the run itself are there when its metrics and its evaluation are."""
    sections = [
        Section("Where each step went", _breakdown(report)),
        Section("Means", _means(report)),
        Section("Timeline", _timeline(ranks)),
        Section("Phases", _phases(report)),
        Section("Communication", _collectives(report)),
        *_training(facts),
        *_memory(ranks),
        Section("Quality of the traces", _quality(report)),
        Section("Holistic Trace Analysis", _hta(report)),
    ]
    run = report["run"]
    return build_page(f"Trace analysis of {run['run']}", build_origin(report), sections)


def build_origin(report: dict[str, Any]) -> str:
    """Where the numbers come from, in one line."""
    run, steps = report["run"], sorted({row["step"] for row in report["steps"]})
    parts = [
        f"Run {run['run']}, strategy {run['strategy']}",
        f"{_count(run['world_size'], 'process', 'es')} on {_count(run['nodes'], 'node')}",
        f"{report['device'] or 'unknown device'} ({run['device_type']})",
        f"backend {report['backend']}",
        f"torch {run['torch']}",
        f"steps {steps[0]} to {steps[-1]} of {run['steps']}",
        f"{_count(report['mean']['ranks'], 'trace')}; recording slows the steps down.",
    ]
    return (f"{report['note']}. " if report["note"] else "") + ", ".join(parts)


def _count(number: Any, noun: str, plural: str = "s") -> str:
    return f"{'unknown' if number is None else number} {noun}{'' if number == 1 else plural}"


def _note(sentence: str) -> Markup:
    return Markup('<p class="note">{}</p>').format(sentence)


def _breakdown(report: dict[str, Any]) -> Markup:
    source, rows = report["source"], report["steps"]
    names = PARTS[source]
    if len(rows) <= MOST_BARS:
        bars = {f"rank {r['rank']}, step {r['step']}": {n: r[c] for c, n in names.items()} for r in rows}
    else:
        bars = {
            f"rank {r['rank']}, mean": {
                n: r["step_ms"] * r[c.replace("_ms", "_pct")] / 100 for c, n in names.items()
            }
            for r in report["ranks"]
        }
    what = (
        "GPU time; a step ends when the GPU has done what was issued in it."
        if source == "gpu"
        else f"{report['note']}: operators on the host's threads, communication by {report['backend']}."
    )
    return stacked_bars(bars, "ms") + _note(what)


def _means(report: dict[str, Any]) -> Markup:
    whole = {"rank": "all", **{k: v for k, v in report["mean"].items() if k not in ("ranks", "steps")}}
    columns = ["rank", "step_ms", "compute_pct", "comm_pct", "comm_exposed_pct", "comm_overlap_pct"]
    columns += ["copy_exposed_pct", "idle_pct"] if report["source"] == "gpu" else ["idle_pct"]
    rows = [*report["ranks"], whole]
    note = "comm overlap: share of the communication that ran beside compute; other shares: of the step."
    return html_table([r | {"rank": str(r["rank"])} for r in rows], columns) + _note(
        f"Source {report['source']}. {note}"
    )


def _timeline(ranks: Sequence[RankAnalysis]) -> Markup:
    compute = "compute" if ranks[0].source == "gpu" else "operators"
    span_us = max(rank.activity.span_us for rank in ranks)
    tracks = {
        f"rank {rank.rank}": {
            compute: build_shares(rank.activity.compute, span_us),
            "communication": build_shares(rank.activity.communication, span_us),
        }
        for rank in ranks
    }
    note = (
        "Every rank counts from the start of its own first recorded step: clocks of ranks are not compared."
    )
    return strips(tracks, "ms", (0.0, span_us / 1000)) + _note(note)


def _phases(report: dict[str, Any]) -> Markup:
    columns = ["rank", "step", "step_ms", "data_ms", "forward_ms", "backward_ms", "optimizer_ms"]
    lacking = [
        f"rank {rank} has no label of {', '.join(missing)}"
        for rank, present in report["phases_present"].items()
        if (missing := [p for p in ("data", "forward", "backward", "optimizer") if p not in present])
    ]
    what = (
        "GPU time of what was issued inside each label; data: time of the label on the host."
        if report["source"] == "gpu"
        else "Time of each label on the host."
    )
    return html_table(report["steps"], columns) + _note(" ".join([what, *(f"{text}." for text in lacking)]))


def _collectives(report: dict[str, Any]) -> Markup:
    if not report["collectives"]:
        return _note("No communication was recorded.")
    columns = ["name", "rank", "count", "total_ms", "wait_ms", "arrived_last"]
    note = (
        f"Source {report['source']}. A collective ends on all ranks together: wait is the time above the shortest call "
        "of any rank, and the rank with the shortest call came last. '-': calls of ranks cannot be matched."
    )
    return html_table(report["collectives"], columns) + _note(note)


def _training(facts: RunFacts) -> Iterator[Section]:
    series = {
        name: [(row["step"], row.get(key)) for row in facts.metrics if key in row and "step" in row]
        for key, name in LOSSES.items()
    }
    if any(series.values()):
        yield Section("Loss", line_chart({k: v for k, v in series.items() if v}, "step", "loss"))
    test = facts.evaluation
    names, matrix = test.get("class_names"), test.get("confusion_matrix")
    if test:
        facts_row = {key: test.get(key) for key in ("split", "samples", "loss", "accuracy_pct")}
        drawn = html_table([facts_row], list(facts_row))
        if names and matrix:
            drawn += heat_map(
                matrix, list(map(str, names)), list(map(str, names)), "truth", "prediction", by_row=True
            )
        yield Section("Accuracy", drawn)


def _memory(ranks: Sequence[RankAnalysis]) -> Iterator[Section]:
    devices = sorted({point.device for rank in ranks for point in rank.memory})
    shown = [device for device in devices if device != "cpu"] or devices
    if shown:
        curves = {
            f"rank {rank.rank} {device}": [
                (p.t_ms, p.allocated_mib) for p in rank.memory if p.device == device
            ]
            for rank in ranks
            for device in shown
        }
        note = _note(
            "As torch's allocator counts while the steps are recorded, on the CPU from zero; not the peak of the run."
        )
        yield Section("Memory", line_chart(curves, "ms since the first event", "allocated MiB") + note)


def _quality(report: dict[str, Any]) -> Markup:
    if not report["quality"]:
        return _note("Every rank has a complete trace with all labels.")
    rows = [row | {"action": badge(row["action"], BADGES[row["action"]])} for row in report["quality"]]
    return html_table(rows, ["action", "rank", "file", "reason"])


def _hta(report: dict[str, Any]) -> Markup:
    rows = [
        row
        | {"status": badge(row["status"], BADGES[row["status"]]), "tables": ", ".join(row["tables"]) or None}
        for row in report["hta"]
    ]
    note = _note("Tables lie in tables/hta/. unsupported: the analysis does not apply to these traces.")
    return html_table(rows, ["analysis", "status", "reason", "seconds", "tables"]) + note
