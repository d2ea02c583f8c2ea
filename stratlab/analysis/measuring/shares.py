"""Shares of the ranks, each read by a process of its own, wherever that is; one more brings them together.

A share leaves its readings in `<index>-of-<count>/`, in one step, below `<run>/.analysis-shares/` or below the folder
of its Job there (merger.py). They are used only with the very traces that they were made from.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratlab.analysis.measuring.measure import Progress, read_traces
from stratlab.run_directory.files import LARGEST_WORLD, read_object
from stratlab.traces.chunks import LIMITS, Limits
from stratlab.user_error import UserError
from stratlab.version import read_version

SHARES = ".analysis-shares"
CONTENT = "share.json"
GIVEN = re.compile(r"(\d{1,5})/(\d{1,5})")


class MissingShare(UserError):
    """A share is not there, or is not of the traces that are there now."""


Readings = dict[int, Path | str]
"""rank -> its reading, or why there is none."""


@dataclass(frozen=True)
class Share:
    """Every `count`-th rank with a trace, from the `index`-th on, counted from 0."""

    index: int
    count: int

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.index}-of-{self.count}"

    def choose(self, files: Mapping[int, Path]) -> dict[int, Path]:
        """Its part of the files."""
        return {rank: files[rank] for rank in sorted(files)[self.index :: self.count]}


def parse_share(text: str) -> Share:
    """Of --share, `0/2`.

    Raises:
        UserError: it is something else.
    """
    found = GIVEN.fullmatch(text)
    if not found or not 0 <= int(found[1]) < int(found[2]) <= LARGEST_WORLD:
        raise UserError(
            f"--share {text}: expected INDEX/COUNT, the first is 0: 0/2 and 1/2 [SL-share-syntax]"
        )
    return Share(int(found[1]), int(found[2]))


def build_shares(count: int) -> list[Share]:
    """All that belong together."""
    return [Share(index, count) for index in range(count)]


def write_share(
    place: Path,
    share: Share,
    files: Mapping[int, Path],
    axes: Mapping[str, int],
    *,
    limits: Limits = LIMITS,
    progress: Progress = lambda sentence: None,
) -> Path:
    """Reads the traces of a share and leaves what was read; an earlier one of the same share is replaced.

    Args:
        place: the folder of the shares.
        files, axes: of the whole run, as for `measure_traces`.
    """
    target = place / share.name
    folder = place / f".{share.name}-{uuid.uuid4().hex[:8]}"
    folder.mkdir(parents=True)
    try:
        mine = share.choose(files)
        outcomes = dict(read_traces(mine, axes, folder, limits=limits, progress=progress))
        ranks = {
            str(rank): _describe(mine[rank]) | {"why": outcome if isinstance(outcome, str) else None}
            for rank, outcome in outcomes.items()
        }
        content = {"version": read_version(), "axes": dict(axes), "ranks": ranks}
        (folder / CONTENT).write_text(json.dumps(content, indent=1) + "\n")
        shutil.rmtree(target, ignore_errors=True)
        os.rename(folder, target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return target


def find_shares(run_dir: Path, count: int, files: Mapping[int, Path], axes: Mapping[str, int]) -> Readings:
    """What all shares of a run have left, those that were read one by one.

    Raises:
        MissingShare: one is not there, or was made from other traces or by another version.
    """
    found: Readings = {}
    for share in build_shares(count):
        try:
            found |= find_share(run_dir / SHARES, share, files, axes)
        except MissingShare as missing:
            again = f"stratlab analyze {run_dir} --share {share.index}/{count}"
            raise MissingShare(f"{missing}: {again}") from None
    return found


def find_share(place: Path, share: Share, files: Mapping[int, Path], axes: Mapping[str, int]) -> Readings:
    """What one share has left.

    Raises:
        MissingShare: it is not there, or was made from other traces or by another version.
    """
    subject = f"share {share.index} of {share.count}"
    folder = place / share.name
    content = read_object(folder / CONTENT, [], {"ranks": dict, "axes": dict})
    if not content.get("ranks") and share.choose(files):
        raise MissingShare(f"{subject} is not there [SL-share-missing]")
    if content and (content.get("version"), content.get("axes")) != (read_version(), dict(axes)):
        raise MissingShare(f"{subject} is of another version or of other settings [SL-share-other-version]")
    found: Readings = {}
    for rank, file in share.choose(files).items():
        told = content["ranks"].get(str(rank))
        if not isinstance(told, dict) or _describe(file) != {k: v for k, v in told.items() if k != "why"}:
            raise MissingShare(f"{subject} is of another trace of rank {rank} [SL-share-other-trace]")
        found[rank] = str(told["why"]) if told.get("why") else folder / f"rank{rank}"
    return found


def remove_shares(run_dir: Path) -> None:
    """When the analysis is there, they are not needed any more."""
    shutil.rmtree(run_dir / SHARES, ignore_errors=True)


def _describe(file: Path) -> dict[str, Any]:
    try:
        status = file.stat()
    except OSError:  # said when it is read
        return {"file": file.name, "bytes": None, "written_ns": None}
    return {"file": file.name, "bytes": status.st_size, "written_ns": status.st_mtime_ns}
