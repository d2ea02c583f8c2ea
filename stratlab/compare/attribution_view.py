"""The parts of the page about the parts of a step, and why one run takes longer.

build_step_times   the parts of a step of every run, side by side.
build_why          a line for each pair with its largest causes, and the way from one step to the other by cause.
build_parts        all parts of all differences, as a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from stratlab.compare.attribution import split_busy
from stratlab.compare.causes import (
    CAUSES,
    CPU_ORIGIN,
    NOT_TRACED,
    ON_A_CPU,
    find_causes,
    format_ms,
    say_collective,
)
from stratlab.compare.fairness import UNSHOWN
from stratlab.compare.placement import ComparedRun
from stratlab.compare.run_rows import PHASES, Rows, RunRow
from stratlab.compare.trust import find_group
from stratlab.compare.variants import find_typical
from stratlab.compare.winners import LEAST_LEAD_PCT
from stratlab.drawing import (
    HALF,
    Column,
    Section,
    badge,
    details,
    html_table,
    note,
    paragraph,
    read_parts,
    stacked_bars,
    subtitle,
    waterfall,
)
from stratlab.wording import fit_digits, format_count, format_number
from stratlab_spec import step_parts
from stratlab_spec.step_parts import (
    BUBBLE,
    COLOURS,
    COMMUNICATION,
    COMPUTE,
    COPIES,
    DATA,
    HOST,
    IDLE,
    LAST_RANK,
)

NOTES = read_parts(Path(__file__).with_name("notes.html"))
Pairs = Sequence[Mapping[str, Any]]

UNEXPLAINED = "not explained"
LIGHTER = 8
"""Offset in the palette to the same colour, lighter."""

# cause -> its name in pictures, and its place in the palette, as for a part of a step on a run's page
PICTURE = {
    "compute": (COMPUTE, COLOURS[COMPUTE]),
    "more_communication": ("more communication", COLOURS[COMMUNICATION]),
    "less_overlap": ("less overlap", COLOURS[COMMUNICATION] + LIGHTER),
    "straggler": (LAST_RANK, COLOURS[LAST_RANK]),
    "host": (HOST, COLOURS[HOST]),
    "copies": (COPIES, COLOURS[COPIES]),
    "data": (DATA, COLOURS[DATA]),
    "bubble": (BUBBLE, COLOURS[BUBBLE]),
    "idle": (IDLE, COLOURS[IDLE]),
    NOT_TRACED: (UNEXPLAINED, COLOURS[IDLE] + LIGHTER),
}
PART_COLOURS = dict(PICTURE.values())
PHASE_COLOURS = {phase: LIGHTER + place for phase, place in zip(PHASES, (4, 2, 6, 3), strict=True)}
MOST_COLUMNS = 5  # pairs side by side in the table
MOST_PAIRS = 4  # that are drawn: those that differ most
MOST_CAUSES = 3  # in the line of a pair
MUCH_PCT = 25.0  # of the difference: a larger remainder is emphasized
LEAST_PCT = 0.5  # of a step: a difference that rounds to 0 % does not count
SMALL = 0.03  # of the largest part: drawn together


def build_step_times(rows: Rows, runs: Sequence[ComparedRun], mark: Markup) -> Section:
    """Build the parts of the recorded steps; for runs without them the phases that the trainer times."""
    title = "Step time by cause"
    parts = {run.name: _split_recorded(run) for run in runs}
    timed = [row for row in rows if row.step_time_ms_p50 or any(parts.get(row.run, {}).values())]
    if not timed:
        return Section(title, nothing="no step was timed")
    bars: dict[str, dict[str, float | None]] = {}
    totals: dict[str, tuple[float, str]] = {}
    traced = any(parts.get(row.run) for row in timed)
    for row in timed:
        bars[row.run] = dict(parts[row.run])
        if not traced:
            bars[row.run] = {phase: getattr(row, f"{phase}_ms_p50") for phase in PHASES}
        elif not bars[row.run]:
            bars[row.run] = {UNEXPLAINED: row.step_time_ms_p50}
        if median := row.step_time_ms_p50:
            recorded = sum(filter(None, bars[row.run].values()))
            apart = traced and abs(recorded - median) > median / 10
            totals[row.run] = median, f"{median:,.{fit_digits([median])}f}" + f" ({recorded:,.0f})" * apart
    colours = PART_COLOURS | COLOURS if traced else PHASE_COLOURS
    html = stacked_bars(bars, "ms per step", colours, width=HALF, totals=totals)
    said = "Mark and number: the median timed step. Bar: the mean recorded step, split by cause"
    said += ", in brackets where it differs." if any("(" in each for _, each in totals.values()) else "."
    if not traced:
        title, said = "Step time by phase", "No recorded steps, so causes are not known."
    return Section(title, html + note(said), half=True, mark=mark)


def _split_recorded(run: ComparedRun) -> dict[str, float]:
    """Return words of a cause -> ms of its recorded steps; empty without an analysis."""
    sums: dict[str, float] = {}
    for part in run.analysis.get("parts") or []:
        cause = step_parts.CAUSES.get(part["part"], part["part"])
        words = COMMUNICATION if cause == "comm" else PICTURE[cause][0]
        sums[words] = sums.get(words, 0.0) + part["ms"]
    return {words: sums[words] for words in COLOURS if sums.get(words)}


def build_why(report: Mapping[str, Any], mark: Markup) -> Section:
    """Build the pairs that differ most; all others are in `build_parts`."""
    found = report["attribution"]
    answered = {name for row in find_group(report)[0] for name in (row.run, row.configuration)}
    pairs = [pair for pair in found["pairs"] if pair["comparable"] or not pair["settings_known"]]
    pairs.sort(key=lambda pair: (pair["run"] not in answered, -abs(pair["difference_ms"])))
    if not pairs and found["pairs"]:
        return Section("Why", note("The runs are not comparable. Parts of the differences has the numbers."))
    if not pairs:
        return _build_why_by_phase(report, mark)
    quiet, busy = split_busy(pairs)
    html = _list_lines([*map(_say_pair, quiet[:MOST_PAIRS])]) if quiet else Markup("")
    if busy:
        which = "of all runs" if not quiet else f"of {', '.join(pair['run'] for pair in busy[:MOST_PAIRS])}"
        said = f"Times {which} are not compared: other work kept the machine busy."
        html += note(said) + details("Their amounts", _list_lines([*map(_say_pair, busy)]))
    remedies: dict[str, list[str]] = {}
    for pair in quiet[:MOST_PAIRS]:
        if pair["remedy"]:
            remedies.setdefault(pair["remedy"], []).append(pair["run"])
    for remedy, names in remedies.items():
        html += note(f"Try for {', '.join(names)}: {remedy}.")
    if rest := quiet[MOST_PAIRS:]:
        html += note(f"{len(rest)} more pairs: under Parts of the differences.")
    boxes = [
        Markup("<div>{}{}</div>").format(subtitle(name_pair(pair)), _draw(pair))
        for pair in quiet[:MOST_PAIRS]
        if not pair["no_cause"] and (pair["run"] in answered or quiet[0]["run"] not in answered)
    ]
    if boxes:
        html += Markup('<div class="pair">{}</div>').format(Markup("").join(boxes))
    return Section("Why", html, mark=mark)


def _build_why_by_phase(report: Mapping[str, Any], mark: Markup) -> Section:
    """Build the same from the phases that the trainer times, for runs without recorded steps."""
    rows = [row for row in find_group(report)[0] if row.step_time_ms_p50 and not row.is_foreign]
    steps = {row.run: row.step_time_ms_p50 or 0.0 for row in rows}
    repeats: dict[str, list[str]] = {}
    for row in rows:
        repeats.setdefault(row.configuration, []).append(row.run)
    typical = {find_typical(names, steps) for names in repeats.values()}
    rows = sorted((row for row in rows if row.run in typical), key=lambda row: steps[row.run])
    lines = [line for row in reversed(rows[1:]) if (line := _say_phases(row, rows[0]))]
    said = "Causes are not known: run stratlab analyze on two comparable runs with recorded steps."
    if not lines or not report.get("times_comparable", True):
        return Section("Why", note(said))
    html = _list_lines(lines[:MOST_PAIRS]) + note(f"By phase of the timed steps. {said}")
    return Section("Why", html, mark=mark)


def _say_phases(row: RunRow, base: RunRow) -> Markup | None:
    """Return `zero3 is 83 ms (92 %) slower than single: +37 ms forward, ...`; None within the noise."""
    base_ms, ms = base.step_time_ms_p50 or 1.0, (row.step_time_ms_p50 or 0.0) - (base.step_time_ms_p50 or 0.0)
    ends = {phase: (getattr(row, f"{phase}_ms_p50"), getattr(base, f"{phase}_ms_p50")) for phase in PHASES}
    apart = {phase: a - b for phase, (a, b) in ends.items() if None not in (a, b)}
    large = sorted((p for p in apart if abs(apart[p]) > ms / 10), key=lambda p: -abs(apart[p]))
    pct, noise_ms = 100 * ms / base_ms, (row.noise_ms or 0.0) + (base.noise_ms or 0.0)
    if pct < LEAST_LEAD_PCT or ms <= noise_ms or not large:
        return None
    said = ", ".join(f"{'+' if apart[p] >= 0 else '−'}{format_ms(abs(apart[p]))} {p}" for p in large)
    where = " on this CPU" if row.device_type == "cpu" else ""
    size = f"{format_ms(ms)} ({pct:.0f} %) slower than {base.run}{where}"
    return Markup("<strong>{}</strong> is {}: {}.").format(row.run, size, said)


def _list_lines(lines: Sequence[Markup]) -> Markup:
    items = Markup("").join(Markup("<li>{}</li>").format(line) for line in lines)
    return Markup('<ul class="causes">{}</ul>').format(items)


def _say_pair(pair: Mapping[str, Any]) -> Markup:
    """Return `fsdp is 18 ms (117 %) slower than ddp: +10 ms waiting for the host, ...`."""
    ms, pct = pair["difference_ms"], abs(pair["difference_pct"])
    size = f"{format_ms(abs(ms))} ({pct:.0f} %) {'slower' if ms >= 0 else 'faster'} than"
    size = size if pct >= LEAST_PCT else "as fast as"
    if not pair["times_comparable"]:
        told = f"{format_ms(pair['run_ms'])} a step, {pair['baseline']} {format_ms(pair['baseline_ms'])}"
        return Markup("<strong>{}</strong> {}.").format(pair["run"], told)
    where = " on this CPU" if "cpu" in pair["sources"] else ""
    lead = Markup("<strong>{}</strong> is {} {}{}: ").format(pair["run"], size, pair["baseline"], where)
    if pair["no_cause"]:
        doubt = "cause not determined" if pct >= LEAST_PCT else "no difference to explain"
        return lead + f"{doubt} ({pair['no_cause']})."
    if not pair["settings_known"]:
        lead = badge(UNSHOWN, "warn") + " " + lead
    along, against = find_causes(pair)
    shown = [f"{'+' if row['ms'] >= 0 else '−'}{format_ms(abs(row['ms']))} {_name(row)}" for row in along]
    others = [f"{'+' if row['ms'] >= 0 else '−'}{format_ms(abs(row['ms']))} {_name(row)}" for row in against]
    said = ", ".join([*shown[:MOST_CAUSES], *others[:1]])
    return lead + f"{said}."


def _name(row: Mapping[str, Any]) -> str:
    if row["collective"] is not None:
        lost = " not hidden any more" if row["cause"] == "less_overlap" else ""
        return f"{say_collective(row['collective'], row['axis'] or '')}{lost}"
    return PICTURE[row["cause"]][0]


def _draw(pair: Mapping[str, Any]) -> Markup:
    """Draw the parts, with the small ones as one."""
    sums = sum_causes([pair])[name_pair(pair)]
    most = max(map(abs, sums.values()), default=0.0)
    shown = {part: ms for part, ms in sums.items() if abs(ms) > SMALL * most}
    if rest := sum(ms for part, ms in sums.items() if part not in shown):
        shown["smaller parts"] = rest
    if UNEXPLAINED in shown:
        shown[UNEXPLAINED] = shown.pop(UNEXPLAINED)  # at the end
    ends = (pair["baseline"], pair["baseline_ms"]), (pair["run"], pair["run_ms"])
    return waterfall(
        ends[0], shown, ends[1], "ms per step", PART_COLOURS | {"smaller parts": COLOURS[IDLE]}, HALF
    )


def build_parts(report: Mapping[str, Any]) -> Section:
    """Build a folded section: every sentence, every part, and how a difference is split."""
    found = report["attribution"]
    findings = [pair for pair in found["pairs"] if pair["comparable"]]
    others = [pair for pair in found["pairs"] if not pair["comparable"]]
    html = Markup("")
    told = (
        found["pairs"][:MOST_PAIRS] if len(found["pairs"]) <= MOST_COLUMNS else []
    )  # with many pairs the table shows it
    for pair in (pair for pair in findings if pair in told):
        html += paragraph(_mark(pair) + " " + _say(pair))
    if findings:
        html += build_part_table(findings) + note(_say_origins(findings))
    if not found["pairs"] and not found["not_attributed"]:
        return Section("Parts of the differences", nothing="no two runs with recorded steps")
    for entry in found["not_attributed"][:MOST_PAIRS]:
        against = f" against {entry['baseline']}" if entry["baseline"] else ""
        html += note(f"{entry['run']}{against}: not explained, {entry['why']}.")
    if others:
        shown_apart = all(pair["differing"] for pair in others)
        html += subtitle(
            "Runs that are not comparable" if shown_apart else "Runs that are not shown to be comparable"
        )
        for pair in (pair for pair in others if pair in told):
            mark = badge("not comparable", "bad") if pair["differing"] else badge(UNSHOWN, "warn")
            html += paragraph(mark + " " + _say(pair))
        html += details("Their parts", build_part_table(others)) if told else Markup("")
    if rest := len(found["pairs"]) - len(told) + len(found["not_attributed"][MOST_PAIRS:]):
        html += note(f"The sentences of {format_count(rest, 'more pair')}: summary.md, report.json.")
    if found["pairs"]:
        html += note(NOTES.parts(f"{LEAST_LEAD_PCT:g}"))
    return Section("Parts of the differences", html, folded=True, result=_say_largest(findings))


def _say_largest(pairs: Pairs) -> str:
    """`all-gather +13 ms, fsdp − ddp`."""
    parts = [(abs(row["ms"]), row, pair) for pair in pairs if not pair["no_cause"] for row in pair["parts"]]
    if not parts:
        return "not determined" if pairs else "no comparable pair"
    ms, row, pair = max(parts, key=lambda part: part[0])
    return f"{_name(row)} {'+' if row['ms'] >= 0 else '−'}{format_ms(ms)}, {name_pair(pair)}"


def say_part(row: Mapping[str, Any]) -> str:
    """Return the name of a part: `exposed all-gather: less overlap`, `compute`."""
    if row["collective"] is not None:
        kind = "less overlap" if row["cause"] == "less_overlap" else "more communication"
        kind = "undivided" if row["why"] == "exposed" else kind
        return f"exposed {say_collective(row['collective'], row['axis'] or '')}: {kind}"
    return PICTURE[row["cause"]][0]


def sum_causes(pairs: Pairs) -> dict[str, dict[str, float]]:
    return {
        name_pair(pair): {
            part: sum(row["ms"] for row in pair["parts"] if row["cause"] == cause)
            for cause, (part, _) in PICTURE.items()
        }
        for pair in pairs
    }


def build_part_table(pairs: Pairs) -> Markup:
    """Return the parts in ms and their sum, the largest first. Few pairs: one line per part, one column per pair. Many:
    one line per pair, in the coarser parts of the picture; report.json has all.
    """
    shares = {name_pair(pair): share for pair in pairs if (share := find_share(pair))}
    if len(pairs) <= MOST_COLUMNS:
        return _list_parts(pairs, shares)
    picture = sum_causes(pairs)
    sizes = {part: max(abs(row[part]) for row in picture.values()) for part in PART_COLOURS}
    parts = [part for part in sorted(sizes, key=lambda part: -sizes[part]) if sizes[part]]
    digits = fit_digits(sizes.values())
    lines = [
        {
            "pair": label,
            **{part: _weigh(row[part], digits, part == UNEXPLAINED and label in shares) for part in parts},
            "sum": sum(row.values()),
        }
        for label, row in picture.items()
    ]
    columns = [Column(part, part, "ms", digits, right=True) for part in parts]
    remark = paragraph(badge("note", "warn") + f" {_name_remainder(shares)}.") if shares else Markup("")
    ends = Column("pair", "runs"), Column("sum", "difference", "ms", digits)
    return remark + html_table(lines, [ends[0], *columns, ends[1]])


def _list_parts(pairs: Pairs, shares: Mapping[str, float]) -> Markup:
    labels = {name_pair(pair): pair for pair in pairs}
    values: dict[str, dict[str, float]] = {}
    for label, pair in labels.items():
        for row in pair["parts"]:
            line = values.setdefault(say_part(row), {})
            line[label] = line.get(label, 0.0) + row["ms"]
    digits = fit_digits(ms for line in values.values() for ms in line.values())
    last = None if shares else UNEXPLAINED  # a small remainder comes at the end, a large one by its size
    names = sorted(values, key=lambda name: (name == last, -max(map(abs, values[name].values()))))
    lines: list[dict[str, Any]] = []
    for name in names:
        heavy = shares if name == UNEXPLAINED else {}
        shown = Markup("<strong>{}</strong>").format(_name_remainder(shares)) if heavy else name
        cells = {label: _weigh(ms, digits, label in heavy) for label, ms in values[name].items()}
        lines.append({"part": shown, **cells})
    total: dict[str, Any] = {"part": Markup("<strong>difference of the step times</strong>")}
    total |= {label: pair["difference_ms"] for label, pair in labels.items()}
    columns = [Column(label, label, "ms", digits, right=True) for label in labels]
    return html_table([*lines, total], [Column("part", wide=True), *columns])


def find_share(pair: Mapping[str, Any]) -> float | None:
    """Return the remainder in % of the difference if it exceeds MUCH_PCT of it; else None."""
    remainder = abs(sum(row["ms"] for row in pair["parts"] if row["cause"] == NOT_TRACED))
    size = abs(pair["difference_ms"])
    return 100 * remainder / size if size and 100 * remainder > MUCH_PCT * size else None


def _name_remainder(shares: Mapping[str, float]) -> str:
    """Return `not explained by the traced steps: 41 % of the difference zero2 - ddp`."""
    said = [
        f"{share:,.0f} % of the difference {label}" if share <= 100 else f"more than the difference {label}"
        for label, share in shares.items()
    ]
    return f"{UNEXPLAINED}: {', '.join(said)}"


def _weigh(ms: float, digits: int, heavy: bool) -> float | Markup:
    return Markup("<strong>{}</strong>").format(format_number(ms, digits)) if heavy else ms


def name_pair(pair: Mapping[str, Any]) -> str:
    return f"{pair['run']} − {pair['baseline']}"


def _mark(pair: Mapping[str, Any]) -> Markup:
    if "cpu" in pair["sources"]:
        return badge("CPU", "warn")
    cause = pair["main_cause"]
    return badge(CAUSES[cause].name, "plain") if cause else badge("not determined", "warn")


def _say(pair: Mapping[str, Any]) -> str:
    """Return the sentence without the warning of CPUs: a badge shows it."""
    return str(pair["sentence"]).replace(ON_A_CPU, "")


def _say_origins(pairs: Pairs) -> str:
    """Name the source of the parts, once if it is equal for all pairs."""
    said: dict[str, list[str]] = {}
    for pair in pairs:
        noise = pair["noise_ms"]
        origin = pair["origin"].replace(CPU_ORIGIN, "host operator time")
        band = "" if noise is None else f"; repeats: ± {noise:.3g} ms by chance"
        said.setdefault(origin + band, []).append(name_pair(pair))
    if len(said) == 1:
        return f"{next(iter(said))}."
    return " ".join(f"{', '.join(labels)}: {origin}." for origin, labels in said.items())
