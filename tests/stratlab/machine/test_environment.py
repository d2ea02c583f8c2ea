from __future__ import annotations

import sys
from pathlib import Path

from stratlab.machine.environment import build_machine_env


def test_the_users_shell_does_not_leak_in() -> None:
    env = build_machine_env({"TRAINER_LR": "9", "MLFLOW_RUN_ID": "x", "PET_NNODES": "7", "HOME": "/home/me"})
    assert env.keys() == {"PATH", "LANG", "OMP_NUM_THREADS"}


def test_locale_certificates_and_threads_are_kept() -> None:
    given = {"LC_ALL": "de_DE.UTF-8", "SSL_CERT_FILE": "/ca.pem", "OMP_NUM_THREADS": "4", "LANG": "de"}
    assert given.items() <= build_machine_env(given).items()


def test_a_process_is_a_device_of_one_thread() -> None:
    assert build_machine_env({})["OMP_NUM_THREADS"] == "1"


def test_programs_of_this_interpreter_come_first() -> None:
    assert build_machine_env({"PATH": "/usr/bin"})["PATH"] == f"{Path(sys.executable).parent}:/usr/bin"


def test_loopback_never_goes_through_a_proxy() -> None:
    env = build_machine_env({"https_proxy": "http://p:1", "no_proxy": "corp,localhost"})
    assert env["https_proxy"] == "http://p:1"
    assert env["NO_PROXY"] == env["no_proxy"] == "corp,localhost,127.0.0.1"
