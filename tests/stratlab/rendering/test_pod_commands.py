from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratlab.rendering.pod_commands import build_pod, expand


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
    command = pod({"env": env, "command": ["run", "$(B)"], "args": ["$(A)", "$$(A)"]}).commands[0]
    assert command.env == {"A": "injected", "B": "1/b", "POD": "p-0", "NS": "lab", "HOSTNAME": "p-0"}
    assert command.arguments == ("run", "1/b", "injected", "$(A)")


def test_expand_follows_kubernetes() -> None:
    assert expand("$(X) $(Y) $$(X) $X $", {"X": "1"}) == "1 $(Y) $(X) $X $"


def test_init_containers_come_first() -> None:
    built = pod(initContainers=[{"name": "i", "command": ["first"]}])
    assert [command.container for command in built.commands] == ["i", "c"]


def test_claims_are_folders_to_make_and_scratch_must_exist(tmp_path: Path) -> None:
    mounts = [{"name": "r", "mountPath": "/r/x"}, {"name": "t", "mountPath": str(tmp_path)}]
    volumes = [{"name": "r", "persistentVolumeClaim": {"claimName": "r"}}, {"name": "t", "emptyDir": {}}]
    assert pod({"volumeMounts": mounts}, volumes=volumes).claims == (Path("/r/x"),)
    token = {"name": "token", "projected": {"sources": []}}
    assert pod({"volumeMounts": [{"name": "token", "mountPath": "/no/such"}]}, volumes=[token]).claims == ()
    mounts[1]["mountPath"] = str(tmp_path / "missing")
    with pytest.raises(ValueError, match=r"volume t needs the folder .*missing, not there"):
        pod({"volumeMounts": mounts}, volumes=volumes)


@pytest.mark.parametrize(
    ("container", "spec", "sentence"),
    [
        ({"command": None}, {}, "no command is rendered"),
        ({"envFrom": [{}]}, {}, "envFrom is not known"),
        ({"workingDir": "/no/such"}, {}, "workingDir /no/such is not a folder here"),
        (
            {"env": [{"name": "T", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "t"}}}]},
            {},
            "T comes from secretKeyRef hf, which only a cluster has: .*run.secrets=null",
        ),
        (
            {"env": [{"name": "L", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels"}}}]},
            {},
            "L comes from fieldRef metadata.labels",
        ),
        ({}, {"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}, "volume h is a hostPath"),
        ({}, {"containers": [{"name": "a"}, {"name": "b"}]}, r"has 2 containers \(a, b\)"),
    ],
)
def test_what_only_a_cluster_has_is_refused(
    container: dict[str, Any], spec: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        pod(container, **spec)
