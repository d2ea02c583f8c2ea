"""Parameters that tp cuts stay tied, frozen and of their sizes."""

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tests.ranks import run_ranks
from tests.trainer.parallel.small import make_config
from trainer.models.decoder_build import build_decoder
from trainer.parallel.pipeline import apply_stage


def test_cut_parameters_stay_tied_and_frozen():
    def run() -> None:
        from trainer.parallel.tensor import apply_tensor

        dist.init_process_group("gloo")
        decoder = build_decoder(make_config(lora_rank=2), empty=True)
        trained = {name: p.requires_grad for name, p in decoder.named_parameters()}
        assert len(set(trained.values())) == 2
        apply_stage(decoder, 0, 1)
        apply_tensor(decoder, init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)), True)
        assert {name: p.requires_grad for name, p in decoder.named_parameters()} == trained
        assert decoder.hf.lm_head.weight is decoder.hf.model.embed_tokens.weight
        sizes = {name: p.to_local().numel() / p.numel() for name, p in decoder.named_parameters()}
        whole = {name for name, part in sizes.items() if part == 1}
        assert set(sizes.values()) == {0.5, 1}
        assert all("norm" in name or "lora_" in name for name in whole)
        assert sum("lora_A" in name for name in whole) == 3 * 4  # q, k and v of every layer
        assert sum("lora_B" in name for name in whole) == 4  # o

    run_ranks(run, 2)
