"""The bound of a compiled run's memory, against every compiled run that was measured on a GPU."""

import json

import pytest

from benchmarks.backtest.own_steps import MEASURED, STAGES, Run
from stratlab_spec.memory.profiles import GIB, ask_of_run
from stratlab_spec.memory.simulated import NotRecorded, simulate_run
from stratlab_spec.settings.config import Config


def test_compiled_runs_on_gpus_stay_below_their_bound():
    measured = {}
    for path in MEASURED.glob("*.jsonl"):
        for number, row in enumerate(map(json.loads, path.read_text().splitlines())):
            settings = row.get("settings") or {}
            if (
                row.get("stage") in STAGES
                and row.get("peak_memory_gib")
                and settings.get("COMPILE") == "true"
            ):
                measured[path.stem, number] = (
                    Run(path.stem, "", row["item"], settings, 0.0),
                    row["peak_memory_gib"],
                )
    assert len(measured) == 14
    for run, peak_gib in measured.values():
        file = simulate_run(question := ask_of_run(run.config, 1, 1))
        bound_gib = file.peak(question.rows, 1).total / GIB
        assert file.is_upper_bound(question) and peak_gib <= bound_gib <= 1.15 * peak_gib, run.item


def test_a_compiled_layout_of_several_dimensions_has_no_bound():
    config = Config(
        run="x", strategy="nd", dimensions=2, model="qwen2.5-3b", dataset="metamathqa", compile=True
    )
    with pytest.raises(NotRecorded, match="compile"):
        simulate_run(ask_of_run(config.model_copy(update={"micro_batch_size": 1}), 8, 8))
