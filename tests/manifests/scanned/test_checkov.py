"""checkov has nothing to say but what is waived with a reason, and is not blind."""

from __future__ import annotations

import copy
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from tests.charts.rendering import Document, find_program
from tests.manifests.kustomize import COMPONENTS, MANIFESTS, OVERLAYS, build, pick, write_overlay

WAIVERS = yaml.safe_load((Path(__file__).parents[1] / "waivers.yaml").read_text())


def findings(documents: Sequence[Document], folder: Path) -> set[tuple[str, str]]:
    """(check, kind.name) of everything that checkov does not like."""
    file = folder / "objects.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    checkov = find_program("scan/bin/checkov")
    command = [str(checkov), "--framework", "kubernetes", "--file", str(file), "--output", "json", "--quiet"]
    # it would ask its maker's server for advice, and print a traceback where it cannot
    env = {**os.environ, "LOG_LEVEL": "CRITICAL"}
    done = subprocess.run([*command, "--soft-fail"], capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["parsing_errors"] == 0 and report["summary"]["passed"] > 50
    found = set()
    for failed in report["results"]["failed_checks"]:
        kind, _, name = failed["resource"].split(".")[:3]  # kind.namespace.name
        found.add((failed["check_id"], f"{kind}.{name}"))
    return found


def test_only_what_is_waived_is_found(tmp_path: Path) -> None:
    """All overlays at once, and the components: objects of the same kind and name count once."""
    everything = build(write_overlay(tmp_path, "kind", COMPONENTS))
    for overlay in OVERLAYS:
        everything += build(MANIFESTS / "overlays" / overlay)
    waived = {(entry["check"], entry["resource"]) for entry in WAIVERS}
    assert all(len(entry["reason"]) > 40 for entry in WAIVERS)
    assert findings(everything, tmp_path) == waived


def test_checkov_sees_into_the_pods(kind: list[Document], tmp_path: Path) -> None:
    broken = copy.deepcopy(kind)
    pod = pick(broken, "Deployment", "mlflow")["spec"]["template"]["spec"]
    pod["hostNetwork"] = True
    pod["containers"][0]["securityContext"]["privileged"] = True
    pick(broken, "Role", "stratlab-user")["rules"].append(
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    )
    found = findings(broken, tmp_path)
    assert {("CKV_K8S_19", "Deployment.mlflow"), ("CKV_K8S_16", "Deployment.mlflow")} <= found
    assert ("CKV_K8S_158", "Role.stratlab-user") in found


@pytest.mark.parametrize("entry", WAIVERS, ids=[entry["check"] for entry in WAIVERS])
def test_a_waiver_is_complete(entry: dict[str, str]) -> None:
    assert entry.keys() == {"check", "resource", "reason"}
