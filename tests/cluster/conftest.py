"""The namespaces of a session, and the record of what was done: each test, whether it passed, how long it took."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from stratlab_spec.run_directory import write_json
from tests.cluster.lab import KUBECTL, PREFIX, ROOT, Lab, run

# kind of namespace -> the namespace, and the overlay that makes it
PLACES = {"restricted": (Lab("stratlab"), "kind"), "baseline": (Lab("stratlab-mpi"), "kind-mpi")}
DEFAULT = ROOT / "reports" / "raw" / "e2e-steps.json"
STEPS: list[dict[str, Any]] = []
FACTS: dict[str, Any] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: "test_faults" in item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """The file is rewritten after each test, so that a broken run leaves what it had."""
    report: Any = yield
    if report.when == "call" and item.get_closest_marker("cluster"):
        FACTS.update(FACTS or read_facts())
        seconds, note = round(report.duration, 1), "; ".join(str(v) for _, v in report.user_properties)
        STEPS.append({"step": item.nodeid, "passed": report.passed, "seconds": seconds, "note": note})
        totals = {
            "passed": all(each["passed"] for each in STEPS),
            "seconds": sum(each["seconds"] for each in STEPS),
        }
        path = Path(os.environ.get("STRATLAB_E2E_STEPS", DEFAULT))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, FACTS | totals | {"steps": STEPS})
    return report


def read_facts() -> dict[str, Any]:
    version = json.loads(run([KUBECTL, "version", "-o", "json"]).stdout)["serverVersion"]["gitVersion"]
    nodes = json.loads(run([KUBECTL, "get", "nodes", "-o", "json"]).stdout)["items"]
    capacities = [node["status"]["capacity"] for node in nodes]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": run(["git", "-C", ROOT, "rev-parse", "HEAD"], check=False).stdout.strip() or None,
        "kubernetes": version,
        "nodes": [{name: each[name] for name in ("cpu", "memory")} for each in capacities],
        "backend": "gloo, no GPU",
    }


@contextmanager
def use_lab(place: str) -> Iterator[Lab]:
    """One namespace from the manifests that users apply, MLflow ready in it; taken away again at the end."""
    assert os.environ.get("KUBECONFIG"), "KUBECONFIG is not set: `make e2e` starts a cluster or says why not"
    lab, overlay = PLACES[place]
    # for work on these tests: the namespace stays, and is used again
    keep = bool(os.environ.get("STRATLAB_E2E_KEEP"))
    there = run([KUBECTL, "get", "namespaces", "-o", "name"]).stdout.split()
    assert keep or f"namespace/{lab.namespace}" not in there, (
        f"the namespace {lab.namespace} is there already, and these tests remove theirs: use another cluster"
    )
    try:
        rendered = run([KUBECTL, "kustomize", ROOT / "manifests" / "overlays" / overlay]).stdout
        text = rendered.replace("image: stratlab-lab:", f"image: {PREFIX}stratlab-lab:")
        run([KUBECTL, "apply", "-f", "-"], text=text)
        lab.kubectl("rollout", "status", "deployment/mlflow", "--timeout=240s")
        yield lab
    finally:
        if not keep:
            run([KUBECTL, "delete", "namespace", lab.namespace, "--ignore-not-found"], check=False)


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    with use_lab("restricted") as lab:
        yield lab


@pytest.fixture(scope="session")
def labs(lab: Lab) -> Iterator[dict[str, Lab]]:
    """Both namespaces: `baseline` is for what `restricted` does not admit."""
    with use_lab("baseline") as baseline:
        yield {"restricted": lab, "baseline": baseline}
