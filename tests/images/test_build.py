"""images/build: what it refuses, which tool it takes, what it hands over. The tools here are fakes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.codes import find_codes

SCRIPT = Path("images/build").resolve()


@pytest.fixture
def machine(tmp_path):
    """A PATH with git and bash, without any of the tools."""
    (tmp_path / "bin").mkdir()
    for program in ("git", "bash"):
        (tmp_path / "bin" / program).symlink_to(str(shutil.which(program)))
    return tmp_path


def fake(machine, tool, body=""):
    """A tool that writes its arguments, one per line, into a file, and then does what `body` says."""
    path = machine / "bin" / tool
    path.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" -- >> {machine}/{tool}.log\n{body}\n')
    path.chmod(0o755)


def build(machine, *arguments, code=0, **variables):
    env = {"PATH": str(machine / "bin"), "HOME": "/nonexistent", **variables}
    done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, env=env)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def calls(machine, tool):
    text = (machine / f"{tool}.log").read_text()
    return [call.splitlines() for call in text.split("--\n") if call]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["trainee"], "SL-image-unknown"),
        (["--tag", "a b"], "SL-image-tag"),
        (["--prefix", "registry.example/team"], "SL-image-prefix"),
        (["--archive", "README.md"], "SL-archive-no-folder"),
    ],
)
def test_wrong_arguments_are_named(arguments, code, machine):
    fake(machine, "podman")
    said = build(machine, *arguments, code=2)
    assert find_codes(said) == [code] and arguments[-1] in said and not (machine / "podman.log").exists()


def test_the_first_tool_that_works_is_used(machine):
    """A client without its daemon does not."""
    assert find_codes(build(machine, code=2)) == ["SL-no-image-tool"]
    fake(machine, "docker", 'echo "Cannot connect" >&2; exit 1')
    fake(machine, "podman")
    assert "Cannot connect" in build(machine, "lab", "--base", "debian:12")
    assert calls(machine, "docker") == [["info"]] and len(calls(machine, "podman")) == 2


def test_the_build_command(machine):
    fake(machine, "podman")
    where = ("--base", "debian:12", "--tag", "1.2", "--prefix", "r.test/t/")
    build(machine, "--variant", "cpu", *where)
    trainer, lab = calls(machine, "podman")[1:]
    name = "r.test/t/stratlab-trainer:1.2"
    assert trainer[:5] == ["build", "--file", "images/trainer/Dockerfile", "--tag", name]
    assert {"BASE=debian:12", "VARIANT=cpu", "VERSION=1.2"} <= set(trainer)
    assert "r.test/t/stratlab-lab:1.2" in lab and "VARIANT=cpu" not in lab
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    assert {f"GIT_SHA={head}", f"GIT_SHA={head}-dirty"} & set(trainer)


def test_how_to_reach_the_index_is_a_secret(machine, tmp_path):
    keep = f'for word; do case $word in id=*) /bin/cat "${{word#*src=}}" >> {tmp_path}/secrets;; esac; done'
    fake(machine, "podman", keep)
    (tmp_path / "ca.pem").write_text("CERTIFICATE\n")
    index = "https://user:hidden@index.test/simple"
    variables = {"SSL_CERT_FILE": str(tmp_path / "ca.pem"), "PIP_INDEX_URL": index}
    said = build(machine, "lab", "--base", "b", **variables)
    handed_over = (tmp_path / "secrets").read_text()
    assert "CERTIFICATE" in handed_over
    assert f"index-url = {index}" in handed_over and f'url = "{index}"' in handed_over
    assert "hidden" not in (machine / "podman.log").read_text() + said
    named = [word for word in calls(machine, "podman")[-1] if word.startswith("id=")]
    assert [word.split(",")[0] for word in named] == ["id=ca", "id=pip", "id=uv"]
    assert not Path(named[1].split("src=")[1]).exists()


def test_what_fails_is_named_by_its_code(machine):
    fake(machine, "podman", 'case $1 in pull|image) echo "no such host" >&2; exit 1;; esac')
    said = build(machine, "lab", code=2)  # a base that cannot be pulled is made here, or not
    assert "no such host" in said and find_codes(said)[0] in ("SL-base-needs-root", "SL-no-debootstrap")
    fake(machine, "podman", '[ "$1" != build ] || exit 7')
    said = build(machine, "lab", "--base", "b", code=1)
    assert find_codes(said) == ["SL-image-step-failed"]
    assert "ended with 7" in said and "podman build --file images/lab/Dockerfile" in said
    done = subprocess.run([SCRIPT.with_name("debian_base"), "kaniko", "x"], capture_output=True, text=True)
    assert done.returncode == 2 and find_codes(done.stderr) == ["SL-base-tool"]


def test_an_image_goes_into_a_cluster_through_a_pipe(machine, tmp_path):
    fake(machine, "podman", '[ "$1" != save ] || echo "the image $2"')
    fake(machine, "load", f'/bin/cat "$1" >> {tmp_path}/loaded')
    load = ["--load", str(machine / "bin" / "load")]
    build(machine, "--base", "b", *load)
    version = Path("VERSION").read_text().strip()
    names = [f"docker.io/library/stratlab-{image}:{version}" for image in ("lab", "trainer")]
    assert sorted((tmp_path / "loaded").read_text().splitlines()) == [f"the image {name}" for name in names]
    fake(machine, "load", "exit 5")
    said = build(machine, "lab", "--base", "b", *load, code=1)
    assert find_codes(said) == ["SL-image-not-loaded"] and names[0] in said


def test_an_archive_carries_the_name_pods_use(machine, tmp_path):
    fake(machine, "podman", '[ "$1" != save ] || echo > "$3"')
    build(machine, *f"lab --base b --tag 1.2 --no-sbom --archive {tmp_path}/new".split())
    archive = tmp_path / "new" / "stratlab-lab-1.2.tar"
    name = "docker.io/library/stratlab-lab:1.2"
    assert calls(machine, "podman")[-1] == ["save", "--output", str(archive), name] and archive.exists()
    assert os.listdir(archive.parent) == [archive.name]
