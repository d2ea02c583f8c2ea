"""The container that the line asks for, started here as a process; and the line against what the image declares.

There is no docker: the words behind `docker run` are read, the command runs with exactly their environment.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.rehearsals.start.runs import ROOT, assert_same, environment, render

DOCKERFILE = (ROOT / "images/trainer/Dockerfile").read_text()
FLAGS = {"--rm", "--read-only", "--init=false"}


def read_line(script: Path) -> tuple[list[tuple[str, str]], str, list[str]]:
    """(option, value) in their order, the image, the command in it."""
    words = shlex.split(script.read_text().partition("exec docker run")[2].replace("\\\n", " "))
    options = []
    while words[0].startswith("--"):
        option = words.pop(0)
        options.append((option, "" if option in FLAGS else words.pop(0)))
    return options, words[0], words[1:]


def test_the_container_gives_the_run_of_the_rehearsal(rehearsed: Path, tmp_path: Path) -> None:
    more = ("--nodes", "1", "--processes", "2")
    options, _, command = read_line(render("docker", tmp_path / "runs", tmp_path / "ddp.sh", *more))
    env = dict(value.split("=", 1) for option, value in options if option == "--env")
    mounts = [
        dict(part.split("=", 1) for part in value.split(","))
        for option, value in options
        if option == "--mount"
    ]
    assert mounts == [{"type": "bind", "source": str(tmp_path / "runs"), "target": "/results"}]
    assert env["TRAINER_RESULTS"] == "/results"  # as the container sees the folder
    env["TRAINER_RESULTS"] = str(tmp_path / "runs")
    assert command[0] == "python"
    done = subprocess.run(
        [sys.executable, *command[1:]],
        env={"PATH": environment(tmp_path)["PATH"], **env},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    two = render("torchrun", tmp_path / "line", tmp_path / "two.sh", *more)
    line = subprocess.run(
        ["bash", two], env=environment(tmp_path), capture_output=True, text=True, timeout=240
    )
    assert line.returncode == 0, line.stderr
    assert_same(tmp_path / "runs/demo/ddp", tmp_path / "line/demo/ddp")


def test_the_line_is_what_the_image_declares(tmp_path: Path) -> None:
    options, image, command = read_line(
        render("docker", tmp_path / "runs", tmp_path / "ddp.sh", "--nodes", "1")
    )
    given = dict(options)
    assert image == f"stratlab-trainer:{(ROOT / 'VERSION').read_text().strip()}"
    (declared,) = re.findall(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    assert shlex.join(command) == " ".join(re.findall(r'"([^"]+)"', declared))
    assert "ENTRYPOINT" not in DOCKERFILE
    assert given["--user"] == re.findall(r"^USER (\S+)$", DOCKERFILE, re.MULTILINE)[-1]
    (folder,) = re.findall(r"^WORKDIR (\S+)$", DOCKERFILE.rpartition("FROM ")[2], re.MULTILINE)
    assert given["--tmpfs"].startswith(f"{folder}:")  # the one folder that can be written
    outside = [
        value for option, value in options if option == "--env" and re.match(r"(HOME|\w+_(HOME|DIR))=", value)
    ]
    assert outside and all(value.split("=")[1].startswith(folder) for value in outside)
