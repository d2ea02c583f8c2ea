"""The parts of the difference between two runs: for the picture, and as a table, the largest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from stratlab.compare.explaining.causes import CAUSES, NOT_TRACED, say_collective
from stratlab.drawing import Column, badge, html_table, paragraph
from stratlab.number import fit_digits, format_number
from stratlab.run_directory.step_parts import BUBBLE, COMPUTE, COPIES, DATA, HOST, IDLE, LAST_RANK

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
COLOURS = {part: place for part, (_, place) in PICTURE.items()}
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
