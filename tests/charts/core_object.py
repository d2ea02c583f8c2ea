"""Would a cluster accept this object of a core kind? Strictly: no unknown field, and the rules of a Job."""

from __future__ import annotations

import re
from typing import Any

import kubernetes_validate

from tests.charts.pod_rules import LABEL, label_problems, pod_problems

# The oldest whose schema takes an exit code rule of podFailurePolicy, and the newest there is a schema for.
VERSIONS = ("1.29", "1.37")


def core_object_problems(document: dict[str, Any]) -> list[str]:
    """One sentence per reason; empty = it would be accepted. Of a kind that is not known here, that is the reason."""
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.SchemaNotFoundError:
            return [f"{document['apiVersion']} {document['kind']}: no schema in Kubernetes {version}"]
        except kubernetes_validate.ValidationError as failure:
            return [f"Kubernetes {version}: {failure.message}"]
    rules = {"Job": job_problems, "Pod": hook_pod_problems}
    if document["kind"] not in rules:
        return [f"{document['kind']}: give it rules of its own in {__name__}"]
    return rules[document["kind"]](document)


def hook_pod_problems(pod: dict[str, Any]) -> list[str]:
    """Of a pod that only a hook of helm makes: another one would run beside the run, and nobody would start it anew."""
    problems = label_problems(pod["metadata"].get("labels", {})) + pod_problems(pod)
    if "helm.sh/hook" not in pod["metadata"].get("annotations", {}):
        problems.append("a Pod that is no hook: nobody starts it anew, use a Job")
    if len(pod["metadata"]["name"]) > 63:
        problems.append("metadata.name has more than 63 characters")
    if pod["spec"].get("restartPolicy") != "Never":
        problems.append("restartPolicy of a hook must be Never: helm waits for its end")
    return problems


def job_problems(job: dict[str, Any]) -> list[str]:
    name, template = job["metadata"]["name"], job["spec"]["template"]
    policy = template["spec"].get("restartPolicy")
    problems = label_problems(job["metadata"].get("labels", {})) + pod_problems(template)
    if not LABEL.fullmatch(name) or len(name) > 63:
        problems.append(
            f"metadata.name {name!r} is no label of at most 63 characters, its pods carry it as one"
        )
    if policy not in ("Never", "OnFailure"):
        problems.append(f"restartPolicy {policy}: a Job takes Never or OnFailure")
    return problems + failure_policy_problems(job["spec"])


def failure_policy_problems(spec: dict[str, Any]) -> list[str]:
    """Of the `spec` of a Job."""
    rules = spec.get("podFailurePolicy", {}).get("rules", [])
    problems = [text for rule in rules for text in _failure_rule_problems(rule)]
    if rules and spec["template"]["spec"].get("restartPolicy") != "Never":
        problems.append("podFailurePolicy needs restartPolicy Never")
    return problems


def _failure_rule_problems(rule: dict[str, Any]) -> list[str]:
    problems = []
    if rule["action"] not in ("FailJob", "FailIndex", "Ignore", "Count"):
        problems.append(f"podFailurePolicy: action {rule['action']} is not known")
    if ("onExitCodes" in rule) == ("onPodConditions" in rule):
        problems.append("podFailurePolicy: a rule has either onExitCodes or onPodConditions")
    codes = rule.get("onExitCodes", {"operator": "In", "values": [1]})
    if codes["operator"] not in ("In", "NotIn"):
        problems.append(f"podFailurePolicy: operator {codes['operator']} is not known")
    if not codes["values"] or codes["values"] != sorted(set(codes["values"])):
        problems.append("podFailurePolicy: exit codes must be ascending")
    if codes["operator"] == "In" and 0 in codes["values"]:
        problems.append("podFailurePolicy: 0 is no failure")
    for condition in rule.get("onPodConditions", []):
        if not re.fullmatch("True|False|Unknown", condition.get("status", "")):
            problems.append("podFailurePolicy: status of a condition is True, False or Unknown")
    return problems
