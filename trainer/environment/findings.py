"""`Asked` has the requirements of the check. Ranks post facts (trainer/environment/rank.py).

Each `Finding` is one line of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from stratlab_spec.findings import Finding

Facts = Mapping[int, Mapping[str, Any]]
"""Rank -> its posted facts (trainer/environment/rank.py)."""
STOPPED = "stopped"
"""End of a healthy rank: torch ends all ranks of a pod after one failed."""


@dataclass(frozen=True)
class Asked:
    """Requirements of the run: pods, ranks per pod, and the expected GB/s of an all-reduce, 0.0 = not stated."""

    nodes: int
    per_node: int
    results: str = "results"
    least_gb_per_s: float = 0.0
    limit_s: float = 120.0

    @property
    def ranks(self) -> int:
        return self.nodes * self.per_node


def find_firsts(facts: Facts, name: str) -> Iterator[Mapping[str, Any]]:
    """Yield the facts of each pod's rank that examined the pod's `name`."""
    yield from (found for _, found in sorted(facts.items()) if name in found)


def read_error(found: Mapping[str, Any], name: str) -> str:
    value = found.get(name)
    return str(value.get("error") or "") if isinstance(value, Mapping) else ""


def name_rank(rank: int, facts: Facts) -> str:
    pod, node = facts.get(rank, {}).get("pod"), facts.get(rank, {}).get("node")
    where = f"{pod} on {node}" if node and node != pod else pod
    return f"rank {rank} ({where})" if where else f"rank {rank}"


def join_names(names: Iterable[Any]) -> str:
    return ", ".join(map(str, sorted(names)))


PROBLEM: Literal["problem"] = "problem"


ok = partial(Finding, "ok")
warning = partial(Finding, "warning")
problem = partial(Finding, PROBLEM)


def describe(findings: Sequence[Finding]) -> str:
    """Format the table; each problem or warning has its fix in the next line."""
    width = max((len(finding.subject) for finding in findings), default=0)
    lines = []
    for finding in findings:
        lines.append(f"{finding.state:<8} {finding.subject:<{width}}  {finding.seen}")
        if finding.fix:
            lines.append(f"{'':8} {'':{width}}  -> {finding.fix}")
    found = {kind: sum(each.state == kind for each in findings) for kind in (PROBLEM, "warning")}
    counted = ", ".join(f"{number} {kind}{'' if number == 1 else 's'}" for kind, number in found.items())
    lines.append(counted if any(found.values()) else "nothing is missing")
    return "\n".join(lines)
