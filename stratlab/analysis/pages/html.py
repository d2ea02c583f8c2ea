"""report.html: what the analysis found, as one self-contained page. The answer first, then what it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from stratlab.analysis.measuring.rank import RankAnalysis
from stratlab.analysis.pages.communication_section import build_collectives
from stratlab.analysis.pages.file_sections import build_hta, build_merged, build_quality, build_recordings
from stratlab.analysis.pages.kernel_sections import build_device_sections, build_idle
from stratlab.analysis.pages.origin import build_origin, count
from stratlab.analysis.pages.part_names import say_headline, sum_named_parts
from stratlab.analysis.pages.run_links import build_links
from stratlab.analysis.pages.run_sections import build_gpus, build_layout, build_memory, build_training
from stratlab.analysis.pages.summaries import choose_ranks
from stratlab.analysis.pages.time_sections import build_phases, build_ranks, build_timeline, round_shares
from stratlab.analysis.reporting.run_facts import RunFacts
from stratlab.drawing import Column, Section, badge, build_page, html_table, loud, note, paragraph
from stratlab.number import fit_digits
from stratlab.run_directory.step_parts import ON_A_CPU

RULES = "By rules with fixed thresholds. Try one change at a time and compare the runs."
OF_SETTINGS = (
    " run.config.* are values of the chart (--set); other names are environment variables (run.env)."
)
ONE_STEP = "Only one step was recorded: what it shows can be chance. More: run.config.profile_steps."
SEVERITIES = {"high": "bad", "medium": "warn", "low": "plain"}


def build_html(
    report: dict[str, Any], facts: RunFacts, ranks: Sequence[RankAnalysis], folder: Path | None = None
) -> str:
    """The page as text. Charts of the run itself are there when its metrics and its evaluation are.

    Args:
        report: schema_version 2.
        ranks: for the timeline and the memory curve, which the report does not hold.
        folder: of the analysis; HTA's tables are read from its tables/hta.
    """
    chosen = choose_ranks(report)
    timed = [
        Section("Where the time of a step goes", _headline(report)),
        *build_layout(report),
        _build_recommendations(report),
        Section("Timeline", build_timeline(ranks, chosen)),
        build_phases(report),
        Section("Ranks", build_ranks(report, chosen)),
        build_collectives(report, chosen),
        *build_device_sections(report),
        Section("Idle time", build_idle(report)),
        *build_memory(report, ranks, chosen),
    ]
    run = report["run"]
    sections = [
        *timed,
        *build_training(facts),
        *build_gpus(facts),
        build_merged(report),
        *build_recordings(report),
        build_quality(report),
        build_hta(report, folder),
    ]
    banner: list[str] = [loud(ONE_STEP)] if len({row["step"] for row in report["steps"]}) == 1 else []
    banner += [f"{report['note']}."] if report["note"] else []
    return build_page(
        f"Trace analysis of {run['run']}", build_origin(report), sections, banner, build_links(report, facts)
    )


def _headline(report: dict[str, Any]) -> Markup:
    mean = report["mean"]
    html = paragraph(Markup("<strong>{}</strong>").format(say_headline(report)))
    columns = ["step_ms", "comm_pct", "comm_exposed_pct", "comm_overlap_pct", "idle_pct"]
    if mean.get("bubble_ideal_pct") is not None:
        columns += ["bubble_pct", "bubble_ideal_pct"]
    by = f", communication by {report['backend']}" if report["backend"] else ""
    over = " and ".join(filter(None, [count(mean["ranks"], "rank"), count(mean.get("steps"), "step")]))
    what = (
        "A step ends when the GPU has done what was issued in it."
        if report["source"] == "gpu"
        else f"Operators on the host's threads{by}. {ON_A_CPU}"
    )
    return (
        html
        + _list_parts(report)
        + html_table([mean], round_shares(columns))
        + note(
            f"Source {report['source']}, means over {over}. {what} The hidden share is that of the communication that "
            "compute hides, all others are shares of the step; exposed communication includes waiting for the last "
            "rank."
        )
    )


def _list_parts(report: dict[str, Any]) -> Markup:
    """The parts of the mean step, the largest first; they sum to it."""
    step_ms, parts = report["mean"].get("step_ms"), sum_named_parts(report)
    if not step_ms or not parts:
        return Markup("")
    rows = [{"part": name, "ms": ms, "share": 100 * ms / step_ms} for name, ms in parts.items()]
    digits = fit_digits(parts.values())
    times = Column("ms", "of a step", "ms", digits)
    return html_table(rows, ["part", times, Column("share", "share", "%", 1)])


def _build_recommendations(report: dict[str, Any]) -> Section:
    title, entries = "Recommendations", report.get("recommendations") or []
    if not entries:
        return Section(title, nothing="none of the rules R1 to R12 fires")
    html = Markup("")
    for entry in entries:
        mark = badge(entry["severity"], SEVERITIES[entry["severity"]])
        html += paragraph(Markup("{} <strong>{}</strong> {}").format(mark, entry["title"], entry["advice"]))
        settings = [f"{name}={value}" for name, value in entry["settings"].items()]
        if settings:
            html += paragraph(Markup("Set <code>{}</code>").format(", ".join(settings)))
        numbers = ", ".join(f"{name} {_round(value)}" for name, value in entry["evidence"].items())
        html += note(f"Rule {entry['rule']}, because {numbers}." if numbers else f"Rule {entry['rule']}.")
    remark = note(RULES + (OF_SETTINGS if any(entry["settings"] for entry in entries) else ""))
    return Section(title, html + remark)


def _round(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"
