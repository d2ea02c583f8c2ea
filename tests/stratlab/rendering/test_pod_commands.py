"""Pod templates as commands, with what Kubernetes would do to their variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratlab.pod_commands import build_pod, expand
from tests.codes import find_codes
from tests.stratlab.raised import raised


def pod(container: dict[str, Any] | None = None, **spec: Any) -> Any:
    whole = {"containers": [{"name": "c", "command": ["true"]} | (container or {})], **spec}
    return build_pod("p-0", "node0", whole, namespace="lab", injected={"A": "injected"})


def test_env_is_resolved_in_order_and_the_injected_one_wins() -> None:
    env = [
        {"name": "A", "value": "1"},
        {"name": "B", "value": "$(A)/b"},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "NS", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "t", "optional": True}}},
    ]
    built = pod(
        {"env": env, "command": ["run", "$(B)"], "args": ["$(A)", "$$(A)"]},
        initContainers=[{"name": "i", "command": ["first"]}],
    )
    assert [command.container for command in built.commands] == ["i", "c"]
    command = built.commands[1]
    assert command.env == {"A": "injected", "B": "1/b", "POD": "p-0", "NS": "lab", "HOSTNAME": "p-0"}
    assert command.arguments == ("run", "1/b", "injected", "$(A)")
    assert expand("$(X) $(Y) $$(X) $X $", {"X": "1"}) == "1 $(Y) $(X) $X $"


def test_claims_are_folders_to_make_and_scratch_must_exist(tmp_path: Path) -> None:
    mounts = [{"name": "r", "mountPath": "/r/x"}, {"name": "t", "mountPath": str(tmp_path)}]
    mounts += [{"name": "token", "mountPath": "/no/such"}]
    volumes = [{"name": "r", "persistentVolumeClaim": {"claimName": "r"}}, {"name": "t", "emptyDir": {}}]
    volumes += [{"name": "token", "projected": {"sources": []}}]
    assert pod({"volumeMounts": mounts}, volumes=volumes).claims == (Path("/r/x"),)
    mounts[1]["mountPath"] = str(tmp_path / "missing")
    failure = raised(pod, {"volumeMounts": mounts}, volumes=volumes)
    assert find_codes(failure) == ["SL-scratch-absent"] and "missing" in str(failure)


SECRET = {"name": "T", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "t"}}}


@pytest.mark.parametrize(
    ("container", "spec", "code", "named"),
    [
        ({"command": None}, {}, "SL-no-command", "container c"),
        ({"envFrom": [{}]}, {}, "SL-env-from", "container c"),
        ({"workingDir": "/no/such"}, {}, "SL-working-dir", "/no/such"),
        ({"env": [SECRET]}, {}, "SL-value-of-cluster", "T comes from secretKeyRef hf"),
        ({}, {"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}, "SL-volume-kind", "hostPath"),
        ({}, {"containers": [{"name": "a"}, {"name": "b"}]}, "SL-pod-many-containers", "a, b"),
    ],
)
def test_what_only_a_cluster_has_is_refused(
    container: dict[str, Any], spec: dict[str, Any], code: str, named: str
) -> None:
    failure = raised(pod, container, **spec)
    assert find_codes(failure) == [code] and named in str(failure)
