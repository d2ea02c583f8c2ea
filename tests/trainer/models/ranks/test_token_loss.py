"""Two ranks with half the words each."""

from __future__ import annotations

import torch

from tests.ranks import run_ranks
from tests.trainer.models import test_taught_tokens, test_token_loss
from trainer.models.chunked_cross_entropy import token_loss


def test_two_ranks_with_half_the_words_each_give_the_whole_loss():
    """With a teacher too, of whose words each rank takes its own."""

    def run() -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        for smoothing, taught in ((0.0, None), (0.2, None), (0.2, test_taught_tokens.draw_teacher())):
            states, weight, labels = test_token_loss.draw_case()
            if taught is None:
                theirs = test_token_loss.plain_loss(states, weight, labels, smoothing)
            else:
                theirs = test_taught_tokens.plain_loss(states, weight, labels, taught, smoothing)
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
