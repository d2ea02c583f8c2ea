from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAMS = {
    "trainer.count": "trainer.counting.command",
    "trainer.evaluate": "trainer.evaluation.command",
    "trainer.layout": "trainer.layout.command",
    "trainer.settings": "trainer.settings.schema",
}
"""What is started -> what it imports when it is to begin."""


@pytest.mark.parametrize("program", PROGRAMS)
def test_ctrl_c_ends_a_command_with_one_line_while_it_imports(program: str) -> None:
    """An import that swallows exceptions, as some of torch do, swallows none of it."""
    code = (
        "import os, runpy, signal, sys\n"
        "class Importing:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == '{PROGRAMS[program]}':\n"
        "            try: os.kill(os.getpid(), signal.SIGINT); [0 for _ in range(1000)]\n"
        "            except BaseException: print('swallowed')\n"
        "sys.meta_path.insert(0, Importing())\n"
        f"sys.argv = ['{program}', '--help']\n"
        f"runpy.run_module('{program}', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped by SIGINT\n")


def test_who_has_the_signal_ignored_keeps_that() -> None:
    code = (
        "import os, signal\n"
        "from trainer.settings.interruption import end_at_interrupt\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "end_at_interrupt()\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "print('goes on')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "goes on\n", "")
