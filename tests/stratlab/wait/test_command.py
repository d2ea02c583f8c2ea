"""`stratlab wait` as the init container of the analysis Job calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratlab.cluster import connection as connecting
from stratlab.wait import resource as resource_module
from tests.stratlab.cluster.fake_api import FakeApi, serve
from tests.stratlab.wait.waiting import call, enter_pod, write_attempt

JOBS = "/apis/kubeflow.org/v1/namespaces/lab/pytorchjobs"


def test_in_a_pod_the_resource_ends_it(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(resource_module, "OTHER_SILENCE_S", 0.2)
    failed = {"conditions": [{"type": "Failed", "status": "True", "message": "it failed."}]}
    api.put(JOBS, {"metadata": {"name": "demo"}, "status": failed})
    api.token = "secret"
    for name, text in (("token", "secret\n"), ("namespace", "lab")):
        (tmp_path / name).write_text(text)
    with serve(api) as address:
        enter_pod(monkeypatch, tmp_path, address)
        run_dir = str(tmp_path / "run")
        assert call(monkeypatch, run_dir, "--resource", "pytorchjob/demo", "--deadline-s", "20") == 0
        shown = capsys.readouterr().out
        assert "PyTorchJob demo: Failed, it failed.; " in shown.splitlines()[-1]
        other = ["--resource", "pytorchjob/demo", "--namespace", "elsewhere", "--deadline-s", "0.5"]
        api.served.add(JOBS.replace("/lab/", "/elsewhere/"))
        assert call(monkeypatch, run_dir, *other) == 1
        assert "PyTorchJob demo: not there yet" in capsys.readouterr().out


def test_without_a_token_the_files_decide(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setattr(connecting, "SERVICE_ACCOUNT", tmp_path / "none")
    (tmp_path / "attempts.jsonl").write_text('{"event": "ended", "exit_code": 10}\n')
    assert call(monkeypatch, str(tmp_path), "--resource", "pytorchjob/demo", "--namespace", "lab") == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith(
        "no Kubernetes API here (not in a pod, or no token): PyTorchJob demo is not asked"
    )
    assert shown[-1].endswith("ended with exit code 10")


@pytest.mark.parametrize(("code", "exit_code"), [(10, 0), (None, 1)])
def test_as_json_the_end_stands_alone(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    code: int | None,
    exit_code: int,
) -> None:
    write_attempt(tmp_path, code)
    assert call(monkeypatch, str(tmp_path), "--json", "--deadline-s", "0.2") == exit_code
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert (found["ended"], found["exit_code"]) == (code is not None, code)
    assert found["sentence"] in shown.err


def test_a_misspelt_resource_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, str(tmp_path), "--resource", "pytorch/demo") == 2
    assert "error: --resource pytorch/demo: must be API/NAME" in capsys.readouterr().err
