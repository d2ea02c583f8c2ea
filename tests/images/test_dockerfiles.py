"""What the Dockerfiles promise, the locks that they are built from, and the one Python of images and development."""

import re
import shlex
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest

DOCKERFILES = sorted(Path("images").glob("*/Dockerfile"))
each = pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.parent.name)


def read_stages(dockerfile):
    """Name of each stage -> its instructions, each on one line, without comments."""
    text = re.sub(r"^#.*\n", "", dockerfile.read_text(), flags=re.M)
    stages = {"": []}
    name = ""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if line.startswith("FROM "):
            name = line.split()[-1]
            stages[name] = []
        if line.strip():
            stages[name].append(line)
    return stages


@each
def test_the_last_stage_runs_as_10001(dockerfile):
    last = list(read_stages(dockerfile).values())[-1]
    users = [line for line in last if line.startswith("USER")]
    assert users == ["USER 10001:10001"]
    assert not any(line.startswith("RUN") for line in last[last.index(users[0]) :])
    assert "ENV STRATLAB_GIT_SHA=${GIT_SHA}" in " ".join(last)
    for label in ("title", "version", "revision", "source", "licenses"):
        assert f"org.opencontainers.image.{label}=" in " ".join(last)


@each
def test_the_image_has_no_installers_and_a_compiler_only_for_gpus(dockerfile):
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


@each
def test_all_stages_stand_on_the_base_that_is_an_argument(dockerfile):
    stages = read_stages(dockerfile)
    assert stages.pop("")[0].startswith("ARG BASE=docker.io/library/debian:bookworm")
    assert {lines[0].split()[1] for lines in stages.values()} <= {"${BASE}", *stages}


@each
def test_packages_come_from_hashed_locks_and_a_run_that_fails_in_the_middle_fails(dockerfile):
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
def test_caches_lie_under_tmp(dockerfile):
    """The same folders as in the charts' environment."""
    chart = dict(
        re.findall(r'"([A-Z_]+)" "(/tmp[^"]*)"', Path("charts/run/templates/_environment.tpl").read_text())
    )
    image = dict(re.findall(r"\b([A-Z_]+)=(/tmp\S*)", " ".join(read_stages(dockerfile)["image"])))
    assert image and chart.items() >= image.items() and (dockerfile.parent.name == "lab" or image == chart)


IMAGES = ("trainer", "lab")
OF_IMAGES = [Path("images", image, "requirements.txt") for image in IMAGES]
LOCKS = [*OF_IMAGES, *(Path("requirements", f"{name}.txt") for name in ("uv", "build", "quantizer"))]
PIN = r"[a-z0-9.\-]+==[^\s;]+(?: ; .*)?"
HASH = r"--hash=sha256:[0-9a-f]{64}"
# what a package says of its licence -> what the label must say
TERMS = {
    r"NVIDIA": "LicenseRef-NVIDIA-Proprietary", r"LGPL|Lesser General": "LGPL-3.0-or-later",
    r"MPL|Mozilla": "MPL-2.0", r"\bMIT\b": "MIT", r"\bBSD": "BSD-3-Clause", r"Apache": "Apache-2.0",
}  # fmt: skip
OF_DEBIAN = {"GPL-2.0-or-later", "GPL-3.0-or-later", "LGPL-2.1-or-later", "PSF-2.0"}
"""glibc, coreutils, apt and Python itself."""


def read_pins(lock):
    """`name==version`, each with its hashes and nothing else."""
    lines = (line.rstrip("\\ ").strip() for line in lock.read_text().splitlines())
    text = "\n".join(line for line in lines if line and not line.startswith("#"))
    assert re.fullmatch(rf"(?:{PIN}(?:\n{HASH})+\n?)+", text), lock
    return set(re.findall(rf"^{PIN}$", text, re.MULTILINE))


@pytest.mark.parametrize("lock", LOCKS, ids=str)
def test_every_package_is_pinned_and_hashed(lock):
    pins = read_pins(lock)
    assert pins and "://" not in lock.read_text() and "--index" not in lock.read_text()
    if lock in OF_IMAGES:
        assert pins <= read_pins(Path("requirements/dev.txt")), "what the tests ran with"


def said_licenses(package):
    """All that its metadata says of it; "" of a package that is not installed here."""
    try:
        found = metadata(package)
    except PackageNotFoundError:
        return ""
    classifiers = [each for each in found.get_all("Classifier") or [] if each.startswith("License")]
    first_line = (found.get("License") or "").partition("\n")[0]
    return " ".join([found.get("License-Expression") or "", first_line, *classifiers])


@pytest.mark.parametrize("image", IMAGES)
def test_the_label_names_the_licences_of_what_is_in_it(image):
    packages = [pin.partition("==")[0] for pin in read_pins(Path("images", image, "requirements.txt"))]
    said = [said_licenses(package) for package in packages]
    needed = {term for pattern, term in TERMS.items() if any(re.search(pattern, text) for text in said)}
    assert "MIT" in needed and ("LicenseRef-NVIDIA-Proprietary" in needed) == (image == "trainer")
    text = Path("images", image, "Dockerfile").read_text().replace("\\\n", "")
    (expression,) = re.findall(r'org\.opencontainers\.image\.licenses="([^"]*)"', text)
    assert needed | OF_DEBIAN <= {part.strip() for part in expression.split(" AND ")}
    assert 'stratlab.licenses.own="Apache-2.0"' in text


def test_lab_has_no_torch_and_trainer_has_no_mlflow():
    trainer, lab = ({pin.partition("==")[0] for pin in read_pins(lock)} for lock in OF_IMAGES)
    assert {"mlflow", "psycopg2-binary", "boto3"} <= lab and not {"torch", "deepspeed"} & lab
    assert {"torch", "deepspeed"} <= trainer and not {"mlflow", "kubernetes"} & trainer
