"""The door of the trainer's smaller programs."""

from __future__ import annotations

import pytest

from trainer.program import PROGRAMS, main


@pytest.mark.parametrize(("arguments", "code"), [([], 2), (["raplay", "x"], 2), (["--help"], 0)])
def test_it_tells_which_there_are(arguments, code, capsys):
    assert main(arguments) == code
    told = capsys.readouterr()
    usage, silent = (told.out, told.err) if code == 0 else (told.err, told.out)
    assert silent == "" and all(f"  {name} " in usage for name in PROGRAMS)


def test_each_is_the_one_of_its_name(capsys):
    for name in sorted(PROGRAMS.keys() - {"worker_pod", "accelerators", "check"}):
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0 and f"python -m trainer.program {name}" in capsys.readouterr().out
