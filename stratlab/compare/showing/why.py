"""The part of the page that says why: a sentence per pair, the parts as bars that go both ways, and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from stratlab.compare.explaining.causes import CAUSES, NOT_TRACED, say_collective
from stratlab.compare.explaining.sentence import CPU_ORIGIN, ON_A_CPU
from stratlab.compare.judging.fairness import UNSHOWN
from stratlab.drawing import Column, Section, badge, details, html_table, note, paragraph, subtitle
from stratlab.drawing.diverging import diverging_bars

Pairs = Sequence[Mapping[str, Any]]

# part of the picture: causes that it stands for; the order is that of the colours
PICTURE = {
    "compute": ("compute",),
    "more communication": ("more_communication",),
    "less overlap": ("less_overlap",),
    "straggler": ("straggler",),
    "host": ("host",),
    "copies and data": ("copies", "data"),
    "bubble and other idle": ("bubble", "idle"),
    "not in the traced steps": (NOT_TRACED,),
}
MOST_COLUMNS = 5  # pairs side by side in the table
HOW = (
    "The difference of the median step times is split by the traced steps: every part of one run minus the same part "
    "of the other. Exposed communication is what no computation hides. It grows because there is more communication, "
    "or because less of it is hidden: its total minus what is hidden, each subtracted; of two that go against each "
    "other only the net is shown. Waiting for a slow rank holds also what that rank takes longer than the others. What "
    "the traced steps do not show is a part of its own, so that the parts sum to the difference."
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
        html += diverging_bars(_picture(findings), "ms per step", {name: i for i, name in enumerate(PICTURE)})
        html += _table(findings) + note(_say_origins(findings))
    if not found["pairs"]:
        html += paragraph("No two runs with analysed traces to explain.")
    for entry in found["not_attributed"]:
        against = f" against {entry['baseline']}" if entry["baseline"] else ""
        html += note(f"{entry['run']}{against}: not explained, {entry['why']}.")
    if others:
        shown_apart = all(pair["differing"] for pair in others)
        html += subtitle(
            "Runs that are not comparable" if shown_apart else "Runs that are not shown to be comparable"
        )
        html += paragraph(
            "What differs between these runs, or may differ, can be the cause of it. No finding."
        )
        for pair in others:
            mark = badge("not comparable", "bad") if pair["differing"] else badge(UNSHOWN, "warn")
            html += paragraph(mark + " " + _say(pair))
        html += details("Their parts", _table(others))
    if found["pairs"]:
        html += details(
            "How a difference is split", paragraph(HOW) + paragraph(DOUBT.format(least=least_lead_pct))
        )
    return Section("Why", html)


def say_part(row: Mapping[str, Any]) -> str:
    """The name of a part: `exposed all-gather: less overlap`, `compute`."""
    if row["collective"] is not None:
        kind = "less overlap" if row["cause"] == "less_overlap" else "more communication"
        kind = "undivided" if row["why"] == "exposed" else kind
        return f"exposed {say_collective(row['collective'], row['axis'] or '')}: {kind}"
    return CAUSES[row["cause"]].name if row["cause"] == NOT_TRACED else CAUSES[row["cause"]].more


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
        said.setdefault(origin + band, []).append(_label(pair))
    if len(said) == 1:
        return f"{next(iter(said))}."
    return " ".join(f"{', '.join(labels)}: {origin}." for origin, labels in said.items())


def _picture(pairs: Pairs) -> dict[str, dict[str, float]]:
    return {
        _label(pair): {
            part: sum(row["ms"] for row in pair["parts"] if row["cause"] in causes)
            for part, causes in PICTURE.items()
        }
        for pair in pairs
    }


def _table(pairs: Pairs) -> Markup:
    """The parts in ms and their sum. Few pairs: one line per part, one column per pair. Many: one line per pair, in the
    coarser parts of the picture; report.json has all."""
    if len(pairs) > MOST_COLUMNS:
        lines = [{"pair": label, **row, "sum": sum(row.values())} for label, row in _picture(pairs).items()]
        columns: list[Column | str] = [Column(part, part, "ms", 2) for part in PICTURE]
        return html_table(lines, [Column("pair", "runs"), *columns, Column("sum", "difference", "ms", 2)])
    return _list_parts(pairs)


def _list_parts(pairs: Pairs) -> Markup:
    rows = [row for pair in pairs for row in _ordered(pair)]
    rows.sort(key=lambda row: row["cause"] == NOT_TRACED)
    names = list(dict.fromkeys(say_part(row) for row in rows))
    lines: list[dict[str, Any]] = [{"part": name} for name in names]
    total: dict[str, Any] = {"part": Markup("<strong>difference of the step times</strong>")}
    for pair in pairs:
        key = _label(pair)
        for line in lines:
            found = [row["ms"] for row in pair["parts"] if say_part(row) == line["part"]]
            line[key] = sum(found) if found else None
        total[key] = pair["difference_ms"]
    columns = [Column(_label(pair), _label(pair), "ms", 3) for pair in pairs]
    return html_table([*lines, total], ["part", *columns])


def _ordered(pair: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return sorted(pair["parts"], key=lambda row: -abs(row["ms"]))


def _label(pair: Mapping[str, Any]) -> str:
    return f"{pair['run']} − {pair['baseline']}"
