"""What the namespace allows: its quotas, how much of them is used, and what every container must say for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from stratlab.check.finding import Finding, ask, unseen
from stratlab.cluster.connection import Connection

OF_CONTAINERS = ("limits.cpu", "limits.memory", "requests.cpu", "requests.memory", "limits.ephemeral-storage")
SET_BY_CHARTS = ("limits.memory", "requests.cpu", "requests.memory")
"""The charts set them for every pod that does not train, and requests for those that do."""


def check_quotas(connection: Connection, namespace: str) -> Iterator[Finding]:
    """One line per quota, and one for the amounts that no default of the namespace gives; none without a quota."""
    core = f"/api/v1/namespaces/{namespace}"
    quotas, ranges = ask(connection, f"{core}/resourcequotas"), ask(connection, f"{core}/limitranges")
    if not isinstance(quotas, dict):
        if quotas == 403:
            yield unseen("quotas", "ResourceQuotas")
        return
    wanted: set[str] = set()
    for quota in quotas["items"]:
        yield judge_quota(quota)
        wanted |= (quota["spec"].get("hard") or {}).keys() & {*OF_CONTAINERS}
    given = find_defaults(ranges) if isinstance(ranges, dict) else set()
    missing = sorted(wanted - given - {*SET_BY_CHARTS})
    if missing:
        names = " and ".join(f"run.resources.{name} and run.analysis.resources.{name}" for name in missing)
        seen = f"every container must say {', '.join(missing)}, and no LimitRange gives a default [SL-quota-no-default]"
        yield Finding("warning", "quotas", seen, f"set {names} of every run")


def judge_quota(quota: Mapping[str, Any]) -> Finding:
    """How much of each amount is used; a warning where one is used up."""
    hard = quota["spec"].get("hard") or {}
    used = (quota.get("status") or {}).get("used") or {}
    full = [name for name in hard if name in used and _is_used_up(used[name], hard[name])]
    text = ", ".join(f"{name} {used.get(name, '?')} of {amount}" for name, amount in sorted(hard.items()))
    subject = f"quota {quota['metadata']['name']}"
    if full:
        fix = "no pod that asks for it starts until others have ended"
        return Finding("warning", subject, f"{', '.join(full)} used up; {text} used [SL-quota-used-up]", fix)
    return Finding("ok", subject, f"{text} used")


def find_defaults(ranges: Mapping[str, Any]) -> set[str]:
    """The amounts that a LimitRange gives to containers without: limits.cpu, requests.memory, ..."""
    found = set()
    for item in (each for one in ranges["items"] for each in one["spec"].get("limits") or []):
        if item.get("type") != "Container":
            continue
        limits = (item.get("default") or item.get("max") or {}).keys()
        found |= {f"limits.{name}" for name in limits}
        found |= {f"requests.{name}" for name in limits | (item.get("defaultRequest") or {}).keys()}
    return found


def _is_used_up(used: str, hard: str) -> bool:
    try:
        return bool(parse_quantity(used) >= parse_quantity(hard) > 0)
    except ValueError:
        return False
