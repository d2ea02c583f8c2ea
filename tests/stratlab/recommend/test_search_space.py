"""The options that are searched, and those that are left out with a reason."""

from functools import cache

import pytest

from stratlab.predict import predict
from stratlab.predict.asking import ask_of_model
from stratlab.predict.timing import Speed, find_card
from stratlab.recommend import COMPILED, RECOMPUTED, ROWS
from stratlab.recommend.search_space import search
from stratlab_spec.memory.prediction import GATE
from stratlab_spec.memory.simulated import simulate_run


@cache
def find(model, gpus, *settings, batch=64, allowed=(), per_node=0):
    questions = ask_of_model(model, gpus, [f"global_batch_size={batch}", *settings], per_node)
    return search(questions, find_card("h100"), 79.2, allowed)


def test_every_option_has_the_same_batch_and_is_judged_by_the_gate():
    options = find("qwen2.5-3b", 8).options
    assert {one.prediction.question.global_batch for one in options} == {64}
    assert all(one.fits == (one.prediction.needs_gib <= GATE * 79.2) for one in options)
    assert {one.fits for one in options} == {True, False}
    runs = {one.run for one in options}
    assert {"ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp 2 shards", "hsdp 4 shards", "nd 3d"} <= runs
    searched = {
        tuple(one.chosen[name] for name in (RECOMPUTED, COMPILED)) for one in options if one.run == "fsdp"
    }
    assert searched == {(a, b) for a in ("none", "selective", "blocks") for b in ("false", "true")}


def test_micro_batches_are_powers_of_two_the_largest_that_fits_and_the_first_that_does_not():
    """As memory alone says: with a batch of 6 rows on each GPU, 6 fits and 8 does not divide it."""
    for batch in (48, 64):
        for strategy in ("fsdp", "zero2"):
            options = find("qwen2.5-3b", 8, f"strategy={strategy}", batch=batch).options
            mine = {
                int(one.chosen[ROWS]): one
                for one in options
                if one.chosen[RECOMPUTED] == "none" and not one.prediction.is_upper_bound
            }
            share, largest = batch // 8, next(iter(mine.values())).prediction.largest
            assert max(rows for rows, one in mine.items() if one.fits) == max(
                rows for rows in range(1, largest + 1) if share % rows == 0
            )
            assert sum(not one.fits for one in mine.values()) <= 1


@pytest.mark.parametrize("run", ["hsdp 4 shards", "zero2"])
def test_an_option_is_what_predict_answers_for_its_settings(run):
    """With one micro-batch in a step, as with 8 rows here, no gradients are accumulated."""
    found = [
        one for one in find("qwen2.5-3b", 8).options if one.run == run and one.chosen[ROWS] in ("1", "8")
    ]
    assert {one.chosen[ROWS] for one in found} == {"1", "8"}
    for one in found:
        question = one.prediction.question
        alone = predict(question, simulate_run(question), 79.2)
        assert alone.needs_gib == pytest.approx(one.prediction.needs_gib)
        assert alone.file.axes["dp_shard"] == (8 if run == "zero2" else 4)


def test_typed_settings_are_kept():
    found = find("gpt2", 4, "strategy=fsdp", f"{RECOMPUTED}=blocks", f"{COMPILED}=true", f"{ROWS}=2")
    [one] = found.options
    assert (
        dict(one.chosen) == {ROWS: "2", RECOMPUTED: "blocks", COMPILED: "true"}
        and one.prediction.is_upper_bound
    )


def test_what_the_user_allows_is_searched_too():
    usual, more = (
        find("gpt2", 4, "strategy=fsdp"),
        find("gpt2", 4, "strategy=fsdp", allowed=("lora", "offload")),
    )
    assert not any({"lora_rank", "offload"} & one.chosen.keys() for one in usual.options)
    assert {one.chosen.get("lora_rank") for one in more.options} == {None, "16"}
    offloaded = [one for one in more.options if one.chosen.get("offload") == "all"]
    assert offloaded and not any(isinstance(one.speed, Speed) for one in offloaded)


def test_runs_that_cannot_start_or_are_not_known_have_a_reason():
    found = find("vit_huge", 8)
    left_out = {run: reason for reason, runs in found.left_out.items() for run in runs}
    assert "[SL-hpz-one-node]" in left_out["zeropp"] and not any(one.run == "zeropp" for one in found.options)
    assert any("compile" in reason for reason, runs in found.left_out.items() if runs == ["zero3"])
    assert any(RECOMPUTED in reason for reason in found.left_out)  # selective: no recorded steps of a ViT
