"""The charts on a real API server with the real training operator: what no rendering shows. No image has to work."""

import json
import subprocess

import pytest

from tests.charts.valid_objects import WORKLOADS
from tests.cluster.lab import HELM, HELM3, ROOT, run, wait_until
from tests.cluster.parts.conftest import Cluster

pytestmark = pytest.mark.cluster

SERVED = [workload for workload in WORKLOADS if workload[0] in ("pytorchjob", "mpijob-v1")]
BASELINE = "run.podSecurity.level=baseline"
"""mpijob-v1 and a master need it; suspended runs have no pods that the namespace would refuse."""


def helm(
    cluster: Cluster, verb: str, release: str, *settings: str, program: object = HELM
) -> subprocess.CompletedProcess[str]:
    words = [str(ROOT / "charts" / "ddp"), "--set", ",".join(("run.accelerator=", *settings))]
    command = [program, verb, release, "-n", cluster.namespace, *(words if verb != "uninstall" else [])]
    return run(command, check=False)


def test_the_api_server_takes_every_object(cluster: Cluster) -> None:
    for api, topology in SERVED:
        release, kind = f"{api}-{topology}", "pytorchjob" if api == "pytorchjob" else "mpijob"
        settings = (f"run.workload.api={api}", f"run.workload.topology={topology}", "run.nodes=2", BASELINE)
        done = helm(cluster, "install", release, *settings, "run.suspend=true")
        assert done.returncode == 0, done.stderr
        assert cluster.get(kind, release)["metadata"]["annotations"]["stratlab/processes"] == "4"
        assert helm(cluster, "uninstall", release).returncode == 0
        assert not cluster.kubectl("get", kind, release, "--ignore-not-found")


@pytest.mark.parametrize("api", ["trainjob", "mpijob-v2beta1"])
def test_an_api_that_the_cluster_does_not_serve(cluster: Cluster, api: str) -> None:
    done = helm(cluster, "install", f"missing-{api}", f"run.workload.api={api}")
    assert done.returncode and f"run.workload.api={api}" in done.stderr


@pytest.mark.parametrize("program", [HELM, HELM3], ids=lambda program: program.name)
def test_an_upgrade_suspends_resumes_and_refuses_other_settings(cluster: Cluster, program: object) -> None:
    release = f"upgraded-{getattr(program, 'name', '')}"

    def upgrade(*settings: str) -> int:
        return helm(cluster, "upgrade", release, *settings, program=program).returncode

    def is_suspended() -> bool:
        return cluster.conditions(f"pytorchjob/{release}").get("Suspended") == "True"

    def image() -> str:
        worker = cluster.get("pytorchjob", release)["spec"]["pytorchReplicaSpecs"]["Worker"]
        return str(worker["template"]["spec"]["containers"][0]["image"])

    assert helm(cluster, "install", release, "run.suspend=true", program=program).returncode == 0
    wait_until(is_suspended, "suspended")
    assert not cluster.pods(release)
    for setting in ("run.config.lr=0.5", "run.nodes=2", f"run.workload.api=mpijob-v1,{BASELINE}"):
        assert upgrade("run.suspend=true", setting), setting

    before = image()
    assert upgrade("run.analysis.image.tag=other", "run.image.tag=other") == 0
    wait_until(lambda: cluster.pods(release), "a worker")
    assert image() == before
    names = sorted(job["metadata"]["name"] for job in cluster.get("jobs")["items"])
    names = [name for name in names if name.startswith(release)]
    # those for the other image, without an error about a field that cannot change
    assert [name.split("-")[-2] for name in names] == ["analysis", "waiter"]

    cluster.kubectl("patch", "job", names[0], "--type=merge", "-p", json.dumps({"spec": {"suspend": False}}))
    assert upgrade("run.analysis.image.tag=other", "run.scheduling.waitSeconds=60") == 0
    assert cluster.get("job", names[0])["spec"]["suspend"] is False, "an analysis that has begun goes on"

    cluster.suspend(release, True)
    wait_until(is_suspended, "suspended by somebody else")
    assert upgrade("run.analysis.image.tag=third") == 0
    assert cluster.get("pytorchjob", release)["spec"]["runPolicy"]["suspend"] is True, "not undone"
    assert helm(cluster, "uninstall", release, program=program).returncode == 0
