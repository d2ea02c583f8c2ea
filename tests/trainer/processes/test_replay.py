"""Metrics of a run whose server was away, sent later: none lost, none doubled."""

from __future__ import annotations

import json

import mlflow
import pytest

from stratlab.machine.processes import free_port
from tests.trainer.processes.test_sender import append, open_folder, stored, written
from trainer.launch.replay import main, replay
from trainer.launch.sender import Sender
from trainer.record.run_directory import RunDirectory, write_json


def run_id_of(folder: RunDirectory) -> str:
    return json.loads(folder.mlflow.read_text())["run_id"]


def test_a_run_that_never_had_its_server_gets_all_and_a_second_replay_changes_nothing(
    mlflow_server, tmp_path
):
    folder = open_folder(tmp_path, 1500)
    folder.append_attempt("ended", 1, "me", exit_code=0)
    write_json(folder.summary, {"forecast_memory_deviates": "logits"})
    done = replay(folder, mlflow_server, {})
    assert (done.lines, done.waiting_bytes, done.closed) == (1500, 0, "FINISHED")
    assert stored(mlflow_server, done.run_id) == written(folder) and run_id_of(folder) == done.run_id
    run = mlflow.MlflowClient(mlflow_server).get_run(done.run_id)
    assert run.info.status == "FINISHED" and run.data.params["lr"] == "0.1"
    assert run.data.tags["forecast_memory_deviates"] == "logits"

    again = replay(folder, mlflow_server, {})
    assert (again.run_id, again.lines, again.closed) == (done.run_id, 0, "")
    after = mlflow.MlflowClient(mlflow_server).get_run(done.run_id)
    assert stored(mlflow_server, done.run_id) == written(folder) and after.info.end_time == run.info.end_time


def test_what_a_sender_left_is_finished_and_a_run_at_work_stays_open(mlflow_server, tmp_path):
    folder = open_folder(tmp_path, 3)
    assert Sender(folder, "me", {"MLFLOW_TRACKING_URI": mlflow_server})._try_send()
    append(folder, 4, 9)
    done = replay(folder, mlflow_server, {})
    assert (done.lines, done.run_id, done.closed) == (6, run_id_of(folder), "")
    assert stored(mlflow_server, done.run_id) == written(folder)
    assert mlflow.MlflowClient(mlflow_server).get_run(done.run_id).info.status == "RUNNING"
    folder.append_attempt("ended", 1, "me", exit_code=12)
    assert replay(folder, mlflow_server, {}).closed == "FAILED"


def test_confirmations_that_were_lost_and_another_address_double_nothing(mlflow_server, tmp_path):
    folder = open_folder(tmp_path, 5)
    first = replay(folder, mlflow_server, {})
    folder.sent.unlink()
    assert replay(folder, mlflow_server, {}).lines == 5
    elsewhere = mlflow_server.replace("127.0.0.1", "localhost")
    assert elsewhere != mlflow_server
    third = replay(folder, elsewhere, {})
    assert (third.run_id, third.lines) == (first.run_id, 0), "the same server under another name"
    assert stored(mlflow_server, first.run_id) == written(folder)


def test_a_store_that_was_lost_gets_everything_from_one_replay(mlflow_server, tmp_path):
    folder = open_folder(tmp_path, 5)
    first = replay(folder, mlflow_server, {})
    config = json.loads(folder.config.read_text())  # another store on this server: nothing there has the name
    write_json(folder.config, config | {"run_uid": f"{config['run_uid']}-new", "comparison": "new-store"})
    write_json(folder.mlflow, json.loads(folder.mlflow.read_text()) | {"run_id": "0" * 32})
    done = replay(folder, mlflow_server, {})
    assert done.lines == 5 and done.run_id == run_id_of(folder) != first.run_id
    assert stored(mlflow_server, done.run_id) == written(folder)
    assert replay(folder, mlflow_server, {}).lines == 0


def test_a_sender_goes_on_in_a_store_that_was_lost_meanwhile(mlflow_server, tmp_path):
    folder = open_folder(tmp_path, 3)
    replay(folder, mlflow_server, {})
    config = json.loads(folder.config.read_text())
    write_json(folder.config, config | {"run_uid": f"{config['run_uid']}-new"})
    write_json(folder.mlflow, json.loads(folder.mlflow.read_text()) | {"run_id": "0" * 32})
    append(folder, 4, 6)
    assert Sender(folder, "me", {"MLFLOW_TRACKING_URI": mlflow_server})._try_send()
    assert stored(mlflow_server, run_id_of(folder)) == written(folder)


def test_a_store_restored_from_an_older_copy_gets_what_it_lacks(mlflow_server, tmp_path):
    folder = open_folder(tmp_path, 3)
    first = replay(folder, mlflow_server, {})
    append(folder, 4, 60)
    folder.sent.write_text(str(folder.metrics.stat().st_size))  # confirmed, and gone since
    done = replay(folder, mlflow_server, {})
    assert (done.run_id, done.lines) == (first.run_id, 60)
    assert stored(mlflow_server, done.run_id) == written(folder)
    assert replay(folder, mlflow_server, {}).lines == 0


def test_half_a_line_waits(mlflow_server, tmp_path):
    folder = open_folder(tmp_path, 2)
    with open(folder.metrics, "a") as file:
        file.write('{"t": 1.8e9, "st')
    done = replay(folder, mlflow_server, {})
    assert (done.lines, done.waiting_bytes) == (2, 16)


def test_what_cannot_be_sent_is_said(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = open_folder(tmp_path, 2)
    assert main([str(folder.path)]) == 2
    assert "has had no server; name one with --tracking-uri" in capsys.readouterr().err
    assert main([str(tmp_path), "--tracking-uri", "http://127.0.0.1:1"]) == 2
    assert "is no run that has started" in capsys.readouterr().err
    assert main([str(folder.path), "--tracking-uri", f"http://127.0.0.1:{free_port()}"]) == 1
    said = capsys.readouterr().err
    assert f"{folder.metrics.stat().st_size} bytes of {folder.metrics} wait on" in said
    assert not folder.sent.exists() and not folder.mlflow.exists()


@pytest.mark.parametrize("server", ["127.0.0.1:9"])
def test_the_server_that_the_run_had_is_asked_where_none_is_named(tmp_path, capsys, monkeypatch, server):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = open_folder(tmp_path, 2)
    folder.mlflow.write_text(
        json.dumps({"tracking_uri": f"http://{server}", "experiment_id": "1", "run_id": "a"})
    )
    assert main([str(folder.path)]) == 1
    assert f"http://{server}: " in capsys.readouterr().err
