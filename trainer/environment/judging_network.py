"""Whether ranks reach each other, by what, and as fast as that should be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainer.environment.expectation import expect_bandwidth
from trainer.environment.facts import Asked, Facts, join_names, name_rank, read_error
from trainer.environment.findings import PROBLEM, Finding

FIXES = {
    "nccl": "the link itself (nvidia-smi topo -m, ibstat, ethtool), NCCL_SOCKET_IFNAME, NCCL_IB_HCA",
    "gloo": "the link itself (ethtool, ip -s link), GLOO_SOCKET_IFNAME, what else keeps the machines busy",
}
"""Where an all-reduce is slow."""
FAILED_FIXES = {
    "nccl": "NCCL_DEBUG=INFO, addresses and ports between the pods, /dev/shm",
    "gloo": "addresses and ports between the pods or processes, GLOO_SOCKET_IFNAME",
}


def judge_network(asked: Asked, facts: Facts) -> Iterator[Finding]:
    failed = False
    for rank, found in sorted(facts.items()):
        for name in ("clock", "files of the others", "all-reduce"):
            if error := read_error(found, name):
                failed = True
                fix = FAILED_FIXES[found["meeting"]["backend"]]
                seen = f"{name_rank(rank, facts)}: {name} failed: {error} [SL-exchange-failed]"
                yield Finding(PROBLEM, "network", seen, fix)
                break
    first = facts.get(0, {})
    sizes = first.get("all-reduce", {})
    if failed or "all" not in sizes:
        return
    backend = first["meeting"]["backend"]
    words = {word for found in facts.values() for word in _describe_transport(found.get("transport", {}))}
    how = f"{backend}{' over ' + join_names(words) if words else ''}"
    if asked.ranks == 1:
        yield Finding("ok", "all-reduce", f"{how}: one rank, nothing to send")
        return
    for scope, table in sizes.items():
        least, reason = expect_bandwidth(asked, facts, scope)
        reached = table[-1]["gb_per_s"]  # a small message may pass a slow link in one burst
        text = ", ".join(f"{_size(row['mib'])} {row['gb_per_s']:.3g} GB/s" for row in table)
        where = f"{asked.ranks} ranks" if scope == "all" else f"the {asked.per_node} ranks of a pod"
        subject = "all-reduce" if scope == "all" else "within a pod"
        seen = f"{where} by {how}: {text}"
        if least and reached < least:
            seen += f"; expected at least {least:.3g} GB/s ({reason}) [SL-link-slow]"
            yield Finding(PROBLEM, subject, seen, FIXES[backend])
        else:
            yield Finding("ok", subject, seen + (f" (at least {least:.3g} expected)" if least else ""))


def _describe_transport(chosen: Mapping[str, Any]) -> list[str]:
    return [*chosen.get("via", []), *(f"network {name}" for name in chosen.get("network", []))]


def _size(mib: float) -> str:
    return f"{mib:.0f} MiB" if mib >= 1 else f"{mib * 1024:.0f} KiB"
