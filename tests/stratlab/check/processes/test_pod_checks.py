"""What pods find out about volume, images and MLflow. Processes of this machine play the pods, see fake_kubelet."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stratlab import pod_checks
from stratlab.cluster.pod_template import PodRequest
from stratlab.pod_checks import PodsRequest, check_pods
from stratlab_spec.findings import Finding
from tests.codes import find_codes
from tests.redirecting_server import run_redirect, run_witness
from tests.stratlab.cluster.fake_api import FakeApi
from tests.stratlab.cluster.fake_kubelet import run_kubelet
from tests.stratlab.cluster.lab import Lab


@pytest.fixture
def lab() -> Iterator[Lab]:
    with run_kubelet(FakeApi()) as pair:
        yield pair


def look(lab: Lab, mount: Path, uri: str) -> dict[str, Finding]:
    request = PodsRequest(PodRequest(mount=str(mount), image="lab"), "trainer", uri)
    return {each.subject: each for each in check_pods(lab[0], request, lambda sentence: None)}


def test_a_shared_volume_a_real_mlflow_and_images_that_start(lab, tmp_path, mlflow_server):
    found = look(lab, tmp_path, mlflow_server)
    assert {subject: finding.state for subject, finding in found.items()} == {
        "image of the lab": "ok",
        "volume stratlab-results": "ok",
        "shared memory": "ok",
        "image of the trainer": "ok",
        "MLflow": "ok",
    }
    assert "node-1" in found["volume stratlab-results"].seen
    assert list(tmp_path.iterdir()) == [], "nothing stays on the volume"


def test_a_server_that_redirects_is_a_problem_and_says_where_to(lab, tmp_path):
    with run_witness() as (elsewhere, seen), run_redirect(elsewhere, 301) as uri:
        found = look(lab, tmp_path, uri)["MLflow"]
    assert find_codes(found.seen) == ["SL-check-mlflow-redirect"] and f"{uri} answers 301" in found.seen
    assert found.state == "problem" and elsewhere in found.fix and seen == []


def test_volumes_that_are_not_the_same_are_a_problem(lab, tmp_path, monkeypatch):
    apart = pod_checks.SHARE.replace("> 90", "> 0.5").replace(
        "role, folder = sys.argv[1:]", "role, folder = sys.argv[1:]; folder += role"
    )
    monkeypatch.setattr(pod_checks, "SHARE", apart)
    finding = look(lab, tmp_path, "")["volume stratlab-results"]
    assert find_codes(finding.seen) == ["SL-volume-not-shared"]


def test_where_nodes_offer_gpus_a_pod_asks_for_one(lab, tmp_path):
    node = {"metadata": {"name": "a"}, "spec": {}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}
    lab[1].api.collections["/api/v1/nodes"] = {"a": node}
    lab[1].env["CUDA_VISIBLE_DEVICES"] = ""
    finding = look(lab, tmp_path, "")["a GPU in a pod"]
    assert finding.state == "problem" and "run.accelerator=nvidia.com/gpu" in finding.seen
