"""What is known of a run after some changes, what is shown of it, and its farewell: by hand, without an API server."""

import re
from io import StringIO

import pytest
from rich.console import Console

from stratlab import watch_display as lines
from stratlab import watch_session as session
from stratlab.cluster.watching import ADDED, DELETED
from stratlab.cluster.workloads import APIS, Workload
from stratlab.watch_display import LiveTable, build_ending, build_farewell, describe_left, render
from stratlab.watch_state import EVENTS, JOBS, LOG, PODS, WORKLOAD, Picture
from tests.stratlab.watch.objects import build_analysis, build_event, build_pod, build_run, ended, labels

LINE = "step {}/9  loss 0.4  812 samples/s  78.9 ms/step  about 38 s left"
SLOW = "step 9: rank {} (node b) takes 2.0 times as long as the others since step 1: they wait"


def build_picture(*conditions, workers=2):
    return Picture(Workload(APIS["pytorchjob"], build_named("run", build_run(*conditions, workers=workers))))


def build_named(uid, thing):
    thing["metadata"] |= {"uid": uid, "namespace": "lab"}
    return thing


def add(picture, source, *things):
    for thing in things:
        uid = thing["metadata"].get("uid") or f"{source} {thing['metadata']['name']}"
        picture.apply_change(source, ADDED, build_named(uid, thing))
    return picture


def find(picture, start):
    return [line for line in build_farewell(picture) if line.startswith(start)]


def build_analysis_pod(**containers):
    """`wait_`: an init container."""
    status = {"containerStatuses": [], "initContainerStatuses": []}
    for name, held in containers.items():
        key = "initContainerStatuses" if name.endswith("_") else "containerStatuses"
        status[key].append({"name": name.rstrip("_"), "state": {held: {"reason": "ImagePullBackOff"}}})
    metadata = {"name": "p", "labels": labels("demo", "analysis")}
    return {"metadata": metadata, "spec": {"containers": [{}]}, "status": status}


def test_pods_are_in_the_order_of_their_numbers():
    picture = add(build_picture(workers=12), PODS, *map(build_pod, (10, 2, 0)))
    assert [pod["metadata"]["name"][-2:] for pod in picture.training_pods] == ["-0", "-2", "10"]


def test_the_attempt_is_what_the_trainer_says_or_more():
    for said, starts, attempt in ((0, 0, 0), (3, 1, 3), (1, 2, 2)):
        picture = build_picture("Running")
        for number in range(starts):
            pod = build_pod(0, uid="pod")
            pod["status"]["containerStatuses"][0]["restartCount"] = number
            add(picture, PODS, pod)
        if said:
            picture.apply_change(LOG, ADDED, f"demo: attempt {said}, rank 0 of 4 on cpu, gloo")
        assert picture.attempt == attempt


def test_events_of_a_run_come_once_each_and_the_newest_last():
    times = {"old": "lastTimestamp", "new": "eventTime", "series": "series", "again": "lastTimestamp"}
    events = {name: build_event("run", "FailedCreatePod", name.replace("again", "old")) for name in times}
    for number, (name, key) in enumerate(times.items()):
        at = f"2026-01-01T00:00:0{5 - number}Z"
        stamp = {key: {"lastObservedTime": at} if key == "series" else at}
        events[name] |= stamp | {"firstTimestamp": str(number)}
        events[name]["metadata"]["name"] = name
    picture = add(build_picture("Created"), EVENTS, *events.values())
    assert [event["message"] for event in picture.events] == ["old", "series", "new"]


@pytest.mark.parametrize(
    ("containers", "state"),
    [
        ({"analyze": "running", "wait_": "terminated"}, "analyzing"),
        ({"analyze": "waiting", "wait_": "running"}, "waiting for the run"),
        ({"analyze": "waiting"}, "pending"),
    ],
)
def test_what_the_analysis_does(containers, state):
    picture = add(build_picture("Running"), PODS, build_analysis_pod(**containers))
    assert add(picture, JOBS, build_analysis()).analysis_state == state
    assert ("ImagePullBackOff" in lines.describe_analysis(picture)) is ("waiting" in containers.values())


def test_of_two_analyses_the_newer_counts():
    older, newer = build_analysis("Failed"), build_analysis("Complete")
    newer["metadata"] |= {"name": "demo-analysis-2", "creationTimestamp": "2026-01-02T00:00:00Z"}
    assert add(build_picture("Succeeded"), JOBS, newer, older).analysis_state == "Complete"


def test_a_failed_analysis_names_what_to_read():
    failed = add(build_picture("Succeeded"), JOBS, build_analysis("Failed"))
    assert find(failed, "the analysis")[0].endswith(" kubectl logs job/demo-analysis-1 -n lab")
    shares = add(build_picture("Succeeded"), JOBS, build_analysis("Failed") | {"spec": {"completions": 2}})
    assert "-l batch.kubernetes.io/job-name=demo-analysis-1 --prefix" in find(shares, "the analysis")[0]
    waiter = build_analysis("Failed")
    waiter["metadata"] |= {"name": "demo-waiter-1", "labels": labels("demo", "waiter")}
    suspended = build_analysis() | {"spec": {"suspend": True}}
    never = add(build_picture("Succeeded"), JOBS, suspended, waiter)
    assert never.analysis_state == "Failed"
    assert find(never, "the analysis")[0].endswith(" kubectl logs job/demo-waiter-1 -n lab")


def test_of_pods_that_are_gone_the_last_one_tells():
    picture = build_picture("Failed")
    for code in (12, 10):
        pod = build_named(str(code), build_pod(0, "Failed", state=ended(code)))
        picture.apply_change(PODS, DELETED, pod)
    assert picture.culprit and picture.culprit.exit_code == 10


@pytest.mark.parametrize(
    ("code", "pod", "option"),
    [(10, 1, "--rank 2"), (10, 0, ""), (14, 1, "--rank 2 --previous"), (137, 1, "--rank 2")],
)
def test_a_farewell_names_the_log_of_the_culprit(code, pod, option):
    """Ranks 2 and 3 of 4 are in the second pod."""
    pods = build_pod(1 - pod), build_pod(pod, "Failed", state=ended(code))
    picture = add(build_picture("Failed"), PODS, *pods)
    assert find(picture, "next: ") == [f"next: stratlab logs demo -n lab {option}".strip()]


@pytest.mark.parametrize(("code", "is_refused"), [(2, True), (3, True), (4, False)])
def test_a_refused_run_has_no_report_of_its_own(code, is_refused):
    words = f'{{"exit_code": {code}, "message": "TRAINER_LR=6: no"}}'
    for condition, line in (("Complete", "report: "), ("Failed", "the analysis failed")):
        picture = add(build_picture("Failed"), PODS, build_pod(0, "Failed", state=ended(code, words)))
        add(picture, JOBS, build_analysis(condition))
        assert bool(find(picture, line)) is not is_refused
        assert find(picture, "  ") == ["  run.config.lr=6: no"]
        picture.apply_change(LOG, ADDED, LINE.format(1))
        assert find(picture, line)


def test_a_run_that_succeeded_is_compared_with_its_comparison_and_has_no_culprit():
    picture = add(build_picture("Succeeded"), PODS, build_pod(0, "Failed", state=ended(137)))
    picture.apply_change(LOG, ADDED, LINE.format(9))
    assert find(picture, "next: ") == ["next: stratlab compare c --on-cluster -n lab"]
    assert build_ending(picture, 0) == {
        "release": "demo", "namespace": "lab", "state": "Succeeded", "exit_code": 0, "attempts": 1, "step": 9,
        "steps": 9, "culprit": None, "analysis": None, "run_directory": "/results/c/demo", "results_claim": "volume",
    }  # fmt: skip
    failed = build_ending(add(build_picture("Failed"), PODS, *picture.training_pods), 137)
    assert failed["culprit"]["exit_code"] == 137 and failed["step"] is None
    check = build_run("Succeeded")  # its table is rank 0's log
    del check["metadata"]["annotations"]["stratlab/run-directory"]
    farewell = build_farewell(Picture(Workload(APIS["pytorchjob"], build_named("run", check))))
    assert farewell[1:] == ["next: stratlab logs demo -n lab"]


@pytest.mark.parametrize(
    ("condition", "code", "step", "seconds", "told"),
    [
        ("Succeeded", 0, 9, 0, True),
        ("Succeeded", 0, 8, 2, False),  # its last line is on its way
        ("Succeeded", 0, 8, 3, True),
        ("Failed", 12, 8, 0, True),
        ("Failed", 134, 8, 4, False),  # another pod has more to say
        ("Failed", None, 8, 4, False),
    ],
)
def test_how_long_last_words_are_waited_for(condition, code, step, seconds, told):
    picture = build_picture(condition)
    picture.apply_change(LOG, ADDED, LINE.format(step))
    if code is not None:
        add(picture, PODS, build_pod(0, "Failed" if code else "Succeeded", state=ended(code)))
    assert session._is_told(picture, seconds) is told


@pytest.mark.parametrize(
    ("conditions", "synced", "deleted", "seconds", "due"),
    [
        ([], False, False, 14, True),  # the list of Jobs is on its way
        ([], False, False, 15, False),
        ([""], True, False, 99, True),
        (["Failed"], True, False, 0, False),
        ([""], True, True, 0, False),
    ],
)
def test_how_long_an_analysis_is_waited_for(conditions, synced, deleted, seconds, due):
    picture = build_picture("Succeeded")
    add(picture, JOBS, *(build_analysis(*filter(None, [each])) for each in conditions))
    if synced:
        picture.apply_change(JOBS, "SYNCED", None)
    if deleted:
        picture.apply_change(WORKLOAD, DELETED, None)
    assert session._is_analysis_due(picture, seconds) is due


def test_how_many_shares_of_an_analysis_are_done():
    for done, text in ((2, ", 2 of 3 shares done"), (3, ", 3 shares")):
        job = build_analysis() | {"spec": {"completions": 3, "parallelism": 1}}
        job["status"]["succeeded"] = done
        assert lines.describe_analysis(add(build_picture("Succeeded"), JOBS, job)).endswith(text)


def test_a_step_is_told_now_and_then_and_the_last_one_always(monkeypatch):
    monkeypatch.setattr(lines, "PROGRESS_EVERY_S", 1e6)
    told = []
    shown, picture = lines.Lines(told.append), build_picture("Running")
    shown._progress_at = -1e6
    for step in (1, 2, 8, 9):
        picture.apply_change(LOG, ADDED, SLOW.format(1))
        picture.apply_change(LOG, ADDED, LINE.format(step))
        shown.show(picture)
    assert [line.split()[1] for line in told if line.startswith("step ")] == ["9:", "1/9", "9/9"]


def test_a_table_has_the_newest_of_many_events_and_sentences():
    picture = build_picture("Running")
    for number in range(7):
        event = build_event("run", "FailedMount", f"[b]event {number}") | {"eventTime": str(number)}
        event["metadata"]["name"] = str(number)
        add(picture, EVENTS, event)
        picture.apply_change(LOG, ADDED, SLOW.format(number))
    add(
        picture,
        PODS,
        *map(build_pod, range(40)),
        build_pod(40, "Failed", state=ended(137, reason="OOMKilled")),
    )
    picture.apply_change(LOG, ADDED, LINE.format(3))
    console = Console(width=200, file=StringIO())
    with LiveTable(console) as table:
        table.show(picture)
        table.say("[red]a sentence")
    console.print(render(picture))
    short = Console(width=80, file=StringIO())
    short.print(render(build_picture("Running"), 24), render(picture, 24))
    printed = short.file.getvalue().splitlines()
    assert len(printed) <= 2 * 24 and max(map(len, printed)) <= 80
    text = console.file.getvalue()
    assert [number for number in range(7) if f"[b]event {number}" in text] == [2, 3, 4, 5, 6]
    assert [number for number in range(7) if f"rank {number} " in text] == [4, 5, 6]
    assert re.search(r"and \d+ more", text) and "OOMKilled" in text, (
        "a pod in trouble is shown even if there are many"
    )
    assert "[red]a sentence" in text and "step 3/9" in text


def test_who_leaves_hears_what_goes_on():
    picture = build_picture("Running")
    going = describe_left(picture)
    picture.deleted = True
    assert len({going, describe_left(picture), describe_left(None)}) == 3
    assert "deleted" in build_farewell(picture)[0]
