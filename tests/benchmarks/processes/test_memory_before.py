"""The table of before and after, of one small model, with this tree as both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.memory import before
from benchmarks.memory.before import Pair

SMALL = "model=vit_tiny dataset=digits precision=bf16 micro_batch_size=8 global_batch_size=64 strategy=fsdp"


def test_both_trees_count_and_the_page_tells_them_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(before, "PAGE", tmp_path / "before.md")
    pair = Pair("small", SMALL, added="activation_checkpointing=blocks", labels=10)
    monkeypatch.setattr(before, "GROUPS", {"1 blocks": (pair,), "2 other": (Pair("never", "model=none"),)})
    monkeypatch.setattr("sys.argv", ["before", str(before.HERE), "--only", "blocks"])
    assert before.main() == 0
    counted = json.loads((tmp_path / "before.json").read_text())["rows"]["small"]
    assert counted["after"]["gib"]["peak"] < counted["before"]["gib"]["peak"], "checkpointing holds less"
    page = (tmp_path / "before.md").read_text()
    assert "**small**" in page and "never" not in page
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert before.main() == 0 and not capsys.readouterr().out, "nothing is counted again"


def test_a_count_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(before, "PAGE", tmp_path / "before.md")
    monkeypatch.setattr(before, "GROUPS", {"1 loss": (Pair("small", f"{SMALL} lr=-1"),)})
    monkeypatch.setattr("sys.argv", ["before", str(before.HERE)])
    assert before.main() == 1
