"""Metrics of a run whose server was away, sent later: none lost, none doubled."""

from __future__ import annotations

import json

import mlflow

from stratlab.processes import free_port
from stratlab_spec.run_directory import write_json
from tests.codes import find_codes
from tests.trainer.processes.test_sender import append, open_folder, stored, written
from trainer.launch.mlflow_replay import main, replay


def test_a_run_gets_all_of_what_its_server_never_had_or_has_lost(mlflow_server, tmp_path):
    folder = open_folder(tmp_path, 1500)
    folder.append_attempt("ended", 1, "me", exit_code=0)
    write_json(folder.summary, {"forecast_memory_deviates": "logits"})
    done = replay(folder, mlflow_server, {})
    assert (done.lines, done.waiting_bytes, done.closed) == (1500, 0, "FINISHED")
    assert stored(mlflow_server, done.run_id) == written(folder)
    assert json.loads(folder.mlflow.read_text())["run_id"] == done.run_id
    run = mlflow.MlflowClient(mlflow_server).get_run(done.run_id)
    assert run.info.status == "FINISHED" and run.data.params["lr"] == "0.1"
    assert run.data.tags["forecast_memory_deviates"] == "logits"

    again = replay(folder, mlflow_server, {})
    assert (again.run_id, again.lines, again.closed) == (done.run_id, 0, "")
    append(folder, 1501, 1560)
    folder.sent.write_text(str(folder.metrics.stat().st_size))  # confirmed, and gone since
    assert replay(folder, mlflow_server, {}).lines == 1560
    assert stored(mlflow_server, done.run_id) == written(folder)


def test_what_cannot_be_sent_is_said(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder, away = open_folder(tmp_path, 2), f"http://127.0.0.1:{free_port()}"
    for arguments, code, told in (
        ([folder.path], 2, "SL-replay-no-server"),
        ([tmp_path, "--tracking-uri", away], 2, "SL-replay-no-run"),
        ([folder.path, "--tracking-uri", away], 1, "SL-replay-unsent"),
    ):
        assert main([*map(str, arguments)]) == code
        said = capsys.readouterr().err
        assert find_codes(said) == [told]
    assert f" {folder.metrics.stat().st_size} bytes" in said and not folder.sent.exists()
    folder.mlflow.write_text(json.dumps({"tracking_uri": away, "experiment_id": "1", "run_id": "a"}))
    assert main([str(folder.path)]) == 1, "the server that the run had is asked where none is named"
