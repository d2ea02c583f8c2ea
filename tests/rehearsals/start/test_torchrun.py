import shlex
import subprocess
from pathlib import Path

from tests.rehearsals.start.runs import assert_same, environment, render, run_shells


def test_two_shells_give_the_run_of_the_rehearsal(rehearsed: Path, tmp_path: Path) -> None:
    script = render("torchrun", tmp_path / "runs", tmp_path / "ddp.sh")
    old = {"TRAINER_LR": "9", "PET_NNODES": "7"}  # of the shell's past
    run_shells(script, environment(tmp_path) | old)
    assert_same(tmp_path / "runs/demo/ddp", rehearsed)


def test_one_machine_needs_no_meeting(tmp_path: Path) -> None:
    script = render("torchrun", tmp_path / "runs", tmp_path / "ddp.sh", "--nodes", "1", "--processes", "2")
    done = subprocess.run(
        ["bash", script], env=environment(tmp_path), capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs/demo/ddp/ranks/rank1.json").is_file()


def test_a_machine_without_a_number_is_told(tmp_path: Path) -> None:
    script = render("torchrun", tmp_path / "runs", tmp_path / "ddp.sh")
    done = subprocess.run(["bash", script], env=environment(tmp_path), capture_output=True, text=True)
    assert done.returncode != 0 and "NODE_RANK" in done.stderr
    assert not (tmp_path / "runs").exists(), shlex.quote(done.stderr)
