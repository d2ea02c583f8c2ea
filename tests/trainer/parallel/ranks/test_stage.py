from __future__ import annotations

from tests.ranks import run_ranks
from tests.trainer.parallel.small import make_config


def test_every_stage_holds_the_weights_of_its_names():
    config = make_config(pp=2, dp_shard=2, seq_len=16)

    def run() -> None:
        import torch
        import torch.distributed as dist

        from tests.trainer.parallel import small

        dist.init_process_group("gloo")
        engine, alone = small.start(config), small.whole_decoder(config)
        wanted = dict(alone.named_parameters(remove_duplicate=False))
        (stage,) = engine.stages
        for name, parameter in stage.module.named_parameters():
            assert torch.equal(parameter.full_tensor(), wanted[name]), name
        assert ("hf.lm_head.weight" in stage.trained()) == stage.is_last
        rotary = stage.module.hf.model.rotary_emb.inv_freq
        assert torch.equal(rotary, alone.hf.model.rotary_emb.inv_freq)

    run_ranks(run, 4)


def test_an_optimizer_has_a_group_for_each_mesh():
    config = make_config(model="qwen_moe_tiny", dp_shard=2, tp=2, ep=2, seq_len=16)

    def run() -> None:
        import torch.distributed as dist

        from tests.trainer.parallel import small

        dist.init_process_group("gloo")
        (stage,) = small.start(config).stages
        groups = stage.optimizer.param_groups
        meshes = [{p.device_mesh for p in group["params"]} for group in groups]
        assert [len(found) for found in meshes] == [1, 1]
        assert meshes[0] != meshes[1]
        assert sum(len(group["params"]) for group in groups) == len(stage.trained())
        assert all(group["weight_decay"] == config.weight_decay and group["fused"] for group in groups)

    run_ranks(run, 4)
