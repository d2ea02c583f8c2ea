"""A small PyTorchJob through Kubeflow's SDK. Processes of this machine play operator and pod, see fake_kubelet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stratlab.cluster import ClusterError
from stratlab.cluster.workloads import TrainingJobs, read_conditions
from stratlab.namespace_checks import Finding
from stratlab.workload_checks import build_job, check_small_job
from tests.codes import find_codes
from tests.stratlab.cluster.fake_api import FakeApi
from tests.stratlab.cluster.fake_kubelet import JOBS, run_kubelet
from tests.stratlab.cluster.lab import Lab


@pytest.fixture
def lab() -> Iterator[Lab]:
    with run_kubelet(FakeApi()) as pair:
        pair[1].api.served.add(JOBS)
        yield pair
        assert pair[1].api.collections.get(JOBS, {}) == {}, "it was removed"


def check(lab: Lab, patience_s: int = 20) -> tuple[str, list[str], Finding]:
    (finding,) = check_small_job(lab[0], "lab:1", lambda text: None, patience_s)
    return finding.state, find_codes(finding.seen), finding


def test_it_is_created_followed_read_and_removed(lab: Lab) -> None:
    assert check(lab)[0] == "ok"
    (pod,) = lab[1].created
    assert pod["metadata"]["labels"]["training.kubeflow.org/replica-type"] == "master"


def test_the_job_is_one_pod_that_ends_and_goes_by_itself() -> None:
    spec = build_job("x", "lab", "lab:1")["spec"]
    (replica,) = spec["pytorchReplicaSpecs"].values()
    assert (replica["replicas"], replica["restartPolicy"]) == (1, "Never")
    policy = {"activeDeadlineSeconds": 120, "ttlSecondsAfterFinished": 60, "backoffLimit": 0}
    assert spec["runPolicy"] == policy
    (container,) = replica["template"]["spec"]["containers"]
    assert container["name"] == "pytorch"
    assert replica["template"]["spec"]["activeDeadlineSeconds"] == 120


def test_a_pod_that_waits_is_told_from_an_operator_that_is_away(lab: Lab) -> None:
    lab[1].waits["lab:1"] = {"phase": "Pending"}
    assert check(lab, patience_s=2)[:2] == ("problem", ["SL-job-not-ended"])
    lab[1].operates = False
    state, codes, finding = check(lab, patience_s=1)
    assert (state, codes) == ("problem", ["SL-job-no-operator"]) and "kubectl apply" in finding.fix


def test_a_job_that_fails_shows_the_pods_last_word(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = ["python", "-c", "raise SystemExit('no such thing')"]
    monkeypatch.setattr("stratlab.workload_checks.COMMAND", failing)
    state, codes, finding = check(lab)
    assert (state, codes) == ("problem", ["SL-job-failed"]) and "no such thing" in finding.seen


def test_a_job_whose_log_does_not_come_is_a_warning(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratlab.workload_checks.COMMAND", ["python", "-c", "print('another word')"])
    assert check(lab)[:2] == ("warning", ["SL-job-log-unread"])


def test_without_the_right_it_is_a_warning(lab: Lab) -> None:
    lab[1].deny = (403, 'pytorchjobs.kubeflow.org is forbidden: User "ana" cannot create')
    state, _, finding = check(lab)
    assert state == "warning" and 'User "ana" cannot create' in finding.seen
    jobs = TrainingJobs(lab[0])
    with pytest.raises(ClusterError) as failure:
        jobs.wait("nope", 3)
    assert failure.value.status == 404
    jobs.delete("nope")  # it is gone, as it should be


def test_conditions_are_read_by_the_sdks_model() -> None:
    given = [
        {"type": "Running", "status": "False"},
        {"type": "Succeeded", "status": "True", "message": "m", "lastTransitionTime": "2026-11-21T09:00:00Z"},
        {"status": "True"},
    ]
    (found,) = read_conditions({"conditions": given})
    assert (found.type, found.message) == ("Succeeded", "m")
    assert read_conditions(None) == read_conditions({"conditions": None}) == []
