"""What a run and a replay send, to which server, in what requests, and how the MLflow run ends; on a stand-in."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stratlab_spec.run_directory import DETAIL, NOTE, RunDirectory, build_note, write_json
from trainer.launch import mlflow_sender as sender_module
from trainer.launch import tensorboard as replay_module
from trainer.launch.mlflow_rest import MlflowError
from trainer.launch.mlflow_sender import (
    BATCH,
    Sender,
    close_run,
    find_run,
    read_offset,
    send_new_lines,
)
from trainer.launch.tensorboard import replay


class Store:
    """What one server keeps. Calls fail while it is `away`; `calls` are the names of all, in order."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []
        self.away = False

    def run(self, run_id: str) -> dict[str, Any]:
        return self.runs[run_id]


class StandIn:
    """The methods of `Mlflow`, on the store of its address."""

    stores: dict[str, Store]

    def __init__(self, uri: str, env: Mapping[str, str]) -> None:
        self._store = self.stores[uri]

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name != "stores":
            self._store.calls.append(name)
            if self._store.away:
                raise MlflowError("503 not now")
        return object.__getattribute__(self, name)

    def open_experiment(self, name: str) -> str:
        return f"experiment {name}"

    def open_run(self, experiment: str, name: str, uid: str, params: Any, tags: Any) -> str:
        self._store.runs.setdefault(
            uid, {"points": [], "status": "RUNNING", "tags": {}, "given": (params, tags)}
        )
        return uid

    def log_batch(self, run_id: str, points: list[dict[str, Any]]) -> None:
        self._store.run(run_id)["points"] += points

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        self._store.run(run_id)["tags"] |= tags

    def reopen_run(self, run_id: str) -> None:
        self._store.run(run_id)["status"] = "RUNNING"

    def read_status(self, run_id: str) -> str:
        return str(self._store.run(run_id)["status"])

    def has_run(self, run_id: str) -> bool:
        return run_id in self._store.runs

    def read_latest(self, run_id: str) -> dict[str, int]:
        points = self._store.run(run_id)["points"]
        return {each["key"]: each["step"] for each in points}

    def read_note(self, run_id: str) -> str:
        return str(self._store.run(run_id)["tags"].get(NOTE, ""))

    def end_run(self, run_id: str, status: str) -> None:
        self._store.run(run_id)["status"] = status


class Server:
    """A stand-in that keeps what it is sent; it refuses the requests with these numbers, from 1."""

    def __init__(self, refused: tuple[int, ...] = ()) -> None:
        self.requests, self.points, self.refused = 0, [], refused

    def log_batch(self, run_id, points):
        self.requests += 1
        assert 0 < len(points) <= BATCH
        if self.requests in self.refused:
            raise MlflowError("503 not now")
        self.points += [(p["key"], p["value"], p["timestamp"], p["step"]) for p in points]


def write(tmp_path, *sizes: int) -> tuple[RunDirectory, list]:
    """A line of so many numbers each; every number of the file is another one. With what must arrive."""
    folder = RunDirectory(tmp_path, "borders", "run")
    folder.create()
    lines, wanted, number = [], [], 0
    for step, size in enumerate(sizes, 1):
        numbers = {f"n{i}": number + i for i in range(size)}
        number += size
        lines.append(
            {"t": 1.5 + step, "attempt": 1, "step": step, "kind": "system", "profiled": True, **numbers}
        )
        wanted += [(DETAIL + name, value, 1500 + 1000 * step, step) for name, value in numbers.items()]
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder, wanted


@pytest.mark.parametrize(
    "sizes",
    [
        (1000,), (2001,),  # one line, many ranks
        (3,) * 1001,  # 1000 is no multiple of it
        (999, 1, 1), (400, 400, 400, 2001, 1),
    ],
)  # fmt: skip
def test_every_point_arrives_once_and_in_order(tmp_path, sizes):
    folder, wanted = write(tmp_path, *sizes)
    server = Server()
    send_new_lines(folder, server, "id")
    assert (server.points, int(folder.sent.read_text())) == (wanted, folder.metrics.stat().st_size)


@pytest.mark.parametrize("refused", [(3,), (1, 2, 4)])
def test_after_a_refusal_it_goes_on_where_nothing_was_confirmed(tmp_path, refused):
    folder, wanted = write(tmp_path, *(3,) * 1001)
    server = Server(refused)
    for _ in range(len(refused)):
        with pytest.raises(MlflowError):
            send_new_lines(folder, server, "id")
    send_new_lines(folder, server, "id")
    assert sorted(set(server.points)) == sorted(wanted)
    assert int(folder.sent.read_text()) == folder.metrics.stat().st_size


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
    write_json(
        folder.config, {**content, "resolved": {"world_size": 1, "axes": {}}, "provenance": provenance}
    )
    write_metrics(folder, 1, 2, 3)
    folder.append_attempt("started", 1, "me")
    return folder


def write_metrics(folder: RunDirectory, *steps: int, more: str = "") -> None:
    lines = [
        {"t": 1.0, "attempt": 1, "step": step, "kind": "train", "loss": 0.5, "lr": 1.0} for step in steps
    ]
    with open(folder.metrics, "a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines) + more)


def steps_of(store: Store) -> list[int]:
    return [point["step"] for point in store.run("uid")["points"] if point["key"] == "loss"]


def build_sender(folder: RunDirectory, uri: str = HERE) -> Sender:
    return Sender(folder, "me", {"MLFLOW_TRACKING_URI": f"{uri}/"})


@pytest.mark.parametrize(
    ("uri", "held", "found"),
    [(HERE, True, "old"), (HERE, False, "uid"), (THERE, True, "uid")],
    ids=["known", "lost by the server", "by chance the same id"],
)
def test_only_a_run_of_this_server_is_gone_on_with(folder, servers, uri, held, found):
    folder.mlflow.write_text(json.dumps({"tracking_uri": uri, "run_id": "old"}))
    if held:
        servers[HERE].runs["old"] = {"points": [], "tags": {}}
    record, is_known = find_run(folder, StandIn(HERE, {}), HERE)  # type: ignore[arg-type]
    assert (record["run_id"], is_known) == (found, found == "old") and record["tracking_uri"] == HERE


@pytest.mark.parametrize("missing", [[], ["cp", "pp"]])
def test_params_and_tags_of_a_new_run(folder, servers, missing):
    layout = {
        "name": "2d", "reason": "given", "dimensions": 2, "degenerate": True,
        "sequence_parallel": False,
    }  # fmt: skip
    config = {"strategy": "nd", "model": "cnn", "model_path": "/models/net/", "tp": 0}
    content = json.loads(folder.config.read_text()) | {"config": config}
    content["resolved"] = {"world_size": 2, "axes": {"tp": 2}, "layout": layout | {"missing": missing}}
    content["provenance"] = {
        "git_sha": None, "image": "i", "hosts": ["h", "k"], "nodes": ["n"], "versions": {"torch": "2"}
    }  # fmt: skip
    write_json(folder.config, content)
    assert build_sender(folder)._try_send()
    params, tags = servers[HERE].run("uid")["given"]
    assert params == config | {
        "model": "net", "world_size": 2, "tp": 2, "layout": "2d", "layout_reason": "given", "dimensions": 2,
        "degenerate": True, "sequence_parallel": False, "missing_dimensions": ",".join(missing) or "none",
    }  # fmt: skip
    assert tags == {
        "strategy": "nd", "degenerate": "true", "git_sha": "", "image": "i", "hosts": "h,k", "nodes": "n",
        "version.torch": "2",
    }  # fmt: skip


def test_a_further_attempt_goes_on_in_the_same_run_from_where_it_was(folder, servers):
    here = servers[HERE]
    assert build_sender(folder)._try_send() and steps_of(here) == [1, 2, 3]
    recorded = json.loads(folder.mlflow.read_text())
    assert recorded == {"tracking_uri": HERE, "experiment_id": "experiment c", "run_id": "uid"}
    here.run("uid")["status"] = "FAILED"
    write_metrics(folder, 4)
    assert build_sender(folder)._try_send()
    assert steps_of(here) == [1, 2, 3, 4] and here.run("uid")["status"] == "RUNNING"
    assert [here.calls.count(name) for name in ("open_run", "reopen_run")] == [1, 1]


def test_without_a_confirmation_everything_is_sent(folder, servers):
    folder.sent.write_text("x")
    assert read_offset(folder) == 0
    assert build_sender(folder)._try_send() and steps_of(servers[HERE]) == [1, 2, 3]


def test_another_server_gets_everything_whatever_the_first_has_confirmed(folder, servers):
    assert build_sender(folder)._try_send()
    assert build_sender(folder, THERE)._try_send()
    assert steps_of(servers[THERE]) == [1, 2, 3]
    assert json.loads(folder.mlflow.read_text())["tracking_uri"] == THERE


@pytest.mark.parametrize(
    ("summary", "tags"),
    [
        ({"forecast_memory_deviates": "logits", "mfu_pct": 5}, {"forecast_memory_deviates": "logits"}),
        ({"forecast_memory_deviates": None}, {"forecast_memory_deviates": "none"}),
        ({"forecast_step_deviates": "forward"}, {"forecast_step_deviates": "forward"}),
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


@pytest.mark.parametrize(("before", "kept"), [("", False), ("an older one of ours", False), ("mine", True)])
def test_a_run_that_ends_is_described_unless_its_user_has_done_it(folder, servers, before, kept):
    assert build_sender(folder)._try_send()
    servers[HERE].run("uid")["tags"][NOTE] = build_note(before) if "ours" in before else before
    folder.append_attempt("ended", 1, "me", exit_code=10, text="rank 1 has no memory")
    close_run(folder, StandIn(HERE, {}), "uid", "FAILED")  # type: ignore[arg-type]
    note = servers[HERE].run("uid")["tags"][NOTE]
    assert (note == before) is kept and ("rank 1 has no memory" in note) is not kept


@pytest.mark.parametrize(("grace", "waited"), [(5.0, 5.0), (300.0, 30.0)])
def test_a_server_that_is_away_is_waited_for_as_long_as_the_grace_period_lasts(
    folder, servers, monkeypatch, grace, waited
):
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
        points.remove(next(each for each in points if (each["key"], each["step"]) == ("detail/lr", 3)))
    if case == "its record is lost":
        folder.mlflow.unlink()
    write_metrics(folder, 4, more='{"t": 1' if case == "half a line" else "")
    done = replay(folder, HERE, {})
    assert (done.run_id, done.lines, steps_of(servers[HERE])) == ("uid", lines, sent)
    assert done.waiting_bytes == (7 if case == "half a line" else 0)
    assert read_offset(folder) == folder.metrics.stat().st_size - done.waiting_bytes
    assert json.loads(folder.mlflow.read_text())["tracking_uri"] == HERE
