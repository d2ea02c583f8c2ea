"""Calls to MLflow go where the user sent them, with the login, and nowhere else."""

from __future__ import annotations

import pytest

from tests.redirecting_server import CODES, run_redirect, run_witness
from trainer.launch.mlflow_rest import Mlflow, MlflowError

LOGIN = {"MLFLOW_TRACKING_USERNAME": "ana", "MLFLOW_TRACKING_PASSWORD": "secret"}


@pytest.mark.parametrize("code", CODES)
def test_a_redirect_is_refused_and_the_other_host_gets_nothing(code: int) -> None:
    with run_witness() as (elsewhere, seen), run_redirect(elsewhere, code) as uri:
        server = Mlflow(uri, LOGIN)
        for call in (lambda: server.open_experiment("pets"), lambda: server.end_run("r", "FINISHED")):
            with pytest.raises(MlflowError) as refused:
                call()
            assert str(refused.value).endswith(f"set run.mlflow.trackingUri to {elsewhere}")
            assert str(code) in str(refused.value) and "secret" not in str(refused.value)
        assert seen == []


def test_a_redirect_to_a_login_page_is_told_without_its_tokens() -> None:
    with (
        run_witness() as (elsewhere, seen),
        run_redirect(f"{elsewhere.replace('//', '//user:word@')}/login?state=abc#") as uri,
        pytest.raises(MlflowError) as refused,
    ):
        Mlflow(uri, LOGIN).reopen_run("r")
    text = str(refused.value)
    assert f"{elsewhere}/login" in text and "set run.mlflow.trackingUri to" in text
    assert not seen and not any(secret in text for secret in ("word", "abc"))


def test_the_login_reaches_the_server_that_was_named() -> None:
    with run_witness() as (uri, seen):
        Mlflow(uri, LOGIN).reopen_run("r")
        Mlflow(uri, {"MLFLOW_TRACKING_TOKEN": "t"} | LOGIN).reopen_run("r")
    assert seen == [("POST", "Basic YW5hOnNlY3JldA=="), ("POST", "Bearer t")]


def test_a_server_that_is_not_mlflow_is_an_mlflow_error() -> None:
    """Any other exception would end the sender's thread, and at the end the launcher."""
    with run_witness() as (uri, _), pytest.raises(MlflowError, match="not an answer of MLflow"):
        Mlflow(uri, {}).open_experiment("pets")
