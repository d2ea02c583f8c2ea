"""The images' label names the licences of what is in them, not only of our own code."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest

IMAGES = ("trainer", "lab")
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


def read_label(image: str) -> set[str]:
    text = Path("images", image, "Dockerfile").read_text().replace("\\\n", "")
    (expression,) = re.findall(r'org\.opencontainers\.image\.licenses="([^"]*)"', text)
    return {part.strip() for part in expression.split(" AND ")}


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
def test_the_label_names_what_the_packages_say(image: str) -> None:
    packages = re.findall(r"^([a-z0-9-]+)==", Path("images", image, "requirements.txt").read_text(), re.M)
    needed: dict[str, list[str]] = {}
    for package in packages:
        for pattern, term in TERMS.items():
            if re.search(pattern, said_licenses(package)):
                needed.setdefault(term, []).append(package)
    assert "MIT" in needed and ("LicenseRef-NVIDIA-Proprietary" in needed) == (image == "trainer")
    label = read_label(image)
    assert {term: found for term, found in needed.items() if term not in label} == {}
    assert label >= OF_DEBIAN


@pytest.mark.parametrize("image", IMAGES)
def test_our_own_licence_is_told_apart(image: str) -> None:
    assert 'stratlab.licenses.own="Apache-2.0"' in Path("images", image, "Dockerfile").read_text()
