"""Sections of the page about files: the merged trace, the quality of the traces, HTA and its tables."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from stratlab.analysis.pages.time_sections import MOST_ROWS, cut_note
from stratlab.drawing import Section, badge, details, html_table, note, paragraph, subtitle
from stratlab.number import format_number

BADGES = {"ok": "good", "failed": "bad", "unsupported": "plain", "skipped": "bad", "noted": "warn"}
HTA_ROWS, HTA_TABLES, HTA_LETTERS, HTA_COLUMNS = 30, 24, 100, 24  # shown of HTA's tables; the files have all
QUALITY, HTA = "Quality of the traces", "Holistic Trace Analysis"
MOST_OFFSETS = 32
MOST_RECORDINGS = 16  # files of a kind; they lie in one folder


def build_merged(report: dict[str, Any]) -> Section:
    """What the merged trace holds, how to open it, and whose clocks were moved."""
    title = "One trace of all ranks"
    merged, clocks = report.get("merged") or {}, report.get("clocks") or {}
    if merged.get("file"):
        size = merged.get("bytes")
        html = paragraph(
            Markup(
                '<a class="file" href="{0}">{0}</a> beside this page holds {1} events of {2} ranks ({3} MiB). '
                "Open it in Perfetto (ui.perfetto.dev, 'Open trace file'; it stays in your browser): one process per "
                "rank and device, with the labels of steps and phases."
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
        html = note(f"{why[:1].upper()}{why[1:]}.")
    offsets = clocks.get("offsets_ms") or {}
    if offsets:
        moved = "Clocks of ranks were aligned" if clocks.get("aligned") else "No clock was moved"
        reason = f": {clocks['reason']}" if clocks.get("reason") else ""
        html += note(
            f"{moved}{reason}. {format_number(clocks.get('matched'))} matched collectives, residual "
            f"{format_number(clocks.get('residual_ms'))} ms."
        )
        rows = [{"rank": rank, "ahead_ms": ms} for rank, ms in offsets.items()]
        table = html_table(rows[:MOST_OFFSETS], ["rank", "ahead_ms"]) + cut_count(len(rows), MOST_OFFSETS)
        html += details("Clocks against the first rank's", table)
    return Section(title, html)


def build_recordings(report: dict[str, Any]) -> list[Section]:
    """Links to what was recorded beside the traces; no section where there is nothing."""
    rows = []
    for row in report.get("recordings") or []:
        files = list(row["files"].items())
        links = [
            Markup('<a class="file" href="../{}">{}</a> ({} MiB)').format(
                quote(path), path, f"{size / 2**20:.1f}"
            )
            for path, size in files[:MOST_RECORDINGS]
        ]
        more = [f"and {len(files) - MOST_RECORDINGS} more"] if len(files) > MOST_RECORDINGS else []
        rows.append(
            {
                "recording": row["recording"],
                "what": row["what"],
                "files": Markup("<br>").join([*links, *more]),
            }
        )
    if not rows:
        return []
    table = html_table(rows, ["recording", "what", "files"])
    return [
        Section(
            "Recorded beside the traces",
            table + note("Links hold where this page lies in its run directory."),
        )
    ]


def build_quality(report: dict[str, Any]) -> Section:
    """What a reader must know before believing the numbers."""
    if not report["quality"]:
        return Section(QUALITY, nothing="every rank has a complete trace with all labels")
    rows = [
        row
        | {
            "action": badge(row["action"], BADGES[row["action"]]),
            "rank": None if row["rank"] is None else str(row["rank"]),
        }
        for row in sorted(report["quality"], key=lambda row: row["action"] != "skipped")
    ]
    table = html_table(rows[:MOST_ROWS], ["action", "rank", "file", "reason"])
    return Section(QUALITY, table + cut_note(rows, "quality"))


def build_hta(report: dict[str, Any], folder: Path | None) -> Section:
    """How each of HTA's analyses went, and the first rows of its tables, folded; nothing where none was possible."""
    if why := _say_no_hta(report):
        return Section(HTA, nothing=why)
    rows = [
        row | {"status": badge(row["status"], BADGES[row["status"]]), "tables": _say_tables(row["tables"])}
        for row in report["hta"]
    ]
    html = html_table(rows, ["analysis", "status", "reason", "seconds", "tables"])
    html += note("Tables lie in tables/hta/. unsupported: the analysis does not apply to these traces.")
    if reason := (report.get("hta_ranks") or {}).get("reason"):
        html += note(
            f"Holistic Trace Analysis {reason}." if report["hta_ranks"]["ranks"] else f"Not run: {reason}."
        )
    tables = [name for row in report["hta"] for name in row["tables"]]
    found = [folder / "tables" / "hta" / name for name in tables] if folder else []
    found = [path for path in found if path.is_file()]
    if not found:
        return Section(HTA, html)
    html += subtitle("Its tables")
    for path in found[:HTA_TABLES]:
        html += details(path.stem, _read_table(path))
    return Section(HTA, html + cut_count(len(found), HTA_TABLES, "tables"))


def _say_no_hta(report: dict[str, Any]) -> str:
    """Why there is nothing of HTA to show; "" where there is something."""
    rows = report["hta"]
    if any(row["status"] != "unsupported" for row in rows):
        return ""
    if not rows:
        return (report.get("hta_ranks") or {}).get("reason") or "it was not run"
    reasons = list(dict.fromkeys(row["reason"] for row in rows if row["reason"]))
    why = f": {reasons[0]}" if len(reasons) == 1 else ""
    return f"unsupported by these traces, all {len(rows)} analyses{why}"


def cut_count(count: int, most: int, what: str = "rows") -> Markup:
    """Says how much is left out of what no CSV of ours holds."""
    return note(f"{most} of {count} {what} are shown.") if count > most else Markup("")


def _say_tables(names: list[str]) -> str | None:
    shown = ", ".join(names[:4])
    return (f"{shown} and {len(names) - 4} more" if len(names) > 4 else shown) or None


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
        return None if not text else text if len(text) <= HTA_LETTERS else f"{text[: HTA_LETTERS - 1]}…"
