"""Calls to MLflow go where the user sent them, with the login, and nowhere else."""

import time
from contextlib import nullcontext
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


NEW_RUN = ({"runs": []}, {"run": {"info": {"run_id": "r"}}})


def test_every_param_arrives_once_in_requests_of_at_most_100() -> None:
    params = {f"p{number}": number for number in range(201)}
    server = Scripted(*NEW_RUN, {}, {}, {})
    assert server.open_run("1", "ddp", "uid", params, {"strategy": "ddp"}) == "r"
    batches = [body["params"] for path, body in server.calls if path == "runs/log-batch"]
    assert [len(batch) for batch in batches] == [100, 100, 1]
    sent = {pair["key"]: pair["value"] for batch in batches for pair in batch}
    assert sent == {name: str(value) for name, value in params.items()}


def test_a_run_begins_and_ends_in_milliseconds_since_1970() -> None:
    before, server = time.time() * 1000, Scripted(*NEW_RUN, {}, {})
    server.end_run(server.open_run("1", "ddp", "uid", {}, {}), "FINISHED")
    bodies = dict(server.calls)
    began, ended = bodies["runs/create"]["start_time"], bodies["runs/update"]["end_time"]
    assert before - 1 <= began <= ended <= time.time() * 1000


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
def test_an_experiment_is_found_or_made(answers, found):
    server = Scripted(*answers)
    with nullcontext() if found else pytest.raises(MlflowError):
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
