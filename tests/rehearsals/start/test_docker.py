"""The line of `docker run` against what the image declares: there is no docker here."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.rehearsals.start.runs import ROOT, render

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
