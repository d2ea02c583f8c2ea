"""Calls to MLflow go where the user sent them, with the login, and nowhere else."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from tests.codes import find_codes
from tests.redirecting_server import CODES, run_redirect, run_witness
from trainer.launch.mlflow_rest import Mlflow, MlflowError

LOGIN = {"MLFLOW_TRACKING_USERNAME": "ana", "MLFLOW_TRACKING_PASSWORD": "secret"}


@pytest.mark.parametrize("code", (CODES[0], CODES[-1]))
def test_a_redirect_is_refused_and_the_other_host_gets_nothing(code: int) -> None:
    with run_witness() as (elsewhere, seen), run_redirect(elsewhere, code) as uri:
        server = Mlflow(uri, LOGIN)
        for call in (lambda: server.open_experiment("pets"), lambda: server.end_run("r", "FINISHED")):
            with pytest.raises(MlflowError) as refused:
                call()
            said = str(refused.value)
            assert find_codes(said) == ["SL-mlflow-redirect"] and f" {elsewhere} [" in said
            assert str(code) in said and "secret" not in said
        assert seen == []


def test_a_redirect_to_a_login_page_is_told_without_its_tokens() -> None:
    with (
        run_witness() as (elsewhere, seen),
        run_redirect(f"{elsewhere.replace('//', '//user:word@')}/login?state=abc#") as uri,
        pytest.raises(MlflowError) as refused,
    ):
        Mlflow(uri, LOGIN).reopen_run("r")
    said = str(refused.value)
    assert f"{elsewhere}/login" in said and not seen and "word" not in said and "abc" not in said


def test_the_login_reaches_the_server_that_was_named() -> None:
    with run_witness() as (uri, seen):
        Mlflow(uri, LOGIN).reopen_run("r")
        Mlflow(uri, {"MLFLOW_TRACKING_TOKEN": "t"} | LOGIN).reopen_run("r")
        with pytest.raises(MlflowError) as failure:
            Mlflow(uri, {}).open_experiment("pets")  # another exception would end the launcher
    assert seen[:2] == [("POST", "Basic YW5hOnNlY3JldA=="), ("POST", "Bearer t")]
    assert find_codes(failure.value) == ["SL-not-mlflow"]


class _Recording(BaseHTTPRequestHandler):
    """Answers as MLflow does to a run that it does not know, and keeps what it is told."""

    told: list[tuple[str, dict[str, Any]]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        call = self.path.rpartition("/mlflow/")[2]
        self.told.append((call, body))
        answer = {"runs/search": {"runs": []}, "runs/create": {"run": {"info": {"run_id": "r"}}}}.get(
            call, {}
        )
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *words: object) -> None:
        pass


@contextmanager
def run_recording() -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    handler = type("Handler", (_Recording,), {"told": []})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", handler.told
        finally:
            server.shutdown()
            thread.join()


def test_every_param_arrives_once_in_requests_of_at_most_100() -> None:
    params = {f"p{number}": number for number in range(201)}
    with run_recording() as (uri, told):
        assert Mlflow(uri, {}).open_run("1", "ddp", "uid", params, {"strategy": "ddp"}) == "r"
    batches = [body["params"] for call, body in told if call == "runs/log-batch"]
    assert [len(batch) for batch in batches] == [100, 100, 1]
    assert {pair["key"]: pair["value"] for batch in batches for pair in batch} == {
        name: str(value) for name, value in params.items()
    }


def test_a_run_begins_and_ends_in_milliseconds_since_1970() -> None:
    before = time.time() * 1000
    with run_recording() as (uri, told):
        server = Mlflow(uri, {})
        server.end_run(server.open_run("1", "ddp", "uid", {}, {}), "FINISHED")
    (began,) = [body["start_time"] for call, body in told if call == "runs/create"]
    (ended,) = [body["end_time"] for call, body in told if call == "runs/update"]
    assert before - 1 <= began <= ended <= time.time() * 1000


class Scripted(Mlflow):
    """Gives these answers one after the other; a text is the code of an error."""

    def __init__(self, *answers: dict[str, Any] | str) -> None:
        super().__init__("http://s", {})
        self.answers, self.calls = list(answers), list[tuple[str, Any]]()

    def _call(self, path: str, body: Any = None) -> dict[str, Any]:
        self.calls.append((path, body))
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            raise MlflowError("refused", answer)
        return answer


ABSENT, EXISTS = "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS"
THERE = {"experiment": {"experiment_id": "7"}}


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ([THERE], "7"),
        ([ABSENT, {"experiment_id": "8"}], "8"),
        ([ABSENT, EXISTS, THERE], "7"),  # another run of the comparison was faster
        (["PERMISSION_DENIED"], None),
        ([ABSENT, "PERMISSION_DENIED"], None),
        ([{"experiment": {}}], None),
    ],
)
def test_an_experiment_is_found_or_made(answers: list[Any], found: str | None) -> None:
    server = Scripted(*answers)
    if found is None:
        with pytest.raises(MlflowError):
            server.open_experiment("pets & cats")
    else:
        assert server.open_experiment("pets & cats") == found
    assert server.answers == [] and server.calls[0][0].endswith("?experiment_name=pets+%26+cats")


def test_only_a_run_that_does_not_exist_is_unknown() -> None:
    assert Scripted({"run": {"info": {"status": "RUNNING"}}}).has_run("r") is True
    assert Scripted(ABSENT).has_run("r") is False
    with pytest.raises(MlflowError):
        Scripted("TEMPORARILY_UNAVAILABLE").has_run("r")


def test_a_run_is_found_by_its_uid_and_its_params_are_cut_to_what_mlflow_takes() -> None:
    server = Scripted({"runs": [{"info": {"run_id": "r"}}]}, {})
    assert server.open_run("1", "ddp", "uid-1", {"long": "x" * 501, "short": 5}, {}) == "r"
    (_, wanted), (_, batch) = server.calls
    assert wanted["experiment_ids"] == ["1"] and wanted["filter"] == "tags.`stratlab.run_uid` = 'uid-1'"
    assert batch["params"] == [{"key": "long", "value": "x" * 500}, {"key": "short", "value": "5"}]


def test_the_last_step_of_each_metric_is_read() -> None:
    data = {"metrics": [{"key": "loss", "step": 7}, {"key": "lr"}]}
    assert Scripted({"run": {"data": data}}).read_latest("r") == {"loss": 7, "lr": 0}
    assert Scripted({"run": {"data": {}}}).read_latest("r") == {}
