"""One file of another program that is the trace of one rank, and which."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stratlab.traces.archives import SourceFile
from stratlab.traces.chunks import Limits
from stratlab.traces.identity import Identity, read_identity
from stratlab.traces.manifest import find_problem
from stratlab.traces.rank_names import Place, find_named_rank, find_place, say_other_name
from stratlab.user_error import UserError


@dataclass(frozen=True)
class TraceFile:
    """A trace of one rank.

    Attributes:
        rank_from: pattern, distributedInfo, file name or folder name.
        remark: what is odd about its name.
    """

    file: SourceFile
    identity: Identity
    rank: int | None
    rank_from: str
    place: Place
    remark: str | None = None


def look_into(file: SourceFile, pattern: re.Pattern[str] | None, limits: Limits) -> TraceFile | str:
    """The trace, or why the file is none.

    Raises:
        UserError: what the pattern finds is no number.
    """
    if problem := find_problem(file.path, limits.raw_bytes):
        return problem
    asked = pattern.search(file.shown) if pattern else None
    if pattern and not asked:
        return f"--rank-pattern {pattern.pattern} is not in its name [SL-rank-pattern-absent]"
    if pattern and asked and not (asked[1] or "").isdecimal():
        raise UserError(
            f"--rank-pattern {pattern.pattern}: {asked[1]!r} of {file.shown} is no rank [SL-rank-pattern-no-number]"
        )
    place, named, rank_from = find_place(file.parts, asked), *find_named_rank(file.parts)
    identity = read_identity(file.path, limits)
    if identity.problem is not None:
        return identity.problem
    rank, remark = named, None
    if asked:
        rank, rank_from = int(asked[1]), "pattern"
    elif identity.rank is not None:
        rank, rank_from = identity.rank, "distributedInfo"
        remark = say_other_name(named, rank) if named not in (None, rank) else None
    return TraceFile(file, identity, rank, rank_from, place, remark)
