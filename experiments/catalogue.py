"""Which experiments there are: every folder here with a README. A part of one is a sweep in two sizes.

<experiment>/values.yaml         what both sizes share: model, data, recipe
<experiment>/full/<part>.yaml    the sweep as it is meant
<experiment>/small/<part>.yaml   the same, with smaller numbers
<experiment>/result/<part>/      what the small one gave
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from stratlab import UserError

FOLDER = Path(__file__).parent
MOUNT = "/results"
"""Where a pod has the volume, unless a chart is told otherwise."""
PREPARED = f"{MOUNT}/_prepared/"


@dataclass(frozen=True)
class Part:
    """One sweep of an experiment, in both sizes."""

    experiment: str
    name: str
    full: Path
    small: Path

    @property
    def full_name(self) -> str:
        return f"{self.experiment}/{self.name}"

    @property
    def values(self) -> Sequence[Path]:
        """The files that both sizes name for helm."""
        return _values_of(self.full)

    def form(self) -> str:
        """Changes with what the small form says, in its own file and in those of its values."""
        written = [read_yaml(path) for path in (self.small, *_values_of(self.small))]
        return hashlib.sha256(json.dumps(written, sort_keys=True, default=str).encode()).hexdigest()[:16]

    def prepared(self) -> list[str]:
        """Names of what its runs read from the volume."""
        texts = [text for path in (*self.values, self.full) for text in _texts(read_yaml(path))]
        below = [text.removeprefix(PREPARED) for text in texts if text.startswith(PREPARED)]
        return list(dict.fromkeys(each.partition("/")[0] for each in below))


@dataclass(frozen=True)
class Experiment:
    """A folder."""

    name: str
    folder: Path
    parts: Sequence[Part]

    @property
    def readme(self) -> Path:
        return self.folder / "README.md"


def list_experiments(folder: Path = FOLDER) -> list[Experiment]:
    """By name."""
    found = []
    for readme in sorted(folder.glob("*/README.md")):
        home = readme.parent
        parts = [
            Part(home.name, full.stem, full, home / "small" / full.name)
            for full in sorted((home / "full").glob("*.yaml"))
        ]
        found.append(Experiment(home.name, home, parts))
    return found


def read_yaml(path: Path) -> dict[str, Any]:
    """The map in a file.

    Raises:
        UserError: there is none; with the file's name.
    """
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as problem:
        raise UserError(f"{path}: {' '.join(str(problem).split())} [SL-experiment-unreadable]") from None
    if not isinstance(content, dict):
        raise UserError(
            f"{path}: expected names with values, found {type(content).__name__} [SL-experiment-no-map]"
        )
    return content


def list_values(sweep: Mapping[str, Any]) -> list[str]:
    """The values files that a sweep names: one, several, or none."""
    named = sweep.get("values") or []
    return [named] if isinstance(named, str) else list(named)


def _values_of(sweep: Path) -> list[Path]:
    return [sweep.parent / each for each in list_values(read_yaml(sweep))]


def _texts(node: Any) -> Iterator[str]:
    """Every text in nested maps and lists."""
    if isinstance(node, str):
        yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _texts(child)
