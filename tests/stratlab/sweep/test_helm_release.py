"""Releases one after the other or some at a time, and what a failure changes. Helm and cluster are stand-ins here."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from stratlab.cluster import ClusterError
from stratlab.cluster.watching import ADDED, MODIFIED, SYNCED
from stratlab.helm import HelmFailed
from stratlab.sweep import helm_release as module
from stratlab.sweep.helm_release import ReleaseEnd, Site, follow_release, work
from stratlab.sweep.state import Decision, ReleaseEntry, read_state
from tests.stratlab.cluster.answering import Answering
from tests.stratlab.sweep.stand_ins import Heard, plan

SITE = Site(None, "lab", Path("helm"), "east")


class StandIn:
    """Of helm and of the cluster: notes what happens, and ends each release as told by `ends`."""

    def __init__(self, monkeypatch, ends):
        self.ends = ends
        self.calls = []
        self.lock = threading.Lock()
        self.now, self.most = 0, 0
        self.hold = lambda name: None
        monkeypatch.setattr(module, "install", lambda *given: self.note("install", given[2], given))
        monkeypatch.setattr(module, "uninstall", lambda *given: self.note("uninstall", plan(given[2]), given))
        monkeypatch.setattr(module, "follow_release", self.follow)
        monkeypatch.setattr(module, "TICK_S", 0.01)

    def note(self, verb, planned, given):
        assert (given[0], given[1], *given[3:]) == (SITE.helm, SITE.namespace, SITE.context)
        self.calls.append(f"{verb} {planned.release.name}")
        if isinstance(self.ends[planned.release.name], HelmFailed):
            raise self.ends[planned.release.name]

    def follow(self, connection, planned, show):
        name = planned.release.name
        with self.lock:
            self.calls.append(f"follow {name}")
            self.now += 1
            self.most = max(self.most, self.now)
        show("PyTorchJob Running")
        self.hold(name)
        with self.lock:
            self.now -= 1
        end = self.ends[name]
        if isinstance(end, Exception):
            raise end
        return ReleaseEnd(end, "well" if end else "badly")


def start(tmp_path, names, step="install", known=None, **more):
    todo = [(plan(name), Decision(step, "")) for name in names]
    state = replace(read_state(tmp_path / "s.json", "demo", "lab"), releases=known or {})
    end, lost = work(todo, state, SITE, Heard(), **{"parallel": 1, "stop_on_failure": False} | more)
    assert read_state(state.file, "demo", "lab") == end, "what is returned is on disk"
    return end, lost


def stages(state):
    return {name: entry.stage for name, entry in state.releases.items()}


def test_one_after_the_other_and_a_failure_does_not_stop_the_rest(tmp_path, monkeypatch):
    stand_in = StandIn(monkeypatch, {"a": True, "b": False, "c": True})
    state, lost = start(tmp_path, "abc")
    assert stages(state) == {"a": "succeeded", "b": "failed", "c": "succeeded"} and lost == []
    assert state.releases["b"].sentence == "badly" and state.releases["b"].asked == "asked b"
    assert stand_in.calls == ["install a", "follow a", "install b", "follow b", "install c", "follow c"]
    assert state.releases["a"].ended >= state.releases["a"].started > 0


@pytest.mark.parametrize(
    ("end", "stage"),
    [
        (False, "failed"),
        (ClusterError("no right"), "running"),  # how it ended is not known
        (HelmFailed("no quota"), "installing"),
    ],
)
def test_stop_on_failure_starts_nothing_more(tmp_path, monkeypatch, end, stage):
    stand_in = StandIn(monkeypatch, {"a": end, "b": True, "c": True})
    state, _ = start(tmp_path, "abc", stop_on_failure=True)
    assert stages(state) == {"a": stage} and not {"install b", "install c"} & {*stand_in.calls}


@pytest.mark.parametrize(
    ("step", "calls", "is_kept"),
    [
        ("join", ["follow a"], True),
        ("install", ["install a", "follow a"], False),
        ("reinstall", ["uninstall a", "install a", "follow a"], False),
    ],
)
def test_what_an_earlier_start_has_left_goes_but_for_the_time_of_a_run_that_is_joined(
    tmp_path, monkeypatch, step, calls, is_kept
):
    stand_in = StandIn(monkeypatch, {"a": ClusterError("no right")})
    before = ReleaseEntry("failed", "asked a", "badly", started=5.0, ended=9.0)
    state, _ = start(tmp_path, "a", step, known={"a": before})
    assert stand_in.calls == calls
    entry = state.releases["a"]
    assert (entry.stage, entry.sentence, entry.ended) == ("running", "", 0.0)
    assert (entry.started == 5.0) is is_kept and entry.started <= time.time()


def test_what_has_no_known_end_is_tried_again_next_time(tmp_path, monkeypatch):
    ends = {"a": HelmFailed("no quota"), "b": ClusterError("no right"), "c": KeyError("bug"), "d": True}
    StandIn(monkeypatch, ends)
    state, lost = start(tmp_path, "abcd")
    assert stages(state) == {"a": "installing", "b": "running", "c": "running", "d": "succeeded"}
    assert [line[:2] for line in lost] == ["a:", "b:", "c:"]
    assert all(word in line for word, line in zip(("no quota", "no right", "KeyError"), lost, strict=True))


THERE = [(SYNCED, {})]
CONNECTION = Answering()
INSTANCE = "app.kubernetes.io/instance=a"
NO_NODE = {"type": "PodScheduled", "status": "False", "message": "1 Insufficient nvidia.com/gpu."}


def job(state, message=""):
    conditions = [{"type": state, "status": "True", "message": message}] if state else []
    return {"metadata": {"name": "a"}, "status": {"conditions": conditions}}


def labelled(name, component, status, **spec):
    labels = {"app.kubernetes.io/component": component}
    return {"metadata": {"name": name, "labels": labels}, "status": status, "spec": spec}


def analysis(condition="", number=1, component="analysis", **spec):
    conditions = [{"type": condition, "status": "True", "reason": "PodFailurePolicy"}] if condition else []
    return labelled(f"a-{component}-{number}", component, {"conditions": conditions}, **spec)


class Cluster:
    """`asked`: the query of each collection; `shown`: what the release was said to do."""

    def __init__(self, monkeypatch):
        self.changes = {}
        self.asked = {}
        self.shown = []
        monkeypatch.setattr(module, "watch", self.watch)

    def watch(self, connection, path, query, patience):
        assert "/namespaces/lab/" in path
        collection = path.rpartition("/")[2]
        self.asked[collection] = query
        yield from self.changes.get(collection, ())

    def follow(self, training, jobs=None, pods=()):
        self.changes = {"pytorchjobs": training, "jobs": jobs or (), "pods": pods}
        planned = plan("a", has_analysis=jobs is not None)
        return follow_release(CONNECTION, planned, self.shown.append)


@pytest.fixture
def cluster(monkeypatch):
    return Cluster(monkeypatch)


def test_success_is_training_and_analysis(cluster):
    done = (MODIFIED, job("Succeeded", "PyTorchJob a is successfully completed."))
    training = [(ADDED, job("")), *THERE, (MODIFIED, job("Running")), done]
    jobs = [(ADDED, analysis()), *THERE, (MODIFIED, analysis("Complete"))]
    assert cluster.follow(training, jobs) == ReleaseEnd(True, "PyTorchJob Succeeded; analysis Complete")
    assert [text for text in cluster.shown if text][1:] == [
        "PyTorchJob Running",
        "PyTorchJob Succeeded",
        "analysis",
    ]
    assert cluster.asked["pytorchjobs"] == {"fieldSelector": "metadata.name=a"}
    assert cluster.asked["jobs"] == {"labelSelector": INSTANCE}


@pytest.mark.parametrize(
    ("training", "jobs", "succeeded", "words"),
    [
        (job("Failed", "why"), [(ADDED, analysis("Complete"))], False, "Failed: why; analysis Complete"),
        (job("Succeeded"), [(ADDED, analysis("Failed")), *THERE], False, "analysis Failed: PodFailurePolicy"),
        (
            job("Succeeded"),
            [(ADDED, analysis("Failed")), (ADDED, analysis("Complete", 2)), *THERE],
            True,
            "analysis Complete",
        ),
        (job("Succeeded"), THERE, True, "analysis"),  # an ended Job goes by itself
        (job("Succeeded"), None, True, "PyTorchJob Succeeded"),
        (
            job("Succeeded"),  # nothing will start the analysis
            [(ADDED, analysis(suspend=True)), *THERE, (ADDED, analysis("Failed", component="waiter"))],
            False,
            "analysis Failed: PodFailurePolicy",
        ),
    ],
)
def test_a_failed_analysis_fails_the_release_unless_another_job_is_complete(
    cluster, training, jobs, succeeded, words
):
    outcome = cluster.follow([(ADDED, training)], jobs)
    assert outcome.succeeded is succeeded and words in outcome.sentence


def test_a_pod_that_waits_for_ever_is_shown(cluster):
    waits = labelled("a-worker-0", "training", {"phase": "Pending", "conditions": [NO_NODE]})
    runs = labelled("a-worker-0", "training", {"containerStatuses": [{"state": {"running": {}}}]})
    told = threading.Event()

    def pods():
        yield MODIFIED, waits
        told.set()
        yield MODIFIED, runs

    def training(wait):
        yield ADDED, job("Created")
        assert wait(10)
        yield MODIFIED, job("Succeeded")

    assert cluster.follow(training(told.wait), pods=pods()).succeeded
    (waiting,) = [text for text in cluster.shown if NO_NODE["message"] in text]
    assert "pod a-worker-0 " in waiting
    assert cluster.asked["pods"] == {"labelSelector": f"{INSTANCE},app.kubernetes.io/component=training"}
