from __future__ import annotations

from tests.ranks import run_ranks


def test_meshes_of_every_part():
    def run() -> None:
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

        from trainer.parallel.submeshes import build_meshes

        dist.init_process_group("gloo")
        axes = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
        dense = build_meshes(init_device_mesh("cpu", (1, 2, 2, 2, 1), mesh_dim_names=axes), 1, False)
        assert dense.shard.mesh_dim_names == ("dp_replicate", "fsdp")
        assert dense.shard.shape == (2, 4)
        assert dense.experts is None
        mixed = build_meshes(init_device_mesh("cpu", (2, 1, 2, 1, 2), mesh_dim_names=axes), 2, True)
        assert mixed.shard.mesh_dim_names == ("dp_shard",)
        assert mixed.ep.size() == 2
        assert mixed.experts.shape == (2,)
        half = 4 * (dist.get_rank() // 4)
        # whole experts among neighbours, and never across the stages of the pipeline
        assert mixed.ep.mesh.tolist() == [half + 2 * (dist.get_rank() // 2 % 2) + i for i in (0, 1)]
        assert mixed.ep.get_group().group_desc == "mesh_ep"

    run_ranks(run, 8)
