from __future__ import annotations

import subprocess
import sys


def run(code: str) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_ctrl_c_ends_a_command_with_one_line_while_it_imports() -> None:
    """An import that swallows exceptions, as some of torch do, swallows none of it."""
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


def test_who_has_the_signal_ignored_keeps_that() -> None:
    code = (
        "import os, signal\n"
        "from stratlab_spec.settings.wording import end_at_interrupt\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "end_at_interrupt()\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "print('goes on')"
    )
    assert run(code) == (0, "goes on\n", "")
