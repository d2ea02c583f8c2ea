"""The part of the page that says why: a sentence per pair, the parts as bars that go both ways, and as a table.

build_why          the section
build_part_table   the parts of the differences, the largest first
diverging_bars     what a step takes longer to the right of zero, what it takes shorter to the left
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from stratlab.compare.causes import CAUSES, CPU_ORIGIN, NOT_TRACED, ON_A_CPU, say_collective
from stratlab.compare.fairness import UNSHOWN
from stratlab.compare.winners import LEAST_LEAD_PCT
from stratlab.drawing import Column, Section, badge, details, html_table, note, paragraph, subtitle
from stratlab.drawing.canvas import (
    COLOURS,
    WIDTH,
    Scale,
    build_svg,
    fit_screens,
    label_above,
    label_width,
    legend,
    line,
    rect,
    row_label,
    text,
    x_axis,
)
from stratlab.wording import fit_digits, format_number
from stratlab_spec.step_parts import BUBBLE, COMPUTE, COPIES, DATA, HOST, IDLE, LAST_RANK

Pairs = Sequence[Mapping[str, Any]]

UNEXPLAINED = CAUSES[NOT_TRACED].name

# part of the picture: causes that it stands for, and its place in the palette: as on a run's page where it has the part
PICTURE = {
    COMPUTE: (("compute",), 0),
    "more communication": (("more_communication",), 1),
    "less overlap": (("less_overlap",), 2),
    LAST_RANK: (("straggler",), 3),
    HOST: (("host",), 5),
    f"{COPIES} and {DATA}": (("copies", "data"), 4),
    f"{BUBBLE} and {IDLE}": (("bubble", "idle"), 6),
    UNEXPLAINED: ((NOT_TRACED,), 7),
}
PART_COLOURS = {part: place for part, (_, place) in PICTURE.items()}
MOST_COLUMNS = 5  # pairs side by side in the table
MUCH_PCT = 25.0  # of the difference: a remainder that is larger is said with weight


def say_part(row: Mapping[str, Any]) -> str:
    """The name of a part: `exposed all-gather: less overlap`, `compute`."""
    if row["collective"] is not None:
        kind = "less overlap" if row["cause"] == "less_overlap" else "more communication"
        kind = "undivided" if row["why"] == "exposed" else kind
        return f"exposed {say_collective(row['collective'], row['axis'] or '')}: {kind}"
    return CAUSES[row["cause"]].name if row["cause"] == NOT_TRACED else CAUSES[row["cause"]].more


def sum_causes(pairs: Pairs) -> dict[str, dict[str, float]]:
    return {
        name_pair(pair): {
            part: sum(row["ms"] for row in pair["parts"] if row["cause"] in causes)
            for part, (causes, _) in PICTURE.items()
        }
        for pair in pairs
    }


def build_part_table(pairs: Pairs) -> Markup:
    """The parts in ms and their sum, the largest first. Few pairs: one line per part, one column per pair. Many: one
    line per pair, in the coarser parts of the picture; report.json has all."""
    if len(pairs) <= MOST_COLUMNS:
        return _list_parts(pairs)
    picture = sum_causes(pairs)
    sizes = {part: max(abs(row[part]) for row in picture.values()) for part in PICTURE}
    parts, digits = sorted(sizes, key=lambda part: -sizes[part]), fit_digits(sizes.values())
    shares = {label: share for pair in pairs if (share := find_share(pair)) for label in [name_pair(pair)]}
    lines = [
        {
            "pair": label,
            **{part: _weigh(row[part], digits, part == UNEXPLAINED and label in shares) for part in parts},
        }
        | {"sum": sum(row.values())}
        for label, row in picture.items()
    ]
    columns = [Column(part, part, "ms", digits, right=True) for part in parts]
    remark = [paragraph(badge("note", "warn") + f" {_name_remainder(shares)}.")] if shares else []
    table = html_table(lines, [Column("pair", "runs"), *columns, Column("sum", "difference", "ms", digits)])
    return Markup("").join([*remark, table])


def _list_parts(pairs: Pairs) -> Markup:
    labels = {name_pair(pair): pair for pair in pairs}
    shares = {label: share for label, pair in labels.items() if (share := find_share(pair))}
    values: dict[str, dict[str, float]] = {}
    for label, pair in labels.items():
        for row in pair["parts"]:
            line = values.setdefault(say_part(row), {})
            line[label] = line.get(label, 0.0) + row["ms"]
    digits = fit_digits(ms for line in values.values() for ms in line.values())
    last = (
        None if shares else UNEXPLAINED
    )  # a small remainder stands at the end, a large one where its size puts it
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
    """The remainder in % of the difference, where it is more than MUCH_PCT of it; else None."""
    remainder = abs(sum(row["ms"] for row in pair["parts"] if row["cause"] == NOT_TRACED))
    size = abs(pair["difference_ms"])
    return 100 * remainder / size if size and 100 * remainder > MUCH_PCT * size else None


def _name_remainder(shares: Mapping[str, float]) -> str:
    """`not explained by the traced steps: 41 % of the difference zero2 - ddp`."""
    said = [f"{share:,.0f} % of the difference {label}" for label, share in shares.items()]
    return f"{UNEXPLAINED}: {', '.join(said)}"


def _weigh(ms: float, digits: int, heavy: bool) -> float | Markup:
    return Markup("<strong>{}</strong>").format(format_number(ms, digits)) if heavy else ms


def name_pair(pair: Mapping[str, Any]) -> str:
    return f"{pair['run']} − {pair['baseline']}"


PITCH = 34
MARGIN = 4.0
NUMBERS = 74.0  # px at the right, for the sum of a row


def diverging_bars(rows: Mapping[str, Mapping[str, float]], unit: str, colours: Mapping[str, int]) -> Markup:
    """One row per label; its positive parts lie side by side to the right of zero, its negative ones to the left. A
    mark above the bar shows the sum, and a number at the end.

    Args:
        rows: label -> {part: value in `unit`}.
        colours: part -> index of its colour, the same in every chart of a page; also the order of the parts.
    """
    names = [name for name in colours if any(row.get(name) for row in rows.values())]
    high = max((sum(v for v in row.values() if v > 0) for row in rows.values()), default=0.0)
    low = min((sum(v for v in row.values() if v < 0) for row in rows.values()), default=0.0)
    if not names or high == low:
        return note(f"No differences to draw in {unit}.")
    fills = {name: colours[name] % COLOURS for name in names}

    def draw(width: float) -> Markup:
        """Where there is little room the labels stand above their bars."""
        above = 0.0 if width == WIDTH else 16.0
        left, pitch = (MARGIN if above else label_width(rows)), PITCH + above
        keys, top = legend(list(fills), left, colours=fills, width=width)
        top += 4
        across = Scale(low, high, left, width - NUMBERS)
        bottom = top + pitch * len(rows)
        parts = [keys]
        parts += x_axis(across, top, bottom, f"difference, {unit}; ▾ = their sum", 4 if above else 8)
        for i, (label, row) in enumerate(rows.items()):
            y, total = top + pitch * i + above + 6, sum(row.values())
            beside = row_label(label, y + 15, left)
            parts.append(label_above(label, left, y - 5, width - left) if above else beside)
            ends = {1: 0.0, -1: 0.0}
            for name, fill in fills.items():
                value = row.get(name, 0.0)
                if value == 0:
                    continue
                side = 1 if value > 0 else -1
                start, ends[side] = ends[side], ends[side] + value
                left_end, right_end = sorted((across(start), across(ends[side])))
                tooltip = f"{label}, {name}: {value:+.4g} {unit}"
                parts.append(rect(left_end, y, right_end - left_end, PITCH - 12, f"f{fill}", tooltip))
            sign = "+" if total > 0 else "−" if total < 0 else ""
            parts.append(text(across(total), y + 1, "▾", "middle"))  # in ink: seen over every colour
            parts.append(text(width - NUMBERS + 8, y + 15, sign + format_number(abs(total)), css="n"))
        parts.append(line(across(0.0), top, across(0.0), bottom, "s7 w1"))
        return build_svg(bottom + 40, parts, f"Differences in {unit}, by part", width)

    return fit_screens(draw)


HOW = (
    "The difference of the median step times is split by the traced steps: every part of one run minus the same part "
    "of the other. Exposed communication is what no computation hides. It grows because there is more communication, "
    "or because less of it is hidden: its total minus what is hidden, each subtracted; of two that go against each "
    "other only the net is shown. Waiting for the last rank holds also what that rank takes longer than the others. "
    "What the traced steps do not show is a part of its own, so that the parts sum to the difference."
)
DOUBT = (
    f"No cause is named where the difference lies within the noise of the repeats, or within {LEAST_LEAD_PCT:g} % "
    "where there are no repeats, or where the traced steps leave more than half of it open."
)


def build_why(report: Mapping[str, Any]) -> Section:
    """The section, first after the verdict."""
    found = report["attribution"]
    findings = [pair for pair in found["pairs"] if pair["comparable"]]
    others = [pair for pair in found["pairs"] if not pair["comparable"]]
    html = Markup("")
    for pair in findings:
        html += paragraph(_mark(pair) + " " + _say(pair))
    if findings:
        html += diverging_bars(sum_causes(findings), "ms per step", PART_COLOURS)
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
        html += details("How a difference is split", paragraph(HOW) + paragraph(DOUBT))
    return Section("Why", html)


def _mark(pair: Mapping[str, Any]) -> Markup:
    if "cpu" in pair["sources"]:
        return badge("CPU", "warn")
    cause = pair["main_cause"]
    return badge(CAUSES[cause].name, "plain") if cause else badge("no cause named", "warn")


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
