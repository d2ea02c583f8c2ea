"""From the matrix to releases: every combination, its values and its name."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stratlab.sweep.definition import STRATEGY, Scalar, Sweep, same
from stratlab.user_error import UserError

LONGEST_NAME = 52
HASH_LENGTH = 8


@dataclass(frozen=True)
class Release:
    """One helm release = one run. `point` is its place in the matrix; `values` are those of `set` and `matrix`.

    `without`: settings of run.config that are taken out of the values files.
    """

    name: str
    strategy: str
    point: Mapping[str, Scalar]
    repeat: int
    values: Mapping[str, Any]
    without: Sequence[str] = ()


def expand(sweep: Sweep) -> list[Release]:
    """The releases of a sweep: combinations in the order of the file, repeats last, so that all come once first.

    Raises:
        UserError: `exclude` leaves nothing.
    """
    keys = list(sweep.matrix)
    combinations = [
        dict(zip(keys, values, strict=True)) for values in itertools.product(*sweep.matrix.values())
    ]
    kept = [point for point in combinations if not any(_agrees(point, entry) for entry in sweep.exclude)]
    if not kept:
        raise UserError(
            f"exclude: leaves none of the {len(combinations)} combinations [SL-exclude-leaves-none]"
        )
    plain = [_plain_name(sweep.comparison, point) for point in kept]
    releases = []
    for repeat in range(1, sweep.repeats + 1):
        for point, name in zip(kept, plain, strict=True):
            unclear = plain.count(name) > 1 or re.search(r"-r\d+$", name) is not None
            releases.append(
                Release(
                    name=_fit(name, point, repeat, unclear),
                    strategy=str(point[STRATEGY]),
                    point=point,
                    repeat=repeat,
                    values=_nest(sweep, point),
                )
            )
    assert len({release.name for release in releases}) == len(releases)
    return releases


def _agrees(point: Mapping[str, Scalar], entry: Mapping[str, Scalar]) -> bool:
    return all(same(point[path], value) for path, value in entry.items())


def _plain_name(comparison: str, point: Mapping[str, Scalar]) -> str:
    """Words of the values in the order of the matrix; a number or a switch with the name of its setting."""
    parts = [comparison, *(_word(path, value) for path, value in point.items())]
    name = "-".join(filter(None, map(_slug, parts)))
    return name if name[:1].isalpha() else f"s-{name}"


def _word(path: str, value: Scalar) -> str:
    """A text as it is; of anything else the setting too, by its initials where it has several words."""
    if isinstance(value, str) and not re.fullmatch(r"[0-9.]*", value):
        return value
    setting = path.rpartition(".")[2]
    words = re.findall(r"[a-z0-9]+|[A-Z][a-z0-9]*", setting)
    short = "".join(word[0] for word in words) if len(words) > 1 else setting
    return f"{short}{value if isinstance(value, str) else json.dumps(value)}"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _fit(name: str, point: Mapping[str, Scalar], repeat: int, unclear: bool) -> str:
    """`name`, with a hash of the point where it is too long or not the only one of its kind."""
    suffix = f"-r{repeat}" if repeat > 1 else ""
    # as long as the longest suffix, whatever `repeats` is now: raising it later must not rename anything
    room = LONGEST_NAME - len("-r100")
    if unclear or len(name) > room:
        text = json.dumps(sorted((path, repr(value)) for path, value in point.items()))
        mark = hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]
        name = f"{name[: room - HASH_LENGTH - 1].rstrip('-')}-{mark}"
    return name + suffix


def _nest(sweep: Sweep, point: Mapping[str, Scalar]) -> dict[str, Any]:
    flat = {**sweep.set, **{path: value for path, value in point.items() if path != STRATEGY}}
    flat["run.config.comparison"] = sweep.comparison
    nested: dict[str, Any] = {}
    for path, value in flat.items():
        *folders, last = re.split(r"(?<!\\)\.", path)
        node = nested
        for folder in folders:
            node = node.setdefault(folder.replace("\\.", "."), {})
        node[last.replace("\\.", ".")] = value
    return nested
