"""A watched run from its first to its last change, as its sources bring them; and what the sources ask for."""

import json
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from stratlab import UserError
from stratlab import watch_session as session
from stratlab.cli import app
from stratlab.cluster import ClusterError
from stratlab.cluster.watching import ADDED, SYNCED
from stratlab.cluster.workloads import APIS, Workload
from stratlab.watch_display import Lines, LiveTable, build_ending, describe_waiting, find_remedy
from stratlab.watch_session import Sources
from stratlab.watch_state import EVENTS, JOBS, LOG, PODS, REFUSED, TROUBLE, WORKLOAD
from tests.codes import find_codes
from tests.stratlab.cluster.answering import Answering
from tests.stratlab.raised import raised
from tests.stratlab.watch.objects import build_analysis, build_pod, build_run, ended
from tests.stratlab.watch.test_picture import LINE, add, build_named, build_picture


def test_what_a_run_waits_for_is_said():
    message = "0/1 nodes: Insufficient nvidia.com/gpu."
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    blocked = build_pod(1, "Pending", conditions=[unscheduled])
    picture = add(build_picture("Running", workers=3), PODS, build_pod(0), blocked)
    told = describe_waiting(picture)
    assert told.startswith("1 of 3 pods ") and f"demo-worker-1, Unschedulable: {message}; 1 " in told
    picture.apply_change(LOG, ADDED, LINE.format(1))
    assert describe_waiting(picture) == "", "it trains"
    ended = add(build_picture("Running"), PODS, build_pod(0), build_pod(1, "Failed"))
    assert describe_waiting(ended) == "", "nobody waits for a pod that has ended"


@pytest.mark.parametrize(
    ("note", "named"),
    [
        ('0/1 nodes are available: persistentvolumeclaim "stratlab-results" not found. not found', "-n lab"),
        ('ErrImagePull: failed to pull image "x:9"', "run.image (repository, tag, pullSecrets)"),
        ("0/1 nodes: 1 node(s) didn't match Pod's node affinity/selector.", "run.scheduling.nodeSelector"),
        ("0/1 nodes: 1 node(s) had untolerated taint(s).", "run.scheduling.tolerations"),
        ("0/1 nodes: 1 Insufficient memory.", "run.resources.requests.memory"),
        ("0/1 nodes: 1 Insufficient nvidia.com/gpu.", "run.nodes x run.processesPerNode"),
    ],
)
def test_what_helps_a_pod_that_does_not_start_is_said(note, named):
    assert named in find_remedy(note, "lab")


def test_what_is_known_of_no_remedy_says_none():
    for note in ("CrashLoopBackOff: back-off 10s", "0/1 nodes are available: 1 Insufficient pods.", ""):
        assert find_remedy(note, "lab") == ""
    assert "run.analysis.image" in find_remedy("ImagePullBackOff: x", "lab", is_analysis=True)


def test_an_image_that_cannot_be_pulled_is_told_once_with_what_helps():
    said = []
    lines = Lines(said.append)
    for reason in ("ErrImagePull", "ImagePullBackOff", "ErrImagePull"):
        waiting = {"waiting": {"reason": reason, "message": "pull access denied"}}
        lines.show(add(build_picture("Running"), PODS, build_pod(0, "Pending", state=waiting)))
    assert len([line for line in said if "pod demo-worker-0" in line]) == 1
    assert len([line for line in said if "run.image" in line]) == 1


INSTANCE = "app.kubernetes.io/instance=demo"
EVENTS_PATH = "/api/v1/namespaces/lab/events"
CONNECTION = Answering(**{EVENTS_PATH: []})


def run(*conditions):
    return WORKLOAD, ADDED, build_named("run", build_run(*conditions))


def pod(index, *given, **more):
    return PODS, ADDED, build_named(f"pod {index}", build_pod(index, *given, **more))


def watched(monkeypatch, updates, **options):
    """(exit code, picture, what was said) after these updates; silence follows them."""
    queue, said, picture = iter([*updates, *[None] * 40]), list[str](), build_picture()

    class Brought(Sources):
        def start(self):
            pass

        def follow(self, console):
            pass

        def take(self, timeout_s):
            return next(queue)

    monkeypatch.setattr(session, "Sources", Brought)
    for name in ("CULPRIT_S", "LAST_LINES_S", "NO_STATUS_S"):
        monkeypatch.setattr(session, name, 0.0)
    monkeypatch.setattr("stratlab.watch_display.PROGRESS_EVERY_S", 0.0)
    code = session.watch_run(CONNECTION, picture, Lines(said.append), **options)
    return code, picture, said


def test_a_run_that_succeeds(monkeypatch):
    waiting = (JOBS, ADDED, build_named("job", build_analysis()))
    updates = [
        run(),
        None,  # no operator looks after it: that is said once
        None,
        *(waiting, (JOBS, SYNCED, {}), (PODS, SYNCED, {}), (TROUBLE, "", "trying again")),
        pod(0, "Pending", state={"waiting": {"reason": "ContainerCreating"}}),
        run("Running"),
        (REFUSED, EVENTS, "no events for you"),
        None,
        *(pod(0), (LOG, ADDED, LINE.format(8)), (LOG, ADDED, LINE.format(9))),
        run("Succeeded"),
        None,
        (JOBS, ADDED, build_named("job", build_analysis("Complete"))),
    ]
    code, picture, said = watched(monkeypatch, updates)
    assert code == 0 and picture.progress.step == 9
    assert json.loads(json.dumps(build_ending(picture, code)))["analysis"] == "Complete"
    told = "\n".join(said)
    assert told.count("kubeflow.org/v1 PyTorchJob") == 1 and told.count("trying again") == 1
    places = [told.index(text) for text in ("demo-worker-0: Pending", "no events for you", "step 9/9")]
    assert places == sorted(places) and told.index("analysis: pending") < told.index("analysis: Complete")
    assert watched(monkeypatch, [(PODS, SYNCED, {}), waiting, run("Succeeded")], analysis=False)[0] == 0


def test_a_run_that_fails_ends_with_the_trainers_code(monkeypatch):
    monkeypatch.setattr(session, "SURVIVORS", (134,))
    message = json.dumps({"exit_code": 10, "reason": "out of memory", "message": "rank 2: boom"})
    before = [(PODS, SYNCED, {}), (JOBS, SYNCED, {}), run("Running"), pod(0), pod(1), run("Failed")]
    ends = [pod(0, "Failed", state=ended(134)), pod(1, "Failed", state=ended(10, message))]
    code, picture, _ = watched(monkeypatch, [*before, *ends])
    ending = build_ending(picture, code)
    assert (code, ending["state"], ending["analysis"]) == (10, "Failed", None)
    assert (ending["culprit"]["pod"], ending["culprit"]["message"]) == ("demo-worker-1", "rank 2: boom")
    assert watched(monkeypatch, before)[0] == 1, "nobody has said a code"


@pytest.mark.parametrize("source", [PODS, WORKLOAD])
def test_neither_pods_nor_the_run_may_be_forbidden(monkeypatch, source):
    assert str(raised(watched, monkeypatch, [(REFUSED, source, "not for you")])) == "not for you"


def test_what_is_asked_of_the_cluster_is_about_this_run_and_no_other(monkeypatch):
    asked = {}

    def watch(connection, path, query, patience):
        asked[path.replace("/namespaces/lab", "")] = query
        yield ADDED, {}
        if path.endswith("jobs"):
            raise ClusterError("no right")

    def follow_log(connection, pod, container, patience):
        yield f"{pod['metadata']['name']} {container}"

    monkeypatch.setattr(session, "watch", watch)
    monkeypatch.setattr(session, "follow_log", follow_log)
    brought = Sources(CONNECTION, build_picture().workload)
    brought.start()
    for _ in range(2):
        brought.follow(pod(0)[2])
    taken = [brought.take(5.0) for _ in range(7)]
    assert brought.take(0.05) is None, "a log is followed once"
    assert (LOG, ADDED, "demo-worker-0 pytorch") in taken and (REFUSED, JOBS, "no right") in taken
    assert asked == {
        "/apis/kubeflow.org/v1/pytorchjobs": {"fieldSelector": "metadata.name=demo"},
        "/api/v1/pods": {"labelSelector": INSTANCE},
        "/api/v1/events": {"fieldSelector": "type=Warning"},
        "/apis/batch/v1/jobs": {"labelSelector": INSTANCE},
    }


def test_what_a_thread_dies_of_ends_the_watch(monkeypatch):
    def break_down(*arguments):
        yield from ()
        raise AttributeError("a bug")

    monkeypatch.setattr(session, "watch", break_down)
    with pytest.raises(AttributeError):
        session.watch_run(CONNECTION, build_picture(), Lines(print))


def test_a_release_is_awaited_and_one_that_never_comes_is_told_with_the_others(monkeypatch):
    late = Workload(APIS["trainjob"], build_named("late", build_run("Created")))
    changes = {late.api.path("lab"): [(SYNCED, {}), (ADDED, late.object)]}
    monkeypatch.setattr(session, "watch", lambda connection, path, *_: iter(changes.get(path, [])))
    monkeypatch.setattr(session, "find_workload", lambda *_: None)
    monkeypatch.setattr(session, "check_namespace", lambda *_: None)
    monkeypatch.setattr(session, "list_workloads", lambda *_: [late])
    said = []
    found = session.await_workload(CONNECTION, "demo", said.append, appear_s=10)
    assert found == late and len(said) == 1
    failure = raised(session.await_workload, CONNECTION, "none", said.append, appear_s=0.1)
    assert isinstance(failure, UserError) and find_codes(failure) == ["SL-release-not-found"]
    assert "demo (Created)" in str(failure)


@pytest.mark.parametrize(
    ("env", "kind"),
    [
        ({"FORCE_COLOR": None, "TERM": "xterm"}, Lines),  # into a file or a pipe
        ({"FORCE_COLOR": "1", "TERM": "xterm"}, LiveTable),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, Lines),  # cannot draw anything anew
    ],
)
def test_a_table_is_drawn_on_a_terminal_and_nowhere_else(monkeypatch, env, kind):
    seen = []

    def watch_run(connection, workload, display, *, analysis):
        seen.append(display)
        return 3

    monkeypatch.setattr("stratlab.cluster.connection.connect", lambda **_: SimpleNamespace(namespace="lab"))
    monkeypatch.setattr("stratlab.watch_session.await_workload", lambda *_: SimpleNamespace(uid="1"))
    monkeypatch.setattr("stratlab.watch_session.watch_run", watch_run)
    monkeypatch.setattr("stratlab.watch_display.build_farewell", lambda picture: ["gone"])
    done = CliRunner().invoke(app, ["watch", "ddp"], env=env)
    assert done.exit_code == 3 and done.output.endswith("gone\n")
    assert [type(display) for display in seen] == [kind]
    monkeypatch.setattr("stratlab.watch_display.build_ending", lambda picture, code: {"exit_code": code})
    done = CliRunner().invoke(app, ["watch", "ddp", "--json"], env=env)
    assert done.exit_code == 3 and json.loads(done.stdout) == {"exit_code": 3} and "gone" in done.stderr
