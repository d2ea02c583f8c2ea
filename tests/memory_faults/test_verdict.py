"""The verdict by hand, the table of cases, and the stand-in's arithmetic."""

from pathlib import Path

from tests.memory_faults import __main__ as command
from tests.memory_faults.case import CASES, CLEAN, FAULTY, Case
from tests.memory_faults.plant import CAUSES, PLANTS
from tests.memory_faults.running import judge
from tests.memory_faults.stand_in import StorageCounters
from trainer.memory_estimation.timeline import Label, Storage


def test_a_run_is_right_that_names_what_was_planted_or_nothing() -> None:
    foreseen = {"forecast": {"peak_gib": 1.0}, "summary": {}}
    named = {
        name: foreseen | {"summary": {"forecast_memory_deviates": name}}
        for name in (None, "rest", "parameters", "gradients")
    }
    clean, weights = (Case("it", 1, 1, {}, fault) for fault in ("", "weights"))
    assert judge(clean, named[None]) == judge(weights, named["parameters"]) == ""
    wrong = [
        (clean, named["rest"]),
        (weights, named["gradients"]),
        (weights, named[None]),
        (clean, {"failure": ""}),
    ]
    wrong += [(clean, foreseen), (clean, foreseen | {"forecast": None})]  # not compared, nothing foreseen
    assert all(judge(case, row) for case, row in wrong)


def test_every_fault_of_every_engine_and_every_strategy_can_be_asked_for(tmp_path: Path) -> None:
    assert PLANTS.keys() == CAUSES.keys() and len({case.name for case in CASES}) == len(CASES) == 33
    engines = {(case.settings["strategy"], case.fault) for case in FAULTY}
    assert engines == {(strategy, fault) for strategy in ("ddp", "fsdp", "zero2", "nd") for fault in CAUSES}
    for case in CASES:
        config = case.config(tmp_path)
        assert config.global_batch_size == config.micro_batch_size * case.micro_batches * case.rows, case.name
    strategies = {case.settings["strategy"] for case in CLEAN}
    assert strategies == {"single", "ddp", "fsdp", "hsdp", "zero1", "zero2", "zero3", "nd"}
    assert command.main(["ddp nothing"], tmp_path / "found.json") == 2


def test_the_stand_in_counts_blocks_and_its_peak_is_set_back() -> None:
    counters = StorageCounters()
    storages = [Storage(Label("forward", "a test", "float32", (size,)), "other") for size in (1, 1000)]
    for storage, size in zip(storages, (4, 4000), strict=True):
        counters.total.resize(storage, size)
    assert counters.read()[:2] == (512 + 4096, 512 + 4096)
    counters.total.resize(storages[1], 0)
    assert counters.read()[:2] == (512, 512 + 4096)
    counters.reset()
    assert counters.read()[:2] == (512, 512)
