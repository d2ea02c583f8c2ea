"""`stratlab wait` as the init container of the analysis Job calls it, and by the files alone."""

import threading
import time
from types import SimpleNamespace
from typing import Any

from kubernetes.client.exceptions import ApiException

from stratlab import wait as module
from stratlab import wait as resource_module
from stratlab.cluster import ClusterError
from stratlab.wait import QUEUE, start_job, wait_for_run
from tests.codes import find_codes
from tests.stratlab.cluster.fake_api import serve
from tests.stratlab.raised import raised
from tests.stratlab.wait.waiting import call, enter_pod, write_attempt

JOBS = "/apis/kubeflow.org/v1/namespaces/lab/pytorchjobs"
ANALYSES = "/apis/batch/v1/namespaces/lab/jobs"


def test_in_a_pod_the_resource_ends_it_and_the_analysis_is_started(api, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(resource_module, "OTHER_SILENCE_S", 0.2)
    failed = {"conditions": [{"type": "Failed", "status": "True", "message": "it failed."}]}
    complete = {"conditions": [{"type": "Complete", "status": "True"}]}
    api.put(JOBS, {"metadata": {"name": "demo"}, "status": failed})
    api.put(ANALYSES, {"metadata": {"name": "analysis"}, "status": complete})
    api.token = "secret"
    with serve(api) as address:
        enter_pod(monkeypatch, tmp_path, address)
        waiting = (tmp_path / "run", "--resource", "pytorchjob/demo")
        assert call(monkeypatch, *waiting, "--deadline-s", 20) == 0
        assert "it failed." in capsys.readouterr().out.splitlines()[-1]
        api.served.add(JOBS.replace("/lab/", "/elsewhere/"))
        assert call(monkeypatch, *waiting, "--namespace", "elsewhere", "--deadline-s", 0.5) == 1
        assert find_codes(capsys.readouterr().err) == ["SL-not-ended"]
        write_attempt(tmp_path, 10)
        assert call(monkeypatch, tmp_path, "--then-start", "analysis") == 0
        assert call(monkeypatch, tmp_path, "--then-start", "other") == 2
        assert find_codes(capsys.readouterr().err) == ["SL-job-not-started"]


def test_what_is_given_wrongly_is_refused(monkeypatch, tmp_path, capsys):
    assert call(monkeypatch, tmp_path, "--resource", "pytorch/demo") == 2
    assert find_codes(capsys.readouterr().err) == ["SL-resource-form"]
    (tmp_path / "file").touch()
    assert call(monkeypatch, tmp_path / "file") == 2
    assert find_codes(capsys.readouterr().err) == ["SL-wait-no-folder"]


def test_it_waits_for_a_folder_that_is_not_there_yet(tmp_path):
    run_dir = tmp_path / "run"
    assert not wait_for_run(run_dir, deadline_s=0.1, poll_s=0.05).ended
    said = []

    def train():
        for code in (None, 0):
            time.sleep(0.3)
            write_attempt(run_dir, code)

    thread = threading.Thread(target=train)
    thread.start()
    assert wait_for_run(run_dir, deadline_s=20, poll_s=0.05, say=said.append).ended
    thread.join()
    assert len(said) == 2, "a sentence for each change"


COMPLETE = {"conditions": [{"type": "Complete", "status": "True"}]}
Change = dict[str, dict[str, Any]]


def job(*, suspend=True, labels=None, status=None):
    return {"metadata": {"labels": labels}, "spec": {"suspend": suspend}, "status": status}


def start(monkeypatch, *seen, queue="", refuses=False):
    """(what was changed, what was said) while the Job was seen like that, one look after the other."""
    looks, changes, said = iter(seen), list[Change](), list[str]()

    def get(path):
        assert path == "/apis/batch/v1/namespaces/lab/jobs/analysis"
        if isinstance(found := next(looks), Exception):
            raise found
        return dict(found)

    def patch(name, namespace, change, **options):
        if refuses:
            raise ApiException(403, "Forbidden")
        assert (name, namespace) == ("analysis", "lab")
        changes.append(change)

    monkeypatch.setattr(module, "BatchV1Api", lambda client: SimpleNamespace(patch_namespaced_job=patch))
    connection = SimpleNamespace(
        get=get, client=None, namespace="lab", jobs="/apis/batch/v1/namespaces/lab/jobs"
    )
    start_job(connection, "analysis", queue, said.append, 0.0)
    return changes, said


def test_it_is_started_and_started_again_until_it_has_ended(monkeypatch):
    away = ClusterError("no answer")
    looks = (job(), job(suspend=False), away, job(), job(status=COMPLETE))
    changes, said = start(monkeypatch, *looks)
    assert changes == [{"spec": {"suspend": False}}] * 2 and len(said) == 3


def test_a_queue_starts_it_instead(monkeypatch):
    gone = ClusterError("not found", 404)
    looks = (job(), job(labels={QUEUE: "cpus"}), gone)
    changes, said = start(monkeypatch, *looks, queue="cpus")
    assert changes == [{"metadata": {"labels": {QUEUE: "cpus"}}}], "Kueue ends that it is suspended"
    assert len(said) == 1, "a job that goes away is no failure"


def test_an_account_without_the_right_is_refused(monkeypatch):
    failure = raised(start, monkeypatch, job(), refuses=True)
    assert find_codes(failure) == ["SL-job-not-started"] and "Forbidden" in str(failure)
    failure = raised(start, monkeypatch, ClusterError("not found", 404))
    assert find_codes(failure) == ["SL-job-not-started"]
