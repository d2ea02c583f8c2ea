from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from stratlab.machine.full_volume import FULL_BELOW, say_full


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ({"f_bavail": 0}, "has 0 of 61440 bytes free"),
        ({"f_bavail": 15, "f_favail": 0}, "has room for no further file"),
        ({"f_bavail": FULL_BELOW}, ""),
        ({"f_bavail": 0, "f_blocks": 0}, ""),
    ],
)
def test_a_volume_without_room_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, numbers: dict[str, int], said: str
) -> None:
    usual = {"f_frsize": 4096, "f_blocks": 15, "f_files": 10, "f_favail": 5}
    monkeypatch.setattr(os, "statvfs", lambda folder: SimpleNamespace(**usual | numbers))
    assert say_full(tmp_path) == (f"the volume of {tmp_path} {said}" if said else "")


def test_a_folder_that_is_gone_says_nothing(tmp_path: Path) -> None:
    assert say_full(tmp_path / "gone") == ""
