"""The pod through which a folder of a laptop gets onto the results volume: one that every namespace of ours takes."""

from typing import Any

from stratlab.cluster.pod_template import PodRequest, build_pod
from tests.charts.pod_security import pod_problems, restricted_problems
from tests.charts.rendering import Document, read_documents
from tests.charts.valid_objects import core_problems
from tests.documents.commands import ROOT
from tests.manifests.kustomize import MANIFESTS, pick

(POD,) = read_documents((MANIFESTS / "data-pod.yaml").read_text())
(CONTAINER,) = POD["spec"]["containers"]


def test_a_cluster_takes_it_as_the_pods_that_read_the_volume() -> None:
    def common(content: dict[str, Any]) -> list[Any]:
        names = ("restartPolicy", "automountServiceAccountToken", "securityContext")
        return [content[name] for name in names] + [content["containers"][0]["securityContext"]]

    assert core_problems(POD) == pod_problems(POD) == restricted_problems(POD["spec"]) == []
    assert common(POD["spec"]) == common(build_pod([], PodRequest("any", "/results", "image"))["spec"])
    assert POD["metadata"]["labels"]["app.kubernetes.io/component"] == "volume", "the network rules go by it"
    assert CONTAINER["image"] == f"stratlab-trainer:{(ROOT / 'VERSION').read_text().strip()}"


def test_it_mounts_the_claim_where_runs_look_and_is_called_as_on_the_page(kind: list[Document]) -> None:
    (volume,) = POD["spec"]["volumes"]
    assert pick(kind, "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])
    assert CONTAINER["volumeMounts"] == [{"name": "results", "mountPath": "/results"}]
    page = (ROOT / "docs" / "cluster.md").read_text()
    assert f"kubectl -n stratlab cp /data/pets {POD['metadata']['name']}:/results/_raw\n" in page
    assert "mkdir -p /results/_raw" in CONTAINER["command"][-1]


def test_it_ends_after_an_hour_whatever_becomes_of_it() -> None:
    """As its comment says: neither its command nor a volume that hangs keeps it longer."""
    assert POD["spec"]["activeDeadlineSeconds"] == 3600 and CONTAINER["command"][-1].endswith(" sleep 3600")
    assert (POD["spec"]["terminationGracePeriodSeconds"], POD["spec"]["enableServiceLinks"]) == (1, False)
