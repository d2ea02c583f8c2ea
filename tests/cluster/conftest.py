"""One lab per namespace for the whole session, from the manifests that users apply; taken away again at the end."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from tests.cluster.lab import KUBECTL, PREFIX, ROOT, Lab, run
from tests.cluster.steps import Steps

RESTRICTED, BASELINE = Lab("stratlab"), Lab("stratlab-mpi")
OVERLAYS = {RESTRICTED.namespace: "kind", BASELINE.namespace: "kind-mpi"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The path first, then the faults."""
    items.sort(key=lambda item: "test_faults" in item.nodeid)


@pytest.fixture(scope="session")
def steps() -> Steps:
    assert os.environ.get("KUBECONFIG"), "KUBECONFIG is not set: `make e2e` starts a cluster or says why not"
    version = json.loads(run([KUBECTL, "version", "-o", "json"]).stdout)["serverVersion"]["gitVersion"]
    nodes = json.loads(run([KUBECTL, "get", "nodes", "-o", "json"]).stdout)["items"]
    facts = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": run(["git", "-C", ROOT, "rev-parse", "HEAD"], check=False).stdout.strip() or None,
        "kubernetes": version,
        "nodes": [
            {"cpu": n["status"]["capacity"]["cpu"], "memory": n["status"]["capacity"]["memory"]}
            for n in nodes
        ],
        "backend": "gloo, no GPU",
    }
    return Steps(ROOT / "reports" / "e2e.json", facts)


@pytest.fixture(scope="session")
def labs(steps: Steps) -> Iterator[dict[str, Lab]]:
    """Both namespaces, MLflow ready in each."""
    keep = bool(
        os.environ.get("STRATLAB_E2E_KEEP")
    )  # for work on these tests: the namespaces stay, and are used again
    there = run([KUBECTL, "get", "namespaces", "-o", "name"]).stdout.split()
    taken = [name for name in OVERLAYS if f"namespace/{name}" in there]
    assert keep or not taken, (
        f"the namespace {taken[0]} is there already, and these tests remove theirs: use another cluster"
    )
    try:
        with steps.step("manifests are applied, MLflow is ready"):
            for lab in (RESTRICTED, BASELINE):
                apply_overlay(OVERLAYS[lab.namespace])
            for lab in (RESTRICTED, BASELINE):
                lab.kubectl("rollout", "status", "deployment/mlflow", "--timeout=240s")
        yield {"restricted": RESTRICTED, "baseline": BASELINE}
    finally:
        if not keep:
            for name in OVERLAYS:
                run([KUBECTL, "delete", "namespace", name, "--ignore-not-found"], check=False)


def apply_overlay(name: str) -> None:
    """`kubectl apply -k`, with the images of STRATLAB_IMAGE_PREFIX."""
    rendered = run([KUBECTL, "kustomize", ROOT / "manifests" / "overlays" / name]).stdout
    text = rendered.replace("image: stratlab-lab:", f"image: {PREFIX}stratlab-lab:")
    run([KUBECTL, "apply", "-f", "-"], text=text)


@pytest.fixture
def lab(labs: dict[str, Lab]) -> Lab:
    """The namespace that enforces Pod Security `restricted`."""
    return labs["restricted"]
