"""A server whose authority is one's own: each of the tools says so, and trusts it once it is named."""

import json
import ssl
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from stratlab.cluster.volume_pod import Finished
from stratlab.compare.publishing import _check_answers
from stratlab.machine import free_port, trust_given
from stratlab.pod_checks import CALL_MLFLOW, judge_mlflow
from stratlab.tracking import close_run
from tests.codes import find_codes
from tests.stratlab.example_run import write_json
from tests.stratlab.raised import raised
from trainer.launch.mlflow_rest import Mlflow

OPENSSL = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]


class Answers(BaseHTTPRequestHandler):
    """As MLflow, and as a mirror of the hub, to whoever trusts it."""

    def do_GET(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.dumps({"id": "org/net", "experiment": {"experiment_id": "7"}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    places = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "ca.crt")]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*OPENSSL, *places, *names], check=True, capture_output=True)
    return folder / "ca.crt"


@pytest.fixture(scope="module")
def server(authority):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority, authority.with_name("key.pem"))
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as listening:
        listening.socket = context.wrap_socket(listening.socket, server_side=True)
        threading.Thread(target=listening.serve_forever, args=(0.05,), daemon=True).start()
        yield f"https://localhost:{listening.server_address[1]}"
        listening.shutdown()


def call_as_check(server, environ):
    command = [sys.executable, "-c", CALL_MLFLOW, server]
    done = subprocess.run(command, env=environ, capture_output=True, check=True)
    return Finished(done.returncode, done.stdout, "")


def test_without_it_the_cause_is_said(server):
    refused = raised(Mlflow(server, {}).open_experiment, "pets")
    assert "run.certificates" in str(refused)
    assert find_codes(raised(_check_answers, server)) == ["SL-report-untrusted"]
    finding = judge_mlflow(server, call_as_check(server, {}))
    assert finding.state == "problem" and "--certificates" in finding.fix


def test_with_it_all_of_them_get_their_answer(server, authority, monkeypatch):
    environ = {"STRATLAB_CA_FILE": str(authority)}
    assert judge_mlflow(server, call_as_check(server, environ)).state == "ok"
    trust_given(environ)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert Mlflow(server, {}).open_experiment("pets") == "7"
    _check_answers(server)
    import requests

    assert requests.get(f"{server}/health", timeout=5).status_code == 200
    Path(environ["SSL_CERT_FILE"]).unlink()


@pytest.fixture
def run_dir(mlflow_server, tmp_path):
    client = MlflowClient(mlflow_server)
    found = client.get_experiment_by_name("left open")
    experiment_id = found.experiment_id if found else client.create_experiment("left open")
    run_id = client.create_run(experiment_id).info.run_id
    write_json(tmp_path / "mlflow.json", {"tracking_uri": mlflow_server, "run_id": run_id})
    write_json(tmp_path / "config.json", {"run": "try", "config": {}, "resolved": {}})
    return tmp_path


def status(uri, run_dir):
    run_id = json.loads((run_dir / "mlflow.json").read_text())["run_id"]
    return str(MlflowClient(uri).get_run(run_id).info.status)


def test_an_open_run_is_closed_once_and_a_closed_one_left_alone(mlflow_server, run_dir):
    assert "FAILED" in close_run(run_dir, mlflow_server, exit_code=13)
    assert close_run(run_dir, mlflow_server, exit_code=0) == "" and status(mlflow_server, run_dir) == "FAILED"
    assert close_run(run_dir / "nothing", mlflow_server, exit_code=0) == ""
    began = time.monotonic()
    assert close_run(run_dir, f"http://127.0.0.1:{free_port()}", exit_code=13).startswith("warning: ")
    assert time.monotonic() - began < 20, "a server that is away costs a sentence"


@pytest.mark.parametrize(
    ("verb", "code", "left"),
    [
        ("wait", 13, "FAILED"),
        ("wait", 0, "RUNNING"),  # after a success the metrics may still be on their way
        ("analyze", 0, "FINISHED"),  # also when it fails itself: there are no traces
        ("analyze", 143, "KILLED"),
        ("analyze", None, "RUNNING"),  # it goes on
    ],
)
def test_whoever_comes_last_closes_what_was_left_open(mlflow_server, run_dir, stratlab, verb, code, left):
    lines = [{"attempt": 1, "event": "started"}, {"attempt": 1, "event": "ended", "exit_code": code}]
    kept = lines[: 1 if code is None else 2]
    (run_dir / "attempts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    ended, *_ = stratlab(verb, run_dir, "--tracking-uri", mlflow_server)
    assert ended == (0 if verb == "wait" else 3) and status(mlflow_server, run_dir) == left
