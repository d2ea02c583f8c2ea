"""A language model on several ranks: its loss with a part of the words on each, and the hash of its weights."""

import torch

from tests.ranks import run_ranks
from tests.trainer.models import test_chunked_cross_entropy as reference
from tests.trainer.models.small_decoder import settings
from trainer.models.chunked_cross_entropy import token_loss
from trainer.models.decoder_build import build_decoder
from trainer.models.weights import open_weights
from trainer.tasks.text_task import hash_of_state, hash_weights_by_name


def test_two_ranks_with_half_the_words_each_give_the_whole_loss():
    def run() -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        for smoothing, taught in ((0.0, None), (0.2, None), (0.2, reference.draw_teacher())):
            states, weight, labels = reference.draw_case()
            theirs = reference.plain_loss(states, weight, labels, smoothing, taught)
            theirs.backward()
            at = slice(6 * dist.get_rank(), 6 * dist.get_rank() + 6)
            mine, same = (t.detach().clone().requires_grad_() for t in (weight[at], states))
            ours = token_loss(same, mine, labels, dist.group.WORLD, smoothing, chunk_tokens=4, taught=taught)
            ours.backward()
            torch.testing.assert_close(ours, theirs)
            torch.testing.assert_close(mine.grad, weight.grad[at], rtol=2e-5, atol=2e-5)
            dist.all_reduce(same.grad)  # each rank's words give a part of it
            torch.testing.assert_close(same.grad, states.grad, rtol=2e-5, atol=2e-5)

    run_ranks(run, 2)


def test_the_hash_does_not_depend_on_the_number_of_ranks():
    config = settings("qwen_moe_tiny")
    alone = hash_of_state(build_decoder(config))

    def compare() -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        weights = open_weights(config, build_decoder(config, empty=True))
        found = hash_weights_by_name(weights, weights.names, dist.get_rank(), dist.get_world_size())
        assert found == alone, (found, alone)

    run_ranks(compare, 3)
