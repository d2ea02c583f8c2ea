"""Questions about other runs are those that a user would ask next."""

from dataclasses import replace

import pytest

from stratlab.predict.asking import ask_of_model
from stratlab.predict.remedies import ALLOWED, list_allowed_changes, list_candidates, place_ranks

SETTINGS = {"strategy": "hsdp", "activation_checkpointing": "none", "loss_chunk_tokens": 2048, "lora_rank": 0}


def ask(gpus, *settings, per_node=0):
    [question] = ask_of_model("qwen2.5-7b", gpus, ["strategy=hsdp", *settings], per_node)
    return question


@pytest.mark.parametrize(
    ("gpus", "per_node", "more"), [(8, 0, 16), (16, 0, 8), (6, 3, 12), (6, 3, 2), (4, 4, 8), (24, 0, 12)]
)
def test_more_gpus_stand_on_nodes_as_if_asked_for(gpus, per_node, more):
    kept = per_node if more > per_node else 0
    assert place_ranks(ask(gpus, per_node=per_node), more) == ask(more, per_node=kept)


def test_a_step_on_more_gpus_has_as_many_samples():
    asked = ask(4, "micro_batch_size=6", "global_batch_size=96")
    assert place_ranks(asked, 16) == ask(16, "micro_batch_size=6", "global_batch_size=96")
    assert place_ranks(asked, 32) == ask(32, "micro_batch_size=3", "global_batch_size=96")


def test_other_strategies_are_tried_with_all_that_is_allowed_before_more_gpus():
    tried = [*list_candidates(ask(8), SETTINGS, ALLOWED)]
    here = [one.settings for one in tried if one.ranks == 8]
    assert all(one.ranks == 8 for one in tried[: len(here)])
    changed = {(one["strategy"], one.get("lora_rank", "0"), one.get("offload", "none")) for one in here}
    assert {("fsdp", "16", "none"), ("fsdp", "0", "all"), ("zero1", "16", "optimizer")} <= changed


@pytest.mark.parametrize(("weights", "init"), [((), None), (("model.safetensors",), "pretrained")])
def test_adapters_on_a_folder_load_its_weights_if_there_are_any(tmp_path, weights, init):
    for name in weights:
        (tmp_path / name).touch()
    asked = replace(ask(8), settings={"model_path": str(tmp_path)})
    [change] = list_allowed_changes(asked, SETTINGS, ["lora"])
    assert change["lora_rank"] == "16" and change.get("init") == init
