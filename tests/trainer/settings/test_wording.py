"""Messages in the words of their reader, and a command that Ctrl-C ends."""

import subprocess
import sys

import pytest

from stratlab_spec.settings.wording import spell

POD = {"STRATLAB_NAMESPACE": "lab", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
REHEARSAL = {"STRATLAB_NAMESPACE": "lab"}
OPTIONS = {"STRATLAB_OPTIONS": "1"}
RESULTS = "TRAINER_RESULTS='/r' TRAINER_DATASET_PATH=x run.config.lr=1 (TRAINER_GRACE_S)"


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (POD, "run.results.mountPath='/r' run.config.dataset_path=x run.config.lr=1 (run.graceSeconds)"),
        (REHEARSAL, "--results='/r' run.config.dataset_path=x run.config.lr=1 (run.graceSeconds)"),
        (REHEARSAL | OPTIONS, "results='/r' dataset_path=x lr=1 (grace_s)"),
        ({}, "TRAINER_RESULTS='/r' TRAINER_DATASET_PATH=x TRAINER_LR=1 (TRAINER_GRACE_S)"),
    ],
)
def test_a_setting_is_called_as_it_was_typed(env: dict[str, str], said: str) -> None:
    assert spell(RESULTS, env) == said
    others = "MY_TRAINER_LR TRAINER_LRx trainer.launch run.configure TRAINER_"
    assert spell(others, env) == others
    assert spell(RESULTS, REHEARSAL, elsewhere=True) == spell(RESULTS, POD)


def run(code: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_ctrl_c_ends_a_command_with_one_line_while_it_imports() -> None:
    code = (
        "import os, runpy, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Importing:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'stratlab_spec.settings.files':\n"
        "            try: os.kill(os.getpid(), signal.SIGINT); [0 for _ in range(1000)]\n"
        "            except BaseException: print('swallowed')\n"
        "sys.meta_path.insert(0, Importing())\n"
        "sys.argv = ['trainer.settings', '--help']\n"
        "runpy.run_module('trainer.settings', run_name='__main__')"
    )
    assert run(code) == (130, "", "stopped by SIGINT\n")
