"""The part of the page that says why: a sentence per pair, the parts as bars that go both ways, and as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from stratlab.compare.explaining.causes import CAUSES
from stratlab.compare.explaining.sentence import CPU_ORIGIN, ON_A_CPU
from stratlab.compare.judging.fairness import UNSHOWN
from stratlab.compare.showing.part_table import COLOURS, Pairs, build_part_table, name_pair, sum_causes
from stratlab.drawing import Section, badge, details, note, paragraph, subtitle
from stratlab.drawing.diverging import diverging_bars

HOW = (
    "The difference of the median step times is split by the traced steps: every part of one run minus the same part "
    "of the other. Exposed communication is what no computation hides. It grows because there is more communication, "
    "or because less of it is hidden: its total minus what is hidden, each subtracted; of two that go against each "
    "other only the net is shown. Waiting for the last rank holds also what that rank takes longer than the others. "
    "What the traced steps do not show is a part of its own, so that the parts sum to the difference."
)
DOUBT = (
    "No cause is named where the difference lies within the noise of the repeats, or within {least:g} % where there "
    "are no repeats, or where the traced steps leave more than half of it open."
)


def build_why(report: Mapping[str, Any], least_lead_pct: float) -> Section:
    """The section, first after the verdict."""
    found = report["attribution"]
    findings = [pair for pair in found["pairs"] if pair["comparable"]]
    others = [pair for pair in found["pairs"] if not pair["comparable"]]
    html = Markup("")
    for pair in findings:
        html += paragraph(_mark(pair) + " " + _say(pair))
    if findings:
        html += diverging_bars(sum_causes(findings), "ms per step", COLOURS)
        html += build_part_table(findings) + note(_say_origins(findings))
    if not found["pairs"] and not found["not_attributed"]:
        return Section("Why", nothing="no two runs with analysed traces to explain")
    for entry in found["not_attributed"]:
        against = f" against {entry['baseline']}" if entry["baseline"] else ""
        html += note(f"{entry['run']}{against}: not explained, {entry['why']}.")
    if others:
        shown_apart = all(pair["differing"] for pair in others)
        html += subtitle(
            "Runs that are not comparable" if shown_apart else "Runs that are not shown to be comparable"
        )
        for pair in others:
            mark = badge("not comparable", "bad") if pair["differing"] else badge(UNSHOWN, "warn")
            html += paragraph(mark + " " + _say(pair))
        html += details("Their parts", build_part_table(others))
    if found["pairs"]:
        html += details(
            "How a difference is split", paragraph(HOW) + paragraph(DOUBT.format(least=least_lead_pct))
        )
    return Section("Why", html)


def _mark(pair: Mapping[str, Any]) -> Markup:
    if "cpu" in pair["sources"]:
        return badge("CPU", "warn")
    return (
        badge(CAUSES[pair["main_cause"]].name, "plain")
        if pair["main_cause"]
        else badge("no cause named", "warn")
    )


def _say(pair: Mapping[str, Any]) -> str:
    """Without the warning of CPUs, which stands in the banner: here a badge reminds of it."""
    return str(pair["sentence"]).replace(ON_A_CPU, "")


def _say_origins(pairs: Pairs) -> str:
    """Where the parts come from, once where all pairs say the same."""
    said: dict[str, list[str]] = {}
    for pair in pairs:
        noise = pair["noise_ms"]
        origin = pair["origin"].replace(CPU_ORIGIN, "host operator time")
        band = "" if noise is None else f"; repeats: ± {noise:.3g} ms by chance"
        said.setdefault(origin + band, []).append(name_pair(pair))
    if len(said) == 1:
        return f"{next(iter(said))}."
    return " ".join(f"{', '.join(labels)}: {origin}." for origin, labels in said.items())
