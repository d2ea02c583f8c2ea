"""The locks that images are built from: pinned, hashed, silent about where packages come from; and their licences."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest

IMAGES = ("trainer", "lab")
OF_IMAGES = [Path("images", image, "requirements.txt") for image in IMAGES]
LOCKS = [*OF_IMAGES, *(Path("requirements", f"{name}.txt") for name in ("uv", "build", "quantizer"))]
PIN = r"[a-z0-9.\-]+==[^\s;]+(?: ; .*)?"
HASH = r"--hash=sha256:[0-9a-f]{64}"
# what a package says of its licence -> what the label must say
TERMS = {
    r"NVIDIA": "LicenseRef-NVIDIA-Proprietary",
    r"LGPL|Lesser General": "LGPL-3.0-or-later",
    r"MPL|Mozilla": "MPL-2.0",
    r"\bMIT\b": "MIT",
    r"\bBSD": "BSD-3-Clause",
    r"Apache": "Apache-2.0",
}
OF_DEBIAN = {"GPL-2.0-or-later", "GPL-3.0-or-later", "LGPL-2.1-or-later", "PSF-2.0"}
"""glibc, coreutils, apt and Python itself."""


def read_pins(lock: Path) -> set[str]:
    """`name==version`, each with its hashes and nothing else."""
    lines = (line.rstrip("\\ ").strip() for line in lock.read_text().splitlines())
    text = "\n".join(line for line in lines if line and not line.startswith("#"))
    assert re.fullmatch(rf"(?:{PIN}(?:\n{HASH})+\n?)+", text), lock
    return set(re.findall(rf"^{PIN}$", text, re.MULTILINE))


@pytest.mark.parametrize("lock", LOCKS, ids=str)
def test_every_package_is_pinned_and_hashed(lock: Path) -> None:
    pins = read_pins(lock)
    assert pins and "://" not in lock.read_text() and "--index" not in lock.read_text()
    if lock in OF_IMAGES:
        assert pins <= read_pins(Path("requirements/dev.txt")), "what the tests ran with"


def said_licenses(package: str) -> str:
    """All that its metadata says of it; "" of a package that is not installed here."""
    try:
        found = metadata(package)
    except PackageNotFoundError:
        return ""
    classifiers = [each for each in found.get_all("Classifier") or [] if each.startswith("License")]
    first_line = (found.get("License") or "").partition("\n")[0]
    return " ".join([found.get("License-Expression") or "", first_line, *classifiers])


@pytest.mark.parametrize("image", IMAGES)
def test_the_label_names_the_licences_of_what_is_in_it(image: str) -> None:
    packages = [pin.partition("==")[0] for pin in read_pins(Path("images", image, "requirements.txt"))]
    said = [said_licenses(package) for package in packages]
    needed = {term for pattern, term in TERMS.items() if any(re.search(pattern, text) for text in said)}
    assert "MIT" in needed and ("LicenseRef-NVIDIA-Proprietary" in needed) == (image == "trainer")
    text = Path("images", image, "Dockerfile").read_text().replace("\\\n", "")
    (expression,) = re.findall(r'org\.opencontainers\.image\.licenses="([^"]*)"', text)
    assert needed | OF_DEBIAN <= {part.strip() for part in expression.split(" AND ")}
    assert 'stratlab.licenses.own="Apache-2.0"' in text


def test_lab_has_no_torch_and_trainer_has_no_mlflow() -> None:
    trainer, lab = ({pin.partition("==")[0] for pin in read_pins(lock)} for lock in OF_IMAGES)
    assert {"mlflow", "psycopg2-binary", "boto3"} <= lab and not {"torch", "deepspeed"} & lab
    assert {"torch", "deepspeed"} <= trainer and not {"mlflow", "kubernetes"} & trainer
