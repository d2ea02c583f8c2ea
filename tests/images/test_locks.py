"""The locks that images are built from: pinned, hashed, and silent about where packages come from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

LOCKS = [
    *sorted(Path("images").glob("*/requirements.txt")),
    Path("requirements/uv.txt"),
    Path("requirements/build.txt"),
    Path("requirements/quantizer.txt"),
]
SHARED = Path("requirements/dev.txt")


def read_pins(text: str) -> dict[str, list[str]]:
    """`name==version` -> its hashes. Raises ValueError for a line that is neither pin, hash nor comment."""
    pins: dict[str, list[str]] = {}
    pin = ""
    for line in text.splitlines():
        words = line.rstrip("\\ ").strip()
        if re.fullmatch(r"[a-z0-9.\-]+==[^\s;]+( ; .*)?", words):
            pin = words
            pins[pin] = []
        elif re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", words):
            pins[pin].append(words)
        elif words and not words.startswith("#"):
            raise ValueError(line)
    return pins


@pytest.mark.parametrize("lock", LOCKS, ids=str)
def test_every_package_is_pinned_and_hashed(lock: Path) -> None:
    pins = read_pins(lock.read_text())
    assert pins
    assert [pin for pin, hashes in pins.items() if not hashes] == []


@pytest.mark.parametrize("lock", LOCKS, ids=str)
def test_no_lock_names_a_place(lock: Path) -> None:
    assert "://" not in lock.read_text() and "--index" not in lock.read_text()


@pytest.mark.parametrize("lock", LOCKS[:2], ids=str)
def test_images_hold_what_the_tests_ran_with(lock: Path) -> None:
    assert read_pins(lock.read_text()).keys() <= read_pins(SHARED.read_text()).keys()


@pytest.mark.parametrize(
    "line", ["numpy>=2", "numpy @ https://example.test/numpy.whl", "-e .", "--index-url x"]
)
def test_anything_else_is_noticed(line: str) -> None:
    with pytest.raises(ValueError, match=re.escape(line)):
        read_pins(line)
