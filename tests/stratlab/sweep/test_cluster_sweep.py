"""Before and after the work: what a cluster must have, what is decided, and what counts as success."""

from pathlib import Path

from stratlab.cluster import ClusterError
from stratlab.cluster.workloads import APIS
from stratlab.helm import HelmFailed
from stratlab.sweep import execution as module
from stratlab.sweep.execution import ClusterPlace, carry_out, check_cluster, decide_all, uninstall_ended
from stratlab.sweep.helm_release import Site
from stratlab.sweep.state import SeenRelease, read_state
from tests.codes import find_codes
from tests.stratlab.cluster.answering import Answering
from tests.stratlab.raised import raised
from tests.stratlab.sweep import stand_ins

LAB = "/api/v1/namespaces/lab"
JOBS = APIS["pytorchjob"].path("lab")
NOTES = {"certificates": "secret/ours/ca.crt", "results_mount": "/r", "lab_image": "lab:1"}


def plan(name, claim="results"):
    return stand_ins.plan(name, results_claim=claim, **NOTES)


def furnish():
    cluster = Answering()
    for path in (LAB, f"{LAB}/persistentvolumeclaims/results", "/apis/kubeflow.org/v1"):
        cluster.things[path] = {"metadata": {}}
    return cluster


def silent(text):
    pass


def test_what_a_cluster_lacks_is_told_together():
    cluster = Answering()
    missing = ["SL-namespace-missing", "SL-claim-missing", "SL-sweep-api-not-served"]
    assert find_codes(check_cluster(cluster, "lab", [plan("a"), plan("b")])) == missing
    cluster = furnish()
    assert check_cluster(cluster, "lab", [plan("a")]) == []
    (second,) = check_cluster(cluster, "lab", [plan("a"), plan("b", "more")])
    assert find_codes(second) == ["SL-claim-missing"] and "more" in second.split()
    for path in cluster.things:
        cluster.things[path] = 403
    assert check_cluster(cluster, "lab", [plan("a")]) == [], "what may not be looked at is not missing"
    cluster.things[LAB] = 401
    assert check_cluster(cluster, "lab", [plan("a")]) == ["said no"]


def test_decisions_follow_from_helm_and_the_resource(tmp_path, monkeypatch):
    connection = furnish()
    connection.things[f"{JOBS}/b"] = {"metadata": {"name": "b"}}
    seen = {name: SeenRelease("deployed", f"asked {name}") for name in "bc"} | {"a": SeenRelease()}
    looked = []

    def look_at(helm, namespace, name, context):
        assert (helm, namespace, context) == (Path("helm"), "lab", "east")
        looked.append(name)
        if isinstance(seen[name], Exception):
            raise seen[name]
        return seen[name]

    monkeypatch.setattr(module, "look_at", look_at)
    state = read_state(tmp_path / "s.json", "demo", "lab").record("d", stage="succeeded", asked="asked d")
    plans, site = [plan(name) for name in "abcd"], Site(connection, "lab", Path("helm"), "east")
    decisions = decide_all(plans, state, site, False, silent)
    assert [decision.step for _, decision in decisions] == ["install", "join", "reinstall", "skip"]
    assert looked == ["a", "b", "c"], "the state file settles d"
    connection.things[f"{JOBS}/c"] = 403
    seen |= {"a": SeenRelease("deployed", "something else"), "b": HelmFailed("no b")}
    state = state.record("d", stage="running", asked="older")
    lines = str(raised(decide_all, plans, state, site, False, silent)).splitlines()[1:]
    assert [line.strip()[0] for line in lines] == ["a", "b", "c", "d"]
    assert "no b" in lines[1] and "said no" in lines[2], "it may be there"
    assert find_codes(lines) == ["SL-release-other-settings", "SL-run-other-settings"]


class Ends:
    """Stand-ins for the work and the comparison."""

    def __init__(self, monkeypatch, stages, failure=None):
        self.worked = []
        self.asked = {}

        def work(todo, state, *rest, **options):
            for planned, _ in todo:
                name = planned.release.name
                if name not in stages:
                    break  # stopped before it
                self.worked.append(name)
                state = state.record(name, stage=stages[name], asked=planned.asked, sentence="badly")
            return state, []

        def compare(connection, namespace, comparison, **options):
            self.asked = {"comparison": comparison, **options}
            if failure:
                raise failure
            return {"comparison": comparison}

        monkeypatch.setattr(module, "look_at", lambda *asked: SeenRelease())
        monkeypatch.setattr(module, "work", work)
        monkeypatch.setattr(module, "compare_on_cluster", compare)


def finish(tmp_path, names, skip="", varied=(), tuning=None):
    plans = [plan(name) for name in names]
    state = read_state(tmp_path / "s.json", "demo", "lab")
    for name in skip:
        state = state.record(name, stage="succeeded", asked="asked " + name)
    display = stand_ins.Heard()
    place = ClusterPlace(Site(furnish(), "lab", Path("helm"), "east"), 1, display, counts=True)
    options = {"retry_failed": False, "stop_on_failure": False, "tuning": tuning, "varied": varied}
    result = carry_out(place, plans, state, tmp_path / "report", **options)
    assert len(display.lines) == 1 and display.lines[0].startswith(f"{len(plans)} releases: ")
    return result


def test_all_well_is_no_problem_and_the_comparison_is_where_the_runs_are(tmp_path, monkeypatch):
    ends = Ends(monkeypatch, {"a": "succeeded", "b": "succeeded"})
    result = finish(tmp_path, "abc", skip="c")
    assert result.problems == [] and result.report == {"comparison": "demo"}
    assert ends.worked == ["a", "b"] and ends.asked["options"] == []
    assert {key: ends.asked[key] for key in ("comparison", "claim", "mount", "image", "certificates")} == {
        "certificates": "secret/ours/ca.crt",
        "comparison": "demo",
        "claim": "results",
        "mount": "/r",
        "image": "lab:1",
    }
    finish(tmp_path, "abc", skip="c", varied=("lr", "optimizer"))
    assert ends.asked["options"] == ["--vary=lr,optimizer", "--keep-varied"]
    finish(tmp_path, "abc", skip="c", tuning={"tuned": [1, "x"]})
    assert ends.asked["options"] == ['--tuning={"tuned":[1,"x"]}']


def test_a_run_that_was_not_started_is_a_problem_and_the_others_are_compared(tmp_path, monkeypatch):
    Ends(monkeypatch, {"a": "succeeded", "b": "failed"})
    result = finish(tmp_path, "abc")
    assert [find_codes(problem) for problem in result.problems] == [["SL-run-failed"], ["SL-run-not-started"]]
    assert [problem[:2] for problem in result.problems] == ["b:", "c:"]
    assert "badly" in result.problems[0] and result.report


def test_a_comparison_that_fails_is_a_problem_and_without_a_success_there_is_none(tmp_path, monkeypatch):
    Ends(monkeypatch, {"a": "succeeded"}, ClusterError("no pod"))
    (problem,) = finish(tmp_path, "a").problems
    assert "no pod" in problem
    (tmp_path / "s.json").unlink()
    ends = Ends(monkeypatch, {"a": "failed"})
    result = finish(tmp_path, "a")
    assert find_codes(result.problems) == ["SL-run-failed", "SL-sweep-nothing-to-compare"]
    assert ends.asked == {} and result.report is None


def test_what_has_ended_is_uninstalled_also_where_it_failed(tmp_path, monkeypatch):
    gone = []

    def uninstall(helm, namespace, name, context):
        assert (helm, namespace, context) == (Path("helm"), "lab", "east")
        if name == "c":
            raise HelmFailed("no right")
        gone.append(name)

    monkeypatch.setattr(module, "uninstall", uninstall)
    state = read_state(tmp_path / "s.json", "demo", "lab")
    for name, stage in (("a", "succeeded"), ("b", "failed"), ("c", "succeeded"), ("d", "running")):
        state = state.record(name, stage=stage, asked="asked")
    site = Site(None, "lab", Path("helm"), "east")
    assert uninstall_ended("abcde", state, site, silent) == ["c: no right"] and gone == ["a", "b"]
