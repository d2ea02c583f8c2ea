"""What every object must be: known to Kubernetes, in the one namespace, labelled, restricted."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from tests.charts.core_object import VERSIONS
from tests.charts.pod_rules import label_problems, pod_problems
from tests.charts.pod_security import find_pods, restricted_problems
from tests.charts.rendering import Document
from tests.manifests.kustomize import COMPONENTS, MANIFESTS, OVERLAYS, build, kinds, pick, write_overlay


def schema_problems(document: Document) -> list[str]:
    problems = []
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as failure:
            problems.append(
                f"{document['kind']} {document['metadata']['name']}: {version}: {failure.message}"
            )
    return problems


def test_the_walk_finds_the_overlays() -> None:
    assert {"kind", "cluster"} <= set(OVERLAYS)
    assert {"external-stores", "hub-access", "mpi"} <= set(COMPONENTS)


def test_kubernetes_knows_every_field(documents: list[Document]) -> None:
    assert len(documents) >= 14
    assert [text for document in documents for text in schema_problems(document)] == []


def test_an_unknown_field_is_caught(kind: list[Document]) -> None:
    broken = copy.deepcopy(pick(kind, "Deployment", "mlflow"))
    broken["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    assert "readinesProbe" in schema_problems(broken)[0]


def test_one_namespace_and_nothing_else_cluster_wide(documents: list[Document], overlay: str) -> None:
    (namespace,) = kinds(documents, "Namespace")
    name = namespace["metadata"]["name"]
    assert name == ("stratlab-mpi" if "mpi" in overlay or "every" in overlay else "stratlab")
    for document in documents:
        if document is not namespace:
            assert document["metadata"]["namespace"] == name, document["metadata"]["name"]
    assert not {d["kind"] for d in documents} & {"ClusterRole", "ClusterRoleBinding", "PersistentVolume"}


def test_pod_security_of_the_namespace(documents: list[Document], overlay: str) -> None:
    labels = kinds(documents, "Namespace")[0]["metadata"]["labels"]
    prefix = "pod-security.kubernetes.io/"
    expected = {"enforce": "restricted", "audit": "restricted", "warn": "restricted"}
    if "mpi" in overlay or "every" in overlay:
        expected["enforce"] = "baseline"  # the operator's init container of an MPIJob v1
    versions = {f"{mode}-version": "latest" for mode in expected}
    assert {
        k.removeprefix(prefix): v for k, v in labels.items() if k.startswith(prefix)
    } == expected | versions


def test_labels(documents: list[Document]) -> None:
    for document in documents:
        labels = document["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "stratlab"
        assert labels["app.kubernetes.io/managed-by"] == "kustomize"
        if document["kind"] != "Namespace":
            assert {"app.kubernetes.io/name", "app.kubernetes.io/component"} <= labels.keys()
        assert label_problems(labels) == []


def test_every_pod_is_restricted_and_without_a_token(documents: list[Document]) -> None:
    pods = list(find_pods(documents))
    assert len(pods) == len(kinds(documents, "Deployment")) >= 1
    for pod in pods:
        assert restricted_problems(pod) == []
        assert pod["automountServiceAccountToken"] is False
        assert {pod["securityContext"][name] for name in ("runAsUser", "runAsGroup", "fsGroup")} == {10001}
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["resources"]["limits"].keys() >= {"cpu", "memory"}
    for deployment in kinds(documents, "Deployment"):
        assert pod_problems(deployment["spec"]["template"]) == []


def test_no_secret_values(documents: list[Document]) -> None:
    """No Secret is made here, and nothing that looks like a password is in a variable."""
    assert kinds(documents, "Secret") == []
    for pod in find_pods(documents):
        for container in pod["containers"]:
            for entry in container["env"]:
                assert "://" not in entry.get("value", "") or "@" not in entry["value"]


def test_services_find_pods_and_pods_find_claims(documents: list[Document]) -> None:
    template = pick(documents, "Deployment", "mlflow")["spec"]["template"]
    service = pick(documents, "Service", "mlflow")
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    claims = {claim["metadata"]["name"] for claim in kinds(documents, "PersistentVolumeClaim")}
    for volume in template["spec"]["volumes"]:
        if "persistentVolumeClaim" in volume:
            assert volume["persistentVolumeClaim"]["claimName"] in claims


def test_the_results_claim_is_shared_where_there_are_several_nodes(
    documents: list[Document], overlay: str
) -> None:
    claim = pick(documents, "PersistentVolumeClaim", "stratlab-results")["spec"]
    assert claim["accessModes"] == (["ReadWriteMany"] if "cluster" in overlay else ["ReadWriteOnce"])


def test_the_cluster_overlay_cannot_be_applied_before_its_class_is_set(
    documents: list[Document], overlay: str
) -> None:
    """A name that the API server refuses: a claim on a wrong class could not be mended, and no class means a disk."""
    claim = pick(documents, "PersistentVolumeClaim", "stratlab-results")["spec"]
    if "cluster" not in overlay:
        assert "storageClassName" not in claim
    else:
        assert claim["storageClassName"] == "SET ME to a StorageClass with ReadWriteMany"


def namespaces(documents: list[Document]) -> set[str | None]:
    return {d["metadata"].get("namespace") for d in documents if d["kind"] != "Namespace"}


@pytest.mark.parametrize("component", [None, *COMPONENTS])
def test_another_namespace_is_one_line(tmp_path: Path, component: str | None) -> None:
    components = [component] if component else []
    documents = build(write_overlay(tmp_path, "kind", components, namespace="team-a"))
    (namespace,) = kinds(documents, "Namespace")
    assert {namespace["metadata"]["name"]} == namespaces(documents) == {"team-a"}
    (binding,) = kinds(documents, "RoleBinding")
    assert binding["subjects"][0]["namespace"] == "team-a"


# kustomize refuses a component that is in an overlay already
PAIRS = [(o, c) for o in OVERLAYS for c in COMPONENTS if not (c == "mpi" and o.endswith("-mpi"))]


@pytest.mark.parametrize(("overlay", "component"), PAIRS)
def test_a_component_on_top_of_any_overlay_follows_its_namespace(
    tmp_path: Path, overlay: str, component: str
) -> None:
    """A user's overlay has a namespace of its own, and another one above it adds the component."""
    for name in ("below", "above"):
        (tmp_path / name).mkdir()
    below = write_overlay(tmp_path / "below", overlay, namespace="team-a")
    documents = build(write_overlay(tmp_path / "above", below, [component]))
    (namespace,) = kinds(documents, "Namespace")
    expected = "stratlab-mpi" if component == "mpi" else "team-a"
    assert {namespace["metadata"]["name"]} == namespaces(documents) == {expected}


@pytest.mark.parametrize("components", [["hub-access", "mpi"], ["mpi", "hub-access"]])
def test_the_order_of_components_does_not_matter(tmp_path: Path, components: list[str]) -> None:
    assert namespaces(build(write_overlay(tmp_path, "kind", components))) == {"stratlab-mpi"}


def test_what_is_moved_into_the_namespace_is_named_and_no_pattern() -> None:
    """kustomize 5.5 takes a pattern in `select` for a name that nothing has, and leaves all in `default`."""
    for path in MANIFESTS.glob("components/*/kustomization.yaml"):
        for replacement in yaml.safe_load(path.read_text()).get("replacements", []):
            names = [target["select"].get("name", "") for target in replacement["targets"]]
            assert not [name for name in names if re.search(r"[^a-z0-9.-]", name)], path
