from __future__ import annotations

from stratlab_spec.models.decoder_config import read_shape
from tests.ranks import run_ranks
from tests.trainer.models.small_decoder import settings
from trainer.models.decoder_build import build_decoder
from trainer.models.weights import hash_of_state, hash_weights_by_name, open_weights


def test_the_hash_does_not_depend_on_the_number_of_ranks():
    config = settings("qwen_moe_tiny")
    alone = hash_of_state(build_decoder(config))

    def compare() -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        weights = open_weights(config, read_shape(config))
        found = hash_weights_by_name(weights, weights.names, dist.get_rank(), dist.get_world_size())
        assert found == alone, (found, alone)

    run_ranks(compare, 3)
