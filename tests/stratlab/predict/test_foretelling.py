"""One sentence about memory from the verbs that start runs, and none where nobody knows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stratlab.predict.answering import VOLUME, foretell
from stratlab_spec.memory.profiles import FOLDER, SHIPPED

VIT = {"model": "vit_huge", "precision": "bf16", "strategy": "ddp", "global_batch_size": "4096"}


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def pods(**settings: str) -> dict[str, str]:
    given = {f"TRAINER_{name.upper()}": value for name, value in {**VIT, **settings}.items()}
    return {"PET_NNODES": "1:1", "PET_NPROC_PER_NODE": "8"} | given


def test_what_fits_is_told_and_what_does_not_with_its_cause_and_what_to_try() -> None:
    told = foretell("ddp", pods(micro_batch_size="32"))
    assert told.startswith("ddp: ") and "79.2 GiB" in told and "=" not in told
    told = foretell("ddp", pods(micro_batch_size="256"))
    assert "activations" in told and "micro_batch_size=" in told


@pytest.mark.parametrize(
    "settings",
    [
        {"memory_forecast": "false"},
        {"mode": "evaluate"},
        {"micro_batch_size": "many"},
        {"lora_rank": "8"},
        {"model": "vit_tiny"},
    ],
)
def test_where_nobody_knows_or_asks_nothing_is_said(settings: dict[str, str]) -> None:
    assert foretell("ddp", pods(micro_batch_size="256") | pods(**settings)) == ""
    assert foretell("ddp", pods() | {"PET_NPROC_PER_NODE": "auto"}) == ""


def test_files_of_the_results_go_first_and_a_broken_one_is_left_out(tmp_path: Path) -> None:
    assert VOLUME == FOLDER
    (tmp_path / VOLUME).mkdir()
    shutil.copy(SHIPPED / "vit_huge-fsdp-8.json", tmp_path / VOLUME / "a.json")
    assert foretell("ddp", pods(micro_batch_size="32"), tmp_path)
    (tmp_path / VOLUME / "a.json").write_text("{}")
    assert foretell("ddp", pods(micro_batch_size="32"), tmp_path)
