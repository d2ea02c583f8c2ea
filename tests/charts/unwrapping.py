"""Every pod template that an object of any kind hides, as a plain Pod: scanners know Pods, and no custom resources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Document = dict[str, Any]

# values of run.workload.api and run.workload.topology -> where their pod templates are
WORKLOADS: dict[tuple[str, str], tuple[str, ...]] = {
    ("pytorchjob", "worker-only"): ("PyTorchJob.Worker",),
    ("pytorchjob", "master-worker"): ("PyTorchJob.Master", "PyTorchJob.Worker"),
    ("mpijob-v1", "worker-only"): ("MPIJob.Launcher", "MPIJob.Worker"),
    ("mpijob-v2beta1", "worker-only"): ("MPIJob.Launcher", "MPIJob.Worker"),
    ("trainjob", "worker-only"): ("TrainingRuntime.node",),
}
RUNNING = (  # those that run the trainer
    "PyTorchJob.Worker",
    "PyTorchJob.Master",
    "MPIJob.Worker",
    "TrainingRuntime.node",
)


def workload_values(api: str, topology: str) -> list[str]:
    """At the level that allows each of them, and whatever else the values say: --set goes before a file."""
    return [
        "--set",
        f"run.workload.api={api},run.workload.topology={topology},run.podSecurity.level=privileged",
    ]


def unwrap_pods(documents: Sequence[Document]) -> dict[str, Document]:
    """Pods by the kind of their object and, where it has several, the role in it: Job, Job.waiter, ..."""
    found: dict[str, Document] = {}
    for document in documents:
        component = document["metadata"].get("labels", {}).get("app.kubernetes.io/component")
        for role, template in find_templates(document, "waiter" if component == "waiter" else ""):
            name = document["kind"] + (f".{role}" if role else "")
            assert name not in found, f"two pods are called {name}"
            metadata = {
                "namespace": document["metadata"]["namespace"],
                "name": f"{document['metadata']['name']}-{name}".lower().replace(".", "-"),
                **{k: v for k, v in template.get("metadata", {}).items() if k in ("labels", "annotations")},
            }
            found[name] = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    return found


def find_templates(node: Any, role: str) -> Iterator[tuple[str, Document]]:
    """Whatever has a spec with containers. Its role: the list item's name, or the last key with a capital."""
    if isinstance(node, list):
        for item in node:
            yield from find_templates(item, item.get("name", role) if isinstance(item, dict) else role)
    elif isinstance(node, dict):
        if isinstance(node.get("spec"), dict) and isinstance(node["spec"].get("containers"), list):
            yield role, node
            return
        for key, value in node.items():
            yield from find_templates(value, key if key[:1].isupper() else role)
