"""The exit code of a pod whose log takes no word more: it lies on the volume that is full."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SAYS = """
import sys
from trainer.launch.ledger import drop_unwritten, end
print('line')
code = end(13, 'x')
drop_unwritten()
sys.exit(code)
"""


def run_on_full(*arguments: str, full: tuple[str, ...] = ("stdout", "stderr")) -> int:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as nowhere:
        out, err = (nowhere if name in full else subprocess.DEVNULL for name in ("stdout", "stderr"))
        return subprocess.run(
            [sys.executable, *arguments], env=env, stdout=out, stderr=err, timeout=60
        ).returncode


@pytest.mark.parametrize("full", [("stdout",), ("stdout", "stderr")])
def test_the_code_is_kept_where_its_words_cannot_be_written(full: tuple[str, ...]) -> None:
    assert run_on_full("-c", SAYS, full=full) == 13


def test_the_program_keeps_its_code_too() -> None:
    assert run_on_full("-m", "trainer", "--set", "lr=-1") == 2
