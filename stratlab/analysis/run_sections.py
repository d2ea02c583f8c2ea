"""Sections of the page about the run itself and its files, and the line of links at the head of the page.

Layout, memory, GPUs, losses, the merged trace, the traces' quality, HTA and its tables.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from stratlab.analysis.rank import RankAnalysis
from stratlab.analysis.run_facts import RunFacts
from stratlab.analysis.summaries import group_rows
from stratlab.analysis.time_sections import MOST_ROWS, as_text, build_table, cut_note, shorten
from stratlab.drawing import (
    Column,
    Section,
    badge,
    details,
    heat_map,
    html_table,
    line_chart,
    link,
    link_file,
    link_ranks,
    note,
    paragraph,
    subtitle,
    way_back,
)
from stratlab.run_directory.files import (
    SERVER,
    find_comparison_page,
    find_page,
    find_rank_logs,
    find_rank_traces,
    read_object,
)
from stratlab.tracking import find_run_page
from stratlab.wording import capitalize, format_count, format_fact, format_number, format_range

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")  # outermost first
OF_TEST = ("split", "samples", "labels", "loss", "accuracy_pct", "top5_accuracy_pct", "perplexity")
MOST_RANKS = 8  # in one chart: the colours of the palette
GPU_CURVES = (
    ("gpu_utilisation_pct", "Utilisation", "time in which a kernel ran (%)"),
    ("gpu_power_w", "Power", "W"),
    ("gpu_temperature_c", "Temperature", "°C"),
    ("gpu_clock_mhz", "Clock", "MHz"),
)
OF_ORIGIN = (
    *("run", "comparison", "strategy", "model", "dataset", "precision", "seed", "global_batch_size"),
    *("micro_batch_size", "grad_accum_steps", "steps", "profile_steps", "measured_steps", "initial_weights"),
    *("device_type", "transport_in_node", "transport_between_nodes", "gpudirect", "transport_fell_back"),
    *("torch", "created", "finished"),
)
LOSSES = {"loss": "train", "validation_loss": "validation"}


def build_layout(report: dict[str, Any]) -> Iterator[Section]:
    """Build the parallel degrees, their reason, and the name's promise with missing dimensions."""
    run = report["run"]
    layout = run.get("layout")
    if not layout:
        return
    html = paragraph(Markup("<strong>{}</strong>").format(layout["name"] or "unknown"))
    if layout["degenerate"]:
        lacks = ", ".join(layout["missing"] or []) or "a kind of"
        why = f"lacks {lacks} parallelism, which its {layout['dimensions']} dimensions promise: compared with no run."
        html = badge("degenerate", "bad") + " " + html + paragraph(why)
    degrees = {axis: run["axes"].get(axis) for axis in AXES}
    split = Column("sequence_parallel", "sequence parallel on tp")
    html += build_table([{**layout, **degrees}], ["dimensions", *AXES, split])
    html += note(f"{layout['reason']}.") if layout["reason"] else Markup("")
    yield Section("Layout", html, folded=True, result=layout["name"] or "unknown")


def build_memory(
    report: dict[str, Any], ranks: Sequence[RankAnalysis], chosen: Sequence[int]
) -> Iterator[Section]:
    """Yield the allocator's curve of the chosen ranks; nothing without recorded allocations."""
    drawn = [rank for rank in ranks if rank.rank in set(chosen)]
    devices = sorted({point.device for rank in drawn for point in rank.memory})
    shown = [device for device in devices if device != "cpu"] or devices
    if not shown:
        return
    curves = {
        f"rank {rank.rank} {device}": [(p.t_ms, p.allocated_mib) for p in rank.memory if p.device == device]
        for rank in drawn
        for device in shown
    }
    numbers = ["peak_allocated_gib", "peak_reserved_gib", "allocations_per_step"]
    html = line_chart(curves, "ms since the first event", "allocated MiB")
    html += build_table([report["mean"]], numbers)
    html += note("As torch's allocator counts in the recorded steps, on a CPU from zero; not the run's peak.")
    most = max(mib for curve in curves.values() for _, mib in curve)
    told = f"{format_number(most)} MiB allocated at most"
    yield Section("Memory", html, folded=True, result=told)


def build_gpus(facts: RunFacts) -> Iterator[Section]:
    """Utilisation, temperature, power and clock of each rank's GPU over the whole run; nothing on a CPU."""
    html, told = Markup(""), ""
    for name, title, unit in GPU_CURVES:
        pattern = re.compile(rf"rank(\d+)_{name}")
        curves: dict[int, list[tuple[int, float]]] = {}
        for row in facts.metrics:
            for key, value in row.items() if row.get("kind") == "system" else ():
                if found := pattern.fullmatch(key):
                    curves.setdefault(int(found[1]), []).append((row["step"], value))
        if curves:
            told = (
                told
                or f"{title.lower()} {format_range((v for each in curves.values() for _, v in each), '%', 0)}"
            )
            chosen = sorted(curves)[:MOST_RANKS]
            left_out = f"Ranks 0 to {MOST_RANKS - 1} of {len(curves)}." if len(curves) > MOST_RANKS else ""
            html += subtitle(title) + line_chart({f"rank {r}": curves[r] for r in chosen}, "step", unit)
            html += note(left_out) if left_out else ""
    if html:
        html += note("Means between two writes of the metrics, as NVML says.")
        yield Section("GPUs over the run", html, folded=True, result=told if told.endswith("%") else "")


def build_training(facts: RunFacts) -> Iterator[Section]:
    """Yield losses and the test of the run so far."""
    series = {
        name: [(row["step"], row.get(key)) for row in facts.metrics if key in row and "step" in row]
        for key, name in LOSSES.items()
    }
    if any(series.values()):
        drawn = line_chart({k: v for k, v in series.items() if v}, "step", "loss")
        known = {k: [v for _, v in each if isinstance(v, (int, float))] for k, each in series.items()}
        ends = [f"{name} {format_number(values[-1])}" for name, values in known.items() if values]
        yield Section("Loss", drawn, folded=True, result=f"{', '.join(ends)} at the end" if ends else "")
    test = facts.evaluation
    names, matrix = test.get("class_names"), test.get("confusion_matrix")
    if test:
        facts_row = {key: test[key] for key in OF_TEST if key in test}
        drawn = html_table([facts_row], list(facts_row))
        if names and matrix:
            drawn += heat_map(
                matrix, list(map(str, names)), list(map(str, names)), "truth", "prediction", by_row=True
            )
        told = format_range([test.get("accuracy_pct")], "%", 2) or f"loss {format_number(test.get('loss'))}"
        told += f" ({test['split']})" if test.get("split") else ""
        yield Section("Accuracy" if "accuracy_pct" in test else "Test", drawn, folded=True, result=told)


BADGES = {"ok": "good", "failed": "bad", "unsupported": "plain", "skipped": "bad", "noted": "warn"}
HTA_ROWS, HTA_TABLES, HTA_LETTERS, HTA_COLUMNS = 30, 24, 100, 24  # shown of HTA's tables; the files have all
QUALITY, HTA = "Quality of the traces", "Holistic Trace Analysis"
MOST_OFFSETS = 32
MOST_RECORDINGS = 16  # files of a kind; they are in one folder


def build_merged(report: dict[str, Any]) -> Section:
    """Build the merged trace's content, how to open it, and the ranks whose clocks were moved."""
    title = "One trace of all ranks"
    merged, clocks = report.get("merged") or {}, report.get("clocks") or {}
    if merged.get("file"):
        size = merged.get("bytes")
        html = paragraph(
            Markup(
                '<a class="file" href="{0}">{0}</a>: {1} events of {2} ranks ({3} MiB), for Perfetto '
                "(ui.perfetto.dev, 'Open trace file'; it stays in your browser)."
            ).format(
                merged["file"],
                format_number(merged.get("events")),
                format_number(len(merged.get("ranks") or [])),
                format_number(None if size is None else size / 2**20),
            )
        )
        html += note(f"Not whole: {merged['reason']}.") if merged.get("reason") else Markup("")
    else:
        why = f"there is none: {merged.get('reason') or 'it was not written'}"
        if not clocks.get("offsets_ms"):
            return Section(title, nothing=why)
        html = note(f"{capitalize(why)}.")
    offsets = clocks.get("offsets_ms") or {}
    if offsets:
        moved = "Clocks of ranks were aligned" if clocks.get("aligned") else "No clock was moved"
        reason = f": {clocks['reason']}" if clocks.get("reason") else ""
        html += note(
            f"{moved}{reason}. {format_number(clocks.get('matched'))} matched collectives, residual "
            f"{format_number(clocks.get('residual_ms'))} ms."
        )
        rows = [{"rank": rank, "ahead_ms": ms} for rank, ms in offsets.items()]
        left = note(f"{MOST_OFFSETS} of {len(rows)} are shown.") if len(rows) > MOST_OFFSETS else ""
        table = html_table(rows[:MOST_OFFSETS], ["rank", "ahead_ms"]) + left
        html += details("Clocks against the first rank's", table)
    told = f"{len(merged.get('ranks') or [])} ranks" if merged.get("file") else "none"
    return Section(title, html, folded=True, result=told)


def build_recordings(report: dict[str, Any]) -> Iterator[Section]:
    """Build links to the recordings other than the traces; no section without any."""
    rows = []
    for row in report.get("recordings") or []:
        shown = [
            Markup('<a class="file" href="../{}">{}</a> ({:.1f} MiB)').format(quote(path), path, size / 2**20)
            for path, size in itertools.islice(row["files"].items(), MOST_RECORDINGS)
        ]
        left = len(row["files"]) - len(shown)
        rows.append(row | {"files": Markup("<br>").join([*shown, *([f"and {left} more"] if left else [])])})
    if rows:
        table = html_table(rows, ["recording", "what", "files"])
        table += note("Links hold where this page lies in its run directory.")
        told = ", ".join(row["recording"] for row in rows)
        yield Section("Recorded beside the traces", table, folded=True, result=told)


def build_quality(report: dict[str, Any]) -> Section:
    """Build the limits of the traces that a reader must know."""
    if not report["quality"]:
        return Section(QUALITY, nothing="every rank has a complete trace with all labels")
    rows = [
        row | {"action": badge(row["action"], BADGES[row["action"]])}
        for row in as_text(sorted(report["quality"], key=lambda row: row["action"] != "skipped"), "rank")
    ]
    table = html_table(rows[:MOST_ROWS], ["action", "rank", "file", "reason"])
    told = format_count(len(rows), "problem")
    return Section(QUALITY, table + cut_note(rows, "quality"), folded=True, result=told)


def build_hta(report: dict[str, Any], folder: Path | None) -> Section:
    """Build the status of HTA's analyses that apply, and the first rows of their tables, folded."""
    told, why = report["hta"], (report.get("hta_ranks") or {}).get("reason")
    applied = [row for row in told if row["status"] != "unsupported"]
    reasons = group_rows((row for row in told if row not in applied), lambda row: row["reason"])
    if not any(row["status"] == "failed" or row["tables"] for row in applied):
        unsupported = [f"does not apply, {reason}" for reason in reasons]
        return Section(HTA, nothing="; ".join(filter(None, [why, *unsupported])) or "it was not run")
    rows = [row | {"status": badge(row["status"], BADGES[row["status"]])} for row in applied]
    html = build_table(rows, ["analysis", "status", "reason", "seconds"])
    for reason, rows in reasons.items():
        html += note(f"Not of these traces: {', '.join(row['analysis'] for row in rows)} ({reason}).")
    html += note(f"{f'{why}. ' if why else ''}All of its tables: tables/hta/.")
    tables = [name for row in applied for name in row["tables"]]
    found = [path for name in tables if folder and (path := folder / "tables" / "hta" / name).is_file()]
    html += Markup("").join(details(path.stem, _read_table(path)) for path in found[:HTA_TABLES])
    told = f"{sum(row['status'] == 'ok' for row in applied)} of {len(told)} analyses ran"
    return Section(HTA, html, folded=True, result=told)


def _read_table(path: Path) -> Markup:
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        header = next(reader, [])[:HTA_COLUMNS]
        lines = list(itertools.islice(reader, HTA_ROWS + 1))
    keys = [f"{name} ({i})" if name in header[:i] else name or "row" for i, name in enumerate(header)]
    rows = [dict(zip(keys, map(_read_cell, line), strict=False)) for line in lines[:HTA_ROWS]]
    more = note(f"The first {HTA_ROWS} rows; {path.name} has all.") if len(lines) > HTA_ROWS else Markup("")
    return html_table(rows, keys) + more


def _read_cell(text: str) -> Any:
    try:
        return float(text) if not text.lstrip("-").isdigit() else int(text)
    except ValueError:
        return shorten(text, HTA_LETTERS) or None


def build_origin_section(report: Mapping[str, Any]) -> Section:
    """Build the known versions, identities and settings of the run."""
    run, mean = report["run"], report["mean"]
    known = {
        **{name: run.get(name) for name in OF_ORIGIN},
        "backend": report["backend"],
        "source of the times": report["source"],
        "steps told by": report.get("steps_from"),
        "traces": mean["ranks"],
    }
    rows = [{"fact": n.replace("_", " "), "value": format_fact(v)} for n, v in known.items() if v is not None]
    told = ", ".join(str(known[name]) for name in ("strategy", "model") if known[name])
    return Section("Origin of the numbers", html_table(rows, ["fact", "value"]), folded=True, result=told)


def build_links(report: Mapping[str, Any], facts: RunFacts) -> Markup:
    """Build links to existing files, and to those written with the page."""
    run_dir = facts.folder
    page_folder = find_page(run_dir).parent
    merged = (report.get("merged") or {}).get("file")
    traces = [link_file("all ranks", page_folder / merged, page_folder)] if merged else []
    traces += link_ranks(find_rank_traces(run_dir), page_folder)
    found = {"Traces": traces, "Logs": link_ranks(find_rank_logs(run_dir), page_folder)}
    lines = [
        Markup("{}: {}").format(name, Markup(", ").join(links)) for name, links in found.items() if links
    ]
    server = read_object(run_dir / "mlflow.json", [], SERVER)
    if address := find_run_page(*(server.get(key) for key in ("tracking_uri", "experiment_id", "run_id"))):
        lines.append(link("This run in MLflow", address))
    line = Markup('<p class="links">{}</p>').format(Markup(" · ").join(lines)) if lines else Markup("")
    return way_back(find_comparison_page(run_dir), page_folder) + line
