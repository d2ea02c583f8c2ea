"""checkov has nothing to say but what is waived with a reason, and is not blind."""

import copy
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from tests.charts.rendering import Document, find_program
from tests.manifests.kustomize import COMPONENTS, MANIFESTS, OVERLAYS, build, build_overlay, pick

WAIVERS = yaml.safe_load((Path(__file__).parents[1] / "waivers.yaml").read_text())


def find(objects: Mapping[str, Sequence[Document]], folder: Path) -> dict[str, set[tuple[str, str]]]:
    """By the names of `objects`: (check, kind.name) of everything that checkov does not like. It is started once."""
    for name, documents in objects.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump_all(documents))
    options = ("--framework", "kubernetes", "--output", "json", "--quiet", "--soft-fail")
    command = [str(find_program("scan/bin/checkov")), "--directory", str(folder), *options]
    # it would ask its maker's server for advice, and print a traceback where it cannot
    env = {**os.environ, "LOG_LEVEL": "CRITICAL"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    report = json.loads(done.stdout)
    assert report["summary"]["parsing_errors"] == 0 and report["summary"]["passed"] > 50, done.stderr
    found: dict[str, set[tuple[str, str]]] = {name: set() for name in objects}
    for failed in report["results"]["failed_checks"]:
        kind, _, name = failed["resource"].split(".")[:3]  # kind.namespace.name
        found[Path(failed["file_path"]).stem].add((failed["check_id"], f"{kind}.{name}"))
    return found


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[tuple[str, str]]]:
    """Of all overlays and components at once (objects of one kind and name count once), and of planted ones."""
    everything = [*build_overlay("kind", *COMPONENTS)]
    for overlay in OVERLAYS:
        everything += build(MANIFESTS / "overlays" / overlay)
    broken = copy.deepcopy(build(MANIFESTS / "overlays" / "kind"))
    pod = pick(broken, "Deployment", "mlflow")["spec"]["template"]["spec"]
    pod["hostNetwork"] = True
    pod["containers"][0]["securityContext"]["privileged"] = True
    pick(broken, "Role", "stratlab-user")["rules"].append(
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    )
    return find({"shipped": everything, "planted": broken}, tmp_path_factory.mktemp("scan"))


def test_only_what_is_waived_is_found(findings: dict[str, set[tuple[str, str]]]) -> None:
    waived = {(entry["check"], entry["resource"]) for entry in WAIVERS}
    assert all(len(entry["reason"]) > 40 for entry in WAIVERS)
    assert findings["shipped"] == waived


def test_checkov_sees_into_the_pods(findings: dict[str, set[tuple[str, str]]]) -> None:
    found = findings["planted"]
    assert {("CKV_K8S_19", "Deployment.mlflow"), ("CKV_K8S_16", "Deployment.mlflow")} <= found
    assert ("CKV_K8S_158", "Role.stratlab-user") in found
