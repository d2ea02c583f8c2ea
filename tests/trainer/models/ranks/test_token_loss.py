"""Two ranks with half the words each."""

from __future__ import annotations

import torch

from tests.ranks import run_ranks
from tests.trainer.models import test_taught_tokens
from tests.trainer.models.test_token_loss import draw_case, plain_loss
from trainer.models.token_loss import token_loss


def test_two_ranks_with_half_the_words_each_give_the_whole_loss():
    def run() -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        for smoothing in (0.0, 0.2):
            states, weight, labels = draw_case()
            theirs = plain_loss(states, weight, labels, smoothing)
            theirs.backward()
            at = slice(6 * dist.get_rank(), 6 * dist.get_rank() + 6)
            mine, same = (
                weight.detach()[at].clone().requires_grad_(),
                states.detach().clone().requires_grad_(),
            )
            ours = token_loss(same, mine, labels, dist.group.WORLD, smoothing, chunk_tokens=4)
            ours.backward()
            torch.testing.assert_close(ours, theirs)
            torch.testing.assert_close(mine.grad, weight.grad[at])
            dist.all_reduce(same.grad)  # each rank's words give a part of it
            torch.testing.assert_close(same.grad, states.grad)

    run_ranks(run, 2)


def test_with_a_teacher_too_whose_words_each_rank_takes_its_own_of():
    def run() -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        for smoothing in (0.0, 0.2):
            states, weight, labels = draw_case()
            taught = test_taught_tokens.draw_teacher()
            theirs = test_taught_tokens.plain_loss(states, weight, labels, taught, smoothing)
            theirs.backward()
            at = slice(6 * dist.get_rank(), 6 * dist.get_rank() + 6)
            mine, same = (
                weight.detach()[at].clone().requires_grad_(),
                states.detach().clone().requires_grad_(),
            )
            ours = token_loss(same, mine, labels, dist.group.WORLD, smoothing, chunk_tokens=4, taught=taught)
            ours.backward()
            torch.testing.assert_close(ours, theirs)
            torch.testing.assert_close(mine.grad, weight.grad[at], rtol=2e-5, atol=2e-5)
            dist.all_reduce(same.grad)
            torch.testing.assert_close(same.grad, states.grad, rtol=2e-5, atol=2e-5)

    run_ranks(run, 2)
