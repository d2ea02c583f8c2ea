"""What processes know of this machine, what its volumes say, and how its shell finds this program.
Processes are ended with all that descends from them, and their logs are told by their end."""

import errno
import os
import ssl
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import certifi
import psutil
import pytest

from stratlab import machine as of_the_tools
from stratlab.machine import FULL_BELOW, Processes, build_machine_env, say_full, say_refused, tail
from stratlab_spec.certificates import MARK
from tests.codes import find_codes
from tests.stratlab.raised import raised
from trainer import distributed as of_the_trainer


def test_the_users_shell_does_not_leak_in():
    env = build_machine_env({"TRAINER_LR": "9", "MLFLOW_RUN_ID": "x", "PET_NNODES": "7", "HOME": "/home/me"})
    assert env.keys() == {"PATH", "LANG", "OMP_NUM_THREADS"} and env["OMP_NUM_THREADS"] == "1"
    given = {"LC_ALL": "de_DE.UTF-8", "SSL_CERT_FILE": "/ca.pem", "OMP_NUM_THREADS": "4", "LANG": "de"}
    assert given.items() <= build_machine_env(given).items()
    assert build_machine_env({"PATH": "/usr/bin"})["PATH"] == f"{Path(sys.executable).parent}:/usr/bin"
    env = build_machine_env({"https_proxy": "http://p:1", "no_proxy": "corp,localhost"})
    assert env["https_proxy"] == "http://p:1"
    assert env["NO_PROXY"] == env["no_proxy"] == "corp,localhost,127.0.0.1", "loopback has no proxy"


def test_a_volume_without_room_is_told(monkeypatch, tmp_path):
    assert say_full(tmp_path / "gone") == ""
    usual = {"f_frsize": 4096, "f_blocks": 15, "f_files": 10, "f_favail": 5}
    for numbers, said in (
        ({"f_bavail": 0}, " 0 of 61440 bytes"),
        ({"f_bavail": FULL_BELOW, "f_favail": 0}, str(tmp_path)),
        ({"f_bavail": FULL_BELOW}, ""),
        ({"f_bavail": 0, "f_blocks": 0}, ""),
    ):
        monkeypatch.setattr(os, "statvfs", lambda folder, n=numbers: SimpleNamespace(**usual | n))
        told = say_full(tmp_path)
        assert said in told and bool(told) is bool(said)


def test_a_place_that_is_refused_is_told_from_other_failures(tmp_path):
    told = say_refused(OSError(errno.EROFS, "Read-only file system", str(tmp_path)))
    assert find_codes(told) == ["SL-place-refused"] and told.startswith(f"{tmp_path}: ")
    assert say_refused(OSError(errno.ENOSPC, "full", "/x")) == say_refused(ValueError("x")) == ""


BOTH = pytest.mark.parametrize("module", [of_the_tools, of_the_trainer], ids=["tools", "trainer"])


@pytest.fixture
def authority(tmp_path):
    """One of the known certificates: any will do."""
    text = Path(certifi.where()).read_text()
    begin = text.index(MARK)
    file = tmp_path / "ca.crt"
    file.write_text(
        text[begin : text.index("-----END CERTIFICATE-----", begin)] + "-----END CERTIFICATE-----\n"
    )
    return file


@BOTH
def test_one_file_has_both(module, authority):
    environ = {"STRATLAB_CA_FILE": str(authority), "CURL_CA_BUNDLE": "/mine"}
    module.trust_given(environ)
    assert environ.pop("CURL_CA_BUNDLE") == "/mine", "what the user says stays"
    assert set(environ) == {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE"}
    (file,) = {*environ.values()}
    text = Path(file).read_text()
    assert authority.read_text() in text and text.count(MARK) > 100
    ssl.create_default_context(cafile=file)
    Path(file).unlink()


@BOTH
def test_what_is_no_certificate_is_refused(module, tmp_path):
    for environ in ({}, {"STRATLAB_CA_FILE": str(tmp_path / "none")}):
        before = dict(environ)
        module.trust_given(environ)
        assert environ == before, "without a file nothing changes"
    (tmp_path / "ca.crt").write_text("hello")
    assert str(tmp_path / "ca.crt") in str(
        raised(module.trust_given, {"STRATLAB_CA_FILE": str(tmp_path / "ca.crt")})
    )
    untrusted = ssl.SSLCertVerificationError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
    assert "run.certificates" in module.explain_untrusted(untrusted)
    assert module.explain_untrusted(OSError("connection refused")) == ""


DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
SESSION = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {DEAF!r}], start_new_session=True)
time.sleep(60)
"""


def wait_for(text, log):
    deadline = time.monotonic() + 20
    while text not in tail(log):
        assert time.monotonic() < deadline, tail(log)
        time.sleep(0.05)


def test_stop_reaches_a_deaf_grandchild_in_a_session_of_its_own(tmp_path):
    other = subprocess.Popen(["sleep", "60"])
    processes = Processes()
    processes.start([sys.executable, "-c", SESSION], dict(os.environ), tmp_path / "log")
    wait_for("ready", tmp_path / "log")
    members = processes.members()
    assert len(members) == 2
    started = time.monotonic()
    processes.stop()
    assert time.monotonic() - started < 5  # the first process went at SIGTERM, so nothing is waited for
    assert not any(psutil.pid_exists(member.pid) and member.status() != "zombie" for member in members)
    assert not processes.members()
    assert other.poll() is None, "others are left alone"
    other.kill()
    other.wait()


def test_a_process_that_is_deaf_itself_is_killed_after_the_grace(tmp_path):
    processes = Processes()
    process = processes.start([sys.executable, "-c", DEAF], dict(os.environ), tmp_path / "log")
    wait_for("ready", tmp_path / "log")
    started = time.monotonic()
    processes.stop(grace_s=1.0)
    assert 1.0 <= time.monotonic() - started < 5 and process.returncode == -9
