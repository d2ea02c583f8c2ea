"""The analysis of one run for readers: a page (report.html) and the same as text with tables (summary.md).

Both show the answer first, and then its evidence. The text is for places that show Markdown, as MLflow does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from stratlab.analysis import run_sections, summaries, time_sections
from stratlab.analysis.advice_rules import DOUBTS
from stratlab.analysis.rank import RankAnalysis
from stratlab.analysis.run_facts import RunFacts
from stratlab.drawing import (
    Column,
    Section,
    badge,
    build_page,
    details,
    escape_markdown,
    loud,
    markdown_table,
    note,
    paragraph,
)
from stratlab.wording import format_number, quote
from stratlab_spec.step_parts import (
    BUBBLE,
    COMMUNICATION,
    COMPUTE,
    COPIES,
    DATA,
    HOST,
    IDLE,
    LAST_RANK,
    LAUNCH,
)

RULES = "By rules with fixed thresholds. Try one change at a time and compare the runs."
OF_SETTINGS = (
    " run.config.* are values of the chart (--set); other names are environment variables (run.env)."
)
ONE_STEP = "Only one step was recorded: what it shows can be chance."
SEVERITIES = {"high": "bad", "medium": "warn", "low": "plain"}
MOST_ADVICE = 3  # lines
LARGE_PCT = 15.0
"""Of the step: a part from which advice is expected."""
ADVISED_BY: dict[str, set[str]] = {  # part of a step -> values of rules that can shorten it
    COMPUTE: {"top_kernel_pct", "imbalance_of_step_pct", "imbalance", "optimizer_pct"},
    COMMUNICATION: {"comm_exposed_pct", "transfer_pct"},
    LAST_RANK: {"straggler_pct"},
    COPIES: {"copy_exposed_pct"},
    BUBBLE: {"bubble_pct", "bubble_over_ideal"},
    DATA: {"data_pct"},
    HOST: {"launching_pct", "host_wait_pct"},
    LAUNCH: {"launching_pct", "host_wait_pct"},
    IDLE: set(),
}


def build_html(
    report: dict[str, Any], facts: RunFacts, ranks: Sequence[RankAnalysis], folder: Path | None = None
) -> str:
    """Return the page as text: the answer, one step and the advice are open, all else is folded.

    A run with metrics and an evaluation also has charts of them.
    """
    chosen = summaries.choose_ranks(report)
    mark = badge("CPU", "warn") + " " if report["source"] == "cpu" else Markup("")
    answer = paragraph(Markup("{}<strong>{}</strong>").format(mark, summaries.say_headline(report)))
    answer += time_sections.build_step_bar(report) + time_sections.build_forecast_bars(report)
    answer += time_sections.draw_step(report, ranks, chosen)
    drawn = [rank.drawn.length_ns / 1e6 for rank in ranks if rank.drawn and rank.rank in set(chosen)]
    trust = " ".join(summaries.build_trust(report, max(drawn, default=None)))
    answer += paragraph(Markup("<strong>How far to trust it.</strong> {}").format(trust))
    sections = [
        Section("Where the time of a recorded step goes", answer),
        _build_advice(report),
        *run_sections.build_layout(report),
        time_sections.build_phases(report),
        time_sections.build_ranks(report, chosen),
        time_sections.build_collectives(report, chosen),
        *time_sections.build_device_sections(report),
        time_sections.build_idle(report),
        *run_sections.build_memory(report, ranks, chosen),
        *run_sections.build_training(facts),
        *run_sections.build_gpus(facts),
        run_sections.build_merged(report),
        *run_sections.build_recordings(report),
        run_sections.build_quality(report),
        run_sections.build_hta(report, folder),
        run_sections.build_origin_section(report),
    ]
    banner: list[str] = [loud(ONE_STEP)] if len({row["step"] for row in report["steps"]}) == 1 else []
    banner += [f"{report['note']}."] if report["note"] else []
    title = f"Trace analysis of {quote(report['run']['run'])}"
    lead = Markup('<p class="lead">{}</p>').format(summaries.say_run(report, facts.summary))
    links = run_sections.build_links(report, facts)
    return build_page(title, summaries.build_origin(report), sections, banner, links, lead)


def say_win(entry: Mapping[str, Any], step_ms: float | None) -> str:
    """Return the advice's largest saving in a recorded step."""
    most_ms = entry.get("at_most_ms")
    if most_ms is None or not step_ms:
        return "gain not known"
    return f"at most {format_number(most_ms, 1 if most_ms >= 10 else 2)} ms ({100 * most_ms / step_ms:.0f} %)"


def _build_advice(report: dict[str, Any]) -> Section:
    """Build a line per piece of advice with its gain; the reasons and all texts of the rules are folded."""
    entries, lines, full = report.get("recommendations") or [], Markup(""), Markup("")
    for entry in [entry for entry in entries if entry["rule"] != DOUBTS][:MOST_ADVICE]:
        settings = ", ".join(f"{name}={value}" for name, value in entry["settings"].items())
        first = entry["advice"].partition(". ")[0].rstrip(".") + "."
        remedy = Markup("Set <code>{}</code>.").format(settings) if settings else first
        told = say_win(entry, report["mean"].get("step_ms")), remedy, entry["title"]
        lines += Markup('<li><strong>{}:</strong> {} <span class="note">{}</span></li>').format(*told)
    for entry in entries:
        mark = badge(entry["severity"], SEVERITIES[entry["severity"]])
        full += paragraph(Markup("{} <strong>{}</strong> {}").format(mark, entry["title"], entry["advice"]))
        numbers = ", ".join(f"{name} {format_number(value)}" for name, value in entry["evidence"].items())
        full += note(f"Rule {entry['rule']}{f', because {numbers}' * bool(numbers)}.")
    full += note(RULES + (OF_SETTINGS if any(entry["settings"] for entry in entries) else ""))
    html = (
        Markup('<ol class="advice">{}</ol>').format(lines)
        if lines
        else paragraph("No rule names a part to shorten.")
    )
    html += say_unadvised(report, entries)
    return Section("What to try", html + details("Why, and all that the rules say", full) * bool(entries))


def say_unadvised(report: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> Markup:
    """Return why no advice is about the largest parts of the step; empty if some is, and without parts."""
    parts, step_ms = summaries.sum_named_parts(report), report["mean"].get("step_ms")
    seen = {name for entry in entries if entry["rule"] != DOUBTS for name in entry["evidence"]}
    reasons: dict[str, list[str]] = {}
    for part, ms in parts.items() if step_ms else ():
        if 100 * ms < LARGE_PCT * step_ms or seen & ADVISED_BY[part]:
            continue
        why = "no condition of a rule holds" if ADVISED_BY[part] else "no rule is about it"
        if part == COMPUTE and report["source"] == "cpu":
            why = "the rules judge kernels of a GPU"
        reasons.setdefault(why, []).append(f"{part} ({100 * ms / step_ms:.0f} %)")
    said = "; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items())
    return note(f"Large parts without advice: {said}.") if said else Markup("")


MOST_KERNELS, MOST_FINDINGS, MOST_FILES = 10, 30, 8


def build_markdown(report: dict[str, Any]) -> str:
    """Return the text of summary.md. Every text from outside is escaped."""
    run = report["run"]
    blocks = [
        f"# Trace analysis of {escape_markdown(run['run'])}",
        *([f"**{escape_markdown(report['note'])}.**"] if report["note"] else []),
        escape_markdown(summaries.build_origin(report)),
        *_layout(run),
        f"**{escape_markdown(summaries.say_headline(report))}**",
        *([escape_markdown(said)] if (said := summaries.say_forecast(report)) else []),
        escape_markdown(" ".join([summaries.say_run(report, {}), *summaries.build_trust(report)])),
        *_recommendations(report),
        "## Where the time of a step goes",
        *_phases(report),
        *_ranks(report),
        *_communication(report),
        *_kernels(report),
        *list_recordings(report),
        *_quality(report),
        *_files(report),
    ]
    return "\n\n".join(blocks) + "\n"


def _layout(run: Mapping[str, Any]) -> list[str]:
    layout = run.get("layout")
    if not layout:
        return []
    lacks = ", ".join(layout["missing"] or []) or "a kind of"
    label = f" Degenerate: lacks {lacks} parallelism; compared with no run." if layout["degenerate"] else ""
    return [escape_markdown(f"Layout {layout['name']}. {layout['reason'] or ''}{label}")]


def _recommendations(report: dict[str, Any]) -> list[str]:
    entries = report.get("recommendations") or []
    if not entries:
        return ["## Recommendations", "None of the rules R1 to R12 fires."]
    lines = []
    for entry in entries:
        settings = "; ".join(f"{name}={value}" for name, value in entry["settings"].items())
        numbers = ", ".join(f"{name} {format_number(value)}" for name, value in entry["evidence"].items())
        text = (
            f"**{escape_markdown(entry['title'])}** ({entry['severity']}, {entry['rule']}) "
            f"{escape_markdown(entry['advice'])}"
        )
        text += f" Set: {escape_markdown(settings)}." if settings else ""
        win = escape_markdown(say_win(entry, report["mean"].get("step_ms")))
        lines.append(f"- {text} Wins {win}. Because: {escape_markdown(numbers)}.")
    return ["## Recommendations", "\n".join(lines)]


def _phases(report: dict[str, Any]) -> list[str]:
    parts = summaries.build_phase_parts(report)
    if not parts:
        return []
    rows = [{"phase": phase, **row} for phase, row in parts.items()]
    table = markdown_table(rows, [Column(name, name, "" if name == "phase" else "ms") for name in rows[0]])
    return ["Mean over ranks and recorded steps, by phase:", table]


def _ranks(report: dict[str, Any]) -> list[str]:
    chosen = set(summaries.choose_ranks(report))
    rows = time_sections.as_text((row for row in report["ranks"] if row["rank"] in chosen), "rank")
    rows.append({**report["mean"], "rank": "all"})
    columns = ["rank", "step_ms", "compute_pct", "comm_exposed_pct", "comm_overlap_pct", "straggler_pct"]
    columns += ["data_wait_pct", "host_wait_pct", "idle_pct"]
    if report["mean"].get("bubble_ideal_pct") is not None:
        columns += ["bubble_pct", "bubble_ideal_pct"]
    left = len(report["ranks"]) - len(chosen)
    more = [f"{left} ranks are left out here, tables/rank\\_metrics.csv has all."] if left else []
    return [markdown_table(rows, columns), *more]


def _communication(report: dict[str, Any]) -> list[str]:
    rows = summaries.build_collective_summary(report)
    if not rows:
        return ["## Communication", "No communication was recorded."]
    columns = ["collective", "ranks", "count", "bytes", "total_ms", "exposed_ms", "wait_ms"]
    return ["## Communication", markdown_table(rows[:20], [*columns, Column("came_last", "came last")])]


def _kernels(report: dict[str, Any]) -> list[str]:
    rows, copies = summaries.build_kernel_summary(report, MOST_KERNELS), summaries.build_copy_summary(report)
    blocks = []
    if rows:
        table = markdown_table(
            rows, ["name", "type", "count", "sum_ms", time_sections.SHARE_OF_EVENTS, "mean_us"]
        )
        blocks += ["## Kernels", table]
    if copies:
        blocks += ["## Copies", markdown_table(copies, ["kind", "count", "bytes", time_sections.COPY_RATE])]
    return blocks


def list_recordings(report: Mapping[str, Any]) -> list[str]:
    """List the recordings other than the traces; empty without any."""
    rows = report.get("recordings") or []
    lines = [
        f"- {row['recording']} ({escape_markdown(', '.join(list(row['files'])[:MOST_FILES]))}"
        f"{' and more' if len(row['files']) > MOST_FILES else ''}): {row['what']}."
        for row in rows
    ]
    return ["## Recorded beside the traces", "\n".join(lines)] if lines else []


def _quality(report: dict[str, Any]) -> list[str]:
    if not report["quality"]:
        return ["## Quality of the traces", "Every rank has a complete trace with all labels."]
    rows = sorted(report["quality"], key=lambda row: row["action"] != "skipped")
    shown = rows[:MOST_FINDINGS]
    table = markdown_table(time_sections.as_text(shown, "rank"), ["action", "rank", "file", "reason"])
    left = len(rows) - len(shown)
    return ["## Quality of the traces", table, *([f"{left} more are in tables/quality.csv."] if left else [])]


def _files(report: dict[str, Any]) -> list[str]:
    merged = report.get("merged") or {}
    trace = (
        f"{escape_markdown(merged['file'])}: one trace of {len(merged.get('ranks') or [])} ranks, for Perfetto."
        if merged.get("file")
        else f"No merged trace: {escape_markdown(merged.get('reason') or 'it was not written')}."
    )
    states = Counter(row["status"] for row in report["hta"])
    statuses = ", ".join(f"{count} {state}" for state, count in states.items())
    reason = (report.get("hta_ranks") or {}).get("reason") or ""
    statuses = "; ".join(filter(None, [statuses, escape_markdown(reason)]))
    return [
        "## Files",
        f"{trace} report.html has the charts. Holistic Trace Analysis: {statuses or 'not run'}.",
    ]
