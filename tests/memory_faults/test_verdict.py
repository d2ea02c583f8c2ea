"""The verdict by hand, the table of cases, and the stand-in's arithmetic."""

from __future__ import annotations

import pytest

from tests.memory_faults import __main__ as command
from tests.memory_faults.case import CASES, CLEAN, FAULTY, Case
from tests.memory_faults.plant import CAUSES
from tests.memory_faults.stand_in import StorageCounters, Total
from tests.memory_faults.verdict import judge
from trainer.counting.timeline import Label, Storage

CLEAN_CASE = Case("as it is", 1, 1, {})
WEIGHTS = Case("weights", 1, 1, {}, "weights")


def row(deviates: str | None) -> dict:
    return {"forecast": {"peak_gib": 1.0}, "summary": {"forecast_memory_deviates": deviates}}


@pytest.mark.parametrize(
    ("case", "found", "wrong"),
    [
        (CLEAN_CASE, row(None), ""),
        (CLEAN_CASE, row("rest"), "marked with rest"),
        (WEIGHTS, row("parameters"), ""),
        (WEIGHTS, row("gradients"), "names gradients instead of parameters"),
        (WEIGHTS, row(None), "names nothing instead of parameters"),
        (CLEAN_CASE, {"failure": "it crashed"}, "failed"),
        (CLEAN_CASE, {"forecast": None, "summary": {}}, "nothing was foreseen"),
        (CLEAN_CASE, {"forecast": {"peak_gib": 1.0}, "summary": {}}, "not compared"),
    ],
)
def test_a_run_is_right_that_names_what_was_planted_or_nothing(case: Case, found: dict, wrong: str):
    assert judge(case, found) == wrong


def test_twelve_faults_and_twenty_clean_runs_that_can_be_asked_for(tmp_path):
    assert len(CLEAN) == 20 and len(FAULTY) == 12 and len({case.name for case in CASES}) == 33
    assert {(case.settings["strategy"], case.fault) for case in FAULTY} == {
        (strategy, fault) for strategy in ("ddp", "fsdp", "zero2", "nd") for fault in CAUSES
    }
    for case in CASES:
        config = case.config(tmp_path)
        assert config.global_batch_size == config.micro_batch_size * case.micro_batches * case.rows, case.name
    strategies = {case.settings["strategy"] for case in CLEAN}
    assert strategies == {"single", "ddp", "fsdp", "hsdp", "zero1", "zero2", "zero3", "nd"}


def test_the_stand_in_counts_blocks_and_its_peak_is_set_back():
    counters = StorageCounters()
    storages = [Storage(Label("forward", "a test", "float32", (size,)), "other") for size in (1, 1000)]
    for storage, size in zip(storages, (4, 4000), strict=True):
        counters.total.resize(storage, size)
    assert counters.read()[:2] == (512 + 4096, 512 + 4096)
    counters.total.resize(storages[1], 0)
    assert counters.read()[:2] == (512, 512 + 4096)
    counters.reset()
    assert counters.read()[:2] == (512, 512) and isinstance(counters.total, Total)
    assert "stand-in" in counters.source, "no reader takes it for a device"


def test_a_name_that_nobody_has_is_told(capsys, tmp_path):
    assert command.main(["ddp nothing"], tmp_path / "found.json") == 2
    assert "no case has one of ['ddp nothing']" in capsys.readouterr().err
