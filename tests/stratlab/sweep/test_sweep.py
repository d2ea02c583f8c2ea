"""Before and after the work: what a cluster must have, what is decided, and what counts as success."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stratlab.cluster import ClusterError
from stratlab.cluster.connection import Connection
from stratlab.cluster.workloads import APIS, Workload
from stratlab.sweep import sweep as module
from stratlab.sweep.decision import Decision, Seen
from stratlab.sweep.helm_release import HelmFailed
from stratlab.sweep.matrix import Release
from stratlab.sweep.planned_release import Planned
from stratlab.sweep.state import State, read_state
from stratlab.sweep.sweep import Choices, check_cluster, decide_all, run_sweep, uninstall_ended
from stratlab.sweep.work import Site
from stratlab.user_error import UserError
from tests.stratlab.cluster.conftest import api, connection
from tests.stratlab.cluster.fake_api import FakeApi
from tests.stratlab.sweep.test_work import Silent

__all__ = ["api", "connection"]

LAB = "/api/v1/namespaces/lab"
JOBS = APIS["pytorchjob"].path("lab")


def plan(name: str, claim: str = "results") -> Planned:
    notes = {
        "stratlab/results-claim": claim,
        "stratlab/certificates": "secret/ours/ca.crt",
        "stratlab/results-mount": "/r",
        "stratlab/lab-image": "lab:1",
    }
    workload = Workload(APIS["pytorchjob"], {"metadata": {"name": name, "annotations": notes}})
    release = Release(name, "ddp", {"strategy": "ddp"}, 1, {})
    return Planned(release, Path("ddp"), {}, "asked", workload, True)


def furnish(api: FakeApi) -> None:
    api.put("/api/v1/namespaces", {"metadata": {"name": "lab"}})
    api.put(f"{LAB}/persistentvolumeclaims", {"metadata": {"name": "results"}})
    api.served.add("/apis/kubeflow.org/v1")
    api.served.add(JOBS)


def silent(text: str) -> None:
    pass


def test_what_a_cluster_lacks_is_told_together(api: FakeApi, connection: Connection) -> None:
    api.namespaces.clear()
    assert check_cluster(connection, "lab", [plan("a"), plan("b")]) == [
        "there is no namespace lab",
        "namespace lab has no claim results",
        "the cluster does not serve PyTorchJob (kubeflow.org/v1)",
    ]
    api.fault = lambda path, query: {"status": 403, "message": "no right"}
    assert check_cluster(connection, "lab", [plan("a")]) == [], (
        "what may not be looked at is not called missing"
    )
    api.fault = lambda path, query: {"status": 401, "message": "who are you"}
    assert "who are you" in check_cluster(connection, "lab", [plan("a")])[0]
    api.fault = lambda path, query: None
    furnish(api)
    assert check_cluster(connection, "lab", [plan("a")]) == []
    assert check_cluster(connection, "lab", [plan("a"), plan("b", "more")]) == [
        "namespace lab has no claim more"
    ]


def test_decisions_follow_from_helm_and_the_resource(
    api: FakeApi, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    furnish(api)
    api.put(JOBS, {"metadata": {"name": "b"}})
    seen = {"a": Seen(), "b": Seen("deployed", "asked"), "c": Seen("deployed", "asked"), "d": Seen()}
    looked: list[str] = []

    def look_at(helm: Path, namespace: str, name: str, context: str | None) -> Seen:
        assert (helm, namespace, context) == (Path("helm"), "lab", "east")
        looked.append(name)
        return seen[name]

    monkeypatch.setattr(module, "look_at", look_at)
    state = read_state(tmp_path / "s.json", "demo", "lab").record("d", stage="succeeded", asked="asked")
    site = Site(connection, "lab", Path("helm"), "east")
    decisions = decide_all([plan(name) for name in "abcd"], state, site, False, silent)
    assert [decision.step for _, decision in decisions] == ["install", "join", "reinstall", "skip"]
    assert looked == ["a", "b", "c"], "the state file settles d"
    api.fault = lambda path, query: {"status": 403, "message": "no right"} if path == f"{JOBS}/c" else None
    with pytest.raises(UserError, match="c: .*no right"):  # it may be there
        decide_all([plan(name) for name in "abcd"], state, site, False, silent)


def test_all_that_must_not_be_touched_is_told_before_anything_starts(
    api: FakeApi, connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    furnish(api)

    def look_at(helm: Path, namespace: str, name: str, context: str | None) -> Seen:
        if name == "c":
            raise HelmFailed("helm status: secrets is forbidden")
        return Seen("deployed", "something else") if name == "a" else Seen()

    monkeypatch.setattr(module, "look_at", look_at)
    state = read_state(tmp_path / "s.json", "demo", "lab").record("d", stage="running", asked="older")
    with pytest.raises(ValueError) as failure:
        decide_all(
            [plan(name) for name in "abcd"],
            state,
            Site(connection, "lab", Path("helm"), "east"),
            False,
            silent,
        )
    lines = str(failure.value).splitlines()
    assert len(lines) == 4 and "a: is in the cluster with other settings" in lines[1]
    assert (
        "c: helm status: secrets is forbidden" in lines[2]
        and "d: was started with other settings" in lines[3]
    )


class Ends:
    """Stand-ins for the work and the comparison."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stages: dict[str, str], compared: Any) -> None:
        self.worked: list[str] = []
        self.asked: dict[str, Any] = {}

        def work(todo: Any, state: State, *rest: Any, **options: Any) -> tuple[State, list[str]]:
            for planned, _ in todo:
                name = planned.release.name
                if name not in stages:
                    break  # stopped before it
                self.worked.append(name)
                state = state.record(name, stage=stages[name], asked="asked", sentence="badly")
            return state, []

        def compare(connection: Any, namespace: str, comparison: str, **options: Any) -> dict[str, Any]:
            self.asked = {"comparison": comparison, **options}
            if isinstance(compared, Exception):
                raise compared
            return {"comparison": comparison}

        monkeypatch.setattr(module, "work", work)
        monkeypatch.setattr(module, "compare_on_cluster", compare)


def finish(
    tmp_path: Path, names: str, skip: str = "", varied: tuple[str, ...] = (), tuning: Any = None
) -> module.Result:
    todo = [(plan(name), Decision("skip" if name in skip else "install", "")) for name in names]
    state = read_state(tmp_path / "s.json", "demo", "lab")
    for name in skip:
        state = state.record(name, stage="succeeded", asked="asked")
    site = Site(None, "lab", Path("helm"), "east")  # type: ignore[arg-type]
    return run_sweep(todo, state, site, Choices(1, False, tmp_path / "report", tuning, varied), Silent())


def test_all_well_is_no_problem_and_the_comparison_is_where_the_runs_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = Ends(monkeypatch, {"a": "succeeded", "b": "succeeded"}, None)
    result = finish(tmp_path, "abc", skip="c")
    assert result.problems == [] and result.report == {"comparison": "demo"}
    assert ends.worked == ["a", "b"]
    assert {key: ends.asked[key] for key in ("comparison", "claim", "mount", "image", "certificates")} == {
        "certificates": "secret/ours/ca.crt",
        "comparison": "demo",
        "claim": "results",
        "mount": "/r",
        "image": "lab:1",
    }
    assert ends.asked["options"] == []
    finish(tmp_path, "abc", skip="c", varied=("lr", "optimizer"))
    assert ends.asked["options"] == ["--varied=lr,optimizer", "--keep-varied"]
    finish(tmp_path, "abc", skip="c", tuning={"tuned": [1, "x"]})
    assert ends.asked["options"] == ['--tuning={"tuned":[1,"x"]}']


def test_a_failed_run_and_a_failed_comparison_are_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Ends(monkeypatch, {"a": "succeeded", "b": "failed"}, ClusterError("no pod"))
    assert finish(tmp_path, "ab").problems == ["b: badly", "comparison: no pod"]


def test_a_run_that_was_not_started_is_a_problem_and_the_others_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Ends(monkeypatch, {"a": "succeeded", "b": "failed"}, None)
    result = finish(tmp_path, "abc")
    assert result.problems == ["b: badly", "c: was not started"] and result.report


def test_without_any_success_nothing_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Ends(monkeypatch, {"a": "failed"}, None)
    result = finish(tmp_path, "a")
    assert result.problems == ["a: badly", "no run has succeeded, so there is nothing to compare"]
    assert ends.asked == {} and result.report is None


def test_what_has_ended_is_uninstalled_also_where_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone: list[str] = []

    def uninstall(helm: Path, namespace: str, name: str, context: str | None) -> None:
        assert (helm, namespace, context) == (Path("helm"), "lab", "east")
        if name == "c":
            raise HelmFailed("no right")
        gone.append(name)

    monkeypatch.setattr(module, "uninstall", uninstall)
    state = read_state(tmp_path / "s.json", "demo", "lab")
    for name, stage in (("a", "succeeded"), ("b", "failed"), ("c", "succeeded"), ("d", "running")):
        state = state.record(name, stage=stage, asked="asked")
    site = Site(None, "lab", Path("helm"), "east")  # type: ignore[arg-type]
    assert uninstall_ended("abcde", state, site, silent) == ["c: no right"]
    assert gone == ["a", "b"]
