"""Draws slips from all modules of trainer/ and stratlab/, so that nobody chooses what is planted.

    python -m tests.mutants.drawing                  # the rows of slips/drawn.toml, from today's sources
    python -m tests.mutants.drawing --first 61 --last 61     # one more, for a row whose place is gone

A row depends on the seed, its number and the sources: a module by its length, one of the operators that it has places
for (OPERATORS), one of these places. So the rows that were committed stay what they are while the sources move on:
where a row's text has moved, its text is mended; where its place is gone, the next number takes its stead. None is
exchanged because it survives.
Each operator finds its places in the syntax tree.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stratlab_spec.settings.fields import Settings
from tests.mutants.slip import Slip

ROOT = Path(__file__).resolve().parents[2]
SEED = 17
ROWS = 160
PACKAGES = ("stratlab_spec", "trainer", "stratlab")
TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "!=", "!=": "==", "in": "not in", "not in": "in",
          "is": "is not", "is not": "is"}  # fmt: skip
MOVED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
ALWAYS_ENDS = {"isinstance", "issubclass", "getattr", "hasattr", "setattr"}
"""Whose swapped arguments end every program at once."""
COMPARISONS = {ast.Lt: "<", ast.Gt: ">", ast.LtE: "<=", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
               ast.In: "in", ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not"}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """`old`, between two offsets into the module's bytes, becomes `new`."""

    operator: str
    start: int
    end: int
    old: str
    new: str


class Source:
    """A module's bytes, and where the nodes of its tree stand in them."""

    def __init__(self, text: str) -> None:
        self.data = text.encode()
        self.lines = [0]
        for line in self.data.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))

    def start(self, node: ast.expr) -> int:
        return self.lines[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr) -> int:
        return self.lines[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)

    def text(self, node: ast.expr) -> str:
        return self.data[self.start(node) : self.end(node)].decode()

    def place(self, operator: str, start: int, end: int, new: str) -> Place:
        return Place(operator, start, end, self.data[start:end].decode(), new)

    def node(self, operator: str, node: ast.expr, new: str) -> Place:
        return self.place(operator, self.start(node), self.end(node), new)


Operator = Callable[[Source, ast.AST], Iterator[Place]]


def find_places(text: str) -> list[Place]:
    """Every fault that the operators know in a module, in the order of its text."""
    source = Source(text)
    places = {place for node in _walk(ast.parse(text)) for find in OPERATORS for place in find(source, node)}
    return sorted(places, key=lambda place: (place.start, place.end, place.operator, place.new))


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes that run: no annotations, nothing for type checkers alone. Python 3.11 misplaces those of f-strings."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.JoinedStr) or not isinstance(child, ast.AST):
                continue
            if isinstance(child, ast.If) and re.match(r"TYPE_CHECKING$|__name__ ==", ast.unparse(child.test)):
                continue
            yield from _walk(child)


def _comparisons(source: Source, node: ast.AST) -> Iterator[Place]:
    if not isinstance(node, ast.Compare):
        return
    sides = [node.left, *node.comparators]
    for left, kind, right in zip(sides, node.ops, sides[1:], strict=False):
        for operator, table in (("comparison turned", TURNED), ("bound moved", MOVED)):
            sign = COMPARISONS[type(kind)]
            if sign in table:
                yield from _between(source, operator, left, right, sign, table[sign])


def _words(source: Source, node: ast.AST) -> Iterator[Place]:
    if isinstance(node, ast.BoolOp):
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from _between(source, "and for or", left, right, old, new)


def _constants(source: Source, node: ast.AST) -> Iterator[Place]:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        for new in (node.value + 1, node.value - 1):
            yield source.node("constant off by one", node, str(new))


def _scales(source: Source, node: ast.AST) -> Iterator[Place]:
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div | ast.FloorDiv)):
        return
    if isinstance(node.right, ast.Constant) and type(node.right.value) in (int, float):
        start, end = source.end(node.left), source.end(node.right)
        between = source.data[start : source.start(node.right)].decode()
        if re.search(r"\s*(\*|//?)\s*$", between):
            yield source.place("scale forgotten", start, end, re.sub(r"\s*(\*|//?)\s*$", "", between))


def _arguments(source: Source, node: ast.AST) -> Iterator[Place]:
    if not isinstance(node, ast.Call) or ast.unparse(node.func) in ALWAYS_ENDS:
        return
    for left, right in zip(node.args, node.args[1:], strict=False):
        first, second = source.text(left), source.text(right)
        if not {type(left), type(right)} & {ast.Starred, ast.JoinedStr} and first != second:
            between = source.data[source.end(left) : source.start(right)].decode()
            yield source.place(
                "arguments swapped", source.start(left), source.end(right), second + between + first
            )


def _conditions(source: Source, node: ast.AST) -> Iterator[Place]:
    if isinstance(node, ast.If | ast.IfExp):
        yield source.node("condition negated", node.test, f"not ({source.text(node.test)})")
    if isinstance(node, ast.If):
        yield source.node("branch dropped", node.test, "False")


def _settings(source: Source, node: ast.AST) -> Iterator[Place]:
    if not (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)):
        return
    field = Settings.model_fields.get(node.attr)
    if field and not field.is_required() and re.search(r"\b_?config$", ast.unparse(node.value)):
        yield source.node("default for setting", node, repr(field.default))


def _extremes(source: Source, node: ast.AST) -> Iterator[Place]:
    other = {"max": "min", "min": "max"}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in other:
        yield source.node("max for min", node.func, other[node.func.id])


def _ends(source: Source, node: ast.AST) -> Iterator[Place]:
    other = {"0": "-1", "-1": "0"}
    if (
        isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Load)
        and source.text(node.slice) in other
    ):
        yield source.node("first for last", node.slice, other[source.text(node.slice)])


def _between(
    source: Source, operator: str, left: ast.expr, right: ast.expr, old: str, new: str
) -> Iterator[Place]:
    """The sign between two operands, brackets around them left alone."""
    start, end = source.end(left), source.start(right)
    between = source.data[start:end].decode()
    sign = re.search(rf"(?<![<>=!]){re.escape(old)}(?![<>=])", between)
    if sign and "#" not in between:
        at = start + len(between[: sign.start()].encode())
        yield source.place(operator, at, at + len(old), new)


OPERATORS: tuple[Operator, ...] = (
    _comparisons, _words, _constants, _scales, _arguments, _conditions, _settings, _extremes, _ends,
)  # fmt: skip


def read_sources(root: Path = ROOT) -> dict[str, str]:
    paths = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    return {path.relative_to(root).as_posix(): path.read_text() for path in paths}


def draw_slips(sources: Mapping[str, str], seed: int, rows: int) -> Iterator[Slip]:
    places = {name: find_places(text) for name, text in sources.items()}
    names = [name for name in sources if places[name]]
    lengths = [sources[name].count("\n") for name in names]
    drawn: set[tuple[str, int, int, str]] = set()
    for number in range(1, rows + 1):
        chance = random.Random(f"{seed}-{number}")
        while True:
            name = chance.choices(names, lengths)[0]
            operator = chance.choice(sorted({place.operator for place in places[name]}))
            place = chance.choice([place for place in places[name] if place.operator == operator])
            made = (name, place.start, place.end, place.new)  # two operators may make the same
            if made not in drawn:
                break
        drawn.add(made)
        yield build_slip(number, name, sources[name], place)


def build_slip(number: int, file: str, text: str, place: Place) -> Slip:
    """The row of a place: whole lines, and as many around them as it takes to be the only such text of the file."""
    data = text.encode()
    first, last = data.rfind(b"\n", 0, place.start) + 1, data.find(b"\n", place.end)
    before = True
    while data.count(data[first:last]) > 1:
        if (before and first) or last >= len(data) - 1:
            first = data.rfind(b"\n", 0, first - 1) + 1
        else:
            last = data.find(b"\n", last + 1)
        before = not before
    replacement = data[first : place.start] + place.new.encode() + data[place.end : last]
    return Slip(
        name=f"drawn-{number:02}",
        says=f"{place.operator}: {_shorten(place.old)} is {_shorten(place.new)}", file=file,
        search=data[first:last].decode(), replacement=replacement.decode(), operator=place.operator,
    )  # fmt: skip


def is_drawable(slip: Slip, text: str) -> bool:
    """Whether the row's operator makes what the row makes of a module."""
    data, made = text.encode(), text.replace(slip.search, slip.replacement).encode()
    return any(
        place.operator == slip.operator
        and data[: place.start] + place.new.encode() + data[place.end :] == made
        for place in find_places(text)
    )


def format_slip(slip: Slip) -> str:
    values = "".join(
        f"{name} = {format_text(getattr(slip, name))}\n"
        for name in ("name", "says", "operator", "file", "search", "replacement")
    )
    return f"[[slip]]\n{values}"


def format_text(text: str) -> str:
    """A text in TOML, written as it is where that can be."""
    if "'''" in text or text.endswith("'"):
        escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    if "\n" in text:
        return f"'''\n{text}'''"
    if '"' in text or "\\" in text:
        return f"'''{text}'''" if "'" in text else f"'{text}'"
    return f'"{text}"'


def _shorten(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= 50 else f"{words[:47]}..."


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants.drawing", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--last", type=int, default=ROWS)
    asked = parser.parse_args()
    for number, slip in enumerate(draw_slips(read_sources(), SEED, asked.last), 1):
        if number >= asked.first:
            sys.stdout.write(format_slip(slip) + "\n")


if __name__ == "__main__":
    main()
