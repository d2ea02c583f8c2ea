"""The files of tests that are nearest to a module: what has to see a slip in it first."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path, PurePath

from tests.tiers import CHANGE, FAST, SLOW, tier_of

AT_MOST = {FAST.name: 8, CHANGE.name: 6, SLOW.name: 3}
"""Files of a tier; later tiers need images or a night."""


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
