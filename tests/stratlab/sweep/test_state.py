"""A release as it is remembered and seen, what to do with it, and how helm is asked."""

import json

import pytest

from stratlab import UserError
from stratlab.sweep import helm_release
from stratlab.sweep.helm_release import install, look_at, uninstall
from stratlab.sweep.planned_release import hash_asked
from stratlab.sweep.state import ReleaseEntry, SeenRelease, decide, only_one, read_state, state_file
from tests.codes import find_codes
from tests.stratlab.raised import raised
from tests.stratlab.sweep.stand_ins import plan

GONE = SeenRelease()
RUNS = SeenRelease("deployed", "A", has_workload=True)
WITHOUT = SeenRelease("deployed", "A")
HALF = SeenRelease("pending-install", "A")
UNSAID = SeenRelease("pending-install", "A", has_workload=True)  # helm was killed after its last object
GOING = SeenRelease("uninstalling", "A", has_workload=True)
OTHER = SeenRelease("deployed", "B", has_workload=True)
RUNNING = ReleaseEntry("running", "A")
SUCCEEDED, FAILED = ReleaseEntry("succeeded", "A"), ReleaseEntry("failed", "A", "oom")


@pytest.mark.parametrize(
    ("entry", "seen", "step", "with_retry"),
    [
        (None, GONE, "install", "install"),
        (None, RUNS, "join", "join"),
        (None, WITHOUT, "reinstall", "reinstall"),
        (None, HALF, "reinstall", "reinstall"),
        (None, UNSAID, "join", "join"),
        (None, GOING, "reinstall", "reinstall"),
        (RUNNING, OTHER, "refuse", "refuse"),
        (SUCCEEDED, OTHER, "skip", "skip"),
        (FAILED, GONE, "skip", "install"),
        (FAILED, RUNS, "skip", "reinstall"),
    ],
)
def test_next_step(entry, seen, step, with_retry):
    assert decide(entry, seen, "A", retry_failed=False).step == step
    assert decide(entry, seen, "A", retry_failed=True).step == with_retry


def test_other_settings_under_the_same_name_are_refused():
    for entry, seen, code in (
        (SUCCEEDED, GONE, "SL-run-other-settings"),
        (RUNNING, RUNS, "SL-run-other-settings"),
        (None, RUNS, "SL-release-other-settings"),
    ):
        decision = decide(entry, seen, "C", retry_failed=True)
        assert (decision.step, find_codes(decision.reason)) == ("refuse", [code])


def refused(file, comparison, namespace):
    failure = raised(read_state, file, comparison, namespace)
    assert str(file) in str(failure)
    return find_codes(failure)


def test_what_is_recorded_is_read_again(tmp_path):
    file = state_file(tmp_path / "sweep.yaml")
    assert file.name == "sweep.yaml.state.json"
    state = read_state(file, "demo", "lab")
    assert state.releases == {} and not file.exists()
    state = state.record("a", stage="running", asked="1", started=5.0)
    state = state.record("b", stage="installing", asked="2")
    state = state.record("a", stage="failed", sentence="no", ended=9.0)
    again = read_state(file, "demo", "lab")
    assert again == state and again.releases["a"] == ReleaseEntry("failed", "1", "no", 5.0, 9.0)
    assert json.loads(file.read_text())["schema_version"] == 1
    assert [path.name for path in tmp_path.iterdir()] == [file.name], "no temporary file stays"


@pytest.mark.parametrize("content", ["{", "[]", '{"releases": {"a": {"nope": 1}}}'])
def test_a_file_of_another_kind_is_refused(tmp_path, content):
    file = tmp_path / "s.json"
    file.write_text(content)
    assert refused(file, "demo", "lab") == ["SL-state-unreadable"]


def test_the_state_of_another_comparison_is_refused(tmp_path):
    file = tmp_path / "s.json"
    read_state(file, "demo", "lab").record("a", stage="running", asked="1")
    assert refused(file, "other", "lab") == ["SL-state-of-another"]
    assert refused(file, "demo", "lab2") == ["SL-state-of-another"]


def test_a_second_sweep_of_one_file_is_refused_until_the_first_is_gone(tmp_path):
    file = tmp_path / "s.json"
    with only_one(file):
        with pytest.raises(UserError) as failure:
            with only_one(file):
                pass
    assert find_codes(failure.value) == ["SL-already-at-work"] and str(file) in str(failure.value)
    with only_one(file):
        pass


VALUES = {"run": {"config": {"lr": 1.5, "model": "no"}}}


class Helm:
    """Notes its arguments, one a line, and the values it is given; answers by its first argument."""

    def __init__(self, folder):
        self.folder, self.program = folder, folder / "helm"
        self.program.write_text(
            '#!/bin/bash\ncd "${0%/*}"\nprintf "%s\\n" "$*" >> calls\n'
            'verb=$1; while [ $# -gt 0 ]; do [ "$1" = -f ] && cat "$2" > values; shift; done; . "./$verb"\n'
        )
        self.program.chmod(0o755)

    def answer(self, verb, content, code=0):
        stream = ">&2" if code else ""
        (self.folder / verb).write_text(f"cat <<'END' {stream}\n{content}\nEND\nexit {code}\n")


@pytest.fixture
def helm(tmp_path):
    return Helm(tmp_path)


def test_each_call_names_release_namespace_and_context(helm):
    helm.answer("status", json.dumps({"info": {"status": "deployed"}, "config": VALUES}))
    helm.answer("get", json.dumps({"chart": "ddp"}))
    helm.answer("install", "")
    helm.answer("uninstall", "")
    assert look_at(helm.program, "lab", "a") == SeenRelease("deployed", hash_asked("ddp", VALUES))
    install(helm.program, "lab", plan("a", values=VALUES), "east")
    assert json.loads((helm.folder / "values").read_text()) == VALUES
    uninstall(helm.program, "lab", "a", "east")
    status, metadata, installed, removed = (helm.folder / "calls").read_text().splitlines()
    assert status == "status a -n lab -o json" and metadata == "get metadata a -n lab -o json"
    assert installed.startswith("install a charts/ddp -n lab -f /")
    assert installed.endswith("/values.json --kube-context east")
    assert removed == "uninstall a -n lab --ignore-not-found --cascade foreground --wait --kube-context east"


def test_only_a_release_that_is_not_found_is_none(helm):
    helm.answer("status", "Error: release: not found", code=1)
    assert look_at(helm.program, "lab", "a") == SeenRelease()
    helm.answer("status", "WARNING: old\nlevel=WARN msg=x\nError: secrets is forbidden", code=1)
    failure = raised(look_at, helm.program, "lab", "a")
    assert find_codes(failure) == ["SL-sweep-helm-failed"] and "secrets is forbidden" in str(failure)
    assert "old" not in str(failure) and "msg=x" not in str(failure), "remarks are no reason"


def test_a_helm_that_does_not_end_has_failed(helm, monkeypatch):
    monkeypatch.setattr(helm_release, "UNINSTALL_S", 0.2)
    (helm.folder / "uninstall").write_text("exec sleep 5")
    assert find_codes(raised(uninstall, helm.program, "lab", "a")) == ["SL-helm-no-end"]
