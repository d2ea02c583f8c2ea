"""What the Dockerfiles promise, by a few rules of our own."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

DOCKERFILES = sorted(Path("images").glob("*/Dockerfile"))
each = pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.parent.name)


def read_stages(dockerfile: Path) -> dict[str, list[str]]:
    """Name of each stage -> its instructions, each on one line, without comments."""
    text = re.sub(r"^#.*\n", "", dockerfile.read_text(), flags=re.M)
    stages: dict[str, list[str]] = {"": []}
    name = ""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if line.startswith("FROM "):
            name = line.split()[-1]
            stages[name] = []
        if line.strip():
            stages[name].append(line)
    return stages


@each
def test_the_last_stage_runs_as_10001(dockerfile: Path) -> None:
    last = list(read_stages(dockerfile).values())[-1]
    users = [line for line in last if line.startswith("USER")]
    assert users == ["USER 10001:10001"]
    assert not any(line.startswith("RUN") for line in last[last.index(users[0]) :])
    assert "ENV STRATLAB_GIT_SHA=${GIT_SHA}" in " ".join(last)
    for label in ("title", "version", "revision", "source", "licenses"):
        assert f"org.opencontainers.image.{label}=" in " ".join(last)


@each
def test_the_image_has_no_installers_and_a_compiler_only_for_gpus(dockerfile: Path) -> None:
    """Its stages have Debian's Python, the finished environment and the package. uv is mounted, and goes."""
    is_trainer = dockerfile.parent.name == "trainer"
    stages = read_stages(dockerfile)
    assert [stages[name][0] for name in ("image", "environment", "system")] == [
        "FROM environment AS image",
        "FROM system AS environment",
        "FROM ${BASE} AS system",
    ]
    lines = [line for name in ("system", "environment", "image") for line in stages[name]]
    packages = [
        shlex.split(run.split("apt_install", 1)[1].split(";")[0]) for run in lines if "apt_install" in run
    ]
    allowed = {"ca-certificates", "python3", "openmpi-bin", "openssh-client", "openssh-server"}
    assert {name for found in packages for name in found} <= allowed
    compilers = [line for line in lines if "g++" in line]
    assert len(compilers) == is_trainer
    for line in compilers:  # torch.compile's
        assert 'if [ "$VARIANT" = cuda ]; then apt_install g++ libpython3.11-dev; fi; ' in line
    kernel = "COPY --from=quantizer /quantizer /opt/venv/lib/python3.11/site-packages/deepspeed/ops/quantizer"
    package = "COPY --from=package /package /opt/package"
    assert [line for line in lines if "--from" in line] == [*[kernel] * is_trainer, package]
    for line in lines:
        assert "uv/bin" not in line or "--mount=type=bind,from=uv,source=/opt/uv,target=/opt/uv" in line
        assert not re.search(r"\bpip install\b", line)
        assert not line.startswith("COPY requirements") or "rm -r /build" in lines[lines.index(line) + 1]


def test_what_both_images_begin_with_is_built_once() -> None:
    """Word for word the same, up to the installer: the second build finds the layers of the first."""
    lab, trainer = (read_stages(dockerfile) for dockerfile in DOCKERFILES)
    for stage in ("system", "installer", "uv"):
        assert lab[stage] == trainer[stage]
    assert lab["uv"] == ["FROM installer AS uv", "ARG BUILD=none", "LABEL stratlab.build=${BUILD}"]


@each
def test_all_stages_stand_on_the_base_that_is_an_argument(dockerfile: Path) -> None:
    stages = read_stages(dockerfile)
    assert stages.pop("")[0].startswith("ARG BASE=docker.io/library/debian:bookworm")
    assert {lines[0].split()[1] for lines in stages.values()} <= {"${BASE}", *stages}


@each
def test_packages_come_from_hashed_locks_and_a_run_that_fails_in_the_middle_fails(dockerfile: Path) -> None:
    lines = [line for stage in read_stages(dockerfile).values() for line in stage]
    installs = [line for line in lines if "pip install" in line or "pip sync" in line]
    runs = [line for line in lines if line.startswith("RUN")]
    assert (len(installs), len(runs)) == {"lab": (3, 6), "trainer": (4, 7)}[dockerfile.parent.name]
    for line in installs:
        offline = all(word in line for word in ("--offline", "--no-deps", "./source"))
        assert "--require-hashes" in line or offline
    for line in runs:
        assert re.match(r"RUN (--mount=\S+ +)*set -eu; ", line), line


@each
def test_the_own_code_is_in_the_last_layers(dockerfile: Path) -> None:
    """Else each change of it installs everything again."""
    stages = read_stages(dockerfile)
    own = {"trainer": "trainer", "lab": "stratlab"}[dockerfile.parent.name]
    assert not any(line.startswith("COPY") and f" {own} " in line for line in stages["environment"])
    assert stages["package"][0] == "FROM environment AS package"
    assert f"COPY {own} source/{own}" in stages["package"]
    after = stages["image"][stages["image"].index("COPY --from=package /package /opt/package") + 1 :]
    assert not any(line.startswith(("COPY", "RUN")) for line in after)


@each
def test_caches_lie_under_tmp(dockerfile: Path) -> None:
    """The same folders as in the charts' environment."""
    chart = dict(
        re.findall(r'"([A-Z_]+)" "(/tmp[^"]*)"', Path("charts/run/templates/_environment.tpl").read_text())
    )
    image = dict(re.findall(r"\b([A-Z_]+)=(/tmp\S*)", " ".join(read_stages(dockerfile)["image"])))
    assert image and chart.items() >= image.items()
    assert dockerfile.parent.name == "lab" or image == chart


@each
def test_what_is_copied_is_sent_to_the_build(dockerfile: Path) -> None:
    sent = {line[1:] for line in Path(".dockerignore").read_text().splitlines() if line.startswith("!")}
    text = " ".join(line for stage in read_stages(dockerfile).values() for line in stage)
    sources = re.findall(r"type=bind,source=(\S+?),", text)
    for line in re.findall(r"COPY (?!--from)([^\n]*?)(?= COPY | RUN | ENV | ARG |$)", text):
        sources += line.split()[:-1]
    assert {"images/network.sh", "VERSION", "LICENSE", "requirements/uv.txt"} <= set(sources)
    for source in sources:
        assert Path(source).exists(), source
        assert any(source == known or source.startswith(f"{known}/") for known in sent), source
