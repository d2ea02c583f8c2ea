"""What every object must be: known to Kubernetes, in the one namespace, labelled, restricted."""

import copy
import re

import pytest
import yaml

from tests.charts.pod_security import find_pods, label_problems, pod_problems, restricted_problems
from tests.charts.rendering import Document
from tests.charts.valid_objects import core_problems
from tests.manifests.kustomize import (
    COMPONENTS,
    MANIFESTS,
    OVERLAYS,
    build,
    build_overlay,
    kinds,
    pick,
    write_overlay,
)

CLUSTER_WIDE = {"ClusterRole", "ClusterRoleBinding", "PersistentVolume"}


def namespaces(documents: list[Document]) -> set[str | None]:
    return {d["metadata"].get("namespace") for d in documents if d["kind"] != "Namespace"}


def test_every_object(documents: list[Document], overlay: str) -> None:
    """Kubernetes knows every field; one namespace, and nothing else cluster-wide; no Secret is made here."""
    assert len(documents) >= 14 and [text for document in documents for text in core_problems(document)] == []
    (namespace,) = kinds(documents, "Namespace")
    assert (
        {namespace["metadata"]["name"]}
        == namespaces(documents)
        == {"stratlab-mpi" if "every" in overlay else "stratlab"}
    )
    assert not {d["kind"] for d in documents} & {*CLUSTER_WIDE, "Secret"}
    for document in documents:
        labels = document["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "stratlab" and label_problems(labels) == []
        if document["kind"] != "Namespace":
            assert {"app.kubernetes.io/name", "app.kubernetes.io/component"} <= labels.keys()


def test_an_unknown_field_is_caught(kind: list[Document]) -> None:
    broken = copy.deepcopy(pick(kind, "Deployment", "mlflow"))
    broken["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    assert "readinesProbe" in core_problems(broken)[0]


def test_pod_security_of_the_namespace(documents: list[Document], overlay: str) -> None:
    labels = kinds(documents, "Namespace")[0]["metadata"]["labels"]
    prefix = "pod-security.kubernetes.io/"
    expected = {"enforce": "restricted", "audit": "restricted", "warn": "restricted"}
    if "every" in overlay:
        expected["enforce"] = "baseline"  # the operator's init container of an MPIJob v1
    expected |= {f"{mode}-version": "latest" for mode in expected}
    assert {k.removeprefix(prefix): v for k, v in labels.items() if k.startswith(prefix)} == expected


def test_every_pod_is_restricted_and_without_a_token_or_a_password(documents: list[Document]) -> None:
    pods = [each["spec"]["template"] for each in kinds(documents, "Deployment")]
    assert [pod["spec"] for pod in pods] == [*find_pods(documents)] != []
    for pod, spec in ((pod, pod["spec"]) for pod in pods):
        assert restricted_problems(spec) == pod_problems(pod) == []
        assert spec["automountServiceAccountToken"] is False
        assert {spec["securityContext"][name] for name in ("runAsUser", "runAsGroup", "fsGroup")} == {10001}
        for container in spec["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["resources"]["limits"].keys() >= {"cpu", "memory"}
            assert not [e for e in container.get("env", []) if re.search("://.*@", e.get("value", ""))]


def test_services_find_pods_and_pods_find_claims(documents: list[Document]) -> None:
    template = pick(documents, "Deployment", "mlflow")["spec"]["template"]
    service = pick(documents, "Service", "mlflow")
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    claims = {claim["metadata"]["name"] for claim in kinds(documents, "PersistentVolumeClaim")}
    used = [v["persistentVolumeClaim"] for v in template["spec"]["volumes"] if "persistentVolumeClaim" in v]
    assert {claim["claimName"] for claim in used} <= claims


def test_the_results_claim_is_shared_where_there_are_several_nodes(
    documents: list[Document], overlay: str
) -> None:
    """On a cluster with a class that the API server refuses, until it is set: one on a wrong class stays wrong."""
    claim = pick(documents, "PersistentVolumeClaim", "stratlab-results")["spec"]
    assert claim["accessModes"] == (["ReadWriteMany"] if "cluster" in overlay else ["ReadWriteOnce"])
    assert (" " in claim.get("storageClassName", "")) == ("cluster" in overlay)


@pytest.mark.parametrize("component", COMPONENTS)
def test_another_namespace_is_one_line(component: str) -> None:
    documents = build_overlay("kind", component, namespace="team-a")
    (namespace,) = kinds(documents, "Namespace")
    assert {namespace["metadata"]["name"]} == namespaces(documents) == {"team-a"}
    (binding,) = kinds(documents, "RoleBinding")
    assert binding["subjects"][0]["namespace"] == "team-a"


@pytest.mark.parametrize(
    ("overlay", "component"), [*zip(OVERLAYS, COMPONENTS, strict=True), ("cluster", "mpi")]
)
def test_a_component_on_top_of_any_overlay_follows_its_namespace(
    tmp_path_factory: pytest.TempPathFactory, overlay: str, component: str
) -> None:
    """A user's overlay has a namespace of its own, and another one above it adds the component."""
    below = write_overlay(tmp_path_factory.mktemp("below"), overlay, namespace="team-a")
    documents = build(write_overlay(tmp_path_factory.mktemp("above"), below, [component]))
    (namespace,) = kinds(documents, "Namespace")
    expected = "stratlab-mpi" if component == "mpi" else "team-a"
    assert {namespace["metadata"]["name"]} == namespaces(documents) == {expected}


def test_what_is_moved_into_the_namespace_is_named_and_no_pattern() -> None:
    """kustomize 5.5 takes a pattern in `select` for a name that nothing has, and leaves all in `default`."""
    for path in MANIFESTS.glob("components/*/kustomization.yaml"):
        for replacement in yaml.safe_load(path.read_text()).get("replacements", []):
            names = [target["select"].get("name", "") for target in replacement["targets"]]
            assert not [name for name in names if re.search(r"[^a-z0-9.-]", name)], path
