"""What is read of a run of the project's own program."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks.gpu.models import EXTRAS, Model, resolve_run
from benchmarks.gpu.own_run import compare_losses, file_name, judge_losses, read_run
from benchmarks.gpu.project import RUNS
from benchmarks.gpu.project import TINY_RUNS as TINY
from benchmarks.gpu.strategies import RUNS as OTHERS
from benchmarks.gpu.strategies import TINY_RUNS as OTHER_TINY

MODELS = {name: Model({"MODEL": name}, 10) for name in ("vit_base", "vit_huge", "qwen2.5-3b")}


def test_every_model_is_tried_under_every_strategy():
    plain = {name for name in (*RUNS, *OTHERS) if "+" not in name}
    wanted = {f"{model}:{s}" for model in MODELS for s in ("single", "ddp", "fsdp", "zero2", "zero3")}
    assert plain >= wanted and len((*RUNS, *OTHERS)) == len({*RUNS, *OTHERS})
    assert {name.split(":")[1] for name in plain - wanted} == {"zero1", "nd", "hsdp"}
    assert {name.split(":")[1] for name in (*TINY, *OTHER_TINY)} == {
        "single",
        "ddp",
        "fsdp",
        "zero2",
        "zero3",
    }


def test_a_run_s_name_is_its_settings():
    model, settings, needs_s = resolve_run("vit_base:single+compile", MODELS)
    assert (model, settings) == ("vit_base", {"MODEL": "vit_base", "STRATEGY": "single"} | EXTRAS["compile"])
    assert needs_s == 50
    assert file_name("qwen2.5-3b:single+compile") == "qwen2-5-3b-single-compile"


@pytest.mark.parametrize(
    ("losses", "finite", "falls"),
    [
        ([3.0, 3.1, 3.0, 2.0, 1.9, 1.8], True, True),
        ([2.0, 2.0, 2.0, 2.0, 2.0, 2.0], True, False),
        ([3.0, 3.0, 3.0, 2.0, None, 1.0, 1.0], False, True),
        ([3.0, 3.0, 3.0, math.nan, math.nan, math.nan], False, False),
        ([4.0, 3.0, 2.0, 1.0], True, False),  # too few to say
        ([], False, False),
    ],
)
def test_losses_are_judged(losses, finite, falls):
    assert judge_losses(losses) == {"finite": finite, "falls": falls}


def test_a_run_that_was_cut_off_gives_what_it_had(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"kind": "train", "loss": 2.5, "step_time_ms": 10}\n{"kind": "tra'
    )
    facts = read_run(tmp_path)
    assert facts["losses"] == [2.5] and facts["outside_gib"] is None and "falls" not in facts


def test_of_several_ranks_the_fullest_one_counts(tmp_path):
    (tmp_path / "ranks").mkdir()
    for number, gib in ((0, 3.0), (1, 7.5)):
        memory = {"peak_gib": gib, "outside_gib": number + 0.5, "peak_phase": "backward"}
        (tmp_path / "ranks" / f"rank{number}.json").write_text(json.dumps({"training_memory": memory}))
    assert read_run(tmp_path)["outside_gib"] == 1.5


def test_losses_of_two_ranks_are_compared_with_one():
    alone = {"losses": [2.0, 1.0], "grad_norms": [4.0, 4.0]}
    found = compare_losses({"losses": [2.0, 1.01], "grad_norms": [4.0, 3.0]}, alone)
    assert found == {"loss_error": pytest.approx(0.01), "norm_error": 0.25}
    for losses in ([2.0], [2.0, None], []):
        assert math.isnan(compare_losses({"losses": losses, "grad_norms": [1.0, 1.0]}, alone)["loss_error"])
