"""Which pods a check asks for, and what it makes of their answers. What the pods really find is in processes/."""

import json
from dataclasses import replace

import pytest

from stratlab import pod_checks
from stratlab.cluster import ClusterError
from stratlab.cluster.pod_template import PodRequest
from stratlab.cluster.volume_pod import Finished
from stratlab.cluster.workloads import TrainingJobs
from stratlab.pod_checks import PodsRequest, check_pods, judge_gpu, judge_image, judge_mlflow, judge_sharing
from stratlab.workload_checks import build_job, check_small_job
from tests.codes import find_codes
from tests.stratlab.cluster.fake_api import FakeApi
from tests.stratlab.cluster.fake_kubelet import JOBS, run_kubelet
from tests.stratlab.raised import raised

LAB = PodRequest(image="lab", certificates="secret/ours/ca.crt")
REQUEST = PodsRequest(LAB, "trainer", "http://mlflow:5000")
FACTS = {"node": "a", "user": 10001, "free_bytes": 2**34, "shm_bytes": 64 * 2**20}
NO_RIGHT = ClusterError("no right", 403)


def printed(**facts):
    return Finished(0, b"a warning\nfacts " + json.dumps(facts).encode() + b"\n", "")


@pytest.mark.parametrize("gpus", [0, 1])
def test_each_pod_has_what_it_looks_at_and_no_more(gpus, monkeypatch):
    asked = {}

    def run(connection, pod, command, progress):
        assert command[0] == "python" and progress
        asked[tuple(command[-2:])] = pod
        return printed(**FACTS, read=True, status=200, text="")

    monkeypatch.setattr(pod_checks, "run_on_volume", run)
    monkeypatch.setattr(pod_checks, "offers_gpus", lambda connection: bool(gpus))
    found = list(check_pods(None, REQUEST, lambda text: None))
    assert {each.state for each in found} == {"ok"} and len(found) == 5 + gpus
    volume = replace(LAB, read_only=False, deadline_s=150)
    trainer = replace(volume, claim=None, image="trainer")
    mlflow = replace(volume, claim=None, component="test")
    (folder,) = {command[1] for command in asked if command[0] in ("writer", "reader")}
    assert folder.startswith("/results/.stratlab-check-")
    with_gpu = {("nvidia.com/gpu", "1"): replace(trainer, limits={"nvidia.com/gpu": 1})} if gpus else {}
    assert asked == with_gpu | {
        ("writer", folder): volume,
        ("reader", folder): volume,
        ("-c", "import sys; sys.exit(0)"): trainer,
        (pod_checks.CALL_MLFLOW, "http://mlflow:5000"): mlflow,
    }


@pytest.mark.parametrize(
    ("status", "text", "state", "codes"),
    [
        (200, "{}", "ok", []),
        (401, "", "warning", ["SL-check-mlflow-credentials"]),
        (403, "Invalid Host header", "problem", ["SL-check-mlflow-host"]),
        (None, "Name or service not known", "problem", ["SL-check-mlflow-unreachable"]),
    ],
)
def test_answers_of_mlflow(status, text, state, codes):
    finding = judge_mlflow("http://m", printed(status=status, text=text))
    assert (finding.state, find_codes(finding.seen)) == (state, codes)


@pytest.mark.parametrize(
    ("wrote", "read", "state", "codes"),
    [
        ({"free_bytes": 0}, {"read": True}, "ok", []),  # the reader looks last
        ({}, {"read": True, "free_bytes": 2**29}, "warning", ["SL-volume-nearly-full"]),
        ({}, {"read": False}, "problem", ["SL-volume-not-shared"]),
        ({}, {"read": True, "error": "read-only"}, "problem", ["SL-volume-not-writable"]),
        (NO_RIGHT, {"read": True}, "warning", []),
        (Finished(137, b"", "OOMKilled"), {"read": True}, "problem", ["SL-volume-pod-not-run"]),
    ],
)
def test_whether_the_volume_is_shared(wrote, read, state, codes):
    results = [printed(**FACTS | each) if isinstance(each, dict) else each for each in (wrote, read)]
    found = {each.subject: each for each in judge_sharing(REQUEST, *results)}
    volume = found["volume stratlab-results"]
    assert (volume.state, find_codes(volume.seen)) == (state, codes)
    assert ("shared memory" in found) is (state == "ok" or codes == ["SL-volume-nearly-full"])


def test_nodes_and_amounts_are_named():
    read = printed(**FACTS | {"node": "b", "read": True, "free_bytes": 3 * 2**29})
    found = {each.subject: each.seen for each in judge_sharing(REQUEST, printed(**FACTS), read)}
    assert all(part in found["volume stratlab-results"] for part in ("user 10001", "a and b", "1.5 GiB"))
    assert "64 MiB" in found["shared memory"]


@pytest.mark.parametrize(
    ("result", "state"),
    [
        (Finished(1, b"", "Error"), "ok"),  # it has started
        (Finished(128, b"", "StartError: python: not found"), "problem"),
        (ClusterError("pod p cannot start: ErrImagePull"), "problem"),
        (ClusterError('pod p cannot start: persistentvolumeclaim "x" not found'), "warning"),
    ],
)
def test_whether_an_image_starts(result, state):
    assert judge_image("i", "x", result).state == state


@pytest.mark.parametrize(
    ("result", "state"),
    [
        (Finished(0, b"", ""), "ok"),
        (Finished(4, b"run.accelerator: asked for 1", ""), "problem"),
        (Finished(1, b"No module named trainer.launch.torchrun", ""), "warning"),  # an older image
    ],
)
def test_what_a_pod_with_a_gpu_says(result, state):
    assert judge_gpu(result).state == state


@pytest.fixture
def lab():
    with run_kubelet(FakeApi()) as pair:
        pair[1].api.served.add(JOBS)
        yield pair
        assert pair[1].api.collections.get(JOBS, {}) == {}, "it was removed"


def check(lab, patience_s=20):
    (finding,) = check_small_job(lab[0], "lab:1", lambda text: None, patience_s)
    return finding.state, find_codes(finding.seen), finding


def test_the_job_is_one_pod_that_ends_and_goes_by_itself():
    spec = build_job("x", "lab", "lab:1")["spec"]
    (replica,) = spec["pytorchReplicaSpecs"].values()
    assert (replica["replicas"], replica["restartPolicy"]) == (1, "Never")
    policy = {"activeDeadlineSeconds": 120, "ttlSecondsAfterFinished": 60, "backoffLimit": 0}
    assert spec["runPolicy"] == policy
    (container,) = replica["template"]["spec"]["containers"]
    assert container["name"] == "pytorch" and replica["template"]["spec"]["activeDeadlineSeconds"] == 120


def test_a_pod_that_waits_is_told_from_an_operator_that_is_away(lab):
    lab[1].waits["lab:1"] = {"phase": "Pending"}
    assert check(lab, patience_s=2)[:2] == ("problem", ["SL-job-not-ended"])
    lab[1].operates = False
    state, codes, finding = check(lab, patience_s=1)
    assert (state, codes) == ("problem", ["SL-job-no-operator"]) and "kubectl apply" in finding.fix


def test_a_job_that_fails_shows_the_pods_last_word(lab, monkeypatch):
    failing = ["python", "-c", "raise SystemExit('no such thing')"]
    monkeypatch.setattr("stratlab.workload_checks.COMMAND", failing)
    state, codes, finding = check(lab)
    assert (state, codes) == ("problem", ["SL-job-failed"]) and "no such thing" in finding.seen


def test_a_job_whose_log_does_not_come_is_a_warning(lab, monkeypatch):
    monkeypatch.setattr("stratlab.workload_checks.COMMAND", ["python", "-c", "print('another word')"])
    assert check(lab)[:2] == ("warning", ["SL-job-log-unread"])


def test_without_the_right_it_is_a_warning(lab):
    lab[1].deny = (403, 'pytorchjobs.kubeflow.org is forbidden: User "ana" cannot create')
    state, _, finding = check(lab)
    assert state == "warning" and 'User "ana" cannot create' in finding.seen
    jobs = TrainingJobs(lab[0])
    assert raised(jobs.wait, "nope", 3).status == 404
    jobs.delete("nope")  # it is gone, as it should be
