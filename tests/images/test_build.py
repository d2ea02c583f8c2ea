"""images/build: what it refuses, which tool it takes, what it hands over. The tools here are fakes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path("images/build").resolve()


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A PATH with git and bash, without any of the tools."""
    (tmp_path / "bin").mkdir()
    for program in ("git", "bash"):
        (tmp_path / "bin" / program).symlink_to(str(shutil.which(program)))
    return tmp_path


def fake(machine: Path, tool: str, body: str = "") -> None:
    """A tool that writes its arguments, one per line, into a file, and then does what `body` says."""
    path = machine / "bin" / tool
    path.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" -- >> {machine}/{tool}.log\n{body}\n')
    path.chmod(0o755)


def build(*arguments: str, machine: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(machine / "bin") if machine else os.environ["PATH"], "HOME": "/nonexistent"}
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**environment, **variables},
    )


def calls(machine: Path, tool: str) -> list[list[str]]:
    """The argument lists of a fake tool's calls."""
    text = (machine / f"{tool}.log").read_text()
    return [call.splitlines() for call in text.split("--\n") if call]


def test_help_shows_examples() -> None:
    done = build("--help")
    assert done.returncode == 0
    assert "images/build --variant cpu --archive" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["trainee"], "IMAGE=trainee: must be trainer or lab"),
        (["--variant", "gpu"], "'gpu' (choose from 'cpu', 'cuda')"),
        (["--tag", "a b"], "'a b': letters, digits"),
        (
            ["--prefix", "registry.example/team"],
            "'registry.example/team': must look like registry.example/team/",
        ),
        (["--archive", "README.md"], "--archive=README.md: is there and is no folder"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], sentence: str, machine: Path) -> None:
    fake(machine, "podman")
    done = build(*arguments, machine=machine)
    assert done.returncode == 2 and sentence in done.stderr, done.stderr
    assert not (machine / "podman.log").exists()


def test_without_a_tool_it_names_the_package(machine: Path) -> None:
    done = build(machine=machine)
    assert done.returncode == 2
    assert "apt-get install buildah" in done.stderr


def test_a_client_without_daemon_is_not_used(machine: Path) -> None:
    fake(machine, "docker", 'echo "Cannot connect to the daemon" >&2; exit 1')
    fake(machine, "podman")
    done = build("lab", "--base", "debian:12", machine=machine)
    assert done.returncode == 0, done.stderr
    assert "docker is there but does not work: Cannot connect to the daemon" in done.stderr
    assert "building with podman" in done.stderr
    assert calls(machine, "docker") == [["info"]]


def test_the_build_command(machine: Path) -> None:
    fake(machine, "podman")
    done = build(
        "--variant", "cpu", "--base", "debian:12", "--tag", "1.2", "--prefix", "r.test/t/", machine=machine
    )
    assert done.returncode == 0, done.stderr
    trainer, lab = calls(machine, "podman")[1:]
    assert trainer[:5] == [
        "build",
        "--file",
        "images/trainer/Dockerfile",
        "--tag",
        "r.test/t/stratlab-trainer:1.2",
    ]
    assert {"BASE=debian:12", "VARIANT=cpu", "VERSION=1.2"} <= set(trainer)
    assert "r.test/t/stratlab-lab:1.2" in lab and "VARIANT=cpu" not in lab
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    assert {f"GIT_SHA={head}", f"GIT_SHA={head}-dirty"} & set(trainer)


def test_how_to_reach_the_index_is_a_secret(machine: Path, tmp_path: Path) -> None:
    fake(
        machine,
        "podman",
        f'for word; do case $word in id=*) /bin/cat "${{word#*src=}}" >> {tmp_path}/secrets;; esac; done',
    )
    (tmp_path / "ca.pem").write_text("CERTIFICATE\n")
    index = "https://user:hidden@index.test/simple"
    done = build(
        "lab", "--base", "b", machine=machine, SSL_CERT_FILE=str(tmp_path / "ca.pem"), PIP_INDEX_URL=index
    )
    assert done.returncode == 0, done.stderr
    handed_over = (tmp_path / "secrets").read_text()
    assert "CERTIFICATE" in handed_over
    assert f"index-url = {index}" in handed_over and f'url = "{index}"' in handed_over
    assert "hidden" not in (machine / "podman.log").read_text() + done.stdout + done.stderr
    named = [word for word in calls(machine, "podman")[-1] if word.startswith("id=")]
    assert [word.split(",")[0] for word in named] == ["id=ca", "id=pip", "id=uv"]
    assert not Path(named[1].split("src=")[1]).exists()


def test_a_base_that_cannot_be_pulled_is_made_here(machine: Path) -> None:
    fake(machine, "podman", 'case $1 in pull|image) echo "no such host" >&2; exit 1;; esac')
    done = build("lab", machine=machine)
    assert "cannot be pulled: no such host" in done.stderr
    assert "making localhost/stratlab-base:bookworm from Debian's packages" in done.stderr
    assert done.returncode == 2  # debootstrap is not on this PATH, or this is not root
    assert "debootstrap" in done.stderr


def test_a_failing_build_ends_with_1_and_names_the_command(machine: Path) -> None:
    fake(machine, "podman", '[ "$1" != build ] || exit 7')
    done = build("lab", "--base", "b", machine=machine)
    assert done.returncode == 1
    assert "podman ended with 7: podman build --file images/lab/Dockerfile" in done.stderr


def test_uv_finds_what_this_machine_has_downloaded(machine: Path, tmp_path: Path) -> None:
    fake(machine, "buildah")
    for cache, mounted in ((tmp_path / "uv", True), (tmp_path / "none", False)):
        (tmp_path / "uv").mkdir(exist_ok=True)
        done = build("lab", "--base", "b", machine=machine, UV_CACHE_DIR=str(cache))
        assert done.returncode == 0, done.stderr
        assert (f"{cache}:/root/.cache/uv" in calls(machine, "buildah")[-1]) is mounted


def test_what_buildah_has_to_mount_is_no_stage_of_an_earlier_build(machine: Path) -> None:
    fake(machine, "buildah")
    assert build("--base", "b", machine=machine).returncode == 0
    stamps = [word for call in calls(machine, "buildah") for word in call if word.startswith("BUILD=")]
    assert len(stamps) == len(set(stamps)) == 2


def test_an_image_goes_into_a_cluster_through_a_pipe(machine: Path, tmp_path: Path) -> None:
    fake(machine, "podman", '[ "$1" != save ] || echo "the image $2"')
    fake(machine, "load", f'/bin/cat "$1" >> {tmp_path}/loaded')
    load = ["--load", str(machine / "bin" / "load")]
    done = build("--base", "b", *load, machine=machine)
    assert done.returncode == 0, done.stderr
    names = ["docker.io/library/stratlab-lab:0.1.0", "docker.io/library/stratlab-trainer:0.1.0"]
    assert sorted((tmp_path / "loaded").read_text().splitlines()) == [f"the image {name}" for name in names]

    fake(machine, "load", "exit 5")
    done = build("lab", "--base", "b", *load, machine=machine)
    assert done.returncode == 1 and f"{names[0]} was not loaded: the programs ended with [" in done.stderr


def test_an_archive_carries_the_name_pods_use(machine: Path, tmp_path: Path) -> None:
    fake(machine, "podman", '[ "$1" != save ] || echo > "$3"')
    done = build("lab", "--base", "b", "--archive", str(tmp_path / "new"), "--no-sbom", machine=machine)
    assert done.returncode == 0, done.stderr
    archive = tmp_path / "new" / "stratlab-lab-0.1.0.tar"
    assert calls(machine, "podman")[-1] == [
        "save",
        "--output",
        str(archive),
        "docker.io/library/stratlab-lab:0.1.0",
    ]
    assert archive.exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "usage: images/debian_base TOOL NAME"),
        (["kaniko", "x"], "TOOL=kaniko: must be docker, podman or buildah"),
    ],
)
def test_debian_base_refuses(arguments: list[str], sentence: str) -> None:
    done = subprocess.run([SCRIPT.with_name("debian_base"), *arguments], capture_output=True, text=True)
    assert done.returncode == 2 and sentence in done.stderr
