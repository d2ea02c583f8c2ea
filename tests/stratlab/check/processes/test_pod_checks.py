"""What pods find out about volume, images and MLflow. Processes of this machine play the pods, see fake_kubelet."""

import pytest

from stratlab.cluster.pod_template import PodRequest
from stratlab.pod_checks import PodsRequest, check_pods
from tests.stratlab.cluster.fake_api import FakeApi
from tests.stratlab.cluster.fake_kubelet import run_kubelet


@pytest.fixture
def lab():
    with run_kubelet(FakeApi()) as pair:
        yield pair


def look(lab, mount, uri):
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


def test_where_nodes_offer_gpus_a_pod_asks_for_one(lab, tmp_path):
    node = {"metadata": {"name": "a"}, "spec": {}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}}
    lab[1].api.collections["/api/v1/nodes"] = {"a": node}
    lab[1].env["CUDA_VISIBLE_DEVICES"] = ""
    finding = look(lab, tmp_path, "")["a GPU in a pod"]
    assert finding.state == "problem" and "run.accelerator=nvidia.com/gpu" in finding.seen
