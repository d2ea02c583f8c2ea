"""What to change, by the rules R1 to R12: each with its numbers, and the values to set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratlab.analysis.advice.evidence import build_values, read_hosts, read_settings
from stratlab.analysis.advice.rulebook.all_rules import RULES
from stratlab.analysis.advice.rulebook.rule import Remedy, Rule, Severity, holds
from stratlab.analysis.reporting.run_facts import RunFacts

ORDER: tuple[Severity, ...] = ("high", "medium", "low")
ON_CPU = "On this CPU run: "


def build_recommendations(report: Mapping[str, Any], facts: RunFacts) -> list[dict[str, Any]]:
    """The rules that fire, the most severe first, then by the share of the step (of memory, of compute) concerned.

    Args:
        report: schema_version 2.
        facts: for config.json and the hosts of ranks/rank<i>.json.

    Returns:
        rule, severity, title, advice, settings {name: value}, evidence {name: number}. `settings` names a value of
        the chart (`run.config.*`) or, without a dot, an environment variable for `run.env`. Of traces that this lab did
        not make neither text nor settings name a value of the chart.
    """
    hosts = read_hosts(facts.folder, report["ranks"])
    return apply_rules(build_values(report, read_settings(facts.folder), hosts))


def apply_rules(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The same from named values."""
    on_cpu = values.get("source") == "cpu"
    fired = [rule for rule in RULES if not (rule.gpu_only and on_cpu) and holds(rule.when, values)]
    doubtful = any(rule.doubtful for rule in fired)
    found = []
    for id in dict.fromkeys(rule.id for rule in fired):
        first, *others = (rule for rule in fired if rule.id == id)
        entry = _build(first, values, on_cpu)
        for other in others:
            entry["advice"] += f" Also: {_fill(other.title, values)}."
            entry["evidence"] |= _evidence(other, values)
        if doubtful and id != "R12":
            entry["severity"] = ORDER[min(ORDER.index(entry["severity"]) + 1, len(ORDER) - 1)]
        found.append((ORDER.index(entry["severity"]), -(values.get(first.lead) or 0.0), entry))
    return [entry for _, _, entry in sorted(found, key=lambda item: item[:2])]


def _build(rule: Rule, values: Mapping[str, Any], on_cpu: bool) -> dict[str, Any]:
    remedy = next((r for r in rule.remedies if holds(r.when, values)), Remedy(""))
    lead = values.get(rule.lead)
    is_high = rule.high_above is not None and lead is not None and lead > rule.high_above
    title = _fill(rule.title, values)
    return {
        "rule": rule.id,
        "severity": "high" if is_high else rule.severity,
        "title": (ON_CPU + title[0].lower() + title[1:] if on_cpu and rule.id != "R12" else title) + ".",
        "advice": _fill(remedy.advice, values),
        "settings": {name: _fill(value, values) for name, value in remedy.settings.items()},
        "evidence": _evidence(rule, values),
    }


def _evidence(rule: Rule, values: Mapping[str, Any]) -> dict[str, float]:
    names = dict.fromkeys((*(condition[0] for condition in rule.when), *rule.evidence))
    return {
        name: value
        for name in names
        if isinstance(value := values.get(name), int | float) and not isinstance(value, bool)
    }


def _fill(template: str, values: Mapping[str, Any]) -> str:
    return template.format_map(values)
