from __future__ import annotations

import torch

from tests.ranks import run_ranks


def test_statistics_of_the_ranks_become_their_mean_with_one_collective():
    def target() -> None:
        import torch.distributed as dist

        from trainer.models.batch_norm import average_running_statistics

        dist.init_process_group("gloo")
        calls, whole = [], dist.all_reduce
        dist.all_reduce = lambda tensor: calls.append(tensor.numel()) or whole(tensor)
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(1, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.BatchNorm2d(3)
        )
        torch.manual_seed(dist.get_rank())
        model(torch.rand(4, 1, 8, 8))
        statistics = (model[1].running_mean, model[2].running_var)
        both = [None, None]
        dist.all_gather_object(both, [t.clone() for t in statistics])
        assert not torch.equal(both[0][0], both[1][0])
        for _ in range(2):  # the second time changes nothing
            average_running_statistics(model)
            for i, tensor in enumerate(statistics):
                torch.testing.assert_close(tensor, (both[0][i] + both[1][i]) / 2)
        assert calls == [12, 12] and model[1].num_batches_tracked == 1
        average_running_statistics(torch.nn.Linear(2, 2))
        assert len(calls) == 2
        dist.destroy_process_group()

    run_ranks(target, 2)
