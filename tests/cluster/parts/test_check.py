"""`stratlab check` starts a PyTorchJob of its own: on the cluster of KUBECONFIG, Pod Security `restricted`.

$STRATLAB_TEST_LAB_IMAGE names the image of the lab (stratlab-lab:0.1.0).
"""

from __future__ import annotations

import os

import pytest

from stratlab.check.finding import Finding
from stratlab.check.small_job import check_small_job
from tests.cluster.parts.real_cluster import RealCluster

pytestmark = [pytest.mark.cluster]
IMAGE = os.environ.get("STRATLAB_TEST_LAB_IMAGE", "stratlab-lab:0.1.0")
JOBS = "/apis/kubeflow.org/v1/namespaces/{}/pytorchjobs"


def check(cluster: RealCluster, image: str, patience_s: int) -> Finding:
    (finding,) = check_small_job(cluster.connection, cluster.namespace, image, lambda text: None, patience_s)
    assert cluster.connection.get(JOBS.format(cluster.namespace))["items"] == []
    cluster.wait_until(lambda: not cluster.pods())
    return finding


def test_the_operator_acts(cluster: RealCluster) -> None:
    finding = check(cluster, IMAGE, 120)
    assert finding.state == "ok" and "log read" in finding.seen, finding


def test_an_image_that_is_not_there(cluster: RealCluster) -> None:
    finding = check(cluster, "stratlab-nowhere:1", 15)
    assert finding.state == "problem" and "has not ended after" in finding.seen, finding
