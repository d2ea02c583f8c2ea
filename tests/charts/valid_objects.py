"""Would the cluster accept these objects? Pods and core kinds by their schemas, custom resources by their SDK.

Scanners know Pods alone: every pod template that an object of any kind hides is unwrapped as a plain Pod.
"""

import re
from typing import Any

import kubeflow.training.models as training_models
import kubernetes_validate

from tests.charts.pod_security import label_problems, pod_problems
from tests.charts.rendering import NAMESPACE

Document = dict[str, Any]

# values of run.workload.api and run.workload.topology -> where their pod templates are
WORKLOADS = {
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


def workload_values(api, topology):
    """At the level that allows each of them, and whatever else the values say: --set goes before a file."""
    return [
        "--set",
        f"run.workload.api={api},run.workload.topology={topology},run.podSecurity.level=privileged",
    ]


def unwrap_pods(documents):
    """Pods by the kind of their object and, where it has several, the role in it: Job, Job.waiter, ..."""
    found = {}
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


def find_templates(node, role):
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


# The oldest whose schema takes an exit code rule of podFailurePolicy, and the newest there is a schema for.
VERSIONS = ("1.29", "1.37")


def problems(documents):
    """One sentence per reason why an object would be refused."""
    found = []
    for document in documents:
        model = f"KubeflowOrgV1{document['kind']}"
        texts = label_problems(document["metadata"].get("labels", {}))
        if document["apiVersion"] == "kubeflow.org/v1":
            texts += _unknown_fields(model, document, document["kind"])
        elif "kubeflow.org" not in document["apiVersion"]:
            texts += core_problems(document)
        if document["metadata"]["namespace"] != NAMESPACE:
            texts.append("not in the namespace of the release")
        found += [f"{document['kind']}: {text}" for text in texts]
    for name, pod in unwrap_pods(documents).items():
        found += [f"{name}: {text}" for text in (core_problems(pod) or pod_problems(pod))]
    return found


def core_problems(document):
    found = []
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as failure:
            found.append(f"{document['metadata']['name']}: {version}: {failure}")
    return found


def _unknown_fields(type_name, node, place):
    """Names that the models of the operator do not have; what they have of Kubernetes is checked as such."""
    inner = re.fullmatch(r"(?:list\[|dict\(str, )(.*)[\])]", type_name)
    if inner:
        parts = node.items() if isinstance(node, dict) else enumerate(node)
        for key, part in parts:
            yield from _unknown_fields(inner[1], part, f"{place}.{key}")
    elif model := getattr(training_models, type_name, None):
        attributes = {name: attribute for attribute, name in model.attribute_map.items()}
        for name, part in node.items():
            if name not in attributes:
                yield f"{place}.{name} is not known"
            else:
                yield from _unknown_fields(model.openapi_types[attributes[name]], part, f"{place}.{name}")
