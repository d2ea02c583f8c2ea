"""A plausible mistake as a row of a table: where it is planted, and which tests have to see it.

Where a row names no tests, those nearest to its file have to; a result depends on all that a file of tests imports.
"""

import ast
import contextlib
import functools
import hashlib
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from tests.tiers import CHANGE, FAST, SLOW, tier_of

AT_MOST = {FAST.name: 8, CHANGE.name: 6, SLOW.name: 3}
"""Files of a tier; later tiers need images or a night."""


@dataclass(frozen=True)
class Slip:
    """One plausible mistake.

    Attributes:
        name: of the slip, without blanks.
        says: what would be wrong.
        file: where it is planted.
        search: what stands there, exactly once.
        replacement: what the slip makes of it.
        tests: functions of tests; together they must fail. Without them: the files nearest to the file
            (find_nearest).
        operator: what has made it, where it was drawn (drawing.py).
        equivalent: why no user sees anything of it; empty of all others.
    """

    name: str
    says: str
    file: str
    search: str
    replacement: str
    tests: tuple[str, ...] = ()
    operator: str = ""
    equivalent: str = ""


def read_slips(folder: Path) -> list[Slip]:
    """All slips of a folder's tables, in the order of the tables' names."""
    rows = [
        row for table in sorted(folder.glob("*.toml")) for row in tomllib.loads(table.read_text())["slip"]
    ]
    return [Slip(**{**row, "tests": tuple(row.get("tests", ()))}) for row in rows]


def find_tests(slip: Slip, root: Path) -> tuple[str, ...]:
    return slip.tests or find_nearest(slip.file, root)


def find_problems(slips: Sequence[Slip], root: Path) -> list[str]:
    """What in the table no longer fits the tree."""
    counts = Counter(slip.name for slip in slips)
    problems = [f"{name}: stands in the table more than once" for name, count in counts.items() if count > 1]
    for slip in slips:
        problems += [f"{slip.name}: {problem}" for problem in _find_wrong_text(slip, root)]
        problems += [
            f"{slip.name}: there is no function {test}" for test in slip.tests if not _is_there(test, root)
        ]
    return problems


def build_key(slip: Slip, root: Path) -> str:
    """Hash of what a result depends on: the slip, its file, its tests' files and what those stand on."""
    tests = {test.partition("::")[0] for test in find_tests(slip, root)}
    files = sorted({slip.file}.union(*(find_standing(test, root) for test in tests)))
    parts = [repr(slip).encode(), *((root / name).read_bytes() for name in files)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


@contextlib.contextmanager
def planted(slip: Slip, tree: Path) -> Iterator[None]:
    """The slip in `tree`, for as long as the context lasts."""
    path = tree / slip.file
    whole = path.read_text()
    path.write_text(whole.replace(slip.search, slip.replacement))
    try:
        yield
    finally:
        path.write_text(whole)


def _find_wrong_text(slip: Slip, root: Path) -> Iterator[str]:
    whole = (root / slip.file).read_text() if (root / slip.file).is_file() else ""
    count = whole.count(slip.search)
    if count != 1:
        yield f"{slip.file} holds the text {count} times, expected once"
    if slip.search == slip.replacement:
        yield "changes nothing"
    if slip.file.endswith(".py"):
        try:
            ast.parse(whole.replace(slip.search, slip.replacement))
        except SyntaxError as error:
            yield f"leaves no Python behind, which any test sees: {error.msg}"


def _is_there(test: str, root: Path) -> bool:
    """Whether it names a function; of a whole file nothing would tell that the test that sees the slip is gone."""
    path, _, function = test.partition("::")
    text = (root / path).read_text() if (root / path).is_file() else ""
    return bool(function) and f"def {function.partition('[')[0]}(" in text


def find_nearest(module: str, root: Path) -> tuple[str, ...]:
    """Files of tests by tier, the fast tier's first; in each tier the module's mirror, those that import it, the
    mirrors of the modules that import it, and those of its room."""
    ordered = list(dict.fromkeys(_by_distance(PurePath(module), root)))
    chosen = []
    for name, most in AT_MOST.items():
        of_tier = [path for path in ordered if _tier(path, root) == name]
        chosen += of_tier[:most]
    return tuple(path.relative_to(root).as_posix() for path in chosen)


def _tier(path: Path, root: Path) -> str:
    return tier_of(path.relative_to(root / "tests")).name


@functools.cache
def _read_all(folder: Path, pattern: str) -> dict[Path, str]:
    return {path: path.read_text() for path in sorted(folder.rglob(pattern))}


def _by_distance(module: PurePath, root: Path) -> Iterator[Path]:
    tests = _read_all(root / "tests", "test_*.py")
    modules = {
        path.relative_to(root): text for path, text in _read_all(root / module.parts[0], "*.py").items()
    }
    near = [
        *_mirrors(module, root),
        *_nearest_first(module, [path for path, text in tests.items() if _imports(text, module)], root),
    ]
    for other, text in modules.items():
        if other != Path(module) and _imports(text, module):
            near += _mirrors(PurePath(other), root)
    near += _of_room(module.parent, root)
    yield from near or _of_room(module.parent.parent, root)


def _of_room(folder: PurePath, root: Path) -> list[Path]:
    """Those right in its folder, and in the folders of later tiers below."""
    room = root / "tests" / folder
    return [*sorted(room.glob("test_*.py")), *sorted(room.glob("*/test_*.py"))]


def _mirrors(module: PurePath, root: Path) -> Iterator[Path]:
    """tests/<room>/test_<module>.py, and that in a folder of a later tier."""
    stem = module.parent.name if module.stem == "__init__" else module.stem
    folder = root / "tests" / module.parent
    for name in (f"test_{stem}.py", f"*/test_{stem}.py"):
        yield from sorted(folder.glob(name))


def _nearest_first(module: PurePath, paths: list[Path], root: Path) -> list[Path]:
    def shared(path: Path) -> int:
        parts = path.relative_to(root / "tests").parts[:-1]
        return sum(1 for a, b in zip(parts, module.parts[:-1], strict=False) if a == b)

    return sorted(paths, key=lambda path: (-shared(path), path))


def _imports(text: str, module: PurePath) -> bool:
    parts = module.parts[:-1] if module.stem == "__init__" else (*module.parts[:-1], module.stem)
    dotted = ".".join(parts)
    names = rf"from {re.escape('.'.join(parts[:-1]))} import [^\n]*\b{parts[-1]}\b"
    return re.search(rf"(from|import) {re.escape(dotted)}\b(?!\.\w)|{names}", text) is not None


def find_standing(test: str, root: Path) -> set[str]:
    """Paths below `root`, the test's own among them; imports are followed, those inside of functions too.

    Args:
        test: path of a file of tests, relative to `root`.
    """
    found: set[str] = set()
    waiting = [test, *_conftests(PurePath(test))]
    while waiting:
        name = waiting.pop()
        if name not in found and (root / name).is_file():
            found.add(name)
            waiting += [*_places((root / name).read_text())] if name.endswith(".py") else []
    return found


def _conftests(test: PurePath) -> Iterator[str]:
    yield from (str(folder / "conftest.py") for folder in test.parents)


@functools.cache
def _places(text: str) -> tuple[str, ...]:
    """Where modules of tests/ that this text imports may lie."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    paths = [name.replace(".", "/") for name in names if name.split(".")[0] == "tests"]
    return tuple(f"{path}{end}" for path in paths for end in (".py", "/__init__.py"))
