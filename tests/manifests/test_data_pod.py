"""The pod through which a folder of a laptop gets onto the results volume: one that every namespace of ours takes."""

from __future__ import annotations

from typing import Any

import pytest

from stratlab.cluster.pod_template import PodRequest, build_pod
from tests.charts.pod_rules import pod_problems
from tests.charts.pod_security import restricted_problems
from tests.charts.rendering import Document, read_documents
from tests.documents.commands import ROOT
from tests.manifests.kustomize import MANIFESTS, pick
from tests.manifests.test_objects import schema_problems


@pytest.fixture
def pod() -> Document:
    (found,) = read_documents((MANIFESTS / "data-pod.yaml").read_text())
    return found


def test_a_cluster_takes_it(pod: Document) -> None:
    assert schema_problems(pod) == [] and pod_problems(pod) == []
    assert restricted_problems(pod["spec"]) == []


def test_it_is_as_the_pods_that_read_the_volume(pod: Document) -> None:
    def common(content: dict[str, Any]) -> list[Any]:
        names = ("restartPolicy", "automountServiceAccountToken", "securityContext")
        return [content[name] for name in names] + [content["containers"][0]["securityContext"]]

    assert common(pod["spec"]) == common(build_pod([], PodRequest("any", "/results", "image"))["spec"])
    assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == "volume", "the network rules go by it"


def test_it_mounts_the_claim_where_runs_look_and_has_the_folder_to_copy_into(
    pod: Document, kind: list[Document]
) -> None:
    (volume,) = pod["spec"]["volumes"]
    assert pick(kind, "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])
    (container,) = pod["spec"]["containers"]
    assert container["volumeMounts"] == [{"name": "results", "mountPath": "/results"}]
    assert "mkdir -p /results/_raw" in container["command"][-1]
    assert container["image"] == f"stratlab-trainer:{(ROOT / 'VERSION').read_text().strip()}"


def test_it_ends_after_an_hour_whatever_becomes_of_it(pod: Document) -> None:
    """As its comment says: neither its command nor a volume that hangs keeps it longer."""
    (container,) = pod["spec"]["containers"]
    assert pod["spec"]["activeDeadlineSeconds"] == 3600 and container["command"][-1].endswith(" sleep 3600")
    assert (pod["spec"]["terminationGracePeriodSeconds"], pod["spec"]["enableServiceLinks"]) == (1, False)


def test_its_name_and_folder_are_those_of_the_page(pod: Document) -> None:
    page = (ROOT / "docs" / "cluster.md").read_text()
    assert f"kubectl -n stratlab cp /data/pets {pod['metadata']['name']}:/results/_raw\n" in page
    assert "prepare.dataset=/results/_raw/pets" in page
