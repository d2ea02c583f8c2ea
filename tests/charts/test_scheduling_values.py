"""What Kubernetes refuses of affinity and tolerations, of the pods alone, the schema refuses first."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from jsonschema import Draft202012Validator

from charts.values_schema import values_schema
from tests.charts.bad_values import build_values, merge_defaults

SCHEMA = Draft202012Validator(values_schema())
SECOND = jsonschema_rs.validator_for(values_schema())
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def find_refused(path: str, value: Any) -> set[str]:
    """The paths of what is refused, by two validators that must agree."""
    values = merge_defaults(build_values((path, value)))
    refused = {".".join(map(str, error.absolute_path)) for error in SCHEMA.iter_errors(values)}
    assert {".".join(map(str, error.instance_path)) for error in SECOND.iter_errors(values)} == refused
    return refused


def on_nodes(*conditions: dict[str, Any]) -> dict[str, Any]:
    terms = [{"matchExpressions": [{"key": "gpu", **condition} for condition in conditions]}]
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}


def beside(condition: dict[str, Any]) -> dict[str, Any]:
    selector = {"matchExpressions": [{"key": "app", **condition}]}
    return {"podAffinity": {REQUIRED: [{"topologyKey": "rack", "labelSelector": selector}]}}


IN_NODES = f"pod.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms"
IN_PODS = f"pod.affinity.podAffinity.{REQUIRED}.0.labelSelector.matchExpressions.0"


@pytest.mark.parametrize(
    ("affinity", "refused"),
    [
        ({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": []}}}, IN_NODES),
        ({"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{}]}}}, f"{IN_NODES}.0"),
        (on_nodes(), f"{IN_NODES}.0.matchExpressions"),
        (on_nodes({"operator": "In", "values": []}), f"{IN_NODES}.0.matchExpressions.0.values"),
        (on_nodes({"operator": "NotIn"}), f"{IN_NODES}.0.matchExpressions.0"),
        (on_nodes({"operator": "Gt"}), f"{IN_NODES}.0.matchExpressions.0"),
        (on_nodes({"operator": "Exists", "values": ["a"]}), f"{IN_NODES}.0.matchExpressions.0.values"),
        (beside({"operator": "Gt", "values": ["1"]}), f"{IN_PODS}.operator"),
        (beside({"operator": "In", "values": []}), f"{IN_PODS}.values"),
        (on_nodes({"operator": "Gt", "values": ["1"]}), ""),
        (on_nodes({"operator": "In", "values": ["a"]}, {"operator": "DoesNotExist"}), ""),
        (beside({"operator": "NotIn", "values": ["a", "b"]}), ""),
        (beside({"operator": "Exists"}), ""),
    ],
    ids=str,
)
def test_affinity(affinity: dict[str, Any], refused: str) -> None:
    assert find_refused("pod.affinity", affinity) == ({refused} if refused else set())


@pytest.mark.parametrize(
    ("toleration", "refused"),
    [
        ({"key": "gpu", "operator": "Exists", "value": "yes"}, "scheduling.tolerations.0.value"),
        ({"operator": "Equal", "value": "yes"}, "scheduling.tolerations.0"),
        ({"value": "yes"}, "scheduling.tolerations.0"),
        ({"operator": "Exists"}, ""),
        ({"key": "gpu", "operator": "Exists", "value": ""}, ""),
        ({"key": "gpu", "value": "yes"}, ""),
        ({"key": "gpu", "operator": "Equal", "value": ""}, ""),
    ],
    ids=str,
)
def test_tolerations(toleration: dict[str, Any], refused: str) -> None:
    assert find_refused("scheduling.tolerations", [toleration]) == ({refused} if refused else set())
