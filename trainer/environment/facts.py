"""What a check was asked for and what its ranks have posted, read without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Facts = Mapping[int, Mapping[str, Any]]
"""Rank -> what it has posted (trainer/environment/rank.py)."""


STOPPED = "stopped"
"""The end of a rank that nothing was wrong with: torch ends all of a pod where one has failed."""


@dataclass(frozen=True)
class Asked:
    """What the run would ask for: pods, ranks in each, and the expected GB/s of an all-reduce, 0.0 = not stated."""

    nodes: int
    per_node: int
    accelerator: str = ""
    results: str = "results"
    least_gb_per_s: float = 0.0
    limit_s: float = 120.0

    @property
    def ranks(self) -> int:
        return self.nodes * self.per_node


def find_firsts(facts: Facts, name: str) -> Iterator[Mapping[str, Any]]:
    """Those of each pod that have looked at what belongs to the pod."""
    yield from (found for _, found in sorted(facts.items()) if name in found)


def read_error(found: Mapping[str, Any], name: str) -> str:
    value = found.get(name)
    return str(value.get("error") or "") if isinstance(value, Mapping) else ""


def name_rank(rank: int, facts: Facts) -> str:
    found = facts.get(rank, {})
    where = found.get("node") or found.get("pod")
    return (
        f"rank {rank} ({found['pod']}{' on ' + where if where != found['pod'] else ''})"
        if where
        else f"rank {rank}"
    )


def join_names(names: Sequence[Any] | set[Any] | Iterator[Any]) -> str:
    return ", ".join(map(str, sorted(names)))
