"""What a run and a replay send, to which server, and how the MLflow run ends. The server is a stand-in."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from stratlab_spec.run_directory import RunDirectory, write_json
from tests.trainer.launch.mlflow_stand_in import StandIn, Store
from trainer.launch import mlflow_replay as replay_module
from trainer.launch import mlflow_sender as sender_module
from trainer.launch.mlflow_replay import replay
from trainer.launch.mlflow_sender import Sender, close_run, read_offset

HERE, THERE = "http://here", "http://there"


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Store]:
    monkeypatch.setattr(StandIn, "stores", {HERE: Store(), THERE: Store()}, raising=False)
    monkeypatch.setattr(sender_module, "Mlflow", StandIn)
    monkeypatch.setattr(replay_module, "Mlflow", StandIn)
    return StandIn.stores


@pytest.fixture
def folder(tmp_path: Path) -> RunDirectory:
    folder = RunDirectory(tmp_path, "c", "r")
    folder.create()
    provenance = {"git_sha": "a", "image": "i", "hosts": [], "versions": {}}
    content = {"comparison": "c", "run": "r", "run_uid": "uid", "config": {"strategy": "ddp"}}
    write_json(folder.config, {**content, "resolved": {"axes": {}}, "provenance": provenance})
    write(folder, 1, 2, 3)
    folder.append_attempt("started", 1, "me")
    return folder


def write(folder: RunDirectory, *steps: int, more: str = "") -> None:
    lines = [
        {"t": 1.0, "attempt": 1, "step": step, "kind": "train", "loss": 0.5, "lr": 1.0} for step in steps
    ]
    with open(folder.metrics, "a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines) + more)


def steps_of(store: Store) -> list[int]:
    return [point["step"] for point in store.run("uid")["points"] if point["key"] == "loss"]


def build_sender(folder: RunDirectory, uri: str = HERE) -> Sender:
    return Sender(folder, "me", {"MLFLOW_TRACKING_URI": f"{uri}/"})


def test_a_further_attempt_goes_on_in_the_same_run_from_where_it_was(folder, servers):
    here = servers[HERE]
    assert build_sender(folder)._try_send() and steps_of(here) == [1, 2, 3]
    recorded = json.loads(folder.mlflow.read_text())
    assert recorded == {"tracking_uri": HERE, "experiment_id": "experiment c", "run_id": "uid"}
    here.run("uid")["status"] = "FAILED"
    write(folder, 4)
    assert build_sender(folder)._try_send()
    assert steps_of(here) == [1, 2, 3, 4] and here.run("uid")["status"] == "RUNNING"
    assert [here.calls.count(name) for name in ("open_run", "reopen_run")] == [1, 1]


@pytest.mark.parametrize("content", ["x", None])
def test_without_a_confirmation_everything_is_sent(folder, servers, content):
    if content is not None:
        folder.sent.write_text(content)
    assert read_offset(folder) == 0
    assert build_sender(folder)._try_send() and steps_of(servers[HERE]) == [1, 2, 3]


def test_another_server_gets_everything_whatever_the_first_has_confirmed(folder, servers):
    assert build_sender(folder)._try_send()
    assert build_sender(folder, THERE)._try_send()
    assert (
        steps_of(servers[THERE]) == [1, 2, 3]
        and json.loads(folder.mlflow.read_text())["tracking_uri"] == THERE
    )


@pytest.mark.parametrize(
    ("summary", "tags"),
    [
        ({"forecast_memory_deviates": "logits", "mfu_pct": 5}, {"forecast_memory_deviates": "logits"}),
        ({"forecast_memory_deviates": None}, {"forecast_memory_deviates": "none"}),
        ({"mfu_pct": 5}, {}),
        (None, {}),
    ],
)
def test_results_that_are_texts_are_tags_of_a_run_that_ends(folder, servers, summary, tags):
    assert build_sender(folder)._try_send()
    if summary is not None:
        write_json(folder.summary, summary)
    close_run(folder, StandIn(HERE, {}), "uid", "KILLED")  # type: ignore[arg-type]
    assert servers[HERE].run("uid")["tags"] == tags and servers[HERE].run("uid")["status"] == "KILLED"


@pytest.mark.parametrize(("grace", "waited"), [(5.0, 5.0), (300.0, 30.0)])
def test_a_server_that_is_away_is_waited_for_as_long_as_the_grace_period_lasts(
    folder: RunDirectory,
    servers: dict[str, Store],
    monkeypatch: pytest.MonkeyPatch,
    grace: float,
    waited: float,
) -> None:
    clock = [100.0]
    passing = SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda s: clock.__setitem__(0, clock[0] + s))
    monkeypatch.setattr(sender_module, "time", passing)
    servers[HERE].away = True
    sender = build_sender(folder)
    sender.start()
    sender.finish(12, grace)
    assert waited <= clock[0] - 100 <= waited + 1 and read_offset(folder) == 0


@pytest.mark.parametrize(
    ("ends", "held", "closed"),
    [
        ([], "RUNNING", ""),
        ([0], "RUNNING", "FINISHED"),
        ([143], "RUNNING", "KILLED"),
        ([143, 12], "RUNNING", "FAILED"),
        ([12], "FINISHED", ""),  # somebody has said so
    ],
)
def test_a_replay_closes_what_has_ended_and_is_open_still(folder, servers, ends, held, closed):
    assert build_sender(folder)._try_send()
    servers[HERE].run("uid")["status"] = held
    for code in ends:
        folder.append_attempt("ended", 1, "me", exit_code=code)
    assert replay(folder, HERE, {}).closed == closed
    assert servers[HERE].run("uid")["status"] == (closed or held)


@pytest.mark.parametrize(
    ("case", "lines", "sent"),
    [
        ("never sent", 4, [1, 2, 3, 4]),
        ("a part is there", 1, [1, 2, 3, 4]),
        ("another server", 4, [1, 2, 3, 4]),
        ("an older copy of the store", 4, [1, 2, 1, 2, 3, 4]),
        ("one metric of it is older", 4, [1, 2, 3, 1, 2, 3, 4]),
        ("its record is lost", 4, [1, 2, 3, 1, 2, 3, 4]),
        ("half a line", 1, [1, 2, 3, 4]),
    ],
)
def test_a_replay_sends_what_the_server_lacks(folder, servers, case, lines, sent):
    if case != "never sent":
        assert build_sender(folder, THERE if case == "another server" else HERE)._try_send()
    points = servers[HERE].runs.get("uid", {}).get("points", [])
    if case == "an older copy of the store":
        del points[4:]
    if case == "one metric of it is older":
        points.remove(next(each for each in points if (each["key"], each["step"]) == ("lr", 3)))
    if case == "its record is lost":
        folder.mlflow.unlink()
    write(folder, 4, more='{"t": 1' if case == "half a line" else "")
    done = replay(folder, HERE, {})
    assert (done.run_id, done.lines, steps_of(servers[HERE])) == ("uid", lines, sent)
    assert done.waiting_bytes == (7 if case == "half a line" else 0)
    assert read_offset(folder) == folder.metrics.stat().st_size - done.waiting_bytes
    assert json.loads(folder.mlflow.read_text())["tracking_uri"] == HERE
