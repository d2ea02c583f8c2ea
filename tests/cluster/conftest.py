"""The namespaces of a session, and the record of its steps."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cluster.lab import KUBECTL, PREFIX, ROOT, Lab, Steps, run

# kind of namespace -> the namespace, and the overlay that makes it
PLACES = {"restricted": (Lab("stratlab"), "kind"), "baseline": (Lab("stratlab-mpi"), "kind-mpi")}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The path first, then the faults."""
    items.sort(key=lambda item: "test_faults" in item.nodeid)


@pytest.fixture(scope="session")
def steps() -> Steps:
    assert os.environ.get("KUBECONFIG"), "KUBECONFIG is not set: `make e2e` starts a cluster or says why not"
    version = json.loads(run([KUBECTL, "version", "-o", "json"]).stdout)["serverVersion"]["gitVersion"]
    nodes = json.loads(run([KUBECTL, "get", "nodes", "-o", "json"]).stdout)["items"]
    capacities = [node["status"]["capacity"] for node in nodes]
    facts = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": run(["git", "-C", ROOT, "rev-parse", "HEAD"], check=False).stdout.strip() or None,
        "kubernetes": version,
        "nodes": [{name: each[name] for name in ("cpu", "memory")} for each in capacities],
        "backend": "gloo, no GPU",
    }
    default = ROOT / "reports" / "raw" / "e2e-steps.json"
    return Steps(Path(os.environ.get("STRATLAB_E2E_STEPS", default)), facts)


@contextmanager
def use_lab(steps: Steps, place: str) -> Iterator[Lab]:
    """One namespace from the manifests that users apply, MLflow ready in it; taken away again at the end."""
    lab, overlay = PLACES[place]
    # for work on these tests: the namespace stays, and is used again
    keep = bool(os.environ.get("STRATLAB_E2E_KEEP"))
    there = run([KUBECTL, "get", "namespaces", "-o", "name"]).stdout.split()
    assert keep or f"namespace/{lab.namespace}" not in there, (
        f"the namespace {lab.namespace} is there already, and these tests remove theirs: use another cluster"
    )
    try:
        with steps.step(f"{place}: manifests are applied, MLflow is ready"):
            rendered = run([KUBECTL, "kustomize", ROOT / "manifests" / "overlays" / overlay]).stdout
            text = rendered.replace("image: stratlab-lab:", f"image: {PREFIX}stratlab-lab:")
            run([KUBECTL, "apply", "-f", "-"], text=text)
            lab.kubectl("rollout", "status", "deployment/mlflow", "--timeout=240s")
        yield lab
    finally:
        if not keep:
            run([KUBECTL, "delete", "namespace", lab.namespace, "--ignore-not-found"], check=False)


@pytest.fixture(scope="session")
def lab(steps: Steps) -> Iterator[Lab]:
    """The namespace that enforces Pod Security `restricted`."""
    with use_lab(steps, "restricted") as lab:
        yield lab


@pytest.fixture(scope="session")
def labs(steps: Steps, lab: Lab) -> Iterator[dict[str, Lab]]:
    """Both namespaces: `baseline` is for what `restricted` does not admit."""
    with use_lab(steps, "baseline") as baseline:
        yield {"restricted": lab, "baseline": baseline}
