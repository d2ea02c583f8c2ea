import pytest

from stratlab import logs as rank_log
from stratlab.cluster.workloads import APIS, Workload
from stratlab.logs import find_pod
from tests.codes import find_codes
from tests.stratlab.raised import raised
from tests.stratlab.watch.objects import PODS, RUNS, build_pod, build_run, ended


class Reading:
    """`read_rank`, with a fake in place of the pod that reads the volume."""

    def __init__(self, connection, monkeypatch):
        self.said = []
        self.asked = ()
        self._connection = connection
        monkeypatch.setattr(rank_log, "read_file", self._fake_read_file)

    def _fake_read_file(self, connection, request, path, progress):
        self.asked = (request.claim, request.mount, request.image, path)
        yield b"from the "
        yield b"volume\n"

    def __call__(self, rank=0, *, previous=False, follow=False, **options):
        self.said, self.asked = [], ()
        pieces = rank_log.read_rank(
            self._connection, "demo", rank, previous=previous, follow=follow, say=self.said.append, **options
        )
        return b"".join(pieces).decode()


@pytest.fixture
def reading(api, connection, monkeypatch):
    api.served |= {PODS, RUNS}
    return Reading(connection, monkeypatch)


def test_from_the_pod_that_holds_the_rank(api, reading):
    api.put(RUNS, build_run("Running"))
    api.put(PODS, build_pod(0, run="other"))  # is not taken
    assert reading() == "from the volume\n"
    for index in (0, 1):
        api.put(PODS, build_pod(index))
        api.log(f"demo-worker-{index}", f"of pod {index}")
    for rank, index in ((0, 0), (1, 0), (2, 1), (3, 1)):
        assert reading(rank) == f"of pod {index}\n" and f"demo-worker-{index}" in reading.said[0]
        assert f"{2 * index} to {2 * index + 1}" in reading.said[0]
    refused = raised(reading, 4)
    assert find_codes(refused) == ["SL-logs-rank"] and "0 to 3" in str(refused)


def test_followed_to_the_end(api, reading):
    api.put(RUNS, build_run("Succeeded"))
    api.put(PODS, build_pod(0, "Succeeded", state=ended(0)))
    api.log("demo-worker-0", "one")
    assert reading(follow=True) == "one\n"


def test_a_pod_that_has_not_started_says_why(api, reading):
    api.put(RUNS, build_run("Created"))
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    api.put(PODS, build_pod(0, "Pending", state=waiting))
    refused = raised(reading)
    assert find_codes(refused) == ["SL-logs-not-started"]
    assert all(told in str(refused) for told in ("demo-worker-0", "node-a", "ImagePullBackOff"))


def test_the_previous_container_or_the_file(api, reading):
    api.put(RUNS, build_run("Running"))
    api.put(PODS, build_pod(0))
    api.log("demo-worker-0", "now")
    assert reading(previous=True) == "from the volume\n" and len(reading.said) == 3
    api.log("demo-worker-0", "before", "pytorch previous")
    assert reading(previous=True) == "before\n"


def test_when_the_resource_is_gone_too_the_charts_defaults_do(reading):
    assert reading() == "from the volume\n"
    default = ("stratlab-results", "/results", "stratlab-lab:0.1.0")
    assert reading.asked == (*default, "/results/default/demo/ranks/rank0.log")
    assert "--run-directory, --claim and --image" in reading.said[1]
    reading(run_directory="/results/vit/demo", claim="mine", image="lab:2")
    assert reading.asked == ("mine", "/results", "lab:2", "/results/vit/demo/ranks/rank0.log")


def test_a_master_is_node_0_and_a_launcher_has_all():
    run = build_run("Running", workers=1, processes=4)
    run["spec"]["pytorchReplicaSpecs"]["Master"] = {"replicas": 1}
    pods = [build_pod(0), build_pod(0, role="master")]
    for rank, name in ((1, "demo-master-0"), (2, "demo-worker-0")):
        pod, _ = find_pod(Workload(APIS["pytorchjob"], run), pods, rank)
        assert pod and pod["metadata"]["name"] == name
    mpi = build_run("Running", processes=4)
    mpi["spec"] = {"mpiReplicaSpecs": {"Launcher": {"replicas": 1}, "Worker": {"replicas": 2}}}
    pods = [build_pod(0), build_pod(1), build_pod(0, role="launcher")]
    pod, sentence = find_pod(Workload(APIS["mpijob-v1"], mpi), pods, 3)
    assert pod and pod["metadata"]["name"] == "demo-launcher-0"
    assert "2 to 3" in sentence and sentence.endswith("worker 1")
