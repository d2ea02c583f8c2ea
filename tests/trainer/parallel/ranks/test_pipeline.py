from __future__ import annotations

import copy

import pytest
import torch

from tests.ranks import run_ranks
from tests.trainer.parallel.small import make_config, make_rows
from trainer.models.decoder import documents_of
from trainer.models.decoder_build import build_decoder
from trainer.parallel.pipeline import apply_stage, layers_of


def split(decoder, stages):
    parts = [copy.deepcopy(decoder) for _ in range(stages)]
    for index, part in enumerate(parts):
        apply_stage(part, index, stages)
    return parts


@pytest.mark.parametrize("model", ["qwen_tiny", "qwen_moe_tiny"])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_stages_one_after_the_other_are_the_decoder(model, stages):
    config = make_config(model=model)
    decoder = build_decoder(config)
    inputs, _ = make_rows(config)
    passed, documents = inputs[:, 0], documents_of(inputs)
    parts = split(decoder, stages)
    for part in parts:
        passed = part(passed, positions=inputs[:, 1], documents=documents)
    torch.testing.assert_close(passed, decoder(inputs))


def test_stages_share_out_the_parameters_under_their_names():
    decoder = build_decoder(make_config(model="qwen_moe_tiny"), empty=True)
    parts = split(decoder, 3)
    assert [list(layers_of(part)) for part in parts] == [["0", "1"], ["2"], ["3"]]
    names = [name for part in parts for name, _ in part.named_parameters()]
    assert sorted(names) == sorted(name for name, _ in decoder.named_parameters())


def test_a_tied_head_on_a_stage_of_its_own_keeps_its_name():
    first, last = split(build_decoder(make_config(), empty=True), 2)
    assert "hf.model.embed_tokens.weight" in dict(first.named_parameters())
    assert "hf.lm_head.weight" in dict(last.named_parameters())


def test_gradient_checkpointing_belongs_to_the_copied_layers():
    decoder = build_decoder(make_config(activation_checkpointing="blocks"))
    (part,) = split(decoder, 1)
    layer = layers_of(part)["0"]
    assert layer.forward.args[0] is layer
    assert layer.forward.args[1].__self__ is layer


def test_the_tied_group_holds_first_and_last_rank():
    def run() -> None:
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

        from trainer.parallel.pipeline import build_tied_group
        from trainer.parallel.submeshes import build_meshes

        dist.init_process_group("gloo")
        axes = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
        meshes = build_meshes(init_device_mesh("cpu", (3, 1, 1, 1, 2), mesh_dim_names=axes), 1, False)
        assert meshes.stage_peers == [[0, 2, 4], [1, 3, 5]]
        group = build_tied_group(meshes.stage_peers)
        rank = dist.get_rank()
        assert (group is None) == (rank in (2, 3))
        if group is not None:
            assert dist.get_process_group_ranks(group) == [rank % 2, 4 + rank % 2]
            assert group.group_desc == "tied"

    run_ranks(run, 6)
